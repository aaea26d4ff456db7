"""Names and parameters of earlier catalogs, for callers that still use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache

from registry.catalog.catalog import CatalogChange, ToolWrapper
from registry.catalog.names import WrapperName
from registry.schema.json_values import without_keys
from registry.schema.schemas import digest

# Removed wrappers and renamed parameters that are remembered, to answer calls that still use them. Each entry keeps a
# whole definition alive: a few kilobytes, so some 10 MB in all.
_MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedWrapper:
    """A wrapper that was removed, and the new one with the same schema, if there is exactly one."""

    wrapper: ToolWrapper
    successor: WrapperName | None


class Drift:
    """A bounded memory of removed wrappers and renamed parameters, fed with the registry's changes."""

    def __init__(self) -> None:
        self._removed: LRUCache[str, RemovedWrapper] = LRUCache(_MAX_REMEMBERED)
        self._renamed: LRUCache[str, Mapping[str, str]] = LRUCache(_MAX_REMEMBERED)

    def record(self, change: CatalogChange) -> None:
        """Remember what one change of the catalog removed and renamed."""
        added = [change.after.resolve(name) for name in change.added]
        for name in change.added:
            self._removed.pop(name, None)  # it is back
        for name in change.removed:
            gone = change.before.resolve(name)
            alike = [new.name for new in added if new.server == gone.server and new.schema_digest == gone.schema_digest]
            # Two candidates would be a guess, and a wrong successor is worse than none.
            self._removed[name] = RemovedWrapper(wrapper=gone, successor=alike[0] if len(alike) == 1 else None)
        for name in change.changed:
            renamed = renamed_parameters(
                change.before.resolve(name).input_schema, change.after.resolve(name).input_schema
            )
            if renamed:
                # Together with earlier ones: callers may be several versions behind.
                self._renamed[name] = {**self._renamed.get(name, {}), **renamed}

    def removed(self, name: str) -> RemovedWrapper | None:
        """Return what is remembered of a wrapper name, or None."""
        return self._removed.get(name)

    def renamed(self, name: str) -> Mapping[str, str]:
        """Return former parameter names of a wrapper, each with the current one."""
        return self._renamed.get(name, {})


def renamed_parameters(before: Any, after: Any) -> dict[str, str]:
    """Return removed parameters, each with the new one of the same schema, where there is exactly one.

    Descriptions and titles are ignored: a renamed parameter usually has a new description.
    """
    old, new = _properties(before), _properties(after)
    gone = {name: _shape_digest(schema) for name, schema in old.items() if name not in new}
    came = {name: _shape_digest(schema) for name, schema in new.items() if name not in old}
    renamed: dict[str, str] = {}
    for name, shape in gone.items():
        alike = [other for other, other_shape in came.items() if other_shape == shape]
        if len(alike) == 1 and sum(other_shape == shape for other_shape in gone.values()) == 1:
            renamed[name] = alike[0]
    return renamed


def _properties(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _shape_digest(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = without_keys(schema, ("description", "title"))
    return digest(schema)
