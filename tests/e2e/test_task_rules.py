"""The rules for a tool apply to its tasks on every route, and as soon as they change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
from support.gateways import META, MODERN, RunningGateway, answer_of, brief_pause, envelope, running_gateway
from support.upstreams.running import Recording, scripted_stdio_server, tool

EXTENSION = {"io.modelcontextprotocol/tasks": {}}
KEYS = [
    {"name": "ann", "key": "key-of-ann"},
    {"name": "ben", "key": "key-of-ben"},
]
METHODS: dict[str, dict[str, Any]] = {"tasks/get": {}, "tasks/update": {"inputResponses": {}}, "tasks/cancel": {}}


def bank(tmp_path: Path) -> tuple[dict[str, Any], Recording]:
    begun = {"resultType": "task", "taskId": "t.1", "status": "working", "pollIntervalMs": 1}
    return scripted_stdio_server(
        tmp_path, "bank", modern=True, capabilities={"tools": {}, "extensions": EXTENSION},
        tools=[tool("report"), tool("transfer"), tool("audit.log")],
        behaviours={
            name: {"kind": "result", "with": {"result": begun}} for name in ("report", "transfer", "audit.log")
        },
        answers={
            "tasks/get": {"taskId": "t.1", "status": "working", "resultType": "complete"},
            "tasks/update": {"resultType": "complete"},
            "tasks/cancel": {"resultType": "complete"},
        },
    )  # fmt: skip


def settings(*rules: dict[str, Any]) -> dict[str, Any]:
    profiles = {"reports": {"tools": ["bank__report"]}}
    return {"auth": {"apiKeys": KEYS}, "policy": {"rules": list(rules)}, "profiles": profiles}


async def ask(gateway: RunningGateway, who: str, method: str, *, path: str = "", **params: Any) -> dict[str, Any]:
    named = params.get("taskId") or params["name"]
    knows = envelope(**{META + "clientCapabilities": {"extensions": EXTENSION}})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": knows}}
    headers = {
        "accept": "application/json, text/event-stream", "authorization": f"Bearer key-of-{who}",
        "mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": named,
    }  # fmt: skip
    return answer_of(await gateway.client.post(gateway.url + path, json=body, headers=headers))


async def begin(gateway: RunningGateway, name: str, who: str = "ann") -> str:
    answer = await ask(gateway, who, "tools/call", name=name, arguments={})
    task: str = answer["result"]["taskId"]
    return task


async def outcomes(gateway: RunningGateway, task: str, who: str = "ann", *, path: str = "") -> set[Any]:
    answers = [await ask(gateway, who, method, path=path, taskId=task, **more) for method, more in METHODS.items()]
    return {answer.get("error", {}).get("message", "permitted") for answer in answers}


async def test_task_is_accessible_only_where_its_tool_is(tmp_path: Path) -> None:
    server, record = bank(tmp_path)
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        gateway.client.headers["authorization"] = "Bearer key-of-ann"
        await gateway.until_listed("bank__transfer")
        report, transfer = await begin(gateway, "bank__report"), await begin(gateway, "bank__transfer")
        for task in (report, transfer):
            assert await outcomes(gateway, task) == {"permitted"}
            assert await outcomes(gateway, task, "ben") == {"Unknown task"}, "it belongs to another caller"
            # A task id of one tool is not valid for another tool.
            other = task.replace("report", "transfer") if task is report else task.replace("transfer", "report")
            assert await outcomes(gateway, other) == {"Unknown task"}
        assert await outcomes(gateway, report, path="/reports") == {"permitted"}
        count_before = len(record.requests("tasks/get"))
        assert await outcomes(gateway, transfer, path="/reports") == {"Unknown task"}, "the profile lacks its tool"
        assert len(record.requests("tasks/get")) == count_before


async def test_changed_rule_applies_to_running_tasks(tmp_path: Path) -> None:
    server, _ = bank(tmp_path)
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings()) as gateway:
        gateway.client.headers["authorization"] = "Bearer key-of-ann"
        await gateway.until_listed("bank__transfer")
        tasks = {name: await begin(gateway, f"bank__{name}") for name in ("report", "transfer")}
        deny = {"name": "no transfers", "principals": ["ann"], "deny": ["bank__transfer"]}
        document = {"mcpServers": {"bank": server}, "gateway": settings(deny)}
        gateway.config.write_text(json.dumps(document), encoding="utf-8")
        with anyio.fail_after(25):
            while "bank__transfer" in await gateway.tools():
                await brief_pause()
        assert await outcomes(gateway, tasks["report"]) == {"permitted"}
        assert await outcomes(gateway, tasks["transfer"]) == {"Unknown task"}


async def test_unprefixed_tool_supports_tasks(tmp_path: Path) -> None:
    server, record = bank(tmp_path)
    async with running_gateway(tmp_path, {"bank": {**server, "prefix": "none"}}, gateway=settings()) as gateway:
        gateway.client.headers["authorization"] = "Bearer key-of-ann"
        await gateway.until_listed("audit.log")
        assert await outcomes(gateway, await begin(gateway, "audit.log")) == {"permitted"}
        assert {request["params"]["taskId"] for request in record.requests("tasks/get")} == {"t.1"}
