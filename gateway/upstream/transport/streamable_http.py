"""The Streamable HTTP transport: one POST for each request.

Source: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
"""

from __future__ import annotations

import codecs
import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.http.http_client import HttpClient, Response
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import (
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
)
from gateway.protocol.jsonrpc import is_answer, number_of, read_result
from gateway.upstream.transport.client_headers import RequestHead
from gateway.upstream.transport.http_answers import (
    ENDED_EARLY,
    AnswerStream,
    forgotten_text,
    mentions_session,
    read_message,
    reason_phrase,
    says_forgotten,
    subject_of,
)
from gateway.upstream.transport.jsonrpc_transport import (
    OnMessage,
    OnPause,
    OnProgress,
    cancellation,
    notification,
    repaired_response,
    result_in,
)
from gateway.upstream.upstream_credentials import Credentials

log = logging.getLogger(__name__)

# The maximum number of cancellations and responses that are sent at a time: the default limit of calls in flight.
_MAX_BACKGROUND: Final = 64
# The timeout of a notification. A server only has to respond with an empty 202, so a server that needs longer is stuck.
_NOTIFY_S: Final = 10.0
# The timeout of a ping that checks the session after an ambiguous refusal; the refused call waits for the ping.
_PING_S: Final = 5.0
# The timeout of DELETE. DELETE is optional, so the gateway's shutdown does not wait longer.
_END_S: Final = 1.0
# The maximum number of retries after a refusal: one for an expired token, and one for a missing scope.
_MAX_REFUSALS: Final = 2
# Request bodies above this size are copied into a buffer without spare capacity, because a body stays in memory until
# the response arrives. Without this copy, the buffer may be eight times as large as the body.
_LARGE_BYTES: Final = 64 * 1024
# Responses above this size are parsed in a thread, except for tool results, which are not parsed as a whole. If there
# are many servers, several megabytes of listings may arrive at once, and parsing takes 10 ms per megabyte.
_MAX_INLINE_BYTES: Final = 64 * 1024
# How many bytes at the start of a body may be white space before the first bracket.
_GLANCE_BYTES: Final = 64
# How many digits of Content-Length to parse. Further digits cannot change the result of the comparison with the limit.
_MAX_DIGITS: Final = 20
# Request ids are unique within the process: sessions of one origin share connections, and a late response must not
# match a request of another session.
_ids: Final = itertools.count(1)


class StreamableHttpTransport:
    """A `Transport` over Streamable HTTP. The response to `initialize` sets the session id, if the server uses one."""

    independent_requests = True

    def __init__(
        self,
        server: str,
        client: HttpClient,
        url: str,
        headers: Mapping[str, str],
        on_message: OnMessage,
        group: TaskGroup,
        credentials: Credentials | None = None,
    ) -> None:
        self._server = server
        self._client = client
        self._url = url
        self._on_message = on_message
        self._group = group
        self._background_count = 0
        self._closed = anyio.Event()
        self._reason = "the connection is closed"
        self._ended = False
        self._abandoned = False
        self._credentials = credentials
        self._head = RequestHead(url, headers, credentials)
        self._stream = AnswerStream(server, client, url, self._head)
        # Several refusals may arrive at once. A ping's result applies to all refusals that arrived before the ping.
        self._ping_lock = anyio.Lock()
        self._confirmed_at_s = -math.inf
        self._forgotten = False
        self._was_listening = False

    def use_version(self, version: str) -> None:
        self._head.use_version(version)

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
        on_pause: OnPause | None = None,
    ) -> Any:
        request_id = next(_ids)
        if on_progress is not None:
            params.setdefault("_meta", {})["progressToken"] = request_id
        body = json_bytes.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        if len(body) > _LARGE_BYTES:
            body = json_bytes.fitted(body)  # the body may have to be sent again, so it stays in memory
        finished = False
        credentials, head = self._credentials, self._head
        presented = None if credentials is None or credentials.anonymous else credentials
        if presented is not None and not presented.ready:
            await presented.prepare()
        try:
            lines = head.lines(headers)
            # Other requests may switch to newer credentials before the response arrives.
            version = head.version
            response = await self._client.exchange("POST", self._url, lines, body, cookies=head.cookies)
            if credentials is not None:
                if response.status in (401, 403):
                    response = await self._send_again(response, headers, body, credentials, version)
                elif presented is not None:
                    presented.note_accepted(version)
            # Not a context manager, because its generator frame would slow down every call.
            try:
                if response.status >= 400:
                    finished = True
                    return result_in(await self._read_refusal(response, request_id, method))
                whole_body = response.connection.plain
                if whole_body is not None and len(whole_body) <= _MAX_INLINE_BYTES and method != "initialize":
                    result = read_result(whole_body, request_id)
                    if result is not None:
                        finished = True
                        return result
                message = await self._read_answer(
                    response, request_id, method, on_progress, on_message or self._on_message, on_pause
                )
                finished = True
                if method == "initialize":
                    # Some servers without sessions send an empty header.
                    head.use_session(response.headers.get("mcp-session-id", "").strip() or None)
            finally:
                self._client.end_exchange(response.connection)
            # The error may instead refer to sessions of the tool, so send a ping to check the MCP session.
            says_unknown_session = head.session_id is not None and says_forgotten(message)
            if says_unknown_session and (method == "ping" or await self._has_forgotten()):
                raise SessionForgotten(forgotten_text(response.status, b"", message))
            return result_in(message)
        finally:
            if not finished and head.session_id is not None:
                # In protocol versions with sessions, closing the connection does not cancel the request.
                self._post_later(cancellation(request_id))

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        try:
            await self._post(notification(method, params))
        except SessionForgotten as error:
            self.fail(str(error))
            raise

    async def wait_closed(self) -> str:
        await self._closed.wait()
        return self._reason

    def fail(self, reason: str) -> None:
        self.abandon()
        # Keep the first reason, because later failures usually follow from the first.
        if not self._closed.is_set():
            self._reason = reason
            self._closed.set()

    async def listen(self, on_open: Callable[[], None]) -> None:
        """Read the event stream of a server that speaks an earlier version than 2026-07-28; see `Transport.listen`."""
        fields, cookies = self._head.stream_fields(), self._head.cookies
        async with self._client.send("GET", self._url, fields, cookies=cookies) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                # Evaluate the status only if the server has offered a stream before.
                if response.status >= 400 and self._was_listening and self._head.session_id is not None:
                    await self._read_refusal(response, None, "")
                raise HttpStatusError(response.status, "no stream of notifications")
            self._was_listening = True
            on_open()
            async for message in self._stream.messages(response):
                if isinstance(message.get("method"), str):
                    self._on_message(message, self._post_later)

    def abandon(self) -> None:
        self._abandoned = True

    async def end(self) -> None:
        """End the session with DELETE; requests in flight are not affected.

        Source: MCP 2025-11-25, "Transports", "Session Management".
        """
        # Set this first, so that calls that end now do not send cancellations, which would arrive after the DELETE.
        self._ended = True
        if self._head.session_id is not None and not self._abandoned:
            async with self._client.send("DELETE", self._url, self._head.fields("DELETE")) as response:
                await response.read()

    async def _send_again(
        self,
        response: Response,
        extra: dict[str, str] | None,
        body: bytes,
        credentials: Credentials,
        version: int,
    ) -> Response:
        """Retry a refused request (401 or 403) with other credentials, and return the response.

        If no other credentials are available, return the refusal.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                # Read the body, so that the connection can be reused.
                content = await response.read()
                challenge = response.headers.get("www-authenticate", "")
                is_session = self._head.session_id is not None and mentions_session(content)
                if is_session and (not challenge or credentials.anonymous):
                    return response  # the session is unknown, so other credentials would not help
                nonce = response.headers.get("dpop-nonce", "")
                again = await credentials.handle_refusal(response.status, challenge, version, nonce)
            except BaseException:
                self._client.end_exchange(response.connection)
                raise
            if not again:
                return response
            self._client.end_exchange(response.connection)
            lines = self._head.lines(extra)
            version = self._head.version
            response = await self._client.exchange("POST", self._url, lines, body, cookies=self._head.cookies)
            if response.status not in (401, 403):
                credentials.note_accepted(version)
                return response
        return response

    async def _read_answer(
        self,
        response: Response,
        request_id: int,
        method: str,
        on_progress: OnProgress | None,
        on_message: OnMessage,
        on_pause: OnPause | None,
    ) -> dict[str, Any]:
        if response.content_type == "text/event-stream" and response.status < 300:
            async for message in self._stream.resumed(response, method, on_pause):
                if "method" not in message:
                    if _is_answer_to(message, request_id) and is_answer(message):
                        return message
                elif message["method"] == "notifications/progress" and "id" not in message:
                    params = message.get("params")
                    if not isinstance(params, dict):
                        continue
                    if on_progress is not None and number_of(params.get("progressToken")) == request_id:
                        on_progress(params)
                    elif isinstance(params.get("progressToken"), str):
                        # A token that is not a number belongs to a task, not to a request.
                        on_message(message, self._post_later)
                elif isinstance(message["method"], str):
                    on_message(message, self._post_later)
            raise ConnectionLost(ENDED_EARLY, sent=True)
        parsed = await self._parse_response(response, method)
        if isinstance(parsed, list):
            # The body is a batch (MCP 2025-03-26), which may contain notifications besides the response.
            parsed = self._read_batch(parsed, request_id, on_message)
        message = parsed if isinstance(parsed, dict) else {}
        if is_answer(message):
            if not _is_answer_to(message, request_id):
                # This is a late response. Close the connection, because later responses would have the wrong id, too.
                response.connection.fail("the answer has the id of another request")
                raise UnusableAnswer("the answer has the id of another request")
            return message
        if response.status >= 300:
            raise HttpStatusError(response.status, reason_phrase(response, is_anonymous=self._head.is_anonymous))
        if message:
            raise UnusableAnswer("the answer is JSON, but not a JSON-RPC response")
        raise UnusableAnswer("the answer is neither JSON nor an event stream")

    def _read_batch(self, messages: list[Any], request_id: int, on_message: OnMessage) -> dict[str, Any] | None:
        """Return the response to the request from a batch; pass the notifications and requests to `on_message`."""
        answer: dict[str, Any] | None = None
        for message in messages:
            if isinstance(message, dict) and isinstance(message.get("method"), str):
                on_message(message, self._post_later)
            elif isinstance(message, dict) and _is_answer_to(message, request_id):
                answer = answer or message
        return answer

    async def _read_refusal(self, response: Response, request_id: int | None, method: str) -> dict[str, Any]:
        """Return the JSON-RPC error in a response with an error status.

        Args:
            request_id, method: The id and method of the request; None and an empty string for a stream.

        Raises:
            SessionForgotten: The server does not know the session, so that the request was not run.
            HttpStatusError: The response does not contain a JSON-RPC error.
        """
        status = response.status
        try:
            body = await response.read()
        except ConnectionLost:
            body = b""  # the status is enough to report the failure
        parse = partial(_error_in, body)
        message = await run_in_thread(parse) if len(body) > _MAX_INLINE_BYTES else parse()
        if self._head.session_id is not None and method != "initialize":
            subject = subject_of(status, body, message, request_id)
            # If a server refuses a ping, it would refuse any request, so the session is the cause.
            if subject == "session" or (subject == "unclear" and (method == "ping" or await self._has_forgotten())):
                self._forgotten = True
                raise SessionForgotten(forgotten_text(status, body, message))
        # Do not return the message of a 401 or 403, because the message may repeat the credentials of the request.
        if message is None or status in (401, 403):
            raise HttpStatusError(status, reason_phrase(response, is_anonymous=self._head.is_anonymous))
        return message

    async def _has_forgotten(self) -> bool:
        """Send a `ping` after an ambiguous refusal, and return whether the server has forgotten the session."""
        refused_s = anyio.current_time()
        async with self._ping_lock:
            if self._forgotten or self._confirmed_at_s > refused_s:
                return self._forgotten
            asked_s = anyio.current_time()
            try:
                with anyio.fail_after(_PING_S):
                    await self.request("ping", {})
            except SessionForgotten:
                self._forgotten = True
                return True
            except (ConnectionLost, HttpStatusError, TimeoutError):
                return False  # inconclusive
            except RpcError:
                pass  # the server knows the session but does not support ping
            self._confirmed_at_s = asked_s
            return False

    async def _parse_response(self, response: Response, method: str) -> Any:
        """Parse the body of a response that is not an event stream; return None if the body does not look like JSON."""
        kind = response.content_type
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length[:_MAX_DIGITS]) > MAX_MESSAGE_BYTES:
            raise UnusableAnswer(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
        # Strip a byte order mark, as `fetch` does.
        body = (await response.read()).removeprefix(codecs.BOM_UTF8)
        # Some servers send JSON with another content type, so try any body that starts with a bracket.
        if kind != "application/json" and body[:_GLANCE_BYTES].lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            if len(body) > _MAX_INLINE_BYTES and method != "tools/call":
                return await run_in_thread(partial(read_message, body, method), limiter=self._client.parsing)
            return read_message(body, method)
        except json_bytes.MalformedJson as error:
            repaired = await repaired_response(body, method)
            if repaired is None:
                raise UnusableAnswer(f"the answer is not JSON ({error})") from None
            return repaired

    async def _post(self, message: dict[str, Any]) -> None:
        with anyio.fail_after(_NOTIFY_S):
            fields, cookies = self._head.fields("POST"), self._head.cookies
            async with self._client.send(
                "POST", self._url, fields, json_bytes.dumps(message), cookies=cookies
            ) as response:
                body = await response.read()
        # A status alone does not prove that the session is unknown: some working servers refuse every notification.
        if 400 <= response.status < 500 and self._head.session_id is not None and mentions_session(body):
            raise SessionForgotten(forgotten_text(response.status, body, _error_in(body)))

    def _post_later(self, message: dict[str, Any]) -> None:
        # Drop messages beyond the limit, because no caller waits for them.
        if self._ended or self._background_count >= _MAX_BACKGROUND:
            return
        self._background_count += 1

        async def post() -> None:
            try:
                await self._post(message)
            except SessionForgotten as error:
                self.fail(str(error))
            except (GatewayError, TimeoutError, ValueError):
                log.debug("message not sent", extra={"server": self._server})
            finally:
                self._background_count -= 1

        self._group.start_soon(post)


def _is_answer_to(message: dict[str, Any], request_id: int) -> bool:
    """Return whether a message is the JSON-RPC response to this request.

    Also accept an error without an id or with a textual id: the server may not have been able to read the request.
    """
    number = number_of(message.get("id"))
    return number == request_id or (number is None and "error" in message)


def _error_in(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC error response in a body; None for other JSON, such as the errors of web frameworks."""
    if b'"error"' not in body:
        return None
    try:
        message = json_bytes.loads(body)
    except json_bytes.MalformedJson:
        return None
    error = message.get("error") if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None
    return message if isinstance(error, dict) and "code" in error else None


@asynccontextmanager
async def open_streamable_http(
    server: str,
    url: str,
    *,
    headers: Mapping[str, str],
    client: HttpClient,
    on_message: OnMessage,
    credentials: Credentials | None = None,
) -> AsyncIterator[StreamableHttpTransport]:
    """Yield a Streamable HTTP transport; nothing is sent before the first request."""
    async with anyio.create_task_group() as group:
        transport = StreamableHttpTransport(server, client, url, headers, on_message, group, credentials)
        try:
            yield transport
        finally:
            # Shielded, because this task has usually been cancelled, which would also cancel the DELETE.
            with anyio.move_on_after(_END_S, shield=True):
                try:
                    await transport.end()
                except (GatewayError, ValueError):
                    log.debug("session not deleted", extra={"server": server})
            group.cancel_scope.cancel()
