"""All connections of a server: connection limits, idle timeouts, and limits of unread data.

A client is disconnected if it is too slow to send a header block or a body, or to read its responses. The unread data
of all clients together is limited, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Protocol

import anyio

from gateway.access.quotas import Account
from gateway.http.http_request import RequestHead
from gateway.http.responder import Responder
from gateway.http.server_header_cache import RequestHeaderCache
from gateway.process.memory import return_memory

log = logging.getLogger(__name__)


class Admission(Protocol):
    """The result of a handler that has accepted a request by its header block.

    Attributes:
        account: The account to charge for the request while it arrives; None for a trusted sender.
    """

    @property
    def account(self) -> Account | None: ...


class Handler(Protocol):
    """Answers the requests to some of the paths.

    Attributes:
        max_body_bytes: The largest body that the handler accepts.
    """

    @property
    def max_body_bytes(self) -> int: ...

    def admit(self, head: RequestHead, peer: str) -> Admission | None:
        """Accept a request by its header block, before its body is read; the result is passed to `answer`.

        Raises:
            RequestRefused: The request is rejected.
        """

    def answer(self, head: RequestHead, admission: Any, body: bytes, responder: Responder, peer: str) -> None:
        """Answer a complete request, immediately or in a task of the responder.

        Raises:
            RequestRefused: The request is rejected.
        """


class Router(Protocol):
    """Chooses the handler of a request."""

    def route(self, head: RequestHead) -> Handler:
        """Return the handler of a request.

        Raises:
            RequestRefused: No handler accepts the request.
        """


SILENT_S: Final = 10.0
"""How long a new connection may stay silent. Clients usually connect when they have a request. Browsers also connect in
advance, and reconnect if the connection was closed."""
STALLED_S: Final = 30.0
"""A client that reads nothing of its response for this long is disconnected; mobile networks pause for less."""
MAX_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""The limit of unread data of all clients together. It is several times the largest response, and fits into the memory
of a small container."""
# The interval between checks of all deadlines. Deadlines are tens of seconds, so this is precise enough, and cheaper
# than two timers per request.
_SWEEP_S: Final = 1.0
# At the limit of connections, up to a twentieth of them is closed at once to make room for new connections.
_ROOM_DIVISOR: Final = 20
# At shutdown, wait for the clients to read their responses, until none of them has read anything for this long.
_IDLE_AT_END_S: Final = 1.0
_POLL_S: Final = 0.02


class CallerConnection(Protocol):
    """The part of a connection that `Connections` watches.

    Attributes:
        is_cut: True once the connection was aborted; it is removed a moment later.
        taken_s: When the client last read something, or last had nothing to read.
        address: The IP address of the client; empty for a Unix socket.
        deadline_s: When the connection is dropped unless the expected input arrives before.
    """

    is_cut: bool
    taken_s: float
    address: str
    deadline_s: float

    @property
    def is_waiting(self) -> bool:
        """Return whether the client has sent no request yet, is idle, or has sent only a part of a header block."""

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes the client still has to read."""

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are in memory for the client; a partly read response counts as a whole."""

    def check_deadlines(self, now_s: float) -> None:
        """Apply the deadlines, and record whether the client has read anything since the last call."""

    def cut(self) -> None:
        """Abort the connection and discard unread data."""


class Connections:
    """The connections of one server.

    Args:
        most: How many connections are served concurrently. Requests on up to 5 % more connections are rejected with
            status 503. Further connections are closed immediately with this status.
        stalled_s: How long a client with unread responses may read nothing.
        anonymous: The account for unfinished requests of unknown senders; None if all clients are trusted.
        per_address: The limit of connections per IP address; None for no limit.
        max_unread_bytes: The limit of unread data of all clients together.
        silent_s: How long a new connection may send nothing.
        sweep_s: The interval between checks of all deadlines.

    Attributes:
        heads: The cache of request header blocks.
        leaving: True once `leave` was called.
    """

    def __init__(
        self,
        *,
        most: int,
        stalled_s: float = STALLED_S,
        anonymous: Account | None = None,
        per_address: int | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        silent_s: float = SILENT_S,
        sweep_s: float = _SWEEP_S,
    ) -> None:
        self._max_unread_bytes, self._sweep_s = max_unread_bytes, sweep_s
        self.silent_s = silent_s
        self.anonymous = anonymous
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self._most = most
        # How many connections have their requests read. Those above `most` get only responses with status 503.
        self._most_read = most + most // 20
        self._stalled_s = stalled_s
        self._open: set[CallerConnection] = set()
        self._paused: set[CallerConnection] = set()
        self.heads = RequestHeaderCache()
        self.leaving = False
        self._cut_since_sweep = False
        self._cut_for_room = self._cut_waiting = 0

    def leave(self) -> None:
        """Close each connection after its next response, so that its client reconnects to another process."""
        self.leaving = True

    @property
    def open(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    async def watch(self) -> None:
        """Apply deadlines and limits until cancelled."""
        while True:
            await anyio.sleep(self._sweep_s)
            if self._cut_since_sweep:
                # Not done immediately after the abort: the memory is freed only after the transports have closed.
                self._cut_since_sweep = False
                return_memory()
            self._sweep(asyncio.get_running_loop().time())

    async def wait_until_read(self) -> None:
        """Wait until all clients have read their responses, or none of them has read anything for a second."""
        least_bytes, since_s = math.inf, anyio.current_time()
        while unread_bytes := sum(connection.unread_bytes for connection in self._open):
            if unread_bytes < least_bytes:
                least_bytes, since_s = unread_bytes, anyio.current_time()
            elif anyio.current_time() - since_s > _IDLE_AT_END_S:
                return
            await anyio.sleep(_POLL_S)

    def add(self, connection: CallerConnection) -> tuple[bool, bool]:
        """Register a new connection. Return whether its input is read, and whether its requests are served."""
        address, limit = connection.address, self._per_address
        if len(self._open) >= self._most:
            self._make_room(self._most)
        if limit is not None and address and self._by_address[address] >= limit:
            self._make_room(limit, address)
        self._open.add(connection)
        self._by_address[address] += 1
        # This is decided only once: a connection that was accepted is served even if the limit is reached later.
        within = limit is None or not address or self._by_address[address] <= limit
        return len(self._open) <= self._most_read, len(self._open) <= self._most and within

    def remove(self, connection: CallerConnection) -> None:
        """Unregister a closed connection."""
        self._paused.discard(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def _make_room(self, limit: int, address: str | None = None) -> None:
        """Close some connections that have no request. All of them are from the same IP address.

        Args:
            limit: The limit of connections that was reached.
            address: The IP address; None for the address with the most connections that have no request.
        """
        waiting = [
            connection for connection in self._open if connection.is_waiting and address in (None, connection.address)
        ]
        if not waiting:
            return
        if address is None:
            address = Counter(each.address for each in waiting).most_common(1)[0][0]
            waiting = [each for each in waiting if each.address == address]
        # Close several at once, because examining all connections takes milliseconds. Begin with the connections that
        # would time out first.
        for connection in sorted(waiting, key=lambda each: each.deadline_s)[: max(1, limit // _ROOM_DIVISOR)]:
            self.remove(connection)
            connection.cut()
            self._cut_waiting += 1

    def record_abort(self) -> None:
        """Record that a connection was aborted, so that its memory is returned to the system."""
        self._cut_since_sweep = True

    def paused(self, connection: CallerConnection) -> None:
        """Record that a connection has much unread data, and apply the limit without waiting for the next check."""
        self._paused.add(connection)
        self._cut_down(self._paused)

    def resumed(self, connection: CallerConnection) -> None:
        """Record that a connection has little unread data again."""
        self._paused.discard(connection)

    def _sweep(self, now_s: float) -> None:
        stalled = []
        for connection in list(self._open):
            connection.check_deadlines(now_s)
            if now_s - connection.taken_s >= self._stalled_s and not connection.is_cut:
                stalled.append(connection)
        for connection in stalled:
            connection.cut()
        if stalled:
            log.warning("slow callers disconnected: %d", len(stalled))
        self._cut_down(self._open)
        if self._cut_for_room:
            # Log this only once per check, because an attack causes many aborts per second.
            limit_mib = self._max_unread_bytes // 2**20
            log.warning("callers disconnected, over %d MiB unread: %d", limit_mib, self._cut_for_room)
            self._cut_for_room = 0

        if self._cut_waiting:
            log.warning("idle connections closed to make room: %d", self._cut_waiting)
            self._cut_waiting = 0

    def _cut_down(self, connections: Iterable[CallerConnection]) -> None:
        """While the limit of unread data is exceeded, abort the connections whose clients have not read for longest."""
        # Exclude aborted connections, which still report their memory until they are removed.
        holding = [connection for connection in connections if not connection.is_cut]
        total_bytes = sum(connection.held_bytes for connection in holding)
        if total_bytes <= self._max_unread_bytes:
            return
        for connection in sorted(holding, key=lambda each: (each.taken_s, -each.held_bytes)):
            if total_bytes <= self._max_unread_bytes:
                return
            total_bytes -= connection.held_bytes
            connection.cut()
            self._cut_for_room += 1
