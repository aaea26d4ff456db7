"""The life cycle of a link, with a scripted upstream without process or socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from support.virtual_time import in_virtual_time

from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    NoAnswer,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.upstream.breaker import FAILURES_TO_OPEN
from gateway.upstream.link import WAIT_FAILING_S, UpstreamLink
from gateway.upstream.link_states import LinkPorts, Ready, Waiting
from gateway.upstream.session import ALL_KINDS, RawListing, SessionPorts, UpstreamCall, WatchList
from gateway.upstream.watching import POLL_S

NOT_SENT = ConnectionLost("it refused", sent=False)
SENT = ConnectionLost("it broke", sent=True)


@dataclass
class FakeSession:
    """Answers calls in the order of `answers`, each a result or an error; then with "ok"."""

    answers: list[Any] = field(default_factory=list)
    listings: list[GatewayError] = field(default_factory=list)
    independent_requests: bool = True
    announces_changes: bool = True
    calls_need_listing: bool = False
    protocol_version: str = "fake"
    instructions: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)
    server_info: dict[str, Any] = field(default_factory=dict)
    ports: SessionPorts | None = None
    sent: int = 0
    abandoned: bool = False
    listed: list[frozenset[str]] = field(default_factory=list)
    watched: list[WatchList | None] = field(default_factory=list)
    held: anyio.Event | None = None
    closed: anyio.Event = field(default_factory=anyio.Event)

    async def fetch_listing(
        self, kinds: Collection[str] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        self.listed.append(frozenset(kinds))
        if self.listings:
            raise self.listings.pop(0)
        return RawListing(tools=[], prompts_and_resources={}, capabilities={}, ttl_ms=None, scope="public")

    async def send(self, call: UpstreamCall) -> Any:
        self.sent += 1
        if self.held is not None:
            await self.held.wait()
        answer = self.answers.pop(0) if self.answers else "ok"
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def notify(self, method: str) -> None:
        raise AssertionError("no host, no notification")

    async def watch(self, watch_list: WatchList | None) -> None:
        self.watched.append(watch_list)

    async def wait_closed(self) -> str:
        await self.closed.wait()
        return "the process exited"

    def abandon(self) -> None:
        self.abandoned = True


@dataclass
class Upstream:
    """A connector whose attempts give these sessions or errors in turn, and then nothing."""

    attempts: list[FakeSession | Exception]
    lost: int = 0
    has_listing: bool = False
    updates: list[str] = field(default_factory=list)
    listings: list[tuple[int, bool]] = field(default_factory=list)

    @asynccontextmanager
    async def open(self, ports: SessionPorts) -> AsyncIterator[FakeSession]:
        if not self.attempts:
            await anyio.sleep_forever()
        attempt = self.attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        attempt.ports = ports
        yield attempt

    async def on_listing(self, link: UpstreamLink, listing: RawListing) -> bool:
        self.listings.append((link.epoch, link.session is not None))
        return True

    def on_lost(self, link: UpstreamLink) -> None:
        self.lost += 1

    def on_update(self, kind: str, key: str, params: dict[str, Any]) -> None:
        self.updates.append(key)


@asynccontextmanager
async def linked(
    upstream: Upstream, *, lists: bool = True, within_s: float = 20, **limits: Any
) -> AsyncIterator[UpstreamLink]:
    ports = LinkPorts(
        on_listing=upstream.on_listing,
        on_lost=upstream.on_lost,
        on_update=upstream.on_update,
        has_listing=lambda link: upstream.has_listing,
    )
    config = StdioConfig(command="unused", **limits)
    link = UpstreamLink("up", config, upstream, ports, lists=lists, chance=lambda: 0.5)
    with anyio.fail_after(within_s):
        async with anyio.create_task_group() as group:
            group.start_soon(link.run)
            yield link
            link.close()


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await checkpoint()


async def try_again(link: UpstreamLink) -> None:
    """Let a link that waits make its next attempt."""
    await until(lambda: isinstance(link.state, Waiting))
    wait = link.state
    link.refresh()
    await until(lambda: link.state is not wait)


def call(**more: Any) -> UpstreamCall:
    return UpstreamCall(method="tools/call", params={"name": "t"}, **more)


async def test_connection_is_listed_before_calls_can_use_it() -> None:
    session, upstream = FakeSession(), Upstream([])
    upstream.attempts.append(session)
    async with linked(upstream) as link:
        assert (link.state.name, link.session, link.epoch) == ("connecting", None, 0)
        await link.wait_ready(1)
        assert (link.state.name, link.session, link.epoch) == ("ready", session, 1)
        assert link.tried.is_set()
        assert upstream.listings == [(1, False)]
        assert await link.call(call()) == "ok"
        await until(lambda: session.watched == [link.watch_list])


async def test_each_connection_has_a_greater_epoch_and_its_end_a_reason() -> None:
    first, second = FakeSession(independent_requests=False), FakeSession(independent_requests=False)
    upstream = Upstream([first, second])
    async with linked(upstream) as link:
        await link.wait_ready(1)
        first.closed.set()
        await until(lambda: isinstance(link.state, Waiting))
        assert (upstream.lost, link.epoch, link.last_error) == (1, 1, "the process exited")
        link.refresh()
        await link.wait_ready(1)
        assert (link.session, link.epoch, link.last_error) == (second, 2, None)
        # The new session lists everything anyway, so the requested refresh does not cause another listing.
        assert second.listed == [ALL_KINDS]


async def test_any_exception_of_an_attempt_leaves_the_link_running() -> None:
    upstream = Upstream([ValueError("odd"), RpcError(-32000, "not today"), FakeSession()])
    async with linked(upstream) as link:
        for reason in ("unexpected ValueError", "not today"):
            await until(lambda: isinstance(link.state, Waiting))
            assert link.last_error == reason
            await try_again(link)
        await link.wait_ready(1)
        assert link.epoch == 1


async def test_call_without_a_connection_waits_and_gets_the_reason() -> None:
    upstream = Upstream([ConnectionLost("command not found: x", sent=False)])
    async with linked(upstream, call_timeout=0.01) as link:
        await link.tried.wait()
        with pytest.raises(UpstreamUnavailable, match=r"not reachable right now \(command not found: x\)"):
            await link.call(call())


async def test_wait_is_shorter_while_attempts_keep_failing() -> None:
    upstream = Upstream([ConnectionLost("no", sent=False) for _ in range(3)])
    async with linked(upstream) as link:
        assert link.patience_s > WAIT_FAILING_S
        for _ in range(3):
            await try_again(link)
        assert link.patience_s == WAIT_FAILING_S


async def test_unsent_call_uses_the_next_connection_opened_at_once() -> None:
    first, second = FakeSession(["ok", NOT_SENT]), FakeSession(["second"])
    async with linked(Upstream([first, second])) as link:
        await link.call(call())
        assert await link.call(call()) == "second"
        assert (link.epoch, first.abandoned) == (2, True)


async def test_forgotten_session_is_replaced_and_any_call_sent_again() -> None:
    first, second = FakeSession(["ok", SessionForgotten("gone")]), FakeSession(["second"])
    async with linked(Upstream([first, second])) as link:
        await link.call(call())
        assert await link.call(call()) == "second"
        assert link.epoch == 2


async def test_lost_call_is_repeated_only_if_safe() -> None:
    session = FakeSession([SENT, "never", SENT, "again", SENT, SENT])
    async with linked(Upstream([session])) as link:
        with pytest.raises(UpstreamLost, match="its outcome is unknown, and it was not repeated"):
            await link.call(call())
        session.answers.pop(0)
        assert await link.call(call(repeatable=True)) == "again"
        with pytest.raises(UpstreamLost, match=r"it was sent twice\. Calling this tool again is safe"):
            await link.call(call(repeatable=True))
        # With independent requests, only the one request was lost each time.
        assert (link.session, link.epoch) == (session, 1)


async def test_lost_call_on_a_shared_stream_ends_the_connection() -> None:
    session = FakeSession([SENT], independent_requests=False)
    async with linked(Upstream([session])) as link:
        with pytest.raises(UpstreamLost):
            await link.call(call())
        assert link.session is None
        # The owner task notices the end, and knows the reason.
        assert not session.abandoned
        session.closed.set()
        await until(lambda: isinstance(link.state, Waiting))
        assert link.last_error == "the process exited"


async def test_error_answers_leave_the_connection_open() -> None:
    session = FakeSession([HttpStatusError(400, ""), HttpStatusError(502, ""), RpcError(-32000, "no")])
    async with linked(Upstream([session])) as link:
        with pytest.raises(UpstreamProtocolError, match="HTTP 400; the call has no result"):
            await link.call(call())
        with pytest.raises(UpstreamLost, match=r"HTTP 502 after the call was sent.*Its outcome is unknown"):
            await link.call(call())
        with pytest.raises(RpcError, match="no"):
            await link.call(call())
        assert (link.session, link.in_flight) == (session, 0)


async def test_call_over_the_timeout_is_abandoned() -> None:
    session = FakeSession(held=anyio.Event())
    async with linked(Upstream([session]), call_timeout=0.01) as link:
        await link.wait_ready(1)
        with pytest.raises(UpstreamTimeout, match=r"no answer within 0\.01 s"):
            await link.call(call())
        assert link.in_flight == 0


async def test_calls_over_the_concurrency_limit_are_refused() -> None:
    session, results = FakeSession(held=anyio.Event()), list[str]()
    async with linked(Upstream([session]), max_concurrency=2) as link, anyio.create_task_group() as group:

        async def keep() -> None:
            results.append(await link.call(call()))

        for _ in range(2):
            group.start_soon(keep)
        await until(lambda: session.sent == 2)
        with pytest.raises(UpstreamUnavailable, match="already has 2 calls in flight"):
            await link.call(call())
        assert session.held is not None
        session.held.set()
        await until(lambda: results == ["ok", "ok"])
        assert await link.call(call()) == "ok"


async def test_changed_limit_applies_to_later_calls() -> None:
    session = FakeSession(held=anyio.Event())
    async with linked(Upstream([session]), max_concurrency=1) as link, anyio.create_task_group() as group:
        group.start_soon(link.call, call())
        await until(lambda: session.sent == 1)
        with pytest.raises(UpstreamUnavailable, match="already has 1 calls in flight"):
            await link.call(call())
        link.use(link.config.model_copy(update={"max_concurrency": 2, "call_timeout": 0.01}))
        with pytest.raises(UpstreamTimeout, match=r"no answer within 0\.01 s"):
            await link.call(call())
        # The first one has the time that it began with.
        assert link.in_flight == 1
        group.cancel_scope.cancel()


async def test_consecutive_failures_open_the_breaker_for_seconds() -> None:
    session = FakeSession([SENT] * 2 * FAILURES_TO_OPEN)
    async with linked(Upstream([session])) as link:
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(UpstreamLost):
                await link.call(call())
        for _ in range(3):
            with pytest.raises(UpstreamUnavailable, match=f"has failed {FAILURES_TO_OPEN} times in a row"):
                await link.call(call())
        assert session.sent == FAILURES_TO_OPEN


async def test_success_resets_the_failure_count() -> None:
    almost = [SENT] * (FAILURES_TO_OPEN - 1)
    session = FakeSession([*almost, RpcError(-1, "an answer"), *almost, "fine", *almost])
    async with linked(Upstream([session])) as link:
        for _ in range(3 * FAILURES_TO_OPEN - 1):
            with suppress(UpstreamLost, RpcError):
                await link.call(call())
        assert await link.call(call()) == "ok"


async def test_failures_count_across_connections_and_a_new_one_allows_a_probe() -> None:
    sessions = [FakeSession([SENT], independent_requests=False) for _ in range(FAILURES_TO_OPEN + 1)]
    async with linked(Upstream([*sessions, FakeSession(independent_requests=False)])) as link:
        for number, session in enumerate(sessions):
            if number:
                await try_again(link)
            await link.wait_ready(1)
            # The last call is the probe; concurrent calls are refused.
            with pytest.raises(UpstreamLost):
                await link.call(call())
            if number >= FAILURES_TO_OPEN - 1:
                with pytest.raises(UpstreamUnavailable, match="times in a row"):
                    await link.call(call())
            session.closed.set()
        await try_again(link)
        await link.wait_ready(1)
        assert await link.call(call()) == "ok"
        assert await link.call(call()) == "ok"


async def test_calls_lost_with_one_connection_count_as_one_failure() -> None:
    first = FakeSession([SENT] * 3 * FAILURES_TO_OPEN, held=anyio.Event(), independent_requests=False)
    upstream = Upstream([first, FakeSession()])
    async with linked(upstream) as link, anyio.create_task_group() as group:

        async def fail() -> None:
            with pytest.raises(UpstreamLost):
                await link.call(call())

        await link.wait_ready(1)
        for _ in range(3 * FAILURES_TO_OPEN):
            group.start_soon(fail)
        await until(lambda: first.sent == 3 * FAILURES_TO_OPEN)
        assert first.held is not None
        first.held.set()
        await until(lambda: not first.answers)
        first.closed.set()
        await try_again(link)
        await link.wait_ready(1)
        assert await link.call(call()) == "ok"


async def test_unusable_answers_do_not_open_the_breaker() -> None:
    session = FakeSession([UnusableAnswer("it is too large")] * 2 * FAILURES_TO_OPEN)
    async with linked(Upstream([session])) as link:
        for _ in range(2 * FAILURES_TO_OPEN):
            with pytest.raises(UpstreamLost, match="too large"):
                await link.call(call())
        assert await link.call(call()) == "ok"


async def test_announced_change_lists_its_kind_and_refresh_lists_everything() -> None:
    session = FakeSession()
    async with linked(Upstream([session])) as link:
        await link.wait_ready(1)
        assert session.ports is not None
        session.ports.on_list_changed(("prompts",))
        session.ports.on_list_changed(("tools",))
        await until(lambda: len(session.listed) == 2)
        link.refresh()
        await until(lambda: len(session.listed) == 3)
        assert session.listed == [ALL_KINDS, {"prompts", "tools"}, ALL_KINDS]


async def test_invalid_params_error_lists_tools_again() -> None:
    session = FakeSession([RpcError(INVALID_PARAMS, "which?")])
    async with linked(Upstream([session])) as link:
        with pytest.raises(RpcError):
            await link.call(call())
        await until(lambda: session.listed == [ALL_KINDS, ALL_KINDS])


async def test_failed_relisting_keeps_the_connection_and_reports_the_reason() -> None:
    session, upstream = FakeSession(), Upstream([])
    upstream.attempts.append(session)
    async with linked(upstream) as link:
        await link.wait_ready(1)
        session.listings.append(HttpStatusError(503, ""))
        link.refresh()
        await until(lambda: link.last_error == "listing failed: HTTP 503")
        assert link.session is session
        link.refresh()
        await until(lambda: len(upstream.listings) == 2)
        assert link.last_error is None


@pytest.mark.heavy
@pytest.mark.parametrize(
    "error", [RpcError(-1, "no list"), HttpStatusError(503, ""), NoAnswer("no answer"), UnusableAnswer("too large")]
)
async def test_failed_first_listing_uses_the_previous_one_and_is_retried(
    error: GatewayError,
) -> None:
    session = FakeSession(listings=[error, error])
    upstream = Upstream([session], has_listing=True)
    async with linked(upstream) as link:
        assert await link.call(call()) == "ok"
        assert link.last_error == f"listing failed: {error}"
        assert upstream.listings == [(1, False)]
        # The link lists again without an announcement, although this server announces changes.
        await until(lambda: link.last_error is None)
        assert session.listed == [ALL_KINDS] * 3
        assert link.epoch == 1


@pytest.mark.parametrize(
    ("error", "has_listing", "needed"),
    [
        (RpcError(-1, "no list"), False, False),
        (RpcError(-1, "no list"), True, True),
        (HttpStatusError(401, "refused"), True, False),
        (SENT, True, False),
        (SessionForgotten("gone"), True, False),
    ],
)
async def test_failed_first_listing_without_a_previous_one_fails_the_connection(
    error: GatewayError, has_listing: bool, needed: bool
) -> None:
    session = FakeSession(listings=[error], calls_need_listing=needed)
    async with linked(Upstream([session], has_listing=has_listing)) as link:
        await until(lambda: isinstance(link.state, Waiting))
        assert link.last_error == str(error)
        assert link.epoch == 0


@in_virtual_time
async def test_list_is_polled_when_changes_are_no_longer_announced() -> None:
    session = FakeSession()
    async with linked(Upstream([session]), within_s=10 * POLL_S) as link:
        await link.wait_ready(1)
        assert session.ports is not None
        await anyio.sleep(3 * POLL_S)
        assert session.listed == [ALL_KINDS]
        session.announces_changes = False
        session.ports.on_list_changed(())
        await anyio.sleep(4.5 * POLL_S)
        assert session.listed[1:] == [ALL_KINDS] * 5, "at once, because a poll was due, and then once each interval"


async def test_listing_error_for_a_lost_session_starts_a_new_one() -> None:
    first, second = FakeSession(), FakeSession()
    async with linked(Upstream([first, second])) as link:
        await link.call(call())
        first.listings.append(SessionForgotten("gone"))
        link.refresh()
        await until(lambda: link.session is second)


async def test_retired_link_reports_nothing_and_ends_after_its_calls() -> None:
    session, results = FakeSession(held=anyio.Event()), list[str]()
    upstream = Upstream([session])
    async with linked(upstream) as link, anyio.create_task_group() as group:

        async def keep() -> None:
            results.append(await link.call(call()))

        group.start_soon(keep)
        await until(lambda: session.sent == 1)
        assert session.ports is not None
        session.ports.on_update("resourceSubscriptions", "before", {})
        link.retire()
        group.start_soon(link.close_when_idle)
        session.ports.on_update("resourceSubscriptions", "after", {})
        session.ports.on_list_changed(("tools",))
        await until(lambda: len(session.listed) == 2)
        assert (upstream.updates, len(upstream.listings)) == (["before"], 1)
        assert isinstance(link.state, Ready)
        assert session.held is not None
        session.held.set()
        await until(lambda: link.session is None)
        assert (results, upstream.lost) == (["ok"], 0)


async def test_session_connection_is_neither_listed_nor_watched() -> None:
    session, upstream = FakeSession(), Upstream([])
    upstream.attempts.append(session)
    async with linked(upstream, lists=False) as link:
        assert await link.call(call()) == "ok"
        await until(lambda: session.watched == [None])
        assert (session.listed, upstream.listings) == ([], [])
        assert not link.handshake_refused


async def test_refused_session_version_is_distinguished_from_an_unreachable_upstream() -> None:
    for error, unwilling in ((RpcError(-32602, "no"), True), (ConnectionLost("no", sent=False), False)):
        async with linked(Upstream([error]), lists=False) as link:
            await link.tried.wait()
            assert link.handshake_refused is unwilling
