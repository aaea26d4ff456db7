"""The audit log for the rest of the gateway: methods that record events, and the queue of unwritten entries."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

import anyio
import anyio.to_thread

from gateway.audit.audit_entries import (
    STDIO,
    ApprovalGiven,
    AuditedCaller,
    CallEntry,
    EntryLimit,
    EventEntry,
    Line,
    Outcome,
    Wrapper,
)
from gateway.audit.log_reader import Filter, Page, read
from gateway.audit.log_writer import Batch, Limits, LogFile, NotWritten
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.config.operation_config import AuditConfig
from gateway.process.files import expand_home
from gateway.protocol import json_bytes
from gateway.telemetry.trace_context import CURRENT
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

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


# Maximum length of a recorded text that a caller has chosen: longer than any reasonable name or URI.
_NAME_CHARS: Final = 200
# The maximum number of entries about wrong credentials per minute and address. Ten are enough to notice an attack.
_WRONG_CREDENTIALS: Final = 10
# Maximum entries about refused and failed requests per minute and caller. Agents with outdated tool lists cause fewer.
# About two million entries fit into the log before old files are deleted, and one caller needs days to write that many.
_REFUSED_REQUESTS: Final = 300


class Audit(PendingEntries, Reconfigurable):
    """The audit log. All methods return without waiting for the file."""

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._apply, change)

    def _apply(self, change: ConfigChange) -> None:
        if change.is_reload and self._records_reloads:
            # Record the reload before applying it, so that the log has an entry if the reload switches the log off.
            self.changed("reload", str(change.after.path) if change.after.path is not None else None)
        self.replace(change.after.gateway.audit)

    @cached_property
    def _wrong_credentials(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_WRONG_CREDENTIALS)

    @cached_property
    def _refused_requests(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_REFUSED_REQUESTS)

    def call(
        self,
        caller: AuditedCaller,
        wrapper: Wrapper | None,
        via: str,
        outcome: Outcome,
        took_s: float,
        arguments: Any = None,
        result: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        """Record a finished tool call.

        Args:
            wrapper: The called tool; None for a tool of the gateway itself.
            via: How the tool was called: `wrapper` or `invoke_tool`.
            arguments: The arguments as the caller sent them.
            result: The result as the caller receives it.
            name: The name of a tool of the gateway itself.
        """
        if not self.on:
            return
        # This is the code of `recorded_trace`, without the function call, because it runs for every tool call.
        span = CURRENT.get()
        self._enqueue(
            CallEntry(
                self._clock(),
                (
                    caller.principal.name,
                    caller.view.profile.name,
                    caller.version,
                    caller.peer,
                    caller.session_id,
                    caller.client,
                ),
                (name,) if wrapper is None else (wrapper.name, wrapper.server, wrapper.tool),
                via,
                outcome,
                took_s,
                self._encode(arguments) if self.keeps_arguments else None,
                self._encode(result) if self.keeps_results else None,
                span.trace_id if span is not None and span.recorded else None,
            )
        )

    def request(
        self,
        caller: AuditedCaller,
        method: str,
        name: object,
        took_s: float,
        *,
        code: int | None = None,
        reached: tuple[str, str] | None = None,
    ) -> None:
        """Record a finished request for a prompt, a resource or any other item of an upstream except tools.

        Args:
            name: The requested prompt or resource.
            code: The code of the JSON-RPC error, if the request failed.
            reached: The upstream that received the request last, and the name or URI of the item at this upstream.
        """
        if not self.on:
            return
        more = 0 if code is None else self._refused_requests.admit(caller.principal.name)
        if more is not None:
            outcome = {"jsonrpc": "ok" if code is None else code}
            owner = {} if reached is None else {"server": reached[0], "original": _name(reached[1])}
            extra = {"method": method, "name": _name(name), **owner, "outcome": outcome, "ms": round(took_s * 1000, 2)}
            self._enqueue(
                self._event(self._caller_members("request", caller) | extra | ({"more": more} if more else {}))
            )

    def refused(
        self,
        caller: AuditedCaller,
        method: str,
        name: object,
        *,
        rule: str | None = None,
        reason: str | None = None,
        server: str | None = None,
    ) -> None:
        """Record a refused request, or a request for an item that the caller cannot see.

        Args:
            name: The requested item, as the caller named it.
            rule: The policy rule that refused the request.
            reason: `policy`, or another reason for the refusal.
            server: The server of the tool, if the tool exists.
        """
        if not self.on:
            return
        more = self._refused_requests.admit(caller.principal.name)
        if more is not None:
            about = {"method": method, "name": _name(name), "rule": rule, "reason": reason}
            owner = {"server": server} if server is not None else {}
            repeated = {"more": more} if more else {}
            self._enqueue(self._event(self._caller_members("refused", caller) | about | owner | repeated))

    def flow(self, caller: AuditedCaller, source: str, target: str, *, argument: str, size: int | None) -> None:
        """Record that a caller passes a stored result as an argument to another tool, or is not allowed to do so.

        Args:
            source: The tool that returned the result.
            target: The tool that receives the result.
            size: The size of the passed value in bytes; None if passing the result is not allowed.
        """
        if self.on:
            about = {"from": source, "to": target, "argument": argument, "bytes": size, "allowed": size is not None}
            self._enqueue(self._event(self._caller_members("flow", caller) | about))

    def credentials_refused(self, where: str, peer: str, reason: str, *, principal: str | None = None) -> None:
        """Record a request with missing or wrong credentials.

        Args:
            where: The path of the request.
            reason: The reason in a word or two.
            principal: The caller whom the credentials identify, if known.
        """
        if not self.on:
            return
        more = self._wrong_credentials.admit(peer.rpartition(":")[0] or peer)
        if more is not None:
            row = {"where": _name(where), "peer": peer, "principal": principal, "reason": reason}
            self._enqueue(self._event({"event": "credentials_refused"} | row | ({"more": more} if more else {})))

    def changed(
        self,
        action: str,
        target: str | None = None,
        *,
        status: int | None = None,
        peer: str = "",
        by: str | None = None,
    ) -> None:
        """Record a change by an administrator, an attempted change, or a reload of the configuration.

        Args:
            action: The action, such as `POST /admin/servers` or `reload`.
            status: The HTTP status of the response.
            peer: The remote address and port of the administrator.
            by: The name of the administrator's token.
        """
        if self.on:
            about = {"action": action, "target": _name(target), "status": status, "peer": peer or None}
            self._enqueue(self._event({"event": "changed"} | about | ({"by": by} if by is not None else {})))

    def signed_in(self, server: str, principal: str | None, action: str = "sign_in", error: str | None = None) -> None:
        """Record a sign-in to an upstream, a sign-out, or a failed attempt.

        Args:
            server: The upstream.
            principal: The caller; None if all callers share the sign-in.
            action: `sign_in`, `sign_out` or `refresh`.
            error: The reason of a failure.
        """
        if self.on:
            reason = None if error is None else excerpt(error, _NAME_CHARS)
            about = {"server": server, "principal": principal, "action": action, "reason": reason}
            self._enqueue(self._event({"event": "sign_in"} | about))

    def approval(
        self, principal: str, wrapper: str, decision: str, *, rule: str, approval: str, approval_given: ApprovalGiven
    ) -> None:
        """Record that a call needs an approval, or the decision about this call.

        Args:
            decision: `asked`, `allowed`, `denied`, `expired`, `withdrawn` or `taken_back`.
            rule: The rule that requires the approval.
        """
        if self.on:
            about = {
                "principal": principal,
                "wrapper": wrapper,
                "decision": decision,
                "rule": rule,
                "by": approval_given.by,
            }
            self._enqueue(
                self._event({"event": "approval"} | about | {"approval": approval, "for": approval_given.lasts})
            )

    def process(self, event: str, **about: Any) -> None:
        """Record an event of the gateway process, such as `started` or `stopped`."""
        if self.on:
            self._enqueue(self._event({"event": event} | about))

    def _caller_members(self, event: str, caller: AuditedCaller) -> dict[str, Any]:
        peer = caller.peer
        return {
            "event": event,
            "principal": caller.principal.name,
            "profile": caller.view.profile.name,
            "era": caller.version,
            "transport": STDIO if peer == STDIO else "http",
            "peer": peer,
            "session": caller.session_id,
            "client": caller.client,
        }


def _name(name: object) -> str | None:
    return None if name is None else excerpt(name if isinstance(name, str) else str(name)[:_NAME_CHARS], _NAME_CHARS)
