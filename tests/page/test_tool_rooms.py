"""Tools, activity and access on a gateway with several callers: search, bulk changes, filters, and explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.browsers import expect
from support.desks import Desk, at_desk
from support.upstreams.running import demo_config, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

KEYS = {"ci": "tg_" + "c" * 40, "ann": "tg_" + "a" * 40}
SETTINGS: dict[str, Any] = {
    "auth": {"apiKeys": [{"name": name, "key": key} for name, key in KEYS.items()]},
    "policy": {
        "rules": [
            {"name": "no balances", "principals": ["ci"], "deny": ["bank__get_*"]},
            {"name": "interns ask", "groups": ["interns"], "wrappers": ["bank__*"], "ask": True},
        ]
    },
}
# The mouse works at a gateway of two processes.
DESKS = [("mouse", 1440, 900, True, 2), ("keyboard", 390, 844, False, 1)]
WAIT_MS = 60_000


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


async def choose(desk: Desk, label: str, value: str) -> None:
    await desk.page.get_by_label(label, exact=True).select_option(value)


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), DESKS)
async def test_tools_activity_and_access_lead_from_a_refused_call_to_its_reason(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    readable = {
        **tool("read", path="string"),
        "description": "Opens an archive.",
        "annotations": {"readOnlyHint": True},
    }
    fs, _ = scripted_stdio_server(tmp_path, "fs", tools=[readable, tool("write", path="string")])
    size = {"width": width, "height": height, "dark": dark, "workers": workers}
    async with at_desk(tmp_path, how, {"bank": demo_config("bank"), "fs": fs}, SETTINGS, **size) as desk:
        gateway, page, hand = desk.gateway, desk.page, desk.hand
        await gateway.until_listed("bank__get_bank_balance", "fs__read", headers=headers("ann"))
        for _ in range(2):
            await gateway.call("fs__read", {"path": "x"}, headers=headers("ann"))
        await gateway.call("bank__get_bank_balance", {"wrong": 1}, headers=headers("ann"))
        await gateway.rpc("tools/call", {"name": "bank__get_bank_balance", "arguments": {}}, headers=headers("ci"))

        await tools_room(desk)

        await desk.visit.go("activity")
        rows = page.get_by_role("table").get_by_role("row")
        await expect(page.get_by_text("bank__get_bank_balance").first).to_be_visible(timeout=WAIT_MS)
        await choose(desk, "Outcome", "refused")
        await expect(rows.filter(has_text="fs__read")).to_have_count(0, timeout=WAIT_MS)
        await expect(rows.filter(has_text="bank__get_bank_balance")).to_have_count(1, timeout=WAIT_MS)
        await choose(desk, "Server", "fs")
        await expect(rows.filter(has_text="bank__get_bank_balance")).to_have_count(0, timeout=WAIT_MS)
        await hand.press(desk.button("Clear filters"))
        await choose(desk, "Outcome", "refused")
        refused = rows.filter(has_text="bank__get_bank_balance").filter(has_text="ci")
        await expect(refused).to_have_count(1, timeout=WAIT_MS)
        await desk.visit.check_layout()
        await hand.press(refused.locator("summary").first)
        await hand.press(desk.link("Explain why ci may not use bank__get_bank_balance"))

        explained = page.get_by_role("region", name="Explain a decision")
        await expect(explained).to_contain_text("no balances", timeout=WAIT_MS)
        await expect(explained).to_contain_text("Every condition is met")
        await expect(explained).to_contain_text("Not met: a group of the caller is not interns")
        found = page.get_by_role("region", name="Rules", exact=True)
        await expect(found).to_contain_text("callers ci", timeout=WAIT_MS)
        await expect(found).to_contain_text("names bank__get_*")
        grid = page.get_by_role("region", name="Who may use what")
        await expect(desk.link("Denied: ci, bank__get_bank_balance")).to_be_visible(timeout=WAIT_MS)
        await expect(desk.link("Allowed: ann, fs__read")).to_be_visible()
        await desk.visit.check_layout()
        await hand.write(grid.get_by_label("Callers", exact=True), "somebody")
        await page.keyboard.press("Tab")
        await hand.press(desk.link("Allowed: somebody, fs__read"))
        await expect(explained).to_contain_text("somebody and fs__read", timeout=WAIT_MS)


async def tools_room(desk: Desk) -> None:
    page, hand = desk.page, desk.hand
    await desk.visit.go("tools")
    row = page.get_by_role("row").filter(has_text="fs__read")
    await expect(row).to_contain_text("Opens an archive.", timeout=WAIT_MS)
    await expect(row).to_contain_text("read-only")
    await expect(row).to_contain_text("2 calls", timeout=WAIT_MS)
    failed = page.get_by_role("row").filter(has_text="bank__get_bank_balance")
    await expect(failed).to_contain_text("1 call, 1 failed")
    await expect(failed).to_contain_text("was not provided")
    await hand.write(page.get_by_label("Filter", exact=True), "archive")
    await expect(page.get_by_text("1 of ")).to_be_visible()
    await hand.write(page.get_by_label("Filter", exact=True), " ")
    await hand.press(page.get_by_label("Group by server"))
    await expect(page.get_by_role("rowheader", name="fs 2", exact=True)).to_be_visible()
    await desk.visit.check_layout()
    await hand.press(page.get_by_label("Select fs__read"))
    await hand.press(page.get_by_label("Select fs__write"))
    await expect(page.get_by_text("2 selected")).to_be_visible()
    await hand.press(desk.button("Disable selected"))
    undo = desk.button("Undo: enable 2 tools")
    await undo.wait_for()
    listed = await desk.gateway.tools(headers=headers("ann"))
    assert not [name for name in listed if name.startswith("fs__")]
    await desk.visit.check_layout()
    await hand.press(undo)
    await undo.wait_for(state="detached")
    await desk.gateway.until_listed("fs__read", "fs__write", headers=headers("ann"))
    await hand.press(desk.button("Disable fs__write"))
    await hand.press(desk.button("Undo: enable fs__write"))
    await desk.gateway.until_listed("fs__write", headers=headers("ann"))
