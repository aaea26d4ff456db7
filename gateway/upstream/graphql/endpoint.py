"""Requests to a GraphQL endpoint: each one a POST of its own, contained like those of every other upstream.

Source: the specification "GraphQL over HTTP", "Request" and "Response".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway import wire
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES
from gateway.upstream.transport.http_client import HttpClient

_HEADERS: Final = {
    "accept": "application/graphql-response+json, application/json;q=0.9",
    "content-type": "application/json",
}
# What belongs to one connection and its framing is never taken from a configuration.
_NOT_CONFIGURABLE: Final = frozenset(
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
    """One endpoint."""

    def __init__(self, client: HttpClient, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        own = {name.lower(): value for name, value in headers.items() if name.lower() not in _NOT_CONFIGURABLE}
        self._headers: dict[str, str] = {**_HEADERS, **own}

    async def post(
        self,
        payload: Mapping[str, Any],
        *,
        trace: Mapping[str, str] | None = None,
        limit_bytes: int = MAX_MESSAGE_BYTES,
    ) -> HttpAnswer:
        """Send one request and read its whole answer.

        Raises:
            ConnectionLost: There is no answer, or it is larger than the limit.
            HttpStatusError: A redirect that is not followed.
        """
        headers = {**self._headers, **(trace or {})}
        async with self._client.send("POST", self._url, headers, wire.dumps(payload)) as response:
            body = await response.read(limit_bytes)
            return HttpAnswer(status=response.status, content_type=response.content_type, body=body)
