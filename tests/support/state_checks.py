"""Exchanges that begin at one process of a gateway, or one gateway of a cluster, and continue at another."""

from __future__ import annotations

from support.gateways import META, RunningGateway


async def request_state_and_task_hold(begins: RunningGateway, ends: RunningGateway) -> None:
    """Check that another gateway accepts an answer to a question, and reports a task that the first one began.

    Args:
        begins: Serves `f__ask` and `f__task` of a modern server.
        ends: Serves the same.
    """
    form = {"type": "object", "properties": {"is": {"type": "string"}}}
    question = {"mode": "form", "message": "Who?", "requestedSchema": form}
    wanted = {"who": {"method": "elicitation/create", "params": question}}
    reply = {"who": {"action": "accept", "content": {"is": "Ada"}}}
    able = {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {META + "clientCapabilities": able}
    params = {"name": "f__ask", "arguments": {"requests": wanted}, "_meta": meta}
    first_result = (await begins.rpc("tools/call", params))["result"]
    assert first_result["resultType"] == "input_required"
    retry = {**params, "inputResponses": reply, "requestState": first_result["requestState"]}
    done = (await ends.rpc("tools/call", retry))["result"]
    assert done["structuredContent"] == {"replies": reply}
    # Sealed for this request alone, there too.
    other = {**retry, "arguments": {"requests": {"other": wanted["who"]}}}
    assert "error" in await ends.rpc("tools/call", other)
    task = {"name": "f__task", "arguments": {"result": {"content": []}}, "_meta": meta}
    task_id = (await begins.rpc("tools/call", task))["result"]["taskId"]
    found = await ends.rpc("tasks/get", {"taskId": task_id, "_meta": meta}, headers={"mcp-name": task_id})
    assert found["result"]["taskId"] == task_id
