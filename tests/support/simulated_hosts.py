"""Simulations of hosts according to observations, written independently of the rules under test.

How each writes names, what it truncates, confuses and drops, and what makes it lose the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corpus.servers import listings
from support.dialect_rules import nodes

KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host as it was seen to behave.

    Attributes:
        form: The form in which the host writes a name.
        kept: The characters that it does not replace by `_`.
        limit: Characters of the whole name; longer ones are cut.
        namesakes: The treatment of two tools with equal names.
        drops: The parts of a schema that make the host drop the tool.
        fails: The parts of a schema that make the host drop the whole list.
        description: Characters of a description that it shows.
        most: The most tools that the host accepts; the lists of the gateway have one page.
    """

    form: str = "{tool}"
    kept: str = "A-Za-z0-9_-"
    limit: int = 10_000
    namesakes: str = "last"
    description: int = 10_000_000
    most: int = 10_000
    drops: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()

    def offered(self, tools: list[dict[str, Any]], label: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return what the model sees, by the name that it sees: the name to call, and the definition."""
        seen: dict[str, tuple[str, dict[str, Any]]] = {}
        for tool in tools[: self.most]:
            flaws = set(flaws_of(tool["inputSchema"]))
            if flaws & set(self.fails):
                return {}
            if flaws & set(self.drops):
                continue
            label_kept, tool_kept = (re.sub(f"[^{self.kept}]", "_", part) for part in (label, tool["name"]))
            shown = self.form.format(label=label_kept, tool=tool_kept)[: self.limit]
            if shown in seen:
                if self.namesakes == "lost":
                    return {}
                if self.namesakes == "first":
                    continue
            seen[shown] = (tool["name"], {**tool, "description": tool["description"][: self.description]})
        return seen


def flaws_of(schema: Any) -> list[str]:
    found = ["root composition"] if schema.keys() & {"anyOf", "oneOf", "allOf"} else []
    found += ["root type"] if schema.get("type") != "object" else []
    for node in nodes(schema):
        properties = node.get("properties", {})
        found += ["boolean property"] if any(isinstance(one, bool) for one in properties.values()) else []
        found += ["items list"] if isinstance(node.get("items"), list) else []
        found += ["odd key"] if not all(KEY.fullmatch(name) for name in properties) else []
        found += ["reference"] if "$ref" in node else []
        found += ["unknown to gemini"] if node.keys() & {"$defs", "$schema", "additionalProperties"} else []
        found += ["no items"] if node.get("type") == "array" and "items" not in node else []
        found += ["open"] if node.get("type") == "object" and node.get("additionalProperties") is not False else []
        found += ["optional"] if set(properties) - set(node.get("required", ())) else []
    return found


ALL = ("root type", "boolean property")
HOSTS: Mapping[str, Host] = {
    "claude-code": Host(
        form="mcp__{label}__{tool}",
        limit=64,
        namesakes="first",
        description=2_048,
        drops=("root composition",),
        fails=(*ALL, "odd key"),
    ),
    "claude-desktop": Host(
        form="mcp__{label}__{tool}", limit=64, fails=(*ALL, "root composition", "odd key"), description=2_048
    ),
    "codex": Host(
        form="mcp__{label}__{tool}", kept="A-Za-z0-9_", limit=128, namesakes="lost", drops=("items list",), fails=ALL
    ),
    "gemini-cli": Host(form="mcp_{label}_{tool}", kept="A-Za-z0-9_.:-", limit=63, fails=ALL),
    "qwen-code": Host(form="mcp__{label}__{tool}", kept="A-Za-z0-9_.-", limit=63, namesakes="lost", fails=ALL),
    "opencode": Host(form="{label}_{tool}", fails=ALL),
    "cursor": Host(form="{label}{tool}", limit=59, fails=ALL),
    "vscode": Host(form="mcp_{label}_{tool}", limit=64, most=128, fails=ALL),
    "anthropic": Host(limit=64, fails=(*ALL, "root composition", "odd key")),
    "openai": Host(limit=64, most=128, description=1_024, fails=ALL),
    "openai-strict": Host(limit=64, most=128, description=1_024, fails=(*ALL, "root composition", "open", "optional")),
    "gemini": Host(
        limit=64, kept="A-Za-z0-9_.:-", fails=(*ALL, "reference", "unknown to gemini", "no items", "items list")
    ),
}


def servers_for(host: Host) -> dict[str, list[dict[str, Any]]]:
    """Return as many servers as a host has places for tools."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    for server, tools in sorted(listings().items(), key=lambda item: len(item[1])):
        if sum(map(len, chosen.values())) + len(tools) <= host.most:
            chosen[server] = tools
    return chosen


def with_nulls(value: Any, schema: dict[str, Any]) -> Any:
    """Return the arguments of a model that has to give every declared parameter."""
    schema = schema.get("anyOf", [schema])[0]
    if isinstance(value, list) and "items" in schema:
        return [with_nulls(one, schema["items"]) for one in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    return {name: with_nulls(value.get(name), below) for name, below in schema["properties"].items()}
