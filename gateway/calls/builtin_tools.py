"""Tools and a prompt of the gateway itself: `invoke_tool`, the search tools, and a manual of all tools."""

from __future__ import annotations

from typing import Any, Final

from registry.arguments.coercion import parse_container
from registry.catalog.catalog import Catalog
from registry.catalog.overrides import usage_text
from registry.dialects.client_profiles import DIALECTS
from registry.views.view import View

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

FIND_TOOLS: Final[dict[str, Any]] = {
    "name": "find_tools",
    "title": "Find tools",
    "description": (
        "Searches the tools behind this gateway, of which only some are listed here. Say in a few words what you "
        "want to do, as in `send an email`. Answers with the typed names, descriptions and full schemas of the best "
        "matches; call one directly by its typed name, or through invoke_tool where a new name is refused."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What you want to do, in a few words."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "At most so many (default 5)."},
        },
        "required": ["query"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
LIST_SERVERS: Final[dict[str, Any]] = {
    "name": "list_servers",
    "title": "List servers",
    "description": "Lists the servers behind this gateway with the number of their tools, listed here or not.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
GET_SERVER_DETAILS: Final[dict[str, Any]] = {
    "name": "get_server_details",
    "title": "Get details of a server",
    "description": (
        "Tells what a server behind this gateway is for, and names its tools with a line about each; with `schemas` "
        "also how to call each of them."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "server": {"type": "string", "description": "The alias: the part before `__` in a typed name."},
            "schemas": {"type": "boolean", "description": "Whether to show full definitions (default false)."},
        },
        "required": ["server"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}

BUILTIN_TOOLS: Final = (INVOKE_TOOL, GET_SERVER_DETAILS)
# For dialects without objects of arbitrary members.
_ARGUMENTS_AS_TEXT: Final = {
    "type": "string",
    "description": (
        "All parameters of the tool, by name, as the text of one JSON object. Null only for a tool without parameters."
    ),
}
SEARCH_TOOLS: Final = (FIND_TOOLS, LIST_SERVERS)

GATEWAY_TOOLS: Final[dict[str, Any]] = {
    "name": "gateway_tools",
    "title": "Tools behind this gateway",
    "description": "Every tool behind this gateway with its arguments, as text for a model.",
    "arguments": [{"name": "server", "description": "Only the tools of this server.", "required": False}],
}

BUILTIN_PROMPTS: Final = (GATEWAY_TOOLS,)
# MCP 2025-11-25 and 2026-07-28, "Completion": at most 100 values in a response.
_MAX_COMPLETIONS: Final = 100


def always_listed(dialect: str) -> tuple[dict[str, Any], ...]:
    """The builtin tools that every list has, in a dialect.

    A strict dialect has no objects with arbitrary members. There the arguments of `invoke_tool` are a JSON text, which
    `parse_text_arguments` reads.
    """
    if not DIALECTS[dialect].strict:
        return BUILTIN_TOOLS
    schema = INVOKE_TOOL["inputSchema"]
    properties = {**schema["properties"], "arguments": _ARGUMENTS_AS_TEXT}
    return ({**INVOKE_TOOL, "inputSchema": {**schema, "properties": properties}}, GET_SERVER_DETAILS)


def parse_text_arguments(sent: object, dialect: str) -> object:
    """Return the arguments of `invoke_tool` with a JSON text parsed, where the dialect asks for one."""
    text = sent.get("arguments") if isinstance(sent, dict) and DIALECTS[dialect].strict else None
    read = parse_container(text) if isinstance(text, str) else None
    return {**sent, "arguments": read} if isinstance(sent, dict) and isinstance(read, dict) else sent


def tool_manual(view: View, arguments: object) -> dict[str, Any]:
    """The result of `prompts/get` for our own prompt: a manual of all tools in the view, listed or not."""
    server = arguments.get("server") if isinstance(arguments, dict) else None
    chosen = server if isinstance(server, str) and server else None
    shown = [entry.definition for entry in view.entries if chosen in (None, entry.server)]
    text = "\n\n".join(map(usage_text, shown)) or "There is no such tool."
    return {
        "description": GATEWAY_TOOLS["description"],
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }


def complete_server(catalog: Catalog, argument: object) -> dict[str, Any]:
    """The result of `completion/complete` for the argument of our own prompt."""
    typed = argument.get("value") if isinstance(argument, dict) else None
    begun = typed if isinstance(typed, str) else ""
    values = sorted(server for server in catalog.servers if server.startswith(begun))
    shown: list[str] = [*values[:_MAX_COMPLETIONS]]
    return {"completion": {"values": shown, "total": len(values), "hasMore": len(values) > len(shown)}}
