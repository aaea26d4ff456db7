"""Every example in `deploy/examples` runs unchanged and does what its README says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateways import RunningGateway, serving, text_of
from support.upstreams.graphql_running import graphql_server
from support.visitors import MODERN, Visitor

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@asynccontextmanager
async def example(name: str, tmp_path: Path, **environment: str) -> AsyncIterator[RunningGateway]:
    """Serve a copy of an example: what a run leaves behind must not stand in the checkout."""
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    # The examples run `python`, so put the interpreter with typegate first in the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    async with serving(folder / "mcp.yaml", tmp_path, environment={"PATH": path, **environment}) as gateway:
        yield gateway


async def test_hook_example_blocks_other_accounts_and_marks_the_rest(tmp_path: Path) -> None:
    async with example("hook", tmp_path) as gateway:
        await gateway.until_listed("bank__get_bank_balance")
        refused = await gateway.call("bank__get_bank_balance", {"account_id": "3"})
        assert refused["isError"]
        assert "account 3 is not permitted" in text_of(refused)
        permitted = await gateway.call("bank__get_bank_balance", {"account_id": "1"})
        assert not permitted.get("isError")
        assert text_of(permitted).endswith("Permitted for local.")


async def test_graphql_example_lists_operations_without_the_mutation(tmp_path: Path) -> None:
    schema = (EXAMPLES / "graphql" / "schema.graphql").read_text()
    async with (
        graphql_server(tmp_path, sdl=schema, name="shop-server") as server,
        example("graphql", tmp_path, GRAPHQL_ENDPOINT=server.endpoint) as gateway,
    ):
        tools = await gateway.until_listed("shop__get_order", "shop__list_orders")
        assert set(tools) == {"shop__get_order", "shop__list_orders"}
        status = tools["shop__list_orders"]["inputSchema"]["properties"]["status"]
        assert status["description"] == "Only orders in this status"
        order = await gateway.call("shop__get_order", {"id": "7"})
        assert set(order["structuredContent"]["order"]) == {"id", "status", "total"}
        assert "isError" not in await gateway.call("shop__list_orders", {"status": "SHIPPED"})


@pytest.mark.heavy
async def test_hosts_example_serves_each_host_its_tools_at_its_own_path(tmp_path: Path) -> None:
    async with example("hosts", tmp_path) as gateway:
        await gateway.until_listed("calendar__list_accounts", "bank__get_bank_balance")
        visitor = Visitor(gateway=gateway, era=MODERN)
        desktop, cursor = await visitor.listed("claude-desktop"), await visitor.listed("cursor")
        assert {"calendar__list_accounts", "bank__get_bank_balance"} <= set(desktop)
        assert "calendar__list_accounts" in cursor
        assert not any(name.startswith("bank__") for name in cursor)
        assert "Times are in the time zone" in cursor["calendar__list_accounts"]["description"]
        for profile in ("claude-desktop", "cursor"):
            assert not (await visitor.called("calendar__list_accounts", {}, profile)).get("isError")


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {"hook", "graphql", "hosts"}
