"""Profiles: the tools that each path lists and permits (rows R21-R23, R29, T11, X6)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import handshake
from support.gateways import TOKEN, RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.running import Recording, scripted_stdio_server, tool
from support.visitors import ALWAYS, CHANGED, OWN, Visitor, in_both_eras

MAIL = tool("send_mail", "to", to={"type": "string", "description": "Whom to write to."})
LAZY = {"profiles": {"default": {"disclosure": "lazy"}}}


def server(
    tmp_path: Path, name: str, definitions: list[dict[str, Any]], /, **options: Any
) -> tuple[dict[str, Any], Recording]:
    config, record = scripted_stdio_server(tmp_path, name, tools=definitions, list_changed=True)
    return {**config, **options}, record


def many(tmp_path: Path, count: int, **options: Any) -> dict[str, Any]:
    tools = [tool(f"tool_{number:03}") for number in range(count)]
    return server(tmp_path, "many", tools, **options)[0]


async def until_all_ready(gateway: RunningGateway, *names: str) -> None:
    with anyio.fail_after(25):
        for name in names:
            while (await gateway.server(name))["state"] != "ready":
                await brief_pause()


@in_both_eras
async def test_denied_tool_is_neither_listed_nor_callable(era: str, tmp_path: Path) -> None:
    config, record = server(tmp_path, "fs", [tool("delete_all"), tool("read")], deny=["delete_*"])
    profiles = {"default": {"disclosure": "lazy"}, "whole": {"disclosure": "eager"}}
    async with running_gateway(tmp_path, {"fs": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "fs")
        visitor = Visitor(gateway=gateway, era=era)
        assert set(await visitor.listed()) == OWN
        assert set(await visitor.listed("whole")) == ALWAYS | {"fs__read"}
        assert "delete_all" not in json.dumps(await visitor.called("find_tools", {"query": "delete all"}))
        assert "delete_all" not in json.dumps(await visitor.called("get_server_details", {"server": "fs"}))
        for name, arguments in (
            ("fs__delete_all", {}),
            ("invoke_tool", {"server": "fs", "tool": "delete_all", "arguments": {}}),
            ("invoke_tool", {"server": "fs", "tool": "fs__delete_all"}),
        ):
            assert (await visitor.called(name, arguments))["isError"]
        assert record.calls() == []


@in_both_eras
async def test_lazy_lists_builtin_and_pinned_tools_and_finds_the_rest(era: str, tmp_path: Path) -> None:
    config, record = server(
        tmp_path, "office", [MAIL, tool("count_days"), tool("ping")], tools={"ping": {"pinned": True}}
    )
    async with running_gateway(tmp_path, {"office": config}, gateway=LAZY) as gateway:
        await until_all_ready(gateway, "office")
        visitor = Visitor(gateway=gateway, era=era)
        assert set(await visitor.listed()) == OWN | {"office__ping"}
        # By name before anything was searched for, and by what was found.
        assert not (await visitor.called("office__count_days", {})).get("isError")
        found = await visitor.called("find_tools", {"query": "send mail"})
        best = found["structuredContent"]["tools"][0]
        assert (best["name"], best["description"]) == ("office__send_mail", "Does send_mail.")
        assert best["inputSchema"] == MAIL["inputSchema"]
        assert json.loads(text_of(found)) == found["structuredContent"]
        assert not (await visitor.called("office__send_mail", {"to": "a"})).get("isError")
        assert [one["arguments"] for one in record.calls()] == [{}, {"to": "a"}]


async def test_modern_list_does_not_depend_on_earlier_requests(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    async with (
        running_gateway(tmp_path, {"office": config}, gateway=LAZY) as gateway,
        httpx2.AsyncClient(timeout=30) as other,
    ):
        await until_all_ready(gateway, "office")
        mine = Visitor(gateway=gateway, era="2026-07-28")
        before = (await mine.sent("tools/list")).content
        assert await mine.heard_at("find_tools", {"query": "send mail"}) == ["answer"]
        assert not (await mine.called("office__send_mail", {"to": "a"})).get("isError")
        assert (await mine.sent("tools/list")).content == before
        gateway.client, first = other, gateway.client
        try:
            assert (await mine.sent("tools/list")).content == before
        finally:
            gateway.client = first


async def test_handshake_session_list_grows_by_its_own_found_tools(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    async with running_gateway(tmp_path, {"office": config}, gateway=LAZY) as gateway:
        await until_all_ready(gateway, "office")
        mine, other = Visitor(gateway=gateway, era="2025-11-25"), Visitor(gateway=gateway, era="2025-11-25")
        assert list(await mine.listed()) == list(await other.listed())
        assert await mine.heard_at("find_tools", {"query": "send mail", "limit": 1}) == [CHANGED, "answer"]
        assert list(await mine.listed())[-1] == "office__send_mail"
        assert set(await mine.listed()) == OWN | {"office__send_mail"}
        assert set(await other.listed()) == OWN
        # A tool that is already listed is not announced.
        assert await mine.heard_at("find_tools", {"query": "send mail", "limit": 1}) == ["answer"]


@pytest.mark.heavy
@in_both_eras
async def test_budget_is_respected_and_other_tools_are_found_and_callable(era: str, tmp_path: Path) -> None:
    profiles = {"default": {"disclosure": "auto", "maxTools": 100, "maxTokens": 1_000_000}}
    config = many(tmp_path, 130, tools={"tool_129": {"pinned": True}, "tool_128": {"priority": 5}})
    lists = []
    for _start in ("first", "again"):
        async with running_gateway(tmp_path, {"many": config}, gateway={"profiles": profiles}) as gateway:
            await until_all_ready(gateway, "many")
            visitor, other = Visitor(gateway=gateway, era=era), Visitor(gateway=gateway, era=era)
            listed = await visitor.listed()
            assert await other.listed() == listed
            lists.append(json.dumps(list(listed.values())))
            # The rest of the hundred is for what a session finds.
            assert len(listed) == 95
            assert listed.keys() >= OWN | {"many__tool_129", "many__tool_128", "many__tool_000"}
            hidden = next(f"many__tool_{n:03}" for n in range(130) if f"many__tool_{n:03}" not in listed)
            found = await visitor.called("find_tools", {"query": hidden.replace("_", " "), "limit": 3})
            assert hidden in [one["name"] for one in found["structuredContent"]["tools"]]
            assert not (await visitor.called(hidden, {})).get("isError")
            [budget] = (await gateway.admin("budget")).json()["profiles"]
            reasons = {one["name"]: one["reason"] for one in budget["wrappers"]}
            assert (reasons["many__tool_129"], reasons[hidden]) == ("pinned", "over maxTools")
            assert budget["tools"] == 95
            assert await anyio.to_thread.run_sync(_explained, gateway) == reasons
    assert lists[0] == lists[1]


def _explained(gateway: RunningGateway) -> dict[str, str]:
    """Return the reason for each wrapper, as printed by `typegate tools --explain`."""
    command = [sys.executable, "-m", "gateway", "tools", "--explain", "--url", gateway.url]
    environment = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: reason for name, _listed, reason, _tokens in rows}


@in_both_eras
async def test_fitting_list_is_complete_and_a_token_budget_is_respected(era: str, tmp_path: Path) -> None:
    profiles = {"default": {"disclosure": "auto"}, "small": {"maxTokens": 1_200}}
    async with running_gateway(tmp_path, {"many": many(tmp_path, 60)}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "many")
        visitor = Visitor(gateway=gateway, era=era)
        assert len(await visitor.listed()) == 62
        assert "find_tools" not in await visitor.listed()
        small = await visitor.listed("small")
        assert 10 < len(small) < 50
        rows = {one["profile"]: one for one in (await gateway.admin("budget")).json()["profiles"]}
        assert rows["small"]["tokens"] <= 1_200
        assert {one["reason"] for one in rows["small"]["wrappers"]} == {"fits", "over maxTokens"}
        assert rows["default"]["tools"] == 62


@in_both_eras
async def test_profile_selects_by_server_tag_tool_and_group(era: str, tmp_path: Path) -> None:
    a, record_a = server(tmp_path, "a", [tool("read"), tool("write")], tags=["vcs"])
    b, record_b = server(tmp_path, "b", [tool("read")], tags=["vcs", "new"])
    c, _ = server(tmp_path, "c", [tool("read")])
    everything = {"disclosure": "eager"}
    profiles = {
        "one": {**everything, "servers": ["a"]},
        "vcs": {**everything, "tags": ["vcs"]},
        "reads": {**everything, "tools": ["read"]},
        "both": {**everything, "servers": ["a", "b"], "tags": ["new"], "tools": ["*__read"]},
        "all": {**everything, "servers": ["*"], "tags": ["*"], "tools": ["*"]},
        "none": {**everything, "servers": []},
        "untagged": {**everything, "tags": []},
        "toolless": {**everything, "tools": []},
        "grouped": {**everything, "groups": ["writers", "c"]},
    }
    groups = {"writers": {"tools": ["write"]}, "c": {"servers": ["c"]}}
    expected = {
        "one": {"a__read", "a__write"},
        "vcs": {"a__read", "a__write", "b__read"},
        "reads": {"a__read", "b__read", "c__read"},
        "both": {"b__read"},
        "all": {"a__read", "a__write", "b__read", "c__read"},
        "none": set(),
        "untagged": set(),
        "toolless": set(),
        "grouped": {"a__write", "c__read"},
    }
    async with running_gateway(
        tmp_path, {"a": a, "b": b, "c": c}, gateway={"profiles": profiles, "groups": groups}
    ) as gateway:
        await until_all_ready(gateway, "a", "b", "c")
        visitor = Visitor(gateway=gateway, era=era)
        for profile, names in expected.items():
            assert set(await visitor.listed(profile)) - ALWAYS == names, profile
            for name in sorted(expected["all"] - names):
                alias, _, plain = name.partition("__")
                refused = await visitor.called(
                    "invoke_tool", {"server": alias, "tool": plain, "arguments": {}}, profile
                )
                assert refused["isError"], (profile, name)
                answer = (await visitor.sent("tools/call", {"name": name, "arguments": {}}, profile)).json()
                assert "error" in answer or answer["result"]["isError"], (profile, name)
        refused = await visitor.called("invoke_tool", {"server": "b", "tool": "read", "arguments": {}}, "one")
        assert "Servers: a." in text_of(refused)
        assert record_a.calls() == record_b.calls() == []
        assert not (await visitor.called("b__read", {}, "both")).get("isError")
        assert (await gateway.client.post(f"{gateway.url}/nobody", json={})).status_code == 404


async def test_session_is_bound_to_its_path(tmp_path: Path) -> None:
    config, record = server(tmp_path, "a", [tool("read")])
    profiles = {"one": {"servers": ["a"]}, "two": {"servers": []}}
    async with running_gateway(tmp_path, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        head = await Visitor(gateway=gateway, era="2025-11-25").session("two")
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "a__read", "arguments": {}}}
        assert (await gateway.client.post(f"{gateway.url}/one", json=call, headers=head)).status_code == 404
        assert (await gateway.client.post(gateway.url, json=call, headers=head)).status_code == 404
        assert record.calls() == []


@in_both_eras
@pytest.mark.parametrize("disclosure", ["eager", "lazy", "auto"])
async def test_instructions_name_convention_mode_fallback_and_listed_tools_only(
    disclosure: str, era: str, tmp_path: Path
) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    profiles = {
        "default": {"disclosure": disclosure},
        "own": {"instructions": "Do as I say."},
        "long": {"instructions": "x" * 3_000},
    }
    async with running_gateway(tmp_path, {"office": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "office")
        visitor = Visitor(gateway=gateway, era=era)
        instructions = (await visitor.greeted())["instructions"]
        assert instructions == (await gateway.rpc("server/discover"))["result"]["instructions"]
        assert len(instructions) <= 2_000
        assert "two underscores" in instructions[:250]
        assert "If a typed name is refused in mid-conversation, use invoke_tool" in instructions
        assert ("find_tools" in instructions) == (disclosure == "lazy")
        names = set(await visitor.listed())
        assert set(re.findall(r"\b\w[\w-]*__\w+", instructions)) <= names
        assert (await visitor.greeted("own"))["instructions"] == "Do as I say."
        assert len((await visitor.greeted("long"))["instructions"]) == 2_000


@in_both_eras
async def test_servers_and_details_are_available_where_tools_are_deferred(era: str, tmp_path: Path) -> None:
    a, _ = server(tmp_path, "a", [MAIL], displayName="Mail", supplement="For letters.", siblings=["b"])
    b, _ = server(tmp_path, "b", [tool("read"), tool("list")])
    async with running_gateway(tmp_path, {"a": a, "b": b}, gateway=LAZY) as gateway:
        await until_all_ready(gateway, "a", "b")
        visitor = Visitor(gateway=gateway, era=era)
        servers = (await visitor.called("list_servers", {}))["structuredContent"]["servers"]
        assert [(one["server"], one["displayName"], one["tools"], one["reachable"]) for one in servers] == [
            ("a", "Mail", 1, True), ("b", "b", 2, True),
        ]  # fmt: skip
        details = (await visitor.called("get_server_details", {"server": "a"}))["structuredContent"]
        shown = ("Mail", "For letters.", ["b"])
        assert (details["displayName"], details["supplement"], details["siblings"]) == shown
        row = await gateway.server("a")
        assert (row["displayName"], row["supplement"], row["siblings"]) == shown
        assert list(details["toolNames"]) == ["a__send_mail"]
        wrong = await visitor.called("get_server_details", {"server": "c"})
        assert wrong["isError"]
        assert "Servers: a, b." in text_of(wrong)


@in_both_eras
async def test_any_query_is_searched_literally_and_an_invalid_one_is_reported(era: str, tmp_path: Path) -> None:
    config, _ = server(tmp_path, "a", [MAIL])
    async with running_gateway(tmp_path, {"a": config}, gateway=LAZY) as gateway:
        await until_all_ready(gateway, "a")
        visitor = Visitor(gateway=gateway, era=era)
        for bad in ({}, {"query": ""}, {"query": [{}]}, {"query": "x", "limit": 0}, {"query": "x", "limit": "few"}):
            assert (await visitor.called("find_tools", bad)).get("isError"), bad
        for odd in ('"', "AND OR NOT *", "x" * 100_000, "\u0000 \U0001f600", "NEAR(a b)"):
            assert not (await visitor.called("find_tools", {"query": odd})).get("isError"), odd


async def test_caller_outside_a_profile_learns_nothing_of_it(tmp_path: Path) -> None:
    seen, record = server(tmp_path, "seen", [tool("read")])
    hidden, _ = server(tmp_path, "hidden", [tool("secret_word")])
    profiles = {"one": {"servers": ["seen"], "disclosure": "lazy"}}
    async with running_gateway(tmp_path, {"seen": seen, "hidden": hidden}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "seen", "hidden")
        visitor = Visitor(gateway=gateway, era="2026-07-28")
        everything = [
            await visitor.listed("one"),
            await visitor.greeted("one"),
            *[await visitor.called(name, {"query": "secret word", "server": "hidden"}, "one") for name in sorted(OWN)],
            await visitor.request("prompts/get", {"name": "gateway_tools", "arguments": {}}, "one"),
        ]
        text = json.dumps(everything)
        assert "secret_word" not in text
        assert text.count("hidden") == text.count("there is no server 'hidden'")
        assert record.calls() == []
        assert (await (await handshake(gateway)).call("hidden__secret_word"))["result"]


async def test_profile_selectors_without_effect_are_reported(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "a", [tool("read")], tags=["vcs"])
    profiles = {
        "typo": {
            "servers": ["a", "aa*"],
            "tags": ["vsc"],
            "tools": ["raed", "*"],
            "guidance": {"vcs": "x", "v*": "y"},
        },
        "sound": {"servers": ["*"], "tags": ["v*"], "tools": ["a__*"], "guidance": {"vcs": "x"}},
    }
    async with running_gateway(tmp_path, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        rows = {row["name"]: row["warnings"] for row in (await gateway.admin("profiles")).json()["profiles"]}
        assert rows["sound"] == rows["default"] == []
        assert rows["typo"] == [
            "servers: aa* selects nothing",
            "tags: vsc selects nothing; did you mean vcs?",
            "tools: raed selects nothing; did you mean read?",
            "it selects no tool at all",
            "guidance: v* selects nothing",
        ]
