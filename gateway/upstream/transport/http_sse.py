"""The HTTP+SSE transport of 2024-11-05: requests by POST, every answer on one long stream.

Source: MCP 2024-11-05, "Transports", "HTTP with SSE".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urljoin

import anyio

from gateway import wire
from gateway.errors import (
    INTERNAL_ERROR,
    Congested,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
)
from gateway.upstream.credentials import Credentials, NotSignedIn
from gateway.upstream.transport.cookies import Cookies
from gateway.upstream.transport.event_stream import EventParser
from gateway.upstream.transport.http_client import HttpClient, Response, split_url
from gateway.upstream.transport.http_refusals import forgotten_text, mentions_session, subject_of
from gateway.upstream.transport.jsonrpc import OnMessage
from gateway.upstream.transport.request_head import standing_headers
from gateway.upstream.transport.stream_transport import StreamTransport

# Messages that wait for their POST to begin, which takes no longer than a turn of the loop: four times the calls
# that are in flight by default, for their cancellations and answers.
_MAX_UNSENT: Final = 256
# Once with each of two tokens.
_MAX_SENT: Final = 2
# Requests have numbers.
_PING_ID: Final = "is-the-session-known"


@asynccontextmanager
async def open_sse(
    server: str,
    url: str,
    *,
    headers: Mapping[str, str],
    client: HttpClient,
    on_message: OnMessage,
    credentials: Credentials | None = None,
) -> AsyncIterator[StreamTransport]:
    """Open the long stream and learn where to post.

    Raises:
        ConnectionLost: The stream ended before it named an endpoint.
        HttpStatusError: It is no event stream, or names an endpoint of another origin.
    """
    connection = _SseConnection(server, url, headers, client, on_message, credentials)
    # Closed last: who waits for a message hears the end of the messages, which is no error.
    async with connection.to_post, anyio.create_task_group() as group:
        group.start_soon(connection.hold_stream)
        try:
            await connection.wait_endpoint()
            group.start_soon(connection.post_all)
            yield connection.transport
        finally:
            connection.close()
            group.cancel_scope.cancel()


class _SseConnection:
    """The long stream, and the queue of messages to post."""

    def __init__(
        self, server: str, url: str, headers: Mapping[str, str], client: HttpClient, on_message: OnMessage,
        credentials: Credentials | None,
    ) -> None:  # fmt: skip
        self._url = url
        self._headers = standing_headers(headers, {"accept": "text/event-stream"})
        self._cookies = Cookies(url, self._headers.pop("cookie", ""))
        self._client = client
        self._credentials = credentials
        self._unsent, self.to_post = anyio.create_memory_object_stream[bytes](_MAX_UNSENT)
        self._endpoint = ""
        self._endpoint_known = anyio.Event()
        self._failure: Exception = ConnectionLost("the connection is closed", sent=False)
        self.transport = StreamTransport(server, on_message, self._send)

    async def hold_stream(self) -> None:
        """Read the stream until it ends."""
        try:
            async with self._opened() as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise HttpStatusError(response.status, "not an event stream")
                await self._read(response)
        except (GatewayError, ValueError) as error:
            self._failure = error
        finally:
            self.transport.close(str(self._failure))
            self._endpoint_known.set()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Response]:
        """The answer to the request for the stream; it is sent once more where there are other credentials."""
        credentials = self._credentials
        if credentials is not None:
            await credentials.prepare()
            version, again = credentials.version, False
            async with self._client.send(
                "GET", self._url, self._head("GET", self._url), cookies=self._cookies
            ) as response:
                if response.status in (401, 403):
                    challenge = response.headers.get("www-authenticate", "")
                    nonce = response.headers.get("dpop-nonce", "")
                    again = await credentials.refused(response.status, challenge, version, nonce)
                if not again:
                    yield response
                    return
        async with self._client.send("GET", self._url, self._head("GET", self._url), cookies=self._cookies) as response:
            yield response

    def _head(self, method: str, url: str, **more: str) -> dict[str, str]:
        own: Mapping[str, str] = {}
        if self._credentials is not None:
            own = {**self._credentials.headers, **(self._credentials.proof(method, url) or {})}
        cookie = self._cookies.header(url)
        kept = {"cookie": cookie} if cookie else {}
        return {**self._headers, **own, **kept, **more}

    async def wait_endpoint(self) -> None:
        """Return once the stream has named where to post, or raise the reason why it never will."""
        await self._endpoint_known.wait()
        if not self._endpoint:
            raise self._failure

    async def post_all(self) -> None:
        """Post every message, each in its own time, so that a slow one holds up no other."""
        async with anyio.create_task_group() as group:
            async for line in self.to_post:
                group.start_soon(self._post, line)

    def close(self) -> None:
        """Take no more messages."""
        self._unsent.close()
        self.transport.close("the connection is being closed")

    async def _read(self, response: Response) -> None:
        # The stream carries the answers of others too: one that is too large must not end it.
        parser = EventParser(skip_large=True, on_skipped=self.transport.skip)
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                if event.event == "endpoint":
                    target = urljoin(self._url, event.data.decode("utf-8", "replace").strip())
                    # Our headers may hold credentials, which are for the configured origin only.
                    if split_url(target)[0] != split_url(self._url)[0]:
                        raise HttpStatusError(200, "the endpoint is of another origin")
                    self._endpoint = target
                    self._endpoint_known.set()
                elif event.event == "message":
                    self.transport.receive(event.data)
        raise ConnectionLost("the event stream ended", sent=True)

    def _send(self, line: bytes) -> None:
        try:
            self._unsent.send_nowait(line)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise Congested("it takes no more messages") from None

    async def _post(self, line: bytes) -> None:
        message = wire.loads(line)
        try:
            status, body = await self._posted(line)
            if 400 <= status < 500 and await self._is_forgotten(status, body, message):
                raise SessionForgotten(forgotten_text(status, body, None))
            if status >= 400:
                raise HttpStatusError(status, "the message was refused")
        except SessionForgotten as error:
            # The stream may stay open where a proxy holds it.
            self.transport.refuse(message.get("id"), error)
            self.transport.close(str(error))
        except (GatewayError, ValueError) as error:
            # A request of ours gets an answer, or it would wait for its deadline.
            self.transport.refuse(message.get("id"), RpcError(INTERNAL_ERROR, f"could not be sent: {error}"))
            if isinstance(error, NotSignedIn) and not error.step_up:
                # The stream would go on, and no message could be sent.
                self.transport.close(str(error))

    async def _is_forgotten(self, status: int, body: bytes, message: dict[str, Any]) -> bool:
        """Return whether a refusal means that the server does not know the session, which the endpoint names."""
        subject = subject_of(status, body, None, None)
        if mentions_session(body) or subject == "request" or not isinstance(message.get("id"), int):
            return mentions_session(body)
        # A ping does no harm. What answers it on the stream has an id that nobody waits for.
        try:
            status, body = await self._posted(wire.dumps({"jsonrpc": "2.0", "id": _PING_ID, "method": "ping"}))
        except GatewayError:
            return False
        return 400 <= status < 500 and subject_of(status, body, None, None) != "request"

    async def _posted(self, line: bytes) -> tuple[int, bytes]:
        """Post a message, once more where the credentials were refused and there are others.

        Returns:
            The status of the answer, and its body.
        """
        credentials, status, body = self._credentials, 0, b""
        for _ in range(_MAX_SENT):
            if credentials is not None and not credentials.ready:
                await credentials.prepare()
            version = credentials.version if credentials is not None else 0
            head = self._head("POST", self._endpoint, **{"content-type": "application/json"})
            async with self._client.send("POST", self._endpoint, head, line, cookies=self._cookies) as response:
                body = await response.read()
                status = response.status
            if credentials is None:
                return status, body
            if status not in (401, 403):
                credentials.accepted(version)
                return status, body
            found = response.headers
            challenge, nonce = found.get("www-authenticate", ""), found.get("dpop-nonce", "")
            if not await credentials.refused(status, challenge, version, nonce):
                return status, body
        return status, body
