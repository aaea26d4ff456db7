"""Requests to authorization servers, over the HTTP client that upstreams are reached by."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from gateway.access.oauth.documents import FETCH_S, Fetched
from gateway.upstream.transport.http_client import HttpClient


class IssuerFetch:
    """Makes one request, answered within some seconds; a redirect is followed within its origin only."""

    def __init__(self, client: HttpClient, *, within_s: float = FETCH_S) -> None:
        self._client = client
        self._within_s = within_s

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        """The answer.

        Raises:
            GatewayError: There is none, or a larger one.
            TimeoutError: There is none soon enough.
        """
        try:
            with anyio.fail_after(self._within_s):
                async with self._client.send(method, url, headers, body) as response:
                    return Fetched(status=response.status, body=await response.read(limit_bytes))
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._within_s:g} s") from None
