"""Every tool has a unique name; an unknown name is answered with a suggestion."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import typegate
from mcp.shared.inbound import encode_header_value
from support.gateways import MODERN, TOKEN, RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.running import rescript, scripted_http_server, scripted_stdio_server, tool
from support.visitors import Visitor

from gateway.fleet.snapshot import load

WRAPPER = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,47}")
ODD_NAMES = (
    "a" * 80,
    "a" * 79 + "b",
    "x.y",
    "x-y",
    "x_y",
    "X_Y",
    "x/y",
    "x y",
    "日本語",
    "日本国",
    "café",
    "cafe",
    "cafe\u0301",
    "Straße",
    "🙂",
    "🙃",
    "",
    " ",
    "_",
    "__",
    "-",
    "0",
    "a__b",
    "__proto__",
    "constructor",
    "..",
    "../../etc/passwd",
    "<b>&amp;\"'",
    "tab\there",
    "new\nline",
    "nul\u0000",
    "\u202eevil",
    "invoke_tool",
    "list_servers",
)


def seen(name: str) -> str:
    """Return a name as administrators are shown it: without characters that they could not see."""
    return name.replace("\0", "").replace("\u202e", "")


async def names_by_tool(gateway: RunningGateway, server: str) -> dict[str, str]:
    """Return the wrapper of each tool of a server, as in the admin API."""
    rows = (await gateway.admin("wrappers")).json()["wrappers"]
    return {row["tool"]: row["name"] for row in rows if row["server"] == server}


async def test_equal_tools_of_two_servers_are_two_wrappers(
    tmp_path: Path,
) -> None:
    one, at_one = scripted_stdio_server(tmp_path, "a", tools=[tool("list_files", "path")])
    async with (
        scripted_http_server(tmp_path, "b", tools=[tool("list_files", "path")]) as other,
        running_gateway(tmp_path, {"od-a": one, "od-b": other.config}) as gateway,
    ):
        await gateway.until_listed("od-a__list_files", "od-b__list_files")
        await gateway.call("od-a__list_files", {"path": "/a"})
        assert (len(at_one.calls()), len(other.recording.calls())) == (1, 0)
        await gateway.call("od-b__list_files", {"path": "/b"})
        await gateway.call("invoke_tool", {"server": "od-b", "tool": "list_files", "arguments": {"path": "/c"}})
        assert [call["arguments"] for call in at_one.calls()] == [{"path": "/a"}]
        assert [call["arguments"] for call in other.recording.calls()] == [{"path": "/b"}, {"path": "/c"}]


@pytest.mark.heavy
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_unusual_names_are_distinct_stable_and_callable(tmp_path: Path, transport: str) -> None:
    tools = [tool(name, marker="integer") for name in ODD_NAMES]
    config, record = scripted_stdio_server(tmp_path, "s", tools=tools, modern=True)
    another, _ = scripted_stdio_server(tmp_path, "n", tools=[tool("x.y"), tool("x_y")])
    async with scripted_http_server(tmp_path, "h", tools=tools, modern=True) as http:
        if transport == "http":
            config, record = http.config, http.recording
        async with running_gateway(tmp_path, {"odd": config}) as gateway:
            await gateway.until_listed("odd__x_y")
            rows = await names_by_tool(gateway, "odd")
            assert set(rows) == {seen(name) for name in ODD_NAMES}
            names = {name: rows[seen(name)] for name in ODD_NAMES}
            assert set(names.values()) == set(await gateway.tools())
            assert all(WRAPPER.fullmatch(name) and name.startswith("odd__") for name in names.values())
            assert len({name.replace("-", "_").lower() for name in names.values()}) == len(ODD_NAMES)
            assert re.fullmatch(r"odd__a+_a+_[0-9a-f]{8}", names["a" * 80])
            assert re.fullmatch(r"odd__a+_a+b_[0-9a-f]{8}", names["a" * 79 + "b"])
            for marker, name in enumerate(ODD_NAMES):
                result = await gateway.call(names[name], {"marker": marker})
                assert not result.get("isError"), (name, result)
            assert [(call["name"], call["arguments"]["marker"]) for call in record.calls()] == [
                (name, marker) for marker, name in enumerate(ODD_NAMES)
            ]
            assert await gateway.stop() == 0
        gateway.log.unlink()  # the next log contains the port
        tools.reverse()
        if transport == "http":
            await http.restart(tools=tools, modern=True)
        else:
            rescript(config, record, tools=tools, modern=True)
        async with running_gateway(tmp_path, {"new": another, "odd": config}) as gateway:
            await gateway.until_listed("odd__x_y", "new__x_y")
            # The row of the snapshot is outdated, so wait for the live one.
            row = await gateway.server("odd")
            while row["origin"] != "live":
                row = await gateway.server("odd")
            assert await names_by_tool(gateway, "odd") == rows


@pytest.mark.heavy
async def test_name_that_is_not_unicode_breaks_no_list(tmp_path: Path) -> None:
    script: dict[str, Any] = {
        "tools": [tool("echo"), tool("half\ud800")],
        "server_info": {"name": "\ud800", "n": 2**70},
    }
    async with (
        scripted_http_server(tmp_path, "h", **script) as http,
        running_gateway(tmp_path, {"odd": http.config}) as gateway,
    ):
        await gateway.until_listed("odd__echo")
        names = await names_by_tool(gateway, "odd")
        # Administrators are shown no character that they could not see.
        assert set(names) == {"echo", "half"}
        looking = typegate("tools", "--url", gateway.url)
        environment = {**os.environ, **looking["env"], "TYPEGATE_ADMIN_TOKEN": TOKEN, "PYTHONIOENCODING": "ascii"}
        printed = await anyio.run_process([looking["command"], *looking["args"]], env=environment)
        assert b"half" in printed.stdout
        assert (await gateway.server("odd"))["serverInfo"] == {"name": "", "n": 2**70}
        await gateway.call(names["half"])
        assert [call["name"] for call in http.recording.calls()] == ["half\ud800"]


async def test_call_of_a_removed_tool_runs_no_other(tmp_path: Path) -> None:
    # The wrapper of `y` has the name of the other tool.
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("y"), tool("fs__y"), tool("exit")])
    async with running_gateway(tmp_path, {"fs": config}) as gateway:
        await gateway.until_listed("fs__y", "fs__fs__y")
        await gateway.call("fs__fs__y", {"n": 1})
        rescript(config, record, tools=[tool("y"), tool("exit")])
        await gateway.call("fs__exit")
        gone = await gateway.call("fs__fs__y", {"n": 2})
        assert gone.get("isError"), gone
        assert "tool 'fs__y'" in text_of(gone)
        assert [call["name"] for call in record.calls()] == ["fs__y", "exit"]


async def test_upstream_cannot_replace_a_builtin_tool(tmp_path: Path) -> None:
    tools = [tool("invoke_tool"), tool("tool"), tool("echo")]
    servers: dict[str, Any] = {}
    records = {}
    for alias in ("invoke", "plain", "bare"):
        servers[alias], records[alias] = scripted_stdio_server(tmp_path, alias, tools=tools)
    servers["bare"]["prefix"] = "none"
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("invoke__tool", "invoke__invoke_tool", "plain__invoke_tool", "echo")
        answer = await gateway.rpc("tools/list")
        [ours] = [one for one in answer["result"]["tools"] if one["name"] == "invoke_tool"]
        assert ours["inputSchema"]["required"] == ["server", "tool"]
        result = await gateway.call(
            "invoke_tool", {"server": "plain", "tool": "invoke_tool", "arguments": {"server": "x"}}
        )
        assert result["structuredContent"] == {"server": "x"}
        assert [(call["name"], call["arguments"]) for call in records["plain"].calls()] == [
            ("invoke_tool", {"server": "x"})
        ]
        # Its own `invoke_tool` cannot have that name, and says so where an operator looks.
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
        assert [(row["server"], row["tool"], row["code"]) for row in rows] == [("bare", "invoke_tool", "name_taken")]
        await gateway.call("invoke__tool", {"n": 1})
        assert [call["name"] for call in records["invoke"].calls()] == ["tool"]
        assert records["bare"].calls() == []


@pytest.mark.heavy
async def test_wrong_name_is_answered_with_the_right_one(tmp_path: Path) -> None:
    mail, record = scripted_stdio_server(tmp_path, "m", tools=[tool("send_email", "to"), tool("list_accounts")])
    mail |= {"deny": ["purge_*"]}
    bank, _ = scripted_stdio_server(tmp_path, "b", tools=[tool("get_balance"), tool("purge_all")])
    bank |= {"deny": ["purge_*"]}
    async with running_gateway(tmp_path, {"calendar-mcp": mail, "bank": bank}) as gateway:
        await gateway.until_listed("calendar-mcp__send_email", "bank__get_balance")
        for arguments in ({"server": "calender", "tool": "send_email"}, {"server": "", "tool": "x"}):
            result = await gateway.call("invoke_tool", arguments)
            assert result["isError"]
            assert "Servers: bank, calendar-mcp" in text_of(result)
        for result in (
            await gateway.call("calendar-mcp__send_mail", {"to": "x"}),
            await gateway.call("invoke_tool", {"server": "calendar-mcp", "tool": "sendEmail"}),
        ):
            assert result["isError"]
            assert "calendar-mcp__send_email" in text_of(result)
        denied = await gateway.call("bank__purge_all")
        assert denied["isError"]
        assert "purge_all" not in text_of(denied).partition("has no tool 'purge_all'")[2]
        for name in ("nothing_of_ours", "calender-mcp__send_email", "x__y", "", "__", "a" * 5000, "日本語"):
            params = {"name": name, "arguments": {}}
            answer = await gateway.rpc("tools/call", params, headers={"mcp-name": encode_header_value(name)})
            assert answer["error"]["code"] == -32602, (name, answer)
            assert len(answer["error"]["message"]) < 1000
        misspelt = await gateway.rpc("tools/call", {"name": "calender-mcp__send_email", "arguments": {}})
        assert "calendar-mcp__send_email" in misspelt["error"]["message"]
        assert record.calls() == []


@pytest.mark.heavy
async def test_call_with_an_old_alias_is_answered_with_the_new_one(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("send_email", "to")])
    async with running_gateway(tmp_path, {"calendar": config}) as gateway:
        await gateway.until_listed("calendar__send_email")
        with anyio.fail_after(25):
            while not await anyio.Path(gateway.state_dir / "snapshot.json").exists():
                await brief_pause()
        assert await gateway.stop() == 0
    gateway.log.unlink()  # the next log contains the port
    async with running_gateway(tmp_path, {"mail": config}) as gateway:
        await gateway.until_listed("mail__send_email")
        for result in (
            await gateway.call("calendar__send_email", {"to": "x"}),
            await gateway.call("invoke_tool", {"server": "calendar", "tool": "send_email", "arguments": {"to": "x"}}),
        ):
            assert result["isError"]
            assert "'calendar' is now called 'mail'" in text_of(result)
            assert "mail__send_email" in text_of(result)
        assert (await gateway.admin("servers/mail", "DELETE")).is_success
        for name, arguments in (
            ("mail__send_email", {"to": "x"}),
            ("invoke_tool", {"server": "mail", "tool": "send_email", "arguments": {"to": "x"}}),
        ):
            result = await gateway.call(name, arguments)
            assert result["isError"]
            assert "server 'mail' was removed. Servers: none." in text_of(result)
        assert record.calls() == []


@pytest.mark.heavy
async def test_alias_changed_at_runtime_is_known_after_a_restart(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "s", tools=[tool("send_email", "to")])
    async with running_gateway(tmp_path, {"calendar": config}) as gateway:
        await gateway.until_listed("calendar__send_email")
        gateway.config.write_text(json.dumps({"mcpServers": {"mail": config}}))
        await gateway.until_listed("mail__send_email")
        with anyio.fail_after(25):
            while "mail" not in (kept := load(gateway.state_dir)).listings or "calendar" not in kept.former:
                await brief_pause()
        assert await gateway.stop() == 0
    gateway.log.unlink()
    async with running_gateway(tmp_path, {"mail": config}) as gateway:
        await gateway.until_listed("mail__send_email")
        assert "'calendar' is now called 'mail'" in text_of(await gateway.call("calendar__send_email", {"to": "x"}))


@pytest.mark.heavy
async def test_server_keeps_its_id_when_its_alias_and_later_its_program_change(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("send_email", "to")])
    other, _ = scripted_stdio_server(tmp_path, "o", tools=[tool("send_email", "to")])
    state = {"profiles": {"lazy": {"disclosure": "lazy"}}}

    async def ids(gateway: RunningGateway) -> dict[str, str]:
        return {row["name"]: row["id"] for row in (await gateway.admin("servers")).json()["servers"]}

    async with running_gateway(tmp_path, {"calendar": config}, gateway=state) as gateway:
        await gateway.until_listed("calendar__send_email")
        first = (await ids(gateway))["calendar"]
        assert re.fullmatch(r"srv-[0-9a-f]{12}", first)
        # Renamed, while its former alias goes to another server.
        gateway.config.write_text(
            json.dumps({"mcpServers": {"calendar": other, "mail": config}, "gateway": state}), encoding="utf-8"
        )
        await gateway.until_listed("mail__send_email")
        both = await ids(gateway)
        assert both["mail"] == first != both["calendar"]
        details = await gateway.call("get_server_details", {"server": first})
        assert (details["structuredContent"]["server"], details["structuredContent"]["id"]) == ("mail", first)
        called = {"server": first, "tool": "send_email", "arguments": {"to": "x"}}
        assert not (await gateway.call("invoke_tool", called)).get("isError")
        assert [call["name"] for call in record.calls()] == ["send_email"]
        found = await Visitor(gateway=gateway, era=MODERN).called("find_tools", {"query": "send email"}, "lazy")
        assert {one["name"]: one["serverId"] for one in found["structuredContent"]["tools"]} == {
            "mail__send_email": first, "calendar__send_email": both["calendar"],
        }  # fmt: skip
        assert await gateway.stop() == 0
    gateway.log.unlink()
    changed, _ = scripted_stdio_server(tmp_path, "changed", tools=[tool("send_email", "to")])
    async with running_gateway(tmp_path, {"post": config, "calendar": changed}, gateway=state) as gateway:
        await gateway.until_listed("post__send_email")
        assert await ids(gateway) == {"post": first, "calendar": both["calendar"]}
        assert "'mail' is now called 'post'. Call post__send_email" in text_of(
            await gateway.call("mail__send_email", {"to": "x"})
        )


async def test_unprefixed_server_keeps_its_own_names(tmp_path: Path) -> None:
    own = [tool("echo"), tool("get.weather", "city"), tool("日本語"), tool("shared")]
    bare, at_bare = scripted_stdio_server(tmp_path, "bare", tools=own)
    later, at_later = scripted_stdio_server(tmp_path, "later", tools=[tool("shared"), tool("SHARED2")])
    full, _ = scripted_stdio_server(tmp_path, "full", tools=[tool("echo")])
    servers = {"bare": bare | {"prefix": "none"}, "later": later | {"prefix": "none"}, "full": full}
    async with running_gateway(tmp_path, servers) as gateway:
        listed = await gateway.until_listed("echo", "get.weather", "shared", "SHARED2", "full__echo")
        assert len(listed) == 6
        [adapted] = set(listed) - {"echo", "get.weather", "shared", "SHARED2", "full__echo"}
        assert WRAPPER.fullmatch(adapted)
        for name in ("echo", "get.weather", "shared", adapted):
            assert not (await gateway.call(name, {"city": "Oslo"})).get("isError"), name
        assert [call["name"] for call in at_bare.calls()] == ["echo", "get.weather", "shared", "日本語"]
        assert at_later.calls() == []
        unknown = await gateway.rpc("tools/call", {"name": "ech", "arguments": {}})
        assert unknown["error"]["code"] == -32602
        # The first server in the file gets the name. The other is reported, and can still be called with `invoke_tool`.
        rows = (await gateway.admin("quarantine")).json()["quarantine"]
        assert [(row["server"], row["tool"], row["code"]) for row in rows] == [("later", "shared", "name_taken")]


@pytest.mark.parametrize("modern", [True, False])
async def test_allow_deny_rename_and_hidden_apply_to_lists_and_calls(tmp_path: Path, modern: bool) -> None:
    names = ("read_file", "read_dir", "read_secret", "write_file", "internal_debug", "get_bank_balance")
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool(name) for name in names], modern=modern)
    config |= {
        "allow": ["read_*", "get_*", "internal_*"],
        "deny": ["*_secret"],
        "tools": {"internal_debug": {"hidden": True}, "get_bank_balance": {"name": "balance"}},
    }
    async with running_gateway(tmp_path, {"fs": config}) as gateway:
        listed = await gateway.until_listed("fs__balance")
        assert set(listed) == {"fs__read_file", "fs__read_dir", "fs__balance"}
        for tool_name in ("read_secret", "write_file", "internal_debug"):
            for result in (
                await gateway.call(f"fs__{tool_name}"),
                await gateway.call("invoke_tool", {"server": "fs", "tool": tool_name, "arguments": {}}),
                await gateway.call("invoke_tool", {"server": "fs", "tool": f"fs__{tool_name}", "arguments": {}}),
            ):
                assert result["isError"], tool_name
                refusal = text_of(result).replace(tool_name, "", 1)
                assert not [name for name in ("secret", "write_file", "internal_debug") if name in refusal], refusal
        assert record.calls() == []
        old = await gateway.call("fs__get_bank_balance")
        assert old["isError"]
        assert "fs__balance" in text_of(old)
        await gateway.call("fs__balance", {"n": 1})
        await gateway.call("invoke_tool", {"server": "fs", "tool": "balance", "arguments": {"n": 2}})
        await gateway.call("invoke_tool", {"server": "fs", "tool": "get_bank_balance", "arguments": {"n": 3}})
        assert [(call["name"], call["arguments"]["n"]) for call in record.calls()] == [
            ("get_bank_balance", 1),
            ("get_bank_balance", 2),
            ("get_bank_balance", 3),
        ]


async def test_name_without_its_server_is_answered_with_the_servers_that_have_it(tmp_path: Path) -> None:
    servers, records = {}, []
    for name in ("od-a", "od-b"):
        servers[name], record = scripted_stdio_server(tmp_path, name, tools=[tool("list_files")])
        records.append(record)
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("od-a__list_files", "od-b__list_files")
        for answer in (
            await gateway.call("list_files"),
            await gateway.call("invoke_tool", {"tool": "list_files", "arguments": {}}),
        ):
            assert answer["isError"]
            assert "It is a tool of od-a, od-b. Call od-a__list_files, od-b__list_files," in text_of(answer)
        assert all(record.calls() == [] for record in records)


async def test_quarantined_tool_is_reported_and_a_truncated_list_counts_the_rest(tmp_path: Path) -> None:
    bad = {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}}
    many = [tool(f"x{number:04}") for number in range(1000)]
    config, record = scripted_stdio_server(tmp_path, "s", tools=[*many, bad, {**bad, "name": "hidden_one"}])
    async with running_gateway(tmp_path, {"s": {**config, "deny": ["hidden_*"], "validation": "strict"}}) as gateway:
        await gateway.until_listed("s__x0000")
        for answer in (
            await gateway.call("s__broken"),
            await gateway.call("invoke_tool", {"server": "s", "tool": "broken"}),
        ):
            assert answer["isError"]
            assert "'broken' of server 's' is held back by the gateway, because" in text_of(answer)
            assert "its definition cannot be used: " in text_of(answer)
        assert "held back" not in text_of(await gateway.call("s__hidden_one"))
        assert "and 980 more." in text_of(await gateway.call("s__something_else_entirely"))
        assert record.calls() == []


@pytest.mark.heavy
async def test_retry_is_advised_only_where_it_can_help(tmp_path: Path) -> None:
    fine, _ = scripted_stdio_server(tmp_path, "s", tools=[tool("one")])
    gone = {"command": "/nowhere/at/all"}
    async with running_gateway(tmp_path, {"s": fine, "gone": gone}) as gateway:
        await gateway.until_listed("s__one")
        # A call that comes before the third attempt waits 10 s for it to succeed.
        with anyio.fail_after(30):
            while "trying again at once will not help" not in text_of(await gateway.call("gone__one")):
                await brief_pause()
