"""What a tool counts as for rules, scopes and repeats: less than its server may say of it today."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import orjson

from registry.schema.schemas import canonical_json

Hints = Mapping[str, Any]
# MCP 2025-11-25 and 2026-07-28, "Tools", `ToolAnnotations`: what holds for a tool that does not say.
DEFAULTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
# True of these makes hosts and rules more careful; true of the others opens a tool to more callers.
WARNING: Final = frozenset({"destructiveHint", "openWorldHint"})
NO_HINTS: Final[Hints] = MappingProxyType({})
"""Of a tool that is marked as nothing, as many are."""
# Tools that are gone and may come back with other hints: as many as the largest servers list.
_MAX_GONE: Final = 10_000


def hints_of(annotations: object) -> Hints:
    """Return the hints in the annotations of a tool, in an object that equal hints share."""
    if not isinstance(annotations, Mapping):
        return NO_HINTS
    # Of anything that is not true or false nothing follows.
    hints = {name: hint for name, hint in annotations.items() if name.endswith("Hint") and isinstance(hint, bool)}
    return _shared(canonical_json(hints)) if hints else NO_HINTS


# Four hints are known, each of which is true, false or not there.
@lru_cache(maxsize=81)
def _shared(text: bytes) -> Hints:
    return MappingProxyType(orjson.loads(text))


def with_defaults(hints: Hints) -> dict[str, bool]:
    """Return all four hints of a tool that has these."""
    found = {name: hints[name] if isinstance(hints.get(name), bool) else usual for name, usual in DEFAULTS.items()}
    # The protocol gives this one a meaning only where something is changed at all.
    return {**found, "destructiveHint": found["destructiveHint"] and not found["readOnlyHint"]}


def careful(now: Hints, before: Hints | None) -> Hints:
    """Return what a tool counts as that has other hints than before: of each hint the value that promises less."""
    if before is None or now is before:
        return now
    mine, theirs = with_defaults(now), with_defaults(before)
    lesser = {name: (any if name in WARNING else all)((mine[name], theirs[name])) for name in DEFAULTS}
    return now if lesser == mine else hints_of(lesser)


def first_hints(tools: Iterable[Mapping[str, Any]], known: Mapping[str, Hints]) -> Mapping[str, Hints]:
    """Return the hints that each tool was first listed with; `known` itself where no tool is new.

    Args:
        tools: The definitions of a server, of today.
        known: What was found of it before. Tools that are gone stay in it: one may come back.
    """
    tools = tuple(tools)
    new = {
        name: hints_of(tool.get("annotations"))
        for tool in reversed(tools)
        if isinstance(name := tool.get("name"), str) and name not in known
    }
    if not new:
        return known
    found = {**known, **new}
    if len(found) > len(tools) + _MAX_GONE:
        listed = {tool.get("name") for tool in tools}
        gone = [name for name in found if name not in listed]
        for name in gone[: len(gone) - _MAX_GONE]:
            del found[name]
    return found
