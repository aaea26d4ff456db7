"""Yesterday's calls are answered with today's names, over a real connection."""

from __future__ import annotations

from pathlib import Path

import anyio
from support.gateways import glance_again, running_gateway, text_of
from support.upstreams.running import rescript, scripted_stdio_server, tool


async def test_a_call_in_the_old_shape_is_told_what_replaced_what(tmp_path: Path) -> None:
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
        with anyio.fail_after(5):
            while "isError" in await gateway.call("s__send", {"to": "a", "title": "b"}):
                await glance_again()


async def test_chains_of_renames_name_todays_name(tmp_path: Path) -> None:
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
        told = text_of(await gateway.call("invoke_tool", {"server": "s", "tool": "t1", "arguments": {"b": "x"}}))
        assert "Call s__t3 instead." in told
        for old in ("a", "b"):
            assert f"`{old}` is now `c`" in text_of(await gateway.call("s__keep", {old: "x"}))
        assert record.calls() == []


async def test_a_tool_that_a_sibling_has_renamed_is_called_by_its_old_name(tmp_path: Path) -> None:
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
        told = text_of(await gateway.call("off__x-y"))
        assert told == f"Not called: the tool 'x-y' of server 'off' is called {now} now. Call that."


async def test_a_former_name_of_an_optional_parameter_is_not_lost_silently(tmp_path: Path) -> None:
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
        for sent, told in (
            ({"limit": 5}, "`limit` is now `offset`"),
            ({"gone": True}, "`gone` was removed"),
            ({"timeZone": "UTC", "time_zone": "UTC"}, "`timeZone` is now `time_zone`"),
            ({"f": {"old": "x"}}, "`f.old` is now `f.new`"),
        ):
            refused = await gateway.call("s__find", sent)
            assert refused["isError"]
            assert f"This tool has changed: {told}." in text_of(refused)
        assert len(record.calls()) == 1
