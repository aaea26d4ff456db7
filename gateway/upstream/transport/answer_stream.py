"""The event stream of an answer: its messages, over as many connections as the server or the network makes of it.

Source: MCP 2025-11-25, "Transports", "Resumability and Redelivery" and "Sending Messages to the Server".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import anyio

from gateway import wire
from gateway.errors import ConnectionLost
from gateway.upstream.transport.bounds import LARGE_BYTES
from gateway.upstream.transport.event_stream import EventParser
from gateway.upstream.transport.http_client import HttpClient, Response
from gateway.upstream.transport.invalid_json import repaired_response
from gateway.upstream.transport.jsonrpc import OnPause
from gateway.upstream.transport.large_answer import LargeAnswer
from gateway.upstream.transport.request_head import RequestHead

log = logging.getLogger(__name__)

ENDED_EARLY: Final = "the stream of the answer ended before the answer"
# The stream of one answer is opened again this often: a server that pauses every second has an hour. The deadline of
# the call ends it sooner.
_MAX_RESUMED: Final = 3_600
# Where a server does not say how long to wait, and the least that it may ask for.
_RETRY_MS: Final = 1_000
_MIN_RETRY_MS: Final = 50


def read_message(data: bytes, method: str) -> Any:
    """A message that answers a request of this method; raises `wire.MalformedJson`."""
    return wire.loads_answer(data) if method in wire.READ_LATER else wire.loads(data)


class AnswerStream:
    """Reads the streams of one server."""

    def __init__(self, server: str, client: HttpClient, url: str, head: RequestHead) -> None:
        self._server = server
        self._client = client
        self._url = url
        self._head = head

    async def resumed(
        self, response: Response, method: str, on_pause: OnPause | None, large: Callable[[], LargeAnswer] | None
    ) -> AsyncIterator[dict[str, Any]]:
        """The messages of one request, until its stream cannot be opened again.

        Args:
            response: The first one.
            method: Of the request.
            on_pause: See `Transport.request`.
            large: Takes a large answer while it arrives.

        Raises:
            ConnectionLost: It ended before the server has ended it.
        """
        parser = EventParser()
        try:
            async for message in self.messages(response, method, parser, large):
                yield message
        except ConnectionLost:
            if parser.last_id is None:
                raise
        for _ in range(_MAX_RESUMED):
            # Without an id there is nothing to go on from.
            if parser.last_id is None or self._head.session_id is None:
                return
            retry_ms = _RETRY_MS if parser.retry_ms is None else max(parser.retry_ms, _MIN_RETRY_MS)
            if on_pause is not None:
                on_pause(retry_ms)
            await anyio.sleep(retry_ms / 1000)
            head = {**self._head.stream_fields(), "last-event-id": parser.last_id}
            # What was cut in the middle is sent again as a whole.
            parser = EventParser(last_id=parser.last_id, retry_ms=parser.retry_ms)
            try:
                async with self._client.send("GET", self._url, head, cookies=self._head.cookies) as resumed:
                    if resumed.status != 200 or resumed.content_type != "text/event-stream":
                        raise ConnectionLost(f"{ENDED_EARLY}, and cannot be opened again", sent=True)
                    async for message in self.messages(resumed, method, parser, large):
                        yield message
            except ConnectionLost as lost:
                # The request itself was sent long ago, whatever became of this attempt.
                raise ConnectionLost(str(lost), sent=True) from None

    async def messages(
        self,
        response: Response,
        method: str = "",
        parser: EventParser | None = None,
        large: Callable[[], LargeAnswer] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """The messages of one response, as they come."""
        parser = parser or EventParser()
        parser.opens_from_bytes = 0 if large is None else LARGE_BYTES
        arriving: LargeAnswer | None = None
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                data = event.data
                if large is not None and (event.goes_on or event.went_on):
                    arriving = arriving or large()
                    await arriving.feed(data)
                    if event.goes_on:
                        continue
                    arrived, arriving = arriving, None
                    if arrived.begun:
                        yield await arrived.message()
                        continue
                    data = arrived.text
                if event.event != "message" or not data:
                    continue
                try:
                    message = read_message(data, method)
                except wire.MalformedJson:
                    log.warning("an event is not JSON", extra={"server": self._server})
                    message = await repaired_response(data, method)
                if isinstance(message, dict):
                    yield message
