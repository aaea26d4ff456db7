"""Handle the messages that an upstream sends unprompted: notifications, log messages, and requests to the client.

A "question" is a request that a server sends to its client during a call, to get user input, a model response or roots.
"Modern" servers speak protocol version 2026-07-28, which has no handshake and no such requests.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

import anyio
from anyio.abc import TaskGroup

from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import INTERNAL_ERROR, METHOD_NOT_FOUND, GatewayError, RpcError
from gateway.protocol.jsonrpc import find_by_id
from gateway.protocol.versions import QUESTIONS, SUBSCRIPTION_KEY, can_be_asked, input_request_of
from gateway.upstream.session import HostSession, OnParams, RequestCallbacks, SessionPorts, WatchedKind
from gateway.upstream.transport.jsonrpc_transport import Reply, default_response
from registry.catalog.catalog import ListKind

log = logging.getLogger(__name__)

# How long a user may take to answer a question. The answer may require looking something up or signing in.
ASK_S: Final = 600.0
# The maximum number of open questions of one connection. Each question needs a task, and users cannot answer more.
_MAX_QUESTIONS: Final = 64
_LIST_CHANGES: Final[Mapping[str, ListKind]] = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}


class InboundMessages:
    """Handles the notifications and requests that arrive on one connection.

    Attributes:
        host: The downstream session that owns the connection and gets all messages; None if callers share the
            connection.
        ports: The callbacks for changes.
    """

    def __init__(self, group: TaskGroup, ports: SessionPorts, host: HostSession | None, *, server: str = "") -> None:
        """Handle the messages of one connection.

        Args:
            group: The task group of the connection; it runs the tasks that forward questions to the host.
            server: The alias of the server, shown to users in questions.
        """
        self._server = server
        self.host = host
        self._group = group
        self.ports = ports
        self._negotiated = False
        self._modern = False
        # A dict serves as an ordered set: a message that names no request most likely belongs to the latest request.
        self._in_flight: dict[RequestCallbacks, None] = {}
        self._questions: dict[object, anyio.CancelScope] = {}
        self._expected: list[tuple[frozenset[str], anyio.Event]] = []
        # Callbacks for the progress (by token) and status (by task id) of tasks. A task may outlive the request that
        # started it.
        self._watched: dict[tuple[Literal["progress", "task"], str], OnParams] = {}
        self._tokens = itertools.count(1)

    def start(self, *, modern: bool) -> None:
        """Start handling messages, because the protocol version has been negotiated."""
        self._negotiated, self._modern = True, modern

    def register_request(self, callbacks: RequestCallbacks) -> None:
        """Register a request that is about to be sent."""
        self._in_flight[callbacks] = None

    def end(self, callbacks: RequestCallbacks) -> None:
        """Unregister a request that was answered or abandoned, and cancel its open questions."""
        del self._in_flight[callbacks]
        callbacks.end()

    @contextmanager
    def watching(self, kind: Literal["progress", "task"], key: str | None, on_params: OnParams) -> Iterator[str]:
        """Call `on_params` with the params of each notification for a progress token or task id, while the block runs.

        Yields:
            `key`, or a new progress token if `key` is None.
        """
        key = key or f"task-{next(self._tokens)}"
        self._watched[kind, key] = on_params
        try:
            yield key
        finally:
            self._watched.pop((kind, key), None)

    def run_in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start work that may outlive its request but not the connection; return false if the connection has ended."""
        try:
            self._group.start_soon(self._run_contained, work)
        except RuntimeError:
            return False
        return True

    async def _run_contained(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:  # boundary: leftover work of one request must not end the shared connection
            log.exception("background work of a request failed unexpectedly")

    def expect_acknowledgement(self, kinds: Collection[str], acknowledged: anyio.Event) -> None:
        """Set `acknowledged` once the server acknowledges a subscription to these kinds of notifications."""
        awaited = frozenset(kinds)
        self._expected = [each for each in self._expected if each[0].isdisjoint(awaited)]
        self._expected.append((awaited, acknowledged))

    def receive(  # noqa: C901 - one branch per kind of message
        self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks | None = None
    ) -> None:
        """Handle a notification or request.

        Args:
            callbacks: The callbacks of the request that the message belongs to; None if the transport does not know
                the request.
        """
        method, params = message["method"], message.get("params")
        if not self._negotiated:
            # Ignore notifications during the handshake: the gateway requests all lists afterwards.
            if "id" in message:
                reply(default_response(message))
        elif "id" in message:
            self._handle_request(message, reply, callbacks)
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
            self._handle_acknowledgement(params.get("notifications"))
        elif method == "notifications/resources/updated":
            self._handle_update("resourceSubscriptions", params.get("uri"), params)
        elif method == "notifications/progress":
            self._dispatch("progress", params.get("progressToken"), params)
        elif method == "notifications/tasks/status":
            self._dispatch("task", params.get("taskId"), params)
        elif method == "notifications/tasks":
            self._handle_update("taskIds", params.get("taskId"), params)

    def _dispatch(self, kind: Literal["progress", "task"], key: object, params: dict[str, Any]) -> None:
        on_params = self._watched.get((kind, key)) if isinstance(key, str) else None
        if on_params is not None:
            on_params(params)

    def _handle_acknowledgement(self, notifications: object) -> None:
        # Several subscriptions may be acknowledged on one stream; their kinds of notifications distinguish them.
        if isinstance(notifications, dict):
            for kinds, acknowledged in self._expected:
                if notifications.keys() <= kinds:
                    acknowledged.set()

    def _handle_update(self, kind: WatchedKind, key: object, params: dict[str, Any]) -> None:
        if not isinstance(key, str):
            return
        meta = params.get("_meta")
        if isinstance(meta, dict) and SUBSCRIPTION_KEY in meta:
            # Remove the id of the gateway's subscription, because the subscriptions of callers have other ids.
            meta = {name: value for name, value in meta.items() if name != SUBSCRIPTION_KEY}
            params = {**params, "_meta": meta} if meta else {k: v for k, v in params.items() if k != "_meta"}
        self.ports.on_update(kind, key, params)

    def _owner_of_logs(self) -> RequestCallbacks | None:
        """Return the request that receives a log message without a request id; None if no single caller qualifies."""
        candidates = list(self._in_flight)
        if self._modern:
            # Modern servers send log messages only for requests that set a log level.
            candidates = [callbacks for callbacks in candidates if callbacks.on_log is not None]
        if not candidates or any(callbacks.owner != candidates[0].owner for callbacks in candidates):
            return None
        return candidates[-1]

    def _handle_request(self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks | None) -> None:
        method, host = message["method"], self.host
        if method not in QUESTIONS:
            reply(default_response(message))
        elif (
            host is not None
            and can_be_asked(host.capabilities, method, message.get("params"))
            and len(self._questions) < _MAX_QUESTIONS
        ):
            if callbacks is None:
                callbacks = next((pending for pending in reversed(self._in_flight) if pending.ask is not None), None)
            self._group.start_soon(self._relay_question, message, reply, callbacks or RequestCallbacks(ask=host.ask))
        else:
            # Record the refusal for each request that may have caused the question, because the result of the request
            # may complain about missing input.
            for candidate in [callbacks] if callbacks is not None else list(self._in_flight):
                candidate.refused.append(method)
            reply(default_response(message))

    async def _relay_question(self, message: dict[str, Any], reply: Reply, callbacks: RequestCallbacks) -> None:
        key = _hashable(message["id"])
        params = message.get("params")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        # The scope is cancelled if the server withdraws the question or the caller cancels its request.
        with anyio.move_on_after(ASK_S) as scope:
            self._questions[key] = scope
            callbacks.open_questions.append(scope)
            callbacks.hold()
            try:
                if callbacks.ask is None or callbacks.ended:
                    raise RpcError(METHOD_NOT_FOUND, "this host does not answer questions during a call")
                input_params = SECRETS.scrub_value(params) if isinstance(params, dict) else {}
                input_params = input_request_of(self._server, message["method"], input_params)
                answer["result"] = await callbacks.ask(message["method"], input_params)
            except GatewayError as error:
                answer["error"] = (
                    error if isinstance(error, RpcError) else RpcError(INTERNAL_ERROR, str(error))
                ).to_object()
            finally:
                callbacks.release()
                callbacks.open_questions.remove(scope)
                self._questions.pop(key, None)
        if scope.cancelled_caught:
            answer["error"] = {"code": INTERNAL_ERROR, "message": "no answer came in time"}
        reply(answer)


def _hashable(value: object) -> object:
    # Faulty servers may send any JSON value as an id, including values that are not hashable.
    return value if isinstance(value, str | int | float) else repr(value)
