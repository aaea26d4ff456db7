"""Queue entries without blocking calls, and write them in a thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread

from gateway.audit.audit_entries import EventEntry, Line
from gateway.audit.log_reader import Filter, Page, read
from gateway.audit.log_writer import Limits, LogFile, NotWritten
from gateway.config.operation_config import AuditConfig
from gateway.process.files import expand_home
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

# The number of lines written at once, which takes half a millisecond, and the pause between writes. Calls wait for the
# interpreter lock during a write. Without pauses, 1 % of the calls would wait until all queued lines are written.
_SLICE: Final = 256
_PAUSE_S: Final = 0.000_1


class WriteResult(NamedTuple):
    """The result of writing a batch.

    Attributes:
        lines: How many lines were written, counted from the first line of the batch.
        deleted: The number of files deleted because of the total size.
        error: Why the remaining lines were not written; None if all lines were written.
    """

    lines: int
    deleted: int
    error: str | None = None


class Batch:
    """Entries that are written together.

    Attributes:
        lost: The number of entries lost before this batch. Unless this is 0, the last entry of the batch reports it.
        written: The result of the write; None until the thread has finished it.
    """

    def __init__(self, lines: deque[Line], lost_count: int) -> None:
        self.lines = lines
        self.lost = lost_count
        self.written: WriteResult | None = None
        # Either the thread that writes the entries or `withdraw` acquires this lock, and never releases the lock.
        self._claimed = Lock()

    def withdraw(self) -> bool:
        """Prevent the batch from being written. Return false if a thread has already started to write the batch."""
        return self._claimed.acquire(blocking=False)

    def write(self, file: LogFile, in_order: Lock) -> None:
        """Append as many entries as possible, with pauses in which calls and other processes can proceed.

        Args:
            in_order: A lock that is held during the write. A thread continues to write after its task is cancelled;
                the lock makes the threads of later batches wait.
        """
        with in_order:
            if self._claimed.acquire(blocking=False):
                try:
                    self.written = self._write(file)
                finally:
                    # After an unexpected error, later batches must not wait for the result of this batch.
                    self.written = self.written or WriteResult(0, 0)

    def unwritten(self) -> deque[Line]:
        """Return the entries that were not written, except the entry about lost entries, which is created again."""
        unwritten = deque(islice(self.lines, self.written.lines if self.written else 0, None))
        if self.lost:
            unwritten.pop()
        return unwritten

    def _write(self, file: LogFile) -> WriteResult:
        lines, written_count, deleted = list(self.lines), 0, 0
        while written_count < len(lines):
            if written_count:
                time.sleep(_PAUSE_S)
            part = lines[written_count : written_count + _SLICE]
            try:
                deleted += file.append([line.text() for line in part])
            except NotWritten as error:
                return WriteResult(written_count, deleted, str(error))
            written_count += len(part)
        return WriteResult(written_count, deleted)


# The maximum length of the queue: the entries of about one second at the maximum call rate of a process, about 10 MB.
MAX_WAITING: Final = 10_000
# The maximum total size of queued arguments and results; further arguments and results are omitted from their entries.
_MAX_VALUE_BYTES: Final = 16 * 2**20
# The maximum size of the arguments, or of the result, of one call; larger values are omitted from the entry.
_MAX_VALUE: Final = 64 * 1024
# Entries of this period are written together, because a lock, an open and a write cost as much as a hundred lines.
_GATHER_S: Final = 0.1
# The delay before a failed write is repeated.
_RETRY_S: Final = 1.0
# The interval of anchors: the number and the digest of the latest line, written to the process log. A user who can
# write the audit log can replace the whole log. If the process log is collected on another machine, its anchors reveal
# the replacement of entries that are older than an hour.
_ANCHOR_S: Final = 3_600.0
# How long the shutdown waits for the last entries.
_CLOSE_S: Final = 2.0


class PendingEntries:
    """A queue of entries that a thread writes. If the queue is full, entries are lost, and their number is recorded.

    Attributes:
        on: True if entries are recorded.
        required: True if calls that cannot be recorded are refused.
        keeps_arguments: True if entries of calls include the arguments.
        keeps_results: True if entries of calls include the result.
        written: The number of entries that this process has written.
        lost: The number of entries that this process has lost.
        last_error: Why entries cannot be written at present.
    """

    def __init__(
        self,
        settings: AuditConfig,
        state_dir: Path | None,
        *,
        clock: Callable[[], float] = time.time,
        most_waiting: int = MAX_WAITING,
        records_reloads: bool = True,
    ) -> None:
        """Create an empty queue.

        Args:
            state_dir: The state directory; None to record nothing.
            clock: Returns seconds since 1970.
            most_waiting: The maximum length of the queue.
            records_reloads: Whether this process records reloads. If there are several processes, only one does.
        """
        self._most_waiting = most_waiting
        self._records_reloads = records_reloads
        self._state_dir = state_dir
        self._clock = clock
        self._waiting: deque[Line] = deque()
        self._watched = 0
        self._watcher: Callable[[list[Line]], None] | None = None
        self._value_bytes = 0
        self._lost_since = 0
        self._wake = anyio.Event()
        # True if `_enqueue` has set `_wake`. Calling `_wake.is_set()` would take longer than queueing an entry.
        self._woken = False
        self._writing = anyio.Lock()
        self._threads = anyio.CapacityLimiter(1)
        self._in_order = Lock()
        # The current batch, and earlier batches whose threads continue after a cancellation.
        self._batches: deque[Batch] = deque()
        self._anchored_s = clock()
        self.written = 0
        self.lost = 0
        self.last_error: str | None = None
        self.file: LogFile | None = None
        self.replace(settings)

    def replace(self, settings: AuditConfig) -> None:
        """Apply changed settings. Queued entries are written to the new file."""
        self.settings = settings
        self.on = settings.enabled and self._state_dir is not None
        self.required = self.on and settings.required
        # Copy these settings, because every call reads them, and reading a field of a pydantic model takes ten times as
        # long as reading an attribute.
        self.keeps_arguments, self.keeps_results = self.on and settings.arguments, self.on and settings.results
        # When recording is switched off, the file stays open for the queued entries.
        if self.on and self._state_dir is not None:
            limits = Limits(days=settings.keep_days, total_bytes=settings.max_mebibytes * 2**20)
            self.file = LogFile(self._state_dir / expand_home(settings.file), limits, clock=self._clock)

    def watch(self, watcher: Callable[[list[Line]], None]) -> None:
        """Call `watcher` with all later entries before they are written. A second watcher replaces the first."""
        self._watcher = watcher

    @property
    def refuses(self) -> bool:
        """True if calls must be refused, because the audit log cannot record calls at present."""
        if not self.required:
            return False
        return self.last_error is not None or len(self._waiting) >= self._most_waiting

    async def can_record(self) -> bool:
        """Return whether a call may be made: if recording is required, check that entries can be written."""
        if not self.required or self.file is None:
            return True
        if self.refuses:
            return False
        await self._check_room(self.file)
        return not self.refuses

    async def _check_room(self, file: LogFile) -> None:
        try:
            await anyio.to_thread.run_sync(file.check_room)
        except NotWritten as error:
            self._note_failure(str(error))
        else:
            if self.last_error is not None and not self._waiting:
                self._note_recovery()

    async def run(self) -> None:
        """Write queued entries until cancelled."""
        while True:
            await self._wake.wait()
            # Reset the event here and not in `flush`, which other tasks call too. Reset it before the queue is read, so
            # that entries added during the write set the event again.
            self._wake, self._woken = anyio.Event(), False
            await anyio.sleep(_GATHER_S if self.last_error is None else _RETRY_S)
            await self.flush()
            if not 0 <= self._clock() - self._anchored_s < _ANCHOR_S:
                self._anchor()

    def _anchor(self) -> None:
        """Log the current end of the log, with a digest over all entries, for `audit verify --anchor`."""
        self._anchored_s = self._clock()
        head = self.file.head if self.file is not None else None
        if head is not None:
            log.info("audit log anchored: %s", head.anchor)

    async def flush(self) -> None:
        """Write the queued entries now. After a failure, which is logged, the entries stay in the queue."""
        async with self._writing:
            self._handle_results()
            if self.file is None:
                return
            if not self._waiting:
                if self.last_error is not None:
                    # Without queued entries, only this check notices that the file can be written again.
                    await self._check_room(self.file)
                return
            lines, self._waiting = self._waiting, deque()
            self._value_bytes = 0
            # Call the watcher here and not in `_enqueue`, so that calls do not wait for the watcher.
            self._notify_watcher(list(islice(lines, self._watched, None)))
            self._watched = 0
            lost_count, self._lost_since = self._lost_since, 0
            if lost_count:
                lines.append(self._event({"event": "lost", "lines": lost_count}))
            batch = Batch(lines, lost_count)
            self._batches.append(batch)
            try:
                # Abandon the thread on cancellation, because a hanging disk must not delay the shutdown.
                await anyio.to_thread.run_sync(
                    batch.write, self.file, self._in_order, abandon_on_cancel=True, limiter=self._threads
                )
            except BaseException:
                if batch.withdraw():
                    self._batches.remove(batch)
                    self._requeue(batch)
                raise
            self._handle_results()

    async def aclose(self) -> None:
        """Write the last entries, within at most `_CLOSE_S` seconds."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self.flush()
        self._anchor()
        unwritten_count = len(self._waiting) + sum(len(batch.lines) for batch in self._batches)
        if unwritten_count:
            log.warning("%d audit entries not written before shutdown", unwritten_count)

    async def page(self, selection: Filter, *, limit: int) -> Page:
        """Return a page of the audit log, including the queued entries.

        Raises:
            OSError: The log cannot be read.
        """
        await self.flush()
        if self.file is None:
            return Page(rows=[], next=None)
        path = self.file.path
        return await anyio.to_thread.run_sync(lambda: read(path, selection, limit=limit))

    def _notify_watcher(self, lines: list[Line]) -> None:
        if self._watcher is not None:
            try:
                self._watcher(lines)
            except Exception:  # boundary: a failing watcher must not stop the audit log
                log.exception("%d audit entries not shown to administrators", len(lines))

    def _handle_results(self) -> None:
        """Handle the results of finished batches. The result of an abandoned batch is handled by a later call."""
        while self._batches and (outcome := self._batches[0].written) is not None:
            batch = self._batches.popleft()
            self.written += outcome.lines
            if outcome.deleted:
                log.warning(
                    "%d audit files deleted early: the log has reached gateway.audit.maxMebibytes",
                    outcome.deleted,
                )
            if outcome.error is not None:
                self._requeue(batch)
                self._note_failure(outcome.error)
            elif self.last_error is not None:
                self._note_recovery()

    def _requeue(self, batch: Batch) -> None:
        """Return the unwritten entries of a batch to the front of the queue."""
        unwritten = batch.unwritten()
        self._lost_since += batch.lost
        self._watched += len(unwritten)
        self._waiting.extendleft(reversed(unwritten))

    def _note_failure(self, reason: str) -> None:
        # Log only the first failure, not every attempt.
        if self.last_error is None:
            log.error("audit log cannot be written: %s", reason)
        self.last_error = reason
        self._wake.set()

    def _note_recovery(self) -> None:
        log.warning("audit log can be written again")
        self.last_error = None

    def _enqueue(self, line: Line) -> None:
        if len(self._waiting) >= self._most_waiting:
            if not self._lost_since:
                log.error("audit log queue full, losing entries")
            self._lost_since += 1
            self.lost += 1
            return
        self._waiting.append(line)
        if not self._woken:
            self._woken = True
            self._wake.set()

    def _event(self, about: dict[str, Any]) -> EventEntry:
        return EventEntry(self._clock(), about)

    def _encode(self, value: Any) -> bytes:
        """Encode a value at once, because hooks and encoders may change the value in place later.

        Return a placeholder if the value is too large, or cannot be expressed as JSON.
        """
        try:
            text = json_bytes.dumps(value)
        except json_bytes.MalformedJson:
            return b'"not shown: it cannot be expressed as JSON"'
        if len(text) > _MAX_VALUE or self._value_bytes + len(text) > _MAX_VALUE_BYTES:
            return b'"not shown: it has %d bytes"' % len(text)
        self._value_bytes += len(text)
        return text
