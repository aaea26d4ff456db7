"""Names and parameters from earlier catalogs, for callers that still use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cachetools import LRUCache

from registry.catalog.catalog import Catalog, CatalogChange, ToolWrapper
from registry.catalog.names import WrapperName
from registry.schema.json_paths import declared_properties
from registry.schema.json_values import without_keys
from registry.schema.schemas import digest

# Stands for the items of an array in a path. A property is very unlikely to have this name.
ITEMS: Final = "[ ]"
# The deepest parameter whose change is reported. Callers can see deeper parameters in the schema that an error shows.
_MAX_DEPTH: Final = 6
# Maximum number of changes that are reported for a tool. The largest tool in `tests/corpus` has 55 parameters; a tool
# with more than 200 changes is a different tool.
_MAX_CHANGES: Final = 200

# Property names from the root inwards, with `ITEMS` between an array and the properties of its items.
ParameterPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """The change of one parameter.

    Attributes:
        kind: Renamed, removed, given another type, or newly required (including new required parameters).
        now: The current name or type; empty for a removed or required parameter.
        was: The former type, if the type changed.
        certain: True if a renamed parameter is certainly the same parameter; false if only its schema is the same.
    """

    kind: Literal["renamed", "removed", "retyped", "required"]
    now: str = ""
    was: str = ""
    certain: bool = False


def parameter_changes(before: Any, after: Any) -> dict[ParameterPath, ParameterChange]:
    """Return the changes of a schema's parameters, keyed by their former paths.

    A removed parameter counts as renamed if exactly one new parameter, and no other removed parameter, has the same
    schema (without title and description). The renaming is certain if the description is also equal, or if the names
    differ only in case and separators.
    """
    changes: dict[ParameterPath, ParameterChange] = {}
    for path, change in _changes(before, after, ()):
        changes[path] = change
        if len(changes) >= _MAX_CHANGES:
            break
    return changes


def composed_changes(
    earlier: Mapping[ParameterPath, ParameterChange], later: Mapping[ParameterPath, ParameterChange], schema: Any
) -> dict[ParameterPath, ParameterChange]:
    """Combine two successive sets of changes.

    Args:
        earlier: The earlier changes, which may already combine several sets.
        schema: The schema after both sets of changes.
    """
    changes: dict[ParameterPath, ParameterChange] = {}
    for path, change in earlier.items():
        combined = _follow_change(path, change, later)
        # If a former name is in use again, it now refers to the new parameter.
        if combined.kind in ("retyped", "required") or not _declares(schema, path):
            changes[path] = combined
    for path, change in later.items():
        changes.setdefault(path, change)
    return dict(list(changes.items())[-_MAX_CHANGES:])


def _follow_change(
    path: ParameterPath, change: ParameterChange, later: Mapping[ParameterPath, ParameterChange]
) -> ParameterChange:
    if change.kind == "removed":
        return change
    if change.kind in ("retyped", "required"):
        return later.get(path, change)
    then = later.get((*path[:-1], change.now), change)
    if then.kind == "renamed" and then is not change:
        return replace(then, certain=then.certain and change.certain)
    return then if then.kind == "removed" else change


def _changes(before: Any, after: Any, path: ParameterPath) -> Iterator[tuple[ParameterPath, ParameterChange]]:
    old, new = _properties(before), _properties(after)
    removed = {name: _shape_digest(schema) for name, schema in old.items() if name not in new}
    added = {name: _shape_digest(schema) for name, schema in new.items() if name not in old}
    rename_targets: set[str] = set()
    for name, shape in removed.items():
        alike = [candidate for candidate, other_shape in added.items() if other_shape == shape]
        if len(alike) == 1 and sum(other_shape == shape for other_shape in removed.values()) == 1:
            [now] = alike
            rename_targets.add(now)
            yield (
                (*path, name),
                ParameterChange(kind="renamed", now=now, certain=_is_same_parameter(name, old, now, new)),
            )
        else:
            yield (*path, name), ParameterChange(kind="removed")
    for name in old:
        if name in new:
            yield from _property_changes(old[name], new[name], (*path, name))
    if old:  # callers cannot have relied on a schema that declared no parameters
        for name in _required_names(after) - _required_names(before) - rename_targets:
            # A parameter that also changed its type is already reported as retyped.
            if name in new and (name not in old or _type_of(old[name]) == _type_of(new[name])):
                yield (*path, name), ParameterChange(kind="required")


def _property_changes(before: Any, after: Any, path: ParameterPath) -> Iterator[tuple[ParameterPath, ParameterChange]]:
    if before == after or not isinstance(before, dict) or not isinstance(after, dict):
        return
    was, now = _type(before), _type(after)
    if was != now and was and now:
        yield path, ParameterChange(kind="retyped", now=now, was=was)
    elif len(path) < _MAX_DEPTH:
        yield from _changes(before, after, path)
        yield from _property_changes(before.get("items"), after.get("items"), (*path, ITEMS))


def _is_same_parameter(name: str, old: Mapping[str, Any], now: str, new: Mapping[str, Any]) -> bool:
    if _folded_name(name) == _folded_name(now):
        return True
    described = _description(old[name])
    return bool(described) and described == _description(new[now])


def _folded_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _description(schema: Any) -> str:
    description = schema.get("description") if isinstance(schema, dict) else None
    return description.strip() if isinstance(description, str) else ""


def _declares(schema: Any, path: ParameterPath) -> bool:
    for step in path:
        if step == ITEMS:
            schema = schema.get("items") if isinstance(schema, dict) else None
        elif step in (properties := _properties(schema)):
            schema = properties[step]
        else:
            return False
    return True


def _required_names(schema: Any) -> set[str]:
    required = schema.get("required") if isinstance(schema, dict) else None
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


def _type_of(schema: Any) -> str:
    return _type(schema) if isinstance(schema, dict) else ""


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind or "")


def _properties(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _shape_digest(schema: Any) -> str:
    # Ignore the description, because a renamed parameter usually has a new one.
    if isinstance(schema, dict):
        schema = without_keys(schema, ("description", "title"))
    return digest(schema)


# Maximum number of removed wrappers, and of changed tools, that are remembered to answer calls that still use their
# former names or parameters. An entry keeps one definition alive (a few kilobytes), so all entries use about 10 MB in
# total.
_MAX_REMEMBERED: Final = 4096

_NO_CHANGES: Final[Mapping[ParameterPath, ParameterChange]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedWrapper:
    """A removed wrapper, and its replacement at that time, if known."""

    wrapper: ToolWrapper
    successor: WrapperName | None


class Drift:
    """A bounded memory of removed wrappers and changed parameters, filled from the registry's changes.

    Attributes:
        knows_parameters: True if any parameter changes are remembered.
    """

    def __init__(self) -> None:
        self.knows_parameters = False
        self._removed: LRUCache[str, RemovedWrapper] = LRUCache(_MAX_REMEMBERED)
        self._names: LRUCache[tuple[str, str], WrapperName] = LRUCache(_MAX_REMEMBERED)
        self._changed: LRUCache[str, Mapping[ParameterPath, ParameterChange]] = LRUCache(_MAX_REMEMBERED)

    def record(self, change: CatalogChange) -> None:
        """Remember the wrappers that a new catalog has removed or changed."""
        added = [change.after.resolve(name) for name in change.added]
        removed = [change.before.resolve(name) for name in change.removed]
        for name in change.added:
            self._removed.pop(name, None)  # available again
        # If several new wrappers replace several removed wrappers, descriptions are needed to match them. Skip the
        # comparison if nothing was removed, which is the case for the first listing of every server.
        candidates = added if removed else []
        by_schema, by_description = (
            _Pairs(removed, candidates, _schema_key),
            _Pairs(removed, candidates, _description_key),
        )
        for wrapper in removed:
            # The same tool may have a new name now, because another tool of its server has a similar name.
            renamed = change.after.by_tool.get((wrapper.server, wrapper.tool))
            replacement = renamed or by_schema.get(wrapper) or by_description.get(wrapper)
            successor = replacement.name if replacement is not None else None
            self._removed[wrapper.name] = RemovedWrapper(wrapper=wrapper, successor=successor)
            self._names[wrapper.server, wrapper.tool] = wrapper.name
        for name in change.changed:
            was, now = change.before.resolve(name), change.after.resolve(name)
            earlier = self._changed.get(name, _NO_CHANGES)
            is_plain = was.unenforced is None and now.unenforced is None
            if is_plain and not earlier and was.schema_digest == now.schema_digest:
                continue  # only the description changed; skip reading schemas, as this may concern thousands of tools
            after = now.input_schema
            later = parameter_changes(was.input_schema, after)
            if later or earlier:
                # Combine these changes with earlier changes, because callers may be several versions behind.
                self._changed[name] = composed_changes(earlier, later, after)
                self.knows_parameters = True

    def removed(self, name: str) -> RemovedWrapper | None:
        """Return the removed wrapper with this name, or None."""
        return self._removed.get(name)

    def removed_tool(self, server: str, tool: str) -> RemovedWrapper | None:
        """Return the removed wrapper of an upstream's tool, or None."""
        name = self._names.get((server, tool))
        return self._removed.get(name) if name is not None else None

    def successor(self, removed: RemovedWrapper, catalog: Catalog) -> ToolWrapper | None:
        """Return the current replacement of a removed wrapper, across any number of changes; None if unknown."""
        seen: set[str] = set()
        following: RemovedWrapper | None = removed
        while following is not None and following.successor is not None and following.successor not in seen:
            current = catalog.by_name.get(following.successor)
            if current is not None:
                return current
            seen.add(following.successor)
            following = self._removed.get(following.successor)
        return None

    def changes(self, name: str) -> Mapping[ParameterPath, ParameterChange]:
        """Return the changes of a wrapper's parameters, keyed by their former paths."""
        return self._changed.get(name, _NO_CHANGES)


class _Pairs:
    """Pairs a removed wrapper with the new wrapper that has the same key, if no other wrapper has this key."""

    def __init__(
        self, removed: Sequence[ToolWrapper], added: Sequence[ToolWrapper], key: Callable[[ToolWrapper], object]
    ) -> None:
        # Count the keys only once, because a server may replace thousands of tools at a time.
        self._key = key
        self._removed_count = Counter(map(key, removed))
        self._added = Counter(map(key, added))
        self._wrappers = {key(wrapper): wrapper for wrapper in added}

    def get(self, wrapper: ToolWrapper) -> ToolWrapper | None:
        # Do not guess between several candidates: a wrong successor is worse than none.
        wrapper_key = self._key(wrapper)
        return (
            self._wrappers[wrapper_key] if self._removed_count[wrapper_key] == self._added[wrapper_key] == 1 else None
        )


def _schema_key(wrapper: ToolWrapper) -> object:
    # Tools without parameters have equal schemas even if they are unrelated, so compare their descriptions as well.
    takes_some = bool(declared_properties(wrapper.input_schema, wrapper.input_schema))
    return (wrapper.server, wrapper.schema_digest) if takes_some else _description_key(wrapper)


def _description_key(wrapper: ToolWrapper) -> object:
    return wrapper.server, wrapper.schema_digest, wrapper.definition.get("description")
