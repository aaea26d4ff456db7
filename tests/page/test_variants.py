"""Other ways through the tasks of an operator: no instead of yes, back again, and with less than every right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import expect
from support.desks import at_desk
from support.gateways import COMMANDS, glance_again
from support.hands import HANDS
from support.upstreams.running import builtin_tools, demo_config, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

ASK = {"policy": {"rules": [{"name": "transfers ask", "wrappers": ["bank__echo"], "ask": True}]}}


@pytest.mark.parametrize("how", HANDS)
async def test_a_call_is_denied_and_another_allowed_until_that_is_taken_back(tmp_path: Path, how: str) -> None:
    bank, record = scripted_stdio_server(tmp_path, "bank", tools=builtin_tools("echo"))
    async with at_desk(tmp_path, how, {"bank": bank}, ASK) as desk, anyio.create_task_group() as group:
        await desk.gateway.until_listed("bank__echo")
        answers: list[dict[str, Any]] = []

        async def call(text: str) -> None:
            answers.append(await desk.gateway.call("bank__echo", {"message": text}))

        await desk.room("Changes")
        group.start_soon(call, "first")
        await desk.hand.press(desk.button("Deny: bank__echo for local"))
        await expect(desk.page.get_by_text("No call waits")).to_be_visible()
        with anyio.fail_after(20):
            while not answers:
                await glance_again()
        assert answers[0]["isError"]
        assert record.calls() == []
        group.start_soon(call, "second")
        await desk.hand.press(desk.button("This tool from now on: bank__echo for local"))
        granted = desk.page.get_by_role("region", name="Allowed for longer than once")
        await expect(granted).to_contain_text("bank__echo")
        await call("third")
        assert [one["arguments"]["message"] for one in record.calls()] == ["second", "third"]
        await desk.hand.press(desk.button("Take back: bank__echo for local"))
        await expect(granted).to_have_count(0)
        group.start_soon(call, "fourth")
        # How many wait is seen from every room.
        await expect(desk.page.get_by_role("navigation", name="Rooms")).to_contain_text("1 waiting for a decision")
        await desk.hand.press(desk.button("Deny: bank__echo for local"))


@pytest.mark.parametrize("how", HANDS)
async def test_what_was_disabled_is_taken_back_under_settings(tmp_path: Path, how: str) -> None:
    async with at_desk(tmp_path, how, {"bank": demo_config("bank"), "calendar": demo_config("calendar")}) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance", "calendar__send_email")
        await desk.gateway.admin("servers/calendar/disable", "POST", {})
        await desk.gateway.admin("wrappers/bank__get_bank_balance/disable", "POST", {})
        await desk.room("Settings")
        changed = desk.page.get_by_role("region", name="Changed here, over the configuration")
        await expect(changed).to_contain_text("Server disabled calendar")
        await expect(changed).to_contain_text("in use → disabled")
        await desk.hand.press(desk.button("Revert: Tool disabled bank__get_bank_balance"))
        await desk.gateway.until_listed("bank__get_bank_balance")
        await desk.hand.press(desk.button("Revert: Server disabled calendar"))
        await expect(changed).to_contain_text("Nothing was changed")
        await desk.gateway.until_listed("calendar__send_email")


async def test_a_file_is_handed_over_and_its_program_runs_where_that_is_allowed(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "local", tools=builtin_tools("echo"))
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"local": server, "odd name!": {"url": "no address"}}}))
    async with at_desk(tmp_path, "mouse", {}, COMMANDS) as desk:
        await desk.hand.press(desk.link("Add a server"))
        await desk.hand.press(desk.page.get_by_label("A file or its text"))
        await desk.page.get_by_label("The file of a host").set_input_files(file)
        await expect(desk.page.get_by_label("Or its text", exact=True)).to_have_value(file.read_text())
        await desk.hand.press(desk.button("Preview"))
        shown = desk.page.get_by_role("region", name="What will run: 2 servers")
        await expect(shown).to_contain_text("Starts on the gateway's machine")
        # What is wrong with one of them stands beside it, and keeps nobody from adding the other.
        await expect(shown.locator(".problem")).to_have_count(1)
        await desk.hand.press(desk.button("Add local"))
        await expect(shown).to_contain_text("Added")
        await desk.gateway.until_listed("local__echo")


async def test_a_hosts_file_that_somebody_has_changed_since_loses_our_entry_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "home" / ".gemini" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"theme": "dark"}')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    async with at_desk(tmp_path, "mouse", {}) as desk:
        await desk.room("Connect a host")
        await desk.hand.choose(desk.page.get_by_label("Host", exact=True), "Gemini CLI")
        await desk.hand.press(desk.button("Show what would change"))
        await desk.button("Write it").wait_for()
        file.write_text('{"theme": "light"}')
        await desk.hand.press(desk.button("Write it"))
        await expect(desk.page.get_by_text("is not what was looked at")).to_be_visible()
        assert file.read_text() == '{"theme": "light"}'
        await desk.hand.press(desk.button("Show what would change"))
        await expect(desk.page.get_by_label(f"Difference of {file}")).to_contain_text("light")
        await desk.hand.press(desk.button("Write it"))
        await desk.button("Restore the file as it was").wait_for()
        assert json.loads(file.read_text())["mcpServers"] == {"typegate": {"httpUrl": desk.gateway.url}}
        file.write_text(file.read_text().replace("light", "dark"))
        await desk.page.reload()
        await desk.visit.settle()
        await desk.hand.choose(desk.page.get_by_label("Host", exact=True), "Gemini CLI")
        await desk.hand.press(desk.button("Take our entry out"))
        await desk.button("Show what would change").wait_for()
        assert json.loads(file.read_text()) == {"theme": "dark", "mcpServers": {}}


async def test_whoever_may_only_look_sees_every_room_and_no_button_that_would_be_refused(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"viewer-token").hexdigest()
    settings = {
        "admin": {"tokens": [{"name": "wall", "tokenHash": f"sha256:{hashed}", "role": "viewer"}]},
        "auth": {"apiKeys": [{"name": "ci", "key": "tg_" + "c" * 40}]},
    }
    up, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("read")])
    async with at_desk(tmp_path, "mouse", {"up": up}, settings, token="viewer-token") as desk:
        refused: list[str] = []
        desk.page.on("response", lambda one: refused.append(one.url) if one.status in (401, 403) else None)
        for room in ("overview", "servers", "servers/up", "tools", "changes", "activity", "access", "settings"):
            await desk.visit.go(room)
            for name in ("Add a server", "Disable", "Remove", "Revoke", "Issue a key", "Revert", "Try"):
                assert await desk.button(name).count() == 0, (room, name)
        await desk.visit.go("connect")
        await expect(desk.page.get_by_role("region", name="Or have it written")).to_have_count(0)
        assert refused == []
        await expect(desk.page.get_by_text("Signed in as wall (viewer)")).to_be_visible()
