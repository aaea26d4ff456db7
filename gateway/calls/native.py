"""Our own tools: today `invoke_tool`, the generic way to every wrapper."""

from __future__ import annotations

from typing import Any, Final

INVOKE_TOOL: Final[dict[str, Any]] = {
    "name": "invoke_tool",
    "title": "Invoke a tool by server and name",
    "description": (
        "Fallback that calls any tool of any server behind this gateway. Prefer the typed tool "
        "`server__tool` where it is listed: it takes its parameters at the top level. Here they all go "
        "inside `arguments`, as in "
        '{"server": "calendar", "tool": "send_email", "arguments": {"to": ["a@example.test"]}}.'
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "server": {
                "type": "string",
                "description": "The server's alias: the part before `__` in a typed name.",
            },
            "tool": {"type": "string", "description": "The tool's name, without the alias."},
            "arguments": {
                "type": "object",
                "description": "All parameters of the tool, by name. Leave out only for a tool without parameters.",
            },
        },
        "required": ["server", "tool"],
    },
}

NATIVE_TOOLS: Final = (INVOKE_TOOL,)
