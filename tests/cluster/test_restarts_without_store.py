"""Replicas that start during an outage of the store learn from their files and from each other."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import httpx2
import pytest
from support.callers import hello
from support.clusters import Cluster, running_cluster, running_store, start_again
from support.gateways import RunningGateway
from support.upstreams.running import scripted_http_server, tool
from support.worker_groups import until

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
KEYS = {"auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]}}


async def opens(one: RunningGateway, key: str) -> int:
    return (await one.post(hello(), {"authorization": f"Bearer {key}"})).status_code


async def holds(one: RunningGateway, kinds: list[str]) -> bool:
    rows = (await one.admin("overlay")).json()["changes"]
    return sorted(row["kind"] for row in rows) == sorted(kinds)


async def crash(cluster: Cluster, index: int) -> None:
    process = cluster.gateways[index].process
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def start(cluster: Cluster, index: int, stack: AsyncExitStack) -> RunningGateway:
    again = await stack.enter_async_context(start_again(cluster.gateways[index].config.parent))
    cluster.gateways[index] = again
    return again


async def test_replica_restarted_during_a_store_outage_knows_the_changes(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_cluster(tmp_path, {"up": up.config}, store={"url": store.url}, gateway=KEYS) as cluster,
        AsyncExitStack() as stack,
    ):
        first, second, _ = cluster.gateways
        await until(lambda: _is_listed(first))
        assert (await first.admin("wrappers/up__echo/disable", "POST", {})).status_code == 200
        await until(lambda: holds(second, ["tool_disabled"]))
        await crash(cluster, 1)
        # While one replica is down, another reverts a change and revokes a key; no other replica reads its file.
        assert (await first.admin("overlay", "DELETE")).status_code == 200
        assert (await first.admin("keys/ada", "DELETE")).status_code == 200
        await store.stop()
        again = await start(cluster, 1, stack)
        assert await opens(again, "k-ada") == 401
        assert await opens(again, "k-bob") == 200
        assert await holds(again, [])
        # All replicas crash, and the one that has learned the change from another starts alone.
        for index in range(3):
            await crash(cluster, index)
        alone = await start(cluster, 1, stack)
        assert await opens(alone, "k-ada") == 401
        assert await opens(alone, "k-bob") == 200
        # The store is back, empty, and so are the others: nothing has come back.
        await store.start()
        for index in (0, 2):
            one = await start(cluster, index, stack)
            await until(lambda one=one: _is_up(one))
            assert await opens(one, "k-ada") == 401
            assert await opens(one, "k-bob") == 200
            assert await holds(one, [])
        assert await holds(alone, [])


async def test_replica_that_cannot_know_revocations_accepts_no_key_and_reports_it(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store, scripted_http_server(tmp_path, "up", tools=[ECHO]) as up:
        await store.stop()
        async with running_cluster(
            tmp_path, {"up": up.config}, count=2, store={"url": store.url}, gateway=KEYS
        ) as cluster:
            for one in cluster.gateways:
                refused = await one.post(hello(), {"authorization": "Bearer k-ada"})
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "2"
                assert "which keys were revoked" in refused.text
                assert await opens(one, "k-nobody") == 401
                async with httpx2.AsyncClient(timeout=30) as client:
                    ready = await client.get(f"{one.origin}/readyz")
                assert (ready.status_code, ready.text) == (503, "waiting for the shared store\n")
            await store.start()
            with anyio.fail_after(25):
                for one in cluster.gateways:
                    await until(lambda one=one: _accepts(one))


async def _accepts(one: RunningGateway) -> bool:
    return await opens(one, "k-ada") == 200


async def _is_listed(one: RunningGateway) -> bool:
    rows = (await one.admin("wrappers")).json()["wrappers"]
    return bool(rows)


async def _is_up(one: RunningGateway) -> bool:
    row = (await one.admin("cluster")).json()
    return row["store"]["state"] == "up" and not row["pendingChanges"]
