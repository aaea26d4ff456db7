"""Watch an upstream while its connection lives: its lists, and what somebody subscribed to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import anyio

from gateway.errors import ConnectionLost, HttpStatusError, RpcError, SessionForgotten
from gateway.upstream.inbound_messages import WatchedKind
from gateway.upstream.mcp_session import ALL_KINDS, UpstreamSession
from gateway.upstream.transport.streamable_http import HttpChannel

log = logging.getLogger(__name__)

_RELISTEN_S: Final = 0.3
_FAILURES: Final = 3
_ACKNOWLEDGED_S: Final = 2.0


class Wanted:
    """What of an upstream somebody watches; outlives its connections."""

    def __init__(self) -> None:
        self.keys: dict[WatchedKind, set[str]] = {"resourceSubscriptions": set(), "taskIds": set()}
        self.changed = anyio.Event()
        self.version = 0
        self._applied = 0
        self._reached = anyio.Event()

    def put(self, kind: WatchedKind, key: str) -> None:
        """Watch one more."""
        self.keys[kind].add(key)
        self._tell()

    def drop(self, kind: WatchedKind, key: str) -> None:
        """Watch one less."""
        self.keys[kind].discard(key)
        self._tell()

    def applied(self, version: int) -> None:
        """The upstream knows what was wanted at this version."""
        self._applied = max(self._applied, version)
        self._reached.set()
        self._reached = anyio.Event()

    async def settled(self) -> None:
        """Wait until the upstream knows what is wanted now."""
        wanted = self.version
        while self._applied < wanted:
            await self._reached.wait()

    def __bool__(self) -> bool:
        return any(self.keys.values())

    def _tell(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = anyio.Event()


async def watch(session: UpstreamSession) -> None:
    """Listen for changes while the connection lives; return where there is nothing to listen to."""
    kinds = [kind for kind in ("tools", "prompts", "resources") if _announces(session, kind)]
    http = session.channel if isinstance(session.channel, HttpChannel) else None

    async def subscribe() -> None:
        session.watched = "tools" in kinds
        await session.request("subscriptions/listen", {"notifications": {f"{kind}ListChanged": True for kind in kinds}})

    async def follow_stream() -> None:
        assert http is not None
        async with http.listen_get() as messages:
            session.watched = "tools" in kinds
            async for message in messages:
                http.receive(message)

    if session.era == "modern":
        if kinds:
            await _listen(session, http, subscribe, vital=True)
    elif http is None:
        session.watched = "tools" in kinds
    elif kinds or session.hearing.host is not None or session.capabilities.keys() & {"logging", "resources"}:
        # Questions, log messages and updates come this way too, where a server says nothing of changes.
        await _listen(session, http, follow_stream, vital=bool(kinds))


async def follow(session: UpstreamSession, wanted: Wanted) -> None:
    """Watch what somebody wants watched, as long as the connection lives."""
    for uri in sorted(wanted.keys["resourceSubscriptions"]):
        # Nobody knows what happened to it between two connections.
        if session.hearing.on_update is not None:
            session.hearing.on_update("resourceSubscriptions", uri, {"uri": uri})
    if session.era == "modern":
        await _follow_streams(session, wanted)
        return
    subscribed: set[str] = set()
    while True:
        changed, version = wanted.changed, wanted.version
        uris = set(wanted.keys["resourceSubscriptions"])
        for uri in sorted(uris - subscribed):
            await _tell(session, "resources/subscribe", uri)
        for uri in sorted(subscribed - uris):
            await _tell(session, "resources/unsubscribe", uri)
        subscribed = uris
        wanted.applied(version)
        await changed.wait()


async def _follow_streams(session: UpstreamSession, wanted: Wanted) -> None:
    """Keep one stream open for all that is wanted; the one before ends when the next is acknowledged."""
    async with anyio.create_task_group() as group:
        current: anyio.CancelScope | None = None
        while True:
            changed, version = wanted.changed, wanted.version
            before, current = current, None
            if wanted:
                current = anyio.CancelScope()
                keys = {kind: sorted(some) for kind, some in wanted.keys.items() if some}
                acknowledged = anyio.Event()
                session.hearing.on_acknowledged = partial(_notice, acknowledged, keys)
                group.start_soon(_subscribe_to, session, keys, current, acknowledged)
                with anyio.move_on_after(_ACKNOWLEDGED_S):
                    await acknowledged.wait()
            if before is not None:
                before.cancel()
            wanted.applied(version)
            await changed.wait()


def _notice(acknowledged: anyio.Event, keys: Mapping[WatchedKind, list[str]], notifications: object) -> None:
    """Tell an acknowledgement of this subscription from that of another one on the same wire."""
    if isinstance(notifications, dict) and notifications.keys() <= keys.keys():
        acknowledged.set()


async def _tell(session: UpstreamSession, method: str, uri: str) -> None:
    try:
        await session.request(method, {"uri": uri})
    except (RpcError, HttpStatusError, ConnectionLost) as error:
        log.info("%s failed: %s", method, error, extra={"server": session.server})


async def _subscribe_to(
    session: UpstreamSession, keys: Mapping[WatchedKind, list[str]], scope: anyio.CancelScope, acknowledged: anyio.Event
) -> None:
    with scope:
        for _ in range(_FAILURES):
            try:
                await session.request("subscriptions/listen", {"notifications": dict(keys)})
            except (RpcError, HttpStatusError) as error:
                log.info("cannot subscribe: %s", error, extra={"server": session.server})
                break
            except ConnectionLost:
                log.debug("the stream of updates ended", extra={"server": session.server})
            await anyio.sleep(_RELISTEN_S)
    acknowledged.set()


async def _listen(
    session: UpstreamSession, http: HttpChannel | None, follow: Callable[[], Awaitable[None]], *, vital: bool
) -> None:
    failures = 0
    while failures < _FAILURES:
        try:
            await follow()
            failures = 0 if vital else failures + 1
        except (RpcError, HttpStatusError):
            session.watched = False
            return
        except SessionForgotten:
            if http is not None:
                http.fail("the upstream has forgotten the session")
            return
        except ConnectionLost as error:
            failures += 1
            if not error.sent and http is not None:
                http.fail(str(error))
                return
        if vital:
            # What changed while nobody listened is found by listing again.
            session.hearing.dirty |= ALL_KINDS
            session.hearing.changed.set()
        await anyio.sleep(_RELISTEN_S)
    if http is not None and vital:
        http.fail("the stream of notifications keeps ending")


def _announces(session: UpstreamSession, kind: str) -> bool:
    offered = session.capabilities.get(kind)
    return isinstance(offered, dict) and offered.get("listChanged") is True
