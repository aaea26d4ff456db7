"""Variants of operator tasks: denying, reverting, and restricted rights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.browsers import expect
from support.desks import at_desk
from support.gateways import COMMANDS, brief_pause
from support.hands import HANDS
from support.upstreams.running import builtin_tools, demo_config, scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

ASK = {"policy": {"rules": [{"name": "transfers ask", "wrappers": ["bank__echo"], "ask": True}]}}


@pytest.mark.parametrize("how", HANDS)
async def test_call_is_denied_and_another_allowed_until_revoked(tmp_path: Path, how: str) -> None:
    bank, record = scripted_stdio_server(tmp_path, "bank", tools=builtin_tools("echo"))
    async with at_desk(tmp_path, how, {"bank": bank}, ASK) as desk, anyio.create_task_group() as group:
        await desk.gateway.until_listed("bank__echo")
        answers: list[dict[str, Any]] = []

        async def call(text: str) -> None:
            answers.append(await desk.gateway.call("bank__echo", {"message": text}))

        await desk.room("Changes")
        group.start_soon(call, "first")
        await desk.hand.press(desk.button("Deny: bank__echo for local"))
        await expect(desk.page.get_by_text("No call is waiting")).to_be_visible()
        with anyio.fail_after(20):
            while not answers:
                await brief_pause()
        assert answers[0]["isError"]
        assert record.calls() == []
        group.start_soon(call, "second")
        await desk.hand.press(desk.button("This tool from now on: bank__echo for local"))
        granted = desk.page.get_by_role("region", name="Standing approvals")
        await expect(granted).to_contain_text("bank__echo")
        await call("third")
        assert [one["arguments"]["message"] for one in record.calls()] == ["second", "third"]
        await desk.hand.press(desk.button("Revoke: bank__echo for local"))
        await expect(granted).to_have_count(0)
        group.start_soon(call, "fourth")
        # Every room shows the number of waiting decisions.
        await expect(desk.page.get_by_role("navigation", name="Rooms")).to_contain_text("1 waiting for a decision")
        await desk.hand.press(desk.button("Deny: bank__echo for local"))


@pytest.mark.parametrize("how", HANDS)
async def test_disabled_items_are_restored_in_settings(tmp_path: Path, how: str) -> None:
    async with at_desk(tmp_path, how, {"bank": demo_config("bank"), "calendar": demo_config("calendar")}) as desk:
        await desk.gateway.until_listed("bank__get_bank_balance", "calendar__send_email")
        await desk.gateway.admin("servers/calendar/disable", "POST", {})
        await desk.gateway.admin("wrappers/bank__get_bank_balance/disable", "POST", {})
        await desk.room("Settings")
        changed = desk.page.get_by_role("region", name="Changes on top of the configuration")
        await expect(changed).to_contain_text("Server disabled calendar")
        await expect(changed).to_contain_text("in use → disabled")
        await desk.hand.press(desk.button("Revert: Tool disabled bank__get_bank_balance"))
        await desk.gateway.until_listed("bank__get_bank_balance")
        await desk.hand.press(desk.button("Revert: Server disabled calendar"))
        await expect(changed).to_contain_text("Nothing was changed")
        await desk.gateway.until_listed("calendar__send_email")


async def test_uploaded_host_file_is_added_and_its_program_runs_if_allowed(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "local", tools=builtin_tools("echo"))
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"local": server, "odd name!": {"url": "no address"}}}))
    async with at_desk(tmp_path, "mouse", {}, COMMANDS) as desk:
        await desk.hand.press(desk.link("Add a server"))
        await desk.hand.press(desk.page.get_by_label("Host file", exact=True))
        await desk.page.get_by_label("File of a host").set_input_files(file)
        await expect(desk.page.get_by_label("Or paste its text", exact=True)).to_have_value(file.read_text())
        await desk.hand.press(desk.button("Preview"))
        shown = desk.page.get_by_role("region", name="What will run: 2 servers")
        await expect(shown).to_contain_text("Starts on the gateway's machine")
        # The defect of one server is shown next to it, and the other server can still be added.
        await expect(shown.locator(".problem")).to_have_count(1)
        await desk.hand.press(desk.button("Add local"))
        await expect(shown).to_contain_text("Added")
        await desk.gateway.until_listed("local__echo")


async def test_viewer_sees_every_room_and_no_forbidden_button(tmp_path: Path) -> None:
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
        assert refused == []
        await expect(desk.page.get_by_text("Signed in as wall (viewer)")).to_be_visible()
