"""The session with a GraphQL endpoint, which lists tools and sends calls."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

import anyio

from gateway.process.tasks import run_in_thread
from gateway.protocol.gateway_errors import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError, error_result
from gateway.upstream.graphql import graphql_schema
from gateway.upstream.graphql.responses import Endpoint, is_request_error, response_of, result_of
from gateway.upstream.graphql.tool_set import ToolSet, ToolSetBuilder
from gateway.upstream.session import ALL_KINDS, OnListChanged, RawListing, UpstreamCall, WatchList
from registry.catalog.catalog import ListKind
from registry.schema.display_text import excerpt

# The minimum interval between introspections (requests for the schema) after rejected documents. It is needed because
# the introspection of a large schema can take several seconds.
_RECHECK_S: Final = 30.0
TOOLS: Final[tuple[ListKind, ...]] = ("tools",)


class GraphqlSession:
    """Implements `UpstreamSession` for an endpoint; lasts until the endpoint is found to be unreachable.

    GraphQL has no handshake, so the session opens without a request.

    Attributes:
        abandoned: Whether the endpoint was found to be unreachable.
    """

    protocol_version = "graphql"
    capabilities: Final[dict[str, Any]] = {"tools": {}}
    server_info: Final[dict[str, Any]] = {"name": "GraphQL"}
    instructions = None
    independent_requests = True
    # False, because the gateway notices changes of the schema only by polling.
    announces_changes = False

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        builder: ToolSetBuilder,
        on_list_changed: OnListChanged,
        exclude_mutations: bool,
        introspects: bool,
    ) -> None:
        """Create a session.

        Args:
            endpoint: The endpoint that receives the documents.
            builder: Builds the tools; outlives this session.
            on_list_changed: Called when the tools have to be listed again.
            exclude_mutations: Whether to reject mutations.
            introspects: Whether the schema comes from the endpoint. If so, the schema is fetched again after the
                endpoint has rejected a document.
        """
        self._endpoint = endpoint
        self._builder = builder
        self._on_list_changed = on_list_changed
        self._exclude_mutations = exclude_mutations
        self._introspects = introspects
        self._listed: ToolSet | None = None
        self._recheck_schema = False
        self._rechecked_s = -_RECHECK_S
        self.abandoned = False

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """Return the listing; query the endpoint only if its schema may have changed."""
        # After files have changed, the caller requests only `tools`; this does not require a new copy of the schema.
        introspect, self._recheck_schema = frozenset(kinds) == ALL_KINDS or self._recheck_schema, False
        tool_set = await self._builder.renew(self._endpoint, introspect=introspect, polled=polled, limit_s=limit_s)
        unchanged = tool_set is self._listed
        self._listed = tool_set
        return RawListing(
            tools=None if unchanged else list(tool_set.tools),
            prompts_and_resources={},
            capabilities=self.capabilities,
            ttl_ms=None,
            scope="public",
            refused=tool_set.refused,
            noted=tool_set.noted,
        )

    async def send(self, call: UpstreamCall) -> Any:
        """Send a call; `tools/call` is the only supported method."""
        if call.method != "tools/call":
            raise RpcError(METHOD_NOT_FOUND, f"a GraphQL endpoint has no {excerpt(call.method, 100)}")
        tool_set, name = self._builder.tool_set, call.params.get("name")
        arguments = call.params.get("arguments") or {}
        operation = tool_set.operations.get(name) if tool_set is not None and isinstance(name, str) else None
        if operation is not None:
            payload: dict[str, Any] = {"query": operation.text, "variables": arguments}
            if operation.operation_name is not None:
                payload["operationName"] = operation.operation_name
            return await self._post(payload, call)
        if tool_set is None or not any(tool["name"] == name for tool in tool_set.tools):
            raise RpcError(INVALID_PARAMS, f"there is no tool {excerpt(str(name), 128)}")
        # Introspection tools run in a thread, because printing a schema or parsing a document may take long.
        if name == graphql_schema.GET_SCHEMA:
            return await run_in_thread(partial(graphql_schema.get_schema_result, tool_set.schema, arguments))
        prepared = await run_in_thread(
            partial(graphql_schema.payload_of, arguments, exclude_mutations=self._exclude_mutations)
        )
        if isinstance(prepared, str):
            return error_result(f"Not sent: {prepared}")
        return await self._post(prepared, call)

    async def notify(self, method: str) -> None:
        """Do nothing: a GraphQL endpoint accepts no notifications."""

    async def watch(self, watch_list: WatchList | None) -> None:
        """Do nothing: the connector watches the files, and an endpoint announces no changes."""

    async def wait_closed(self) -> str:
        """Wait forever: the session has no connection that could end."""
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    @property
    def calls_need_listing(self) -> bool:
        """True if the documents that calls send have not been loaded yet."""
        return self._builder.tool_set is None

    def abandon(self) -> None:
        self.abandoned = True

    async def _post(self, payload: dict[str, Any], call: UpstreamCall) -> dict[str, Any]:
        response = response_of(await self._endpoint.post(payload, trace=call.trace))
        if is_request_error(response):
            self._schema_may_have_changed()
        return result_of(response)

    def _schema_may_have_changed(self) -> None:
        now_s = anyio.current_time()
        if self._introspects and now_s - self._rechecked_s >= _RECHECK_S:
            self._recheck_schema, self._rechecked_s = True, now_s
            self._on_list_changed(TOOLS)
