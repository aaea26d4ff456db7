"""Watch an MCP server while its connection lives: its lists, and what somebody subscribed to.

Sources: MCP 2026-07-28, "Subscriptions"; MCP 2025-11-25, "Resources", "Subscriptions".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.errors import ConnectionLost, GatewayError, HttpStatusError, RpcError, SessionForgotten
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.transport.jsonrpc import Transport
from gateway.upstream.watch_list import WatchedKind, WatchList
from registry.catalog.catalog import ListKind

log = logging.getLogger(__name__)

# Servers and proxies end idle streams now and then: soon enough to miss little, and no busy loop where one
# ends each stream at once.
_REOPEN_S: Final = 0.3
# Streams that end at once in a row: then the server does not offer them, or is gone.
_MAX_FAILURES: Final = 3
# A proxy that ends idle streams waits for some seconds at least; what lives shorter was refused.
_LASTING_S: Final = 1.0
# How long to wait for an acknowledgement, which takes one round trip. Lists are compared after this time, too.
_ACKNOWLEDGED_S: Final = 2.0
_TASK_S: Final = 10.0
"""How long the state of one watched task is waited for after a subscription has been opened again."""

_KINDS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources")
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
        self._announced = [kind for kind in _KINDS if self._announces(kind)]
        resources = capabilities.get("resources")
        self._announces_updates = isinstance(resources, dict) and resources.get("subscribe") is True
        # The URIs that the server has confirmed by answers to `resources/subscribe`.
        self._subscribed: set[str] = set()
        # Whether the server may have sent updates while no stream was open for them.
        self._has_missed = False
        self.announces_changes = False

    async def run(self, watch_list: WatchList | None) -> None:
        """Watch until cancelled, or until there is nothing more to watch."""
        async with anyio.create_task_group() as group:
            if watch_list is not None:
                group.start_soon(self._follow, watch_list)
            # In this very task: where announcements come anyway it is known before anybody asks whether to poll.
            await self._watch_lists(group)

    # lists

    async def _watch_lists(self, group: TaskGroup) -> None:
        listens_anyway = self._inbound.host is not None or self._capabilities.keys() & {"logging", "resources"}
        if self._modern:
            if self._announced:
                await self._keep_open(group, self._subscribe_to_lists, vital=True)
        elif self._announced or listens_anyway:
            # Questions, log messages and updates come this way too, where a server announces no changes.
            await self._keep_open(group, self._listen, vital=bool(self._announced))

    async def _subscribe_to_lists(self, opened: anyio.Event) -> None:
        wanted = {f"{kind}ListChanged": True for kind in self._announced}
        self._inbound.expect_acknowledgement(wanted, opened)
        self._note_open()
        await self._request("subscriptions/listen", {"notifications": wanted})

    async def _listen(self, opened: anyio.Event) -> None:
        def note_open() -> None:
            self._note_open()
            opened.set()
            if self._transport.independent_requests:
                # Updates that the server sent while this stream was closed were lost.
                self._report_updates(self._subscribed)

        await self._transport.listen(note_open)

    def _note_open(self) -> None:
        self.announces_changes = "tools" in self._announced

    async def _compare_lists(self, opened: anyio.Event, scope: anyio.CancelScope) -> None:
        """List again once a stream is open: the server announced no change that it made before."""
        with scope:
            with anyio.move_on_after(_ACKNOWLEDGED_S):
                await opened.wait()
            self._inbound.ports.on_list_changed(self._announced)
            if not opened.is_set():
                await opened.wait()
                self._inbound.ports.on_list_changed(self._announced)

    async def _keep_open(
        self, group: TaskGroup, stream: Callable[[anyio.Event], Awaitable[None]], *, vital: bool
    ) -> None:
        """Open a stream again whenever it ends; `vital` where without it changes would go unnoticed."""
        failures, lost = 0, False
        # A transport that has one stream for everything delivers notifications from the handshake on.
        compares = vital and (self._modern or self._transport.independent_requests)
        while failures < _MAX_FAILURES:
            opened_s, lost = anyio.current_time(), False
            opened, scope = anyio.Event(), anyio.CancelScope()
            if compares:
                group.start_soon(self._compare_lists, opened, scope)
            try:
                await stream(opened)
                # Neither a stream that only carries extras, nor one that ends as soon as it was opened, is opened for
                # ever where it keeps ending.
                lasted = anyio.current_time() - opened_s >= _LASTING_S
                failures = 0 if lasted and (vital or self._announces_updates) else failures + 1
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
            finally:
                scope.cancel()
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
        if self._modern:
            await self._follow_by_streams(watch_list)
        else:
            await self._follow_by_requests(watch_list)

    async def _follow_by_requests(self, watch_list: WatchList) -> None:
        # The server may have changed these between two connections.
        missed = set(watch_list.keys["resourceSubscriptions"])
        while True:
            # Both before the first await: a change in between is seen by the next round.
            changed, version = watch_list.changed, watch_list.version
            uris = set(watch_list.keys["resourceSubscriptions"])
            for uri in sorted(uris - self._subscribed):
                await self._tell("resources/subscribe", uri)
                if uri in missed:
                    self._report_updates((uri,))
            for uri in sorted(self._subscribed - uris):
                await self._tell("resources/unsubscribe", uri)
            self._subscribed, missed = uris, set()
            watch_list.applied(version)
            await changed.wait()

    async def _follow_by_streams(self, watch_list: WatchList) -> None:
        """Keep one stream open for all that is watched; the one before ends when the next is acknowledged."""
        async with anyio.create_task_group() as group:
            current: anyio.CancelScope | None = None
            # The server may have changed these between two connections.
            self._has_missed = bool(watch_list)
            while True:
                changed, version = watch_list.changed, watch_list.version
                before, current = current, None
                if watch_list:
                    current, acknowledged = anyio.CancelScope(), anyio.Event()
                    keys = {kind: sorted(some) for kind, some in watch_list.keys.items() if some}
                    group.start_soon(self._subscribe_to, keys, current, acknowledged, group)
                    with anyio.move_on_after(_ACKNOWLEDGED_S):
                        await acknowledged.wait()
                    if not acknowledged.is_set():
                        self._has_missed = True  # the stream before ends without a successor
                if before is not None:
                    before.cancel()
                watch_list.applied(version)
                await changed.wait()

    async def _subscribe_to(
        self,
        keys: Mapping[WatchedKind, list[str]],
        scope: anyio.CancelScope,
        acknowledged: anyio.Event,
        group: TaskGroup,
    ) -> None:
        """Keep a subscription open until `scope` is cancelled; `group` runs what outlives the subscription."""
        failures, opened = 0, acknowledged
        async with anyio.create_task_group() as waiting:
            with scope:
                while failures < _MAX_FAILURES:
                    opened_s = anyio.current_time()
                    self._inbound.expect_acknowledgement(keys, opened)
                    waiting.start_soon(self._report_once_acknowledged, keys, opened, group)
                    try:
                        await self._request("subscriptions/listen", {"notifications": dict(keys)})
                    except (RpcError, HttpStatusError) as error:
                        log.info("cannot subscribe: %s", error, extra={"server": self._server})
                        self._report_missed(keys, group)
                        break
                    except ConnectionLost:
                        log.debug("the stream of updates ended", extra={"server": self._server})
                    failures = 0 if anyio.current_time() - opened_s >= _LASTING_S else failures + 1
                    self._has_missed, opened = True, anyio.Event()
                    await anyio.sleep(_REOPEN_S)
            waiting.cancel_scope.cancel()
        # It never will be: waiting longer is of no use.
        acknowledged.set()

    async def _report_once_acknowledged(
        self, keys: Mapping[WatchedKind, list[str]], acknowledged: anyio.Event, group: TaskGroup
    ) -> None:
        await acknowledged.wait()
        self._report_missed(keys, group)

    def _report_missed(self, keys: Mapping[WatchedKind, list[str]], group: TaskGroup) -> None:
        """Report everything watched as changed, where the server may have sent updates that did not arrive."""
        if self._has_missed:
            self._has_missed = False
            self._report_updates(keys.get("resourceSubscriptions", ()))
            group.start_soon(self._report_tasks, keys.get("taskIds", ()))

    def _report_updates(self, uris: Collection[str]) -> None:
        for uri in sorted(uris):
            self._inbound.ports.on_update("resourceSubscriptions", uri, {"uri": uri})

    async def _report_tasks(self, task_ids: Collection[str]) -> None:
        for task_id in task_ids:
            try:
                with anyio.fail_after(_TASK_S):
                    task = await self._request("tasks/get", {"taskId": task_id})
            except (GatewayError, TimeoutError) as error:
                log.debug("tasks/get failed: %s", error, extra={"server": self._server})
                continue
            if isinstance(task, dict) and task.get("taskId") == task_id:
                params = {name: value for name, value in task.items() if name not in ("_meta", "resultType")}
                self._inbound.ports.on_update("taskIds", task_id, params)

    async def _tell(self, method: str, uri: str) -> None:
        try:
            await self._request(method, {"uri": uri})
        except (RpcError, HttpStatusError, ConnectionLost) as error:
            log.info("%s failed: %s", method, error, extra={"server": self._server})

    def _announces(self, kind: str) -> bool:
        offered = self._capabilities.get(kind)
        return isinstance(offered, dict) and offered.get("listChanged") is True
