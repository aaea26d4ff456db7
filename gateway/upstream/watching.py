"""Watch an upstream while its connection lives: its lists, and what somebody subscribed to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from gateway.errors import ConnectionLost, HttpStatusError, RpcError, SessionForgotten
from gateway.upstream.channels import HttpChannel
from gateway.upstream.hearing import WatchedKind
from gateway.upstream.session import ALL_KINDS, UpstreamSession

log = logging.getLogger(__name__)

_RELISTEN_S: Final = 0.3
_FAILURES: Final = 3


class Wanted:
    """What of an upstream somebody watches; outlives its connections."""

    def __init__(self) -> None:
        self.keys: dict[WatchedKind, set[str]] = {"resourceSubscriptions": set(), "taskIds": set()}
        self.changed = anyio.Event()

    def put(self, kind: WatchedKind, key: str) -> None:
        """Watch one more."""
        self.keys[kind].add(key)
        self._tell()

    def drop(self, kind: WatchedKind, key: str) -> None:
        """Watch one less."""
        self.keys[kind].discard(key)
        self._tell()

    def __bool__(self) -> bool:
        return any(self.keys.values())

    def _tell(self) -> None:
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
    subscribed: set[str] = set()
    for uri in sorted(wanted.keys["resourceSubscriptions"]):
        # Nobody knows what happened to it between two connections.
        if session.hearing.on_update is not None:
            session.hearing.on_update("resourceSubscriptions", uri, {"uri": uri})
    while True:
        changed = wanted.changed
        if session.era == "modern":
            async with anyio.create_task_group() as group:
                if wanted:
                    group.start_soon(_subscribe_to, session, wanted)
                await changed.wait()
                group.cancel_scope.cancel()
            continue
        uris = set(wanted.keys["resourceSubscriptions"])
        for uri in sorted(uris - subscribed):
            await _tell(session, "resources/subscribe", uri)
        for uri in sorted(subscribed - uris):
            await _tell(session, "resources/unsubscribe", uri)
        subscribed = uris
        if changed is wanted.changed:
            await changed.wait()


async def _tell(session: UpstreamSession, method: str, uri: str) -> None:
    try:
        await session.request(method, {"uri": uri})
    except (RpcError, HttpStatusError, ConnectionLost) as error:
        log.info("%s failed: %s", method, error, extra={"server": session.server})


async def _subscribe_to(session: UpstreamSession, wanted: Wanted) -> None:
    keys = {kind: sorted(some) for kind, some in wanted.keys.items() if some}
    for _ in range(_FAILURES):
        try:
            await session.request("subscriptions/listen", {"notifications": keys})
        except (RpcError, HttpStatusError) as error:
            log.info("cannot subscribe: %s", error, extra={"server": session.server})
            return
        except ConnectionLost:
            log.debug("the stream of updates ended", extra={"server": session.server})
        await anyio.sleep(_RELISTEN_S)


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
