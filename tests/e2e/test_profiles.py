"""Profiles: what each path shows, how much of it, and in which words."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from callers import HandshakeSession, get_stream, handshake
from gateways import MODERN, RunningGateway, answer_of, envelope, glance_again, running_gateway, text_of
from upstreams.running import Recording, scripted_stdio_server, tool

MAIL = tool("send_mail", "to", to={"type": "string", "description": "Whom to write to."})
FILINGS = [tool("read"), tool("list")]
OWN = {"invoke_tool", "find_tools", "list_servers", "get_server_details"}


def server(
    tmp_path: Path, name: str, definitions: list[dict[str, Any]], /, **options: Any
) -> tuple[dict[str, Any], Recording]:
    config, record = scripted_stdio_server(tmp_path, name, tools=definitions, list_changed=True)
    return {**config, **options}, record


def many(tmp_path: Path, count: int, **options: Any) -> dict[str, Any]:
    tools = [tool(f"tool_{number:03}") for number in range(count)]
    return server(tmp_path, "many", tools, **options)[0]


async def listed(gateway: RunningGateway, profile: str | None = None) -> dict[str, dict[str, Any]]:
    whole = (await asked(gateway, "tools/list", profile=profile))["tools"]
    return {one["name"]: one for one in whole}


async def asked(
    gateway: RunningGateway, method: str, params: dict[str, Any] | None = None, profile: str | None = None
) -> dict[str, Any]:
    url = gateway.url if profile is None else f"{gateway.url}/{profile}"
    named = {"mcp-name": params["name"]} if params and "name" in params else {}
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method, **named,
    }  # fmt: skip
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": envelope()}}
    response = await gateway.client.post(url, json=body, headers=headers, timeout=30)
    answer = answer_of(response)
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def called(gateway: RunningGateway, name: str, arguments: Any, profile: str | None = None) -> dict[str, Any]:
    return await asked(gateway, "tools/call", {"name": name, "arguments": arguments}, profile)


async def until_all_ready(gateway: RunningGateway, *names: str) -> None:
    with anyio.fail_after(10):
        for name in names:
            while (await gateway.server(name))["state"] != "ready":
                await glance_again()


async def test_a_denied_tool_is_nowhere_to_be_seen_or_called(tmp_path: Path) -> None:
    config, record = server(tmp_path, "fs", [tool("delete_all"), tool("read")], deny=["delete_*"])
    profiles = {"default": {"disclosure": "lazy"}}
    async with running_gateway(tmp_path, {"fs": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "fs")
        assert set(await listed(gateway)) == OWN
        assert "delete_all" not in json.dumps(await called(gateway, "find_tools", {"query": "delete all"}))
        assert "delete_all" not in json.dumps(await called(gateway, "get_server_details", {"server": "fs"}))
        for name, arguments in (
            ("fs__delete_all", {}),
            ("invoke_tool", {"server": "fs", "tool": "delete_all", "arguments": {}}),
            ("invoke_tool", {"server": "fs", "tool": "fs__delete_all"}),
        ):
            assert (await called(gateway, name, arguments))["isError"]
        assert record.calls() == []


async def test_lazy_lists_our_own_tools_and_pinned_ones_and_finds_the_rest(tmp_path: Path) -> None:
    config, record = server(
        tmp_path, "office", [MAIL, tool("count_days"), tool("ping")], tools={"ping": {"pinned": True}}
    )
    async with running_gateway(
        tmp_path, {"office": config}, gateway={"profiles": {"default": {"disclosure": "lazy"}}}
    ) as gateway:
        await until_all_ready(gateway, "office")
        before = await asked(gateway, "tools/list")
        assert {one["name"] for one in before["tools"]} == OWN | {"office__ping"}
        found = await called(gateway, "find_tools", {"query": "send mail"})
        best = found["structuredContent"]["tools"][0]
        assert (best["name"], best["inputSchema"]) == ("office__send_mail", MAIL["inputSchema"])
        assert json.loads(text_of(found)) == found["structuredContent"]
        assert not (await called(gateway, "office__send_mail", {"to": "a"})).get("isError")
        assert [one["arguments"] for one in record.calls()] == [{"to": "a"}]
        # For 2026-07-28 a list never depends on what was asked before.
        assert await asked(gateway, "tools/list") == before


async def test_a_session_of_the_handshake_era_grows_by_what_it_found_and_nobody_elses_does(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    async with running_gateway(
        tmp_path, {"office": config}, gateway={"profiles": {"default": {"disclosure": "lazy"}}}
    ) as gateway:
        await until_all_ready(gateway, "office")
        mine, other = await handshake(gateway), await handshake(gateway)
        body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
        params = {"name": "find_tools", "arguments": {"query": "send mail", "limit": 1}}
        response = await mine.post({**body, "params": params})
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert [one.get("method", "answer") for one in events] == ["notifications/tools/list_changed", "answer"]
        assert await names_of(mine) == [*sorted(OWN), "office__send_mail"]
        assert await names_of(other) == sorted(OWN)


async def names_of(session: HandshakeSession) -> list[str]:
    response = await session.post({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})
    return sorted(one["name"] for one in response.json()["result"]["tools"])


async def test_a_budget_is_kept_and_the_rest_is_found_and_callable(tmp_path: Path) -> None:
    profiles = {"default": {"disclosure": "auto", "maxTools": 100, "maxTokens": 1_000_000}}
    config = many(tmp_path, 130, tools={"tool_129": {"pinned": True}, "tool_128": {"priority": 5}})
    lists = []
    for again in ("one", "two"):
        (here := tmp_path / again).mkdir()
        async with running_gateway(here, {"many": config}, gateway={"profiles": profiles}) as gateway:
            await until_all_ready(gateway, "many")
            first = await asked(gateway, "tools/list")
            assert await asked(gateway, "tools/list") == first
            lists.append(first["tools"])
            names = {one["name"] for one in first["tools"]}
            assert len(first["tools"]) == 100
            assert names >= OWN | {"many__tool_129", "many__tool_128", "many__tool_000"}
            hidden = next(f"many__tool_{n:03}" for n in range(130) if f"many__tool_{n:03}" not in names)
            found = await called(gateway, "find_tools", {"query": hidden.replace("_", " "), "limit": 3})
            assert hidden in [one["name"] for one in found["structuredContent"]["tools"]]
            assert not (await called(gateway, hidden, {})).get("isError")
            [budget] = (await gateway.admin("budget")).json()["profiles"]
            reasons = {one["name"]: one["reason"] for one in budget["wrappers"]}
            assert (reasons["many__tool_129"], reasons[hidden]) == ("pinned", "over maxTools")
            assert budget["tools"] == 100
    assert lists[0] == lists[1]


async def test_what_fits_is_listed_whole_and_a_token_budget_is_kept_too(tmp_path: Path) -> None:
    profiles = {"default": {"disclosure": "auto"}, "small": {"maxTokens": 1_200}}
    async with running_gateway(tmp_path, {"many": many(tmp_path, 60)}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "many")
        assert len(await listed(gateway)) == 61
        assert "find_tools" not in await listed(gateway)
        small = await listed(gateway, "small")
        assert 10 < len(small) < 50
        rows = {one["profile"]: one for one in (await gateway.admin("budget")).json()["profiles"]}
        assert rows["small"]["tokens"] <= 1_200
        assert rows["default"]["tools"] == 61


async def test_a_profile_selects_by_server_tag_tool_and_group_and_that_is_enforced(tmp_path: Path) -> None:
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
        "grouped": {**everything, "groups": ["writers", "c"]},
    }
    groups = {"writers": {"tools": ["write"]}, "c": {"servers": ["c"]}}
    async with running_gateway(
        tmp_path, {"a": a, "b": b, "c": c}, gateway={"profiles": profiles, "groups": groups}
    ) as gateway:
        await until_all_ready(gateway, "a", "b", "c")
        expected = {
            "one": {"a__read", "a__write"},
            "vcs": {"a__read", "a__write", "b__read"},
            "reads": {"a__read", "b__read", "c__read"},
            "both": {"b__read"},
            "all": {"a__read", "a__write", "b__read", "c__read"},
            "none": set(),
            "grouped": {"a__write", "c__read"},
        }
        for profile, names in expected.items():
            assert set(await listed(gateway, profile)) - {"invoke_tool"} == names, profile
        refused = await called(gateway, "invoke_tool", {"server": "b", "tool": "read", "arguments": {}}, "one")
        assert refused["isError"]
        assert "Servers: a." in text_of(refused)
        assert record_b.calls() == []
        for name in ("b__read", "a__nothing"):
            answer = await gateway.client.post(
                f"{gateway.url}/one",
                json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
                headers={"accept": "application/json, text/event-stream"},
            )
            headers = {
                "accept": "application/json, text/event-stream", "mcp-session-id": answer.headers["mcp-session-id"],
            }  # fmt: skip
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": {}}}
            told = (await gateway.client.post(f"{gateway.url}/one", json=call, headers=headers)).json()
            assert "error" in told or told["result"]["isError"], name
            # A session is of its path.
            assert (await gateway.client.post(f"{gateway.url}/vcs", json=call, headers=headers)).status_code == 404
        assert record_a.calls() == record_b.calls() == []
        assert (await gateway.client.post(f"{gateway.url}/nobody", json={})).status_code == 404


async def test_supplements_follow_the_upstreams_words_in_their_order_and_each_once(tmp_path: Path) -> None:
    a, record = server(
        tmp_path, "a", FILINGS, tags=["filings"], displayName="The filings", supplement="Server text.", siblings=["b"],
        tools={"read": {"supplement": "Tool text.", "examples": [{"year": 2024}]}},
    )  # fmt: skip
    b, _ = server(tmp_path, "b", [tool("find")], displayName="History")
    profiles = {
        "sec": {
            "disclosure": "eager",
            "supplements": {"a__read": "Profile text.", "a__list": "Server text.", "a__gone": "x"},
            "guidance": {"filings": "Cite the filing."},
        },
        "user": {"disclosure": "eager"},
    }
    async with running_gateway(tmp_path, {"a": a, "b": b}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a", "b")
        sec, user = await listed(gateway, "sec"), await listed(gateway, "user")
        parts = ["Does read.", "Server text.", "Tool text.", "Profile text.", "Cite the filing."]
        read = "\n\n".join([*parts, "Related server: b (History)."])
        assert sec["a__read"]["description"] == f'{read}\n\nExamples:\n{{"year":2024}}'
        assert sec["a__list"]["description"] == (
            "Does list.\n\nServer text.\n\nCite the filing.\n\nRelated server: b (History)."
        )
        assert "Cite the filing" not in json.dumps(user)
        assert {**sec["a__read"], "description": ""} == {**user["a__read"], "description": ""}
        assert sec["b__find"]["description"] == "Does find.\n\nRelated server: a (The filings)."
        assert await listed(gateway, "sec") == sec
        rows = {row["name"]: row for row in (await gateway.admin("profiles")).json()["profiles"]}
        assert rows["sec"]["warnings"] == ["supplements: a__gone is no wrapper"]
        assert rows["user"]["warnings"] == []
        assert len(record.requests("tools/list")) == 1


async def test_a_sibling_is_named_while_it_is_served(tmp_path: Path) -> None:
    a, _ = server(tmp_path, "a", [tool("read")], siblings=["b", "never"])
    b, record = server(tmp_path, "b", [tool("find")])
    async with running_gateway(tmp_path, {"a": a, "b": b}) as gateway:
        await until_all_ready(gateway, "a", "b")
        session = await handshake(gateway)

        async def until(description: str) -> None:
            with anyio.fail_after(10):
                while (await listed(gateway))["a__read"]["description"] != description:
                    await glance_again()

        await until("Does read.\n\nRelated server: b.")
        async with get_stream(session) as stream:
            os.kill(record.starts()[-1], signal.SIGKILL)
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            await until("Does read.\n\nRelated server: b.")


async def test_what_is_added_is_cut_with_a_mark_and_never_what_the_upstream_wrote(tmp_path: Path) -> None:
    long = {**tool("long"), "description": "u" * 3_000}
    config, _ = server(
        tmp_path, "a", [tool("read"), long], supplement="s" * 5_000, tools={"read": {"examples": [{"a": 1}]}}
    )
    async with running_gateway(tmp_path, {"a": config}) as gateway:
        await until_all_ready(gateway, "a")
        tools = await listed(gateway)
        assert tools["a__long"]["description"] == "u" * 3_000
        described = tools["a__read"]["description"]
        assert described.startswith("Does read.\n\nsss")
        assert described.endswith(" […]")
        assert len(described) == 2_048


async def test_without_context_a_list_is_what_it_was(tmp_path: Path) -> None:
    config, _ = server(tmp_path, "a", [MAIL])
    async with running_gateway(tmp_path, {"a": config}) as gateway:
        await until_all_ready(gateway, "a")
        plain = (await gateway.rpc("tools/list"))["result"]
    (here := tmp_path / "again").mkdir()
    profiles = {"default": {"disclosure": "eager"}, "other": {"supplements": {"a__send_mail": "x"}}}
    async with running_gateway(here, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        assert (await gateway.rpc("tools/list"))["result"] == plain


async def test_hints_of_the_configuration_stand_where_the_upstream_has_none(tmp_path: Path) -> None:
    hinted = {**tool("b"), "annotations": {"readOnlyHint": False, "x": 1}, "_meta": {"mine": 1}}
    reads = {"readOnlyHint": True, "openWorldHint": False}
    said = {"annotations": reads, "searchHint": "post letter", "alwaysLoad": True}
    config, _ = server(tmp_path, "s", [tool("a"), hinted], tools={"a": said, "b": said})
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await until_all_ready(gateway, "s")
        tools = await listed(gateway)
        hints = {"anthropic/searchHint": "post letter", "anthropic/alwaysLoad": True}
        assert tools["s__a"]["annotations"] == reads
        assert tools["s__b"]["annotations"] == {"readOnlyHint": False, "x": 1, "openWorldHint": False}
        assert (tools["s__a"]["_meta"], tools["s__b"]["_meta"]) == (hints, {"mine": 1, **hints})


@pytest.mark.parametrize("disclosure", ["eager", "lazy", "auto"])
async def test_instructions_are_the_same_in_both_eras_and_name_only_what_is_listed(
    tmp_path: Path, disclosure: str
) -> None:
    config, _ = server(tmp_path, "office", [MAIL, tool("count_days")])
    profiles = {"default": {"disclosure": disclosure}, "own": {"instructions": "Do as I say."}}
    async with running_gateway(tmp_path, {"office": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "office")
        modern = (await asked(gateway, "server/discover"))["instructions"]
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
        accept = {"accept": "application/json, text/event-stream"}
        older = (await gateway.client.post(gateway.url, json=hello, headers=accept)).json()["result"]["instructions"]
        assert modern == older
        assert len(modern) <= 2_000
        assert "invoke_tool" in modern
        assert "two underscores" in modern[:250]
        assert ("find_tools" in modern) == (disclosure == "lazy")
        names = set(await listed(gateway))
        assert set(re.findall(r"\b\w[\w-]*__\w+", modern)) <= names
        assert (await asked(gateway, "server/discover", profile="own"))["instructions"] == "Do as I say."


async def test_servers_and_their_details_can_be_asked_for_where_something_is_left_out(tmp_path: Path) -> None:
    a, _ = server(tmp_path, "a", [MAIL], displayName="Mail", supplement="For letters.", siblings=["b"])
    b, _ = server(tmp_path, "b", FILINGS)
    async with running_gateway(
        tmp_path, {"a": a, "b": b}, gateway={"profiles": {"default": {"disclosure": "lazy"}}}
    ) as gateway:
        await until_all_ready(gateway, "a", "b")
        servers = (await called(gateway, "list_servers", {}))["structuredContent"]["servers"]
        assert [(one["server"], one["displayName"], one["tools"], one["reachable"]) for one in servers] == [
            ("a", "Mail", 1, True), ("b", "b", 2, True),
        ]  # fmt: skip
        details = (await called(gateway, "get_server_details", {"server": "a"}))["structuredContent"]
        assert (details["supplement"], details["siblings"]) == ("For letters.", ["b"])
        assert list(details["toolNames"]) == ["a__send_mail"]
        wrong = await called(gateway, "get_server_details", {"server": "c"})
        assert wrong["isError"]
        assert "Servers: a, b." in text_of(wrong)
        for bad in ({}, {"query": ""}, {"query": 7}, {"query": "x", "limit": 0}, {"query": "x", "limit": "5"}):
            assert (await called(gateway, "find_tools", bad))["isError"]
        for odd in ('"', "AND OR NOT *", "x" * 100_000, "\u0000 \U0001f600", "NEAR(a b)"):
            assert not (await called(gateway, "find_tools", {"query": odd})).get("isError"), odd
