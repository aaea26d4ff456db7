"""The history of calls has those of every worker, before and after a restart, and their refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gateways import running_gateway
from support.upstreams.running import demo_config
from support.worker_groups import each_worker, running_workers, until

pytestmark = pytest.mark.heavy

RULES = {"policy": {"rules": [{"name": "no mail", "wrappers": ["calendar__send_email"], "deny": True}]}}


async def figures(gateway: Any, query: str) -> Any:
    found = await gateway.admin(f"history?{query}")
    assert found.status_code == 200, found.text
    return found.json()


async def test_calls_of_all_workers_survive_a_restart(tmp_path: Path) -> None:
    servers = {name: {**demo_config(name), "copies": True} for name in ("bank", "calendar")}
    async with running_workers(tmp_path, servers, gateway=RULES) as gateway:
        await gateway.until_listed("bank__get_bank_balance", "calendar__list_accounts")
        async with each_worker(gateway) as workers:
            for worker in workers:
                await worker.call("bank__get_bank_balance", {"account_id": "1"})
                await worker.rpc("tools/call", {"name": "calendar__send_email", "arguments": {}})
                await worker.rpc("tools/call", {"name": "bank__nothing", "arguments": {}})

            async def complete() -> bool:
                total = (await figures(gateway, "range=15m"))["total"]
                return (total["calls"], total["denied"]) == (2, 4)

            await until(complete, within_s=60)
        for bad in ("range=2h", "by=profile", "tool=a&server=b"):
            assert (await gateway.admin(f"history?{bad}")).status_code == 400
    async with running_gateway(tmp_path, servers, gateway=RULES) as gateway:
        await gateway.until_listed("bank__get_bank_balance", "calendar__list_accounts")
        await gateway.call("bank__get_bank_balance", {"account_id": "1"})

        async def three() -> bool:
            return bool((await figures(gateway, "range=7d&tool=bank__get_bank_balance"))["total"]["calls"] == 3)

        await until(three, within_s=60)
        shown = await figures(gateway, "range=24h&by=server")
        assert [(row["name"], row["calls"], row["denied"]) for row in shown["series"]] == [
            ("bank", 3, 0),
            ("calendar", 0, 2),
        ]
        shown = await figures(gateway, "range=24h&by=caller")
        assert [row["name"] for row in shown["series"]] == ["local"]
