"""Upstreams of type graphql: an endpoint, and a folder of operations that become tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gateway.config.section import WrittenText, fault
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import HeadersConfig, check_url


class GraphqlConfig(HeadersConfig):
    """A GraphQL endpoint and the operations to expose as tools."""

    connector = "gateway.upstream.graphql.graphql_connector:GraphqlConnector"
    inferred_from = "endpoint"
    tolerated_keys = frozenset()
    identity = ("endpoint", "operations", "exclude_mutations", "introspection_tools")
    # `schema_file` does not identify the server, because another file may contain the same schema.
    connection = (*HeadersConfig.connection, "schema_file")
    in_place = (*ServerConfig.in_place, "nullable")

    type: Literal["graphql"] = "graphql"
    endpoint: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """graphql: URL of the endpoint."""
    operations: str | None = None
    """graphql: folder of .graphql and .gql files with one operation each, relative to this file. Each operation becomes
    a tool."""
    schema_file: str | None = Field(default=None, alias="schema")
    """graphql: file with the schema, as SDL or introspection JSON. By default the endpoint is introspected."""
    nullable: Literal["plain", "union"] = "plain"
    """graphql: how arguments that accept null are shown. union: null is one of their types. plain: null is not
    mentioned. The arguments accept null in both cases."""
    exclude_mutations: bool = False
    """graphql: leave out mutations."""
    introspection_tools: bool = False
    """graphql: add the tools get_schema and execute_graphql."""

    @property
    def address(self) -> str:
        return self.endpoint

    @property
    def plain_nulls(self) -> bool:
        return self.nullable == "plain"

    @property
    def local_keys(self) -> tuple[str, ...]:
        paths = (("operations", self.operations), ("schema", self.schema_file))
        return tuple(key for key, path in paths if path is not None)

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        for key in ("command", "url"):
            if entry.get(key) is not None:
                raise fault(f"is graphql, which has no {key}", "endpoint: the URL to send operations to", key="type")
        check_url(self.endpoint, "endpoint", "https://example.test/graphql")
        # Without either key, the server would have no tools.
        if self.operations is None and not self.introspection_tools:
            expected = "a folder of .graphql files, or introspectionTools: true"
            raise fault("is missing", expected, key="operations")
        for key, path in (("operations", self.operations), ("schema", self.schema_file)):
            # Do not check that the folder exists, because it may be created later.
            if path is not None and (not path.strip() or "\0" in path):
                raise fault("is not a path", "a path relative to this file", key=key)
        # GraphQL has no elicitation, so the key would silently have no effect.
        if self.elicitation:
            raise fault("is graphql, which does not support elicitation", "elicitation: false", key="type")

    def with_absolute_paths(self, folder: Path) -> ServerConfig:
        paths = {
            field: str(folder.absolute() / path)
            for field, path in (("operations", self.operations), ("schema_file", self.schema_file))
            if path is not None
        }
        return self.model_copy(update=paths)
