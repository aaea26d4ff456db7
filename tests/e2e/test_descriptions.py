"""Descriptions with supplements and siblings, and hints that hosts search by (rows S1-S12, X13)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from e2e.test_profiles import MAIL, server, until_all_ready
from support.gateways import RunningGateway, brief_pause, running_gateway
from support.upstreams.running import scripted_http_server, tool
from support.visitors import CHANGED, OWN, Visitor, in_both_eras

FILINGS = [tool("read"), tool("list")]


async def until_described(visitor: Visitor, name: str, description: str) -> None:
    with anyio.fail_after(25):
        while (await visitor.listed())[name]["description"] != description:
            await brief_pause()


async def noted(gateway: RunningGateway, wrapper: str, text: str) -> None:
    answer = await gateway.admin("notes", "POST", {"wrapper": wrapper, "text": text})
    assert answer.status_code == 201, answer.text


@in_both_eras
async def test_supplements_follow_the_upstream_description_in_order(era: str, tmp_path: Path) -> None:
    a, record = server(
        tmp_path, "a", FILINGS, tags=["filings"], displayName="The filings", supplement="Server text.", siblings=["b"],
        tools={"read": {"supplement": "Tool text.", "examples": [{"year": 2024}]}},
    )  # fmt: skip
    b, _ = server(tmp_path, "b", [tool("find")], displayName="History")
    c, _ = server(tmp_path, "c", [tool("sum")], tags=["filings"])
    profiles = {
        "sec": {
            "disclosure": "eager",
            "supplements": {"a__read": "Profile text.", "a__list": "Server text.", "a__gone": "x"},
            "guidance": {"filings": "Cite the filing."},
        },
        "user": {"disclosure": "eager"},
    }
    async with running_gateway(tmp_path, {"a": a, "b": b, "c": c}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a", "b", "c")
        await noted(gateway, "a__read", "Slow on Mondays.")
        visitor = Visitor(gateway=gateway, era=era)
        sec, user = await visitor.listed("sec"), await visitor.listed("user")
        parts = ["Does read.", "Server text.", "Tool text.", "Profile text.", "Cite the filing."]
        read = "\n\n".join([*parts, "Related server: b (History).", "Slow on Mondays."])
        assert sec["a__read"]["description"] == f'{read}\n\nExamples:\n{{"year":2024}}'
        assert sec["a__list"]["description"] == (
            "Does list.\n\nServer text.\n\nCite the filing.\n\nRelated server: b (History)."
        )
        # The guidance is added to every server with its tag, and to no other server or profile.
        assert sec["c__sum"]["description"] == "Does sum.\n\nCite the filing."
        assert sec["b__find"]["description"] == "Does find.\n\nRelated server: a (The filings)."
        assert "Cite the filing" not in json.dumps([user, await visitor.listed()])
        assert user["c__sum"]["description"] == "Does sum."
        for name in ("a__read", "a__list", "b__find", "c__sum"):
            assert {**sec[name], "description": ""} == {**user[name], "description": ""}
        rows = {row["name"]: row for row in (await gateway.admin("profiles")).json()["profiles"]}
        assert rows["sec"]["warnings"] == ["supplements: a__gone is not a wrapper"]
        assert rows["user"]["warnings"] == []
        assert len(record.requests("tools/list")) == 1


@in_both_eras
async def test_paths_differ_and_clients_on_one_path_read_the_same_bytes(era: str, tmp_path: Path) -> None:
    config, _ = server(tmp_path, "a", [MAIL])
    profiles = {"sec": {"supplements": {"a__send_mail": "Never to strangers."}}, "user": {}}
    async with running_gateway(tmp_path, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        one, other = Visitor(gateway=gateway, era=era), Visitor(gateway=gateway, era=era)
        sec, user = [(await one.sent("tools/list", profile=path)).content for path in ("sec", "user")]
        assert sec != user
        assert (await other.sent("tools/list", profile="sec")).content == sec
        assert (await other.sent("tools/list", profile="user")).content == user
        shown = (await one.listed("sec"))["a__send_mail"]
        assert shown["description"] == "Does send_mail.\n\nNever to strangers."
        assert shown["inputSchema"] == MAIL["inputSchema"]


@in_both_eras
async def test_sibling_is_named_while_it_is_served(era: str, tmp_path: Path) -> None:
    a, record = server(tmp_path, "a", [tool("read")], siblings=["b", "never"])
    async with scripted_http_server(tmp_path, "b", tools=[tool("find")]) as b:
        async with running_gateway(tmp_path, {"a": a, "b": b.config}) as gateway:
            await until_all_ready(gateway, "a", "b")
            visitor = Visitor(gateway=gateway, era=era)
            both = "Does read.\n\nRelated server: b."
            await until_described(visitor, "a__read", both)
            assert (await visitor.listed())["b__find"]["description"] == "Does find.\n\nRelated server: a."
            async with visitor.changes() as changes, anyio.create_task_group() as group:
                await b.stop()
                # Only now is it known to be gone; the call itself waits until it is back.
                group.start_soon(visitor.called, "b__find", {})
                assert (await changes.next())["method"] == CHANGED
                assert (await visitor.listed())["a__read"]["description"] == "Does read."
                await b.start()
                assert (await changes.next())["method"] == CHANGED
                assert (await visitor.listed())["a__read"]["description"] == both
        assert len(record.requests("tools/list")) == 1


@in_both_eras
async def test_supplements_are_truncated_with_a_mark_and_upstream_text_is_not(era: str, tmp_path: Path) -> None:
    long = {**tool("long"), "description": "u" * 3_000}
    shown = {"examples": [{"a": 1}]}
    room = 2_048 - len("Does full.") - 2
    config, _ = server(
        tmp_path, "a", [tool("read"), long, tool("full")], tools={"read": shown, "long": shown, "full": shown}
    )
    profiles = {"p": {"supplements": {"a__full": "f" * room, "a__read": "s" * 5_000, "a__long": "s"}}}
    async with running_gateway(tmp_path, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        tools = await Visitor(gateway=gateway, era=era).listed("p")
        assert tools["a__long"]["description"] == "u" * 3_000 + " […]"
        described = tools["a__read"]["description"]
        assert described.startswith("Does read.\n\nsss")
        assert described.endswith(" […]")
        assert len(described) == 2_048
        # Examples give way first: not a letter of the prose is lost for them.
        assert tools["a__full"]["description"] == f"Does full.\n\n{'f' * room}"
        [row] = [one for one in (await gateway.admin("profiles")).json()["profiles"] if one["name"] == "p"]
        limit, cut = "left out: a description has 2048 characters", 5_000 - (len(described) - len("Does read.\n\n […]"))
        assert row["warnings"] == [
            f"supplements: a__full: its examples {limit}",
            f"supplements: a__long: 1 of 1 characters of the additions and its examples {limit}",
            f"supplements: a__read: {cut} of 5000 characters of the additions and its examples {limit}",
        ]


@pytest.mark.heavy
@in_both_eras
async def test_list_without_supplements_is_unchanged_byte_for_byte(era: str, tmp_path: Path) -> None:
    config, _ = server(tmp_path, "a", [MAIL])
    async with running_gateway(tmp_path, {"a": config}) as gateway:
        await until_all_ready(gateway, "a")
        plain = (await Visitor(gateway=gateway, era=era).sent("tools/list")).content
    (here := tmp_path / "again").mkdir()
    profiles = {"default": {"disclosure": "eager"}, "other": {"supplements": {"a__send_mail": "x", "a__no": "y"}}}
    async with running_gateway(here, {"a": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "a")
        assert (await Visitor(gateway=gateway, era=era).sent("tools/list")).content == plain
        rows = {row["name"]: row for row in (await gateway.admin("profiles")).json()["profiles"]}
        assert rows["other"]["warnings"] == ["supplements: a__no is not a wrapper"]


@in_both_eras
async def test_configured_hints_apply_where_the_upstream_has_none(era: str, tmp_path: Path) -> None:
    hinted = {**tool("b"), "annotations": {"readOnlyHint": False, "x": 1}, "_meta": {"mine": 1}}
    reads = {"readOnlyHint": True, "openWorldHint": False}
    overlay = {"annotations": reads, "searchHint": "post letter", "alwaysLoad": True}
    config, _ = server(tmp_path, "s", [tool("a"), hinted], tools={"a": overlay, "b": overlay})
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await until_all_ready(gateway, "s")
        tools = await Visitor(gateway=gateway, era=era).listed()
        hints = {"anthropic/searchHint": "post letter", "anthropic/alwaysLoad": True}
        assert tools["s__a"]["annotations"] == reads
        assert tools["s__b"]["annotations"] == {"readOnlyHint": False, "x": 1, "openWorldHint": False}
        assert (tools["s__a"]["_meta"], tools["s__b"]["_meta"]) == (hints, {"mine": 1, **hints})


@in_both_eras
async def test_titles_and_descriptions_contain_the_words_hosts_search(era: str, tmp_path: Path) -> None:
    wordless = {"name": "getOpen_orders", "inputSchema": {"type": "object"}}
    titled = {**tool("close"), "title": "Close it"}
    telling = {**tool("sum"), "description": "The sum of what the shop on the web has sold."}
    config, _ = server(tmp_path, "web-shop", [wordless, titled, telling])
    profiles = {"host": {"dialect": "claude-code", "supplements": {"web-shop__close": "Ask first."}}}
    async with running_gateway(tmp_path, {"web-shop": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "web-shop")
        visitor = Visitor(gateway=gateway, era=era)
        tools = await visitor.listed("host")
        assert tools["web-shop__getOpen_orders"]["title"] == "web shop: get Open orders"
        for shown in tools.values():
            description = shown["description"].lower()
            assert shown["name"] in OWN or all(word in description for word in ("web", "shop")), description
        assert "get Open orders" in tools["web-shop__getOpen_orders"]["description"]
        assert tools["web-shop__close"]["title"] == "Close it"
        assert tools["web-shop__close"]["description"] == "Does close.\n\nAsk first.\n\nweb shop: close."
        # A description that already has these words is not extended.
        assert tools["web-shop__sum"]["description"] == telling["description"]
        assert (await visitor.listed())["web-shop__close"]["description"] == "Does close."


@in_both_eras
async def test_hints_of_a_server_apply_to_its_tools_unless_overridden(era: str, tmp_path: Path) -> None:
    own = {**tool("own"), "annotations": {"readOnlyHint": False}}
    config, _ = server(
        tmp_path, "s", [tool("a"), tool("b"), own],
        annotations={"readOnlyHint": True, "openWorldHint": False}, searchHint="post letter", alwaysLoad=True,
        tools={"b": {"annotations": {"openWorldHint": True}, "searchHint": "parcel", "alwaysLoad": False}},
    )  # fmt: skip
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await until_all_ready(gateway, "s")
        tools = await Visitor(gateway=gateway, era=era).listed()
        assert tools["s__a"]["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
        assert tools["s__a"]["_meta"] == {"anthropic/searchHint": "post letter", "anthropic/alwaysLoad": True}
        assert tools["s__b"]["annotations"] == {"readOnlyHint": True, "openWorldHint": True}
        assert tools["s__b"]["_meta"] == {"anthropic/searchHint": "parcel"}
        assert tools["s__own"]["annotations"] == {"readOnlyHint": False, "openWorldHint": False}


@in_both_eras
async def test_hosts_learn_which_tools_are_pinned_ask_a_person_or_have_long_results(era: str, tmp_path: Path) -> None:
    limited = {**tool("limited"), "_meta": {"anthropic/maxResultSizeChars": 7, "mine": 1}}
    config, _ = server(
        tmp_path, "s", [*map(tool, ("pinned", "off", "asks", "sometimes", "elsewhere", "plain")), limited],
        maxResultSizeChars=90_000,
        tools={
            "pinned": {"pinned": True, "maxResultSizeChars": 120_000}, "off": {"pinned": True, "alwaysLoad": False}
        },
    )  # fmt: skip
    condition = {"arguments": {"to": {"present": True}}}
    rules = [
        {"name": "always", "groups": ["staff"], "ask": ["s__asks"]},
        {"name": "at times", "ask": {"tools": ["s__sometimes"], "when": condition}},
        {"name": "by others", "ask": {"tools": ["s__elsewhere"], "by": "administrator"}},
    ]
    keys = [{"name": "ann", "key": "of-ann", "groups": ["staff"]}, {"name": "bob", "key": "of-bob"}]
    gateway = {
        "profiles": {"claude": {"dialect": "claude-code"}, "codex": {"dialect": "codex"}},
        "policy": {"rules": rules}, "auth": {"apiKeys": keys},
    }  # fmt: skip
    size, load, user = (f"anthropic/{key}" for key in ("maxResultSizeChars", "alwaysLoad", "requiresUserInteraction"))
    async with running_gateway(tmp_path, {"s": config}, gateway=gateway) as running:
        await until_all_ready(running, "s")
        for name, profile in (("bob", "claude"), ("ann", "claude"), ("ann", "codex")):
            running.client.headers["authorization"] = f"Bearer of-{name}"
            tools = await Visitor(gateway=running, era=era).listed(profile)
            met = {key.removeprefix("s__"): one["_meta"] for key, one in tools.items() if key.startswith("s__")}
            assert met == {
                "pinned": {size: 120_000, **({load: True} if profile == "claude" else {})},
                "off": {size: 90_000},
                "asks": {size: 90_000, **({user: True} if name == "ann" else {})},
                "sometimes": {size: 90_000},
                "elsewhere": {size: 90_000},
                "plain": {size: 90_000},
                "limited": {size: 7, "mine": 1},
            }, (name, profile)


@in_both_eras
async def test_sibling_outside_the_profile_is_not_named(era: str, tmp_path: Path) -> None:
    a, _ = server(tmp_path, "a", [tool("read")], siblings=["b", "empty", "hidden"])
    b, _ = server(tmp_path, "b", [tool("read")])
    empty, _ = server(tmp_path, "empty", [])
    hidden, _ = server(tmp_path, "hidden", [tool("write")], deny=["*"])
    servers = {"a": a, "b": b, "empty": empty, "hidden": hidden}
    profiles = {"alone": {"servers": ["a"]}, "writers": {"tools": ["a__read", "b__write"]}}
    async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, *servers)
        visitor = Visitor(gateway=gateway, era=era)
        assert (await visitor.listed())["a__read"]["description"] == "Does read.\n\nRelated server: b."
        for profile in ("alone", "writers"):
            assert (await visitor.listed(profile))["a__read"]["description"] == "Does read.", profile
            details = await visitor.called("get_server_details", {"server": "a"}, profile)
            assert "siblings" not in details["structuredContent"], profile
        details = await visitor.called("get_server_details", {"server": "a"})
        assert details["structuredContent"]["siblings"] == ["b"]
