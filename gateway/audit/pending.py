"""Lines on their way into the record: taken without waiting, written by a task in a thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway import wire
from gateway.audit.batch import Batch
from gateway.audit.lines import EventLine, Line
from gateway.audit.reading import Filter, Page, read
from gateway.audit.writing import Limits, NotWritten, RecordFile
from gateway.config.audit import AuditConfig
from gateway.files import expand_home

log = logging.getLogger(__name__)

# About a second of the most calls that one process makes, and some 10 MB.
MAX_WAITING: Final = 10_000
# Of arguments and results that wait, together; beyond it lines go without them.
_MAX_VALUE_BYTES: Final = 16 * 2**20
# Of the arguments, or the result, of one call.
_MAX_VALUE: Final = 64 * 1024
# One write for all that happens in this time: a lock, an open and a write cost as much as a hundred lines.
_GATHER_S: Final = 0.1
# Until a write that has failed is tried again.
_RETRY_S: Final = 1.0
# Whoever can write the audit log can write all of it anew. What the log of the process says, which is collected
# elsewhere, shows that: within the hour, at most so much can be rewritten unseen.
_ANCHOR_S: Final = 3_600.0
# How long the end of the process waits for the last lines.
_CLOSE_S: Final = 2.0


class PendingLines:
    """Lines that wait to be written. Nobody waits for them; those that cannot be kept are counted, and a line says so.

    Attributes:
        on: Whether anything is recorded.
        required: Whether no call may be made that is not.
        keeps_arguments: Whether lines of calls have their arguments.
        keeps_results: Whether they have results, which have to be there as a whole.
        written: How many lines this process has written.
        lost: How many it could not keep.
        last_error: Why nothing can be written at present.
        watcher: Takes the lines that are about to be written, once each; None where nobody looks.
        file: Where they go.
        settings: What is recorded, and where.
    """

    def __init__(
        self,
        settings: AuditConfig,
        state_dir: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        most_waiting: int = MAX_WAITING,
    ) -> None:
        """Record as configured.

        Args:
            settings: Where to, and what.
            state_dir: Where state is kept; None for nowhere, and then nothing is recorded.
            clock: Seconds since 1970.
            most_waiting: How many lines may wait; further ones are lost, and counted.
        """
        self._most_waiting = most_waiting
        self._state_dir = state_dir
        self._clock = clock
        self._waiting: deque[Line] = deque()
        self._watched = 0
        self.watcher: Callable[[list[Line]], None] | None = None
        self._value_bytes = 0
        self._lost_since = 0
        self._wake = anyio.Event()
        # Asked for each line: to ask the event costs more than all else that is done for it.
        self._woken = False
        self._writing = anyio.Lock()
        self._threads = anyio.CapacityLimiter(1)
        self._in_order = Lock()
        # Those whose threads go on although nobody waits for them any more, and the present one.
        self._batches: deque[Batch] = deque()
        self._anchored_s = clock()
        self.written = 0
        self.lost = 0
        self.last_error: str | None = None
        self.file: RecordFile | None = None
        self.on = self.required = self.keeps_arguments = self.keeps_results = False
        self.settings = settings
        self.replace(settings)

    def replace(self, settings: AuditConfig) -> None:
        """Record otherwise from now on; what waits goes where new lines go."""
        self.settings = settings
        self.on = settings.enabled and self._state_dir is not None
        self.required = self.on and settings.required
        # Every call asks for these, and to read a field of a configuration model takes as long as ten attributes.
        self.keeps_arguments, self.keeps_results = self.on and settings.arguments, self.on and settings.results
        # Kept while it is switched off: what waits is still written.
        if self.on and self._state_dir is not None:
            limits = Limits(days=settings.keep_days, total_bytes=settings.max_mebibytes * 2**20)
            self.file = RecordFile(self._state_dir / expand_home(settings.file), limits, clock=self._clock)

    @property
    def refuses(self) -> bool:
        """Whether calls must not be made, since they would not be recorded."""
        if not self.required:
            return False
        return self.last_error is not None or len(self._waiting) >= self._most_waiting

    async def can_record(self) -> bool:
        """Return whether a call may be made: where the record is required, a line could be written now."""
        if not self.required or self.file is None:
            return True
        if self.refuses:
            return False
        await self._check_room(self.file)
        return not self.refuses

    async def _check_room(self, file: RecordFile) -> None:
        try:
            await anyio.to_thread.run_sync(file.check_room)
        except NotWritten as error:
            self._failed(str(error))
        else:
            if self.last_error is not None and not self._waiting:
                self._recovered()

    async def run(self) -> None:
        """Write what was taken, until cancelled."""
        while True:
            await self._wake.wait()
            # Here alone: whoever else flushes must not take away what this waits for. And before anything is taken,
            # so that what comes meanwhile wakes it again.
            self._wake, self._woken = anyio.Event(), False
            await anyio.sleep(_GATHER_S if self.last_error is None else _RETRY_S)
            await self.flush()
            if not 0 <= self._clock() - self._anchored_s < _ANCHOR_S:
                self._anchor()

    def _anchor(self) -> None:
        """Log where the entries end, with the digest of all of them: `audit verify --anchor` compares."""
        self._anchored_s = self._clock()
        head = self.file.head if self.file is not None else None
        if head is not None and head.last:
            log.info("audit log anchored: %s", head.anchor)

    async def flush(self) -> None:
        """Write what waits now; a failure is told in the log, and nothing is forgotten for it."""
        async with self._writing:
            self._settle()
            if self.file is None:
                return
            if not self._waiting:
                if self.last_error is not None:
                    # No line waits that would tell when the file can be written again.
                    await self._check_room(self.file)
                return
            lines, self._waiting = self._waiting, deque()
            self._value_bytes = 0
            # Here and not where they are taken: no call waits for it.
            self._show(list(islice(lines, self._watched, None)))
            self._watched = 0
            lost, self._lost_since = self._lost_since, 0
            if lost:
                lines.append(self._event({"event": "lost", "lines": lost}))
            batch = Batch(lines, lost)
            self._batches.append(batch)
            try:
                # Given up at the end of the process, since a disk that hangs must not keep it.
                await anyio.to_thread.run_sync(
                    batch.write, self.file, self._in_order, abandon_on_cancel=True, limiter=self._threads
                )
            except BaseException:
                if batch.withdraw():
                    self._batches.remove(batch)
                    self._take_back(batch)
                raise
            self._settle()

    async def close(self) -> None:
        """Write the last lines, for as long as the end of a process may take."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self.flush()
        self._anchor()
        left = len(self._waiting) + sum(len(batch.lines) for batch in self._batches)
        if left:
            log.warning("%d lines of the record were not written before the end", left)

    async def page(self, wanted: Filter, *, limit: int) -> Page:
        """Lines of the record, those of this moment included.

        Raises:
            OSError: It cannot be read.
        """
        await self.flush()
        if self.file is None:
            return Page(rows=[], next=None)
        path = self.file.path
        return await anyio.to_thread.run_sync(lambda: read(path, wanted, limit=limit))

    def _show(self, lines: list[Line]) -> None:
        if self.watcher is not None:
            try:
                self.watcher(lines)
            except Exception:  # boundary: the record is more than what is made of it, and goes on
                log.exception("%d lines of the record are not among the latest calls of administrators", len(lines))

    def _settle(self) -> None:
        """Note what has become of batches; of one that nobody has waited for, when the next one is written."""
        while self._batches and (written := self._batches[0].written) is not None:
            batch = self._batches.popleft()
            self.written += written.lines
            if written.deleted:
                log.warning(
                    "%d files of the record were deleted before their time: it has reached gateway.audit.maxMebibytes",
                    written.deleted,
                )
            if written.error is not None:
                self._take_back(batch)
                self._failed(written.error)
            elif self.last_error is not None:
                self._recovered()

    def _take_back(self, batch: Batch) -> None:
        """Have the lines that were not written wait again, before all others."""
        rest = batch.rest()
        self._lost_since += batch.lost
        self._watched += len(rest)
        self._waiting.extendleft(reversed(rest))

    def _failed(self, reason: str) -> None:
        # Told once, and not at every attempt.
        if self.last_error is None:
            log.error("the record of calls cannot be written: %s", reason)
        self.last_error = reason
        self._wake.set()

    def _recovered(self) -> None:
        log.warning("the record of calls is written again")
        self.last_error = None

    def _put(self, line: Line) -> None:
        if len(self._waiting) >= self._most_waiting:
            if not self._lost_since:
                log.error("the record of calls cannot keep up: lines are lost, and counted")
            self._lost_since += 1
            self.lost += 1
            return
        self._waiting.append(line)
        if not self._woken:
            self._woken = True
            self._wake.set()

    def _event(self, about: dict[str, Any]) -> EventLine:
        return EventLine(self._clock(), about)

    def _value(self, value: Any) -> bytes:
        """A value as it is at this moment: hooks and encoders may change it in place later."""
        try:
            text = wire.dumps(value)
        except wire.MalformedJson:
            return b'"not shown: it cannot be expressed as JSON"'
        if len(text) > _MAX_VALUE or self._value_bytes + len(text) > _MAX_VALUE_BYTES:
            return b'"not shown: it has %d bytes"' % len(text)
        self._value_bytes += len(text)
        return text
