"""Run a tool call that the server executes as a task, and return the result.

Hosts do not notice the task: they call such tools like any other tool. Source: MCP 2025-11-25, "Tasks".
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio

from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    TooManyCalls,
    UpstreamLost,
    UpstreamProtocolError,
)
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import RequestCallbacks
from gateway.upstream.transport.jsonrpc_transport import Transport

_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
# The poll interval for servers that state no interval; the default of the TypeScript SDK.
_POLL_S: Final = 1.0
# The shortest poll interval, for servers that state an interval of 0.
_LEAST_POLL_S: Final = 0.05
# The longest poll interval. With longer intervals, hosts could give up before the gateway notices the end of a task.
_LONGEST_POLL_S: Final = 30.0
# The interval of progress reports to the caller. It is short, because hosts give up after 60 s without progress.
_REPORT_S: Final = 10.0
# A restarting server or proxy is usually back within a few polls.
_MAX_FAILED_POLLS: Final = 5
_CANCEL_S: Final = 10.0
# These errors mean that the server does not know the task. Other errors may be temporary.
_UNKNOWN_TASK: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})
# At most this much of a server's text is quoted in an error.
_MAX_REASON_CHARS: Final = 500


def runs_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a server with these capabilities runs tool calls as tasks."""
    value: Any = capabilities
    for name in ("tasks", "requests", "tools", "call"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value not in (None, False)


class TaskRun:
    """One tool call that the server executes as a task.

    Args:
        headers: Headers to send with each request; None for transports without headers.
    """

    def __init__(
        self,
        server: str,
        transport: Transport,
        inbound: InboundMessages,
        callbacks: RequestCallbacks,
        headers: dict[str, str] | None,
    ) -> None:
        self._server = server
        self._transport = transport
        self._inbound = inbound
        self._callbacks = callbacks
        self._headers = headers
        self._task_id = ""
        self._interval_s = _POLL_S
        self._changed = anyio.Event()
        # The latest progress notification to the caller: its value, message and time.
        self._progress = 0.0
        self._reported_message: object = None
        self._reported_s = time.monotonic()

    async def call(self, params: dict[str, Any]) -> Any:
        """Call the tool and return its result.

        Raises:
            GatewayError: As for `UpstreamSession.send`. Once the task exists, the error never states that nothing was
                sent.
        """
        # Use a separate progress token that is valid until the task ends, not only until the first answer arrives.
        with self._inbound.watching("progress", None, self._handle_progress) as token:
            meta = {**(params.get("_meta") or {}), "progressToken": token}
            created = await self._create_task({**params, "task": {}, "_meta": meta})
            task = self._task_in(created)
            if task is None:
                return created  # the server ran the call at once
            with self._inbound.watching("task", self._task_id, self._handle_status):
                try:
                    return await self._outcome(task)
                except asyncio.CancelledError:
                    # The caller has disconnected or timed out, so cancel the task in the background.
                    self._inbound.run_in_background(self._cancel)
                    raise

    async def _create_task(self, params: dict[str, Any]) -> Any:
        """Call the tool, and return the server's answer, which describes the task.

        If the caller disconnects before the server has answered, wait in the background for the answer, which contains
        the task id, and then cancel the task.
        """
        answered, scope, outcome = anyio.Event(), anyio.CancelScope(), list[Any]()

        async def create() -> None:
            try:
                with scope:
                    outcome.append(await self._request("tools/call", params))
            except Exception as error:  # noqa: BLE001 - boundary: re-raised below, as the error of the call
                outcome.append(error)
            finally:
                answered.set()
            if scope.deadline < math.inf and outcome and self._task_in(outcome[0]) is not None:
                await self._cancel()

        if not self._inbound.run_in_background(create):
            raise ConnectionLost("the connection has ended", sent=False)
        try:
            await answered.wait()
        except asyncio.CancelledError:
            scope.deadline = anyio.current_time() + _CANCEL_S
            raise
        if not outcome:
            raise ConnectionLost("the connection has ended", sent=True)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def _task_in(self, created: Any) -> dict[str, Any] | None:
        task = created.get("task") if isinstance(created, dict) else None
        if not isinstance(task, dict) or not isinstance(task.get("taskId"), str):
            return None
        self._task_id = task["taskId"]
        return task

    async def _outcome(self, task: dict[str, Any]) -> Any:
        while (status := _status(task)) not in _ENDED:
            if status == "input_required":
                # The server sends its input requests on the response stream of `tasks/result`. The stream stays open
                # until the task ends.
                with self._polling():
                    return await self._result(task)
            await self._pause(task)
            task = await self._poll()
        if status == "cancelled":
            text = f"Server '{self._server}' cancelled the task of this call{_reason(task)}."
            raise UpstreamProtocolError(self._server, f"{text} It may have taken effect in part.")
        return await self._result(task)

    async def _result(self, task: dict[str, Any]) -> Any:
        has_failed = _status(task) == "failed"
        try:
            result = await self._request("tasks/result", {"taskId": self._task_id})
        except RpcError as error:
            if not has_failed and error.code in _UNKNOWN_TASK and "task" in error.message.lower():
                raise self._forgotten_error(error) from None
            if has_failed and (reason := _reason(task)) and reason[2:] not in error.message:
                raise RpcError(error.code, f"{error.message}{reason}", error.data) from None
            raise
        except (ConnectionLost, SessionForgotten, HttpStatusError, TooManyCalls) as error:
            raise self._lost_error(error) from None
        if not isinstance(result, dict):
            return result
        if has_failed:
            result["isError"] = True  # some servers report the failure only in the status
        # Remove the reference to the task, because the caller does not know about the task.
        if isinstance(meta := result.get("_meta"), dict) and _RELATED_TASK in meta:
            del meta[_RELATED_TASK]
            if not meta:
                del result["_meta"]
        return result

    # polling

    async def _pause(self, task: dict[str, Any]) -> None:
        """Wait until the next poll is due or the server reports that the task has changed."""
        interval_ms = task.get("pollInterval")
        if isinstance(interval_ms, int | float) and not isinstance(interval_ms, bool) and interval_ms >= 0:
            self._interval_s = min(max(interval_ms / 1000, _LEAST_POLL_S), _LONGEST_POLL_S)
        # Pause the caller's deadline only in the status `working`. In other statuses, the task might never end: it
        # may wait for input that it never requests. `InboundMessages` pauses the deadline for input requests.
        is_running = _status(task) == "working"
        if is_running:
            self._callbacks.hold()
        try:
            await anyio.sleep(_LEAST_POLL_S)
            with anyio.move_on_after(self._interval_s - _LEAST_POLL_S):
                await self._changed.wait()
            self._changed = anyio.Event()
        finally:
            if is_running:
                self._callbacks.release()

    async def _poll(self) -> dict[str, Any]:
        """Return the current state of the task.

        Raises:
            UpstreamLost, ConnectionLost: The outcome of the task is unknown.
        """
        failed = 0
        while True:
            try:
                answer = await self._request("tasks/get", {"taskId": self._task_id})
            except RpcError as error:
                failed += 1
                if error.code in _UNKNOWN_TASK or failed > _MAX_FAILED_POLLS:
                    raise self._forgotten_error(error) from None
            except (ConnectionLost, SessionForgotten, HttpStatusError, TooManyCalls) as error:
                failed += 1
                passes = self._transport.independent_requests and not isinstance(error, SessionForgotten)
                if failed > _MAX_FAILED_POLLS or not passes:
                    raise self._lost_error(error) from None
            else:
                # Some servers wrap the task in a `task` member, as the answer to `tools/call` does.
                inner = answer.get("task") if isinstance(answer, dict) else None
                task = inner if isinstance(inner, dict) else answer if isinstance(answer, dict) else {}
                self._report(task)
                return task
            await anyio.sleep(self._interval_s)

    def _forgotten_error(self, error: RpcError) -> UpstreamLost:
        return UpstreamLost(
            self._server,
            f"Server '{self._server}' no longer knows the task of this call "
            f"({error.message[:_MAX_REASON_CHARS]}): its outcome is unknown, and it was not repeated. "
            "Check before you call again.",
        )

    def _lost_error(self, error: GatewayError) -> GatewayError:
        """Return an error that does not state that nothing was sent, because the task exists."""
        if isinstance(error, ConnectionLost | SessionForgotten):
            return ConnectionLost(f"while its task was running: {error}", sent=True)
        return UpstreamLost(
            self._server,
            f"Server '{self._server}' could not be asked for the task of this call ({error}): its outcome is unknown, "
            "and it was not repeated. Check before you call again.",
        )

    @contextmanager
    def _polling(self) -> Iterator[None]:
        """Poll the task while the block runs, to report its progress and to pause the deadline while it works."""
        scope = anyio.CancelScope()
        self._inbound.run_in_background(partial(self._keep_polling, scope))
        try:
            yield
        finally:
            scope.cancel()

    async def _keep_polling(self, scope: anyio.CancelScope) -> None:
        task: dict[str, Any] = {"status": "working"}
        with suppress(GatewayError), scope:
            while _status(task) not in _ENDED:
                await self._pause(task)
                task = await self._poll()

    async def _cancel(self) -> None:
        with suppress(GatewayError), anyio.move_on_after(_CANCEL_S):
            await self._request("tasks/cancel", {"taskId": self._task_id})

    async def _request(self, method: str, params: dict[str, Any], **more: Any) -> Any:
        return await self._transport.request(
            method,
            params,
            on_message=lambda message, reply: self._inbound.receive(message, reply, self._callbacks),
            headers=self._headers,
            **more,
        )

    # reports to the caller
    def _handle_progress(self, params: dict[str, Any]) -> None:
        progress = params.get("progress")
        if isinstance(progress, int | float):
            self._progress = max(self._progress, progress)
        self._reported_s = time.monotonic()
        self._callbacks.handle_progress(params)

    def _handle_status(self, params: dict[str, Any]) -> None:
        self._changed.set()

    def _report(self, task: dict[str, Any]) -> None:
        """Report a running task as progress: each new message at once, and otherwise every `_REPORT_S` seconds."""
        if _status(task) != "working":
            return
        message, now_s = task.get("statusMessage"), time.monotonic()
        message = message if isinstance(message, str) and message else None
        if message == self._reported_message and now_s - self._reported_s < _REPORT_S:
            return
        # MCP requires that progress increases with each notification. Servers' own steps are larger than this step.
        self._progress = round(self._progress + 0.001, 3)
        self._reported_message, self._reported_s = message, now_s
        self._callbacks.handle_progress({"progress": self._progress, **({"message": message} if message else {})})


def _status(task: dict[str, Any]) -> str:
    status = task.get("status")
    return status if isinstance(status, str) else ""


def _reason(task: dict[str, Any]) -> str:
    message = task.get("statusMessage")
    return f": {message[:_MAX_REASON_CHARS]}" if isinstance(message, str) and message else ""
