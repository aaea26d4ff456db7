"""What an audit hook is told: queued in order, bounded in number and bytes; what has no room is counted."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from gateway import wire
from gateway.hooks.hook import Call, HookFailed, Metadata, Result

if TYPE_CHECKING:
    from gateway.hooks.runner import Guard

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
DRAIN_S: Final = 2.0
"""How long the end of the gateway waits for what is still to be told."""


class AuditQueue:
    """Tells one audit hook of one event after the other. Nothing waits for it."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._waiting: deque[tuple[str, Metadata, bytes]] = deque()
        self._bytes = 0
        self._stirred = anyio.Event()
        self._closed = False
        self.ended = anyio.Event()

    def tell(self, phase: str, metadata: Metadata, args: dict[str, Any], result: dict[str, Any] | None) -> None:
        """Take one event; it is written down as it is now."""
        try:
            data = wire.dumps([args, result])
        except wire.MalformedJson:
            data = b""
        room = len(self._waiting) < MAX_WAITING and self._bytes + len(data) <= MAX_WAITING_BYTES
        if not data or not room or self._closed:
            if not self.guard.counts["dropped"]:
                log.warning("hook %s cannot keep up: events are dropped, and counted", self.guard.name)
            self.guard.counts["dropped"] += 1
            return
        self._waiting.append((phase, metadata, data))
        self._bytes += len(data)
        self._stirred.set()

    def close(self) -> None:
        """Take no more; `run` ends after what is waiting."""
        self._closed = True
        self._stirred.set()

    async def run(self) -> None:
        """Tell what there is to tell, until closed; at a cancellation, for at most two seconds more."""
        try:
            while not self._closed:
                await self._stirred.wait()
                self._stirred = anyio.Event()
                await self._told()
        finally:
            self._closed = True
            with anyio.move_on_after(DRAIN_S, shield=True):
                await self._told()
            if self._waiting:
                self.guard.counts["dropped"] += len(self._waiting)
                log.warning("hook %s was not told of %d events at the end", self.guard.name, len(self._waiting))
            self.ended.set()

    async def _told(self) -> None:
        while self._waiting:
            phase, metadata, data = self._waiting.popleft()
            self._bytes -= len(data)
            args, result = wire.loads(data)
            call = Call(name=metadata.tool, args=args, metadata=metadata)
            try:
                if result is None:
                    await self.guard.before(phase, call)
                else:
                    await self.guard.after(phase, call, Result(result))
            except HookFailed:
                self.guard.counts["ignored"] += 1
