"""Watch an MCP server while its connection lives: its lists, and what somebody subscribed to.

Sources: MCP 2026-07-28, "Subscriptions"; MCP 2025-11-25, "Resources", "Subscriptions".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from gateway.errors import ConnectionLost, HttpStatusError, RpcError, SessionForgotten
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS
from gateway.upstream.transport.jsonrpc import Transport
from gateway.upstream.watch_list import WatchedKind, WatchList

log = logging.getLogger(__name__)

# Servers and proxies end idle streams now and then: soon enough to miss little, and no busy loop where one
# ends each stream at once.
_REOPEN_S: Final = 0.3
# Streams that end at once in a row: then the server does not offer them, or is gone.
_MAX_FAILURES: Final = 3
# A proxy that ends idle streams waits for some seconds at least; what lives shorter was refused.
_LASTING_S: Final = 1.0
# Until then the stream before stays open too; a server that acknowledges nothing does not stop the change.
_ACKNOWLEDGED_S: Final = 2.0

Request = Callable[[str, dict[str, Any]], Awaitable[Any]]


class Watcher:
    """Watches over one connection.

    Attributes:
        announces_changes: See `UpstreamSession.announces_changes`.
    """

    def __init__(
        self, server: str, transport: Transport, inbound: InboundMessages, request: Request,
        capabilities: Mapping[str, Any], *, modern: bool,
    ) -> None:  # fmt: skip
        self._server = server
        self._transport = transport
        self._inbound = inbound
        self._request = request
        self._modern = modern
        self._capabilities = capabilities
        self._announced = [kind for kind in ("tools", "prompts", "resources") if self._announces(kind)]
        self.announces_changes = False

    async def run(self, watch_list: WatchList | None) -> None:
        """Watch until cancelled, or until there is nothing more to watch."""
        async with anyio.create_task_group() as group:
            if watch_list is not None:
                group.start_soon(self._follow, watch_list)
            # In this very task: where announcements come anyway it is known before anybody asks whether to poll.
            await self._watch_lists()

    # lists

    async def _watch_lists(self) -> None:
        listens_anyway = self._inbound.host is not None or self._capabilities.keys() & {"logging", "resources"}
        if self._modern:
            if self._announced:
                await self._keep_open(self._subscribe_to_lists, vital=True)
        elif self._announced or listens_anyway:
            # Questions, log messages and updates come this way too, where a server announces no changes.
            await self._keep_open(self._listen, vital=bool(self._announced))

    async def _subscribe_to_lists(self) -> None:
        self._opened()
        await self._request(
            "subscriptions/listen", {"notifications": {f"{kind}ListChanged": True for kind in self._announced}}
        )

    async def _listen(self) -> None:
        await self._transport.listen(self._opened)

    def _opened(self) -> None:
        self.announces_changes = "tools" in self._announced

    async def _keep_open(self, stream: Callable[[], Awaitable[None]], *, vital: bool) -> None:
        """Open a stream again whenever it ends; `vital` where without it changes would go unnoticed."""
        failures, lost = 0, False
        while failures < _MAX_FAILURES:
            opened_s, lost = anyio.current_time(), False
            try:
                await stream()
                # Neither a stream that only carries extras, nor one that ends as soon as it was opened, is opened for
                # ever where it keeps ending.
                lasted = anyio.current_time() - opened_s >= _LASTING_S
                failures = 0 if vital and lasted else failures + 1
            except (RpcError, HttpStatusError):
                self._poll_instead()
                return
            except SessionForgotten as error:
                self._transport.fail(str(error))
                return
            except ConnectionLost as error:
                failures, lost = failures + 1, True
                if not error.sent:
                    # It cannot even be reached: no call would be.
                    self._transport.fail(str(error))
                    return
            if vital:
                # What changed while no stream was open is found by listing again.
                self._inbound.ports.on_list_changed(ALL_KINDS)
            await anyio.sleep(_REOPEN_S)
        if vital and lost:
            self._transport.fail("the stream of notifications keeps ending")
        self._poll_instead()

    def _poll_instead(self) -> None:
        """Have the lists polled: no stream that announces their changes is to be had."""
        if self.announces_changes:
            self.announces_changes = False
            # Nothing has changed, but whoever waits for announcements has to learn that there will be none.
            self._inbound.ports.on_list_changed(())

    # what somebody subscribed to

    async def _follow(self, watch_list: WatchList) -> None:
        for uri in sorted(watch_list.keys["resourceSubscriptions"]):
            # Nobody knows what happened to it between two connections.
            self._inbound.ports.on_update("resourceSubscriptions", uri, {"uri": uri})
        if self._modern:
            await self._follow_by_streams(watch_list)
        else:
            await self._follow_by_requests(watch_list)

    async def _follow_by_requests(self, watch_list: WatchList) -> None:
        subscribed: set[str] = set()
        while True:
            # Both before the first await: a change in between is seen by the next round.
            changed, version = watch_list.changed, watch_list.version
            uris = set(watch_list.keys["resourceSubscriptions"])
            for uri in sorted(uris - subscribed):
                await self._tell("resources/subscribe", uri)
            for uri in sorted(subscribed - uris):
                await self._tell("resources/unsubscribe", uri)
            subscribed = uris
            watch_list.applied(version)
            await changed.wait()

    async def _follow_by_streams(self, watch_list: WatchList) -> None:
        """Keep one stream open for all that is watched; the one before ends when the next is acknowledged."""
        async with anyio.create_task_group() as group:
            current: anyio.CancelScope | None = None
            while True:
                changed, version = watch_list.changed, watch_list.version
                before, current = current, None
                if watch_list:
                    current = anyio.CancelScope()
                    keys = {kind: sorted(some) for kind, some in watch_list.keys.items() if some}
                    acknowledged = self._inbound.expect_acknowledgement(keys)
                    group.start_soon(self._subscribe_to, keys, current, acknowledged)
                    with anyio.move_on_after(_ACKNOWLEDGED_S):
                        await acknowledged.wait()
                if before is not None:
                    before.cancel()
                watch_list.applied(version)
                await changed.wait()

    async def _subscribe_to(
        self, keys: Mapping[WatchedKind, list[str]], scope: anyio.CancelScope, acknowledged: anyio.Event
    ) -> None:
        with scope:
            for _ in range(_MAX_FAILURES):
                try:
                    await self._request("subscriptions/listen", {"notifications": dict(keys)})
                except (RpcError, HttpStatusError) as error:
                    log.info("cannot subscribe: %s", error, extra={"server": self._server})
                    break
                except ConnectionLost:
                    log.debug("the stream of updates ended", extra={"server": self._server})
                await anyio.sleep(_REOPEN_S)
        # It never will be: waiting longer is of no use.
        acknowledged.set()

    async def _tell(self, method: str, uri: str) -> None:
        try:
            await self._request(method, {"uri": uri})
        except (RpcError, HttpStatusError, ConnectionLost) as error:
            log.info("%s failed: %s", method, error, extra={"server": self._server})

    def _announces(self, kind: str) -> bool:
        offered = self._capabilities.get(kind)
        return isinstance(offered, dict) and offered.get("listChanged") is True
