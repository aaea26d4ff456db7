"""Compile schemas into validators with a bounded cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from registry.errors import NotChecked, SchemaRejected
from registry.schema.check_cost import (
    INLINE_MEMBERS,
    MAX_INSTANCE_DEPTH,
    OPTIONS_PER_APPLICATION,
    THOROUGH,
    TOO_MANY,
    CheckCost,
    Effort,
    InstanceSize,
    Leniency,
    current_effort,
    readable_copy,
    shows_too_many,
    too_many_values_error,
)
from registry.schema.display_text import excerpt
from registry.schema.failing_parts import FailingParts, FirstErrors
from registry.schema.json_paths import JsonPath, format_path, value_at
from registry.schema.json_values import containers, without_keys
from registry.schema.patterns import BACKTRACK_LIMIT, CHEAP_PATTERN_BYTES, PATTERN_BYTES, checked_form
from registry.schema.references import compiler_of, draft_of, has_lone_references

if TYPE_CHECKING:
    import jsonschema_rs

# For values with up to this many members, the engine collects all errors, even if fewer are requested. This takes 50 ms
# if every member fails sixty alternatives. Larger values are searched for failing parts instead.
LARGE: Final = 250
# Limit of required names times members. The engine copies the object into each error about a missing name. At this
# limit, all copies together take 10 ms.
_MAX_COPIED_MEMBERS: Final = 50_000
# Limit of schema applications to count when estimating the repair cost of a recursive schema. Typical values, such as a
# search filter with five levels, need about a hundred. Counting more would cost about as much as checking the value.
_MAX_COUNTED: Final = 500
_COUNTING: Final = 4
_TOO_DEEP: Final = f"more than {MAX_INSTANCE_DEPTH} levels are too many for a check"
_UNREADABLE: Final = "there are broken characters or numbers with thousands of digits"
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_WORD: Final = re.compile("[A-Za-z]{1,20}")
# Maximum number of characters that are quoted from an error message of the compiler.
_MAX_REASON: Final = 200
# `mask` replaces values in error messages, because a value may be a secret.
_OPTIONS: Final[dict[str, Any]] = {"validate_formats": False, "offline": True, "mask": "the value"}


class SchemaNames(NamedTuple):
    """Names of members in a schema, at any depth.

    Attributes:
        declared: All names, including `related`.
        related: Names that the validity of other members depends on: required names, and names that select a schema.
    """

    declared: frozenset[str]
    related: frozenset[str]


class Validator:
    """A compiled schema. It never accesses the network, and no schema or value can stall it.

    Attributes:
        unchecked_patterns: Patterns that no engine supports; a text to which one of them applies cannot be checked.
    """

    __slots__ = (
        "_backtracking",
        "_branches",
        "_cost",
        "_dialect",
        "_engine",
        "_lone_references",
        "_names",
        "_parts",
        "_required",
        "_supported",
        "_visits",
        "_weight",
        "_without_patterns",
        "unchecked_patterns",
    )

    def __init__(
        self, schema: dict[str, Any] | bool, *, visits: int, weight: int, branches: int, has_references: bool = False
    ) -> None:
        """Compile a schema whose limits and references have been checked.

        Args:
            schema: The schema; an unknown dialect is treated as 2020-12.
            visits: The number of objects and lists in the schema, with references expanded.
            weight: `visits` plus the number of `enum` members.
            branches: The number of references if the schema is recursive, else 0.
            has_references: Whether the schema contains references.

        Raises:
            SchemaRejected: `invalid_schema`.
        """
        self._visits = visits
        self._weight = weight
        self._branches = branches
        self._required = _count_required(schema)
        draft = draft_of(schema.get("$schema")) if isinstance(schema, dict) else None
        self._dialect = compiler_of(draft)
        self._lone_references = has_lone_references(draft)
        patterns = checked_form(schema, lone_references=self._lone_references)
        self.unchecked_patterns = patterns.left_out
        self._supported, self._backtracking = patterns.schema, patterns.backtracking
        if isinstance(self._supported, dict) and "$schema" in self._supported:
            # The validator class determines the draft; the compiler would try to fetch an unknown dialect.
            self._supported = without_keys(self._supported, {"$schema"})
        self._engine = self._compile(self._supported, self._backtracking)
        self._parts: FailingParts | None = None
        self._names: SchemaNames | None = None
        self._without_patterns: dict[Leniency, jsonschema_rs.Validator] = {}
        self._cost = CheckCost(
            schema,
            patterns,
            visits=visits,
            options=weight - visits,
            recursive=branches > 0,
            has_references=has_references,
            required=self._required,
        )

    def passes(self, instance: Any) -> bool:
        """Return true if a fast check shows that a value is valid; false if it is invalid, or if the check may be slow.

        The size of the JSON text decides whether the check is fast. Writing the text is much faster than measuring the
        value with `InstanceSize`.

        Raises:
            NotChecked: The text shows that the value has too many members.
        """
        try:
            text = orjson.dumps(instance)
        except TypeError:
            return False  # too deep, or contains numbers or texts that need a closer look
        cost = self._cost
        if len(text) <= cost.free_bytes:
            # Each level has two brackets, so they need not be counted in a short text.
            shallow = len(text) <= 2 * cost.free_depth or text.count(b"{") + text.count(b"[") <= cost.free_depth
            return shallow and self._engine.is_valid(instance)
        if shows_too_many(text):
            # A caller may store this error until a later, thorough check, and its traceback would keep the text in
            # memory.
            del text
            raise NotChecked((), TOO_MANY, unlocated=True)
        return False

    def is_valid(self, instance: object, size: InstanceSize | None = None) -> bool:
        """Return whether a value is valid.

        If a value is nested too deeply or contains unreadable texts or numbers, only its readable part is checked,
        provided that the current effort allows unchecked parts.

        Args:
            instance: The value.
            size: The size of the value, if known: measuring a megabyte takes as long as checking it.

        Raises:
            NotChecked: The check exceeds the current limits; see `registry.schema.check_cost`.
        """
        cost, engine = self._cost, self._engine
        if size is None:
            size = InstanceSize(instance, INLINE_MEMBERS)
        if size.members > cost.free_members or size.text > cost.free_text or size.depth > cost.free_depth:
            effort = current_effort()
            # The validator has no depth limit, so the depth is checked with every effort.
            if not size.complete:
                if effort.check_ns is not None:
                    raise too_many_values_error(instance)  # measuring again would stop at the same limit
                size = InstanceSize.at_most(instance)
            if size.depth > MAX_INSTANCE_DEPTH:
                return self._is_readable_part_valid(instance, _TOO_DEEP)
            cost.require_affordable(instance, effort)
            engine = self._lenient_engine(effort.leniency) if effort.leniency != "none" else engine
        try:
            return engine.is_valid(cast(Any, instance))
        except ValueError:
            return self._is_readable_part_valid(instance, _UNREADABLE)

    def errors(
        self, instance: object, limit: int, size: InstanceSize | None = None
    ) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors of an invalid value, or of its readable part if it is too deep or unreadable.

        Raises:
            NotChecked: See `is_valid`.
        """
        cost, effort = self._cost, current_effort()
        size = size or self._size(instance, effort)
        if size.depth > MAX_INSTANCE_DEPTH:
            return self._errors_of_readable(instance, limit)
        if size.members > cost.free_error_members or size.text > cost.free_text or size.depth > cost.free_depth:
            cost.require_affordable(instance, effort, errors=True)
        try:
            copied = self._required * size.members
            if copied > _MAX_COPIED_MEMBERS or (cost.branching and not cost.is_within(effort.whole, instance)):
                return self._failing_parts().errors(instance, limit, for_repair=effort.whole).errors
            return list(islice(self._engine.iter_errors(cast(Any, instance)), limit))
        except ValueError:
            return self._errors_of_readable(instance, limit)

    def first_errors(self, instance: object, limit: int, size: InstanceSize | None = None) -> FirstErrors:
        """Return up to `limit` errors of an invalid value. For a large value, it is faster than `errors` but partial.

        Raises:
            NotChecked: See `is_valid`.
        """
        effort = current_effort()
        size = size or self._size(instance, effort)
        if size.members > LARGE and size.depth <= MAX_INSTANCE_DEPTH:
            self._cost.require_affordable(instance, effort, errors=True)
            try:
                if (first := self._failing_parts().errors(instance, limit)).errors:
                    return first
            except ValueError:
                pass
        return FirstErrors(self.errors(instance, limit, size))

    @property
    def schema(self) -> Any:
        """The checked form of the schema, which the schema paths of errors refer to."""
        return self._supported

    @property
    def names(self) -> SchemaNames:
        """The names of members that the schema mentions."""
        if self._names is None:
            self._names = _names_in(self._supported)
        return self._names

    def uncheckable(self, instance: object) -> list[NotChecked]:
        """Return why parts of a value cannot be checked with any effort; only some of the reasons if there are many."""
        size = InstanceSize(instance, INLINE_MEMBERS)
        if size.depth > MAX_INSTANCE_DEPTH:
            return [NotChecked((), _TOO_DEEP, final=True)]
        reasons = self._cost.uncheckable(instance, current_effort()) if self._cost.free_text < 0 else []
        try:
            self._engine.is_valid(cast(Any, instance))
        except ValueError:
            reasons.append(NotChecked((), _UNREADABLE, final=True))
        return reasons

    def _is_readable_part_valid(self, instance: object, reason: str) -> bool:
        """Return whether the part of a value that the validator can read is valid.

        Raises:
            NotChecked: The current limits do not allow unchecked parts.
        """
        if current_effort().leniency == "none":
            raise NotChecked((), reason, final=True)
        return not self._errors_of_readable(instance, 1)

    def _errors_of_readable(self, instance: object, limit: int) -> list[jsonschema_rs.ValidationError]:
        engine = self._lenient_engine("uncheckable")
        try:
            errors = engine.iter_errors(cast(Any, readable_copy(instance)))
            # Ignore errors at the deepest level, which may come from containers that `readable_copy` has emptied.
            return list(
                islice((error for error in errors if len(list(error.instance_path)) < MAX_INSTANCE_DEPTH - 1), limit)
            )
        except ValueError:
            return []

    def repair_cost(self, instance: object) -> int:
        """Estimate the cost of `errors` if every alternative is tried, on the scale of `Effort.repair_cost`.

        Raises:
            NotChecked: Measuring the value exceeds the current limits.
        """
        if self._branches > 1:
            # For a value that nests along a single path, the estimate of `_repair_cost` is far too high.
            counted = self._cost.count(_MAX_COUNTED, instance)
            if counted is not None:
                return _COUNTING * counted
        return self._repair_cost(self._size(instance, current_effort()))

    def _size(self, instance: object, effort: Effort) -> InstanceSize:
        """Return the size of a value.

        Raises:
            NotChecked: Measuring the value exceeds the current limits.
        """
        if effort.check_ns is None:
            return InstanceSize(instance)
        size = InstanceSize(instance, INLINE_MEMBERS)
        if not size.complete:
            raise too_many_values_error(instance)
        return size

    def _failing_parts(self) -> FailingParts:
        """Return the object that searches for failing parts; create it on first use.

        Raises:
            NotChecked: Compiling the subschemas exceeds the current limits.
        """
        if self._parts is None:
            options = {**_OPTIONS, "pattern_options": _pattern_options(self._backtracking)}
            self._parts = FailingParts(self._supported, self._dialect, options)
        if self._parts.is_laborious and current_effort().check_ns is not None:
            raise NotChecked((), "there are too many references in the schema")
        return self._parts

    def _lenient_engine(self, leniency: Leniency) -> jsonschema_rs.Validator:
        """Return a validator without the patterns that may reach the step limit, or without all costly patterns."""
        cached = self._without_patterns.get(leniency)
        if cached is None:
            weight = CHEAP_PATTERN_BYTES if leniency == "costly" else PATTERN_BYTES
            without = checked_form(
                self._supported, lone_references=self._lone_references, without_quadratic=True, max_weight=weight
            ).schema
            cached = self._without_patterns[leniency] = self._compile(without, True)
        return cached

    def _repair_cost(self, size: InstanceSize) -> int:
        options = (self._weight - self._visits) // OPTIONS_PER_APPLICATION
        cost = (self._visits + self._required + options) * size.members
        # A recursive schema may follow each of its references on every level of the value.
        for _level in range(size.depth if self._branches > 1 else 0):
            cost *= self._branches
            if cost > THOROUGH.repair_cost:
                break
        return cost

    def _compile(self, schema: Any, backtracking: bool) -> jsonschema_rs.Validator:
        return _compile(schema, self._dialect, backtracking)


def _compile(schema: Any, dialect: str, backtracking: bool) -> jsonschema_rs.Validator:
    import jsonschema_rs  # lazy, to keep the import of the registry fast

    make = cast("Callable[..., jsonschema_rs.Validator]", getattr(jsonschema_rs, dialect))
    try:
        return make(schema, **_OPTIONS, pattern_options=_pattern_options(backtracking))
    except jsonschema_rs.ValidationError as error:
        raise SchemaRejected("invalid_schema", _reason(error, schema)) from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise SchemaRejected("invalid_schema", str(error)[:_MAX_REASON]) from None


def _reason(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """Describe why a schema is invalid, and where."""
    path = list(error.instance_path)
    where = excerpt(format_path(path), _MAX_REASON // 2) if path else "the schema"
    if path and path[-1] == "type" and error.kind.name == "anyOf":  # the keyword, not a member named `type`
        declared = value_at(schema, path)
        # Models read this message, so only a single word of the schema is quoted.
        wrong = [name for name in (declared if isinstance(declared, list) else [declared]) if name not in _TYPES]
        quoted = f" is {wrong[0]}, which" if wrong and isinstance(wrong[0], str) and _WORD.fullmatch(wrong[0]) else ""
        return f"{where}{quoted} is not a type; expected {', '.join(_TYPES[:-1])} or {_TYPES[-1]}"
    return str(error.message).replace("the value", where, 1)[:_MAX_REASON]


def _pattern_options(backtracking: bool) -> jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions:
    import jsonschema_rs

    if backtracking:
        return jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    return jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)


def _count_required(schema: object) -> int:
    """Return the number of names that a schema requires, at any depth."""
    demands = (node.get("required") for node in containers(schema) if isinstance(node, dict))
    return sum(len(required) for required in demands if isinstance(required, list))


def _names_in(schema: object) -> SchemaNames:
    declared: set[str] = set()
    related: set[str] = set()
    for node in containers(schema):
        if not isinstance(node, dict):
            continue
        properties = node.get("properties")
        for name, below in properties.items() if isinstance(properties, dict) else ():
            declared.add(name)
            if isinstance(below, dict) and ("const" in below or "enum" in below):
                related.add(name)
        related.update(_texts(node.get("required")))
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, below in dependents.items() if isinstance(dependents := node.get(word), dict) else ():
                related.update((name, *_texts(below)))
        if isinstance(condition := node.get("if"), dict) and isinstance(tested := condition.get("properties"), dict):
            related.update(tested)
    return SchemaNames(frozenset(declared | related), frozenset(related))


def _texts(names: object) -> list[str]:
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


# Maximum number of undeclared members that a reduced object keeps, besides failing members and members that others
# depend on.
_MAX_KEPT: Final = 20


def reduce_to_parts(value: Any, paths: Sequence[JsonPath], names: SchemaNames) -> Any:
    """Reduce a value to the parts at these paths and a few other members and items."""
    return _reduce(value, _path_tree(paths), names)


def _path_tree(paths: Sequence[JsonPath]) -> dict[str | int, Any]:
    """Return the paths as a tree: each step with the steps below it."""
    tree: dict[str | int, Any] = {}
    for path in paths:
        below = tree
        for step in path:
            below = below.setdefault(step, {})
    return tree


def _reduce(value: Any, failing: dict[str | int, Any], names: SchemaNames) -> Any:
    """Reduce a value to its failing parts and a few other members and items."""
    if isinstance(value, list):
        indices = sorted(step for step in failing if isinstance(step, int)) or range(min(len(value), 1))
        return [_reduce(value[index], failing.get(index, {}), names) for index in indices]
    if isinstance(value, dict):
        kept_names = value if len(value) <= _MAX_KEPT else _names_to_keep(value, failing, names)
        return {name: _reduce(value[name], failing.get(name, {}), names) for name in kept_names}
    return value


def _names_to_keep(value: dict[str, Any], failing: Container[str | int], names: SchemaNames) -> list[str]:
    undeclared = islice((name for name in value if name not in names.declared and name not in failing), _MAX_KEPT)
    return [*(name for name in value if name in names.related or name in failing), *undeclared]
