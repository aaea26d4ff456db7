"""Invalid calls over a real connection are repaired or refused; no partial call reaches a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import hello, running_host
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.running import Recording, demo_config, scripted_http_server, scripted_stdio_server, tool

TEXT = {"type": "string"}
SEND = tool(
    "send_email", "to", "subject", "body",
    to={"type": "array", "items": TEXT}, subject=TEXT, body=TEXT, accountId=TEXT,
)  # fmt: skip
EVENTS = tool("get_calendar_events", "timeZone", "startDate", timeZone=TEXT, startDate=TEXT, endDate=TEXT)
COUNT = tool(
    "count", "n", n={"type": "integer"}, deep={"type": "boolean"}, people={"type": "array", "items": {"type": "object"}}
)
RIGHT = {"to": ["a@b"], "subject": "s", "body": "b"}
NAME = "calendar-mcp__send_email"
REPAIRS = "typegate/repairs"


def calendar(tmp_path: Path, **options: Any) -> tuple[dict[str, Any], Recording]:
    script = {"tools": [SEND, EVENTS, COUNT], **options.pop("script", {})}
    config, record = scripted_stdio_server(tmp_path, "calendar-mcp", **script)
    return {**config, **options}, record


def generic(arguments: Any = None, **members: Any) -> dict[str, Any]:
    call = {"server": "calendar-mcp", "tool": "send_email", **members}
    return call if arguments is None else {**call, "arguments": arguments}


async def both_routes(gateway: RunningGateway, tool_name: str, arguments: Any) -> list[dict[str, Any]]:
    return [
        await gateway.call(f"calendar-mcp__{tool_name}", arguments),
        await gateway.call("invoke_tool", {"server": "calendar-mcp", "tool": tool_name, "arguments": arguments}),
    ]


def repairs(result: dict[str, Any]) -> list[str]:
    return [one["repair"] for one in result.get("_meta", {}).get(REPAIRS, {}).get("repairs", ())]


async def test_empty_call_is_answered_with_a_working_example(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for answer in (await gateway.call(NAME, {}), await gateway.call("invoke_tool", generic())):
            text = text_of(answer)
            assert answer["isError"]
            assert "Not called" in text
            assert "Nothing was sent" in text
            assert "to, subject, body" in text
            assert "Keys sent: (none)" in text
            assert '"to":["<string>"]' in text
            assert json.dumps(SEND["inputSchema"]["properties"]["to"], separators=(",", ":")) in text
        nested = text_of(await gateway.call("invoke_tool", generic()))
        assert NAME in nested
        assert '"server":"calendar-mcp","tool":"send_email","arguments":{' in nested
        assert record.calls() == []


# The name called, what was sent with it, and the repair that makes it `RIGHT`.
MEANT: tuple[tuple[str, Any, str], ...] = (
    ("invoke_tool", generic(json.dumps(RIGHT)), "json_text"),
    ("invoke_tool", generic(json.dumps(json.dumps(RIGHT))), "json_text"),
    ("invoke_tool", generic(params=RIGHT), "arguments_key"),
    ("invoke_tool", generic(args=RIGHT), "arguments_key"),
    ("invoke_tool", generic(**RIGHT), "flat_arguments"),
    ("invoke_tool", generic(RIGHT, tool=NAME), "typed_name"),
    ("invoke_tool", {"tool": NAME, "arguments": RIGHT}, "typed_name"),
    ("invoke_tool", generic(RIGHT, server="Calendar-MCP"), "server_case"),
    ("invoke_tool", generic({"arguments": RIGHT}), "unwrapped"),
    ("invoke_tool", {"arguments": generic(RIGHT)}, "unwrapped"),
    (NAME, {"arguments": RIGHT}, "unwrapped"),
    (NAME, {"params": RIGHT}, "unwrapped"),
    (NAME, {**RIGHT, "to": '["a@b"]'}, "json_text"),
    (NAME, {**RIGHT, "to": "a@b"}, "listed"),
    (NAME, {"To": ["a@b"], "subject": "s", "body": "b"}, "renamed"),
)
AMBIGUOUS: tuple[tuple[str, Any], ...] = (
    ("invoke_tool", generic(RIGHT, params={"to": ["c@d"]})),
    ("invoke_tool", generic({"to": ["a@b"]}, subject="s", body="b")),
    (NAME, {"arguments": RIGHT, "params": RIGHT}),
    (NAME, {**RIGHT, "to": 7}),
    ("calendar-mcp__count", {"n": "five"}),
    ("calendar-mcp__count", {"n": 1, "deep": "yes"}),
)


async def test_unambiguous_call_is_repaired_and_the_repair_reported(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for number, (name, sent, named) in enumerate(MEANT):
            answer = await gateway.call(name, sent)
            assert not answer.get("isError"), text_of(answer)
            assert [one["arguments"] for one in record.calls()[number:]] == [RIGHT], sent
            assert named in repairs(answer), sent


async def test_ambiguous_call_is_refused(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for name, sent in AMBIGUOUS:
            answer = await gateway.call(name, sent)
            assert answer["isError"], sent
            assert "Not called" in text_of(answer), sent
            assert record.calls() == [], sent


async def test_values_of_another_type_are_converted_if_unambiguous(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for answer in await both_routes(gateway, "count", {"n": "5", "deep": "true", "people": '[{"name": "ann"}]'}):
            assert not answer.get("isError"), text_of(answer)
            assert set(repairs(answer)) == {"converted", "json_text"}
        assert [one["arguments"] for one in record.calls()] == [{"n": 5, "deep": True, "people": [{"name": "ann"}]}] * 2
        for answer in await both_routes(gateway, "count", {"n": 5, "people": "a@b"}):
            assert "declared as array, you sent a string" in text_of(answer)
        assert len(record.calls()) == 2


async def test_arguments_that_are_not_an_object_are_refused_and_the_next_call_works(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for number, arguments in enumerate(("text", [1], 7, None, '{"to": 1')):
            answer = await gateway.rpc("tools/call", {"name": NAME, "arguments": arguments})
            # Not a protocol error: a model reads results.
            assert answer["result"]["isError"], (arguments, answer)
            assert len(record.calls()) == number, arguments
            assert not (await gateway.call(NAME, RIGHT)).get("isError"), arguments


@pytest.mark.heavy
async def test_arguments_in_a_string_are_parsed_in_the_handshake_era_too(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with (
        running_gateway(tmp_path, {"calendar-mcp": config}) as gateway,
        running_host(tmp_path, "--url", gateway.url) as host,
    ):
        await gateway.until_listed(NAME)
        await host.answer(hello())
        await host.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        params = {"name": NAME, "arguments": json.dumps(RIGHT)}
        answer = await host.answer({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
        assert answer["result"]["_meta"][REPAIRS]["repairs"][0]["repair"] == "json_text"
        assert [one["arguments"] for one in record.calls()] == [RIGHT]


async def test_repairs_can_be_turned_off_for_a_server_and_a_tool(tmp_path: Path) -> None:
    off, record = calendar(tmp_path, repair="off", tools={"count": {"repair": "full"}})
    async with running_gateway(tmp_path, {"calendar-mcp": off}) as gateway:
        await gateway.until_listed(NAME)
        assert (await gateway.call(NAME, {**RIGHT, "to": "a@b"}))["isError"]
        assert (await gateway.call("invoke_tool", generic(params=RIGHT)))["isError"]
        assert record.calls() == []
        assert not (await gateway.call("calendar-mcp__count", {"n": "5.0"})).get("isError")
        assert [one["arguments"] for one in record.calls()] == [{"n": 5}]


async def test_repairs_can_be_turned_off_for_a_profile(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    profiles = {"default": {"repair": "off", "disclosure": "eager"}}
    async with running_gateway(tmp_path, {"calendar-mcp": config}, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed(NAME)
        assert (await gateway.call(NAME, {**RIGHT, "to": "a@b"}))["isError"]
        assert (await gateway.call("invoke_tool", generic(params=RIGHT)))["isError"]
        assert record.calls() == []
        assert not (await gateway.call(NAME, RIGHT)).get("isError")


async def test_defaults_are_filled_on_both_routes_and_nothing_else_is(tmp_path: Path) -> None:
    config, record = calendar(tmp_path, defaults={"timeZone": "${ZONE}", "to": ["never@used"], "unknown": 1})
    async with running_gateway(tmp_path, {"calendar-mcp": config}, environment={"ZONE": "Europe/Paris"}) as gateway:
        await gateway.until_listed(NAME)
        for answer in await both_routes(gateway, "get_calendar_events", {"startDate": "2026-11-21"}):
            assert not answer.get("isError"), text_of(answer)
        filled = {"startDate": "2026-11-21", "timeZone": "Europe/Paris"}
        assert [one["arguments"] for one in record.calls()] == [filled] * 2
        await gateway.call("calendar-mcp__get_calendar_events", {**filled, "timeZone": "UTC"})
        assert record.calls()[-1]["arguments"]["timeZone"] == "UTC"
        missing = text_of(await gateway.call("calendar-mcp__get_calendar_events", {}))
        assert re.search(r"Missing: startDate\.", missing)
        assert 'Keys sent: (none); added from defaults: timeZone. Call it like: {"startDate":' in missing
        nested = text_of(await gateway.call("invoke_tool", generic({"note": "x"}, tool="get_calendar_events")))
        assert "Keys sent: note; added from defaults: timeZone." in nested
        assert nested.count("<as sent>") == 0
        assert '"arguments":{"startDate":' in nested


async def test_server_errors_about_arguments_get_hints_and_others_do_not(tmp_path: Path) -> None:
    def failing(message: str, error: bool = True) -> dict[str, Any]:
        return {
            "kind": "result",
            "with": {"result": {"content": [{"type": "text", "text": message}], "isError": error}},
        }

    names = {
        "down": failing("SMTP down"),
        "login": failing("Authentication is required"),
        "wants": failing("'cc' was not provided"),
        "body": failing('{"error": "startDate is required"}', error=False),
        "fine": failing('{"state": "startDate is required"}', error=False),
        "params": {"kind": "error", "with": {"code": -32602, "message": "cc: field required", "data": {"why": 1}}},
    }
    tools = [tool(name, cc=TEXT, startDate=TEXT) for name in names]
    config, record = scripted_stdio_server(tmp_path, "s", tools=tools, behaviours=names)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__down")
        for name, first, added in (
            ("down", "SMTP down", None),
            ("login", "Authentication is required", None),
            ("wants", "'cc' was not provided", "cc"),
            ("body", '{"error": "startDate is required"}', "startDate"),
            ("fine", '{"state": "startDate is required"}', None),
        ):
            for answer in (
                await gateway.call(f"s__{name}"),
                await gateway.call("invoke_tool", {"server": "s", "tool": name, "arguments": {}}),
            ):
                texts = [item["text"] for item in answer["content"]]
                assert texts[0] == first
                assert len(texts) == (1 if added is None else 2)
                assert added is None or f"Missing: {added}." in texts[1]
        slip = await gateway.call("s__down", {"start_date": "x"})
        assert "start_date is not a parameter; did you mean startDate?" in text_of(slip)
        refused = await gateway.call("s__params")
        assert refused["isError"]
        assert refused["_meta"]["typegate/upstreamError"] == {
            "code": -32602, "message": "cc: field required", "data": {"why": 1},
        }  # fmt: skip
        assert text_of(refused).startswith("cc: field required")
        assert "Call it like" in text_of(refused)
        assert len(record.calls("params")) == 1


async def test_values_of_a_wrong_call_are_not_repeated(tmp_path: Path) -> None:
    config, _ = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        sent = {"password": "hunter2-secret", "subject": 7_777_777, "to": {"token": "hunter2-secret"}}
        for answer in (await gateway.call(NAME, sent), await gateway.call("invoke_tool", generic(sent))):
            assert answer["isError"]
            assert "hunter2" not in json.dumps(answer)
            assert "7777777" not in json.dumps(answer)
        assert "hunter2" not in gateway.logged()


@pytest.mark.heavy
async def test_agent_recovers_from_an_empty_call_by_the_error_text(tmp_path: Path) -> None:
    """An agent calls without arguments, reads the error, and does what it says: the second call is right."""
    async with running_gateway(tmp_path, {"calendar-mcp": demo_config("calendar")}) as gateway:
        await gateway.until_listed(NAME)
        for route in (NAME, "invoke_tool"):
            empty = {} if route == NAME else generic()
            error = text_of(await gateway.call(route, empty))
            example = re.search(r"Call it like: (?:.* or invoke_tool )?(\{.*?\}+)(?= Schema:)", error)
            assert example is not None, error
            call = json.loads(example[1])
            known = {"to": ["robin@example.com"], "subject": "Hello", "body": "Hi"}
            arguments = call if route == NAME else call["arguments"]
            assert set(arguments) == set(known), "the error names every argument that is needed"
            filled = {key: known[key] for key in arguments}
            again = filled if route == NAME else {**call, "arguments": filled}
            answer = await gateway.call(route, again)
            assert not answer.get("isError"), text_of(answer)
            assert answer["structuredContent"]["to"] == ["robin@example.com"]


LIST = tool("list_issues", state=TEXT, limit={"type": "integer"})


async def test_wrapped_call_of_an_open_tool_arrives_unwrapped(tmp_path: Path) -> None:
    config, record = calendar(tmp_path, script={"tools": [LIST]})
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed("calendar-mcp__list_issues")
        for answer in await both_routes(gateway, "list_issues", {"arguments": {"state": "open"}}):
            assert not answer.get("isError"), text_of(answer)
            assert repairs(answer) == ["unwrapped"]
        assert [call["arguments"] for call in record.calls()] == [{"state": "open"}] * 2


async def test_call_without_arguments_is_answered_that_no_keys_were_sent(tmp_path: Path) -> None:
    config, record = calendar(tmp_path)
    async with running_gateway(tmp_path, {"calendar-mcp": config}) as gateway:
        await gateway.until_listed(NAME)
        for params in ({"name": NAME}, {"name": NAME, "arguments": None}, {"name": "invoke_tool"}):
            text = text_of((await gateway.rpc("tools/call", params))["result"])
            assert "Keys sent: (none)." in text, text
            assert "null" not in text.partition(" Schema: ")[0]
        assert record.calls() == []


async def test_search_tools_repair_their_own_arguments_and_report_it(tmp_path: Path) -> None:
    config, _ = calendar(tmp_path)
    lazy = {"profiles": {"default": {"disclosure": "lazy"}}}
    async with running_gateway(tmp_path, {"calendar-mcp": config}, gateway=lazy) as gateway:
        with anyio.fail_after(25):
            while (await gateway.server("calendar-mcp"))["state"] != "ready":
                await brief_pause()
        answer = await gateway.call("find_tools", {"q": "send email", "limit": "3"})
        assert NAME in text_of(answer)
        assert repairs(answer) == ["renamed", "converted"]
        details = await gateway.call("get_server_details", {"arguments": {"server": "calendar-mcp"}})
        assert not details.get("isError")
        assert repairs(details) == ["unwrapped"]


async def test_error_about_an_undeclared_argument_lists_the_server_again(tmp_path: Path) -> None:
    def moaning(message: str) -> dict[str, Any]:
        return {"kind": "result", "with": {"result": {"content": [{"type": "text", "text": message}], "isError": True}}}

    moans = {"down": moaning("SMTP down"), "wants": moaning("'title' is a required property")}
    config, record = scripted_stdio_server(
        tmp_path, "s", tools=[tool(name, to=TEXT) for name in moans], behaviours=moans
    )
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__wants")
        assert len(record.requests("tools/list")) == 1
        for name in ("down", "wants", "wants", "wants"):
            # Nothing can be said of a parameter that is not known.
            assert len((await gateway.call(f"s__{name}", {"to": "a"}))["content"]) == 1
        with anyio.fail_after(20):
            while len(record.requests("tools/list")) < 2:
                await brief_pause()
        await gateway.call("s__wants", {"to": "a"})
        await gateway.call("s__down", {"to": "a"})
        assert len(record.requests("tools/list")) == 2, "not at every such complaint"


async def test_proxy_error_leaves_the_outcome_of_a_call_unknown(tmp_path: Path) -> None:
    reader = {**tool("read"), "annotations": {"readOnlyHint": True}}
    status = {"send": "status", "read": "status"}
    async with (
        scripted_http_server(tmp_path, "h", tools=[tool("send"), reader], behaviours=status) as http,
        running_gateway(tmp_path, {"h": http.config}) as gateway,
    ):
        await gateway.until_listed("h__send", "h__read")
        sent = text_of(await gateway.call("h__send", {"code": 502}))
        assert "HTTP 502 after the call was sent" in sent
        assert "Its outcome is unknown, and it was not repeated. Check before you call again." in sent
        assert "Calling this tool again is safe." in text_of(await gateway.call("h__read", {"code": 502}))
        assert "again" not in text_of(await gateway.call("h__send", {"code": 400}))
        assert len(http.recording.calls()) == 3
