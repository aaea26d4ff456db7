"""Finds the parts of an invalid value that are to blame, where collecting the errors of the whole would take too long.

Errors hold those of every alternative, and of every alternative inside: in a tree of blocks, each of one of ten types,
they multiply on each level. A yes or no does not, so this goes down from part to part by asking which is invalid, and
into the one alternative that can be meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from registry.schema.alternatives import (
    Alternative,
    Alternatives,
    MissingMark,
    WrongOption,
    WrongType,
    declared_types,
    has_type,
)
from registry.schema.applications import TooManyApplications, applications
from registry.schema.json_paths import JsonPath, composed_schemas, declared_properties
from registry.schema.located_errors import FoundError, FoundKind, LocatedError
from registry.schema.schema_nodes import SchemaNode, SchemaNodes

if TYPE_CHECKING:
    import jsonschema_rs

# Parts that are looked at: twenty failing places, each some tens of levels deep.
_MAX_PARTS: Final = 1_000
# Failing members or items of one part that are followed, and errors of one keyword. No more than 20 problems are shown
# anyway.
_MAX_FAILING: Final = 20
# Members of one object that are looked at together. Of more, undeclared ones are looked at alone, until enough fail:
# each error costs as much as some ten of these looks.
_MAX_TOGETHER: Final = 100
# Applications of schemas in parts of which all errors are collected, in one part and in all of them: some 20 ms.
_MAX_WHOLE: Final = 500
_MAX_WHOLE_IN_ALL: Final = 1_000
# The same in one part where repairs are made of the errors, for which there is more time.
_MAX_REPAIRED: Final = 2_000
# Keywords by which an object or a list is right or wrong whatever the values in it are.
_ABOUT_NAMES: Final = frozenset({"properties", "additionalProperties", "propertyNames", "minProperties"})
_ABOUT_OTHERS: Final = frozenset({"patternProperties", "additionalProperties", "propertyNames"})
_ABOUT_LENGTH: Final = frozenset({"minItems", "maxItems"})


class _Part(NamedTuple):
    path: JsonPath
    node: SchemaNode
    value: Any


class FirstErrors(NamedTuple):
    """Some errors of a value.

    Attributes:
        errors: Those of at most 20 items or members of each part.
        lists: Lists of which more items fail than were looked at, with the check of one item.
    """

    errors: list[jsonschema_rs.ValidationError]
    lists: tuple[tuple[Callable[[Any], bool], list[Any]], ...] = ()

    def has_failing(self, count: int) -> bool:
        """Return whether more items than this fail of one list."""
        for is_valid, items in self.lists:
            if len(items) > count and sum(islice((True for item in items if not is_valid(item)), count + 1)) > count:
                return True
        return False


class FailingParts:
    """Finds the errors of values that do not validate against one schema.

    Attributes:
        is_laborious: Whether compiling any schema in it takes many milliseconds.
        looks: How often the last search asked for the validity of a part.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any]) -> None:
        """Prepare to look for errors.

        Args:
            schema: The schema.
            dialect: The class that compiles it.
            options: For the compiler.
        """
        self._nodes = SchemaNodes(schema, dialect, options)
        self.is_laborious = self._nodes.is_laborious
        self._found: list[Any] = []
        self._lists: dict[int, tuple[Callable[[Any], bool], list[Any]]] = {}
        self._left = 0
        self._max_failing = _MAX_FAILING
        self._repairing = False
        self.looks = 0

    def errors(self, value: Any, limit: int, *, for_repair: int = 0) -> FirstErrors:
        """Return at most `limit` errors, which may not be all; none for a value that is valid.

        Args:
            value: The value.
            limit: The most errors.
            for_repair: If not 0, every failing part is wanted, and where none of the alternatives was clearly meant the
                errors of all, so that repairs can be made of them, up to so many applications of schemas.
        """
        self._repairing = bool(for_repair)
        self._max_failing = limit if for_repair else _MAX_FAILING
        self._left = for_repair or _MAX_WHOLE_IN_ALL
        root = self._nodes.at("#", self._nodes.root)
        pending = [_Part((), root, value)] if root is not None else []
        found = self._found = []
        self._lists, self.looks = {}, 0
        for _part in range(max(_MAX_PARTS, 2 * limit)):
            if not pending or len(found) >= limit:
                break
            part = pending.pop()
            before = len(found)
            found += self._own_errors(part)
            below = self._below(part, alone=len(found) == before)
            if not below and len(found) == before:
                found += self._unevaluated(part) or self._errors_of_whole(part)
            pending += reversed(below)
        # Not kept until the next search: what is in them may be a megabyte.
        lists = tuple(self._lists.values())
        self._found, self._lists = [], {}
        return FirstErrors(cast("list[jsonschema_rs.ValidationError]", found[:limit]), lists)

    def _below(self, part: _Part, *, alone: bool) -> list[_Part]:
        """Return the parts of a part that fail.

        Args:
            part: A part that fails.
            alone: Whether no error was found in it: if it has a single part below, that is the one that fails.
        """
        path, node, value = part
        below = [_Part(path, other, value) for other in node.in_place]
        if isinstance(value, dict):
            below += self._members(path, node, value)
        items = self._items(path, node, value) if isinstance(value, list) else []
        if not (alone and len(below) == 1 and not items and not node.alternatives and node.is_followed):
            below = list(islice(self._failing(below), self._max_failing))
        below += items
        for branches, alternatives in node.alternatives:
            below += self._alternative(part, branches, alternatives)
        return below

    def _failing(self, parts: list[_Part]) -> Iterator[_Part]:
        for part in parts:
            self.looks += 1
            if not part.node.is_valid(part.value):
                yield part

    def _members(self, path: JsonPath, node: SchemaNode, value: dict[str, Any]) -> list[_Part]:
        """Return the members that are to be looked at: of many, those that fail."""
        declared, others = node.members, node.others
        if len(value) == 1 or (len(declared) == 1 and others is None):
            known = ((name, declared.get(name, others)) for name in value)
            return [_Part((*path, name), below, value[name]) for name, below in known if below is not None]
        found: list[_Part] = []
        looks = 0
        for name, child in value.items():
            below = declared.get(name, others)
            if below is None:
                continue
            looks += 1
            if not below.is_valid(child):
                found.append(_Part((*path, name), below, child))
                if len(found) >= self._max_failing:
                    break
        self.looks += looks
        return found

    def _items(self, path: JsonPath, node: SchemaNode, value: list[Any]) -> list[_Part]:
        """Return items that fail."""
        first, items = node.first_items, node.items
        placed = [
            _Part((*path, index), below, item)
            for index, (below, item) in enumerate(zip(first, value, strict=False))
            if below is not None
        ]
        found = list(islice(self._failing(placed), self._max_failing)) if placed else []
        if items is None:
            return found
        is_valid = items.is_valid
        rest = value[len(first) :] if first else value
        failing = ((index, item) for index, item in enumerate(rest, len(first)) if not is_valid(item))
        found += [_Part((*path, index), items, item) for index, item in islice(failing, self._max_failing)]
        seen = found[-1].path[-1] if len(found) >= self._max_failing else len(value)
        self.looks += int(seen)
        if len(found) >= self._max_failing:
            self._lists[id(value)] = is_valid, value
        return found

    def _alternative(self, part: _Part, branches: list[SchemaNode], alternatives: Alternatives) -> list[_Part]:
        """Return the alternative that was meant, if the value fits none; note the error where it cannot be told."""
        path, node, value = part
        self.looks += len(branches)
        if any(branch.is_valid(value) for branch in branches):
            return []  # or it fits more than one
        meant = alternatives.meant_by(value)
        if isinstance(meant, Alternative):
            below = self._nodes.of(meant.schema) or branches[meant.index]
            return [_Part(path, below, value)]
        if isinstance(meant, WrongType):
            self._found.append(FoundError(path, FoundKind("type", types=meant.types), [*node.steps, "type"]))
        elif isinstance(meant, MissingMark):
            kind = FoundKind("required", property=meant.name)
            self._found.append(FoundError(path, kind, [*node.steps, "required"]))
        elif isinstance(meant, WrongOption):
            kind = FoundKind("options", options=meant.options)
            self._found.append(FoundError((*path, *meant.path), kind, [*node.steps, "options"]))
        else:
            self._found += self._errors_of_whole(part)
        return []

    def _unevaluated(self, part: _Part) -> list[Any]:
        """Return members that nothing declares, where that is all that can be wrong."""
        path, node, value = part
        closed = self._nodes.knows_unevaluated and node.schema.get("unevaluatedProperties") is False
        if not closed or not isinstance(value, dict):
            return []
        composed = list(composed_schemas(node.schema, self._nodes.root))
        if any(schema.keys() & {"patternProperties", "additionalProperties"} for schema in composed):
            return []
        declared = declared_properties(node.schema, self._nodes.root)
        unexpected = tuple(islice((name for name in value if name not in declared), _MAX_FAILING))
        kind = FoundKind("unevaluatedProperties", unexpected=unexpected)
        return [FoundError(path, kind, [*node.steps, "unevaluatedProperties"])] if unexpected else []

    def _errors_of_whole(self, part: _Part) -> list[Any]:
        """Return all errors of a part, if there are not too many; else one that says no more than where it is."""
        counted = self._count(part)
        errors: list[Any] = []
        if counted is not None:
            self._left -= counted
            errors = [LocatedError(error, part.path) for error in part.node.validator.iter_errors(part.value)]
            for error in errors:
                error.schema_path = part.node.whole_path(error.schema_path)
        if errors or (counted is not None and part.node.is_valid(part.value)):
            return errors
        name = "alternatives" if part.node.alternatives else "whole"
        text = "fits none of the alternatives" if part.node.alternatives else "does not fit the schema"
        return [FoundError(part.path, FoundKind(name), part.node.steps, text)]

    def _count(self, part: _Part) -> int | None:
        """Return how often schemas are applied to a part, if that is affordable."""
        limit = min(self._left, _MAX_REPAIRED if self._repairing else _MAX_WHOLE)
        try:
            return sum(1 for _ in applications(self._nodes.document, part.node.schema, part.value, limit))
        except TooManyApplications:
            self._left -= limit // 4  # as much as counting takes, beside collecting errors
            return None

    def _own_errors(self, part: _Part) -> list[Any]:
        """Return the errors that a part has apart from those of what is followed."""
        path, node, value = part
        schema = node.schema
        if not has_type(value, types := declared_types(schema)):
            return [FoundError(path, FoundKind("type", types=types), [*node.steps, "type"])]
        errors: list[Any] = []
        if isinstance(value, dict):
            required = schema.get("required")
            missing = (name for name in (required if isinstance(required, list) else ()) if name not in value)
            errors += [
                FoundError(path, FoundKind("required", property=name), [*node.steps, "required"])
                for name in islice(missing, _MAX_FAILING)
            ]
            if node.is_closed:
                declared = schema.get("properties", {})
                if unexpected := tuple(islice((name for name in value if name not in declared), _MAX_FAILING)):
                    kind = FoundKind("additionalProperties", unexpected=unexpected)
                    errors.append(FoundError(path, kind, [*node.steps, "additionalProperties"]))
        if node.own:
            validator, telling = self._telling(node, value)
            for error in validator.iter_errors(telling) if validator is not None else ():
                located = LocatedError(error, path)
                located.schema_path = [*node.steps, *error.schema_path]
                errors.append(located)
        return errors

    def _telling(self, node: SchemaNode, value: Any) -> tuple[jsonschema_rs.Validator | None, Any]:
        """Return as little of a value as has the same errors, and what to check it with.

        Each error holds a copy of what it is about, which takes long for what is large.
        """
        own, validator = node.own, node.own_validator
        if isinstance(value, list):
            return validator, [None] * len(value) if own.keys() <= _ABOUT_LENGTH else value
        if not isinstance(value, dict):
            return validator, value
        if len(value) > _MAX_TOGETHER and own.keys() & _ABOUT_OTHERS:
            # Of undeclared members some that fail.
            validator = node.validator_of_one
            declared = own.get("properties", {})
            kept = {name: value[name] for name in declared if name in value}
            failing = (
                name
                for name in value
                if name not in kept and validator is not None and not validator.is_valid({name: value[name]})
            )
            value = {**kept, **{name: value[name] for name in islice(failing, _MAX_FAILING)}}
        only_names = own.keys() <= _ABOUT_NAMES and isinstance(own.get("additionalProperties", True), bool)
        return validator, dict.fromkeys(value) if only_names else value
