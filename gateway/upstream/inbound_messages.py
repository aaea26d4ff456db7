"""What an upstream sends unasked: changes, log messages, questions; and which request each belongs to."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup

from gateway.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, GatewayError, RpcError
from gateway.jsonrpc import find_by_id
from gateway.protocol import QUESTIONS, SUBSCRIPTION_KEY, can_be_asked, question_of
from gateway.secrets import SECRETS
from gateway.upstream.request_callbacks import HostSession, OnParams, RequestCallbacks
from gateway.upstream.session import SessionPorts
from gateway.upstream.transport.jsonrpc import Reply, default_response
from gateway.upstream.watch_list import WatchedKind
from registry.catalog.catalog import ListKind

log = logging.getLogger(__name__)

# A person has this long to answer a question: it may ask for something that has to be looked up, or a login.
ASK_S: Final = 600.0
# Questions of one connection that wait for a person at once; nobody reads more dialogs, and each one holds a task.
_MAX_QUESTIONS: Final = 64
_LIST_CHANGES: Final[Mapping[str, ListKind]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}


class InboundMessages:
    """Takes the notifications and requests of one connection.

    Attributes:
        host: The downstream session whose own connection it is: everything on it is for that one.
        ports: Where changes are reported.
    """

    def __init__(self, group: TaskGroup, ports: SessionPorts, host: HostSession | None, *, server: str = "") -> None:
        """Take messages for one connection.

        Args:
            group: Runs what asks the host; it ends with the connection.
            ports: Where changes are reported.
            host: See `host`.
            server: The alias of the server, for what its user is asked.
        """
        self._server = server
        self.host = host
        self._group = group
        self.ports = ports
        self._negotiated = False
        self._modern = False
        # A dict for its order: the latest request is the likeliest cause of what arrives unmarked.
        self._in_flight: dict[RequestCallbacks, None] = {}
        self._questions: dict[object, anyio.CancelScope] = {}
        self._expected: list[tuple[frozenset[str], anyio.Event]] = []
        # Who takes the progress and the states of tasks, which outlive single requests: by token, and by id.
        self._watched: dict[tuple[Literal["progress", "task"], str], OnParams] = {}
        self._tokens = itertools.count(1)

    def start(self, *, modern: bool) -> None:
        """Take messages seriously from now on: the protocol version is negotiated."""
        self._negotiated, self._modern = True, modern

    def begin(self, callbacks: RequestCallbacks) -> None:
        """Note a request that is sent."""
        self._in_flight[callbacks] = None

    def end(self, callbacks: RequestCallbacks) -> None:
        """Note that it has its answer, or will have none."""
        del self._in_flight[callbacks]
        callbacks.end()

    @contextmanager
    def watching(self, kind: Literal["progress", "task"], key: str | None, take: OnParams) -> Iterator[str]:
        """Hand on what arrives for a progress token or the id of a task; yields it, a new token where there is none."""
        key = key or f"task-{next(self._tokens)}"
        self._watched[kind, key] = take
        try:
            yield key
        finally:
            self._watched.pop((kind, key), None)

    def run_aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run what may outlive its request, and ends with the connection; false where that has ended already."""
        try:
            self._group.start_soon(self._contained, work)
        except RuntimeError:
            return False
        return True

    async def _contained(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:  # boundary: what one request has left must not end the connection of the others
            log.exception("work aside failed unexpectedly")

    def expect_acknowledgement(self, kinds: Collection[str], acknowledged: anyio.Event) -> None:
        """Set the event once a subscription to these kinds of notifications is acknowledged."""
        wanted = frozenset(kinds)
        self._expected = [each for each in self._expected if each[0].isdisjoint(wanted)]
        self._expected.append((wanted, acknowledged))

    def receive(self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks | None = None) -> None:
        """Take a notification or a request; `callbacks` where the transport tells what it belongs to."""
        method, params = message["method"], message.get("params")
        if not self._negotiated:
            # Nothing that arrives before the handshake is over matters to anybody: the listing comes after it.
            if "id" in message:
                reply(default_response(message))
        elif "id" in message:
            self._take_request(message, reply, callbacks)
        elif method in _LIST_CHANGES:
            self.ports.on_list_changed((_LIST_CHANGES[method],))
        elif not isinstance(params, dict):
            return
        elif method == "notifications/message":
            callbacks = callbacks or self._owner_of_logs()
            if callbacks is not None and callbacks.on_log is not None:
                callbacks.on_log(SECRETS.scrub_value(params))
            elif callbacks is None and self.host is not None:
                self.host.notify(SECRETS.scrub_value(message))
        elif method == "notifications/elicitation/complete":
            if self.host is not None:
                self.host.notify(message)
        elif method == "notifications/cancelled":
            scope = find_by_id(self._questions, _hashable(params.get("requestId")))
            if scope is not None:
                scope.cancel()
        elif method == "notifications/subscriptions/acknowledged":
            self._take_acknowledgement(params.get("notifications"))
        elif method == "notifications/resources/updated":
            self._take_update("resourceSubscriptions", params.get("uri"), params)
        elif method == "notifications/progress":
            self._hand_on("progress", params.get("progressToken"), params)
        elif method == "notifications/tasks/status":
            self._hand_on("task", params.get("taskId"), params)
        elif method == "notifications/tasks":
            self._take_update("taskIds", params.get("taskId"), params)

    def _hand_on(self, kind: Literal["progress", "task"], key: object, params: dict[str, Any]) -> None:
        take = self._watched.get((kind, key)) if isinstance(key, str) else None
        if take is not None:
            take(params)

    def _take_acknowledgement(self, notifications: object) -> None:
        # On one stream several subscriptions are acknowledged, which are told apart by the kinds that they name.
        if isinstance(notifications, dict):
            for kinds, acknowledged in self._expected:
                if notifications.keys() <= kinds:
                    acknowledged.set()

    def _take_update(self, kind: WatchedKind, key: object, params: dict[str, Any]) -> None:
        if not isinstance(key, str):
            return
        meta = params.get("_meta")
        if isinstance(meta, dict) and SUBSCRIPTION_KEY in meta:
            # The id is that of our subscription; each caller has one of its own.
            meta = {name: value for name, value in meta.items() if name != SUBSCRIPTION_KEY}
            params = {**params, "_meta": meta} if meta else {k: v for k, v in params.items() if k != "_meta"}
        self.ports.on_update(kind, key, params)

    def _owner_of_logs(self) -> RequestCallbacks | None:
        """The request that an unmarked log message is shown to: only if no other caller's can have caused it."""
        candidates = list(self._in_flight)
        if self._modern:
            # Nothing is logged there for a request that did not ask for it.
            candidates = [callbacks for callbacks in candidates if callbacks.on_log is not None]
        if not candidates or any(callbacks.owner != candidates[0].owner for callbacks in candidates):
            return None
        return candidates[-1]

    def _take_request(self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks | None) -> None:
        method, host = message["method"], self.host
        if method not in QUESTIONS:
            reply(default_response(message))
        elif (
            host is not None
            and can_be_asked(host.capabilities, method, message.get("params"))
            and len(self._questions) < _MAX_QUESTIONS
        ):
            if callbacks is None:
                callbacks = next((one for one in reversed(self._in_flight) if one.ask is not None), None)
            self._group.start_soon(self._relay_question, message, reply, callbacks or RequestCallbacks(ask=host.ask))
        else:
            # Whichever request it was for: its result may say that input was missing, and then the reason is known.
            for candidate in [callbacks] if callbacks is not None else list(self._in_flight):
                candidate.refused.append(method)
            reply(default_response(message))

    async def _relay_question(self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks) -> None:
        key = _hashable(message["id"])
        params = message.get("params")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        # The server may withdraw its question, or the caller its request: both cancel this scope.
        with anyio.move_on_after(ASK_S) as scope:
            self._questions[key] = scope
            callbacks.asking.append(scope)
            callbacks.hold()
            try:
                if callbacks.ask is None or callbacks.ended:
                    raise RpcError(METHOD_NOT_FOUND, "this host cannot be asked")
                asked = SECRETS.scrub_value(params) if isinstance(params, dict) else {}
                asked = question_of(self._server, message["method"], asked)
                answer["result"] = await callbacks.ask(message["method"], asked)
            except GatewayError as error:
                answer["error"] = (
                    error if isinstance(error, RpcError) else RpcError(INTERNAL_ERROR, str(error))
                ).to_object()
            finally:
                callbacks.release()
                callbacks.asking.remove(scope)
                self._questions.pop(key, None)
        if scope.cancelled_caught:
            answer["error"] = {"code": INTERNAL_ERROR, "message": "nobody answered"}
        reply(answer)


def _hashable(value: object) -> object:
    # An id may be any JSON value if a peer is careless; a list cannot be a key.
    return value if isinstance(value, str | int | float) else repr(value)
