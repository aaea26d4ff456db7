"""What of a server is locked: what it is started as or reached at, and everything that it has a model read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from registry.lock.digests import tool_digests

LockedKind = Literal["tools", "prompts", "resourceTemplates"]
# Not resources: those are what a server has at the moment, and change with what it is used for.
LOCKED_KINDS: Final[tuple[LockedKind, ...]] = ("tools", "prompts", "resourceTemplates")
KEYS: Final[Mapping[LockedKind, str]] = {
    "tools": "name",
    "prompts": "name",
    "resourceTemplates": "uriTemplate",
}

Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a server lists, after intake, as far as it is locked.

    Attributes:
        identity: What is started or connected to: package and version, or origin and issuer.
        instructions: Its own, for models.
        items: By kind, the definitions by the names that the server gives them.
    """

    identity: str = ""
    instructions: str | None = None
    items: Mapping[LockedKind, Mapping[str, Definition]] = field(default_factory=dict)

    def of(self, kind: LockedKind) -> Mapping[str, Definition]:
        """Return the definitions of one kind by name."""
        return self.items.get(kind, {})


def by_name(definitions: Iterable[Definition], kind: LockedKind) -> dict[str, Definition]:
    """Return definitions by what identifies them; of several with one name the first, as everywhere."""
    found: dict[str, Definition] = {}
    for definition in definitions:
        name = definition.get(KEYS[kind])
        if isinstance(name, str):
            found.setdefault(name, definition)
    return found


def digests_of(kind: LockedKind, definition: Definition) -> dict[str, str]:
    """Return the digests of an item of any kind: `text`, `input`, `output` and `hints`."""
    return tool_digests(as_tool(kind, definition))


def as_tool(kind: LockedKind, definition: Definition) -> Definition:
    """Return an item as if it were a tool, so that one set of rules decides about all kinds."""
    if kind == "tools":
        return definition
    if kind == "resourceTemplates":
        # Its URI identifies it, so that its name is one more text.
        shown = {key: value for key, value in definition.items() if key not in (KEYS[kind], "annotations")}
        return {**shown, "_name": definition.get("name"), "_annotations": definition.get("annotations")}
    arguments = definition.get("arguments")
    named = [one for one in arguments if isinstance(one, dict)] if isinstance(arguments, list) else []
    schema = {
        "type": "object",
        "properties": {
            str(one.get("name")): {key: value for key, value in one.items() if key not in ("name", "required")}
            for one in named
        },
        "required": [str(one.get("name")) for one in named if one.get("required") is True],
        "additionalProperties": False,
    }
    return {**{key: value for key, value in definition.items() if key != "arguments"}, "inputSchema": schema}
