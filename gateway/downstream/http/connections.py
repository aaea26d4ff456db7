"""All connections of one server: how many are served, what they may leave unread, and how long they may take.

A caller may be slow, but not for ever: with the head of a request, with its body, with reading what it asked for.
What waits to be read is bounded for all callers together, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import anyio

from gateway.access.quotas import Account
from gateway.downstream.http.known_heads import KnownHeads
from gateway.memory import give_back

log = logging.getLogger(__name__)

STALLED_S: Final = 30.0
"""A caller that takes nothing of its answer for this long is gone or hostile; mobile networks pause for less."""
MAX_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""What all callers together may have us hold unread: a few dozen of the largest answers, well within a small pod."""
# Deadlines are tens of seconds: one timer a second for all connections replaces two for each request.
_SWEEP_S: Final = 1.0
# Of all connections, as a divisor: what is closed at once where a newcomer finds none left.
_PART_FOR_ROOM: Final = 20
# At the end, a caller that still reads gets its answers; one that takes nothing for this long holds up nobody.
_IDLE_AT_END_S: Final = 1.0
_POLL_S: Final = 0.02


class CallerConnection(Protocol):
    """What is watched of one connection.

    Attributes:
        is_cut: It was dropped; its end is heard a moment later.
        taken_s: When its caller was last seen to take something, or to have nothing to take.
        address: The address of its caller, without the port; empty where it has none.
        deadline_s: When it is dropped unless something arrives.
    """

    is_cut: bool
    taken_s: float
    address: str
    deadline_s: float

    @property
    def is_waiting(self) -> bool:
        """Whether no request of it is there: it has said nothing, or a part of a header block, or is idle."""

    @property
    def unread_bytes(self) -> int:
        """What waits to be read."""

    @property
    def held_bytes(self) -> int:
        """What stays in memory for it: of an answer that was read in part, all."""

    def look(self, now_s: float) -> None:
        """Apply its deadlines, and note whether anything was taken since the last look."""

    def cut(self) -> None:
        """Drop it, with all that is unread."""


class Connections:
    """The connections of one server.

    Args:
        most: How many are served at once. A few more are read and answered with 503, others without being read.
        stalled_s: How long a caller may take nothing of what it is sent.
        nobody: On whose account unfinished requests are held while it is not known who sends them; None where
            everybody who connects is trusted.
        per_address: How many one address may have; None for any number.

    Attributes:
        nobody: The same.
        heads: The heads that were read before.
        leaving: Each connection ends with its next answer: whoever comes back is sent to another process.
    """

    def __init__(
        self, *, most: int, stalled_s: float = STALLED_S, nobody: Account | None = None, per_address: int | None = None
    ) -> None:
        self.nobody = nobody
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self._most = most
        # Those that are read to be refused: enough to say 503 properly, few enough to cost nothing.
        self._most_read = most + most // 20
        self._stalled_s = stalled_s
        self._open: set[CallerConnection] = set()
        self._paused: set[CallerConnection] = set()
        self.heads = KnownHeads()
        self.leaving = False
        self._cut_since_sweep = False
        self._cut_for_room = self._cut_waiting = 0

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._open)

    async def watch(self) -> None:
        """Apply deadlines and bounds, until cancelled."""
        while True:
            await anyio.sleep(_SWEEP_S)
            if self._cut_since_sweep:
                # Only now, since what they held is freed when their end is heard.
                self._cut_since_sweep = False
                give_back()
            self._sweep(asyncio.get_running_loop().time())

    async def read_out(self) -> None:
        """Return once callers have read all that they were sent, or for a second none of them has read anything."""
        least_bytes, since_s = math.inf, anyio.current_time()
        while unread_bytes := sum(connection.unread_bytes for connection in self._open):
            if unread_bytes < least_bytes:
                least_bytes, since_s = unread_bytes, anyio.current_time()
            elif anyio.current_time() - since_s > _IDLE_AT_END_S:
                return
            await anyio.sleep(_POLL_S)

    def add(self, connection: CallerConnection) -> tuple[bool, bool]:
        """Count a new connection: whether it is read, and whether its requests are served."""
        address, limit = connection.address, self._per_address
        if len(self._open) >= self._most:
            self._make_room(self._most)
        if limit is not None and address and self._by_address[address] >= limit:
            self._make_room(limit, address)
        self._open.add(connection)
        self._by_address[address] += 1
        # Decided once: who came in time is served, however many come later.
        within = limit is None or not address or self._by_address[address] <= limit
        return len(self._open) <= self._most_read, len(self._open) <= self._most and within

    def remove(self, connection: CallerConnection) -> None:
        """Forget a connection that has ended."""
        self._paused.discard(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _make_room(self, limit: int, address: str | None = None) -> None:
        """Drop a part of so many connections: those without a request, of one address or of that with most of them."""
        waiting = [one for one in self._open if one.is_waiting and address in (None, one.address)]
        if not waiting:
            return
        if address is None:
            address = Counter(one.address for one in waiting).most_common(1)[0][0]
            waiting = [one for one in waiting if one.address == address]
        # Some at once, since to look at all of them takes milliseconds. Those that have said nothing go first.
        for one in sorted(waiting, key=lambda one: one.deadline_s)[: max(1, limit // _PART_FOR_ROOM)]:
            self.remove(one)
            one.cut()
            self._cut_waiting += 1

    def was_cut(self) -> None:
        """Note that a connection was dropped with what it held."""
        self._cut_since_sweep = True

    def paused(self, connection: CallerConnection) -> None:
        """Note that a connection holds much that is unread. Answers may come faster than the next sweep."""
        self._paused.add(connection)
        self._cut_down(self._paused)

    def resumed(self, connection: CallerConnection) -> None:
        """Note that little waits there now."""
        self._paused.discard(connection)

    def _sweep(self, now_s: float) -> None:
        stalled = []
        for connection in list(self._open):
            connection.look(now_s)
            if now_s - connection.taken_s >= self._stalled_s and not connection.is_cut:
                stalled.append(connection)
        for connection in stalled:
            connection.cut()
        if stalled:
            log.warning("%d callers did not read what they were sent and were cut off", len(stalled))
        self._cut_down(self._open)
        if self._cut_for_room:
            # Once for all of them: an attack is many in a second.
            limit_mib = MAX_UNREAD_BYTES // 2**20
            log.warning("%d callers were cut off: together they left over %d MiB unread", self._cut_for_room, limit_mib)
            self._cut_for_room = 0

        if self._cut_waiting:
            log.warning("%d connections without a request were closed to make room for others", self._cut_waiting)
            self._cut_waiting = 0

    def _cut_down(self, connections: Iterable[CallerConnection]) -> None:
        """Cut those that took nothing for longest, until the rest is within the bound."""
        # A connection that was cut a moment ago still shows what it held.
        holding = [connection for connection in connections if not connection.is_cut]
        total_bytes = sum(connection.held_bytes for connection in holding)
        if total_bytes <= MAX_UNREAD_BYTES:
            return
        for connection in sorted(holding, key=lambda each: (each.taken_s, -each.held_bytes)):
            if total_bytes <= MAX_UNREAD_BYTES:
                return
            total_bytes -= connection.held_bytes
            connection.cut()
            self._cut_for_room += 1
