"""Calls over time: one range for every plot, values by mouse and keyboard, and the calls behind a bar."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.browsers import expect
from support.desks import Desk, at_desk
from support.hands import Keyboard
from support.upstreams.running import demo_config

pytestmark = pytest.mark.heavy

# The mouse works at a gateway of two processes.
DESKS = [("mouse", 1440, 900, True, 2), ("keyboard", 390, 844, False, 1)]
# A range, the key that leads to it from the one before, and the number of its last period. The longest periods come
# last, because all calls of the test fall into one of them.
RANGES = [
    ("15 minutes", "ArrowLeft", "29"),
    ("7 days", "ArrowLeft", "83"),
    ("24 hours", "ArrowLeft", "95"),
    ("7 days", "ArrowRight", "83"),
]


async def check(desk: Desk, name: str) -> None:
    await desk.visit.check_layout(name)
    await desk.visit.keep_picture(name)


@pytest.mark.parametrize(("how", "width", "height", "dark", "workers"), DESKS)
async def test_history_is_read_by_range_and_leads_to_its_calls(
    tmp_path: Path, how: str, width: int, height: int, dark: bool, workers: int
) -> None:
    size = {"width": width, "height": height, "dark": dark, "workers": workers}
    servers = {"bank": demo_config("bank"), "calendar": demo_config("calendar")}
    async with at_desk(tmp_path, how, servers, **size) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance", "calendar__list_accounts")
        for _ in range(3):
            await desk.gateway.call("calendar__list_accounts", {})
        await desk.gateway.call("bank__get_bank_balance", {"iban": "x"})
        history = desk.page.get_by_role("region", name="Calls over time")
        # The page was not reloaded.
        await expect(history.get_by_role("row", name="calendar")).to_contain_text("3", timeout=60_000)
        await expect(history).to_contain_text("25.0 % of calls", timeout=60_000)
        await expect(desk.page.get_by_role("region", name="Servers")).to_contain_text("calls/min", timeout=60_000)
        calls = history.get_by_role("slider").first
        for name, key, last in RANGES:
            if isinstance(desk.hand, Keyboard):
                await desk.hand.reach(history.get_by_role("radio", checked=True))
                await desk.page.keyboard.press(key)
            else:
                await history.get_by_label(name, exact=True).check()
            await expect(calls).to_have_attribute("aria-valuemax", last, timeout=60_000)
        await check(desk, f"history-{width}")
        if isinstance(desk.hand, Keyboard):
            await desk.hand.reach(calls)
            await desk.page.keyboard.press("End")
            await expect(calls).to_have_attribute("aria-valuetext", re.compile(": 4 calls, 1 failed$"))
        box = await calls.bounding_box()
        assert box is not None
        if how == "mouse":
            await desk.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
        await expect(history.get_by_text("4 calls, 1 failed")).to_be_visible()
        await expect(history.get_by_text("1 failed", exact=False).last).to_be_visible()
        if how == "mouse":
            await desk.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 20)
        else:
            await desk.page.keyboard.press("Enter")
        await desk.page.get_by_role("heading", level=1, name="Activity").wait_for()
        await expect(desk.page.get_by_role("row").filter(has_text="calendar__list_accounts")).to_have_count(3)
        await desk.visit.go("overview")
        await expect(history.get_by_role("radio", checked=True)).to_have_value("7d")
        await desk.hand.choose(history.get_by_label("Figures of each"), "Tool")
        await desk.hand.press(history.get_by_role("link", name="bank__get_bank_balance"))
        await desk.page.get_by_role("heading", level=1, name="bank__get_bank_balance").wait_for()
        mine = desk.page.get_by_role("region", name="Calls of this tool")
        await expect(mine).to_contain_text("100.0 % of calls")
        await check(desk, f"history-tool-{width}")
        await desk.visit.go("servers")
        await expect(desk.page.get_by_role("row").filter(has_text="bank")).to_contain_text("1 (100.0 %)")
        await check(desk, f"history-servers-{width}")
        await desk.hand.press(desk.link("calendar", exact=True))
        await expect(desk.page.get_by_role("region", name="Calls over time")).to_contain_text("0.0 % of calls")
        await check(desk, f"history-server-{width}")
