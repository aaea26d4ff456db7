"""Find the declared properties that misspelled names in an argument object clearly mean."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from registry.arguments.coercion import normalized_parameter
from registry.schema.json_paths import JsonPath, composed_schemas, declared_properties, value_at


@dataclass(frozen=True, slots=True)
class _ObjectNames:
    """The names that one object schema declares.

    Attributes:
        by_spelling: Names that a misspelled one may mean, by their normalized form.
        known: Names that are right as they are.
    """

    by_spelling: dict[str, list[str]]
    known: set[str]


class SpellingCorrector:
    """Corrects names of members by one schema; remembers what it found out about each object schema."""

    __slots__ = ("_names", "_root")

    def __init__(self, root: Any) -> None:
        self._root = root
        # By identity: an array of a thousand objects has one item schema, which lives as long as the root.
        self._names: dict[int, _ObjectNames] = {}

    def corrections(
        self,
        members: dict[str, Any],
        schema: dict[str, Any],
        *,
        schema_path: list[str | int],
        path: JsonPath,
        dropped: Container[JsonPath],
    ) -> dict[str, str]:
        """Return the names that differ in spelling only from exactly one absent property, each with that property.

        Args:
            members: The object.
            schema: The schema that describes it.
            schema_path: Where that is in the root.
            path: Where the object is.
            dropped: Paths that were removed on purpose, and must not come back under another name.
        """
        names = self._names_of(schema, schema_path)
        sent: dict[str, list[str]] = {}
        for key in members:
            if key not in names.known:
                sent.setdefault(normalized_parameter(key), []).append(key)
        corrections: dict[str, str] = {}
        for spelling, keys in sent.items():
            absent = [
                name
                for name in names.by_spelling.get(spelling, ())
                if name not in members and (*path, name) not in dropped
            ]
            # Two keys for one property, or two properties for one key, would be a guess.
            if len(keys) == 1 and len(absent) == 1:
                corrections[keys[0]] = absent[0]
        return corrections

    def _names_of(self, schema: dict[str, Any], schema_path: list[str | int]) -> _ObjectNames:
        found = self._names.get(id(schema))
        if found is not None:
            return found
        own = set(declared_properties(schema, self._root))
        required = schema.get("required")
        if isinstance(required, list):
            own.update(name for name in required if isinstance(name, str))
        if any(is_map(node) for node in composed_schemas(schema, self._root)):
            own.clear()
        known = set(own)
        for length in range(len(schema_path)):
            outer = value_at(self._root, schema_path[:length])
            # An alternative declares only some of the names; those declared around it are right as well.
            if isinstance(outer, dict) and isinstance(outer.get("properties"), dict):
                known |= outer["properties"].keys()
        by_spelling: dict[str, list[str]] = {}
        for name in own:
            by_spelling.setdefault(normalized_parameter(name), []).append(name)
        found = self._names[id(schema)] = _ObjectNames(by_spelling, known)
        return found


def is_map(schema: dict[str, Any]) -> bool:
    """Return whether undeclared names have a meaning as well, so that none of them is a misspelling."""
    others = schema.get("additionalProperties")
    return "patternProperties" in schema or (isinstance(others, dict) and bool(others))
