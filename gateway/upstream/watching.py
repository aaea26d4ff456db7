"""Watch an MCP server for changes, and decide when to request its lists again.

"Announcements" are the notifications that a server sends when its lists change. In protocol version 2026-07-28, the
gateway subscribes to notifications with a request that stays open (a stream). Servers of earlier versions require a
subscription only for changes of single resources, and send all other notifications without a subscription.

Sources: MCP 2026-07-28, "Subscriptions"; MCP 2025-11-25, "Resources", "Subscriptions".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.protocol.gateway_errors import ConnectionLost, GatewayError, HttpStatusError, RpcError, SessionForgotten
from gateway.upstream.breaker import ReactionLimiter, delay_s
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS, RawListing, WatchedKind, WatchList
from gateway.upstream.transport.jsonrpc_transport import Transport
from registry.catalog.catalog import ListKind

log = logging.getLogger(__name__)

# The poll interval for servers that announce no changes and state no time to live; similar to the cache time of hosts.
POLL_S: Final = 60.0
# The shortest poll interval, even if the server states a shorter time to live.
_MIN_POLL_S: Final = 1.0
# A jitter of ±20 % keeps gateways that were started together from polling at the same times.
_POLL_JITTER: Final = 0.2
# The gateway requests the lists once for all announcements within this time; a server may announce changes one by one.
_GATHER_S: Final = 0.05
# Announcements cause at most 10 listings in a burst, because successive calls may each change the lists, and then one
# listing per second.
_BURST: Final = 10
_INTERVAL_S: Final = 1.0
# The pause doubles, up to this many intervals, after a listing that shows no change. Some servers send an announcement
# whenever they are listed.
_LONGEST_UNCHANGED: Final = 10


class Relisting:
    """The schedule for requesting a group of lists of one connection again.

    All times are in seconds, on a clock that the caller chooses.

    Attributes:
        left_out: The lists of the group that are not requested.
        has_listed: Whether a listing has succeeded on this connection.
        stale: Set when a change is announced, or when announcements have stopped.
    """

    def __init__(
        self,
        *,
        chance: Callable[[], float],
        universe: frozenset[ListKind] = ALL_KINDS,
        left_out: frozenset[ListKind] = frozenset(),
    ) -> None:
        """Create the schedule; `start` starts it after the first listing.

        Args:
            chance: Returns random numbers in [0, 1).
            universe: The lists of the group.
            left_out: Lists of the group that are not requested.
        """
        self._chance = chance
        self._universe = universe
        self.left_out = left_out
        self._failed = self.has_listed = False
        self._missing: frozenset[ListKind] = frozenset()
        self._failures = 0
        self._stale_kinds: set[ListKind] = set()
        self.stale = anyio.Event()
        self._limiter = ReactionLimiter(burst=_BURST, interval_s=_INTERVAL_S)
        self._unchanged = 0

    @property
    def universe(self) -> frozenset[ListKind]:
        """The lists of the group, except those in `left_out`."""
        return self._universe - self.left_out

    @property
    def is_due(self) -> bool:
        """True if lists have to be requested again, because a request failed or a change was announced."""
        return self._failed or bool(self._missing or self._stale_kinds)

    def include_all(self) -> None:
        """Request all lists of the group from now on, including those in `left_out`."""
        self.left_out = frozenset()

    def start(self, listing: RawListing, *, failed: bool, now_s: float) -> None:
        """Start the schedule after the first listing.

        Args:
            failed: Whether the listing failed; the listing of an earlier connection then stays in use.
        """
        self._failed, self.has_listed = failed, not failed
        self._missing = listing.failed & self.universe
        self._failures = int(failed or bool(self._missing))
        self._plan_poll(listing.ttl_ms, now_s)

    def mark_stale(self, kinds: Collection[ListKind]) -> None:
        """Note that these lists have changed.

        If `kinds` is empty, no list has changed, and the waiting task is only woken to decide again whether to poll.
        """
        mine = self.universe.intersection(kinds)
        self._stale_kinds |= mine
        if mine or not kinds:
            self.stale.set()

    def take_stale(self) -> frozenset[ListKind]:
        """Return the lists with announced changes, and reset the announcements."""
        stale, self._stale_kinds, self.stale = frozenset(self._stale_kinds), set(), anyio.Event()
        return stale

    def gather_s(self, now_s: float) -> float:
        """Return how many seconds to collect announcements before listing."""
        return max(_GATHER_S, self._limiter.pause_s(now_s)) if self._stale_kinds else _GATHER_S

    def settle(self, stale: Collection[ListKind], now_s: float, *, changed: bool) -> None:
        """Count a listing that was caused by an announcement; slow down further listings if nothing changed.

        Args:
            stale: The lists with announced changes; empty if no announcement caused the listing.
            changed: Whether the listing differs from the previous listing.
        """
        if stale:
            self._unchanged = 0 if changed else min(self._unchanged + 1, _LONGEST_UNCHANGED)
            cost = min(2.0 ** max(0, self._unchanged - 1), _LONGEST_UNCHANGED)
            self._limiter.spend(now_s, cost)

    def wait_s(self, now_s: float, *, announced: bool) -> float | None:
        """Return how many seconds to wait for an announcement before listing anyway; None to wait indefinitely.

        Args:
            announced: Whether the server announces changes.
        """
        if not self.universe:
            return None
        due_s = self._due_s - now_s if self._needs_polling(announced) else None
        if not self._failures:
            return due_s
        # Retry failed lists without waiting for an announcement: the server has already sent its announcement.
        again_s = delay_s(self._failures, self._chance())
        return again_s if due_s is None or self._failed else min(again_s, due_s)

    def kinds(self, stale: Collection[ListKind], now_s: float, *, announced: bool) -> frozenset[ListKind]:
        """Return the lists to request now.

        Args:
            stale: The lists with announced changes.
            announced: Whether the server announces changes.
        """
        if self._needs_polling(announced) and now_s >= self._due_s:
            return self.universe
        return self._missing.union(stale) or self.universe

    def succeeded(self, listing: RawListing, kinds: frozenset[ListKind], now_s: float) -> None:
        """Note a successful listing, in which single lists may have failed.

        Args:
            kinds: The lists that were requested.
        """
        self._failed, self.has_listed = False, True
        self._missing = listing.failed & self.universe
        self._failures = self._failures + 1 if self._missing else 0
        if kinds == self.universe:
            self._plan_poll(listing.ttl_ms, now_s)

    def failed(self, stale: Collection[ListKind], now_s: float) -> None:
        """Note a failed listing; the announced changes remain due."""
        self._failed = True
        self._failures += 1
        self._stale_kinds.update(stale)
        self.settle(stale, now_s, changed=False)

    def _needs_polling(self, announced: bool) -> bool:
        return self._ttl_ms is not None or not announced

    def _plan_poll(self, ttl_ms: int | None, now_s: float) -> None:
        self._ttl_ms = ttl_ms
        # A TTL of 0 means "do not cache", so use the default poll interval.
        hint_s = ttl_ms / 1000 if ttl_ms else POLL_S
        self._due_s = now_s + max(_MIN_POLL_S, hint_s) * (1 + _POLL_JITTER * (2 * self._chance() - 1))


# The pause before a closed stream is reopened. The pause is so short that the gateway misses few notifications, and so
# long that there is no busy loop if every stream is closed at once.
_REOPEN_S: Final = 0.3
# After this many consecutive short streams, the gateway assumes that the server does not support streams or is gone.
_MAX_FAILURES: Final = 3
# A shorter stream counts as refused by the server, because proxies close idle streams only after a few seconds.
_LASTING_S: Final = 1.0
# How long to wait until the server acknowledges a stream, which usually takes one round trip. After this time, the
# gateway continues without the acknowledgement.
_ACKNOWLEDGED_S: Final = 2.0
_TASK_S: Final = 10.0
"""The timeout for requesting the state of one watched task after a subscription was reopened."""

_KINDS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources")
Request = Callable[[str, dict[str, Any]], Awaitable[Any]]


class Watcher:
    """Subscribes to the notifications of one connection, and reports changes that the gateway may have missed.

    Attributes:
        announces_changes: See `UpstreamSession.announces_changes`.
    """

    def __init__(
        self,
        server: str,
        transport: Transport,
        inbound: InboundMessages,
        request: Request,
        capabilities: Mapping[str, Any],
        *,
        modern: bool,
        reopen_s: float = _REOPEN_S,
        lasting_s: float = _LASTING_S,
    ) -> None:
        self._reopen_s, self._lasting_s = reopen_s, lasting_s
        self._server = server
        self._transport = transport
        self._inbound = inbound
        self._request = request
        self._modern = modern
        self._capabilities = capabilities
        self._announced = [kind for kind in _KINDS if self._announces(kind)]
        resources = capabilities.get("resources")
        self._announces_updates = isinstance(resources, dict) and resources.get("subscribe") is True
        # The URIs for which `resources/subscribe` was sent.
        self._subscribed: set[str] = set()
        # True if resources or tasks may have changed while no stream was open.
        self._has_missed = False
        self.announces_changes = False

    async def run(self, watch_list: WatchList | None) -> None:
        """Watch until cancelled, or until there is nothing to watch."""
        async with anyio.create_task_group() as group:
            if watch_list is not None:
                group.start_soon(self._follow, watch_list)
            # Do not start a task here, so that `announces_changes` is set before the first decision whether to poll.
            await self._watch_lists(group)

    # lists

    async def _watch_lists(self, group: TaskGroup) -> None:
        listens_anyway = self._inbound.host is not None or self._capabilities.keys() & {"logging", "resources"}
        if self._modern:
            if self._announced:
                await self._keep_open(group, self._subscribe_to_lists, vital=True)
        elif self._announced or listens_anyway:
            # Listen even if the server does not announce changes of its lists, because the stream also delivers input
            # requests, log messages and resource updates.
            await self._keep_open(group, self._listen, vital=bool(self._announced))

    async def _subscribe_to_lists(self, opened: anyio.Event) -> None:
        notifications = {f"{kind}ListChanged": True for kind in self._announced}
        self._inbound.expect_acknowledgement(notifications, opened)
        self._note_open()
        await self._request("subscriptions/listen", {"notifications": notifications})

    async def _listen(self, opened: anyio.Event) -> None:
        def note_open() -> None:
            self._note_open()
            opened.set()
            if self._transport.independent_requests:
                # The server may have sent updates while the stream was closed, so report all resources as changed.
                self._report_updates(self._subscribed)

        await self._transport.listen(note_open)

    def _note_open(self) -> None:
        self.announces_changes = "tools" in self._announced

    async def _compare_lists(self, opened: anyio.Event, scope: anyio.CancelScope) -> None:
        """Request the lists again once a stream is open, because the stream does not announce earlier changes."""
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
        """Reopen a stream whenever it ends.

        Args:
            vital: Whether the gateway needs the stream to learn of changes of lists.
        """
        failures, is_lost = 0, False
        # Other transports deliver every notification since the handshake, so the gateway has not missed a change.
        compares = vital and (self._modern or self._transport.independent_requests)
        while failures < _MAX_FAILURES:
            opened_s, is_lost = anyio.current_time(), False
            opened, scope = anyio.Event(), anyio.CancelScope()
            if compares:
                group.start_soon(self._compare_lists, opened, scope)
            try:
                await stream(opened)
                # Count a short or optional stream as a failure, so that it is not reopened forever.
                lasted = anyio.current_time() - opened_s >= self._lasting_s
                failures = 0 if lasted and (vital or self._announces_updates) else failures + 1
            except (RpcError, HttpStatusError):
                self._poll_instead()
                return
            except SessionForgotten as error:
                self._transport.fail(str(error))
                return
            except ConnectionLost as error:
                failures, is_lost = failures + 1, True
                if not error.sent:
                    # The server is unreachable, so calls would fail too.
                    self._transport.fail(str(error))
                    return
            finally:
                scope.cancel()
            await anyio.sleep(self._reopen_s)
        if vital and is_lost:
            self._transport.fail("the stream of notifications keeps ending")
        self._poll_instead()

    def _poll_instead(self) -> None:
        """Switch to polling, because no stream announces changes."""
        if self.announces_changes:
            self.announces_changes = False
            # No list has changed, but this call wakes the tasks that wait for announcements, so that they poll instead.
            self._inbound.ports.on_list_changed(())

    # watched resources and tasks

    async def _follow(self, watch_list: WatchList) -> None:
        if self._modern:
            await self._follow_by_streams(watch_list)
        else:
            await self._follow_by_requests(watch_list)

    async def _follow_by_requests(self, watch_list: WatchList) -> None:
        # Resources that are watched already may have changed while the upstream was not connected.
        missed = set(watch_list.keys["resourceSubscriptions"])
        while True:
            # Read event and version before the first await, so that a later change is handled in the next round.
            changed, version = watch_list.changed, watch_list.version
            uris = set(watch_list.keys["resourceSubscriptions"])
            for uri in sorted(uris - self._subscribed):
                await self._send_subscription("resources/subscribe", uri)
                if uri in missed:
                    self._report_updates((uri,))
            for uri in sorted(self._subscribed - uris):
                await self._send_subscription("resources/unsubscribe", uri)
            self._subscribed, missed = uris, set()
            watch_list.note_applied(version)
            await changed.wait()

    async def _follow_by_streams(self, watch_list: WatchList) -> None:
        """Keep one stream open for the whole watch list.

        When the watch list changes, open another stream, and close the previous stream after the acknowledgement.
        """
        async with anyio.create_task_group() as group:
            current: anyio.CancelScope | None = None
            # The watched resources and tasks may have changed while the upstream was not connected.
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
                        self._has_missed = True  # the previous stream is closed before this stream is open
                if before is not None:
                    before.cancel()
                watch_list.note_applied(version)
                await changed.wait()

    async def _subscribe_to(
        self,
        keys: Mapping[WatchedKind, list[str]],
        scope: anyio.CancelScope,
        acknowledged: anyio.Event,
        group: TaskGroup,
    ) -> None:
        """Keep a subscription open until `scope` is cancelled; `group` runs work that outlives the subscription."""
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
                        log.info("subscription failed: %s", error, extra={"server": self._server})
                        self._report_missed(keys, group)
                        break
                    except ConnectionLost:
                        log.debug("update stream ended", extra={"server": self._server})
                    failures = 0 if anyio.current_time() - opened_s >= self._lasting_s else failures + 1
                    self._has_missed, opened = True, anyio.Event()
                    await anyio.sleep(self._reopen_s)
            waiting.cancel_scope.cancel()
        # Wake `_follow_by_streams`, because the server will not acknowledge the subscription any more.
        acknowledged.set()

    async def _report_once_acknowledged(
        self, keys: Mapping[WatchedKind, list[str]], acknowledged: anyio.Event, group: TaskGroup
    ) -> None:
        await acknowledged.wait()
        self._report_missed(keys, group)

    def _report_missed(self, keys: Mapping[WatchedKind, list[str]], group: TaskGroup) -> None:
        """Report all watched resources and tasks as changed if updates may have been missed."""
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

    async def _send_subscription(self, method: str, uri: str) -> None:
        try:
            await self._request(method, {"uri": uri})
        except (RpcError, HttpStatusError, ConnectionLost) as error:
            log.info("%s failed: %s", method, error, extra={"server": self._server})

    def _announces(self, kind: str) -> bool:
        offered = self._capabilities.get(kind)
        return isinstance(offered, dict) and offered.get("listChanged") is True
