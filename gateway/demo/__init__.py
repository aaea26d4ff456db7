"""Two small MCP servers to try the gateway on.

bank      The `bank` demo: a tool whose schema does not describe its arguments.
calendar  The `calendar-mcp` demo: mail and calendar of two accounts, in memory.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp_types import CallToolResult


def run(server: Server[Any]) -> None:
    """Serve over stdio until the input ends or the process receives SIGTERM or SIGINT."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    # The SDK reads stdin in a thread that cannot be interrupted, so a normal exit would wait for another line. Exiting
    # immediately loses nothing, because every response has been flushed and nothing is stored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    anyio.run(main)


def answer(text: str, structured: dict[str, Any] | None = None, *, is_error: bool = False) -> CallToolResult:
    """Return a tool result with a text block, and with structured content if given."""
    from mcp_types import CallToolResult, TextContent

    content = [TextContent(type="text", text=text)]
    return CallToolResult(content=list(content), structured_content=structured, is_error=is_error)
