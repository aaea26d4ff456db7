"""Calls with former names and parameters are answered with the current ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import brief_pause, running_gateway, text_of
from support.upstreams.running import rescript, scripted_stdio_server, tool
from support.visitors import OWN, Visitor

# Each reconnects an upstream with another list; the words are tried in `tests/registry`.
pytestmark = pytest.mark.heavy


async def test_call_in_the_old_shape_is_answered_with_the_replacement(tmp_path: Path) -> None:
    text = {"type": "string"}
    old = tool("send", "to", "subject", to=text, subject={**text, "maxLength": 80})
    new = tool("send", "to", "title", to=text, title={**text, "maxLength": 80})
    lookup = tool("lookup", "key", key={"type": "integer"})
    config, record = scripted_stdio_server(tmp_path, "s", tools=[old, lookup], list_changed=True)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__send")
        rescript(config, record, announce=True, tools=[new, {**lookup, "name": "find"}], list_changed=True)
        await gateway.until_listed("s__find")
        answer = await gateway.call("s__send", {"to": "a", "subject": "b"})
        assert answer["isError"]
        assert "`subject` is now `title`" in text_of(answer)
        assert "no longer has the tool 'lookup'. Call s__find instead." in text_of(await gateway.call("s__lookup"))
        assert record.calls() == []
        with anyio.fail_after(20):
            while "isError" in await gateway.call("s__send", {"to": "a", "title": "b"}):
                await brief_pause()


async def test_chain_of_renames_is_answered_with_the_current_name(tmp_path: Path) -> None:
    text = {"type": "string"}
    config, record = scripted_stdio_server(
        tmp_path, "s", tools=[tool("t1", "b", b=text), tool("keep", "b", b=text)], list_changed=True
    )
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__t1")
        for name, key in (("t2", "a"), ("t3", "c")):
            tools = [tool(name, "b", b=text), tool("keep", key, **{key: text})]
            rescript(config, record, announce=True, tools=tools, list_changed=True)
            await gateway.until_listed(f"s__{name}")
        for old in ("s__t1", "s__t2"):
            assert "Call s__t3 instead." in text_of(await gateway.call(old, {"b": "x"}))
        refusal = text_of(await gateway.call("invoke_tool", {"server": "s", "tool": "t1", "arguments": {"b": "x"}}))
        assert "Call s__t3 instead." in refusal
        for old in ("a", "b"):
            assert f"`{old}` is now `c`" in text_of(await gateway.call("s__keep", {old: "x"}))
        assert record.calls() == []


async def test_tool_renamed_by_a_sibling_is_callable_by_its_old_name(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("x-y")], list_changed=True)
    strict, strict_record = scripted_stdio_server(tmp_path, "off", tools=[tool("x-y")], list_changed=True)
    servers = {"s": config, "off": {**strict, "repair": "off"}}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("s__x-y", "off__x-y")
        for one, its_record in ((config, record), (strict, strict_record)):
            rescript(one, its_record, announce=True, tools=[tool("x-y"), tool("x_y")], list_changed=True)
        listed = await gateway.until_listed("s__x_y", "off__x_y")
        answer = await gateway.call("s__x-y")
        assert "isError" not in answer
        assert answer["_meta"]["typegate/repairs"]["repairs"][0]["was"] == "s__x-y"
        assert [call["name"] for call in record.calls()] == ["x-y"]
        [now] = [name for name in listed if name.startswith("off__x-y_")]
        refusal = text_of(await gateway.call("off__x-y"))
        assert refusal == f"Not called: the tool 'x-y' of server 'off' is now called {now}. Call that."


async def test_former_name_of_an_optional_parameter_is_not_silently_dropped(tmp_path: Path) -> None:
    text, number = {"type": "string"}, {"type": "integer"}
    old = tool("find", timeZone=text, limit=number, gone={"type": "boolean"}, f={"type": "object", "properties": {
        "old": text}})  # fmt: skip
    new = tool("find", time_zone=text, offset=number, f={"type": "object", "properties": {"new": text}, "required": [
        "new"]})  # fmt: skip
    config, record = scripted_stdio_server(tmp_path, "s", tools=[old], list_changed=True)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__find")
        rescript(config, record, announce=True, tools=[new, tool("done")], list_changed=True)
        await gateway.until_listed("s__done")
        answer = await gateway.call("s__find", {"timeZone": "UTC", "offset": 1})
        assert answer["_meta"]["typegate/repairs"]["repairs"] == [
            {"repair": "former_name", "path": "time_zone", "was": "timeZone"}
        ]
        assert [call["arguments"] for call in record.calls()] == [{"time_zone": "UTC", "offset": 1}]
        for sent, change in (
            ({"limit": 5}, "`limit` is now `offset`"),
            ({"gone": True}, "`gone` was removed"),
            ({"timeZone": "UTC", "time_zone": "UTC"}, "`timeZone` is now `time_zone`"),
            ({"f": {"old": "x"}}, "`f.old` is now `f.new`"),
        ):
            refused = await gateway.call("s__find", sent)
            assert refused["isError"]
            assert f"This tool has changed: {change}." in text_of(refused)
        assert len(record.calls()) == 1


async def test_ready_call_has_new_required_and_renamed_parameters(tmp_path: Path) -> None:
    text, number = {"type": "string"}, {"type": "integer"}
    closed = {"additionalProperties": False}

    def tools(key: str, *required: str) -> list[dict[str, Any]]:
        named = {"id": text, key: number} | dict.fromkeys(required, text)
        find = tool("find", "id", *required, **named)
        return [find, {**find, "name": "seek", "inputSchema": {**find["inputSchema"], **closed}}]

    config, record = scripted_stdio_server(tmp_path, "s", tools=tools("limit"), list_changed=True)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__find")
        rescript(config, record, announce=True, tools=[*tools("most"), tool("later")], list_changed=True)
        await gateway.until_listed("s__later")
        for name in ("s__find", "s__seek"):
            refusal = text_of(await gateway.call(name, {"id": "1", "limit": 5}))
            assert 'Call it like: {"id":"<as sent>","most":"<integer>"}' in refusal
            assert "This tool has changed: `limit` is now `most`." in refusal
        rescript(config, record, announce=True, tools=[*tools("most", "who"), tool("last")], list_changed=True)
        await gateway.until_listed("s__last")
        refusal = text_of(await gateway.call("s__find", {"id": "1"}))
        assert "Missing: who." in refusal
        assert "This tool has changed: `who` is now required." in refusal
        assert record.calls() == []


async def test_removed_tool_is_not_confused_with_a_similar_name(tmp_path: Path) -> None:
    text = {"type": "string"}
    one, other = tool("drop-it", "id", id=text), tool("drop_it", "id", "really", id=text, really=text)
    config, record = scripted_stdio_server(tmp_path, "s", tools=[one], list_changed=True)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__drop-it")
        rescript(config, record, announce=True, tools=[other], list_changed=True)
        await gateway.until_listed("s__drop_it")
        arguments = {"id": "1", "really": "yes"}
        nested = {"server": "s", "tool": "drop-it", "arguments": arguments}
        for answer in (await gateway.call("s__drop-it", arguments), await gateway.call("invoke_tool", nested)):
            assert "no longer has the tool 'drop-it'. Similar names: s__drop_it." in text_of(answer)
        assert record.calls() == []
        await gateway.call("invoke_tool", {"server": "s", "tool": "DROP_IT", "arguments": arguments})
        assert [call["name"] for call in record.calls()] == ["drop_it"]


async def test_tool_with_an_unusable_new_definition_is_reported_as_quarantined(tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("send"), tool("keep")], list_changed=True)
    # Otherwise such a schema is repaired.
    async with running_gateway(tmp_path, {"s": {**config, "validation": "strict"}}) as gateway:
        await gateway.until_listed("s__send")
        broken = {"name": "send", "inputSchema": {"type": "array"}}
        rescript(config, record, announce=True, tools=[broken, tool("keep"), tool("done")], list_changed=True)
        await gateway.until_listed("s__done")
        for call in (("s__send", {}), ("invoke_tool", {"server": "s", "tool": "send", "arguments": {}})):
            refusal = text_of(await gateway.call(*call))
            assert "the tool 'send' of server 's' is held back by the gateway, because its definition" in refusal
            assert "no longer" not in refusal


async def test_server_with_an_invalid_entry_is_reported_as_excluded_to_permitted_callers(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "s", tools=[tool("send")])
    faulty = {"command": "mail", "env": {"KEY": "${A_VARIABLE_THAT_IS_NOT_SET}"}}
    profiles = {"mine": {"servers": ["s"]}}
    async with running_gateway(tmp_path, {"s": config, "mail": faulty}, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed("s__send")
        visitor = Visitor(gateway=gateway, era="2026-07-28")
        calls = (("mail__send", {}), ("invoke_tool", {"server": "mail", "tool": "send", "arguments": {}}))
        for name, arguments in calls:
            refusal = text_of(await visitor.called(name, arguments))
            assert "server 'mail' is left out, because its entry in the gateway's configuration has an error" in refusal
            assert "A_VARIABLE" not in refusal
        answer = await visitor.sent("tools/call", {"name": "mail__send", "arguments": {}}, "mine")
        assert "left out" not in answer.text
        assert answer.json()["error"]["code"] == -32602


async def test_search_before_any_connection_names_the_missing_servers(tmp_path: Path) -> None:
    config, _ = scripted_stdio_server(tmp_path, "s", tools=[tool("send_mail")], faults={"silent": True})
    lazy = {"profiles": {"default": {"disclosure": "lazy"}}}
    async with running_gateway(tmp_path, {"s": config}, gateway=lazy) as gateway:
        visitor = Visitor(gateway=gateway, era="2026-07-28")
        assert set(await visitor.listed()) == OWN
        answer = await visitor.called("find_tools", {"query": "mail"})
        assert not answer.get("isError")
        assert text_of(answer) == "No tool fits. Not connected yet: s; try again in a moment."
