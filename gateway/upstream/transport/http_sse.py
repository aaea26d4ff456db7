"""The HTTP+SSE transport of 2024-11-05.

Source: MCP 2024-11-05, "Transports", "HTTP with SSE".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urljoin

import anyio

from gateway.http.event_stream import EventParser
from gateway.http.http_client import HttpClient, Response, split_url
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import (
    INTERNAL_ERROR,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    RpcError,
    SessionForgotten,
    TooManyCalls,
)
from gateway.upstream.transport.client_headers import Cookies, has_no_credentials, standing_headers
from gateway.upstream.transport.http_answers import forgotten_text, mentions_session, subject_of
from gateway.upstream.transport.jsonrpc_transport import OnMessage
from gateway.upstream.transport.stream_transport import StreamTransport
from gateway.upstream.upstream_credentials import Credentials, NotSignedIn, refusal_text

# The maximum number of queued messages. A message usually leaves the queue in the next iteration of the event loop. The
# maximum is four times the default limit of calls in flight, to leave room for cancellations and responses.
_MAX_UNSENT: Final = 256
# How often to send a message: with the current credentials and, after a refusal, with other credentials.
_MAX_SENT: Final = 2
# The id of pings. It is a string, so that it cannot equal the numeric id of a request.
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
    """Open the event stream, and wait until the server names the endpoint to which messages are posted.

    Raises:
        ConnectionLost: The stream ended before it named an endpoint.
        HttpStatusError: The response is not an event stream, or names an endpoint with another origin.
    """
    connection = _SseConnection(server, url, headers, client, on_message, credentials)
    # Close `to_post` last, so that `post_all` sees a normal end of the queue and not an error.
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
    """The event stream, and the queue of messages to post."""

    def __init__(
        self,
        server: str,
        url: str,
        headers: Mapping[str, str],
        client: HttpClient,
        on_message: OnMessage,
        credentials: Credentials | None,
    ) -> None:
        self._url = url
        self._has_no_credentials = has_no_credentials(url, headers)
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
            async with self._open_stream() as response:
                if response.status in (401, 403):
                    raise HttpStatusError(response.status, refusal_text(is_anonymous=self._is_anonymous))
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise HttpStatusError(response.status, "not an event stream")
                await self._read_events(response)
        except (GatewayError, ValueError) as error:
            self._failure = error
        finally:
            self.transport.close(str(self._failure))
            self._endpoint_known.set()

    @asynccontextmanager
    async def _open_stream(self) -> AsyncIterator[Response]:
        """Open the stream. If the server refuses the credentials and others are available, retry once with these."""
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
                    again = await credentials.handle_refusal(response.status, challenge, version, nonce)
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
        cookie_header = {"cookie": cookie} if cookie else {}
        return {**self._headers, **own, **cookie_header, **more}

    @property
    def _is_anonymous(self) -> bool:
        return self._has_no_credentials and not (self._credentials is not None and self._credentials.headers)

    async def wait_endpoint(self) -> None:
        """Wait until the server has named the endpoint. If the stream ends before that, raise the error."""
        await self._endpoint_known.wait()
        if not self._endpoint:
            raise self._failure

    async def post_all(self) -> None:
        """Post all messages concurrently, so that a slow POST does not delay other messages."""
        async with anyio.create_task_group() as group:
            async for line in self.to_post:
                group.start_soon(self._post, line)

    def close(self) -> None:
        """Stop accepting messages."""
        self._unsent.close()
        self.transport.close("the connection is being closed")

    async def _read_events(self, response: Response) -> None:
        # All requests share the stream, so an oversized response must not end the stream.
        parser = EventParser(skip_large=True, on_skipped=self.transport.skip)
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                if event.event == "endpoint":
                    target = urljoin(self._url, event.data.decode("utf-8", "replace").strip())
                    # The headers may contain credentials, which must only be sent to the configured origin.
                    if split_url(target)[0] != split_url(self._url)[0]:
                        raise HttpStatusError(200, "the endpoint has another origin than the configured URL")
                    self._endpoint = target
                    self._endpoint_known.set()
                elif event.event == "message":
                    self.transport.receive(event.data)
        raise ConnectionLost("the event stream ended", sent=True)

    def _send(self, line: bytes) -> None:
        try:
            self._unsent.send_nowait(line)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise TooManyCalls("it accepts no more messages") from None

    async def _post(self, line: bytes) -> None:
        message = json_bytes.loads(line)
        try:
            status, body = await self._post_message(line)
            if 400 <= status < 500 and await self._is_forgotten(status, body, message):
                raise SessionForgotten(forgotten_text(status, body, None))
            if status in (401, 403):
                raise HttpStatusError(status, refusal_text(is_anonymous=self._is_anonymous))
            if status >= 400:
                raise HttpStatusError(status, "the message was refused")
        except SessionForgotten as error:
            # Close the stream, because a proxy may keep it open although the server has forgotten the session.
            self.transport.refuse(message.get("id"), error)
            self.transport.close(str(error))
        except (GatewayError, ValueError) as error:
            # Fail the request now, so that the caller does not wait until the deadline.
            self.transport.refuse(message.get("id"), RpcError(INTERNAL_ERROR, f"could not be sent: {error}"))
            if isinstance(error, NotSignedIn) and not error.step_up:
                # Close the stream, which would otherwise stay open although messages can no longer be sent.
                self.transport.close(str(error))

    async def _is_forgotten(self, status: int, body: bytes, message: dict[str, Any]) -> bool:
        """Return whether the server refused a POST because it does not know the session in the endpoint's URL."""
        subject = subject_of(status, body, None, None)
        if mentions_session(body) or subject == "request" or not isinstance(message.get("id"), int):
            return mentions_session(body)
        # A ping is harmless. The transport ignores the response to the ping, because no request has this id.
        try:
            status, body = await self._post_message(
                json_bytes.dumps({"jsonrpc": "2.0", "id": _PING_ID, "method": "ping"})
            )
        except GatewayError:
            return False
        return 400 <= status < 500 and subject_of(status, body, None, None) != "request"

    async def _post_message(self, line: bytes) -> tuple[int, bytes]:
        """Post a message, and return the status and body of the response.

        If the server refuses the credentials and other credentials are available, retry once with these.
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
                credentials.note_accepted(version)
                return status, body
            response_headers = response.headers
            challenge, nonce = response_headers.get("www-authenticate", ""), response_headers.get("dpop-nonce", "")
            if not await credentials.handle_refusal(status, challenge, version, nonce):
                return status, body
        return status, body
