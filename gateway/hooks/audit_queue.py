"""Events for one audit hook: delivered later and in order, bounded in number and bytes; overflow is counted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from gateway import wire
from gateway.hooks.hook import Call, HookFailed, Metadata, Result

log = logging.getLogger(__name__)

# A hook that writes to a disk handles thousands of events a second, so this is a backlog of about one second.
MAX_EVENTS: Final = 1_000
# Two results of the largest size that an upstream may send (8 MiB); usual events take a few kilobytes.
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
# How long shutdown waits for queued events. Together with closing the hooks it stays within the 10 seconds
# that container runtimes give a process before they kill it.
DRAIN_S: Final = 2.0

Deliver = Callable[[str, Call, Result | None], Awaitable[object]]


class AuditQueue:
    """Delivers events to one audit hook, one after the other; no call ever waits for it.

    Args:
        name: The hook's name, for the log.
        counts: The hook's counters: `dropped` and `ignored` are counted here.
        deliver: Runs one phase of the hook.
    """

    def __init__(self, name: str, counts: dict[str, int], deliver: Deliver) -> None:
        self._name = name
        self._counts = counts
        self._deliver = deliver
        self._events: deque[tuple[str, Metadata, bytes]] = deque()
        self._queued_bytes = 0
        self._changed = anyio.Event()
        self._closed = False
        self.ended = anyio.Event()

    def put(self, phase: str, metadata: Metadata, args: dict[str, Any], result: dict[str, Any] | None) -> None:
        """Queue one event, or count it as dropped."""
        try:
            # Serialised now: the call goes on, and later hooks or the encoder may change these objects in place.
            data = wire.fitted(wire.dumps([args, result]))
        except wire.MalformedJson:
            data = b""
        fits = len(self._events) < MAX_EVENTS and self._queued_bytes + len(data) <= MAX_QUEUED_BYTES
        if not data or not fits or self._closed:
            if not self._counts["dropped"]:  # logged once: a slow hook would fill the log with it
                log.warning("hook %s cannot keep up: events are dropped, and counted", self._name)
            self._counts["dropped"] += 1
            return
        self._events.append((phase, metadata, data))
        self._queued_bytes += len(data)
        self._changed.set()

    def close(self) -> None:
        """Take no more events; `run` returns once the queued ones are delivered."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver events until closed; on cancellation spend at most `DRAIN_S` on what is still queued."""
        try:
            while not self._closed:
                await self._changed.wait()
                # Replaced before the queue is emptied, so that an event which arrives meanwhile wakes us again.
                self._changed = anyio.Event()
                await self._drain()
        finally:
            self._closed = True
            with anyio.move_on_after(DRAIN_S, shield=True):
                await self._drain()
            if self._events:
                self._counts["dropped"] += len(self._events)
                log.warning("%d events for hook %s were not delivered before the end", len(self._events), self._name)
            self.ended.set()

    async def _drain(self) -> None:
        while self._events:
            phase, metadata, data = self._events.popleft()
            self._queued_bytes -= len(data)
            args, result = wire.loads(data)
            call = Call(name=metadata.tool, args=args, metadata=metadata)
            try:
                await self._deliver(phase, call, None if result is None else Result(result))
            except HookFailed:
                self._counts["ignored"] += 1
