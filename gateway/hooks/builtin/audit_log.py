"""`audit_log`: who called what and how it ended, one line of JSON for each call, in files that only we may read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from gateway import wire
from gateway.hooks.builtin import settings
from gateway.hooks.formats import described
from gateway.hooks.hook import Call, Hook, Mode, Result


class AuditLog(Hook):
    """Writes a log. `config`: `file`, `maxBytes` (10 MiB), `keep` (5), `arguments` (false), `results` (false).

    A file that would grow over `maxBytes` becomes `FILE.1`, that one `FILE.2`, and so on; `keep` of them are kept.
    A handshake-era session is named by a hash of its id: the id itself would let a reader take the session over.
    """

    mode: ClassVar[Mode] = "audit"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(config)
        settings.known(config, "file", "maxBytes", "keep", "arguments", "results")
        file = config.get("file")
        if not isinstance(file, str) or not file.strip():
            raise ValueError("file is missing; expected where to write to")
        self._file = Path(file)
        self._max_bytes = int(settings.number(config, "maxBytes", 10 * 2**20, least=1_000, most=2**40))
        self._keep = int(settings.number(config, "keep", 5, least=0, most=1_000))
        self._arguments = settings.flag(config, "arguments", False)
        self._results = settings.flag(config, "results", False)
        self._clock = clock
        self._descriptor: int | None = None
        self._size = 0

    async def start(self) -> None:
        """Open the file, so that a place where nothing can be written is told at once."""
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
        """Write a line."""
        self._write(call, result)

    def after_prompt(self, call: Call, result: Result) -> None:
        """Write a line."""
        self._write(call, result)

    def after_resource(self, call: Call, result: Result) -> None:
        """Write a line."""
        self._write(call, result)

    def _write(self, call: Call, result: Result) -> None:
        told = described(call.metadata)
        session = told.pop("session")
        told["session"] = hashlib.sha256(session.encode()).hexdigest()[:16] if session else None
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        outcome = "blocked" if call.metadata.blocked_by else "error" if result.is_error else "ok"
        line = {"time": at, "outcome": outcome, "elapsedMs": call.metadata.elapsed_ms, **told}
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

    def _open(self) -> None:
        self._descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._descriptor, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            names = [self._file, *(self._file.with_name(f"{self._file.name}.{at}") for at in range(1, self._keep + 1))]
            if self._keep == 0:
                self._file.unlink(missing_ok=True)
            for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
                if newer.exists():
                    newer.replace(older)
        self._open()
