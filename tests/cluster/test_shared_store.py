"""Changes at one replica apply at all within two seconds, over a real store that may be down."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of, handshake, hello
from support.clusters import Cluster, Store, running_cluster, running_store
from support.gateways import RunningGateway, answer_of, brief_pause
from support.upstreams.running import scripted_http_server, tool
from support.worker_groups import until

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
WITHIN_S = 2.0


async def soon(holds: Callable[[RunningGateway], Awaitable[Any]], cluster: Cluster, within_s: float = WITHIN_S) -> None:
    """Every gateway comes to hold something within two seconds."""
    began_s = time.monotonic()
    async with anyio.create_task_group() as group:
        for one in cluster.gateways:
            group.start_soon(until, lambda one=one: holds(one), within_s)
    assert time.monotonic() - began_s < within_s


async def state_of(one: RunningGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await one.admin("cluster")).json()
    return found


async def is_up(one: RunningGateway) -> bool:
    row = await state_of(one)
    return row["store"]["state"] == "up" and row["replicas"] == 3 and not row["pendingChanges"]


@asynccontextmanager
async def clustered(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Cluster, Store, Any]]:
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_cluster(tmp_path, {"up": up.config}, store={"url": store.url}, **options) as cluster,
    ):
        for one in cluster.gateways:
            await until(lambda one=one: is_up(one))
        yield cluster, store, up


async def names(one: RunningGateway) -> set[str]:
    return set(await one.tools())


async def test_administrators_servers_and_notes_apply_at_every_replica(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (cluster, store, up):
        first, second, third = cluster.gateways
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        assert (await first.admin("servers", "POST", {"name": "more", **up.config})).status_code == 201

        async def has_more(one: RunningGateway) -> bool:
            return "more__echo" in await names(one)

        await soon(has_more, cluster, within_s=4)
        added = await second.admin("notes", "POST", {"wrapper": "up__echo", "text": "slow on Mondays"})
        assert added.status_code == 201, added.text
        note = added.json()["id"]

        async def is_noted(one: RunningGateway) -> bool:
            return "slow on Mondays" in (await one.tools())["up__echo"]["description"]

        await soon(is_noted, cluster)
        assert (await third.admin(f"notes/{note}", "DELETE")).status_code == 200

        async def is_plain(one: RunningGateway) -> bool:
            return not await is_noted(one)

        await soon(is_plain, cluster)
        assert (await third.admin("servers/more", "DELETE")).status_code == 204
        assert (await third.admin("servers/up", "DELETE")).status_code == 204

        async def is_bare(one: RunningGateway) -> bool:
            return await names(one) == set()

        await soon(is_bare, cluster)
        # The content of the store is encrypted.
        assert up.config["url"] not in (await store.dump())


async def test_concurrent_changes_apply_and_can_be_undone_at_any_replica(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (cluster, _, up):

        async def add(one: RunningGateway, name: str) -> None:
            answer = await one.admin("servers", "POST", {"name": name, **up.config})
            assert answer.status_code == 201, answer.text

        async with anyio.create_task_group() as group:
            for index, one in enumerate(cluster.gateways):
                for number in range(4):
                    group.start_soon(add, one, f"more-{index}-{number}")
        wanted = {f"more-{index}-{number}" for index in range(3) for number in range(4)}

        async def has_all(one: RunningGateway) -> bool:
            rows = (await one.admin("overlay")).json()["changes"]
            return {row["target"] for row in rows} == wanted

        await soon(has_all, cluster, within_s=4)
        first, second, third = cluster.gateways
        await third.until_listed("up__echo", "more-0-0__echo")
        assert (await first.admin("servers/more-0-0/disable", "POST", {})).status_code == 200
        assert (await second.admin("wrappers/up__echo/disable", "POST", {})).status_code == 200

        async def has_neither(one: RunningGateway) -> bool:
            return not {"up__echo", "more-0-0__echo"} & await names(one)

        await soon(has_neither, cluster)
        assert (await third.admin("overlay", "DELETE")).status_code == 200

        async def is_as_configured(one: RunningGateway) -> bool:
            return await names(one) == {"up__echo"} and not (await one.admin("overlay")).json()["changes"]

        await soon(is_as_configured, cluster)


@pytest.mark.parametrize("mode", [0o500, 0o700])
async def test_revoked_key_is_refused_at_every_replica(tmp_path: Path, mode: int) -> None:
    keys = {"auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]}}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with clustered(tmp_path, gateway=keys) as (cluster, _, _):
        session = await handshake(cluster.gateways[1], authorization="Bearer k-ada")
        # The file of a pod is often not writable. If one file is, the other files still have the key.
        folder = cluster.gateways[0].config.parent
        folder.chmod(mode)
        try:
            revoked = await cluster.gateways[0].admin("keys/ada", "DELETE")
        finally:
            folder.chmod(0o700)
        assert revoked.status_code == 200, revoked.text

        async def refuses(one: RunningGateway) -> bool:
            return (await one.post(ping, session.headers)).status_code == 401

        await soon(refuses, cluster)
        for one in cluster.gateways:
            assert (await one.post(hello(), {"authorization": "Bearer k-bob"})).status_code == 200


@pytest.mark.parametrize("parallel", [False, True])
async def test_calls_per_minute_are_counted_together(tmp_path: Path, parallel: bool) -> None:
    limits = {"quotas": {"default": {"callsPerMinute": 12}}}
    async with clustered(tmp_path, gateway=limits) as (cluster, _, _):
        await cluster.any.until_listed("up__echo")
        made: list[int] = []

        async def call() -> None:
            answer = answer_of(await cluster.any.post(call_of("up__echo", {"n": 1})))
            made.append("result" in answer)

        if parallel:
            async with anyio.create_task_group() as group:
                for _ in range(40):
                    group.start_soon(call)
            assert 8 <= sum(made) <= 18
        else:
            for _ in range(30):
                await call()
            assert 12 <= sum(made) <= 14
        # Workers without any usage report the same figures.
        await anyio.sleep(1)
        made.clear()
        for _ in range(6):
            await call()
        assert sum(made) <= 1


async def test_agent_pausing_between_calls_is_not_refused(tmp_path: Path) -> None:
    limits = {"quotas": {"default": {"callsPerMinute": 12}}}
    async with clustered(tmp_path, gateway=limits) as (cluster, _, _):
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        for number in range(5):
            # Longer than a replica remembers a caller that has stopped.
            await anyio.sleep(1)
            assert (await cluster.gateways[0].call("up__echo", {"n": number}))["structuredContent"] == {"n": number}
        # The remaining calls can be used at once, at any replica.
        for number in range(7):
            answer = answer_of(await cluster.gateways[number % 3].post(call_of("up__echo", {"n": number})))
            assert "result" in answer, answer


async def test_approval_at_one_replica_releases_the_call_at_another(tmp_path: Path) -> None:
    rules = {"policy": {"rules": [{"name": "ask", "wrappers": ["up__echo"], "ask": True}]}}
    async with clustered(tmp_path, gateway=rules) as (cluster, _, up):
        first, second, third = cluster.gateways
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        results: list[dict[str, Any]] = []

        async def call(one: RunningGateway) -> None:
            results.append(await one.call("up__echo", {"n": 1}))

        async def waiting(one: RunningGateway) -> list[dict[str, Any]]:
            rows = (await one.admin("approvals")).json()["approvals"]
            return [row for row in rows if row["state"] == "waiting"]

        async with anyio.create_task_group() as group:
            group.start_soon(call, first)
            [row] = await until(lambda: waiting(second), WITHIN_S)
            decided = await second.admin(f"approvals/{row['id']}", "POST", {"decision": "allow", "for": "tool"})
            assert decided.status_code == 200
        assert results[0]["structuredContent"] == {"n": 1}

        async def granted(one: RunningGateway) -> bool:
            rows = (await one.admin("approvals")).json()["approvals"]
            return [row["state"] for row in rows] == ["allowed"]

        await soon(granted, cluster)
        for one in cluster.gateways:
            await call(one)
        assert len(up.recording.calls("echo")) == 4
        assert (await third.admin(f"approvals/{row['id']}", "POST", {"decision": "deny"})).status_code == 200

        async def forgotten(one: RunningGateway) -> bool:
            return (await one.admin("approvals")).json()["approvals"] == []

        await soon(forgotten, cluster)


async def test_host_answer_finds_its_approval_at_any_replica(tmp_path: Path) -> None:
    rules = {"policy": {"rules": [{"name": "ask", "wrappers": ["up__echo"], "ask": True}]}}
    capabilities = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    async with clustered(tmp_path, gateway=rules) as (cluster, _, up):
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        for begins, ends in ((0, 1), (1, 2), (2, 0)):
            params = {"name": "up__echo", "arguments": {"n": begins}, "_meta": capabilities}
            question = (await cluster.gateways[begins].rpc("tools/call", params))["result"]
            assert question["resultType"] == "input_required"
            reply = {name: {"action": "accept", "content": {"allow": "once"}} for name in question["inputRequests"]}
            retry = {**params, "inputResponses": reply, "requestState": question["requestState"]}
            answers: list[dict[str, Any]] = []

            async def come_back(one: RunningGateway, retry: Any = retry, answers: Any = answers) -> None:
                answers.append((await one.rpc("tools/call", retry))["result"])

            async with anyio.create_task_group() as group:
                for one in (cluster.gateways[ends], cluster.gateways[ends], cluster.gateways[begins]):
                    group.start_soon(come_back, one)
            # One answer is good for one call, wherever it is brought.
            assert sum("structuredContent" in one for one in answers) == 1
        assert len(up.recording.calls("echo")) == 3


async def test_missing_empty_slow_or_full_store_stops_nothing(tmp_path: Path) -> None:
    limits = {"quotas": {"default": {"callsPerMinute": 100_000}}}
    async with clustered(tmp_path, gateway=limits) as (cluster, store, _):
        first, second, _ = cluster.gateways
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        await first.admin("notes", "POST", {"wrapper": "up__echo", "text": "kept by everybody"})
        worst_s: list[float] = []
        ending = anyio.Event()

        async def keep_calling() -> None:
            number = 0
            while not ending.is_set():
                number += 1
                began_s = time.monotonic()
                assert (await cluster.any.call("up__echo", {"n": number}))["structuredContent"] == {"n": number}
                worst_s.append(time.monotonic() - began_s)
                await brief_pause()

        async def is_(one: RunningGateway, state: str) -> bool:
            row = await state_of(one)
            limited = row["limits"] == ("shared" if state == "up" else "each")
            return row["store"]["state"] == state and limited

        async def noted(one: RunningGateway, text: str) -> bool:
            return text in (await one.tools())["up__echo"]["description"]

        async with anyio.create_task_group() as group:
            group.start_soon(keep_calling)
            await soon(lambda one: noted(one, "kept by everybody"), cluster)
            # The store is down: this is reported, and changes are made in the meantime.
            await store.stop()
            await soon(lambda one: is_(one, "down"), cluster)
            await first.admin("notes", "POST", {"wrapper": "up__echo", "text": "written alone"})

            async def has_pending() -> bool:
                return (await state_of(first))["pendingChanges"] > 0

            await until(has_pending)
            assert "typegate_cluster_store_up 0" in (await first.client.get(f"{first.origin}/metrics")).text
            # The store is back but empty: every replica writes what it has.
            await store.start()
            await soon(lambda one: is_(one, "up"), cluster, within_s=10)
            await soon(lambda one: noted(one, "written alone"), cluster, within_s=10)
            assert await noted(second, "kept by everybody")
            # So slow that it is as good as none.
            assert await store.ask("CLIENT", "PAUSE", "4000", "ALL") == "+OK"
            await soon(lambda one: is_(one, "slow"), cluster, within_s=3)
            await soon(lambda one: is_(one, "up"), cluster, within_s=15)
            # The store is full: its content can be read, but nothing can be written.
            assert await store.ask("CONFIG", "SET", "maxmemory", "1") == "+OK"
            await soon(lambda one: is_(one, "full"), cluster, within_s=10)
            await second.admin("notes", "POST", {"wrapper": "up__echo", "text": "no room for this"})
            assert await store.ask("CONFIG", "SET", "maxmemory", "0") == "+OK"
            await soon(lambda one: is_(one, "up"), cluster, within_s=10)
            await soon(lambda one: noted(one, "no room for this"), cluster)
            ending.set()
        assert len(worst_s) > 10
        # Half a second is the timeout of the store. No call waits for the four seconds that the store hangs.
        assert statistics.median(worst_s) < 0.5
        assert max(worst_s) < 3.0
        assert "the shared store cannot be reached" in first.logged()
        assert "the shared store works again" in first.logged()
