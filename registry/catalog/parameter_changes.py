"""How the parameters of a tool have changed from one definition to another, and over several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from registry.schema.json_values import without_keys
from registry.schema.schemas import digest

# A step into the items of an array; no name of a property has a space in it and brackets around nothing.
ITEMS: Final = "[ ]"
# Parameters below a parameter below a parameter: what lies deeper is told by the schema that an error shows.
_MAX_DEPTH: Final = 6
# Of one tool. The one with the most parameters in `tests/corpus` has 55; a change of more is another tool.
_MAX_CHANGES: Final = 200

# Names of properties from the root inwards, with `ITEMS` between an array and those of its items.
ParameterPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """What became of one parameter.

    Attributes:
        kind: Whether it has another name now, is gone, takes another type, or is required where it was not, be it that
            it is new.
        now: The current name or type; empty for one that is gone or required.
        was: For a type: the former one.
        certain: For a name: whether it is the same parameter beyond doubt, and not just one of the same shape.
    """

    kind: Literal["renamed", "removed", "retyped", "required"]
    now: str = ""
    was: str = ""
    certain: bool = False


def parameter_changes(before: Any, after: Any) -> dict[ParameterPath, ParameterChange]:
    """Return what became of the parameters of a schema, by the path that each of them had.

    A removed parameter was renamed where exactly one new one has its shape. That is certain where also the description
    is the same, or the names differ in case and separators only.
    """
    found: dict[ParameterPath, ParameterChange] = {}
    for path, change in _changes(before, after, ()):
        found[path] = change
        if len(found) >= _MAX_CHANGES:
            break
    return found


def composed_changes(
    earlier: Mapping[ParameterPath, ParameterChange], later: Mapping[ParameterPath, ParameterChange], schema: Any
) -> dict[ParameterPath, ParameterChange]:
    """Return what became of parameters over two changes in succession.

    Args:
        earlier: The first change, or several that were composed.
        later: The change after it.
        schema: As it is after both.
    """
    found: dict[ParameterPath, ParameterChange] = {}
    for path, change in earlier.items():
        known = _followed(path, change, later)
        # A name that is in use again means the parameter that has it now.
        if known.kind in ("retyped", "required") or not _declares(schema, path):
            found[path] = known
    for path, change in later.items():
        found.setdefault(path, change)
    return dict(list(found.items())[-_MAX_CHANGES:])


def _followed(
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
    gone = {name: _shape_digest(schema) for name, schema in old.items() if name not in new}
    came = {name: _shape_digest(schema) for name, schema in new.items() if name not in old}
    heirs: set[str] = set()
    for name, shape in gone.items():
        alike = [other for other, other_shape in came.items() if other_shape == shape]
        if len(alike) == 1 and sum(other_shape == shape for other_shape in gone.values()) == 1:
            [now] = alike
            heirs.add(now)
            yield (*path, name), ParameterChange(kind="renamed", now=now, certain=_is_same(name, old, now, new))
        else:
            yield (*path, name), ParameterChange(kind="removed")
    for name in old:
        if name in new:
            yield from _changes_of_one(old[name], new[name], (*path, name))
    if old:  # of what declared nothing, nothing can have been known
        for name in _required(after) - _required(before) - heirs:
            # One that takes another type as well is told by its type.
            if name in new and (name not in old or _type_of(old[name]) == _type_of(new[name])):
                yield (*path, name), ParameterChange(kind="required")


def _changes_of_one(before: Any, after: Any, path: ParameterPath) -> Iterator[tuple[ParameterPath, ParameterChange]]:
    if before == after or not isinstance(before, dict) or not isinstance(after, dict):
        return
    was, now = _type(before), _type(after)
    if was != now and was and now:
        yield path, ParameterChange(kind="retyped", now=now, was=was)
    elif len(path) < _MAX_DEPTH:
        yield from _changes(before, after, path)
        yield from _changes_of_one(before.get("items"), after.get("items"), (*path, ITEMS))


def _is_same(name: str, old: Mapping[str, Any], now: str, new: Mapping[str, Any]) -> bool:
    if _plain(name) == _plain(now):
        return True
    described = _description(old[name])
    return bool(described) and described == _description(new[now])


def _plain(name: str) -> str:
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


def _required(schema: Any) -> set[str]:
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
    # A renamed parameter usually has a new description.
    if isinstance(schema, dict):
        schema = without_keys(schema, ("description", "title"))
    return digest(schema)
