"""What changed between two catalogs, remembered for callers who still speak of yesterday."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache

from registry.catalog.catalog import CatalogChange, ToolWrapper
from registry.catalog.names import WrapperName
from registry.schema.schemas import digest

_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A wrapper that is no more, and the one of the same shape that came in its place, if there is one."""

    wrapper: ToolWrapper
    successor: WrapperName | None


class Drift:
    """Yesterday's names and parameters, bounded; kept up to date by the registry's changes."""

    def __init__(self) -> None:
        self._removed: LRUCache[str, Removed] = LRUCache(_REMEMBERED)
        self._renamed: LRUCache[str, Mapping[str, str]] = LRUCache(_REMEMBERED)

    def note(self, change: CatalogChange) -> None:
        """Take in one change of the catalog."""
        added = [change.after.resolve(name) for name in change.added]
        for name in change.added:
            self._removed.pop(name, None)
        for name in change.removed:
            gone = change.before.resolve(name)
            heirs = [one.name for one in added if one.server == gone.server and one.schema_digest == gone.schema_digest]
            self._removed[name] = Removed(wrapper=gone, successor=heirs[0] if len(heirs) == 1 else None)
        for name in change.changed:
            renamed = renamed_parameters(
                change.before.resolve(name).input_schema, change.after.resolve(name).input_schema
            )
            if renamed:
                self._renamed[name] = {**self._renamed.get(name, {}), **renamed}

    def removed(self, name: str) -> Removed | None:
        """What is known of a name that is no more."""
        return self._removed.get(name)

    def renamed(self, name: str) -> Mapping[str, str]:
        """Old parameter names of a wrapper, each with today's."""
        return self._renamed.get(name, {})


def renamed_parameters(before: Any, after: Any) -> dict[str, str]:
    """Parameters that went, each with the one that came with the same shape; only where it is no guess.

    Descriptions and titles do not count: a renamed parameter is usually described anew.
    """
    old, new = _properties(before), _properties(after)
    gone = {name: _shape(schema) for name, schema in old.items() if name not in new}
    came = {name: _shape(schema) for name, schema in new.items() if name not in old}
    renamed: dict[str, str] = {}
    for name, shape in gone.items():
        alike = [other for other, its in came.items() if its == shape]
        if len(alike) == 1 and sum(its == shape for its in gone.values()) == 1:
            renamed[name] = alike[0]
    return renamed


def _properties(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _shape(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key not in ("description", "title")}
    return digest(schema)
