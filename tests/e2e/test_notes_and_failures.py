"""Operator notes and recurring failures, over a real connection (rows R26, R27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import call_of
from support.gateways import META, MODERN, RunningGateway, brief_pause, running_gateway
from support.upstreams.running import rescript, scripted_stdio_server, tool

SEND = tool("send", "to", "subject", to={"type": "string"}, subject={"type": "string"})


async def note(gateway: RunningGateway, text: str, **members: Any) -> str:
    answer = await gateway.admin("notes", "POST", {"wrapper": "up__send", "text": text, **members})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def until_described(gateway: RunningGateway, description: str) -> None:
    with anyio.fail_after(20):
        while (await gateway.tools())["up__send"]["description"] != description:
            await brief_pause()


@pytest.mark.heavy
async def test_note_is_shown_until_the_tool_changes_and_survives_a_restart(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "up", tools=[SEND], list_changed=True)
    state = ("--state-dir", str(tmp_path / "kept"))
    async with running_gateway(tmp_path, {"up": config}, arguments=state) as gateway:
        plain = (await gateway.until_listed("up__send"))["up__send"]
        await note(gateway, "Only on weekdays.")
        await until_described(gateway, "Does send.\n\nOnly on weekdays.")
        noted = (await gateway.tools())["up__send"]
        assert {**noted, "description": plain["description"]} == plain
        assert await gateway.stop() == 0
    (again := tmp_path / "again").mkdir()
    async with running_gateway(again, {"up": config}, arguments=state) as gateway:
        await gateway.until_listed("up__send")
        await until_described(gateway, "Does send.\n\nOnly on weekdays.")
        with anyio.fail_after(25):
            # The list came from the snapshot: the server itself may only be starting.
            while (await gateway.server("up"))["state"] != "ready":
                await brief_pause()
        changed = {**SEND, "description": "Sends."}
        rescript(config, record, announce=True, tools=[changed], list_changed=True)
        await until_described(gateway, "Sends.")
        with anyio.fail_after(20):
            while (await gateway.admin("notes")).json()["notes"]:
                await brief_pause()
        # It does not come back with the old definition either.
        rescript(config, record, announce=True, tools=[SEND], list_changed=True)
        await until_described(gateway, "Does send.")


async def test_note_expires(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[SEND])
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__send")
        await note(gateway, "For a moment.", seconds=0.5)
        await note(gateway, "For long.", seconds=3600)
        await until_described(gateway, "Does send.\n\nFor long.")


async def test_note_about_a_failure_ends_with_the_next_success(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[SEND])
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__send")
        await note(gateway, "The mail server is down.", failure=True)
        await note(gateway, "Be polite.")
        await until_described(gateway, "Does send.\n\nThe mail server is down.\n\nBe polite.")
        assert (await gateway.call("up__send", {}))["isError"]
        await until_described(gateway, "Does send.\n\nThe mail server is down.\n\nBe polite.")
        assert not (await gateway.call("up__send", {"to": "a", "subject": "b"})).get("isError")
        await until_described(gateway, "Does send.\n\nBe polite.")


async def test_note_can_be_removed_and_an_invalid_one_is_refused(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[SEND])
    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__send")
        known = await note(gateway, "Be polite.\u202e\x1b[31m")
        await until_described(gateway, "Does send.\n\nBe polite.")
        assert (await gateway.admin(f"notes/{known}", "DELETE")).status_code == 200
        await until_described(gateway, "Does send.")
        assert (await gateway.admin(f"notes/{known}", "DELETE")).status_code == 404
        for body, status in (
            ({"wrapper": "up__nothing", "text": "x"}, 404),
            ({"wrapper": "up__send", "text": ""}, 400),
            ({"wrapper": "up__send", "text": "x" * 1_001}, 400),
            ({"wrapper": "up__send", "text": "x", "seconds": -1}, 400),
            ({"wrapper": "up__send", "text": "x", "fail": True}, 400),
            ([], 400),
        ):
            assert (await gateway.admin("notes", "POST", body)).status_code == status, body
        assert (await gateway.admin("notes", token=None)).status_code == 401


async def test_three_failures_of_one_kind_from_two_sessions_are_flagged_once(tmp_path: Path) -> None:
    keys = [{"name": name, "key": f"key-of-{name}"} for name in ("ann", "bob")]
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[SEND])
    first, second = ({"authorization": f"Bearer key-of-{name}"} for name in ("ann", "bob"))

    async def failures(gateway: RunningGateway) -> dict[str, dict[str, Any]]:
        rows = (await gateway.admin("failures")).json()["failures"]
        return {row["detail"]: row for row in rows}

    async def call(gateway: RunningGateway, headers: dict[str, str], **arguments: Any) -> None:
        await gateway.call("up__send", arguments, headers=headers)

    async with running_gateway(tmp_path, {"up": config}, gateway={"auth": {"apiKeys": keys}}) as gateway:
        with anyio.fail_after(25):
            while (await gateway.server("up"))["state"] != "ready":
                await brief_pause()
        for _ in range(4):
            await call(gateway, first, to="a")
        assert not (await failures(gateway))["subject"]["flagged"], "one session alone is one misunderstanding"
        assert "calls keep failing" not in gateway.logged()
        await call(gateway, second, to="a")
        await call(gateway, second, to="a")
        row = (await failures(gateway))["subject"]
        assert (row["kind"], row["recent"], row["sessions"], row["flagged"]) == ("argument_missing", 6, 2, True)
        assert gateway.logged().count("calls keep failing") == 1
        await call(gateway, second, to="a", Subject="b")
        seen = (await gateway.admin("failures")).json()
        assert seen["repaired"] == [{"wrapper": "up__send", "calls": 1, "repairs": {"renamed": 1}}]
        assert (await failures(gateway))["subject"]["recent"] == 6


async def test_modern_caller_is_counted_once_across_connections(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[SEND])

    async def call(gateway: RunningGateway, client: str, name: str = "up__send", **arguments: Any) -> None:
        meta = {META + "clientInfo": {"name": client, "version": "1"}}
        body = call_of(name, arguments, **meta)
        head = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
        head |= {"mcp-method": "tools/call", "mcp-name": name}
        # Each client uses a separate connection.
        async with httpx2.AsyncClient(timeout=30) as connection:
            answer = await connection.post(gateway.url, json=body, headers=head)
        assert answer.json()["result"]["isError"], answer.text

    async with running_gateway(tmp_path, {"up": config}) as gateway:
        await gateway.until_listed("up__send")
        for _ in range(3):
            await call(gateway, "one", to="a")
        [row] = (await gateway.admin("failures")).json()["failures"]
        assert (row["recent"], row["sessions"], row["flagged"]) == (3, 1, False)
        await call(gateway, "another", to="a")
        [row] = (await gateway.admin("failures")).json()["failures"]
        assert (row["recent"], row["sessions"], row["flagged"]) == (4, 2, True)
