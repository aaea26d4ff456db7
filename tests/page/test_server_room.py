"""The room of a server: what runs, its log as it is printed, a restart, and its entry edited in the overlay."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.browsers import expect
from support.desks import at_desk
from support.upstreams.api_running import api_service, operation, parameter, pet_shop

pytestmark = pytest.mark.heavy

SECRET = "k9f8e7d6c5b4a3928170"
PROGRAM = """
import os, sys
print("bank ready,", os.getpid(), file=sys.stderr, flush=True)
from gateway.demo.bank import run, server
run(server())
"""
DESKS = [("mouse", 1440, 900, True), ("keyboard", 390, 844, False)]


@pytest.mark.parametrize(("how", "width", "height", "dark"), DESKS)
async def test_a_server_is_watched_restarted_and_edited(
    tmp_path: Path, how: str, width: int, height: int, dark: bool
) -> None:
    (tmp_path / "bank.py").write_text(PROGRAM)
    entry = {"command": sys.executable, "args": [str(tmp_path / "bank.py")]}
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "BANK_KEY": SECRET}
    size = {"width": width, "height": height, "dark": dark}
    async with at_desk(tmp_path, how, {"bank": {**entry, "env": env}}, **size) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance")
        await desk.visit.go("servers/bank")
        runs = desk.page.get_by_role("region", name="What runs")
        await expect(runs).to_contain_text("bank.py")
        await expect(runs).to_contain_text("BANK_KEY")
        await expect(runs).to_contain_text("1 process running")
        await expect(desk.page.get_by_role("region", name="State")).to_contain_text("for ")
        log = desk.page.get_by_role("region", name="Standard error", exact=True)
        await expect(log).to_contain_text("bank ready")
        await desk.visit.check_access()
        before = (await desk.gateway.admin("servers/bank/log")).json()["processes"][0]
        await desk.hand.press(desk.button("Restart"))
        # Both processes have printed a line; the list shows the later one without a reload of the page.
        await expect(log.get_by_text("bank ready")).to_have_count(2, timeout=60_000)
        after = (await desk.gateway.admin("servers/bank/log")).json()["processes"][0]
        assert after["pid"] != before["pid"]
        await expect(desk.page.get_by_role("region", name="State")).to_contain_text("Ready", timeout=60_000)
        await desk.hand.press(desk.button("Edit bank"))
        text = desk.page.get_by_label("Configuration")
        shown = await text.input_value()
        assert "(not shown)" in shown
        assert SECRET not in shown
        await desk.hand.write(text, "{")
        await desk.hand.press(desk.button("Save"))
        await expect(desk.page.get_by_role("alert")).to_contain_text("This is not JSON")
        await desk.visit.check_access()
        await text.fill(shown.replace('"env"', '"callTimeout": 7,\n  "env"'))
        await desk.hand.press(desk.button("Save"))
        await expect(desk.page.get_by_text("bank is changed")).to_be_visible()
        stored = (await desk.gateway.admin("servers/bank/entry")).json()["config"]
        assert (stored["callTimeout"], stored["env"]["BANK_KEY"]) == (7, "(not shown)")
        overlay = next((tmp_path / "state" / "overlays").glob("*.json")).read_text()
        assert SECRET in overlay
        assert "bank__get_bank_balance" in await desk.gateway.tools()
        wide = await desk.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


async def test_an_openapi_server_is_shown_with_its_tools_and_what_it_lacks(tmp_path: Path) -> None:
    document = pet_shop()
    document["paths"]["/bad"] = {"get": operation("bad", {"$ref": "#/components/parameters/None"})}
    async with api_service(tmp_path, document) as service:
        servers = {"shop": service.entry(headers={"X-Api-Key": SECRET}, results={"select": True})}
        async with at_desk(tmp_path, "mouse", servers) as desk:
            await desk.gateway.until_listed("shop__getPet")
            await desk.visit.go("servers/shop")
            runs = desk.page.get_by_role("region", name="What runs")
            await expect(runs).to_contain_text(service.origin, timeout=60_000)
            await expect(runs).to_contain_text("X-Api-Key")
            details = desk.page.get_by_role("region", name="Details")
            await expect(details).to_contain_text("openapi")
            await expect(details).to_contain_text("Pet shop 1.2")
            lacking = desk.page.get_by_role("region", name="Quarantined or repaired")
            await expect(lacking).to_contain_text(
                "openapi.json#/paths/~1bad/get/parameters/0: refers to a missing value"
            )
            await desk.visit.check_access()
            assert SECRET not in await desk.page.content()
            await desk.hand.press(
                desk.page.get_by_role("region", name="Tools").get_by_role("link", name="shop__getPet")
            )
            await desk.hand.write(desk.page.get_by_label("id"), "2")
            await desk.hand.press(desk.button("Run it"))
            result = desk.page.get_by_role("region", name="Result")
            await expect(result).to_contain_text("Answered", timeout=60_000)
            await expect(result).to_contain_text("Rex")
            await desk.gateway.call("shop__getPet", {"id": 2, "_select": "nothing"})
            await desk.visit.go("activity/results")
            row = desk.page.get_by_role("row").filter(has_text="shop__getPet")
            await expect(row).to_contain_text("local", timeout=60_000)
            await expect(row).to_contain_text(re.compile("bytes|KiB"))
            await desk.visit.check_access()
            # An operation that the document gains is shown without a reload of the page.
            document["paths"]["/pets/{id}/age"] = {"get": operation("getAge", parameter("id", "path", "integer"))}
            service.write(document)
            await desk.visit.go("servers/shop")
            await expect(desk.link("shop__getAge")).to_be_visible(timeout=60_000)
