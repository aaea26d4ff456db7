"""What an upstream says unasked: changes, log messages, questions; and whose request each belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup

from gateway.errors import METHOD_NOT_FOUND, GatewayError, RpcError
from gateway.protocol import QUESTIONS, SUBSCRIPTION_KEY, can_be_asked
from gateway.upstream.callbacks import Host, Sideband
from gateway.upstream.transport.jsonrpc import Reply, refusal
from registry.catalog.catalog import ListKind

log = logging.getLogger(__name__)

# A person has this long to answer a question.
ASK_S: Final = 600.0
_MAX_ASKS: Final = 64
_CHANGES: Final[Mapping[str, ListKind]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}

WatchedKind = Literal["resourceSubscriptions", "taskIds"]
OnUpdate = Callable[[WatchedKind, str, dict[str, Any]], None]
"""Hears of a change of one watched resource or task: its kind, its URI or id, the notification's params."""


class Hearing:
    """One connection's ear.

    Attributes:
        host: The downstream session whose own connection it is: all that is said on it is for that one.
        group: Runs what a question waits for; None before the owner is there.
        on_acknowledged: Hears which notifications a subscription of ours will bring.
        changed: Set when a list has changed; `dirty` says which.
    """

    def __init__(self, server: str, *, modern: bool, host: Host | None) -> None:
        self.server = server
        self.host = host
        self.group: TaskGroup | None = None
        self.on_update: OnUpdate | None = None
        self.on_acknowledged: Callable[[object], None] = lambda notifications: None
        self.changed = anyio.Event()
        self.dirty: set[ListKind] = set()
        self._modern = modern
        self._in_flight: dict[Sideband, None] = {}
        self._asked: dict[object, anyio.CancelScope] = {}

    def begin(self, sideband: Sideband) -> None:
        """A request is on its way."""
        self._in_flight[sideband] = None

    def end(self, sideband: Sideband) -> None:
        """It has its answer, or will have none."""
        del self._in_flight[sideband]
        sideband.end()

    def hear(self, message: dict[str, Any], reply: Reply, sideband: Sideband | None = None) -> None:
        """Take a notification or a request; `sideband` where the wire tells what it belongs to."""
        method, params = message["method"], message.get("params")
        if "id" in message:
            self._question(message, reply, sideband)
        elif method in _CHANGES:
            self.dirty.add(_CHANGES[method])
            self.changed.set()
        elif not isinstance(params, dict):
            return
        elif method == "notifications/message":
            sideband = sideband or self._owner_of_logs()
            if sideband is not None and sideband.on_log is not None:
                sideband.on_log(params)
            elif sideband is None and self.host is not None:
                self.host.tell(message)
        elif method == "notifications/elicitation/complete":
            if self.host is not None:
                self.host.tell(message)
        elif method == "notifications/cancelled":
            scope = self._asked.get(_hashable(params.get("requestId")))
            if scope is not None:
                scope.cancel()
        elif method == "notifications/subscriptions/acknowledged":
            self.on_acknowledged(params.get("notifications"))
        elif method == "notifications/resources/updated":
            self._updated("resourceSubscriptions", params.get("uri"), params)
        elif method == "notifications/tasks":
            self._updated("taskIds", params.get("taskId"), params)

    def _updated(self, kind: WatchedKind, key: object, params: dict[str, Any]) -> None:
        if isinstance(key, str) and self.on_update is not None:
            meta = params.get("_meta")
            if isinstance(meta, dict) and SUBSCRIPTION_KEY in meta:
                meta = {name: value for name, value in meta.items() if name != SUBSCRIPTION_KEY}
                params = {**params, "_meta": meta} if meta else {k: v for k, v in params.items() if k != "_meta"}
            self.on_update(kind, key, params)

    def _owner_of_logs(self) -> Sideband | None:
        """The request that an unmarked log message is shown to: only if no other caller's can have caused it."""
        candidates = list(self._in_flight)
        if self._modern:
            # Nothing is logged there for a request that did not ask for it.
            candidates = [one for one in candidates if one.on_log is not None]
        if not candidates or any(one.owner != candidates[0].owner for one in candidates):
            return None
        return candidates[-1]

    def _question(self, message: dict[str, Any], reply: Reply, sideband: Sideband | None) -> None:
        method = message["method"]
        if method not in QUESTIONS:
            reply(refusal(message))
            return
        able = self.host is not None and can_be_asked(self.host.capabilities, method, message.get("params"))
        if able and self.host is not None and self.group is not None and len(self._asked) < _MAX_ASKS:
            if sideband is None:
                sideband = next((one for one in reversed(self._in_flight) if one.ask is not None), None)
            self.group.start_soon(self._relay_question, message, reply, sideband or Sideband(ask=self.host.ask))
            return
        for one in [sideband] if sideband is not None else list(self._in_flight):
            one.refused.append(method)
        reply(refusal(message))

    async def _relay_question(self, message: dict[str, Any], reply: Reply, sideband: Sideband) -> None:
        key = _hashable(message["id"])
        params = message.get("params")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        with anyio.move_on_after(ASK_S) as scope:
            self._asked[key] = scope
            sideband.asking.append(scope)
            sideband.hold()
            try:
                if sideband.ask is None or sideband.ended:
                    raise RpcError(METHOD_NOT_FOUND, "this host cannot be asked")
                answer["result"] = await sideband.ask(message["method"], params if isinstance(params, dict) else {})
            except RpcError as error:
                answer["error"] = error.to_object()
            except GatewayError as error:
                answer["error"] = {"code": -32603, "message": str(error)}
            finally:
                sideband.release()
                sideband.asking.remove(scope)
                self._asked.pop(key, None)
        if scope.cancelled_caught:
            answer["error"] = {"code": -32603, "message": "nobody answered"}
        reply(answer)


def _hashable(value: object) -> object:
    return value if isinstance(value, str | int | float) else repr(value)
