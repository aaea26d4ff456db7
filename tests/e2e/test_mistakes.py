"""Mistakes of callers are collected for each tool without values, and corrected in the overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gateways import TOKEN, RunningGateway, running_gateway, serving
from support.upstreams.running import demo_config

KEY = {"authorization": "Bearer tg_" + "c" * 40}
SETTINGS: dict[str, Any] = {"auth": {"apiKeys": [{"name": "ci", "key": "tg_" + "c" * 40}]}}
BALANCE = "bank__get_bank_balance"
SECRET = "robins-own-iban-1234"


async def mistakes_of(gateway: RunningGateway, wrapper: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = (await gateway.admin("mistakes")).json()["tools"]
    [row] = [row for row in rows if row["wrapper"] == wrapper]
    return {(one["kind"], one["sent"], one["meant"]): one for one in row["mistakes"]}


@pytest.mark.heavy
async def test_mistakes_are_shown_without_values_and_an_administrator_documents_the_tool(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"bank": demo_config("bank")}, gateway=SETTINGS) as gateway:
        await gateway.until_listed(BALANCE, headers=KEY)
        for _ in range(2):
            assert (await gateway.call(BALANCE, {"iban": SECRET, "list": [1, {"a": None}]}, headers=KEY))["isError"]
        found = await mistakes_of(gateway, BALANCE)
        [(kind, text)] = [(kind, one["text"]) for (kind, _, _), one in found.items()]
        assert kind == "error_result"
        assert "was not provided" in text
        [one] = found.values()
        assert (one["calls"], one["callers"]) == (2, {"ci": 2})
        assert one["example"] == {"iban": "<text>", "list": ["<number>", {"a": "<null>"}]}

        path = f"wrappers/{BALANCE}/overrides"
        before = await gateway.admin(path)
        assert before.json() | {"overrides": {}, "file": {}, "changed": []} == before.json()
        arguments = [{"name": "account_id", "type": "string", "description": "The account", "required": True}]
        wrong = await gateway.admin(path, "POST", {"arguments": [{"name": "x", "type": "money"}]})
        assert (wrong.status_code, "money" in wrong.text) == (400, True)
        saved = await gateway.admin(path, "POST", {"name": "balance", "arguments": arguments})
        assert saved.json()["wrapper"] == "bank__balance", saved.text
        assert saved.json()["changed"] == ["name", "arguments"]
        assert (await gateway.admin(path)).status_code == 404

        refused = await gateway.call("bank__balance", {"account": SECRET}, headers=KEY)
        assert refused["isError"]
        assert (await gateway.call("bank__balance", {"account_id": "1"}, headers=KEY)).get("isError") is not True
        named = await mistakes_of(gateway, "bank__balance")
        assert ("missing", "", "account_id") in named or ("unknown", "account", "account_id") in named
        assert SECRET not in (await gateway.admin("mistakes")).text
        overlay = (await gateway.admin("overlay")).json()["changes"]
        [change] = [each for each in overlay if each["kind"] == "tool_set"]
        assert change["after"] == {"name": "balance", "arguments": arguments}

    async with serving(gateway.config, tmp_path) as again:
        tools = await again.until_listed("bank__balance", headers=KEY)
        assert tools["bank__balance"]["inputSchema"]["required"] == ["account_id"]
        path = "wrappers/bank__balance/overrides"
        headers = {"authorization": f"Bearer {TOKEN}", "if-match": '"of another time"'}
        stale = await again.client.post(f"{again.origin}/admin/{path}", json={"name": "other"}, headers=headers)
        assert stale.status_code == 412
        # The latest overrides replace the earlier ones.
        assert (await again.admin(path, "POST", {"name": "balance"})).json()["overrides"] == {"name": "balance"}
        assert (await again.admin(path, "DELETE")).json()["wrapper"] == BALANCE
        assert (await again.admin("overlay")).json()["changes"] == []
