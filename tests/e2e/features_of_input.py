"""Questions of a server during a request, and tasks, with every host that can be asked."""

from __future__ import annotations

import json
from typing import Any

from e2e.features import asks, feature
from e2e.lanes import Lane
from support.hosts import agreeable

FORM = {
    "mode": "form",
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"said": {"type": "string"}}},
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "who": {"method": "elicitation/create", "params": FORM},
    "model": {
        "method": "sampling/createMessage",
        "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 7},
    },
    "where": {"method": "roots/list", "params": {}},
}
REPLIES = {key: agreeable(one["method"], one["params"]) for key, one in QUESTIONS.items()}


@feature(asks)
async def the_host_is_asked_in_mid_call_and_its_replies_arrive(lane: Lane) -> None:
    since = len(lane.host.received)
    number = lane.host._count + 1
    result = await lane.call("ask", requests=QUESTIONS)
    assert result["structuredContent"] == {"replies": REPLIES}
    questions = [one for one in lane.host.received[since:] if "id" in one.message]
    if lane.host.modern:
        assert questions == []
    else:
        assert {one.method for one in questions} == {one["method"] for one in QUESTIONS.values()}
        assert {one.via for one in questions} <= {number, "stdio"}


@feature(asks)
async def a_user_may_decline(lane: Lane) -> None:
    lane.host.reply = lambda method, params: {"action": "decline"}
    try:
        result = await lane.call("ask", requests={"who": QUESTIONS["who"]})
    finally:
        lane.host.reply = agreeable
    assert result["structuredContent"] == {"replies": {"who": {"action": "decline"}}}


@feature(lambda lane: asks(lane) and lane.host.version >= "2025-11-25")
async def a_user_can_be_sent_to_an_address(lane: Lane) -> None:
    elicitation = {"mode": "url", "message": "Go", "url": "https://example.com/u?a=1", "elicitationId": "e1"}
    seen = []

    def reply(method: str, params: dict[str, Any]) -> dict[str, Any]:
        seen.append(params)
        return agreeable(method, params)

    host, since = lane.host, len(lane.host.received)
    host.reply = reply
    try:
        requests = {"go": {"method": "elicitation/create", "params": elicitation}}
        result = await lane.call("ask", requests=requests, **({} if lane.server.modern else {"complete": "e1"}))
    finally:
        host.reply = agreeable
    assert result["structuredContent"] == {"replies": {"go": {"action": "accept"}}}
    shown = lane.expected_request(requests["go"])["params"]
    assert [seen[0][key] for key in ("mode", "message", "url")] == ["url", shown["message"], elicitation["url"]]
    if not lane.server.modern:
        assert seen[0]["elicitationId"] == "e1"
        done = await host.until(lambda: host.of("notifications/elicitation/complete", since))
        assert done[0].params["elicitationId"] == "e1"


@feature(asks)
async def prompts_and_resources_may_ask_too(lane: Lane) -> None:
    params = {"name": lane.name("interview"), "arguments": {"requests": json.dumps({"who": QUESTIONS["who"]})}}
    rendered = await lane.host.result("prompts/get", params)
    assert json.loads(rendered["messages"][0]["content"]["text"]) == {"who": REPLIES["who"]}
    read = await lane.host.result("resources/read", {"uri": lane.uri("guarded")})
    assert json.loads(read["contents"][0]["text"]) == {"roots": REPLIES["where"]}


@feature(lambda lane: lane.host.modern and lane.server.asking)
async def a_modern_host_is_told_why_an_old_server_cannot_ask_it(lane: Lane) -> None:
    result = await lane.call("ask", requests={"who": QUESTIONS["who"]})
    assert result["isError"] is True
    words = result["content"][0]["text"].lower()
    assert any(one in words for one in ("ask", "input", "elicit")), words
    assert (await lane.call("echo", after=2))["structuredContent"] == {"after": 2}


@feature(lambda lane: lane.through and not lane.server.modern and not lane.server.asking)
async def an_old_server_that_may_not_ask_is_refused_and_can_go_on(lane: Lane) -> None:
    since = len(lane.host.received)
    result = await lane.call("ask", requests={"who": QUESTIONS["who"]})
    assert result.get("isError") or "error" in result["structuredContent"]["replies"]["who"], result
    assert [one for one in lane.host.received[since:] if "id" in one.message] == []


@feature(lambda lane: lane.host.modern and lane.server.modern)
async def tasks_and_results_of_other_extensions_pass(lane: Lane) -> None:
    host, tasks = lane.host, "io.modelcontextprotocol/tasks"
    odd = {"resultType": "example.com/odd", "pieces": [None, {"a": 2**60}]}
    passed = await lane.call("result", result=odd)
    assert {key: passed[key] for key in odd} == odd
    declared, host.declared = host.declared, {**host.declared, "extensions": {tasks: {}}}
    try:
        result = {"content": [{"type": "text", "text": "done"}], "vendor": None}
        begun = await lane.call("task", result=result)
        assert begun["resultType"] == "task"
        assert (begun["status"], begun["ttlMs"], begun["vendor"]) == ("working", 60_000, {"kept": None})
        got = await host.result("tasks/get", {"taskId": begun["taskId"]})
        assert (got["status"], got["result"], got["taskId"]) == ("completed", result, begun["taskId"])
        asking = await lane.call("task", requests={"who": QUESTIONS["who"]})
        waits = await host.result("tasks/get", {"taskId": asking["taskId"]})
        assert (waits["status"], waits["inputRequests"]) == (
            "input_required",
            {"who": lane.expected_request(QUESTIONS["who"])},
        )
        replies = {"who": REPLIES["who"]}
        await host.result("tasks/update", {"taskId": asking["taskId"], "inputResponses": replies})
        done = await host.result("tasks/get", {"taskId": asking["taskId"]})
        assert done["result"]["structuredContent"] == {"replies": replies}
        endless = await lane.call("task", endless=True)
        await host.result("tasks/cancel", {"taskId": endless["taskId"]})
        assert (await host.result("tasks/get", {"taskId": endless["taskId"]}))["status"] == "cancelled"
        unknown = await host.ask("tasks/get", {"taskId": "nobody's"})
        assert unknown["error"]["code"] == -32602
    finally:
        host.declared = declared
