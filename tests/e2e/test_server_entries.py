"""Administrators edit the entry of a server without seeing its secrets, and cannot send them elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateways import TOKEN, running_gateway
from support.upstreams.running import builtin_tools, demo_config, scripted_http_server

SECRET = "k9f8e7d6c5b4a3928170"


@pytest.mark.heavy
async def test_an_edited_entry_keeps_hidden_values_only_for_the_same_address(tmp_path: Path) -> None:
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up:
        entry = {**up.config, "headers": {"X-Key": SECRET}}
        async with running_gateway(tmp_path, {"up": entry, "bank": demo_config("bank")}) as gateway:
            await gateway.until_listed("up__echo")
            await gateway.admin("wrappers/up__echo/disable", "POST", {})
            shown = (await gateway.admin("servers/up/entry")).json()["config"]
            assert shown["headers"] == {"X-Key": "(not shown)"}
            edited = await gateway.admin("servers/up/entry", "POST", {"config": {**shown, "callTimeout": 9}})
            assert edited.status_code == 200, edited.text
            # An earlier decision about a tool of the server stays.
            assert "up__echo" not in await gateway.tools()
            assert SECRET in next((tmp_path / "state" / "overlays").glob("*.json")).read_text()
            elsewhere = {"config": {**shown, "url": "http://127.0.0.1:9/mcp"}}
            refused = await gateway.admin("servers/up/entry", "POST", elsewhere)
            assert (refused.status_code, "has to be entered" in refused.text) == (400, True)
            sign_in = {"type": "oauth", "issuer": "http://127.0.0.1:9/issuer"}
            refused = await gateway.admin("servers/up/entry", "POST", {"config": {**shown, "auth": sign_in}})
            assert (refused.status_code, "has to be entered" in refused.text) == (400, True)
            headers = {"authorization": f"Bearer {TOKEN}", "if-match": '"of another time"'}
            path = f"{gateway.origin}/admin/servers/up/entry"
            stale = await gateway.client.post(path, json={"config": shown}, headers=headers)
            assert stale.status_code == 412

            bank = (await gateway.admin("servers/bank/entry")).json()["config"]
            other = await gateway.admin("servers/bank/entry", "POST", {"config": {**bank, "args": ["-c", "0"]}})
            assert (other.status_code, "allowCommands" in other.text) == (403, True)
            tagged = await gateway.admin("servers/bank/entry", "POST", {"config": {**bank, "tags": ["money"]}})
            assert (tagged.status_code, tagged.json()["tags"]) == (200, ["money"])
            assert (await gateway.admin("servers/none/restart", "POST", {})).status_code == 404
            assert (await gateway.admin("servers/none/log")).status_code == 404
            kinds = [each["kind"] for each in (await gateway.admin("overlay")).json()["changes"]]
            assert sorted(kinds) == ["server_added", "server_added", "tool_disabled"]
