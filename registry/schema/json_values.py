"""Copy, walk and edit plain JSON values; an edit that changes nothing returns the very object it was given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any


def deep_copy(value: Any) -> Any:
    """Return a copy of a JSON value that is not nested too deeply for recursion."""
    # Not copy.deepcopy: its memo and dispatch make it about ten times slower on plain JSON.
    if isinstance(value, dict):
        copy = value.copy()
        for key, child in value.items():
            if isinstance(child, dict | list):
                copy[key] = deep_copy(child)
        return copy
    if isinstance(value, list):
        return [deep_copy(child) if isinstance(child, dict | list) else child for child in value]
    return value


def containers(value: Any) -> Iterator[Any]:
    """Yield every object and array in a value, itself included, without recursion and in no particular order."""
    pending: list[Any] = [value] if isinstance(value, dict | list) else []
    while pending:
        node = pending.pop()
        yield node
        children = node.values() if isinstance(node, dict) else node
        pending += [child for child in children if isinstance(child, dict | list)]


# Callers recognise an unchanged definition by identity, which saves a comparison and a digest for each tool. So the
# functions below hand back their argument wherever they can.


def map_items(items: list[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Return the results of a function for each item; the same list when each result is its item."""
    mapped: list[Any] = []
    # No comprehension: it is a frame of its own, and functions that recurse through here need their stack for depth.
    for item in items:
        mapped.append(function(item))
    return unless_same(items, mapped)


def unless_same(items: list[Any], mapped: list[Any]) -> list[Any]:
    """Return the mapped items, or the same list of items as before if each of them is still the same object."""
    return items if all(new is old for new, old in zip(mapped, items, strict=True)) else mapped


def map_members(members: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the results of a function for each member's value; the same object when each result is its value."""
    mapped = {name: function(value) for name, value in members.items()}
    return members if all(value is members[name] for name, value in mapped.items()) else mapped


def without_keys(node: Mapping[str, Any], keys: Collection[str | None]) -> dict[str, Any]:
    """Return a new object without some members."""
    return {key: value for key, value in node.items() if key not in keys}


def edited(node: dict[str, Any], changes: Mapping[str, Any], dropped: Collection[str] = ()) -> dict[str, Any]:
    """Return an object with some members replaced, added or dropped; the same object when there are none of these."""
    if not changes and not dropped:
        return node
    return {key: value for key, value in {**node, **changes}.items() if key not in dropped}
