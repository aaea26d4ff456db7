"""Replicas share one sign-in, which each of them uses and refreshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.clusters import running_cluster, running_store
from support.gateways import RunningGateway, brief_pause, text_of
from support.issuer import running_issuer
from support.protected import browse, protected_server

pytestmark = pytest.mark.heavy


async def until_state(gateway: RunningGateway, state: str, *, within_s: float = 25) -> None:
    row: dict[str, Any] = {}
    with anyio.move_on_after(within_s):
        while True:
            row = await gateway.server("shop")
            if row["state"] == state:
                return
            await brief_pause()
    raise AssertionError(f"not {state}: {row}")


async def test_refresh_token_is_used_once_by_all_replicas_and_never_without_the_store(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_cluster(tmp_path, {"shop": {"url": upstream.url}}, store={"url": store.url}) as cluster,
    ):
        first, *others = cluster.gateways
        for one in cluster.gateways:
            await until_state(one, "signInNeeded")
        begun = await first.admin("servers/shop/sign-in", "POST")
        assert begun.status_code == 200, begun.text
        # The browser comes back through whichever gateway: here the last one.
        page = await browse(begun.json()["url"], issuer)
        assert page.status_code == 200, page.text
        for one in cluster.gateways:
            await until_state(one, "ready")
        results: list[str] = []

        async def call(one: RunningGateway) -> None:
            results.append(text_of(await one.call("shop__whoami")))

        async def spent() -> list[bool]:
            report = await issuer.configure()
            return [one["ok"] for one in report["grants"] if one["grant_type"] == "refresh_token"]

        for round_ in range(1, 4):
            upstream.refused.update(upstream.seen)
            results.clear()
            async with anyio.create_task_group() as group:
                for number in range(51):
                    group.start_soon(call, cluster.gateways[number % 3])
            assert results == ["ann with mcp"] * 51
            assert await spent() == [True] * round_
        assert not (others[0].state_dir / "sign-ins").exists()
        await store.stop()
        await call(others[0])
        assert results[-1] == "ann with mcp"
        # Refused, and nothing to renew it with: the call fails with words, and no token is spent.
        upstream.refused.update(upstream.seen)
        failed = await others[0].call("shop__whoami")
        assert failed["isError"]
        assert await spent() == [True] * 3
        # The store comes back empty, and the replica with the latest token writes that token.
        await store.start()
        with anyio.fail_after(25):
            while (await others[0].call("shop__whoami")).get("isError"):
                await brief_pause()


async def test_calls_needing_a_token_do_not_wait_for_a_missing_store(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_cluster(tmp_path, {"shop": {"url": upstream.url}}, store={"url": store.url}, count=2) as cluster,
    ):
        first, second = cluster.gateways
        await until_state(first, "signInNeeded")
        begun = await first.admin("servers/shop/sign-in", "POST")
        assert (await browse(begun.json()["url"], issuer)).status_code == 200
        for one in cluster.gateways:
            await until_state(one, "ready")
        await store.stop()
        upstream.refused.update(upstream.seen)
        for one in (first, second):
            for _ in range(8):
                began_s = anyio.current_time()
                failed = await one.call("shop__whoami")
                assert failed["isError"]
                assert "the shared store is down" in text_of(failed)
                assert "try again" in text_of(failed)
                assert "operator" not in text_of(failed)
                assert anyio.current_time() - began_s < 1.5
        await anyio.sleep(12)
        lines = [line for line in first.logged().splitlines() if "shop" in line and "store" in line]
        assert len(lines) <= 5, lines
        lines = [line for line in first.logged().splitlines() if "not connected: again" in line]
        assert len(lines) <= 3, lines
        await store.start()
        with anyio.fail_after(25):
            while (await first.call("shop__whoami")).get("isError"):
                await brief_pause()


async def test_callback_during_a_store_outage_is_explained_with_a_working_link(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_cluster(tmp_path, {"shop": {"url": upstream.url}}, store={"url": store.url}, count=2) as cluster,
    ):
        first, second = cluster.gateways
        for one in cluster.gateways:
            await until_state(one, "signInNeeded")
        link = (await first.admin("servers/shop/sign-in", "POST")).json()["url"]
        assert (await first.admin("servers/shop/sign-in", "POST")).json()["url"] == link
        await store.stop()
        page = await browse(link, issuer)
        assert (page.status_code, "the shared store is down; load this page again" in page.text) == (400, True)
        refused = await second.admin("servers/shop/sign-in", "POST")
        assert (refused.status_code, refused.json()["error"]) == (409, "the shared store is down")
        # Back, without what it had.
        await store.start()
        again = (await first.admin("servers/shop/sign-in", "POST")).json()["url"]
        assert again != link
        page = await browse(again, issuer)
        assert page.status_code == 200, page.text
        for one in cluster.gateways:
            await until_state(one, "ready")
