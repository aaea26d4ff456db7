"""Upstreams of type sse: HTTP+SSE of 2024-11-05, without trying Streamable HTTP first."""

from __future__ import annotations

from typing import Literal

from gateway.config.upstream_types.http_config import UrlConfig


class SseConfig(UrlConfig):
    """An MCP server at a URL whose event stream is opened at once."""

    connector = "gateway.upstream.mcp_connectors:SseConnector"

    type: Literal["sse"] = "sse"
