"""Upstreams of type graphql: an endpoint, and a folder of operations that become tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gateway.config.section import WrittenText, fault
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.headers_config import HeadersConfig, check_url


class GraphqlConfig(HeadersConfig):
    """An endpoint and the operations that are sent to it."""

    connector = "gateway.upstream.graphql.connector:GraphqlConnector"
    inferred_from = "endpoint"
    tolerated_keys = frozenset()
    identity = ("endpoint", "operations", "exclude_mutations", "introspection_tools")
    # Another file with the schema may well hold the same one.
    connection = (*HeadersConfig.connection, "schema_file")
    in_place = (*ServerConfig.in_place, "nullable")

    type: Literal["graphql"] = "graphql"
    endpoint: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """graphql: URL that operations are sent to."""
    operations: str | None = None
    """graphql: folder of .graphql and .gql files with one operation each, relative to this file."""
    schema_file: str | None = Field(default=None, alias="schema")
    """graphql: file with the schema, as SDL or as introspection JSON. By default the endpoint is asked for it."""
    nullable: Literal["plain", "union"] = "plain"
    """graphql: union shows null as a type of arguments that accept it; plain leaves it out. Null is accepted either
    way."""
    exclude_mutations: bool = False
    """graphql: whether mutations are left out."""
    introspection_tools: bool = False
    """graphql: whether to add the tools get_schema and execute_graphql."""

    @property
    def address(self) -> str:
        """See `ServerConfig.address`."""
        return self.endpoint

    @property
    def plain_nulls(self) -> bool:
        """See `ServerConfig.plain_nulls`."""
        return self.nullable == "plain"

    @property
    def local_keys(self) -> tuple[str, ...]:
        """See `ServerConfig.local_keys`."""
        paths = (("operations", self.operations), ("schema", self.schema_file))
        return tuple(key for key, path in paths if path is not None)

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """See `ServerConfig.check_entry`."""
        for key in ("command", "url"):
            if entry.get(key) is not None:
                raise fault(f"is graphql, which has no {key}", "endpoint: the URL that operations go to", key="type")
        check_url(self.endpoint, "endpoint", "https://example.test/graphql")
        # Without either there is no tool at all.
        if self.operations is None and not self.introspection_tools:
            expected = "a folder of .graphql files, or introspectionTools: true"
            raise fault("is missing", expected, key="operations")
        for key, path in (("operations", self.operations), ("schema", self.schema_file)):
            # Whether it exists is no question of the file: a folder that appears later is taken then.
            if path is not None and (not path.strip() or "\0" in path):
                raise fault("is no path", "where it is, relative to this file", key=key)
        # A GraphQL endpoint has no way to ask: the key would be without effect, and its author would not know.
        if self.elicitation:
            raise fault("is graphql, which asks nobody", "elicitation: false", key="type")

    def with_absolute_paths(self, folder: Path) -> ServerConfig:
        """See `ServerConfig.with_absolute_paths`."""
        paths = {
            field: str(folder.absolute() / path)
            for field, path in (("operations", self.operations), ("schema_file", self.schema_file))
            if path is not None
        }
        return self.model_copy(update=paths)
