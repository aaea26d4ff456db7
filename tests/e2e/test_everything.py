"""The reference server `everything`: a third-party client gets the same answers with and without the gateway."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_real_servers import everything_over_http
from support.clients import installed
from support.gateways import META, running_gateway

pytestmark = pytest.mark.heavy

ALIAS = "everything"
PREFIX = f"{ALIAS}__"
GO = {"url": "https://example.com/go", "message": "Go there", "elicitationId": "e-1"}
DYNAMIC = "demo://resource/dynamic"
STATIC = "demo://resource/static/document"
WANTED: dict[str, Any] = {
    "calls": [
        {"name": "trigger-sampling-request", "arguments": {"prompt": "Say it", "maxTokens": 7}},
        {"name": "trigger-elicitation-request", "arguments": {}},
        {"name": "trigger-url-elicitation", "arguments": GO},
        {"name": "trigger-url-elicitation", "arguments": {**GO, "elicitationId": "e-2", "errorPath": True}},
        {"name": "get-roots-list", "arguments": {}},
        {"name": "echo", "arguments": {"message": "grüße"}},
        *(
            {"name": "get-annotated-message", "arguments": {"messageType": kind, "includeImage": True}}
            for kind in ("error", "success", "debug")
        ),
        {"name": "get-structured-content", "arguments": {"location": "Chicago"}},
        {"name": "get-resource-links", "arguments": {"count": 4}},
        {"name": "get-resource-reference", "arguments": {"resourceType": "Text", "resourceId": 2}},
        {"name": "get-resource-reference", "arguments": {"resourceType": "Blob", "resourceId": 3}},
        {"name": "get-tiny-image", "arguments": {}},
        {"name": "get-sum", "arguments": {"a": 2, "b": 0.5}},
        {"name": "trigger-long-running-operation", "arguments": {"duration": 0.2, "steps": 4}},
    ],
    "prompts": [
        {"name": "simple-prompt", "arguments": {}},
        {"name": "args-prompt", "arguments": {"city": "Łódź", "state": "PL"}},
        {"name": "args-prompt", "arguments": {}},
        {"name": "completable-prompt", "arguments": {"department": "Sales", "name": "Eve"}},
        {"name": "resource-prompt", "arguments": {"resourceType": "Text", "resourceId": "1"}},
        {"name": "resource-prompt", "arguments": {"resourceType": "Song", "resourceId": "1"}},
    ],
    "reads": [f"{STATIC}/features.md", f"{DYNAMIC}/text/7", f"{DYNAMIC}/blob/7", f"{DYNAMIC}/text/none"],
    "completions": [
        {"ref": {"type": "ref/prompt", "name": "completable-prompt"}, "argument": {"name": "department", "value": "S"}},
        {
            "ref": {"type": "ref/prompt", "name": "completable-prompt"},
            "argument": {"name": "name", "value": ""},
            "context": {"arguments": {"department": "Sales"}},
        },
        {
            "ref": {"type": "ref/resource", "uri": f"{DYNAMIC}/text/{{resourceId}}"},
            "argument": {"name": "resourceId", "value": "1"},
        },
    ],
}
METHODS = (
    ("tools/list",),
    ("prompts/list",),
    ("resources/list",),
    ("resources/templates/list",),
    ("tools/call", "--tool-name", "echo", "--tool-arg", "message=grüße"),
    ("tools/call", "--tool-name", "get-annotated-message", "--tool-args-json", '{"messageType": "error"}'),
    ("tools/call", "--tool-name", "get-structured-content", "--tool-arg", "location=Chicago"),
    ("tools/call", "--tool-name", "get-resource-links", "--tool-args-json", '{"count": 2}'),
    ("prompts/get", "--prompt-name", "args-prompt", "--prompt-args", "city=Oslo"),
    ("resources/read", "--uri", f"{STATIC}/features.md"),
    ("resources/read", "--uri", f"{DYNAMIC}/text/7"),
)
# The gateway's own tools and prompts stand beside those of the server.
OURS = {"invoke_tool", "find_tools", "list_servers", "get_server_details", "gateway_tools"}
# The server has these for clients that can be asked only; a gateway has one list for all its callers.
ASKING = {"trigger-sampling-request", "trigger-elicitation-request", "trigger-url-elicitation"}


def timeless(value: Any) -> Any:
    """A value without the time of day and the ids that it was made with."""
    match value:
        case dict():
            if isinstance(value.get("blob"), str):
                value = {**value, "blob": base64.b64decode(value["blob"]).decode(errors="replace")}
            return {key: timeless(one) for key, one in value.items()}
        case list():
            return [timeless(one) for one in value]
        case str():
            return re.sub(r"\d{1,2}:\d\d:\d\d [AP]M|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ONCE", value)
    return value


def without_task_demands(tools: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tools as a gateway lists them: it runs the tasks that a server demands."""
    demand = {"taskSupport": "required"}
    return {
        name: {key: one for key, one in tool.items() if (key, one) != ("execution", demand)}
        for name, tool in tools.items()
    }


def by_address(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return resources or templates by their URI, because the order of a gateway differs."""
    return {one.get("uri", one.get("uriTemplate")): one for one in items}


def compared(report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that must be equal: no capabilities, and errors of tools in the form for models."""
    report = timeless(report)
    del report["capabilities"]
    report["tools"] = without_task_demands(report["tools"])
    report |= {kind: by_address(report[kind]) for kind in ("resources", "templates")}
    # The SDK hears a step that comes together with the result too late, also without a gateway.
    report["calls"] = [{**one, "steps": min(one["steps"], 3)} for one in report["calls"]]
    return report


def of_server(printed: dict[str, Any]) -> dict[str, Any]:
    """Return what the Inspector printed, without additions of the gateway and of later protocol versions."""
    result = timeless(printed["result"])
    for kind in ("tools", "prompts"):
        if kind in result:
            listed = [one for one in result[kind] if one["name"] not in OURS]
            result[kind] = {one["name"].removeprefix(PREFIX): {**one, "name": ""} for one in listed}
    for kind in ("resources", "resourceTemplates"):
        if kind in result:
            result[kind] = by_address(result[kind])
    result = {key: one for key, one in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    meta = {key: one for key, one in result.pop("_meta", {}).items() if key != META + "serverInfo"}
    return result | ({"_meta": meta} if meta else {})


async def test_typescript_client_gets_the_same_answers_as_directly(tmp_path: Path) -> None:
    server = await anyio.to_thread.run_sync(installed.everything_server)
    reports: dict[str, dict[str, Any]] = {}

    async def ask(way: str, target: Any, prefix: str) -> None:
        reports[way] = await installed.whole_report(target, WANTED, prefix=prefix)

    async with running_gateway(tmp_path, {ALIAS: {**server, "elicitation": True}}) as gateway:
        await gateway.until_listed(f"{PREFIX}echo", within_s=30)
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "direct", server, "")
            group.start_soon(ask, "gateway", gateway.url, PREFIX)
    # The gateway adds the name of the server to the text of a question.
    named = json.dumps(reports["gateway"])
    assert named.count(f"Server '{ALIAS}' asks: ") >= 3
    reports["gateway"] = json.loads(named.replace(f"Server '{ALIAS}' asks: ", ""))
    direct, through = compared(reports["direct"]), compared(reports["gateway"])
    questions = [one["asked"] for one in direct["calls"]]
    assert [len(one) for one in questions[:4]] == [1, 1, 1, 0], questions
    assert direct["calls"][3]["error"]["code"] == -32042
    assert "somewhere" in json.dumps(direct["calls"][4]["result"])
    for part in direct:
        if isinstance(direct[part], dict):
            assert set(through[part]) == set(direct[part]), part
        for key in direct[part] if isinstance(direct[part], dict) else range(len(direct[part])):
            assert through[part][key] == direct[part][key], (part, key)
    assert set(reports["gateway"]["capabilities"]) >= {"tools", "prompts", "resources", "completions", "logging"}


@pytest.mark.heavy
async def test_inspector_gets_the_same_answers_in_both_eras_as_directly(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    printed: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    two = anyio.CapacityLimiter(2)

    async def inspect(way: str, url: str, method: tuple[str, ...]) -> None:
        named = list(method)
        if way != "direct" and named[1:2] in (["--tool-name"], ["--prompt-name"]):
            named[2] = PREFIX + named[2]
        era = ("--protocol-era", way) if way != "direct" else ()
        async with two:
            printed[way, method] = await installed.inspector(url, home, "--method", *named, *era)

    async with (
        everything_over_http(tmp_path) as server,
        running_gateway(tmp_path, {ALIAS: {**server, "elicitation": True}}) as gateway,
    ):
        await gateway.until_listed(f"{PREFIX}echo", within_s=30)
        async with anyio.create_task_group() as group:
            for method in METHODS:
                for way, url in (("direct", server["url"]), ("legacy", gateway.url), ("modern", gateway.url)):
                    group.start_soon(inspect, way, url, method)
    assert [one for one in printed.items() if "result" not in one[1]] == []
    for era in ("legacy", "modern"):
        for method in METHODS:
            wanted, got = of_server(printed["direct", method]), of_server(printed[era, method])
            if method == ("tools/list",):
                assert set(got["tools"]) - set(wanted["tools"]) == ASKING
                wanted["tools"] = without_task_demands(wanted["tools"])
                got["tools"] = {name: tool for name, tool in got["tools"].items() if name not in ASKING}
            if method == ("tools/list",) and era == "modern":
                # The client's models of the modern era do not know this member.
                wanted["tools"] = {
                    name: {key: one for key, one in tool.items() if key != "execution"}
                    for name, tool in wanted["tools"].items()
                }
            assert got == wanted, (era, method)
