"""Task ids as callers see them, and upstream subscriptions shared between callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import anyio

from gateway.access.signing import Signer
from gateway.calls.selection import Selection, encode_selection
from gateway.hooks.hook_loading import ActiveHooks
from gateway.protocol.gateway_errors import INVALID_PARAMS, RpcError
from gateway.upstream.link import UpstreamLink
from gateway.upstream.session import WatchedKind
from registry.catalog.catalog import ToolWrapper
from registry.views.view import View

log = logging.getLogger(__name__)

_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"


class Task(NamedTuple):
    """A task of an upstream.

    Attributes:
        server: The alias of the task's server.
        wrapper: The wrapper name of the tool that started the task.
        original: The server's own id of the task.
        selection: The part of the result that the caller needs, from `encode_selection`; empty for the whole result.
    """

    server: str
    wrapper: str
    original: str
    selection: str = ""


class TaskIds:
    """Creates and parses the ids of tasks.

    An id contains all information about its task, and a signature, so that every worker and replica can use the id,
    even after a restart. The signature covers the caller's identity, so that a caller cannot use the id of another
    caller's task. The upstream cannot prevent such use if the gateway has the same credential for all callers.

    Source: MCP extension io.modelcontextprotocol/tasks, 2026-07-28, "Security".
    """

    def __init__(self, signer: Signer, hooks: ActiveHooks) -> None:
        self._signer = signer
        self._hooks = hooks

    def started(
        self, result: dict[str, Any], wrapper: ToolWrapper, identity: str, selection: Selection | None
    ) -> dict[str, Any]:
        """Replace the id of a newly started task by an id for this caller, which contains the call's selection."""
        return self.expose(result, Task(wrapper.server, wrapper.name, "", encode_selection(selection)), identity)

    def announced(self, params: dict[str, Any], task: Task, identity: str, *, in_parts: bool) -> dict[str, Any]:
        """Replace the id of a task in a notification by the id for this caller.

        A result in the notification is removed if there are hooks or if the tool's results may be cut. The caller then
        has to request the result with `tasks/get`, where hooks and cuts are applied.

        Args:
            in_parts: True if the tool's results may be cut.
        """
        if (self._hooks.runners or in_parts) and "result" in params:
            params = {key: value for key, value in params.items() if key != "result"}
        return self.expose(params, task, identity)

    def owner(self, exposed: str, identity: str, view: View) -> Task:
        """Return the task that an id refers to.

        Args:
            exposed: The id as callers see it.
            identity: The identity of the requesting caller.
            view: The tools that the caller may use.

        Raises:
            RpcError: The id was not issued to this caller, or the tool that started the task is not in the view.
        """
        server, _, remainder = exposed.partition(".")
        encoded_tool, _, remainder = remainder.partition(".")
        mark, separator, original = remainder.partition(".")
        task = Task(server, encoded_tool.replace(":", "."), original, mark.partition("~")[2])
        wrapper = view.catalog.by_name.get(task.wrapper)
        if not separator or self._name(task, identity) != exposed or wrapper is None or wrapper.server != server:
            raise RpcError(INVALID_PARAMS, "Unknown task")
        return task

    def expose(self, result: dict[str, Any], task: Task, identity: str) -> dict[str, Any]:
        """Replace the task ids in a result or notification by the ids for this caller.

        Args:
            task: The task. Other task ids in the result are treated as tasks started by the same tool.
        """
        task_id = result.get("taskId")
        if isinstance(task_id, str):
            result = {**result, "taskId": self._name(task._replace(original=task_id), identity)}
        meta = result.get("_meta")
        related = meta.get(_RELATED_TASK) if isinstance(meta, dict) else None
        if isinstance(meta, dict) and isinstance(related, dict) and isinstance(related.get("taskId"), str):
            renamed = {**related, "taskId": self._name(task._replace(original=related["taskId"]), identity)}
            result = {**result, "_meta": {**meta, _RELATED_TASK: renamed}}
        return result

    def _name(self, task: Task, identity: str) -> str:
        selected = (task.selection,) if task.selection else ()
        mark = self._signer.mark(task.original, "task", task.server, task.wrapper, identity, *selected)
        mark = "~".join((mark, *selected))
        # Aliases cannot contain a dot, and names of wrappers cannot contain a colon.
        return f"{task.server}.{task.wrapper.replace('.', ':')}.{mark}.{task.original}"


# Time limit for an upstream to acknowledge subscriptions: a round trip to a slow server. Updates also arrive without
# the acknowledgement.
SETTLE_S: Final = 3.0

OnUpdate = Callable[[dict[str, Any]], None]
_Key = tuple[str, WatchedKind, str]


class UpstreamUpdates:
    """The event bus for updates of resources and tasks: links publish updates, and callers' subscriptions listen.

    Attributes:
        listeners: The listeners by item: the server (or the key from `UserLinks.key_of` for a caller's own link), the
            kind of item, and the item's key.
    """

    def __init__(self) -> None:
        self.listeners: dict[_Key, dict[object, OnUpdate]] = {}

    def publish(self, server: str, kind: WatchedKind, key: str, params: dict[str, Any]) -> None:
        """Pass the params of an update to all listeners."""
        # Iterate over a copy, because a listener may unsubscribe while it is called.
        for listener in list(self.listeners.get((server, kind, key), {}).values()):
            try:
                listener(params)
            except Exception:  # boundary: an error in one listener must not affect the others
                log.exception("update subscriber failed")

    def restore(self, server: str, link: UpstreamLink) -> None:
        """Repeat all current subscriptions to a server on its new link, which was created after a reconfiguration."""
        for owner, kind, key in self.listeners:
            if owner == server:
                link.watch_list.add(kind, key)


class UpstreamSubscriptions:
    """Shares upstream subscriptions among callers: several callers of one item need one upstream subscription.

    Each `OnUpdate` must be synchronous and fast.
    """

    def __init__(self, updates: UpstreamUpdates, link_of: Callable[[str], UpstreamLink | None]) -> None:
        """Use these links for subscriptions.

        Args:
            updates: The bus on which links publish updates.
            link_of: Returns the link for the alias of a server, or for a key from `UserLinks.key_of` for a caller with
                its own link.
        """
        self._link_of = link_of
        self._listeners = updates.listeners

    def add(self, server: str, kind: WatchedKind, key: str, on_update: OnUpdate) -> Callable[[], None]:
        """Subscribe to an item of a server, and return a function that ends the subscription."""
        listeners = self._listeners.setdefault((server, kind, key), {})
        token = object()  # the function cannot be the key, because a function may subscribe twice
        listeners[token] = on_update
        link = self._link_of(server)
        # Only the first subscriber to an item subscribes upstream, and only the last subscriber unsubscribes.
        if len(listeners) == 1 and link is not None:
            link.watch_list.add(kind, key)

        def remove() -> None:
            current = self._listeners.get((server, kind, key), {})
            # Do nothing if `remove` was already called, or while other callers are subscribed.
            if current.pop(token, None) is None or current:
                return
            del self._listeners[server, kind, key]
            link = self._link_of(server)
            if link is not None:
                link.watch_list.remove(kind, key)

        return remove

    async def settled(self, server: str) -> None:
        """Wait, up to `SETTLE_S`, until a connected upstream has acknowledged all subscriptions."""
        link = self._link_of(server)
        if link is not None and link.session is not None:
            with anyio.move_on_after(SETTLE_S):
                await link.watch_list.wait_applied()
