"""Callers name the part of a result that they need; it is selected in the gateway, and never sent upstream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.callers import handshake
from support.gateways import running_gateway, text_of
from support.results import SELECT, in_profile, serving_results, text
from support.upstreams.running import scripted_stdio_server, tool

ISSUES = {
    "items": [{"number": n, "title": f"Issue {n}", "state": "open" if n % 2 else "closed"} for n in range(40)],
    "total": 40,
}


async def test_selection_works_in_both_eras_and_is_not_sent_upstream(tmp_path: Path) -> None:
    results = {
        "structured": {"content": [text(ISSUES)], "structuredContent": ISSUES},
        "plain": {"content": [text(ISSUES)]},
        "several": {"content": [text({"a": 1}), text("words"), text({"a": 2})]},
    }
    async with serving_results(tmp_path, results) as (gateway, recording):
        listed = await gateway.tools()
        assert "outputSchema" not in listed["up__plain"]
        assert "_select" in listed["up__plain"]["inputSchema"]["properties"]
        assert "read_result" in listed
        session = await handshake(gateway)
        wanted = {"query": "all", "_select": "items[?state=='open'].title"}
        expected = [f"Issue {n}" for n in range(1, 40, 2)]
        for name in ("structured", "plain"):
            modern = await gateway.call(f"up__{name}", wanted)
            assert json.loads(text_of(modern)) == expected
            older = (await session.call(f"up__{name}", wanted))["result"]
            assert json.loads(text_of(older)) == expected
            # Only objects may be structured content in that version.
            assert "structuredContent" not in older
            assert modern.get("structuredContent") == (expected if name == "structured" else None)
        pointed = await gateway.call("up__structured", {"_select": ["/total", "/items/3/title"]})
        assert pointed["structuredContent"] == {"/total": 40, "/items/3/title": "Issue 3"}
        mixed = await gateway.call("up__several", {"_select": "a"})
        assert [item["text"] for item in mixed["content"]] == ["1", "words", "2"]
        generic = await gateway.call(
            "invoke_tool", {"server": "up", "tool": "plain", "arguments": {"query": "q", "_select": "total"}}
        )
        assert text_of(generic) == "40"
        written = await gateway.call(
            "invoke_tool",
            {"server": "up", "tool": "plain", "arguments": json.dumps({"query": "q", "_select": "total"})},
        )
        assert text_of(written) == "40"
        whole = await gateway.call("up__plain", {"query": "q", "_select": None})
        assert json.loads(text_of(whole)) == ISSUES
        assert all("_select" not in json.dumps(call["params"]) for call in recording.calls())


@pytest.mark.heavy
async def test_unknown_field_is_answered_with_the_existing_names(tmp_path: Path) -> None:
    async with serving_results(tmp_path, {"list": {"content": [text(ISSUES)]}}) as (gateway, recording):
        nothing = text_of(await gateway.call("up__list", {"_select": "items[].titel"}))
        assert "no field 'titel' (did you mean 'title'?); the fields are: number, title, state" in nothing
        partly = (await gateway.call("up__list", {"_select": "items[0].{title: title, by: author}"}))["content"]
        assert json.loads(partly[0]["text"]) == {"title": "Issue 0", "by": None}
        assert "no field 'author'" in partly[1]["text"]
        described = text_of(await gateway.call("up__list", {"_select": "[]"}))
        assert "an object with the fields: items, total" in described
        assert len(recording.calls()) == 3


REFUSED: tuple[tuple[Any, str], ...] = (
    ("items[", "not a valid JMESPath expression"),
    ("lenght(items)", "no function 'lenght' (did you mean 'length'?)"),
    ("(" * 500 + "a" + ")" * 500, "at most 1000"),
    ("(" * 400 + "a" + ")" * 400 + "!", "not a valid JMESPath expression"),
    ({"items": True}, "must be a JMESPath expression"),
    (["items"], "not a JSON pointer"),
    (["/items"] * 51, "at most 50"),
)
COSTLY = (
    "|".join(["[@,@]"] * 60),
    "|".join(["[@,@][]"] * 60),
    "items[?" + "||".join(["contains(title,'zz')"] * 30) + "]|" + "|".join(["[@,@][]"] * 30),
    "to_string(" * 60 + "@" + ")" * 60,
    "total == (" * 70 + "total" + ")" * 70,
)


@pytest.mark.heavy
async def test_invalid_selections_are_refused_before_the_call_and_costly_ones_end(tmp_path: Path) -> None:
    async with serving_results(tmp_path, {"list": {"content": [text(ISSUES)]}}) as (gateway, recording):
        for select, reason in REFUSED:
            refused = await gateway.call("up__list", {"_select": select})
            assert refused["isError"] is True
            assert text_of(refused).startswith("Not called: `_select`: ")
            assert reason in text_of(refused)
        assert recording.calls() == []
        for select in COSTLY:
            answer = text_of(await gateway.call("up__list", {"_select": select}, timeout_s=60))
            assert len(answer) < 100_000
        assert text_of(await gateway.call("up__list", {"_select": "total"})) == "40"


@pytest.mark.heavy
async def test_errors_and_binary_content_stay_whole(tmp_path: Path) -> None:
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    results = {
        "failing": {"content": [text(ISSUES)], "isError": True},
        "drawing": {"content": [image, text({"a": {"b": 1}})]},
        "words": {"content": [text("no JSON")]},
    }
    async with serving_results(tmp_path, results) as (gateway, _):
        assert json.loads(text_of(await gateway.call("up__failing", {"_select": "total"}))) == ISSUES
        drawing = await gateway.call("up__drawing", {"_select": "a.b"})
        assert drawing["content"] == [image, text("1")]
        words = await gateway.call("up__words", {"_select": "a"})
        assert [item["text"] for item in words["content"]] == [
            "no JSON",
            "[`_select` was not applied: the result is not JSON.]",
        ]


@pytest.mark.heavy
async def test_tool_keeps_its_own_argument_of_the_same_name(tmp_path: Path) -> None:
    own = tool("own", _select="string")
    closed = tool("closed", a="string")
    closed["inputSchema"]["additionalProperties"] = False
    strange = {"name": "strange", "inputSchema": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}}
    config, recording = scripted_stdio_server(tmp_path, "up", tools=[own, closed, strange])
    servers = {"up": {**config, **SELECT, "tools": {"echo": {"results": {"select": False}}}}}
    async with running_gateway(tmp_path, servers) as gateway:
        listed = await gateway.until_listed("up__own", "up__closed", "up__strange")
        assert listed["up__own"]["inputSchema"] == own["inputSchema"]
        assert "properties" not in listed["up__strange"]["inputSchema"]
        await gateway.call("up__own", {"_select": "total"})
        assert recording.calls()[-1]["arguments"] == {"_select": "total"}
        assert (await gateway.call("up__closed", {"a": "x", "_select": "a"}))["content"][0]["text"] == "x"
        assert recording.calls()[-1]["arguments"] == {"a": "x"}


@pytest.mark.heavy
async def test_profile_server_and_tool_decide_together_who_may_select(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("a"), tool("b")])
    servers = {"up": {**config, "tools": {"b": {"results": {"select": False}}}}}
    profiles = {
        "default": {},
        "small": {"results": {"select": True}},
        "openai": {"results": {"select": True}, "dialect": "openai"},
    }
    async with running_gateway(tmp_path, servers, gateway={"profiles": profiles}) as gateway:
        listed = await gateway.until_listed("up__a", "up__b")
        assert "read_result" not in listed
        assert "_select" not in json.dumps(listed)
        unknown = await gateway.rpc("tools/call", {"name": "read_result", "arguments": {"handle": "x"}})
        assert "Unknown tool" in unknown["error"]["message"]
        for profile in ("small", "openai"):
            shown = await in_profile(gateway, profile).tools()
            assert "_select" in shown["up__a"]["inputSchema"]["properties"]
            assert "_select" not in json.dumps(shown["up__b"])
            assert "read_result" in shown
