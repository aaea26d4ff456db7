"""Names and parameters of earlier catalogs, for callers that still use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from registry.catalog.catalog import Catalog, CatalogChange, ToolWrapper
from registry.catalog.names import WrapperName
from registry.catalog.parameter_changes import (
    ParameterChange,
    ParameterPath,
    composed_changes,
    parameter_changes,
)
from registry.schema.json_paths import declared_properties

# Removed wrappers and tools with changed parameters that are remembered, to answer calls that still use them. Each
# entry keeps a whole definition alive: a few kilobytes, so some 10 MB in all.
_MAX_REMEMBERED: Final = 4096

_NO_CHANGES: Final[Mapping[ParameterPath, ParameterChange]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedWrapper:
    """A wrapper that was removed, and what replaced it then, if that is known."""

    wrapper: ToolWrapper
    successor: WrapperName | None


class Drift:
    """A bounded memory of removed wrappers and changed parameters, fed with the registry's changes.

    Attributes:
        knows_parameters: Whether anything is remembered of the parameters of any tool.
    """

    def __init__(self) -> None:
        self.knows_parameters = False
        self._removed: LRUCache[str, RemovedWrapper] = LRUCache(_MAX_REMEMBERED)
        self._names: LRUCache[tuple[str, str], WrapperName] = LRUCache(_MAX_REMEMBERED)
        self._changed: LRUCache[str, Mapping[ParameterPath, ParameterChange]] = LRUCache(_MAX_REMEMBERED)

    def record(self, change: CatalogChange) -> None:
        """Remember what one change of the catalog removed and renamed."""
        added = [change.after.resolve(name) for name in change.added]
        gone = [change.before.resolve(name) for name in change.removed]
        for name in change.added:
            self._removed.pop(name, None)  # it is back
        # Of several that were replaced by several, only a description tells which is which. Where nothing is gone, as
        # at each first listing, nothing is compared.
        candidates = added if gone else []
        by_schema, by_meaning = _Pairs(gone, candidates, _schema), _Pairs(gone, candidates, _meaning)
        for wrapper in gone:
            # The tool itself may be there under another name, because a sibling has come that looks like it.
            renamed = change.after.get_by_tool(wrapper.server, wrapper.tool)
            found = renamed or by_schema.get(wrapper) or by_meaning.get(wrapper)
            successor = found.name if found is not None else None
            self._removed[wrapper.name] = RemovedWrapper(wrapper=wrapper, successor=successor)
            self._names[wrapper.server, wrapper.tool] = wrapper.name
        for name in change.changed:
            was, now = change.before.resolve(name), change.after.resolve(name)
            earlier = self._changed.get(name, _NO_CHANGES)
            is_plain = was.unenforced is None and now.unenforced is None
            if is_plain and not earlier and was.schema_digest == now.schema_digest:
                continue  # its description has changed, as those of thousands may at once: no schema is read for that
            after = now.input_schema
            later = parameter_changes(was.input_schema, after)
            if later or earlier:
                # Together with earlier ones: callers may be several versions behind.
                self._changed[name] = composed_changes(earlier, later, after)
                self.knows_parameters = True

    def removed(self, name: str) -> RemovedWrapper | None:
        """Return what is remembered of a wrapper name, or None."""
        return self._removed.get(name)

    def removed_tool(self, server: str, tool: str) -> RemovedWrapper | None:
        """Return what is remembered of a tool by the name that its upstream gave it, or None."""
        name = self._names.get((server, tool))
        return self._removed.get(name) if name is not None else None

    def successor(self, removed: RemovedWrapper, catalog: Catalog) -> ToolWrapper | None:
        """Return what a removed wrapper is called today, over any number of changes; None if that is not known."""
        seen: set[str] = set()
        following: RemovedWrapper | None = removed
        while following is not None and following.successor is not None and following.successor not in seen:
            current = catalog.get(following.successor)
            if current is not None:
                return current
            seen.add(following.successor)
            following = self._removed.get(following.successor)
        return None

    def changes(self, name: str) -> Mapping[ParameterPath, ParameterChange]:
        """Return what became of former parameters of a wrapper, by the paths that they had."""
        return self._changed.get(name, _NO_CHANGES)


class _Pairs:
    """Which new wrapper is like which that is gone, where there is one of each only."""

    def __init__(
        self, gone: Sequence[ToolWrapper], added: Sequence[ToolWrapper], key: Callable[[ToolWrapper], object]
    ) -> None:
        # Counted once: a server may replace thousands of tools by thousands of others.
        self._key = key
        self._gone = Counter(map(key, gone))
        self._added = Counter(map(key, added))
        self._wrappers = {key(wrapper): wrapper for wrapper in added}

    def get(self, wrapper: ToolWrapper) -> ToolWrapper | None:
        # Two candidates would be a guess, and a wrong successor is worse than none.
        wanted = self._key(wrapper)
        return self._wrappers[wanted] if self._gone[wanted] == self._added[wanted] == 1 else None


def _schema(wrapper: ToolWrapper) -> object:
    # That two tools take no parameters says nothing about either.
    takes_some = bool(declared_properties(wrapper.input_schema, wrapper.input_schema))
    return (wrapper.server, wrapper.schema_digest) if takes_some else _meaning(wrapper)


def _meaning(wrapper: ToolWrapper) -> object:
    return wrapper.server, wrapper.schema_digest, wrapper.definition.get("description")
