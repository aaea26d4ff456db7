"""Two small MCP servers to try the gateway on.

bank      The `bank` demo: a tool whose schema does not describe its arguments.
calendar  The `calendar-mcp` demo: mail and calendar of two accounts, in memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from datetime import date
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


class Refusal(Exception):
    """The arguments are invalid; the message is shown to the model."""


def read_required(arguments: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return an argument of this type.

    Raises:
        Refusal: The argument is missing or has another type.
    """
    value = arguments.get(key)
    if value is None:
        raise Refusal(f"'{key}' was not provided")
    if not isinstance(value, kind):
        raise Refusal(f"'{key}' must be {'a list' if kind is list else 'text'}")
    return value


def read_day(arguments: Mapping[str, Any], key: str) -> date:
    """Return an argument that is a date, such as 2026-01-31.

    Raises:
        Refusal: The argument is missing or no date.
    """
    text = read_required(arguments, key, str)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Refusal(f"'{key}' must be a date in the form YYYY-MM-DD") from None
