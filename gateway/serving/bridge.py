"""`typegate stdio --url`: forward standard input and output to a running gateway.

Messages are forwarded unchanged. For handshake versions of the protocol (until 2025-11-25), which have sessions over
HTTP but not over stdio, the bridge stores the session id, reads the notification stream of the session, and begins a
new session when the gateway has lost the old one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.downstream.stdio_server import StandardStreams, stop_at_signal
from gateway.http.event_stream import EventParser
from gateway.http.http_client import HttpClient, Response
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INTERNAL_ERROR, PARSE_ERROR, GatewayError, HttpStatusError, RpcError
from gateway.protocol.jsonrpc import InvalidMessage, RequestId, RpcNotification, RpcResponse, classify, usable_id
from gateway.protocol.versions import NAMED_BY, VERSION_KEY, header_value, is_modern

log = logging.getLogger(__name__)

_HEADERS: Final = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
# Seconds before the notification stream is opened again. A gateway restarts within seconds.
_REOPEN_S: Final = 1.0
# Seconds to wait for the remaining responses after the host has closed standard input.
_END_S: Final = 5.0
# Seconds to wait if standard input is a file: the sum of the default timeouts of a call and a connection, so that all
# responses are written.
_FILE_END_S: Final = 75.0
_POLL_S: Final = 0.02


async def bridge(url: str, headers: dict[str, str]) -> int:
    """Forward messages until standard input ends, and return the exit code."""
    client = HttpClient()
    try:
        await _Bridge(client, url, headers).run()
    finally:
        client.close()
    return 0


class _Bridge:
    def __init__(self, client: HttpClient, url: str, headers: dict[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {**_HEADERS, **headers}
        self._session_id: str | None = None
        self._version: str | None = None
        self._initialize: dict[str, Any] | None = None
        self._running: dict[RequestId | None, anyio.CancelScope] = {}
        self._renewing = anyio.Lock()
        self._streams = StandardStreams()

    async def run(self) -> None:
        async with self._streams, anyio.create_task_group() as group:
            group.start_soon(stop_at_signal, group.cancel_scope)
            async for line in self._streams.lines():
                if line is not None and line.strip():
                    await self._receive(line, group)
            with anyio.move_on_after(_FILE_END_S if self._streams.from_file else _END_S):
                while self._running:
                    await anyio.sleep(_POLL_S)
            group.cancel_scope.cancel()

    async def _receive(self, line: bytes, group: TaskGroup) -> None:
        try:
            message = json_bytes.loads(line)
        except json_bytes.MalformedJson as error:
            self._fail(None, RpcError(PARSE_ERROR, f"Parse error: {error}"))
            return
        try:
            kind = classify(message)
        except InvalidMessage as error:
            # Forward the message anyway, so that the gateway reports the error.
            group.start_soon(self._forward, message, line, error.request_id)
            return
        if isinstance(kind, RpcResponse):
            # The gateway assigned the id of this message, so the id does not belong to a request of the host.
            group.start_soon(self._forward, message, line, None)
        elif isinstance(kind, RpcNotification):
            if kind.method == "notifications/cancelled" and isinstance(kind.params, dict):
                scope = self._running.get(usable_id(kind.params.get("requestId")))
                if scope is not None:
                    scope.cancel()
            else:
                await self._forward(message, line, None)
        elif kind.method == "initialize":
            # Wait for the response, because the following messages need its session id.
            self._initialize = message
            await self._forward(message, line, kind.id)
            if self._session_id is not None:
                group.start_soon(self._follow)
        else:
            group.start_soon(self._forward, message, line, kind.id)

    async def _forward(self, message: Any, line: bytes, request_id: RequestId | None) -> None:
        """Send a message and write the response. Report an error to the host only if there is a `request_id`."""
        with anyio.CancelScope() as scope:
            if request_id is not None:
                self._running[request_id] = scope
            try:
                session_id = self._session_id
                status = await self._post(message, line)
                if status == 404 and session_id is not None and await self._renew(session_id):
                    status = await self._post(message, line)
                if status >= 400:
                    raise HttpStatusError(status, "")
            except (GatewayError, ValueError) as error:
                if request_id is not None:
                    text = f"the gateway at {self._url} gave no answer: {error}"
                    self._fail(request_id, RpcError(INTERNAL_ERROR, text))
            finally:
                if request_id is not None:
                    self._running.pop(request_id, None)

    async def _post(self, message: Any, line: bytes) -> int:
        """Send a message and write the response; return 200, or the status of a response that was not written."""
        async with self._client.send("POST", self._url, self._request_headers(message), line) as response:
            if response.headers.get("mcp-session-id"):
                self._session_id = response.headers["mcp-session-id"]
            if response.content_type == "text/event-stream":
                async for _ in self._events(response):
                    pass
                return 200
            body = await response.read()
            if response.status == 404 and self._session_id is not None and not is_modern_message(message):
                return 404
            if body and response.content_type == "application/json":
                answer = json_bytes.loads(body)
                if isinstance(answer, dict) and answer.get("id") is None and isinstance(message, dict):
                    answer["id"] = message.get("id")
                self._note_version(message, answer)
                if isinstance(message, dict) and "id" in message:
                    self._streams.write(json_bytes.dumps(answer))
                return 200
            return response.status

    async def _renew(self, lost_session_id: str) -> bool:
        """Begin a new session after the gateway has lost the old one, and return whether that succeeded."""
        async with self._renewing:
            if self._session_id != lost_session_id:
                return True
            if self._initialize is None:
                return False
            again = {**self._initialize, "id": "typegate-renew"}
            async with self._client.send("POST", self._url, dict(self._headers), json_bytes.dumps(again)) as response:
                await response.read()
                fresh = response.headers.get("mcp-session-id")
            if fresh is None:
                return False
            done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            head = {**self._request_headers(done), "mcp-session-id": fresh}
            async with self._client.send("POST", self._url, head, json_bytes.dumps(done)) as response:
                await response.read()
            # Set the session id last. Until then, concurrent requests use the lost session, are also refused, and then
            # wait for the lock.
            self._session_id = fresh
            return True

    async def _follow(self) -> None:
        """Write the messages of the session's notification stream to the host, and reopen the stream when it ends."""
        session_id, last = self._session_id, None
        while True:
            try:
                if session_id != self._session_id:
                    session_id, last = self._session_id, None
                head = {**self._request_headers(None), "accept": "text/event-stream"}
                if last is not None:
                    head["last-event-id"] = last
                async with self._client.send("GET", self._url, head) as response:
                    if response.content_type == "text/event-stream":
                        async for event_id in self._events(response):
                            last = event_id
            except (GatewayError, ValueError) as error:
                log.debug("notification stream ended: %s", error)
            await anyio.sleep(_REOPEN_S)

    async def _events(self, response: Response) -> AsyncIterator[str | None]:
        """Write every message of a stream to the host, and yield the id of each event."""
        parser = EventParser()
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                if event.event == "message" and event.data:
                    self._streams.write(json_bytes.dumps(json_bytes.loads(event.data)))
                    yield event.id

    def _request_headers(self, message: Any) -> dict[str, str]:
        head = dict(self._headers)
        if is_modern_message(message):
            params = message["params"]
            head["mcp-protocol-version"] = str(params["_meta"][VERSION_KEY])
            head["mcp-method"] = message["method"]
            name = params.get(NAMED_BY.get(message["method"], ""))
            if isinstance(name, str):
                head["mcp-name"] = header_value(name)
            return head
        if self._session_id is not None:
            head["mcp-session-id"] = self._session_id
        if self._version is not None:
            head["mcp-protocol-version"] = self._version
        return head

    def _note_version(self, message: Any, answer: Any) -> None:
        if isinstance(message, dict) and message.get("method") == "initialize" and isinstance(answer, dict):
            result = answer.get("result")
            if isinstance(result, dict) and isinstance(result.get("protocolVersion"), str):
                self._version = result["protocolVersion"]

    def _fail(self, request_id: Any, error: RpcError) -> None:
        self._streams.write(json_bytes.dumps({"jsonrpc": "2.0", "id": request_id, "error": error.to_object()}))


def is_modern_message(message: Any) -> bool:
    """Return whether a message is a request or notification of protocol version 2026-07-28, judging by its `_meta`."""
    return isinstance(message, dict) and isinstance(message.get("method"), str) and is_modern(message.get("params"))
