"""Calls per minute over a real store: a caller below its quota is never refused."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.from_thread
import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.clusters import Store, running_store
from support.gateways import RunningGateway
from support.upstreams.running import scripted_http_server, tool
from support.worker_groups import each_worker, ready, running_workers, until, workers_of

from gateway.access.principal import Principal
from gateway.access.quotas import Account, Quotas, Sharing
from gateway.cluster.parent_store import ParentState, ParentStore, serving_store
from gateway.cluster.redis_store import RedisStore, translated_errors
from gateway.cluster.roles import WorkerConfig
from gateway.cluster.shared_limits import SharedLimits
from gateway.cluster.shared_store import CallStore, ReportResult, Spent, StoreStatus, StoreTrouble
from gateway.config.auth_config import QuotaLimits, QuotasConfig
from gateway.config.cluster_config import StoreConfig
from gateway.protocol.gateway_errors import QuotaExceeded

ADA = Principal(name="ada")
REPORT_S = 0.5
# Longer pauses differ from these in nothing that is counted.
PAUSES_S = (0.0, 0.01, 0.2, 0.49, 0.5, 0.74, 0.76, 1.0, 1.2, 2.0, 5.0, 11.0, 29.0, 31.0, 59.0, 61.0, 130.0)


class TimedStore(RedisStore):
    """The real store, with a clock that stands still between the moves of a test."""

    now_s = 1_000_000.0
    count_script = RedisStore.count_script.replace(
        "local now = time[1] * 1000000 + time[2]", "local now = tonumber(redis.call('GET', 'now'))"
    )

    async def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        with translated_errors():
            await self.client.set("now", round(TimedStore.now_s * 1e6))
        return await super().count(name, spent)


class Replica:
    """The limits of one replica."""

    def __init__(self, store: CallStore, name: str, per_minute: int) -> None:
        config = QuotasConfig(default=QuotaLimits(calls_per_minute=per_minute, in_flight=None))
        self.limits = SharedLimits(name, store, StoreStatus(), clock=lambda: TimedStore.now_s)
        self.quotas = Quotas(config, clock=lambda: TimedStore.now_s, sharing=Sharing(ledger=self.limits))

    @property
    def account(self) -> Account:
        return self.quotas.account(ADA)

    async def call(self) -> None:
        """Make one call."""
        account = self.account
        if not account.start_request("tools/call"):
            await account.start_asked_request("tools/call")
        account.end_request("tools/call")

    async def passes(self) -> bool:
        """Return whether one call is admitted."""
        try:
            await self.call()
        except QuotaExceeded:
            return False
        return True


class Bucket:
    """The calls that a caller has left by definition: a bucket for one minute that is refilled steadily."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.left = float(per_minute)
        self.at_s = TimedStore.now_s

    def fill(self) -> None:
        passed_s, self.at_s = TimedStore.now_s - self.at_s, TimedStore.now_s
        self.left = min(float(self.per_minute), self.left + passed_s * self.per_minute / 60)

    def take(self, passed: bool) -> None:
        assert passed or self.left < 1 - 1e-6, f"refused with {self.left:.3f} of {self.per_minute} calls left"
        self.left -= passed


@asynccontextmanager
async def replicas(server: Store | Path, count: int, per_minute: int) -> AsyncIterator[list[Replica]]:
    """Several replicas with this store, or workers whose parent has its socket in this folder."""
    if isinstance(server, Path):
        worker_config = a_worker_config(server, count)
        async with serving_store(worker_config, ParentState(clock=lambda: TimedStore.now_s)):
            parents = [ParentStore(worker_config) for _ in range(count)]
            async with reporting(parents, per_minute) as found:
                yield found
            for parent in parents:
                await parent.close()
        return
    await emptied(server)
    config = StoreConfig.model_validate({"url": server.url})
    stores = [TimedStore(config) for _ in range(count)]
    async with reporting(stores, per_minute) as found:
        yield found
    for store in stores:
        await store.close()


async def emptied(server: Store) -> None:
    await server.ask("FLUSHALL")


def a_worker_config(sockets: Path, count: int) -> WorkerConfig:
    words = dict.fromkeys(("public_url", "host", "signing_key", "token", "text", "state_dir"), "")
    return WorkerConfig(
        index=0, count=count, listener=-1, sockets=str(sockets), secret="of-the-workers",
        path=None, insecure=False, verbose=False, **words,
    )  # fmt: skip


@asynccontextmanager
async def reporting(stores: Sequence[CallStore], per_minute: int) -> AsyncIterator[list[Replica]]:
    found = [Replica(store, f"r{index}", per_minute) for index, store in enumerate(stores)]
    async with anyio.create_task_group() as group:
        for _ in range(2):  # all know how many they are
            for one in found:
                await one.limits.report()
        for one in found:
            group.start_soon(one.limits.run)
        yield found
        group.cancel_scope.cancel()


async def pause(found: list[Replica], pause_s: float) -> None:
    """Let time pass, while every replica reports twice a second, as in production."""
    left_s = pause_s
    while left_s > 0:
        # Once everything is reported, more reports change nothing.
        step_s = min(REPORT_S, left_s) if pause_s - left_s < 2 else left_s
        TimedStore.now_s += step_s
        left_s -= step_s
        if step_s >= REPORT_S:
            for one in found:
                await one.limits.report()


async def play(server: Store | Path, count: int, per_minute: int, moves: list[tuple[float, int, int, bool]]) -> None:
    async with replicas(server, count, per_minute) as found:
        bucket = Bucket(per_minute)
        since_report_s = 0.0
        for pause_s, first, calls, spread in moves:
            since_report_s += pause_s
            await pause(found, pause_s)
            if since_report_s >= REPORT_S:
                since_report_s = 0.0
                for one in found:
                    await one.limits.report()
            bucket.fill()
            for number in range(calls):
                one = found[(first + number * spread) % count]
                bucket.take(await one.passes())
                assert bucket.left > -per_minute / 8 - 2, "many more calls than the quota"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples, each of which begins with an empty one."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running_store(tmp_path_factory.mktemp("limits"))) as store,
    ):
        yield store


def burst(per_minute: int) -> st.SearchStrategy[int]:
    return st.sampled_from([1, 1, 1, 2, 3, math.ceil(per_minute / 2), per_minute, per_minute + 5])


@st.composite
def patterns(draw: st.DrawFn) -> tuple[int, int, list[tuple[float, int, int, bool]]]:
    count = draw(st.sampled_from([1, 2, 3, 4]))
    per_minute = draw(st.sampled_from([1, 2, 3, 7, 12, 60, 100, 600]))
    move = st.tuples(st.sampled_from(PAUSES_S), st.integers(0, count - 1), burst(per_minute), st.booleans())
    return count, per_minute, draw(st.lists(move, min_size=1, max_size=12))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns())
# An agent that thinks for a second between its calls, and is far below its quota.
@example((1, 12, [(1.0, 0, 1, False)] * 12))
@example((3, 12, [(1.0, place, 1, False) for place in range(3)] * 4))
@example((3, 60, [(0.0, 0, 60, False), (1.0, 1, 1, False), (30.0, 2, 30, True)]))
# The calls at one replica do not reduce what another replica may need later.
@example((3, 3, [(0.0, 0, 1, False), (0.2, 1, 1, False), (0.2, 2, 1, False), (61.0, 2, 3, False)]))
@example((3, 600, [(0.0, 0, 300, True), (0.76, 1, 300, False), (5.0, 2, 50, False)]))
@pytest.mark.heavy
def test_caller_below_its_quota_is_never_refused_at_any_rhythm(
    server: Store, tmp_path: Path, pattern: tuple[int, int, list[tuple[float, int, int, bool]]]
) -> None:
    anyio.run(play, server, *pattern)
    # Workers, whose parent counts.
    anyio.run(play, tmp_path, *pattern)


@pytest.fixture(params=["store", "parent"])
def either(request: pytest.FixtureRequest, server: Store, tmp_path: Path) -> Store | Path:
    """The process that counts: the store of replicas, or the parent of workers."""
    return server if request.param == "store" else tmp_path


async def test_concurrent_calls_at_all_replicas_are_limited_to_the_quota(either: Store | Path) -> None:
    async with replicas(either, 3, 60) as found:
        passed: list[bool] = []

        async def call(one: Replica) -> None:
            passed.append(await one.passes())

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(call, found[number % 3])
        assert len(passed) == 200
        # Each replica lets an eighth of its share pass without asking.
        assert 60 <= sum(passed) <= 68
        await pause(found, 1.0)
        before = sum(passed)
        for number in range(12):
            await call(found[number % 3])
        assert sum(passed) - before <= 1


async def test_refused_caller_may_call_again_after_the_announced_time(either: Store | Path) -> None:
    async with replicas(either, 3, 7) as found:
        assert [await found[number % 3].passes() for number in range(8)] == [True] * 7 + [False]
        for number in range(10):
            with pytest.raises(QuotaExceeded) as refused:
                await found[number % 3].call()
            await pause(found, refused.value.retry_after_s)
            assert await found[(number + 1) % 3].passes()


async def test_call_cancelled_while_waiting_for_the_store_leaves_no_state(server: Store) -> None:
    async with replicas(server, 1, 3) as found:
        [one] = found
        assert await server.ask("CLIENT", "PAUSE", "300", "ALL") == "+OK"
        account = one.account
        assert account.start_request("tools/call") is False
        with anyio.move_on_after(0.05):
            await account.start_asked_request("tools/call")
        assert account.in_flight == 0
        # The store was asked already: the call counts, as any other that its caller gave up.
        assert [await one.passes() for _ in range(4)] in ([True, True, False, False], [True, True, True, False])


async def test_calls_do_not_wait_for_an_unresponsive_store(tmp_path: Path) -> None:
    async with running_store(tmp_path) as server, replicas(server, 3, 5) as found:
        await server.stop()
        with anyio.fail_after(2.5):
            assert [await found[0].passes() for _ in range(6)] == [True] * 5 + [False]
        assert not found[0].limits.shared
        await server.start()
        await found[0].limits.report()
        assert found[0].limits.shared


async def is_answered(gateway: RunningGateway) -> bool:
    """Call a tool; whether the quota let the call through."""
    answer = await gateway.rpc("tools/call", {"name": "up__echo", "arguments": {}})
    assert "result" in answer or "quota" in answer["error"]["message"], answer
    return "result" in answer


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.heavy
async def test_workers_count_calls_of_a_caller_together(tmp_path: Path, workers: int) -> None:
    limits = {"quotas": {"default": {"callsPerMinute": 40}}}
    async with (
        scripted_http_server(tmp_path, "up", tools=[tool("echo")]) as up,
        running_workers(tmp_path, {"up": up.config}, workers, gateway=limits) as gateway,
        each_worker(gateway, workers) as each,
    ):
        for one in each:
            await one.until_listed("up__echo")
        passed = 0
        for number in range(40):
            passed += await is_answered(each[number % workers])
        assert passed == 40  # a caller below its quota is not refused, whichever worker its calls reach
        for number in range(60):
            passed += await is_answered(each[number % workers])
        # An eighth may pass before the parent was asked, and the account is filled while the test runs.
        assert passed <= 40 + 40 / 8 + 5
        os.kill(workers_of(gateway)[1], signal.SIGKILL)
        await until(lambda: len(workers_of(gateway)) == workers)
        await ready(gateway)
        async with each_worker(gateway, workers) as again:
            await again[1].until_listed("up__echo")
            after = [await is_answered(again[1]) for _ in range(30)]
        assert sum(after) < 25, "a worker that has started again knows what was called before"


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.heavy
async def test_workers_count_requests_in_flight_of_a_caller_together(tmp_path: Path, workers: int) -> None:
    limits = {"quotas": {"default": {"inFlight": 16}}}
    hang = {"name": "up__sleep", "arguments": {"seconds": 2.5}}
    async with (
        scripted_http_server(tmp_path, "up", tools=[tool("echo"), tool("sleep", seconds="number")]) as up,
        running_workers(tmp_path, {"up": up.config}, workers, gateway=limits) as gateway,
        AsyncExitStack() as stack,
    ):
        # A connection carries one request at a time.
        each = [await stack.enter_async_context(each_worker(gateway, workers)) for _ in range(40 // workers)]
        answers: list[bool] = []

        async def call(one: RunningGateway) -> None:
            answer = await one.rpc("tools/call", hang)
            assert "result" in answer or "in flight, the most that its quota allows" in answer["error"]["message"], (
                answer
            )
            answers.append("result" in answer)

        async def burst(count: int) -> int:
            answers.clear()
            async with anyio.create_task_group() as group:
                for number in range(count):
                    group.start_soon(call, each[number // workers][number % workers])
            return sum(answers)

        for one in each[0]:
            await one.until_listed("up__sleep")
        assert await burst(16) == 16  # as many as the quota, at whichever workers they arrive
        assert 16 <= await burst(40) <= 18
        # All have ended, and each worker may have all of them.
        answers.clear()
        async with anyio.create_task_group() as group:
            for one in each[:16]:
                group.start_soon(call, one[1])
        assert sum(answers) == len(answers) == min(16, len(each))
        # Calls that ran at a worker that has died no longer count.
        async with anyio.create_task_group() as group:

            async def lost(one: RunningGateway) -> None:
                with suppress(httpx2.HTTPError):
                    await one.rpc("tools/call", hang)

            for one in each[:10]:
                group.start_soon(lost, one[1])
            await anyio.sleep(0.5)
            os.kill(workers_of(gateway)[1], signal.SIGKILL)
        answers.clear()
        async with anyio.create_task_group() as group:
            for one in each[:16]:
                group.start_soon(call, one[0])
        assert sum(answers) == len(answers) == min(16, len(each))


async def test_connection_without_the_secret_is_not_counted_by_the_parent(tmp_path: Path) -> None:
    worker_config = a_worker_config(tmp_path, 2)
    counts = ParentState(clock=lambda: TimedStore.now_s)
    stranger = ParentStore(replace(worker_config, secret="of-somebody-else"))
    async with serving_store(worker_config, counts):
        with pytest.raises(StoreTrouble):
            await stranger.count("r9", {"ada": Spent(100, 0, 1_000_000)})
        parent = ParentStore(worker_config)
        assert (await parent.count("r0", {})).alive == 1
        await parent.close()
