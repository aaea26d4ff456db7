"""`audit_log`: write one line of JSON for each call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from gateway.audit.audit_entries import session_mark
from gateway.hooks import payloads
from gateway.hooks.hook import Call, Hook, Mode, Result
from gateway.hooks.hook_formats import metadata_to_json
from gateway.protocol import json_bytes

# About 30,000 calls without arguments and results, in a file that editors can still open.
_DEFAULT_BYTES: Final = 10 * 2**20
# The bounds of `maxBytes`: a smaller file would rotate every few lines, and more than a tebibyte is a typing error.
_MIN_BYTES: Final = 1_000
_MAX_BYTES: Final = 2**40
# The bound of `keep`: each rotation renames all old files, while further events wait in the hook's queue.
_MAX_KEEP: Final = 1_000


class AuditLog(Hook):
    """Writes a log. `config`: `file`, `maxBytes` (10 MiB), `keep` (5), `arguments` (false), `results` (false).

    Before the file would exceed `maxBytes`, it is renamed to `FILE.1`, `FILE.1` to `FILE.2` and so on, up to `keep` old
    files. The log contains a hash of each session id instead of the id, with which a reader could use the session.
    """

    mode: ClassVar[Mode] = "audit"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        payloads.check_keys(config, "file", "maxBytes", "keep", "arguments", "results")
        file = config.get("file")
        if not isinstance(file, str) or not file.strip():
            raise ValueError("file is missing; expected the path of the log")
        self._file = Path(file)
        self._max_bytes = int(
            payloads.read_number(config, "maxBytes", _DEFAULT_BYTES, least=_MIN_BYTES, most=_MAX_BYTES)
        )
        self._keep = int(payloads.read_number(config, "keep", 5, least=0, most=_MAX_KEEP))
        self._arguments = payloads.read_flag(config, "arguments", False)
        self._results = payloads.read_flag(config, "results", False)
        self._clock = clock
        self._descriptor: int | None = None
        self._size = 0

    async def start(self) -> None:
        """Open the file, so that an unwritable file is reported at startup."""
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
        """Write one line about a call."""
        row = metadata_to_json(call.metadata)
        session = row.pop("session")
        row["session"] = session_mark(session) if session else None
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        outcome = "blocked" if call.metadata.blocked_by else "error" if result.is_error else "ok"
        line = {"time": at, "outcome": outcome, "elapsedMs": call.metadata.elapsed_ms, **row}
        if self._arguments:
            line["arguments"] = call.args
        if self._results:
            line["result"] = result.value
        data = json_bytes.dumps(line) + b"\n"
        if self._descriptor is None or (self._size and self._size + len(data) > self._max_bytes):
            self._rotate()
        assert self._descriptor is not None
        written_bytes = os.write(self._descriptor, data)
        self._size += written_bytes
        if written_bytes != len(data):
            raise OSError("the line was only partly written")

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
            # Rename the oldest file first, so that no file is overwritten except for the oldest one.
            for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
                if newer.exists():
                    newer.replace(older)
        self._open()
