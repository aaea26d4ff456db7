"""The parts of the tasks extension of 2026-07-28 that the suite checks, as a middleware of the SDK's server.

No task runs in the background: a task ends when its time is over and a client asks for it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from material import WORD, Answer, form, text
from mcp import MCPError

EXTENSION = "io.modelcontextprotocol/tasks"
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_TTL_MS = 60_000
_SURE = {"type": "boolean"}
_NOBODY = {"type": "object", "properties": {}}
SCHEMAS: dict[str, Answer] = {
    "greet": {"type": "object", "properties": {"name": WORD}},
    "slow_compute": {"type": "object", "properties": {"seconds": {"type": "number"}, "label": WORD}},
    "failing_job": _NOBODY,
    "protocol_error_job": _NOBODY,
    "confirm_delete": {"type": "object", "properties": {"filename": WORD}},
    "multi_input": _NOBODY,
}
# Escalates to a task after its rounds of input, so the middleware only wraps it.
ESCALATES = "test_tool_with_task"
_REQUIRED = {"failing_job", ESCALATES}
_ASKS: dict[str, dict[str, Answer]] = {
    "confirm_delete": {"sure": form("Delete it?", confirm=_SURE)},
    "multi_input": {"one": form("First?", name=WORD), "two": form("Second?", name=WORD)},
}


@dataclass(slots=True, kw_only=True)
class Task:
    """One task."""

    due: float
    outcome: Answer
    asks: dict[str, Answer] = field(default_factory=dict)
    cancelled: bool = False
    task_id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    def seen(self) -> Answer:
        """Return the current state of the task, with its result if it has one."""
        about: Answer = {"taskId": self.task_id, "createdAt": self.created, "lastUpdatedAt": self.created}
        about |= {"ttlMs": _TTL_MS, "pollIntervalMs": 100}
        if self.cancelled:
            return {**about, "status": "cancelled"}
        if self.asks:
            return {**about, "status": "input_required", "inputRequests": self.asks}
        if time.monotonic() < self.due:
            return {**about, "status": "working"}
        return {**about, "status": "failed" if "error" in self.outcome else "completed", **self.outcome}


def _result(words: str, **more: Any) -> Answer:
    return {"content": [text(words)], **more}


def _outcome(name: str, given: Answer) -> Answer:
    match name:
        case "failing_job":
            return {"result": _result("This job always fails", isError=True)}
        case "protocol_error_job":
            return {"error": {"code": -32603, "message": "This job always breaks"}}
    return {"result": _result(f"{name} is done: {given}")}


class TasksExtension:
    """The middleware with the tasks of all clients."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    async def __call__(self, context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Answer what belongs to the extension, and let the server answer the rest."""
        params = context.params or {}
        declared = (params.get("_meta") or {}).get(_CAPABILITIES) or {}
        opted_in = EXTENSION in (declared.get("extensions") or {})
        if context.method in ("tasks/get", "tasks/update", "tasks/cancel"):
            if not opted_in:
                raise _missing()
            return {"resultType": "complete", **self._handle(context, params)}
        name = params.get("name")
        if context.method != "tools/call" or (name not in SCHEMAS and name != ESCALATES):
            return await call_next(context)
        if name in _REQUIRED and not opted_in:
            raise _missing()
        given = params.get("arguments") or {}
        if name == ESCALATES:
            result = await call_next(context)
            if isinstance(result, dict) and result.get("resultType") == "input_required":
                return result
            return self._begun(Task(due=0, outcome={"result": {"content": result["content"]}}))
        if name == "greet":
            return {"resultType": "complete", **_result(f"Hello, {given.get('name')}!")}
        if not opted_in:
            return {"resultType": "complete", **_result(f"{name} is done at once")}
        due = time.monotonic() + given.get("seconds", 0)
        return self._begun(Task(due=due, outcome=_outcome(name, given), asks=dict(_ASKS.get(name, {}))))

    def _begun(self, task: Task) -> Answer:
        self.tasks[task.task_id] = task
        about = {key: one for key, one in task.seen().items() if key not in ("result", "error", "inputRequests")}
        return {**about, "resultType": "task", "status": "working"}

    def _handle(self, context: Any, params: Answer) -> Answer:
        task_id, request = params.get("taskId"), getattr(context, "request", None)
        if request is not None and request.headers.get("mcp-name") not in (None, task_id):
            raise MCPError(code=-32020, message="mcp-name header does not match the request body's 'taskId'")
        task = self.tasks.get(str(task_id))
        if task is None:
            raise MCPError(code=-32602, message="Unknown task", data={"taskId": task_id})
        if context.method == "tasks/get":
            return task.seen()
        if context.method == "tasks/cancel":
            task.cancelled = task.cancelled or bool(task.asks) or time.monotonic() < task.due
        for key in params.get("inputResponses") or {}:
            task.asks.pop(key, None)
        return {}


def _missing() -> MCPError:
    data = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return MCPError(code=-32021, message="The client did not declare the tasks extension", data=data)
