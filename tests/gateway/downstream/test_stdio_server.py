"""`typegate stdio --config`: one host over a pair of pipes, both eras on one connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.callers import Host, call_of, hello, listen_to, running_host
from support.gateways import META, envelope
from support.upstreams.running import Recording, builtin_tools, rescript, scripted_stdio_server, tool

CHANGED = "notifications/tools/list_changed"
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@asynccontextmanager
async def hosting(tmp_path: Path, **script: Any) -> AsyncIterator[tuple[Host, dict[str, Any], Recording]]:
    server, record = scripted_stdio_server(tmp_path, "up", **script)
    config = tmp_path / "typegate.json"
    config.write_text(json.dumps({"mcpServers": {"up": server}}))
    async with running_host(tmp_path, "--config", str(config), "--state-dir", str(tmp_path / "state")) as host:
        yield host, server, record


def old_call(name: str, arguments: Any = None, request_id: Any = 1, **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


async def test_both_eras_list_and_call_on_one_connection(tmp_path: Path) -> None:
    async with hosting(tmp_path, tools=builtin_tools("echo")) as (host, _, record):
        opened = await host.answer(hello("2025-06-18"))
        assert opened["result"]["protocolVersion"] == "2025-06-18"
        await host.send(INITIALIZED)
        await host.until_listed("up__echo")
        value = {"a": [2**70, None, "é"]}
        old = (await host.answer(old_call("up__echo", value, "old")))["result"]
        new = (await host.answer(call_of("up__echo", value, request_id="new")))["result"]
        assert old["structuredContent"] == new["structuredContent"] == value
        assert "resultType" not in old
        assert new["resultType"] == "complete"
        found = await host.answer(
            {"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {"_meta": envelope()}}
        )
        assert found["result"]["supportedVersions"] == ["2026-07-28"]
        assert (await host.answer({"jsonrpc": "2.0", "id": "p", "method": "ping"}))["result"] == {}
        assert len(record.calls()) == 2
        assert await host.leave() == 0
        assert "Traceback" not in host.log.read_text()


@pytest.mark.heavy
async def test_malformed_input_is_answered_and_the_next_line_works(tmp_path: Path) -> None:
    async with hosting(tmp_path, tools=builtin_tools("echo")) as (host, _, record):
        await host.answer(hello())
        await host.until_listed("up__echo")
        wrong: list[tuple[bytes, int]] = [
            (b"{", -32700),
            (b"\xff\xfe", -32700),
            (b"[" * 100_000, -32700),
            (b"[]", -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
            (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
            (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
            (b" " * 5 * 2**20 + b"{}", -32600),
        ]
        for line, code in wrong:
            count_before = len(host.received)
            await host.send(line)
            await host.until(lambda one, before=count_before: len(host.received) > before and "error" in one)
            assert (host.received[-1]["error"]["code"], host.received[-1]["id"]) == (code, None), line[:60]
        for number, (body, code) in enumerate(
            [
                ({"method": "ping", "params": [1]}, -32602),
                ({"method": "no/such"}, -32601),
                ({"method": "tools/call", "params": {"name": 5}}, -32602),
                ({"method": "tools/call", "params": {"name": "nothing-of-ours"}}, -32602),
                ({"method": "tools/list", "params": {"_meta": {META + "protocolVersion": "2026-07-28"}}}, -32602),
                ({"method": "tools/list", "params": {"_meta": envelope(**{META + "protocolVersion": "x"})}}, -32022),
            ]
        ):
            answer = await host.answer({"jsonrpc": "2.0", "id": f"wrong-{number}", **body})
            assert answer["error"]["code"] == code, body
        await host.send(b"", b"   ", {"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "method": "x/y"})
        assert (await host.answer(old_call("up__echo", {"a": 1}, "last")))["result"]["structuredContent"] == {"a": 1}
        assert len(record.calls()) == 1
        assert await host.leave() == 0


@pytest.mark.heavy
async def test_duplicate_request_id_is_refused_and_the_first_call_answered(tmp_path: Path) -> None:
    async with hosting(tmp_path, tools=builtin_tools("sleep", "echo")) as (host, _, record):
        await host.answer(hello())
        await host.until_listed("up__echo")
        await host.send(old_call("up__sleep", {"seconds": 2}, "twice"))
        await record.until(lambda seen: seen.calls("sleep"))
        await host.send(old_call("up__echo", {"a": 1}, "twice"))
        refused = await host.until(lambda one: one.get("id") == "twice")
        assert refused["error"]["code"] == -32600
        first = await host.until(lambda one: one.get("id") == "twice" and "result" in one)
        assert first["result"]["structuredContent"] == {"seconds": 2}
        assert record.calls("echo") == []


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.heavy
async def test_thousand_progress_notifications_precede_the_answer_in_order(tmp_path: Path, era: str) -> None:
    async with hosting(tmp_path, tools=builtin_tools("progress")) as (host, _, _):
        await host.answer(hello())
        await host.until_listed("up__progress")
        make = call_of if era == "modern" else old_call
        before = len(host.received)
        await host.answer(make("up__progress", {"count": 1000}, request_id="p", progressToken=77), within_s=20)
        *steps, answer = [one for one in host.received[before:] if one.get("method") != CHANGED]
        assert answer["result"]["content"]
        assert [one["params"]["progress"] for one in steps] == list(range(1, 1001))
        assert {one["params"]["progressToken"] for one in steps} == {77}


@pytest.mark.heavy
async def test_change_is_announced_in_the_form_of_each_era(tmp_path: Path) -> None:
    script = {"tools": [tool("first")], "list_changed": True}
    async with hosting(tmp_path, **script) as (host, server, record):
        await host.send(listen_to("mine"))
        acknowledged = await host.until(lambda one: True)
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["_meta"] == {META + "subscriptionId": "mine"}
        await host.answer(hello())
        await host.send(INITIALIZED)
        await host.until_listed("up__first")
        count_before = len(host.received)

        def is_change(message: dict[str, Any], subscribed: bool) -> bool:
            return message.get("method") == CHANGED and ("params" in message) is subscribed

        # Earlier announcements may still be pending, so only later frames count.
        rescript(server, record, announce=True, **{**script, "tools": [tool("second")]})
        await host.until_listed("up__second")
        for subscribed in (True, False):
            await host.until(lambda one, kind=subscribed: one in host.received[count_before:] and is_change(one, kind))
        frames = [one for one in host.received if is_change(one, True)]
        assert all(one["params"] == {"_meta": {META + "subscriptionId": "mine"}} for one in frames)
        # A subscription over stdio ends by its cancellation.
        await host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "mine"}})
        assert (await host.answer({"jsonrpc": "2.0", "id": "after", "method": "ping"}))["result"] == {}
        count_before = len(host.received)
        rescript(server, record, announce=True, **{**script, "tools": [tool("third")]})
        await host.until_listed("up__third")
        await host.until(lambda one: one in host.received[count_before:] and is_change(one, False))
        assert not any(is_change(one, True) for one in host.received[count_before:])
        assert await host.leave() == 0


@pytest.mark.heavy
async def test_call_in_flight_is_answered_after_the_host_closed_stdin(tmp_path: Path) -> None:
    async with hosting(tmp_path, tools=builtin_tools("sleep")) as (host, _, record):
        await host.answer(hello())
        await host.until_listed("up__sleep")
        await host.send(old_call("up__sleep", {"seconds": 0.7}, "last"))
        await record.until(lambda seen: seen.calls())
        assert host.process.stdin is not None
        await host.process.stdin.aclose()
        answer = await host.until(lambda one: one.get("id") == "last")
        assert answer["result"]["structuredContent"] == {"seconds": 0.7}
        assert await host.process.wait() == 0
