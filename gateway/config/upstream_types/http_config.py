"""Upstreams of type http: Streamable HTTP, and HTTP+SSE where a server has only that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from gateway.config.section import WrittenText, fault
from gateway.config.upstream_types.headers_config import HeadersConfig, check_url
from gateway.config.upstream_types.stdio_config import command_and_url


class UrlConfig(HeadersConfig):
    """An MCP server on the network."""

    # Not the type: http and sse are two ways to the same server, which the connector finds by itself.
    identity = ("url",)

    url: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """http, sse: URL of the MCP endpoint."""

    @property
    def address(self) -> str:
        """See `ServerConfig.address`."""
        return self.url

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """See `ServerConfig.check_entry`."""
        if entry.get("command") is not None:
            raise command_and_url() if self.url else fault(f"is {self.type}, which has no command", "stdio", key="type")
        check_url(self.url, "url", "https://example.test/mcp")


class HttpConfig(UrlConfig):
    """An MCP server at a URL; Streamable HTTP is tried first."""

    connector = "gateway.upstream.mcp_connectors:HttpConnector"
    inferred_from = "url"
    spellings = frozenset({"streamable-http", "streamable_http", "streamablehttp"})

    type: Literal["http"] = "http"
