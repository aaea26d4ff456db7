"""The ids of tasks as callers see them: each is valid for its caller only, and names the tool that started it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gateway.access.signing import Signer
from gateway.errors import INVALID_PARAMS, RpcError
from gateway.hooks.active import ActiveHooks
from registry.catalog.catalog import ToolWrapper
from registry.views.view import View

_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


class Task(NamedTuple):
    """A task of an upstream.

    Attributes:
        server: The alias of its server.
        wrapper: The name of the tool that started it.
        original: Its id as the server knows it.
    """

    server: str
    wrapper: str
    original: str


class TaskIds:
    """Makes the ids of tasks, and reads them.

    They hold all that is known of a task, signed, so that every worker and pod knows it, after a restart too.

    Source: MCP extension io.modelcontextprotocol/tasks, 2026-07-28, "Security": an id is all it takes to
    read a task, and an upstream knows every caller of ours by the same credential.
    """

    def __init__(self, signer: Signer, hooks: ActiveHooks) -> None:
        self._signer = signer
        self._hooks = hooks

    def started(self, result: dict[str, Any], wrapper: ToolWrapper, identity: str) -> dict[str, Any]:
        """Give a task that a call has started its id for this caller."""
        return self.expose(result, Task(wrapper.server, wrapper.name, ""), identity)

    def announced(self, params: dict[str, Any], task: Task, identity: str) -> dict[str, Any]:
        """Give a task in a notification its id.

        Where there are hooks its result is left out: it has to be requested, and then passes them.
        """
        if self._hooks.runners and "result" in params:
            params = {key: value for key, value in params.items() if key != "result"}
        return self.expose(params, task, identity)

    def owner(self, exposed: str, identity: str, view: View) -> Task:
        """The task behind an id.

        Args:
            exposed: The id as callers see it.
            identity: Whose request it is.
            view: What the caller is shown.

        Raises:
            RpcError: The id was not given to this caller, or the tool that started the task is not there for it.
        """
        server, _, rest = exposed.partition(".")
        written, _, rest = rest.partition(".")
        _, found, original = rest.partition(".")
        task = Task(server, written.replace(":", "."), original)
        wrapper = view.catalog.get(task.wrapper)
        if not found or self._name(task, identity) != exposed or wrapper is None or wrapper.server != server:
            raise RpcError(INVALID_PARAMS, "Unknown task")
        return task

    def expose(self, result: dict[str, Any], task: Task, identity: str) -> dict[str, Any]:
        """Give the tasks in a result or a notification their ids for this caller: those of the same tool."""
        task_id = result.get("taskId")
        if isinstance(task_id, str):
            result = {**result, "taskId": self._name(task._replace(original=task_id), identity)}
        meta = result.get("_meta")
        related = meta.get(_RELATED_TASK) if isinstance(meta, dict) else None
        if isinstance(meta, dict) and isinstance(related, dict) and isinstance(related.get("taskId"), str):
            named = {**related, "taskId": self._name(task._replace(original=related["taskId"]), identity)}
            result = {**result, "_meta": {**meta, _RELATED_TASK: named}}
        return result

    def _name(self, task: Task, identity: str) -> str:
        mark = self._signer.mark(task.original, "task", task.server, task.wrapper, identity)
        # No alias has a dot, and no name of a wrapper a colon.
        return f"{task.server}.{task.wrapper.replace('.', ':')}.{mark}.{task.original}"
