"""Connections to upstreams of today: a child process, or Streamable HTTP."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway import wire
from gateway.errors import ConnectionLost, GatewayError, HttpStatusError, SessionForgotten
from gateway.upstream.transport.child_process import running_child
from gateway.upstream.transport.event_stream import EventParser
from gateway.upstream.transport.http_client import HttpClient, Response, header_lines
from gateway.upstream.transport.invalid_json import stand_in
from gateway.upstream.transport.jsonrpc import Correlator, OnMessage, OnProgress, answer_of

log = logging.getLogger(__name__)

_POST_HEADERS: Final = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
_MAX_BACKGROUND: Final = 64
# Words by which servers tell that they know a session no more, whatever the status.
_FORGOTTEN: Final = (
    "session not found",
    "session terminated",
    "no valid session",
    "invalid session",
    "unknown session",
)


class StreamChannel:
    """One stream for everything: answers arrive on it in any order, told apart by their ids alone."""

    exchanges = False

    def __init__(self, correlator: Correlator, wait_closed: Callable[[], Awaitable[str]]) -> None:
        self._correlator = correlator
        self._wait_closed = wait_closed

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """See `Channel.request`; headers mean nothing here."""
        return await self._correlator.request(method, params, on_progress, cancellable=method != "initialize")

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """See `Channel.notify`."""
        self._correlator.notify(method, params)

    async def wait_closed(self) -> str:
        """See `Channel.wait_closed`."""
        return await self._wait_closed()

    def abandon(self) -> None:
        """See `Channel.abandon`; a stream's end is heard by its owner."""


@asynccontextmanager
async def open_stdio(
    server: str,
    command: str,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    on_message: OnMessage,
) -> AsyncIterator[StreamChannel]:
    """Start a child and talk to it.

    Raises:
        ConnectionLost: The command cannot be started.
    """
    correlator: Correlator

    def receive(line: bytes) -> None:
        correlator.receive(line)

    def skip(ends: bytes) -> None:
        correlator.skip(ends)

    async with running_child(server, command, args, env=env, cwd=cwd, on_line=receive, on_skipped=skip) as child:
        correlator = Correlator(server, on_message, child.write_line)
        async with anyio.create_task_group() as group:

            async def fail_when_ended() -> None:
                correlator.close(await child.wait_ended())

            group.start_soon(fail_when_ended)
            try:
                yield StreamChannel(correlator, child.wait_ended)
            finally:
                correlator.close("the connection is being closed")
                group.cancel_scope.cancel()


class HttpChannel:
    """Streamable HTTP: one POST for each request, each contained.

    Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
    """

    exchanges = True

    def __init__(
        self, server: str, client: HttpClient, url: str, headers: Mapping[str, str], on_message: OnMessage,
        group: TaskGroup,
    ) -> None:  # fmt: skip
        self._server = server
        self._client = client
        self._url = url
        self._on_message = on_message
        self._group = group
        self._ids = itertools.count(1)
        self._background = 0
        self._closed = anyio.Event()
        self._reason = "the connection is closed"
        self._ended = False
        self._abandoned = False
        self._headers: dict[str, str] = {**_POST_HEADERS, **headers}
        self._lines: bytes | None = None
        self.session_id: str | None = None

    def speak(self, version: str) -> None:
        """Name the negotiated version on every request from now on."""
        self._headers["mcp-protocol-version"] = version
        self._lines = None

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """See `Channel.request`."""
        request_id = next(self._ids)
        if on_progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        body = wire.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        finished = False
        try:
            response = await self._client.exchange("POST", self._url, self._head_lines(headers), body)
            try:
                message = await self._answer(response, request_id, method, on_progress, on_message or self._on_message)
                finished = True
                if method == "initialize":
                    self.session_id = response.headers.get("mcp-session-id")
                    self._lines = None
            finally:
                self._client.release(response)
            if self.session_id is not None and _tells_forgotten(message):
                raise SessionForgotten("the upstream has forgotten the session")
            return answer_of(message)
        finally:
            if not finished and self.session_id is not None:
                # In the handshake era a closed connection cancels nothing by itself.
                self._later("notifications/cancelled", {"requestId": request_id, "reason": "the caller left"})

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """See `Channel.notify`."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        await self._post(message)

    async def wait_closed(self) -> str:
        """See `Channel.wait_closed`."""
        await self._closed.wait()
        return self._reason

    def fail(self, reason: str) -> None:
        """Mark the whole connection as gone: the server cannot be reached."""
        self.abandon()
        if not self._closed.is_set():
            self._reason = reason
            self._closed.set()

    @asynccontextmanager
    async def listen_get(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The handshake era's stream of messages that belong to no request.

        Raises:
            HttpStatusError: The server offers none.
        """
        head = {**self._head(), "accept": "text/event-stream"}
        head.pop("content-type", None)
        async with self._client.send("GET", self._url, head) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                raise HttpStatusError(response.status, "no stream of notifications")
            yield self._messages(response)

    def abandon(self) -> None:
        """Leave the session to itself: it is lost, or calls on their way still need it."""
        self._abandoned = True

    async def end(self) -> None:
        """End the session, as a good client does; requests on their way go on by themselves."""
        self._ended = True
        if self.session_id is not None and not self._abandoned:
            async with self._client.send("DELETE", self._url, self._head()) as response:
                await response.read()

    def receive(self, message: dict[str, Any]) -> None:
        """Take a message that belongs to no request of ours."""
        if isinstance(message.get("method"), str):
            self._on_message(message, self._later_message)

    def _head(self) -> dict[str, str]:
        if self.session_id is None:
            return self._headers
        return {**self._headers, "mcp-session-id": self.session_id}

    def _head_lines(self, extra: dict[str, str] | None) -> bytes:
        if extra and not extra.keys().isdisjoint(self._headers):
            return header_lines({**self._head(), **extra})
        if self._lines is None:
            self._lines = header_lines(self._head())
        return self._lines + header_lines(extra) if extra else self._lines

    async def _answer(
        self,
        response: Response,
        request_id: int,
        method: str,
        on_progress: OnProgress | None,
        on_message: OnMessage,
    ) -> dict[str, Any]:
        if response.status == 404 and self.session_id is not None:
            raise SessionForgotten("the upstream has forgotten the session")
        kind = response.content_type
        if kind == "text/event-stream" and response.status == 200:
            async for message in self._messages(response, method):
                if "method" not in message:
                    if message.get("id") == request_id:
                        return message
                elif message["method"] == "notifications/progress" and "id" not in message:
                    params = message.get("params")
                    ours = params.get("progressToken") == request_id if isinstance(params, dict) else False
                    if params is not None and ours and on_progress is not None:
                        on_progress(params)
                elif isinstance(message["method"], str):
                    on_message(message, self._later_message)
            raise ConnectionLost("the stream of the answer ended before the answer", sent=True)
        body = await response.read()
        parsed: Any = None
        if kind == "application/json" or body[:1] == b"{":
            try:
                parsed = _read(body, method)
            except wire.MalformedJson as error:
                if response.status < 400:
                    parsed = await stand_in(body, method)
                    if parsed is None:
                        raise ConnectionLost(f"the answer is not JSON ({error})", sent=True) from None
        message = parsed if isinstance(parsed, dict) else {}
        if "error" in message or "result" in message:
            if response.status < 400:
                if message.get("id") != request_id and "error" not in message:
                    raise ConnectionLost("the answer carries another request's id", sent=True)
                return message
            if isinstance(message.get("error"), dict) and "code" in message["error"]:
                return message
        if response.status >= 300:
            raise HttpStatusError(response.status, _reason_phrase(response.status))
        raise ConnectionLost("the answer is neither JSON nor an event stream", sent=True)

    async def _messages(self, response: Response, method: str = "") -> AsyncIterator[dict[str, Any]]:
        parser = EventParser()
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                if event.event != "message" or not event.data:
                    continue
                try:
                    message = _read(event.data, method)
                except wire.MalformedJson:
                    log.warning("an event is not JSON", extra={"server": self._server})
                    message = await stand_in(event.data, method)
                if isinstance(message, dict):
                    yield message

    async def _post(self, message: dict[str, Any]) -> None:
        with anyio.fail_after(10):
            async with self._client.send("POST", self._url, self._head(), wire.dumps(message)) as response:
                await response.read()

    def _later(self, method: str, params: dict[str, Any]) -> None:
        self._later_message({"jsonrpc": "2.0", "method": method, "params": params})

    def _later_message(self, message: dict[str, Any]) -> None:
        if self._ended or self._background >= _MAX_BACKGROUND:
            return
        self._background += 1

        async def post() -> None:
            try:
                await self._post(message)
            except (GatewayError, TimeoutError, ValueError):
                log.debug("a message could not be sent", extra={"server": self._server})
            finally:
                self._background -= 1

        self._group.start_soon(post)


@asynccontextmanager
async def open_http(
    server: str, url: str, *, headers: Mapping[str, str], client: HttpClient, on_message: OnMessage
) -> AsyncIterator[HttpChannel]:
    """A Streamable HTTP channel; nothing is sent before its first request."""
    async with anyio.create_task_group() as group:
        channel = HttpChannel(server, client, url, headers, on_message, group)
        try:
            yield channel
        finally:
            with anyio.move_on_after(1, shield=True):
                try:
                    await channel.end()
                except (GatewayError, ValueError):
                    log.debug("the session could not be ended", extra={"server": server})
            group.cancel_scope.cancel()


def _read(data: bytes, method: str) -> Any:
    # Of what a tool answers most is only passed on.
    return wire.loads_answer(data) if method == "tools/call" else wire.loads(data)


def _tells_forgotten(message: dict[str, Any]) -> bool:
    error = message.get("error")
    text = error.get("message") if isinstance(error, dict) else None
    return isinstance(text, str) and any(words in text.lower() for words in _FORGOTTEN)


def _reason_phrase(status: int) -> str:
    if status in (401, 403):
        return "the credentials were refused"
    if 300 <= status < 400:
        return "a redirect is not followed"
    return ""
