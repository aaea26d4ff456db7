"""One wrapper of one tool, as a catalog has it."""

from __future__ import annotations

from typing import Any

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape

_SERVER = ServerName("calendar-mcp")


def wrapper_of(tool: str, schema: Any) -> ToolWrapper:
    """Return the wrapper `calendar-mcp__{tool}`."""
    listing = ServerListing(server=_SERVER, epoch=1, tools=({"name": tool, "inputSchema": schema},))
    return build_catalog({_SERVER: listing}, Shape(), version=1).resolve(f"{_SERVER}__{tool}")
