"""Requests to a GraphQL endpoint: each one a POST of its own, contained like those of every other upstream.

Source: the specification "GraphQL over HTTP", "Request" and "Response".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway import wire
from gateway.errors import METHOD_NOT_FOUND, RpcError
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.http_connection import MAX_BODY_BYTES
from gateway.upstream.transport.jsonrpc import OnMessage, OnProgress

_HEADERS: Final = {
    "accept": "application/graphql-response+json, application/json;q=0.9",
    "content-type": "application/json",
}
# What belongs to one connection and its framing is never taken from a configuration.
_OURS: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"accept-encoding", "content-length", "content-type", "expect", "host"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What came back, whole."""

    status: int
    content_type: str
    body: bytes


class Endpoint:
    """One endpoint; a `Channel` on which nothing is said unasked."""

    exchanges = True

    def __init__(self, client: HttpClient, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        own = {name.lower(): value for name, value in headers.items() if name.lower() not in _OURS}
        self.headers: dict[str, str] = {**_HEADERS, **own}
        self.unreachable = False

    async def post(
        self, payload: Mapping[str, Any], *, trace: Mapping[str, str] | None = None, limit_bytes: int = MAX_BODY_BYTES
    ) -> HttpAnswer:
        """Send one request and read its whole answer.

        Raises:
            ConnectionLost: There is no answer, or it is larger than the limit.
            HttpStatusError: A redirect that is not followed.
        """
        headers = {**self.headers, **(trace or {})}
        async with self._client.send("POST", self._url, headers, wire.dumps(payload)) as response:
            body = await response.read(limit_bytes)
            return HttpAnswer(status=response.status, content_type=response.content_type, body=body)

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        on_progress: OnProgress | None = None,
        on_message: OnMessage | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """See `Channel.request`; no method of MCP is known here."""
        raise RpcError(METHOD_NOT_FOUND, f"a GraphQL endpoint has no {method[:100]}")

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """See `Channel.notify`; there is nobody to tell."""

    async def wait_closed(self) -> str:
        """See `Channel.wait_closed`; what has no connection does not lose it."""
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    def abandon(self) -> None:
        """See `Channel.abandon`."""
        self.unreachable = True
