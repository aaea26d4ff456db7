"""What a link sees of a GraphQL endpoint: tools to list, calls to send."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import anyio

from gateway.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError, error_result
from gateway.upstream.graphql import exploring
from gateway.upstream.graphql.answers import is_request_error, response_of, result_of
from gateway.upstream.graphql.aside import run_aside
from gateway.upstream.graphql.endpoint import Endpoint
from gateway.upstream.graphql.library import Library, Shelf
from gateway.upstream.mcp_session import ALL_KINDS, RawListing, UpstreamCall, UpstreamSession
from registry.catalog.catalog import ListKind
from registry.schema.text import excerpt

# An endpoint that refuses document after document is asked for its schema only so often.
_DOUBT_S: Final = 30.0


class GraphqlSession(UpstreamSession):
    """One span of time in which the endpoint is thought to be there; nothing is negotiated and nothing is kept."""

    def __init__(
        self, *, server: str, endpoint: Endpoint, library: Library, exclude_mutations: bool, asks: bool
    ) -> None:
        """Serve the tools of a library.

        Args:
            server: The alias.
            endpoint: Where documents go.
            library: What they are made of; it outlives this session.
            exclude_mutations: No mutation is sent.
            asks: The schema is the endpoint's own word, and is doubted when it refuses a document.
        """
        super().__init__(
            server=server,
            channel=endpoint,
            era="handshake",
            version="graphql",
            capabilities={"tools": {}},
            server_info={"name": "GraphQL"},
            instructions=None,
        )
        self._endpoint = endpoint
        self._library = library
        self._exclude_mutations = exclude_mutations
        self._asks = asks
        self._listed: Shelf | None = None
        self._doubted = False
        self._doubted_s = -_DOUBT_S

    async def list_all(
        self, kinds: Iterable[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """See `UpstreamSession.list_all`; where only files have changed, the endpoint is not asked."""
        ask, self._doubted = frozenset(kinds) == ALL_KINDS or self._doubted, False
        shelf = await self._library.renew(self._endpoint, ask=ask, polled=polled, limit_s=limit_s)
        unchanged = shelf is self._listed
        self._listed = shelf
        return RawListing(
            tools=None if unchanged else list(shelf.tools),
            offerings={},
            capabilities=self.capabilities,
            ttl_ms=None,
            scope="public",
            refused=shelf.refused,
            noted=shelf.noted,
        )

    async def send(self, call: UpstreamCall) -> Any:
        """See `UpstreamSession.send`; the only method is `tools/call`."""
        if call.method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, f"a GraphQL endpoint has no {excerpt(call.method, 100)}")
        shelf, name = self._library.shelf, call.params.get("name")
        arguments = call.params.get("arguments") or {}
        operation = shelf.operations.get(name) if shelf is not None and isinstance(name, str) else None
        if operation is not None:
            payload: dict[str, Any] = {"query": operation.text, "variables": arguments}
            if operation.operation_name is not None:
                payload["operationName"] = operation.operation_name
            return await self._answered(payload, call)
        if shelf is None or not any(one["name"] == name for one in shelf.tools):
            raise RpcError(INVALID_PARAMS, f"there is no tool {excerpt(str(name), 128)}")
        if name == exploring.GET_SCHEMA:
            return await run_aside(partial(exploring.tell_schema, shelf.schema, arguments))
        made = await run_aside(partial(self._payload_of, arguments))
        return error_result(f"Not sent: {made}") if isinstance(made, str) else await self._answered(made, call)

    def _payload_of(self, arguments: dict[str, Any]) -> dict[str, Any] | str:
        return exploring.payload_of(arguments, exclude_mutations=self._exclude_mutations)

    async def _answered(self, payload: dict[str, Any], call: UpstreamCall) -> dict[str, Any]:
        response = response_of(await self._endpoint.post(payload, trace=call.trace))
        if is_request_error(response):
            self._doubt()
        return result_of(response)

    def _doubt(self) -> None:
        """Ask for the schema again: it may have changed under the document."""
        now_s = anyio.current_time()
        if self._asks and now_s - self._doubted_s >= _DOUBT_S:
            self._doubted, self._doubted_s = True, now_s
            self.files_changed()

    def files_changed(self) -> None:
        """Have the tools listed again soon."""
        self.hearing.dirty.add("tools")
        self.hearing.changed.set()
