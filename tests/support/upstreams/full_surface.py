"""The lists of the full server: its tools, prompts, resources, templates and capabilities."""

from __future__ import annotations

from typing import Any

Answer = dict[str, Any]

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
KINDS = ("tools", "prompts", "resources")
NAMES = ("Ada", "Alan", "Grace")
TASKS = "io.modelcontextprotocol/tasks"
EXTENSIONS: Answer = {TASKS: {}, "example.com/odd": {"depth": [1, None]}}
CAPABILITY_FOR = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


def _tool(name: str, *required: str, **properties: Any) -> Answer:
    schema: Answer = {"type": "object", "properties": {**properties, "meet": {"type": "integer"}}}
    schema |= {"required": list(required)} if required else {}
    return {"name": name, "title": name.capitalize(), "description": f"Does {name}.", "inputSchema": schema}


_COUNT, _TEXT, _OBJECT = {"type": "integer"}, {"type": "string"}, {"type": "object"}
TOOLS: list[Answer] = [
    _tool("echo"),
    _tool("received"),
    _tool("result", "result", result=_OBJECT),
    _tool("error", "code", "message", code=_COUNT, message=_TEXT, data={}),
    _tool("hang"),
    _tool("progress", "count", count=_COUNT),
    _tool("log", "levels", levels={"type": "array", "items": _TEXT}, data={}),
    _tool("ask", "requests", requests=_OBJECT, complete=_TEXT, endless={"type": "boolean"}),
    _tool("talk", "marker", marker=_TEXT),
    _tool("change", "list", list={"enum": list(KINDS)}),
    _tool("touch", "uri", uri=_TEXT),
    _tool("task", result=_OBJECT, requests=_OBJECT, endless={"type": "boolean"}),
]


def capabilities(modern: bool) -> Answer:
    """Return everything that a server can declare."""
    changing = {"listChanged": True}
    declared: Answer = {
        "tools": changing,
        "prompts": changing,
        "resources": {**changing, "subscribe": True},
        "completions": {},
        "logging": {},
        "experimental": {"example.com/trial": {"on": True}},
    }
    return declared | ({"extensions": EXTENSIONS} if modern else {})


def prompts() -> list[Answer]:
    """Return the prompts."""
    name = {"name": "name", "title": "Whom", "description": "Who is greeted", "required": True, "vendor": 1}
    return [
        {
            "name": "greet",
            "title": "Greet",
            "description": "Greets.",
            "arguments": [name, {"name": "tone"}],
            "vendor": [None],
        },
        {"name": "broken", "arguments": [{"name": "error", "required": True}]},
        {"name": "show", "arguments": [{"name": "messages", "required": True}]},
        {"name": "ask", "description": "Named like a tool.", "arguments": [{"name": "requests"}]},
        {"name": "interview", "arguments": [{"name": "requests", "required": True}]},
    ]


def resources(name: str) -> list[Answer]:
    """Return the resources; the first is one that every such server has."""
    return [
        {"uri": "full://shared", "name": "shared", "mimeType": "text/plain"},
        {"uri": f"full://{name}/note", "name": "note", "title": "A note", "size": 2**40, "vendor": None},
        {"uri": f"full://{name}/pixel", "name": "pixel", "mimeType": "image/png"},
        {"uri": f"full://{name}/guarded", "name": "guarded"},
    ]


def templates(name: str) -> list[Answer]:
    """Return the templates."""
    return [
        {"uriTemplate": f"full://{name}/item/{{id}}", "name": "item", "vendor": {"kept": None}},
        {"uriTemplate": f"full://{name}/box/{{id}}", "name": "box"},
    ]


def extras(kind: str, count: int, name: str = "") -> list[Answer]:
    """Return what changes have added to a list."""
    if kind == "tools":
        return [_tool(f"extra{at}") for at in range(1, count + 1)]
    if kind == "prompts":
        return [{"name": f"extra{at}"} for at in range(1, count + 1)]
    return [{"uri": f"full://{name}/extra{at}", "name": f"extra{at}"} for at in range(1, count + 1)]
