"""An operator sees what models get wrong about a tool, documents its arguments, and renames it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsers import expect
from support.collector import collector
from support.desks import at_desk
from support.upstreams.running import demo_config

pytestmark = pytest.mark.heavy


DESKS = [("mouse", 1440, 900, True), ("keyboard", 390, 844, False)]


@pytest.mark.parametrize(("how", "width", "height", "dark"), DESKS)
async def test_tool_is_documented_from_the_mistakes_of_its_callers(
    tmp_path: Path, how: str, width: int, height: int, dark: bool
) -> None:
    size = {"width": width, "height": height, "dark": dark}
    async with at_desk(tmp_path, how, {"bank": demo_config("bank")}, **size) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance")
        await desk.visit.go("activity/mistakes")
        await expect(desk.page.get_by_text("No mistakes yet")).to_be_visible()
        for _ in range(3):
            await desk.gateway.call("bank__get_bank_balance", {"iban": "private-value"})
        await desk.hand.press(desk.button("Show them"))
        found = desk.page.get_by_role("region", name="What did the model get wrong?")
        await expect(found).to_contain_text("3 calls with mistakes")
        await expect(found).to_contain_text("was not provided")
        await desk.hand.press(found.get_by_text("Example and callers"))
        await expect(found).to_contain_text("iban")
        assert "private-value" not in await desk.page.content()
        await desk.visit.check_access()
        await desk.hand.press(desk.button("Document bank__get_bank_balance"))
        dialog = desk.page.get_by_role("dialog")
        await desk.hand.press(dialog.get_by_role("button", name="Add an argument"))
        await desk.hand.write(dialog.get_by_label("Argument", exact=True).last, "account_id")
        await desk.hand.write(dialog.get_by_label("Description", exact=True).last, "The number of the account")
        await desk.hand.press(dialog.get_by_label("Required"))
        await desk.visit.check_layout()
        await desk.hand.press(dialog.get_by_role("button", name="Save"))
        await expect(desk.page.get_by_text("bank__get_bank_balance is documented")).to_be_visible()
        schema = (await desk.gateway.tools())["bank__get_bank_balance"]["inputSchema"]
        assert schema["required"] == ["account_id"]
        await desk.hand.press(desk.button("Rename bank__get_bank_balance"))
        await desk.hand.write(dialog.get_by_label("Name of the tool"), "balance")
        await desk.page.keyboard.press("Enter")
        await expect(desk.page.get_by_text("bank__get_bank_balance is now bank__balance")).to_be_visible()
        assert "bank__balance" in await desk.gateway.tools()


TRACES = "https://tracing.example.test/trace/{traceId}?from=typegate"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(("how", "width", "height", "dark"), DESKS[1:])
async def test_calls_and_mistakes_lead_to_their_traces(
    tmp_path: Path, how: str, width: int, height: int, dark: bool
) -> None:
    size = {"width": width, "height": height, "dark": dark}
    with collector() as received:
        settings = {"telemetry": {"endpoint": received.url, "interval": 0.2, "traceUrl": TRACES}}
        async with at_desk(tmp_path, how, {"bank": demo_config("bank")}, settings, **size) as desk:
            await desk.gateway.until_listed("bank__get_bank_balance")
            parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
            await desk.gateway.call("bank__get_bank_balance", {"wrong": 1}, headers=parent)
            await desk.visit.go("activity?event=call")
            row = desk.page.get_by_role("table").get_by_role("row").filter(has_text="bank__get_bank_balance")
            await expect(row).to_have_count(1, timeout=60_000)
            await desk.hand.press(row.locator("summary").first)
            link = desk.page.get_by_role("link", name=f"Trace {TRACE} (opens another site)")
            await link.wait_for()
            assert await link.get_attribute("href") == TRACES.replace("{traceId}", TRACE)
            await desk.visit.check_access()
            await desk.visit.go("activity/mistakes")
            found = desk.page.get_by_role("region", name="What did the model get wrong?")
            await desk.hand.press(found.get_by_text("Example and callers").first)
            await found.get_by_role("link", name=f"Trace {TRACE}").first.wait_for()
            await desk.visit.check_access()
