"""The Streamable HTTP transport: one POST for each request, each contained.

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

from gateway import wire
from gateway.errors import (
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    UnusableAnswer,
)
from gateway.jsonrpc import is_answer, number_of, read_result
from gateway.upstream.credentials import Credentials
from gateway.upstream.transport.answer_stream import ENDED_EARLY, AnswerStream, read_message
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES
from gateway.upstream.transport.http_client import HttpClient, Response
from gateway.upstream.transport.http_refusals import (
    forgotten_text,
    mentions_session,
    reason_phrase,
    says_forgotten,
    subject_of,
)
from gateway.upstream.transport.invalid_json import repaired_response
from gateway.upstream.transport.jsonrpc import (
    OnMessage,
    OnPause,
    OnProgress,
    ResultStream,
    cancellation,
    notification,
    result_in,
    set_progress_token,
)
from gateway.upstream.transport.large_answer import LargeAnswer
from gateway.upstream.transport.request_head import RequestHead
from gateway.worker_thread import run_in_thread

log = logging.getLogger(__name__)

# Cancellations and answers that are on their way in addition to the calls: as many as calls are in flight by default.
_MAX_BACKGROUND: Final = 64
# A notification is answered with an empty 202: a server that takes longer is stuck.
_NOTIFY_S: Final = 10.0
# Whether the session is known is asked after a refusal that does not say; meanwhile the refused call waits.
_PING_S: Final = 5.0
# DELETE is a courtesy; the end of the gateway does not wait longer for it.
_END_S: Final = 1.0
# An expired token, then one more scope than the new one has.
_MAX_REFUSALS: Final = 2
# To copy so much takes microseconds, and what is kept while many calls wait is a fraction of a megabyte for each.
_LARGE_BYTES: Final = 64 * 1024
# Of a list. Some megabytes of them arrive at the same moment where many servers are connected, and to parse them takes
# 10 ms for each; what a tool answers is not parsed as a whole.
_ASIDE_BYTES: Final = 64 * 1024
# Of the white space before a text.
_GLANCE_BYTES: Final = 64
# Of a length that says anything.
_MAX_DIGITS: Final = 20
# One row for the whole process: sessions of one origin share connections, and an answer that a server sends late must
# not look like that to another session's request.
_ids: Final = itertools.count(1)


class StreamableHttpTransport:
    """See `Transport`. The session, where a server wants one, is the id that its answer to `initialize` gave."""

    independent_requests = True

    def __init__(
        self, server: str, client: HttpClient, url: str, headers: Mapping[str, str], on_message: OnMessage,
        group: TaskGroup, credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        self._server = server
        self._client = client
        self._url = url
        self._on_message = on_message
        self._group = group
        self._background = 0
        self._closed = anyio.Event()
        self._reason = "the connection is closed"
        self._ended = False
        self._abandoned = False
        self._credentials = credentials
        self._head = RequestHead(url, headers, credentials)
        self._stream = AnswerStream(server, client, url, self._head)
        # Several refusals may come at once: one ping answers for all that came before it was sent.
        self._asking = anyio.Lock()
        self._known_s = -math.inf
        self._forgotten = False
        self._was_listening = False

    def use_version(self, version: str) -> None:
        """See `Transport.use_version`."""
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
        results: ResultStream | None = None,
    ) -> Any:
        """See `Transport.request`."""
        request_id = next(_ids)
        if on_progress is not None:
            set_progress_token(params, request_id)
        body = wire.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        if len(body) > _LARGE_BYTES:
            body = wire.fitted(body)  # kept until there is an answer: it may have to be sent again
        finished = False
        credentials, head = self._credentials, self._head
        presented = None if credentials is None or credentials.anonymous else credentials
        if presented is not None and not presented.ready:
            await presented.prepare()
        try:
            lines = head.lines(headers)
            # By the time of the answer others may be sent with newer ones.
            version = head.version
            response = await self._client.exchange(
                "POST", self._url, lines, body, in_pieces=results is not None, cookies=head.cookies
            )
            if credentials is not None:
                if response.status in (401, 403):
                    response = await self._sent_again(
                        response, headers, body, credentials, version, in_pieces=results is not None
                    )
                elif presented is not None:
                    presented.accepted(version)
            # Without a context manager: a generator's frame would cost every call something.
            try:
                if response.status >= 400:
                    finished = True
                    return result_in(await self._refusal(response, request_id, method))
                plain = response.connection.plain
                if plain is not None and len(plain) <= _ASIDE_BYTES and method != "initialize":
                    result = read_result(plain, request_id)
                    if result is not None:
                        finished = True
                        return result
                message = await self._answer(
                    response, request_id, method, on_progress, on_message or self._on_message, on_pause, results
                )
                finished = True
                if method == "initialize":
                    # Some servers send it empty where there is no session.
                    head.use_session(response.headers.get("mcp-session-id", "").strip() or None)
            finally:
                self._client.keep(response.connection)
            # Or the tool has sessions of its own.
            says_so = head.session_id is not None and says_forgotten(message)
            if says_so and (method == "ping" or await self._has_forgotten()):
                raise SessionForgotten(forgotten_text(response.status, b"", message))
            return result_in(message)
        finally:
            if not finished and head.session_id is not None:
                # In the handshake era a closed connection cancels nothing by itself.
                self._post_later(cancellation(request_id))

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """See `Transport.notify`."""
        try:
            await self._post(notification(method, params))
        except SessionForgotten as error:
            self.fail(str(error))
            raise

    async def wait_closed(self) -> str:
        """See `Transport.wait_closed`."""
        await self._closed.wait()
        return self._reason

    def fail(self, reason: str) -> None:
        """See `Transport.fail`."""
        self.abandon()
        # The first reason is the cause, later ones its consequences.
        if not self._closed.is_set():
            self._reason = reason
            self._closed.set()

    async def listen(self, on_open: Callable[[], None]) -> None:
        """See `Transport.listen`: the stream that a handshake-era server gives to a GET; some offer none."""
        fields, cookies = self._head.stream_fields(), self._head.cookies
        async with self._client.send("GET", self._url, fields, cookies=cookies) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                # A server that has never offered a stream answers as it likes.
                if response.status >= 400 and self._was_listening and self._head.session_id is not None:
                    await self._refusal(response, None, "")
                raise HttpStatusError(response.status, "no stream of notifications")
            self._was_listening = True
            on_open()
            async for message in self._stream.messages(response):
                if isinstance(message.get("method"), str):
                    self._on_message(message, self._post_later)

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._abandoned = True

    async def end(self) -> None:
        """End the session, as a good client does; requests on their way go on by themselves.

        Source: MCP 2025-11-25, "Transports", "Session Management".
        """
        # First: cancellations of the calls that end now would arrive after the end of the session.
        self._ended = True
        if self._head.session_id is not None and not self._abandoned:
            async with self._client.send("DELETE", self._url, self._head.fields("DELETE")) as response:
                await response.read()

    async def _sent_again(
        self,
        response: Response,
        extra: dict[str, str] | None,
        body: bytes,
        credentials: Credentials,
        version: int,
        *,
        in_pieces: bool,
    ) -> Response:
        """The answer to a refused request with other credentials; the refusal itself where there are none."""
        for _ in range(_MAX_REFUSALS):
            try:
                # Read, so that the connection can be kept.
                said = await response.read()
                challenge = response.headers.get("www-authenticate", "")
                is_session = self._head.session_id is not None and mentions_session(said)
                if is_session and (not challenge or credentials.anonymous):
                    return response  # other credentials would be refused with the same words
                nonce = response.headers.get("dpop-nonce", "")
                again = await credentials.refused(response.status, challenge, version, nonce)
            except BaseException:
                self._client.keep(response.connection)
                raise
            if not again:
                return response
            self._client.keep(response.connection)
            lines = self._head.lines(extra)
            version = self._head.version
            response = await self._client.exchange(
                "POST", self._url, lines, body, in_pieces=in_pieces, cookies=self._head.cookies
            )
            if response.status not in (401, 403):
                credentials.accepted(version)
                return response
        return response

    async def _answer(
        self,
        response: Response,
        request_id: int,
        method: str,
        on_progress: OnProgress | None,
        on_message: OnMessage,
        on_pause: OnPause | None,
        results: ResultStream | None,
    ) -> dict[str, Any]:
        if response.content_type == "text/event-stream" and response.status < 300:
            large = partial(LargeAnswer, request_id, results) if results is not None else None
            async for message in self._stream.resumed(response, method, on_pause, large):
                if "method" not in message:
                    if number_of(message.get("id")) == request_id and is_answer(message):
                        return message
                elif message["method"] == "notifications/progress" and "id" not in message:
                    params = message.get("params")
                    if not isinstance(params, dict):
                        continue
                    if on_progress is not None and number_of(params.get("progressToken")) == request_id:
                        on_progress(params)
                    elif isinstance(params.get("progressToken"), str):
                        on_message(message, self._post_later)  # of a task; numbers are of single requests
                elif isinstance(message["method"], str):
                    on_message(message, self._post_later)
            raise ConnectionLost(ENDED_EARLY, sent=True)
        parsed = await self._parsed(response, request_id, method, results)
        if isinstance(parsed, list):
            # A batch of 2025-03-26, whose answer may come with notifications.
            parsed = self._of_batch(parsed, request_id, on_message)
        message = parsed if isinstance(parsed, dict) else {}
        if is_answer(message):
            number = number_of(message.get("id"))
            if number != request_id and ("error" not in message or number is not None):
                # An error may have no id, or one in words: the server could not read the request. Any other
                # id makes it a late answer, after which the connection would be one answer behind for ever.
                response.connection.fail("the answer carries another request's id")
                raise UnusableAnswer("the answer carries another request's id")
            return message
        if response.status >= 300:
            raise HttpStatusError(response.status, reason_phrase(response))
        if message:
            raise UnusableAnswer("the answer is JSON, and no JSON-RPC response")
        raise UnusableAnswer("the answer is neither JSON nor an event stream")

    def _of_batch(self, messages: list[Any], request_id: int, on_message: OnMessage) -> dict[str, Any] | None:
        """Return the answer to a request among several messages, and pass the others on."""
        answer: dict[str, Any] | None = None
        for message in messages:
            if isinstance(message, dict) and isinstance(message.get("method"), str):
                on_message(message, self._post_later)
            elif isinstance(message, dict) and number_of(message.get("id")) == request_id:
                answer = answer or message
        return answer

    async def _refusal(self, response: Response, request_id: int | None, method: str) -> dict[str, Any]:
        """Return the JSON-RPC error in an answer with an error status.

        Args:
            response: The answer.
            request_id, method: Of the request; None and nothing for a stream.

        Raises:
            SessionForgotten: The server does not know the session, so that the request was not run.
            HttpStatusError: There is no JSON-RPC error in it.
        """
        status = response.status
        try:
            body = await response.read()
        except ConnectionLost:
            body = b""  # the status is known, and says that there is no result
        parse = partial(_error_in, body)
        message = await run_in_thread(parse) if len(body) > _ASIDE_BYTES else parse()
        if self._head.session_id is not None and method != "initialize":
            subject = subject_of(status, body, message, request_id)
            # A ping that is refused says that anything would be.
            if subject == "session" or (subject == "unclear" and (method == "ping" or await self._has_forgotten())):
                self._forgotten = True
                raise SessionForgotten(forgotten_text(status, body, message))
        # 401 and 403: servers repeat in the body what they were sent, credentials included.
        if message is None or status in (401, 403):
            raise HttpStatusError(status, reason_phrase(response))
        return message

    async def _has_forgotten(self) -> bool:
        """Ask the server whether it knows the session, where a refusal does not say; a `ping` does no harm."""
        refused_s = anyio.current_time()
        async with self._asking:
            if self._forgotten or self._known_s > refused_s:
                return self._forgotten
            asked_s = anyio.current_time()
            try:
                with anyio.fail_after(_PING_S):
                    await self.request("ping", {})
            except SessionForgotten:
                self._forgotten = True
                return True
            except (ConnectionLost, HttpStatusError, TimeoutError):
                return False  # that says nothing about the session
            except RpcError:
                pass  # it knows the session, and no ping
            self._known_s = asked_s
            return False

    async def _parsed(self, response: Response, request_id: int, method: str, results: ResultStream | None) -> Any:
        """The body of a plain answer as JSON; None where it is not meant to be."""
        kind = response.content_type
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length[:_MAX_DIGITS]) > MAX_MESSAGE_BYTES:
            raise UnusableAnswer(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
        usual = response.status == 200 and kind == "application/json"
        if results is None or response.connection.complete or not usual:
            body = await response.read()
        else:
            large = LargeAnswer(request_id, results)
            async for chunk in response.chunks():
                await large.feed(chunk)
            if large.begun:
                return await large.message()
            body = large.text
        # As clients on fetch read it.
        body = body.removeprefix(codecs.BOM_UTF8)
        # Some servers send JSON under another type; a brace is enough to try.
        if kind != "application/json" and body[:_GLANCE_BYTES].lstrip()[:1] not in (b"{", b"["):
            return None
        try:
            if len(body) > _ASIDE_BYTES and method != "tools/call":
                return await run_in_thread(partial(read_message, body, method), limiter=self._client.parsing)
            return read_message(body, method)
        except wire.MalformedJson as error:
            repaired = await repaired_response(body, method)
            if repaired is None:
                raise UnusableAnswer(f"the answer is not JSON ({error})") from None
            return repaired

    async def _post(self, message: dict[str, Any]) -> None:
        with anyio.fail_after(_NOTIFY_S):
            fields, cookies = self._head.fields("POST"), self._head.cookies
            async with self._client.send("POST", self._url, fields, wire.dumps(message), cookies=cookies) as response:
                body = await response.read()
        # Only where it says so: some servers refuse every notification, and work.
        if 400 <= response.status < 500 and self._head.session_id is not None and mentions_session(body):
            raise SessionForgotten(forgotten_text(response.status, body, _error_in(body)))

    def _post_later(self, message: dict[str, Any]) -> None:
        # Dropped beyond the bound: nobody waits for these messages.
        if self._ended or self._background >= _MAX_BACKGROUND:
            return
        self._background += 1

        async def post() -> None:
            try:
                await self._post(message)
            except SessionForgotten as error:
                self.fail(str(error))
            except (GatewayError, TimeoutError, ValueError):
                log.debug("a message could not be sent", extra={"server": self._server})
            finally:
                self._background -= 1

        self._group.start_soon(post)


def _error_in(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC error that a body holds; frameworks have an `error` of their own."""
    if b'"error"' not in body:
        return None
    try:
        message = wire.loads(body)
    except wire.MalformedJson:
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
    """A Streamable HTTP connection; nothing is sent before its first request."""
    async with anyio.create_task_group() as group:
        transport = StreamableHttpTransport(server, client, url, headers, on_message, group, credentials)
        try:
            yield transport
        finally:
            # Shielded: usually the connection is left because it was cancelled.
            with anyio.move_on_after(_END_S, shield=True):
                try:
                    await transport.end()
                except (GatewayError, ValueError):
                    log.debug("the session could not be ended", extra={"server": server})
            group.cancel_scope.cancel()
