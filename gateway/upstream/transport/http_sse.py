"""HTTP+SSE of 2024-11-05: requests by POST, every answer on one long stream.

Source: MCP 2024-11-05, "Transports", "HTTP with SSE".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urljoin

import anyio

from gateway import wire
from gateway.errors import Congested, ConnectionLost, GatewayError, HttpStatusError
from gateway.upstream.transport.event_stream import EventParser
from gateway.upstream.transport.http_client import HttpClient, Response, split_url
from gateway.upstream.transport.jsonrpc import Correlator, OnMessage
from gateway.upstream.transport.streamable_http import StreamChannel

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_sse(
    server: str, url: str, *, headers: Mapping[str, str], client: HttpClient, on_message: OnMessage
) -> AsyncIterator[StreamChannel]:
    """Open the long stream and learn where to post.

    Raises:
        ConnectionLost: The stream ended before it named an endpoint.
        HttpStatusError: It is no event stream, or names an endpoint of another origin.
    """
    reason = ["the connection is closed"]
    closed = anyio.Event()
    ready = anyio.Event()
    endpoint: list[str] = []
    sender, posts = anyio.create_memory_object_stream[bytes](256)

    def send(line: bytes) -> None:
        try:
            sender.send_nowait(line)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise Congested("it takes no more messages") from None

    correlator = Correlator(server, on_message, send)

    async def read(response: Response) -> None:
        parser = EventParser(skip_large=True, on_skipped=correlator.skip)
        async for chunk in response.chunks():
            for event in parser.feed(chunk):
                if event.event == "endpoint":
                    target = urljoin(url, event.data.decode("utf-8", "replace").strip())
                    if split_url(target)[0] != split_url(url)[0]:
                        raise HttpStatusError(200, "the endpoint is of another origin")
                    endpoint[:] = [target]
                    ready.set()
                elif event.event == "message":
                    correlator.receive(event.data)
        raise ConnectionLost("the event stream ended", sent=True)

    async def wait_closed() -> str:
        await closed.wait()
        return reason[0]

    async def hold() -> None:
        try:
            async with client.send("GET", url, {**headers, "accept": "text/event-stream"}) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise HttpStatusError(response.status, "not an event stream")
                await read(response)
        except (GatewayError, ValueError) as error:
            reason[0] = str(error)
            failure.append(error)
        finally:
            correlator.close(reason[0])
            closed.set()
            ready.set()

    async def post(line: bytes) -> None:
        try:
            head = {**headers, "content-type": "application/json"}
            async with client.send("POST", endpoint[0], head, line) as response:
                await response.read()
                if response.status >= 400:
                    raise HttpStatusError(response.status, "the message was refused")
        except (GatewayError, ValueError) as error:
            message = wire.loads(line)
            if isinstance(message.get("id"), int):
                failed = {
                    "id": message["id"],
                    "error": {"code": -32603, "message": f"could not be sent: {error}"},
                }
                correlator.receive(wire.dumps(failed))

    failure: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def post_all() -> None:
            async for line in posts:
                group.start_soon(post, line)

        group.start_soon(hold)
        try:
            await ready.wait()
            if not endpoint:
                raise failure[0] if failure else ConnectionLost(reason[0], sent=False)
            group.start_soon(post_all)
            yield StreamChannel(correlator, wait_closed)
        finally:
            sender.close()
            correlator.close("the connection is being closed")
            group.cancel_scope.cancel()
    posts.close()
