"""A tool call that its server runs as a task: start it, poll it, and return what the call itself would have returned.

Source: MCP 2025-11-25, "Tasks". Hosts do not notice: tools that run as tasks only are called like any other.
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

from gateway.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Congested,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UpstreamLost,
    UpstreamProtocolError,
)
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.request_callbacks import RequestCallbacks
from gateway.upstream.transport.jsonrpc import Transport

_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
# As the TypeScript SDK polls where a server names no interval.
_POLL_S: Final = 1.0
# A server that asks to be polled without a pause is still polled only so often.
_LEAST_POLL_S: Final = 0.05
# Longer intervals would leave the end of a task unnoticed for longer than hosts wait for a sign of life.
_LONGEST_POLL_S: Final = 30.0
# A host gives up after 60 s without progress.
_REPORT_S: Final = 10.0
# A server that restarts, or a proxy in front of it, is back within some polls.
_MAX_FAILED_POLLS: Final = 5
_CANCEL_S: Final = 10.0
# Such an error says that the task is unknown; others may pass.
_UNKNOWN_TASK: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})
# Of a text of the server in an error.
_MAX_REASON_CHARS: Final = 500


def runs_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether a server runs tool calls as tasks, by its capabilities."""
    value: Any = capabilities
    for name in ("tasks", "requests", "tools", "call"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value not in (None, False)


class TaskRun:
    """One call of a tool as a task.

    Args:
        server: The alias.
        transport: The connection.
        inbound: What arrives on the connection unasked.
        callbacks: The way back to the caller.
        headers: Of each request, where there are such things.
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
        # The last progress that the caller got, what was said with it, and when.
        self._progress = 0.0
        self._said: object = None
        self._reported_s = time.monotonic()

    async def call(self, params: dict[str, Any]) -> Any:
        """Call the tool and return its result.

        Raises:
            GatewayError: As `UpstreamSession.send`; an error after the task was created never says that nothing was
                sent.
        """
        # A token of its own: it stays valid until the task has ended, which is longer than one request.
        with self._inbound.watching("progress", None, self._take_progress) as token:
            meta = {**(params.get("_meta") or {}), "progressToken": token}
            created = await self._created({**params, "task": {}, "_meta": meta})
            task = self._task_in(created)
            if task is None:
                return created  # the server ran the call at once
            with self._inbound.watching("task", self._task_id, self._take_status):
                try:
                    return await self._outcome(task)
                except asyncio.CancelledError:
                    # The caller has left, or its time is over: nobody waits here for the answer to this.
                    self._inbound.run_aside(self._cancel)
                    raise

    async def _created(self, params: dict[str, Any]) -> Any:
        """Start the task.

        A server may need some time for it. If the caller leaves meanwhile, its answer is still waited for: only with
        the id in it can the task be cancelled.
        """
        answered, scope, found = anyio.Event(), anyio.CancelScope(), list[Any]()

        async def create() -> None:
            try:
                with scope:
                    found.append(await self._request("tools/call", params))
            except Exception as error:  # noqa: BLE001 - boundary: the error is that of the call
                found.append(error)
            finally:
                answered.set()
            if scope.deadline < math.inf and found and self._task_in(found[0]) is not None:
                await self._cancel()

        if not self._inbound.run_aside(create):
            raise ConnectionLost("the connection has ended", sent=False)
        try:
            await answered.wait()
        except asyncio.CancelledError:
            scope.deadline = anyio.current_time() + _CANCEL_S
            raise
        if not found:
            raise ConnectionLost("the connection has ended", sent=True)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _task_in(self, created: Any) -> dict[str, Any] | None:
        task = created.get("task") if isinstance(created, dict) else None
        if not isinstance(task, dict) or not isinstance(task.get("taskId"), str):
            return None
        self._task_id = task["taskId"]
        return task

    async def _outcome(self, task: dict[str, Any]) -> Any:
        while (status := _status(task)) not in _ENDED:
            if status == "input_required":
                # The server asks on the stream of this request, which ends with the task; meanwhile the task goes on.
                with self._polling_aside():
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
            results = self._callbacks if self._callbacks.results is not None else None
            result = await self._request("tasks/result", {"taskId": self._task_id}, results=results)
        except RpcError as error:
            if not has_failed and error.code in _UNKNOWN_TASK and "task" in error.message.lower():
                raise self._forgotten(error) from None
            if has_failed and (reason := _reason(task)) and reason[2:] not in error.message:
                raise RpcError(error.code, f"{error.message}{reason}", error.data) from None
            raise
        except (ConnectionLost, SessionForgotten, HttpStatusError, Congested) as error:
            raise self._lost(error) from None
        if not isinstance(result, dict):
            return result
        if has_failed:
            result["isError"] = True  # some servers say it in the state alone
        # The caller knows of no task.
        if isinstance(meta := result.get("_meta"), dict) and _RELATED_TASK in meta:
            del meta[_RELATED_TASK]
            if not meta:
                del result["_meta"]
        return result

    # polling

    async def _pause(self, task: dict[str, Any]) -> None:
        """Wait until it is time to poll, or the server says that the task has changed."""
        interval_ms = task.get("pollInterval")
        if isinstance(interval_ms, int | float) and not isinstance(interval_ms, bool) and interval_ms >= 0:
            self._interval_s = min(max(interval_ms / 1000, _LEAST_POLL_S), _LONGEST_POLL_S)
        # A task that works is alive. One in a state that nobody knows may never end, and neither may one that waits for
        # input which it does not ask for; a question stops the clock itself.
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
        """Return the task as it is now.

        Raises:
            UpstreamLost, ConnectionLost: Nobody knows what has become of it.
        """
        failed = 0
        while True:
            try:
                answer = await self._request("tasks/get", {"taskId": self._task_id})
            except RpcError as error:
                failed += 1
                if error.code in _UNKNOWN_TASK or failed > _MAX_FAILED_POLLS:
                    raise self._forgotten(error) from None
            except (ConnectionLost, SessionForgotten, HttpStatusError, Congested) as error:
                failed += 1
                passes = self._transport.independent_requests and not isinstance(error, SessionForgotten)
                if failed > _MAX_FAILED_POLLS or not passes:
                    raise self._lost(error) from None
            else:
                # Some servers send the task as they do in the answer to the call.
                inner = answer.get("task") if isinstance(answer, dict) else None
                task = inner if isinstance(inner, dict) else answer if isinstance(answer, dict) else {}
                self._report(task)
                return task
            await anyio.sleep(self._interval_s)

    def _forgotten(self, error: RpcError) -> UpstreamLost:
        return UpstreamLost(
            self._server,
            f"Server '{self._server}' does not know the task of this call any more "
            f"({error.message[:_MAX_REASON_CHARS]}): its outcome is unknown, and it was not repeated. "
            "Check before you call again.",
        )

    def _lost(self, error: GatewayError) -> GatewayError:
        """The same error, which must not be read as one before the call was sent: the task exists."""
        if isinstance(error, ConnectionLost | SessionForgotten):
            return ConnectionLost(f"while its task was running: {error}", sent=True)
        return UpstreamLost(
            self._server,
            f"Server '{self._server}' could not be asked for the task of this call ({error}): its outcome is unknown, "
            "and it was not repeated. Check before you call again.",
        )

    @contextmanager
    def _polling_aside(self) -> Iterator[None]:
        """Poll until the block is left, so that progress and deadline follow the task."""
        scope = anyio.CancelScope()
        self._inbound.run_aside(partial(self._keep_polling, scope))
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

    # what the caller hears meanwhile

    def _take_progress(self, params: dict[str, Any]) -> None:
        progress = params.get("progress")
        if isinstance(progress, int | float):
            self._progress = max(self._progress, progress)
        self._reported_s = time.monotonic()
        self._callbacks.progressed(params)

    def _take_status(self, params: dict[str, Any]) -> None:
        self._changed.set()

    def _report(self, task: dict[str, Any]) -> None:
        """Report a task that is running as progress: a new message at once, and now and then a sign of life."""
        if _status(task) != "working":
            return
        message, now_s = task.get("statusMessage"), time.monotonic()
        message = message if isinstance(message, str) and message else None
        if message == self._said and now_s - self._reported_s < _REPORT_S:
            return
        # It has to grow; the progress of the server itself counts in larger steps.
        self._progress = round(self._progress + 0.001, 3)
        self._said, self._reported_s = message, now_s
        self._callbacks.progressed({"progress": self._progress, **({"message": message} if message else {})})


def _status(task: dict[str, Any]) -> str:
    status = task.get("status")
    return status if isinstance(status, str) else ""


def _reason(task: dict[str, Any]) -> str:
    message = task.get("statusMessage")
    return f": {message[:_MAX_REASON_CHARS]}" if isinstance(message, str) and message else ""
