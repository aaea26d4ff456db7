"""Two small MCP servers to try the gateway on: a calendar with mail, and a bank without schemas."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp_types import CallToolResult


def run(server: Server[Any]) -> None:
    """Serve on standard input and output until the input ends or a signal asks to stop."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    # The SDK reads stdin in a thread that cannot be interrupted, so an ordinary exit would wait for
    # a next line. Nothing is kept on disk and every answer is flushed: leaving at once loses nothing.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    anyio.run(main)


def answer(text: str, structured: dict[str, Any] | None = None, *, is_error: bool = False) -> CallToolResult:
    """Return a tool result of one text block, and the same facts as data if given."""
    from mcp_types import CallToolResult, TextContent

    content = [TextContent(type="text", text=text)]
    return CallToolResult(content=list(content), structured_content=structured, is_error=is_error)
