"""Listings that change, fail, never end or contain invalid items."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, Announcements, announcements, eventually, rss_of, until_server
from support.gateways import COMMANDS, RunningGateway, brief_pause, running_gateway, text_of
from support.pace import limit_now
from support.upstreams.full_running import full_stdio
from support.upstreams.running import (
    builtin_tools,
    rescript,
    scripted_http_server,
    scripted_stdio_server,
    tool,
    unused_port,
)

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy


async def announced_in_all(gateway: RunningGateway, announced: Announcements, server: dict[str, Any]) -> int:
    """Cause one more change, after which no earlier announcement can be pending, and count the others."""
    assert (await gateway.admin("servers", "POST", {"name": "marker", **server})).status_code == 201
    await gateway.until_listed("marker__echo")
    before = announced.changes
    await eventually(lambda: announced.changes > before)
    return announced.changes - 1


async def test_restart_with_other_tools_is_listed_and_announced_once(tmp_path: Path) -> None:
    before = [tool("send", "to", "subject"), *builtin_tools("exit")]
    after = [tool("send", "to", "title"), *builtin_tools("exit")]
    server, record = scripted_stdio_server(tmp_path, "s", tools=before)
    other, _ = scripted_stdio_server(tmp_path, "other", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"s": server}, gateway=COMMANDS) as gateway:
        await gateway.until_listed("s__send")
        async with announcements(gateway) as announced:
            rescript(server, record, tools=after)
            await gateway.call("s__exit")
            began_s = anyio.current_time()
            while "title" not in (await gateway.tools())["s__send"]["inputSchema"]["properties"]:
                await brief_pause()
            assert anyio.current_time() - began_s < await limit_now(2)
            assert (await gateway.server("s"))["epoch"] == 2
            assert announced.changes <= 1
            await eventually(lambda: announced.changes == 1)
            assert await announced_in_all(gateway, announced, other) == 1
        refused = text_of(await gateway.call("s__send", {"to": "a", "subject": "b"}))
        assert "title" in refused
        assert record.calls("send") == []
        assert "isError" not in await gateway.call("s__send", {"to": "a", "title": "b"})


async def test_reconnect_with_reordered_definitions_announces_nothing(tmp_path: Path) -> None:
    first, second = tool("first", "a", "b", "c"), tool("second", "d")
    reordered = {key: first[key] for key in reversed(first)}
    reordered["inputSchema"] = {key: first["inputSchema"][key] for key in reversed(first["inputSchema"])}
    properties = first["inputSchema"]["properties"]
    reordered["inputSchema"]["properties"] = {key: properties[key] for key in reversed(properties)}
    die = builtin_tools("exit")
    server, record = scripted_stdio_server(tmp_path, "s", tools=[first, second, *die])
    other, _ = scripted_stdio_server(tmp_path, "other", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"s": server}, gateway=COMMANDS) as gateway:
        await gateway.until_listed("s__first")
        names = [name for name in await gateway.tools() if name.startswith("s__")]
        async with announcements(gateway) as announced:
            rescript(server, record, tools=[*die, second, reordered])
            await gateway.call("s__exit")
            await until_server(gateway, "s", lambda row: row["epoch"] == 2 and row["state"] == "ready")
            assert [name for name in await gateway.tools() if name.startswith("s__")] == names
            assert await announced_in_all(gateway, announced, other) == 0

            described = {**first, "description": "Does it otherwise."}
            rescript(server, record, announce=True, tools=[described, second, *die])
            await eventually(lambda: announced.changes == 2)
            assert (await gateway.tools())["s__first"]["description"] == "Does it otherwise."
            assert (await gateway.server("s"))["epoch"] == 2


async def test_change_without_a_restart_is_listed_within_a_second(tmp_path: Path) -> None:
    stdio, record = scripted_stdio_server(tmp_path, "s", tools=[tool("one")], list_changed=True)
    modern, modern_record = scripted_stdio_server(tmp_path, "m", tools=[tool("one")], list_changed=True, modern=True)
    script = {"tools": [tool("one")], "list_changed": True}
    async with (
        scripted_http_server(tmp_path, "h", **script) as http,
        scripted_http_server(tmp_path, "n", **script, modern=True) as new,
        scripted_http_server(tmp_path, "e", **script, legacy_sse_only=True) as old,
    ):
        servers = {"s": stdio, "m": modern, "h": http.config, "n": new.config, "e": old.config}
        async with running_gateway(tmp_path, servers, gateway=COMMANDS) as gateway:
            await gateway.until_listed(*(f"{name}__one" for name in servers))
            await new.recording.until(lambda seen: seen.events("stream"))
            await http.recording.until(lambda seen: seen.events("stream"))
            await modern_record.until(lambda seen: seen.requests("subscriptions/listen"))
            took_s: list[float] = []
            # On a machine that does other things too, one of three tries is to be as quick as promised.
            while not took_s or (len(took_s) < 3 and took_s[-1] > 1):
                name = f"another{len(took_s)}"
                following = {"tools": [tool(name)], "list_changed": True}
                began_s = anyio.current_time()
                rescript(stdio, record, announce=True, **following)
                rescript(modern, modern_record, announce=True, **following, modern=True)
                http.announce(**following)
                new.announce(**following, modern=True)
                old.announce(**following, legacy_sse_only=True)
                tools = await gateway.until_listed(*(f"{server}__{name}" for server in servers))
                took_s.append(anyio.current_time() - began_s)
                assert not any(name.endswith("__one") for name in tools)
            assert took_s[-1] <= 1, took_s


async def test_failed_listing_keeps_the_last_good_one_with_a_reason(tmp_path: Path) -> None:
    script: dict[str, Any] = {"tools": builtin_tools("exit", "echo")}
    server, record = scripted_stdio_server(tmp_path, "s", **script)
    failing = {"error": {"code": -32000, "message": "the disk is full", "on": ["tools/list"]}}
    async with running_gateway(tmp_path, {"s": server}, gateway=COMMANDS) as gateway:
        good = await gateway.until_listed("s__echo")
        rescript(server, record, **script, faults=failing)
        await gateway.call("s__exit")
        row = await until_server(gateway, "s", lambda row: row["lastError"] and "disk is full" in row["lastError"])
        assert row["stale"]
        assert await gateway.tools() == good
        # A tool that cannot be listed can still be called.
        assert "isError" not in await gateway.call("s__echo")
        rescript(server, record, **script)
        await gateway.call("s__exit")
        row = await until_server(gateway, "s", lambda row: row["epoch"] == 3)
        assert (row["state"], row["lastError"], row["stale"]) == ("ready", None, False)
        assert "isError" not in await gateway.call("s__echo")


async def test_failed_relisting_while_connected_keeps_the_last_good_one(tmp_path: Path) -> None:
    once = {"error": {"code": -32000, "message": "not now", "on": ["tools/list"], "calls": 1}}
    script: dict[str, Any] = {"tools": builtin_tools("echo")}
    async with (
        scripted_http_server(tmp_path, "h", **script) as http,
        running_gateway(tmp_path, {"h": http.config}, gateway=COMMANDS) as gateway,
    ):
        good = await gateway.until_listed("h__echo")
        await http.restart(**script, faults=once, sessions=False)
        await gateway.admin("servers/h/refresh", "POST")
        row = await until_server(gateway, "h", lambda row: row["lastError"] and "not now" in row["lastError"])
        assert row["tools"] == 1
        assert await gateway.tools() == good
        assert "isError" not in await gateway.call("h__echo")
        await gateway.admin("servers/h/refresh", "POST")
        await until_server(gateway, "h", lambda row: row["lastError"] is None)


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize(
    ("method", "member"),
    [
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ],
)
async def test_list_failing_at_start_is_requested_again(method: str, member: str, modern: bool, tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", "--stumble", method, modern=modern)
    async with running_gateway(tmp_path, {"s": server.config}) as gateway:
        await gateway.until_listed("s__echo")
        with anyio.fail_after(25):
            while not re.search("s__|full://s/", str((await gateway.rpc(method))["result"][member])):
                await brief_pause()
    # The other lists are not requested again, and one line is logged.
    request_counts = [len(server.recording.requests(one)) for one in ("tools/list", method)]
    # The opening of a subscription is followed by one comparison of what it announces.
    assert request_counts == [2 if modern else 1, 3]
    assert gateway.logged().count("failed: not yet") == 1


async def test_endless_and_repeated_cursors_are_bounded_and_long_lists_complete(tmp_path: Path) -> None:
    same, same_record = scripted_stdio_server(tmp_path, "a", tools=[tool("echo")], faults={"cursor_loop": "same"})
    new, new_record = scripted_stdio_server(tmp_path, "b", tools=[tool("echo")], faults={"cursor_loop": "new"})
    many = [tool(f"tool{number}") for number in range(300)]
    paged, _ = scripted_stdio_server(tmp_path, "c", tools=many, faults={"page_size": 7})
    async with running_gateway(tmp_path, {"a": same, "b": new, "c": paged}, gateway=COMMANDS) as gateway:
        tools = await gateway.until_listed("a__echo", "b__echo", "c__tool299")
        assert len(tools) == 302
        assert len(same_record.requests("tools/list")) <= 3
        assert len(new_record.requests("tools/list")) <= 64
        assert "isError" not in await gateway.call("b__echo")


async def test_hostile_definitions_affect_at_most_themselves(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(220):
        deep = {"type": "object", "properties": {"next": deep}}
    forked: dict[str, Any] = {"type": "string"}
    for _ in range(24):
        forked = {"allOf": [forked, {"$ref": "#/$defs/x"}]}
    async with scripted_http_server(tmp_path, "trap", tools=[]) as trap:
        schemas: dict[str, Any] = {
            "list": [],
            "text": "object",
            "array": {"type": "array"},
            "invalid": {"type": "object", "properties": {"a": {"type": "nothing"}}},
            "remote": {"type": "object", "properties": {"a": {"$ref": f"{trap.origin}/schema.json"}}},
            "file": {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
            "recursive": {"type": "object", "properties": {"a": {"$ref": "#"}}},
            "pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
            "large": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(150_000)}},
            "deep": deep,
            "forked": {"type": "object", "properties": {"a": forked}, "$defs": {"x": {"type": "string"}}},
            "dynamic": {"type": "object", "$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}},
        }
        tools: list[Any] = [{"name": name, "description": name, "inputSchema": one} for name, one in schemas.items()]
        tools += [None, 7, {}, {"name": None}, {"name": "bare"}, {"name": ""}, {"name": "ha\u202ech\x1b[31mter"}]
        tools += [
            {**tool("told"), "description": "fine\x1b]0;owned\x07\u202eevil"},
            tool("x.y"),
            tool("x-y"),
            tool("fine"),
        ]
        hostile, _ = scripted_stdio_server(tmp_path, "s", tools=tools)
        calm, _ = scripted_stdio_server(tmp_path, "c", tools=builtin_tools("echo"))
        async with running_gateway(tmp_path, {"s": hostile, "c": calm}, gateway=COMMANDS) as gateway:
            listed = await gateway.until_listed("s__fine", "c__echo", within_s=20)
            assert len(listed) == len({re.sub(r"[-_]+", "_", name).lower() for name in listed})
            assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) for name in listed)
            assert all(one["inputSchema"]["type"] == "object" for one in listed.values())
            assert sum(name.startswith("s__x") for name in listed) == 2
            assert not set(str(listed)) & {"\x1b", "\x07", "\u202e"}
            assert listed["s__told"]["description"].startswith("fine")
            rows = (await gateway.admin("quarantine")).json()["quarantine"]
            refused = {row["tool"] for row in rows if row["status"] == "quarantined"}
            # A definition that can be repaired is listed. The administrator is told of every defect.
            reported = {row["tool"] for row in rows}
            assert {"list", "text", "array", "invalid", "remote", "file", "large", "deep"} <= reported
            for name in {"list", "text", "array", "invalid", "remote", "file", "large", "deep"} - refused:
                with anyio.fail_after(20):
                    assert "isError" not in await gateway.call(f"s__{name}", {})
            assert all(row["code"] and row["detail"] for row in rows)
            assert {row["code"] for row in rows if row["tool"] == "told"} == {"hidden_text"}
            assert not any(f"s__{name}" in listed for name in refused)
            for name in ("recursive", "pattern", "dynamic"):
                with anyio.fail_after(20):
                    await gateway.call(f"s__{name}", {"a": "a" * 40 + "!"})
            assert "isError" not in await gateway.call("s__fine")
            assert trap.recording.http() == []
            assert rss_of(gateway.process.pid) < 300 * MIB


async def test_added_server_is_callable_without_another_list_request(tmp_path: Path) -> None:
    first, _ = scripted_stdio_server(tmp_path, "first", tools=builtin_tools("echo"))
    added, _ = scripted_stdio_server(tmp_path, "added", tools=builtin_tools("echo"))
    nowhere = {"type": "http", "url": f"http://127.0.0.1:{unused_port()}/mcp", "callTimeout": 1}
    async with running_gateway(tmp_path, {"first": first}, gateway=COMMANDS) as gateway:
        await gateway.until_listed("first__echo")
        async with announcements(gateway) as announced:
            assert (await gateway.admin("servers", "POST", {"name": "added", **added})).status_code == 201
            # It is still connecting: the call waits for it.
            assert (await gateway.call("added__echo", {"a": 1}))["structuredContent"] == {"a": 1}
            assert "added__echo" in await gateway.tools()
            await eventually(lambda: announced.changes == 1)
        assert (await gateway.admin("servers", "POST", {"name": "nowhere", **nowhere})).status_code == 201
        with anyio.fail_after(20):
            result = await gateway.call("nowhere__echo")
        assert result["isError"]
        assert "not reachable right now" in text_of(result)
        assert (await gateway.admin("servers/added", "DELETE")).status_code == 204
        assert set(await gateway.tools()) == {"first__echo"}


async def test_upstream_that_never_lists_tools_is_reported_without_a_traceback(tmp_path: Path) -> None:
    mute, _ = scripted_stdio_server(tmp_path, "m", tools=builtin_tools("echo"), faults={"hang": {"on": ["tools/list"]}})
    async with running_gateway(tmp_path, {"m": {**mute, "startTimeout": 1}}, gateway=COMMANDS) as gateway:
        row = await until_server(gateway, "m", lambda row: row["lastError"])
        assert "no answer to tools/list within 1 s" in row["lastError"]
        assert "Traceback" not in gateway.logged()


# Announces every list while it is requested, and for a few seconds from a thread; its tool comes and goes with each
# listing. In the end it lists `last`.
STORM = """
import json, sys, threading, time
asked, over = 0, threading.Event()
lock = threading.Lock()
def send(message):
    with lock:
        print(json.dumps(message), flush=True)
def announce():
    for kind in ("tools", "resources", "prompts"):
        send({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})
def storm():
    end = time.monotonic() + 8
    while time.monotonic() < end:
        announce()
        time.sleep(0.01)
    over.set()
    announce()
for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    if "id" not in message:
        if method == "notifications/initialized":
            threading.Thread(target=storm, daemon=True).start()
        continue
    name = "last" if over.is_set() else f"flap{asked % 2}"
    lists = {
        "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}}]},
        "prompts/list": {"prompts": [{"name": name}]},
        "resources/list": {"resources": [{"name": name, "uri": f"doc://{name}"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "tools/call": {"content": [{"type": "text", "text": str(asked)}]},
        "initialize": {"protocolVersion": "2025-11-25", "serverInfo": {"name": "s", "version": "1"},
            "capabilities": {kind: {"listChanged": True} for kind in ("tools", "prompts", "resources")}},
    }
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    answer |= {"result": lists[method]} if method in lists else {"error": {"code": -32601, "message": "?"}}
    if method == "tools/list":
        asked += 1
    send(answer)
    if method in lists and method != "initialize" and not over.is_set():
        announce()
"""


async def test_announcement_storms_are_listed_and_announced_at_a_bounded_rate(tmp_path: Path) -> None:
    program = tmp_path / "storm.py"
    program.write_text(STORM)
    storm = {"command": sys.executable, "args": ["-S", "-E", str(program)]}
    calm, calm_record = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    servers = {"a": storm, "b": storm, "c": storm, "calm": calm}
    async with running_gateway(tmp_path, servers, gateway=COMMANDS) as gateway:
        await gateway.until_listed("calm__echo")
        async with announcements(gateway) as announced:
            began_s = anyio.current_time()
            for number in range(20):
                assert (await gateway.call("calm__echo", {"n": number}))["structuredContent"] == {"n": number}
            tools = await gateway.until_listed("a__last", "b__last", "c__last", within_s=25)
            took_s = anyio.current_time() - began_s
            assert set(tools) == {"a__last", "b__last", "c__last", "calm__echo"}
            await eventually(lambda: announced.changes > 0)
            assert announced.changes <= 22 + took_s
            for server in "abc":
                # As many as it may list in a burst, and one a second; resources and prompts are counted apart.
                list_count = int(text_of(await gateway.call(f"{server}__last")))
                assert list_count <= 14 + took_s
            names: set[str] = set()
            with anyio.fail_after(25):
                while not {"a__last", "b__last", "c__last"} <= names:
                    prompts = (await gateway.rpc("prompts/list"))["result"]["prompts"]
                    names = {prompt["name"] for prompt in prompts}
                    await brief_pause()
            assert not any("flap" in name for name in names)
        assert len(calm_record.requests("tools/list")) == 1
