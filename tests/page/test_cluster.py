"""Admin pages of replicas: a change at one shows at the other, and a lost store is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsers import expect, running_browser, visiting
from support.clusters import running_cluster, running_store
from support.gateways import RunningGateway
from support.upstreams.running import builtin_tools, scripted_http_server
from support.worker_groups import until

pytestmark = pytest.mark.heavy


async def test_page_shows_a_change_at_another_replica_and_a_lost_store(
    tmp_path: Path,
) -> None:
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_cluster(tmp_path, {"up": up.config}, count=2, store={"url": store.url}) as cluster,
        running_browser() as browser,
    ):
        first, second = cluster.gateways
        await until(lambda: knows_all(second))
        async with visiting(browser, second) as visit:
            await visit.go("servers")
            row = visit.page.get_by_role("row").filter(has_text="up")
            await expect(row).to_contain_text("Ready")
            assert (await first.admin("servers/up/disable", "POST", {})).status_code == 200
            await expect(row).to_contain_text("Disabled")
            await visit.go("settings")
            shown = visit.page.get_by_role("region", name="Cluster")
            await expect(shown).to_contain_text("The shared store is up")
            await expect(shown).to_contain_text("shared by all replicas")
            await visit.check_access()
            await store.stop()
            await until(lambda: lost(second))
            await visit.go("overview")
            found = visit.page.get_by_role("region", name="Needs attention")
            await expect(found).to_contain_text("The shared store is down")
            visit.check_quiet()


async def knows_all(gateway: RunningGateway) -> bool:
    row = (await gateway.admin("cluster")).json()
    return row["store"]["state"] == "up" and row["replicas"] == 2


async def lost(gateway: RunningGateway) -> bool:
    row = (await gateway.admin("cluster")).json()
    return row["store"]["state"] == "down"
