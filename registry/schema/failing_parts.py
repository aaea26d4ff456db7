"""Find the parts of an invalid value that cause its errors, at a bounded cost.

A validator reports the errors of every alternative, including nested ones. In a tree of blocks with ten block types,
the number of errors multiplies on each level, but the cost of a validity check does not. The search therefore checks
part by part, descends into the invalid parts, and follows only the alternative that was meant.

`jsonschema` cannot replace this search: it also reports all alternatives (more than 10 s for such a tree of 6 KB),
its messages quote the values, and a pattern can stall it. The tests compare the results of this search with
`jsonschema`.
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
from registry.schema.json_paths import JsonPath, composed_schemas, declared_properties
from registry.schema.schema_nodes import SchemaNode, SchemaNodes, TooManyApplications, applications

if TYPE_CHECKING:
    import jsonschema_rs


class LocatedError:
    """An error of a part, with its path in the whole value."""

    __slots__ = ("_at", "_error", "evaluation_path", "kind", "message", "schema_path")

    def __init__(self, error: jsonschema_rs.ValidationError, at: JsonPath) -> None:
        self._error = error
        self._at = at
        self.message = error.message
        self.schema_path = error.schema_path
        self.evaluation_path = error.evaluation_path
        self.kind: Any = error.kind
        if getattr(error.kind, "context", None) and error.kind.name != "oneOfMultipleValid":
            self.kind = _LocatedKind(error.kind, at)

    @property
    def instance_path(self) -> list[str | int]:
        """The path of the invalid value in the whole value."""
        return [*self._at, *self._error.instance_path]


class _LocatedKind:
    """The kind of an error that contains the errors of alternatives."""

    __slots__ = ("context", "name")

    def __init__(self, kind: Any, at: JsonPath) -> None:
        self.name = kind.name
        self.context = [[LocatedError(error, at) for error in branch] for branch in kind.context]


class FoundKind:
    """The kind of an error found without a validator, with the attributes of the validator's kinds.

    Attributes:
        name: The keyword; `options` if a value equals none of the constants of the alternatives, `whole` or
            `alternatives` if the exact error is not known.
        property: The missing member.
        unexpected: The undeclared members.
        types: The declared types.
        options: The accepted values.
    """

    __slots__ = ("name", "options", "property", "types", "unexpected")

    def __init__(
        self,
        name: str,
        *,
        property: str = "",
        unexpected: tuple[str, ...] = (),
        types: tuple[str, ...] = (),
        options: tuple[Any, ...] = (),
    ) -> None:
        self.name = name
        self.property = property
        self.unexpected = unexpected
        self.types = types
        self.options = options


class FoundError:
    """An error found without a validator, because a validator would copy the invalid value into each error."""

    __slots__ = ("evaluation_path", "instance_path", "kind", "message", "schema_path")

    def __init__(self, path: JsonPath, kind: FoundKind, schema_path: list[str | int], message: str = "") -> None:
        self.instance_path = list(path)
        self.schema_path = schema_path
        self.evaluation_path = schema_path
        self.kind = kind
        self.message = message


# Maximum number of parts examined in one search: enough for twenty failing parts at a depth of a few dozen levels.
_MAX_PARTS: Final = 1_000
# Maximum number of failing members or items examined in one part, and of errors of one keyword. At most 20 problems are
# shown anyway.
_MAX_FAILING: Final = 20
# Up to this many members of an object are checked together. In a larger object, undeclared members are checked one by
# one until enough have failed: collecting an error costs as much as about ten such checks.
_MAX_TOGETHER: Final = 100
# Limits of schema applications (see `check_cost.Effort`) for collecting all errors: the limit for one part, and the
# limit for all parts together, which takes about 20 ms.
_MAX_WHOLE: Final = 500
_MAX_WHOLE_TOTAL: Final = 1_000
# The limit for one part when the errors are used for repairs, which may take longer.
_MAX_REPAIRED: Final = 2_000
# Keywords that depend on the names or the number of members, not on the values of members.
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
        errors: Errors of at most 20 items or members of each part.
        lists: Lists that may have more failing items than were examined, each with the function that checks an item.
    """

    errors: list[jsonschema_rs.ValidationError]
    lists: tuple[tuple[Callable[[Any], bool], list[Any]], ...] = ()

    def has_failing(self, count: int) -> bool:
        """Return whether one of the lists has more than `count` failing items."""
        for is_valid, items in self.lists:
            if len(items) > count and sum(islice((True for item in items if not is_valid(item)), count + 1)) > count:
                return True
        return False


class FailingParts:
    """Finds the errors of values that are not valid against one schema.

    Attributes:
        is_laborious: Whether compiling a subschema may take many milliseconds.
    """

    def __init__(self, schema: Any, dialect: str, options: dict[str, Any]) -> None:
        """Prepare the search.

        Args:
            schema: The schema.
            dialect: The validator class of `jsonschema_rs`.
            options: Options of the compiler.
        """
        self._nodes = SchemaNodes(schema, dialect, options)
        self.is_laborious = self._nodes.is_laborious
        self._errors: list[Any] = []
        self._lists: dict[int, tuple[Callable[[Any], bool], list[Any]]] = {}
        self._applications_left = 0
        self._max_failing = _MAX_FAILING
        self._repairing = False

    def errors(self, value: Any, limit: int, *, for_repair: int = 0) -> FirstErrors:
        """Return up to `limit` errors, which may not be all errors; return no errors for a valid value.

        Args:
            value: The value.
            limit: Maximum number of errors.
            for_repair: If not 0, return the errors of every failing part, so that repairs can be derived. If it is not
                clear which alternative was meant, this includes the errors of all alternatives. The number limits the
                schema applications.
        """
        self._repairing = bool(for_repair)
        self._max_failing = limit if for_repair else _MAX_FAILING
        self._applications_left = for_repair or _MAX_WHOLE_TOTAL
        root = self._nodes.node_at("#", self._nodes.root)
        pending = [_Part((), root, value)] if root is not None else []
        errors = self._errors = []
        self._lists = {}
        for _part in range(max(_MAX_PARTS, 2 * limit)):
            if not pending or len(errors) >= limit:
                break
            part = pending.pop()
            error_count = len(errors)
            errors += self._own_errors(part)
            below = self._failing_subparts(part, alone=len(errors) == error_count)
            if not below and len(errors) == error_count:
                errors += self._unevaluated_error(part) or self._errors_of_whole(part)
            pending += reversed(below)
        # Release the lists now and not at the next search, because they may refer to a value of several megabytes.
        lists = tuple(self._lists.values())
        self._errors, self._lists = [], {}
        return FirstErrors(cast("list[jsonschema_rs.ValidationError]", errors[:limit]), lists)

    def _failing_subparts(self, part: _Part, *, alone: bool) -> list[_Part]:
        """Return the failing parts directly below a part.

        Args:
            part: A failing part.
            alone: Whether no error was found in the part itself. If the part then has a single subpart, this subpart
                must be invalid and need not be checked.
        """
        path, node, value = part
        below = [_Part(path, in_place, value) for in_place in node.in_place]
        if isinstance(value, dict):
            below += self._failing_members(path, node, value)
        items = self._failing_items(path, node, value) if isinstance(value, list) else []
        if not (alone and len(below) == 1 and not items and not node.alternatives and node.is_followed):
            below = list(islice(self._failing(below), self._max_failing))
        below += items
        for branches, alternatives in node.alternatives:
            below += self._follow_alternative(part, branches, alternatives)
        return below

    def _failing(self, parts: list[_Part]) -> Iterator[_Part]:
        for part in parts:
            if not part.node.is_valid(part.value):
                yield part

    def _failing_members(self, path: JsonPath, node: SchemaNode, value: dict[str, Any]) -> list[_Part]:
        """Return the members to examine: in an object with several members, only failing members."""
        declared, undeclared = node.members, node.undeclared_members
        if len(value) == 1 or (len(declared) == 1 and undeclared is None):
            members = ((name, declared.get(name, undeclared)) for name in value)
            return [_Part((*path, name), below, value[name]) for name, below in members if below is not None]
        failing: list[_Part] = []
        for name, child in value.items():
            below = declared.get(name, undeclared)
            if below is None:
                continue
            if not below.is_valid(child):
                failing.append(_Part((*path, name), below, child))
                if len(failing) >= self._max_failing:
                    break
        return failing

    def _failing_items(self, path: JsonPath, node: SchemaNode, value: list[Any]) -> list[_Part]:
        """Return the failing items."""
        first, items = node.first_items, node.items
        placed = [
            _Part((*path, index), below, item)
            for index, (below, item) in enumerate(zip(first, value, strict=False))
            if below is not None
        ]
        failing_parts = list(islice(self._failing(placed), self._max_failing)) if placed else []
        if items is None:
            return failing_parts
        is_valid = items.is_valid
        remaining = value[len(first) :] if first else value
        failing = ((index, item) for index, item in enumerate(remaining, len(first)) if not is_valid(item))
        failing_parts += [_Part((*path, index), items, item) for index, item in islice(failing, self._max_failing)]
        if len(failing_parts) >= self._max_failing:
            self._lists[id(value)] = is_valid, value
        return failing_parts

    def _follow_alternative(self, part: _Part, branches: list[SchemaNode], alternatives: Alternatives) -> list[_Part]:
        """If the value matches no alternative, return the alternative that was meant, or record an error."""
        path, node, value = part
        if any(branch.is_valid(value) for branch in branches):
            return []  # valid, or it matches several branches
        choice = alternatives.choose(value)
        if isinstance(choice, Alternative):
            below = self._nodes.node_of(choice.schema) or branches[choice.index]
            return [_Part(path, below, value)]
        if isinstance(choice, WrongType):
            self._errors.append(FoundError(path, FoundKind("type", types=choice.types), [*node.steps, "type"]))
        elif isinstance(choice, MissingMark):
            kind = FoundKind("required", property=choice.name)
            self._errors.append(FoundError(path, kind, [*node.steps, "required"]))
        elif isinstance(choice, WrongOption):
            kind = FoundKind("options", options=choice.options)
            self._errors.append(FoundError((*path, *choice.path), kind, [*node.steps, "options"]))
        else:
            self._errors += self._errors_of_whole(part)
        return []

    def _unevaluated_error(self, part: _Part) -> list[Any]:
        """Return an error for undeclared members, if `unevaluatedProperties` is the only keyword that can fail."""
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
        """Return all errors of a part if collecting them is affordable; otherwise one error without details."""
        counted = self._count_applications(part)
        errors: list[Any] = []
        if counted is not None:
            self._applications_left -= counted
            errors = [LocatedError(error, part.path) for error in part.node.validator.iter_errors(part.value)]
            for error in errors:
                error.schema_path = part.node.whole_path(error.schema_path)
        if errors or (counted is not None and part.node.is_valid(part.value)):
            return errors
        name = "alternatives" if part.node.alternatives else "whole"
        text = "fits none of the alternatives" if part.node.alternatives else "does not fit the schema"
        return [FoundError(part.path, FoundKind(name), part.node.steps, text)]

    def _count_applications(self, part: _Part) -> int | None:
        """Return the number of applications of schemas to a part; None if collecting its errors is not affordable."""
        limit = min(self._applications_left, _MAX_REPAIRED if self._repairing else _MAX_WHOLE)
        try:
            return sum(1 for _ in applications(self._nodes.document, part.node.schema, part.value, limit))
        except TooManyApplications:
            self._applications_left -= limit // 4  # counting costs a quarter of collecting errors
            return None

    def _own_errors(self, part: _Part) -> list[Any]:
        """Return the errors of a part itself, without the errors of its subparts."""
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
        if node.own_keywords:
            validator, reduced = self._reduce_value(node, value)
            for error in validator.iter_errors(reduced) if validator is not None else ():
                located = LocatedError(error, path)
                located.schema_path = [*node.steps, *error.schema_path]
                errors.append(located)
        return errors

    def _reduce_value(self, node: SchemaNode, value: Any) -> tuple[jsonschema_rs.Validator | None, Any]:
        """Reduce a value to the parts that its errors depend on; return the validator to use and the reduced value.

        Each error copies the value, which is slow for a large value.
        """
        own, validator = node.own_keywords, node.own_validator
        if isinstance(value, list):
            return validator, [None] * len(value) if own.keys() <= _ABOUT_LENGTH else value
        if not isinstance(value, dict):
            return validator, value
        if len(value) > _MAX_TOGETHER and own.keys() & _ABOUT_OTHERS:
            # Keep the declared members and some failing undeclared members.
            validator = node.single_member_validator
            declared = own.get("properties", {})
            declared_members = {name: value[name] for name in declared if name in value}
            failing = (
                name
                for name in value
                if name not in declared_members
                and validator is not None
                and not validator.is_valid({name: value[name]})
            )
            value = {**declared_members, **{name: value[name] for name in islice(failing, _MAX_FAILING)}}
        only_names = own.keys() <= _ABOUT_NAMES and isinstance(own.get("additionalProperties", True), bool)
        return validator, dict.fromkeys(value) if only_names else value
