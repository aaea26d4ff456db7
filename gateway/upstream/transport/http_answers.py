"""Resume event streams of Streamable HTTP, and interpret error statuses.

Source: MCP 2025-11-25, "Transports", "Resumability and Redelivery" and "Sending Messages to the Server".
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import anyio

from gateway.http.event_stream import EventParser
from gateway.http.http_client import HttpClient, Response
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_PARAMS, METHOD_NOT_FOUND, ConnectionLost
from gateway.upstream.transport.client_headers import RequestHead
from gateway.upstream.transport.jsonrpc_transport import OnPause, repaired_response
from gateway.upstream.upstream_credentials import refusal_text
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

Subject = Literal["session", "request", "unclear"]
"""The cause of an HTTP error: the session, the request, or possibly either (`unclear`). If the cause is the session,
the server did not process the request."""

# MCP requires status 404 for an unknown session, but many servers respond with another status and one of these phrases.
# The phrases come from the SDKs for TypeScript, Python, Go, C#, Java and Rust, from FastMCP, and from proxies.
_FORGOTTEN: Final = re.compile(
    r"""
    mcp-session-id
    | (?: not | never ) [ ] (?: yet [ ] )? (?: been [ ] )? initiali[sz]ed
    | before [ ] initiali[sz] | re-?initiali[sz] | initiali[sz]e [ ] first
    | (?: must | expected | expecting ) [^.]{0,20} initiali[sz]e
    | (?: no | unknown | invalid | missing | expired | stale | unrecogni[sz]ed )
      [^.]{0,20} \b (?: session | transport ) \b
    | find [^.]{0,20} \b session \b
    | \b (?: session | transport ) s? \b [^.]{0,60} \b (?:
        not [ ] (?: be [ ] )? (?: found | valid | exist | known | active | recogni[sz]ed | available )
        | (?: does | do ) (?: [ ] not | n't ) [ ] exist
        | unknown | invalid | missing | expired | terminated | closed | gone | lost | required | timed [ ] out | timeout
        | no [ ] longer | has [ ] ended | was [ ] deleted | was [ ] removed | stale )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# How much of a body is searched. Error pages and messages state the problem at the beginning.
_READ_CHARS: Final = 2_000
_QUOTED_CHARS: Final = 160
# Statuses that name another cause than an unknown session, such as a wrong method, or a size or rate over the limit.
# 401 and 403 concern the credentials, unless the body mentions the session.
_NAMES_THE_CAUSE: Final = frozenset(
    {401, 402, 403, 405, 406, 407, 408, 411, 413, 414, 415, 416, 417, 426, 429, 431, 451}
)
# A server that responds with one of these error codes has accepted the session.
_OF_THE_REQUEST: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
# `Retry-After` in seconds, up to about a day. Values that are dates are ignored.
_SECONDS: Final = re.compile(r"\d{1,5}")


def says_forgotten(message: dict[str, Any]) -> bool:
    """Return whether the text of a JSON-RPC error says that the server does not know the session."""
    error = message.get("error")
    text = error.get("message") if isinstance(error, dict) else None
    return isinstance(text, str) and _FORGOTTEN.search(text[:_READ_CHARS]) is not None


def mentions_session(body: bytes) -> bool:
    """Return whether a text says that the server does not know the session."""
    return _FORGOTTEN.search(body[:_READ_CHARS].decode("utf-8", "replace")) is not None


def subject_of(status: int, body: bytes, message: dict[str, Any] | None, request_id: int | None) -> Subject:
    """Return whether the session or the request is the cause of an error status.

    Source: MCP 2025-11-25, "Transports", "Session Management": the response to an unknown session is 404.

    Args:
        status: The status of the response, at least 400.
        body: The body of the response.
        message: The JSON-RPC error in the body, if any.
        request_id: The id of the request; None for a notification.
    """
    if status >= 500:
        return "request"  # the server failed while it processed the request
    says_so = mentions_session(body)
    is_own = message is not None and message.get("id") == request_id
    if message is not None and is_own and message["error"].get("code") in _OF_THE_REQUEST:
        # A tool may have sessions that are unrelated to MCP, so the message may refer to a session in the arguments.
        return "unclear" if says_so else "request"
    if says_so:
        return "session"
    if status in _NAMES_THE_CAUSE:
        return "request"
    return "session" if status == _NOT_FOUND and not is_own else "unclear"


def forgotten_text(status: int, body: bytes, message: dict[str, Any] | None) -> str:
    """Return the reason that is reported when a server has forgotten a session."""
    detail = ""
    if message is not None:
        detail = str(message["error"].get("message", ""))
    elif status not in (401, 403) and b"<" not in body:
        # Do not quote HTML pages, or responses with 401 and 403, which may repeat the credentials.
        detail = body[:_READ_CHARS].decode("utf-8", "replace")
    detail = excerpt(detail, _QUOTED_CHARS)
    return f"the upstream has forgotten the session (HTTP {status}{': ' + detail if detail else ''})"


def reason_phrase(response: Response, *, is_anonymous: bool) -> str:
    """Return an explanation of an HTTP status for the caller, or an empty string if the status needs none."""
    status = response.status
    if status in (401, 403):
        return refusal_text(is_anonymous=is_anonymous)
    if status == _TOO_MANY:
        match = _SECONDS.fullmatch(response.headers.get("retry-after", ""))
        return "too many requests" + (f", retry in {match[0]} s" if match else "")
    if 300 <= status < 400:
        return "a redirect is not followed"
    return ""


ENDED_EARLY: Final = "the stream of the answer ended before the answer"
# The maximum number of reconnects for a response. A server that closes the stream every second has an hour to respond,
# but the call's deadline usually ends the wait sooner.
_MAX_RESUMED: Final = 3_600
# The delay before a reconnect if the server specifies no delay, and the minimum if the server specifies a delay.
_RETRY_MS: Final = 1_000
_MIN_RETRY_MS: Final = 50


def read_message(data: bytes, method: str) -> Any:
    """Parse a response to a request with this method; raise `json_bytes.MalformedJson` if it is not valid JSON."""
    return json_bytes.loads_answer(data) if method in json_bytes.READ_LATER else json_bytes.loads(data)


class AnswerStream:
    """Reads the event streams with which one server responds to requests."""

    def __init__(self, server: str, client: HttpClient, url: str, head: RequestHead) -> None:
        self._server = server
        self._client = client
        self._url = url
        self._head = head

    async def resumed(self, response: Response, method: str, on_pause: OnPause | None) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the response to a request. If the stream ends and can be resumed, reconnect.

        Args:
            response: The first response.
            method: The method of the request.
            on_pause: See `Transport.request`.

        Raises:
            ConnectionLost: The connection failed, and the stream cannot be resumed.
        """
        parser = EventParser()
        try:
            async for message in self.messages(response, method, parser):
                yield message
        except ConnectionLost:
            if parser.last_id is None:
                raise
        for _ in range(_MAX_RESUMED):
            # A stream can be resumed only in a session, and only if the server has sent an event id.
            if parser.last_id is None or self._head.session_id is None:
                return
            retry_ms = _RETRY_MS if parser.retry_ms is None else max(parser.retry_ms, _MIN_RETRY_MS)
            if on_pause is not None:
                on_pause(retry_ms)
            await anyio.sleep(retry_ms / 1000)
            head = {**self._head.stream_fields(), "last-event-id": parser.last_id}
            # Discard a partly received event, because the server sends the whole event again.
            parser = EventParser(last_id=parser.last_id, retry_ms=parser.retry_ms)
            try:
                async with self._client.send("GET", self._url, head, cookies=self._head.cookies) as resumed:
                    if resumed.status != 200 or resumed.content_type != "text/event-stream":
                        raise ConnectionLost(f"{ENDED_EARLY}, and cannot be opened again", sent=True)
                    async for message in self.messages(resumed, method, parser):
                        yield message
            except ConnectionLost as error:
                # `sent` is true because the request was sent before the reconnect failed.
                raise ConnectionLost(str(error), sent=True) from None

    async def messages(
        self,
        response: Response,
        method: str = "",
        parser: EventParser | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of one response as they arrive."""
        parser = parser or EventParser()
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                data = event.data
                if event.event != "message" or not data:
                    continue
                try:
                    message = read_message(data, method)
                except json_bytes.MalformedJson:
                    log.warning("server-sent event is not JSON", extra={"server": self._server})
                    message = await repaired_response(data, method)
                if isinstance(message, dict):
                    yield message
