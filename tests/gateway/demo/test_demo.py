"""The demo servers, over real stdio connections of the SDK's client."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import suppress

import anyio
import pytest
from mcp import Client, StdioServerParameters
from support.upstreams.running import demo_config

MODES = ("legacy", "auto")


def connected(name: str, mode: str = "auto") -> Client:
    return Client(StdioServerParameters(**demo_config(name)), mode=mode)


@pytest.mark.parametrize("mode", MODES)
async def test_calendar_lists_tools_with_titles_descriptions_and_hints(mode: str) -> None:
    with anyio.fail_after(20):
        async with connected("calendar", mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["send_email", "list_accounts", "get_calendar_events", "list_sent"]
    assert all(tool.title and tool.description and tool.annotations for tool in tools.values())
    assert tools["send_email"].input_schema["required"] == ["to", "subject", "body"]
    assert tools["get_calendar_events"].input_schema["required"] == ["timeZone", "startDate"]


@pytest.mark.parametrize("mode", MODES)
async def test_sent_email_appears_in_the_sent_list(mode: str) -> None:
    message = {"to": ["ana@example.com"], "subject": "Choir", "body": "At seven?", "accountId": "home"}
    with anyio.fail_after(20):
        async with connected("calendar", mode) as client:
            sent = await client.call_tool("send_email", message)
            all_sent = await client.call_tool("list_sent", {})
            from_work = await client.call_tool("list_sent", {"accountId": "work"})
    assert not sent.is_error
    assert sent.structured_content == {"messageId": "m-1", **message}
    assert all_sent.structured_content == {"messages": [sent.structured_content]}
    assert from_work.structured_content == {"messages": []}


async def test_structured_content_of_the_calendar_equals_its_text() -> None:
    with anyio.fail_after(20):
        async with connected("calendar") as client:
            result = await client.call_tool("list_accounts", {})
    assert json.loads(result.content[0].text) == result.structured_content
    assert len(result.structured_content["accounts"]) == 2


async def test_calendar_returns_the_same_events_in_the_requested_zone() -> None:
    monday_and_tuesday = {"timeZone": "Europe/Madrid", "startDate": "2026-06-01", "endDate": "2026-06-02"}
    with anyio.fail_after(20):
        async with connected("calendar") as client:
            first = await client.call_tool("get_calendar_events", monday_and_tuesday)
            again = await client.call_tool("get_calendar_events", monday_and_tuesday)
    assert first.structured_content == again.structured_content
    events = first.structured_content["events"]
    assert [event["title"] for event in events] == ["Stand-up", "Stand-up", "Sprint planning"]
    assert events[0]["start"] == "2026-06-01T09:30:00+02:00"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("send_email", {}, "'to' was not provided"),
        ("send_email", {"to": ["a@b.example"], "subject": "x"}, "'body' was not provided"),
        ("send_email", {"to": [], "subject": "x", "body": "y"}, "'to' must list"),
        ("send_email", {"to": ["a@b.example"], "subject": "x", "body": "y", "accountId": "z"}, "work, home"),
        ("get_calendar_events", {"timeZone": "Mars/Base", "startDate": "2026-06-01"}, "not a known time zone"),
        ("get_calendar_events", {"timeZone": "UTC", "startDate": "tomorrow"}, "YYYY-MM-DD"),
        ("no_such_tool", {}, "no tool called"),
    ],
)
async def test_calendar_explains_invalid_arguments(tool: str, arguments: dict[str, object], words: str) -> None:
    with anyio.fail_after(20):
        async with connected("calendar") as client:
            result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert words in result.content[0].text


@pytest.mark.parametrize("mode", MODES)
async def test_bank_declares_only_an_object_schema(mode: str) -> None:
    with anyio.fail_after(20):
        async with connected("bank", mode) as client:
            tools = (await client.list_tools()).tools
    assert [(tool.name, tool.input_schema) for tool in tools] == [("get_bank_balance", {"type": "object"})]


@pytest.mark.parametrize("mode", MODES)
async def test_balance_sums_account_entries_up_to_a_date(mode: str) -> None:
    with anyio.fail_after(20):
        async with connected("bank", mode) as client:
            latest = await client.call_tool("get_bank_balance", {"account_id": "1"})
            january = await client.call_tool("get_bank_balance", {"account_id": "1", "date": "2026-01-31"})
    assert latest.structured_content["balance"] == "2715.65"
    assert january.structured_content["balance"] == "3650.00"


@pytest.mark.parametrize(
    ("arguments", "words"), [({}, "'account_id' was not provided"), ({"account_id": "9"}, "no account '9'")]
)
async def test_bank_returns_an_error_for_a_missing_or_unknown_account(arguments: dict[str, object], words: str) -> None:
    with anyio.fail_after(20):
        async with connected("bank") as client:
            result = await client.call_tool("get_bank_balance", arguments)
    assert result.is_error
    assert words in result.content[0].text


@pytest.mark.parametrize("name", ["calendar", "bank"])
@pytest.mark.parametrize("ending", ["end of input", "SIGTERM"])
async def test_demo_server_exits_cleanly(name: str, ending: str) -> None:
    config = demo_config(name)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    program = [config["command"], *config["args"]]
    process = await anyio.open_process(program, cwd=config["cwd"], stderr=subprocess.PIPE)
    try:
        with anyio.fail_after(20):
            await process.stdin.send(json.dumps(request).encode() + b"\n")
            assert b"serverInfo" in await process.stdout.receive()
            if ending == "SIGTERM":
                process.send_signal(signal.SIGTERM)
            else:
                await process.stdin.aclose()
            code = await process.wait()
            complaints = b"".join([part async for part in process.stderr])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.aclose()
    assert code == 0
    assert complaints == b""
