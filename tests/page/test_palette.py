"""Moving through the page without a mouse: the command palette, the filter key, and where the focus stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsers import expect
from support.desks import at_desk
from support.upstreams.running import demo_config

pytestmark = pytest.mark.heavy

SIZES = [(390, 844, False), (1440, 900, True)]


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
async def test_palette_leads_everywhere_and_slash_to_the_filter(
    tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    options = {"width": width, "height": height, "dark": dark}
    async with at_desk(tmp_path, "keyboard", {"bank": demo_config("bank")}, **options) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance")
        page, keys = desk.page, desk.page.keyboard
        # This room has no filter.
        await keys.press("/")
        box = page.get_by_role("combobox", name="Go to a room, server, tool or action")
        await expect(box).to_be_focused()
        await expect(page.get_by_role("option", name="Overview")).to_be_visible()
        await desk.visit.check_access()
        await keys.type("balance")
        await expect(page.get_by_role("listbox", name="Commands").get_by_role("option")).to_have_count(1)
        await keys.press("Enter")
        await page.get_by_role("heading", level=1, name="Try it").wait_for()
        await expect(page.get_by_role("combobox", name="Tool")).to_have_value("bank__get_bank_balance")
        await keys.press("Control+k")
        await keys.type("nothing of this kind")
        await expect(page.get_by_role("dialog")).to_contain_text("Nothing matches")
        await keys.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await keys.press("Control+k")
        await keys.type("bank")
        await keys.press("ArrowDown")
        await expect(page.locator("[role=option][aria-selected=true]")).to_contain_text("Tool")
        await keys.press("ArrowUp")
        await keys.press("Enter")
        await page.get_by_role("heading", level=1, name="bank").wait_for()
        await desk.visit.go("tools")
        await keys.press("/")
        await expect(page.get_by_role("searchbox", name="Filter")).to_be_focused()
        # A slash that is typed into a field remains a slash.
        await keys.type("a/b")
        await expect(page.get_by_role("searchbox", name="Filter")).to_have_value("a/b")
        await page.get_by_role("button", name="Go to…").click()
        await page.get_by_role("option", name="Settings").click()
        await page.get_by_role("heading", level=1, name="Settings").wait_for()


async def test_focus_moves_to_the_next_row_when_a_row_disappears(tmp_path: Path) -> None:
    servers = {"bank": demo_config("bank"), "calendar": demo_config("calendar")}
    async with at_desk(tmp_path, "keyboard", servers) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance", "calendar__send_email")
        await desk.room("Tools")
        await desk.hand.press(desk.button("Disable bank__get_bank_balance"))
        await expect(desk.button("Enable bank__get_bank_balance")).to_be_visible()
        focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.tagName"
        assert "calendar__" in await desk.page.evaluate(focused)
        await desk.hand.press(desk.button("Enable bank__get_bank_balance"))
        await expect(desk.button("Enable bank__get_bank_balance")).to_have_count(0)
        assert await desk.page.evaluate("document.activeElement !== document.body")
