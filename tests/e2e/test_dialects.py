"""Schemas are advertised in a profile's dialect, and calls are checked against the original (row X4)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.test_profiles import until_all_ready
from support.dialect_rules import violations
from support.gateways import running_gateway, text_of
from support.upstreams.running import scripted_stdio_server, tool
from support.visitors import OWN, Visitor, in_both_eras

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HARD: dict[str, Any] = {
    "name": "book",
    "description": "Books.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "where": {"$ref": "#/$defs/place"},
            "when": {"type": "string", "format": "date", "description": "The day."},
            "seats": {"type": "integer", "minimum": 1, "maximum": 9},
            "$weird key": {"type": "string"},
        },
        "required": ["where"],
        "$defs": {"place": PLACE},
    },
}
DIALECTS = (
    "mcp", "claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini-cli", "qwen-code", "opencode",
    "anthropic", "openai", "openai-strict", "gemini",
)  # fmt: skip


@in_both_eras
async def test_every_dialect_lists_every_tool_and_its_calls_arrive_in_original_form(era: str, tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "trips", tools=[HARD, tool("plain", "a")])
    profiles = {name: {"disclosure": "eager", "dialect": name} for name in DIALECTS}
    async with running_gateway(tmp_path, {"trips": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "trips")
        visitor = Visitor(gateway=gateway, era=era)
        for name in DIALECTS:
            tools = await visitor.listed(name)
            assert {"trips__book", "trips__plain"} <= set(tools), name
            schema = tools["trips__book"]["inputSchema"]
            assert schema["type"] == "object"
            if name == "mcp":
                assert tools["trips__book"] == {**HARD, "name": "trips__book"}
            else:
                assert tools["trips__book"]["title"]
            sent: dict[str, Any] = {"where": {"city": "Rome"}}
            weird = next(key for key in schema["properties"] if "weird" in key)
            sent[weird] = "x"
            if name == "openai-strict":
                assert set(schema["required"]) == set(schema["properties"])
                sent |= {"when": None, "seats": None}
            answer = await visitor.called("trips__book", sent, name)
            assert not answer.get("isError"), (name, text_of(answer))
            assert record.calls("book")[-1]["arguments"] == {"where": {"city": "Rome"}, "$weird key": "x"}, name
            # Arguments are checked against the original schema, even if the dialect cannot express it.
            wrong = await visitor.called("trips__book", {"where": {"city": "Rome"}, "seats": 10}, name)
            assert wrong["isError"], name
        assert len(record.calls("book")) == len(DIALECTS)
        rows = {row["name"]: row for row in (await gateway.admin("profiles")).json()["profiles"]}
        assert rows["mcp"]["weakened"] == []
        assert rows["gemini"]["weakened"] != []
        assert {"wrapper", "path", "keyword", "how", "narrower"} == set(rows["gemini"]["weakened"][0])


@in_both_eras
async def test_search_results_use_the_dialect_too(era: str, tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "trips", tools=[HARD])
    profiles = {"default": {"disclosure": "lazy", "dialect": "gemini"}}
    async with running_gateway(tmp_path, {"trips": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "trips")
        visitor = Visitor(gateway=gateway, era=era)
        [found] = (await visitor.called("find_tools", {"query": "book"}))["structuredContent"]["tools"]
        assert "$defs" not in str(found)
        if not visitor.modern:
            assert (await visitor.listed())["trips__book"]["inputSchema"] == found["inputSchema"]
        weird = next(key for key in found["inputSchema"]["properties"] if "weird" in key)
        assert not (await visitor.called("trips__book", {"where": {"city": "Rome"}, weird: "x"})).get("isError")


@in_both_eras
async def test_builtin_tools_use_the_dialect_too(era: str, tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "trips", tools=[tool("plain", "a")])
    profiles = {name: {"disclosure": "lazy", "dialect": name, "repair": "off"} for name in DIALECTS}
    async with running_gateway(tmp_path, {"trips": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "trips")
        visitor = Visitor(gateway=gateway, era=era)
        for name in DIALECTS:
            listed = await visitor.listed(name)
            assert set(listed) == OWN
            assert {own: violations(one, name) for own, one in listed.items()} == {own: [] for own in OWN}, name
            strict = name == "openai-strict"
            # An argument that cannot have any member would make every call impossible.
            kind = listed["invoke_tool"]["inputSchema"]["properties"]["arguments"]["type"]
            assert kind == (["string", "null"] if strict else "object"), name
            given: Any = json.dumps({"a": "b"}) if strict else {"a": "b"}
            address = {"server": "trips", "tool": "plain"}
            done = await visitor.called("invoke_tool", {**address, "arguments": given}, name)
            assert not done.get("isError"), (name, text_of(done))
            query = {"query": "plain", **({"limit": None} if strict else {})}
            found = await visitor.called("find_tools", query, name)
            assert [one["name"] for one in found["structuredContent"]["tools"]] == ["trips__plain"]
            refused = await visitor.called("invoke_tool", {**address, "arguments": None}, name)
            assert refused["isError"]
            call = '"{\\"a\\":\\"<string>\\"}"' if strict else '{"a":"<string>"}'
            assert f'"tool":"plain","arguments":{call}}}' in text_of(refused)
        assert [one["arguments"] for one in record.calls()] == [{"a": "b"}] * len(DIALECTS)


@in_both_eras
async def test_caller_is_answered_in_the_shown_names(era: str, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"order by": {"type": "object", "properties": {"$top": {"type": "integer"}}}, "how": {}},
        "required": ["order by"],
    }
    complaint = {"isError": True, "content": [{"type": "text", "text": "'how' was not provided for 'order by'"}]}
    config, record = scripted_stdio_server(
        tmp_path,
        "up",
        tools=[{"name": "ask", "inputSchema": schema}, {"name": "moan", "inputSchema": schema}],
        behaviours={"moan": {"kind": "result", "with": {"result": complaint}}},
    )
    profiles = {"p": {"dialect": "anthropic"}}
    async with running_gateway(tmp_path, {"up": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "up")
        visitor = Visitor(gateway=gateway, era=era)
        shown = (await visitor.listed("p"))["up__ask"]["inputSchema"]["properties"]
        by = next(name for name in shown if name.startswith("order_by"))
        top = next(iter(shown[by]["properties"]))
        generic = {"server": "up", "tool": "ask"}
        ready, missing = f'{{"{by}":{{}}}}', f'{{"{by}":{{"{top}":"<integer>"}}}}'
        for name, arguments, words in (
            ("up__ask", {}, f"Missing: {by}. Keys sent: (none). Call it like: {missing}"),
            ("up__ask", {"arguments": {by: {top: "x"}}}, f"{by}.{top} is declared as integer, you sent a string"),
            ("invoke_tool", generic, f"Missing: {by}."),
            ("invoke_tool", {**generic, "arguments": {by: {}}, "x": 1}, ready),
            ("up__moan", {by: {}}, f"Missing: how. Keys sent: {by}."),
        ):
            refused = await visitor.called(name, arguments, "p")
            assert refused["isError"]
            assert words in text_of(refused)
        assert record.calls("ask") == []
        assert text_of(refused).startswith("'how' was not provided for 'order by'\n")
        sent = {by: {top: 1}}
        for name, arguments in (
            ("up__ask", {"arguments": sent}),
            ("up__ask", {by: json.dumps(sent[by])}),
            ("invoke_tool", {**generic, "arguments": json.dumps(sent)}),
            ("invoke_tool", {**generic, **sent}),
        ):
            done = await visitor.called(name, arguments, "p")
            assert not done.get("isError"), (name, arguments, text_of(done))
        repaired = await visitor.called("up__ask", {by: {top: "1"}}, "p")
        assert repaired["_meta"]["typegate/repairs"]["repairs"] == [{"repair": "converted", "path": f"{by}.{top}"}]
        assert [one["arguments"] for one in record.calls("ask")] == [{"order by": {"$top": 1}}] * 5
        manual = await visitor.request("prompts/get", {"name": "gateway_tools", "arguments": {}}, "p")
        assert by in str(manual)


def test_unknown_dialect_stops_the_start_with_a_suggestion(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"mcpServers": {}, "gateway": {"profiles": {"p": {"dialect": "openai-strikt"}}}}')
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "openai-strict" in done.stderr


REPORT = {
    **tool("report", "day", day={"type": "string"}),
    "outputSchema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
}


@in_both_eras
async def test_result_violating_its_schema_reaches_validating_hosts_as_text(era: str, tmp_path: Path) -> None:
    def answering(content: Any) -> dict[str, Any]:
        return {"kind": "result", "with": {"result": {"content": [], "structuredContent": content}}}

    good, large = {"sum": 5}, {"sum": "hunter2", "rest": "x" * 300_000}
    answers = {"report": good, "broken": {"sum": "hunter2"}, "large": large}
    config, _ = scripted_stdio_server(
        tmp_path,
        "s",
        tools=[{**REPORT, "name": name} for name in answers],
        behaviours={name: answering(content) for name, content in answers.items()},
    )
    profiles = {name: {"dialect": name} for name in ("mcp", "gemini-cli", "qwen-code", "opencode")}
    async with running_gateway(tmp_path, {"s": config}, gateway={"profiles": profiles}) as gateway:
        await until_all_ready(gateway, "s")
        visitor = Visitor(gateway=gateway, era=era)
        for profile in profiles:
            for name, content in answers.items():
                answer = await visitor.called(f"s__{name}", {"day": "today"}, profile)
                assert json.loads(text_of(answer)) == content
                assert not answer.get("isError")
                if profile == "mcp" or name == "report":
                    assert answer["structuredContent"] == content
                    assert "typegate/leftOut" not in answer.get("_meta", {})
                else:
                    assert "structuredContent" not in answer
                    assert answer["_meta"]["typegate/leftOut"] == {
                        "structuredContent": "it breaks the tool's outputSchema: sum (type)"
                    }
