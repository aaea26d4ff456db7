"""`audit_log`: who called what and how it ended, as one line of JSON for each call, in files only we can read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from gateway import wire
from gateway.audit.call import session_mark
from gateway.hooks import settings
from gateway.hooks.formats import described
from gateway.hooks.hook import Call, Hook, Mode, Result

# About 30,000 calls without arguments and results: a file that editors still open.
_DEFAULT_BYTES: Final = 10 * 2**20
# Less would rotate at every few lines; more than a tebibyte is a typing error.
_MIN_BYTES: Final = 1_000
_MAX_BYTES: Final = 2**40
# Every kept file is renamed at each rotation, while the hook's queue waits.
_MAX_KEEP: Final = 1_000


class AuditLog(Hook):
    """Writes a log. `config`: `file`, `maxBytes` (10 MiB), `keep` (5), `arguments` (false), `results` (false).

    A file that would grow beyond `maxBytes` becomes `FILE.1`, that one `FILE.2`, and so on; `keep` of them are kept.
    A session is named by a hash of its id: with the id itself a reader could take the session over.
    """

    mode: ClassVar[Mode] = "audit"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        settings.check_keys(config, "file", "maxBytes", "keep", "arguments", "results")
        file = config.get("file")
        if not isinstance(file, str) or not file.strip():
            raise ValueError("file is missing; expected where to write to")
        self._file = Path(file)
        self._max_bytes = int(settings.number(config, "maxBytes", _DEFAULT_BYTES, least=_MIN_BYTES, most=_MAX_BYTES))
        self._keep = int(settings.number(config, "keep", 5, least=0, most=_MAX_KEEP))
        self._arguments = settings.flag(config, "arguments", False)
        self._results = settings.flag(config, "results", False)
        self._clock = clock
        self._descriptor: int | None = None
        self._size = 0

    async def start(self) -> None:
        """Open the file, so that one that cannot be written fails the start."""
        try:
            self._open()
        except OSError as error:
            raise ValueError(f"cannot write to {self._file} ({error.strerror})") from None

    async def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def after_call(self, call: Call, result: Result) -> None:
        """Write one line."""
        row = described(call.metadata)
        session = row.pop("session")
        row["session"] = session_mark(session) if session else None
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        outcome = "blocked" if call.metadata.blocked_by else "error" if result.is_error else "ok"
        line = {"time": at, "outcome": outcome, "elapsedMs": call.metadata.elapsed_ms, **row}
        if self._arguments:
            line["arguments"] = call.args
        if self._results:
            line["result"] = result.value
        data = wire.dumps(line) + b"\n"
        if self._descriptor is None or (self._size and self._size + len(data) > self._max_bytes):
            self._rotate()
        assert self._descriptor is not None
        written = os.write(self._descriptor, data)
        self._size += written
        if written != len(data):
            raise OSError("the line was not written whole")

    after_prompt = after_resource = after_completion = after_call

    def _open(self) -> None:
        self._descriptor = os.open(
            self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600
        )
        if hasattr(os, "fchmod"):
            os.fchmod(self._descriptor, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            names = [self._file, *(self._file.with_name(f"{self._file.name}.{at}") for at in range(1, self._keep + 1))]
            if self._keep == 0:
                self._file.unlink(missing_ok=True)
            # The oldest first: each name has to be free, or worth overwriting, before the next file takes it.
            for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
                if newer.exists():
                    newer.replace(older)
        self._open()
