"""Compiled schemas: a fast yes or no, and errors, each at a bounded cost whatever the schema and the value are."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from registry.errors import NotChecked, SchemaRejected
from registry.schema.check_cost import (
    OPTIONS_PER_APPLICATION,
    TOO_MANY,
    CheckCost,
    shows_too_many,
    too_many_values,
)
from registry.schema.checked_form import checked_form
from registry.schema.display_text import excerpt
from registry.schema.drafts import compiler_of, draft_of, has_lone_references
from registry.schema.effort import INLINE_MEMBERS, THOROUGH, Effort, Leniency, current_effort
from registry.schema.failing_parts import FailingParts, FirstErrors
from registry.schema.instance_size import MAX_INSTANCE_DEPTH, InstanceSize, readable_copy
from registry.schema.json_paths import format_path, value_at
from registry.schema.json_values import containers, without_keys
from registry.schema.patterns import BACKTRACK_LIMIT, CHEAP_PATTERN_BYTES, PATTERN_BYTES

if TYPE_CHECKING:
    import jsonschema_rs

# Members of a value up to which all of its errors are collected, whatever the limit: 50 ms where each of them is wrong
# for each of sixty alternatives. In a larger one the parts that fail are looked for.
LARGE: Final = 250
# Missing names, at most, times members beside them: each error holds a copy of its object, and these take 10 ms.
_MAX_COPIED: Final = 50_000
# Applications that are counted to tell what a repair by a recursive schema costs: a filter of five levels has some
# hundred. Counting them costs about as much as checking them, and collecting their errors twice as much.
_MAX_COUNTED: Final = 500
_COUNTING: Final = 4
_TOO_DEEP: Final = f"more than {MAX_INSTANCE_DEPTH} levels are too many for a check"
_UNREADABLE: Final = "there are broken characters or numbers of thousands of digits, which cannot be checked"
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_WORD: Final = re.compile("[A-Za-z]{1,20}")
# What is quoted of a compiler's complaint about a schema.
_MAX_REASON: Final = 200
# `mask`: messages must not repeat a value that was sent, which may be a secret.
_OPTIONS: Final[dict[str, Any]] = {"validate_formats": False, "offline": True, "mask": "the value"}


class SchemaNames(NamedTuple):
    """Names of members at any depth of a schema.

    Attributes:
        declared: All of them.
        related: Those on which the validity of others depends: required ones, and those that select a schema.
    """

    declared: frozenset[str]
    related: frozenset[str]


class Validator:
    """A compiled schema. It never accesses the network, and no schema or value makes it stall.

    Attributes:
        unchecked_patterns: Patterns that no engine here supports: no text that one applies to can be checked.
    """

    __slots__ = ("_backtracking", "_branches", "_cost", "_dialect", "_engine", "_lone_references", "_names", "_parts",
                 "_required", "_supported", "_visits", "_weight", "_without_patterns",
                 "unchecked_patterns")  # fmt: skip

    def __init__(
        self, schema: dict[str, Any] | bool, *, visits: int, weight: int, branches: int, has_references: bool = False
    ) -> None:
        """Compile a schema whose bounds and references were checked.

        Args:
            schema: The schema; an unknown dialect counts as 2020-12.
            visits: The number of schemas in it with its references expanded.
            weight: The same, with every member of every `enum`.
            branches: The number of its references if it is recursive, else 0.
            has_references: Whether there are any references in it.

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
            # The class says which draft it is. The compiler would want to fetch a dialect that it does not know.
            self._supported = without_keys(self._supported, {"$schema"})
        self._engine = self._compile(self._supported, self._backtracking)
        self._parts: FailingParts | None = None
        self._names: SchemaNames | None = None
        self._without_patterns: dict[Leniency, jsonschema_rs.Validator] = {}
        self._cost = CheckCost(
            schema, patterns, visits=visits, options=weight - visits, recursive=branches > 0,
            has_references=has_references, required=self._required,
        )  # fmt: skip

    def passes(self, instance: Any) -> bool:
        """Return whether a value validates, where a glance shows that to find out cannot take long; otherwise False.

        To write JSON is much quicker than to walk over a value, which finds the exact sizes (`InstanceSize`).

        Raises:
            NotChecked: It has too many values, as its text shows.
        """
        try:
            text = orjson.dumps(instance)
        except TypeError:
            return False  # deep, or with numbers and texts that take a closer look
        cost = self._cost
        if len(text) <= cost.free_bytes:
            # Each level has two brackets, so that of most nothing has to be counted.
            shallow = len(text) <= 2 * cost.free_depth or text.count(b"{") + text.count(b"[") <= cost.free_depth
            return shallow and self._engine.is_valid(instance)
        if shows_too_many(text):
            # Whoever waits for a thorough check keeps the error, and with it this frame.
            del text
            raise NotChecked((), TOO_MANY, unlocated=True)
        return False

    def is_valid(self, instance: object, size: InstanceSize | None = None) -> bool:
        """Return whether a value validates; one that cannot be walked safely does not.

        Args:
            instance: The value.
            size: Its size, where it is known already: to find that of a megabyte takes as long as to check it.

        Raises:
            NotChecked: It cannot be told within the bounds that hold here, see `registry.schema.effort`.
        """
        cost, engine = self._cost, self._engine
        if size is None:
            size = InstanceSize(instance, INLINE_MEMBERS)
        if size.members > cost.free_members or size.text > cost.free_text or size.depth > cost.free_depth:
            effort = current_effort()
            # Also where there is time: the validator has no bound of its own on levels.
            if not size.complete:
                if effort.check_ns is not None:
                    raise too_many_values(instance)  # a second look would end where this one did
                size = InstanceSize.at_most(instance)
            if size.depth > MAX_INSTANCE_DEPTH:
                return self._is_valid_as_far_as_readable(instance, _TOO_DEEP)
            cost.require_affordable(instance, effort)
            engine = self._lenient_engine(effort.leniency) if effort.leniency != "none" else engine
        try:
            return engine.is_valid(cast(Any, instance))
        except ValueError:
            return self._is_valid_as_far_as_readable(instance, _UNREADABLE)

    def errors(
        self, instance: object, limit: int, size: InstanceSize | None = None
    ) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors of a value that does not validate; none if it cannot be walked safely.

        Args:
            instance: The value.
            limit: The most errors.
            size: Its size, where it is known already.

        Raises:
            NotChecked: As `is_valid`.
        """
        cost, effort = self._cost, current_effort()
        size = size or self._size(instance, effort)
        if size.depth > MAX_INSTANCE_DEPTH:
            return self._errors_of_readable(instance, limit)
        if size.members > cost.free_error_members or size.text > cost.free_text or size.depth > cost.free_depth:
            cost.require_affordable(instance, effort, errors=True)
        try:
            copied = self._required * size.members
            if copied > _MAX_COPIED or (cost.branching and not cost.is_within(effort.whole, instance)):
                return self._failing_parts().errors(instance, limit, for_repair=effort.whole).errors
            return list(islice(self._engine.iter_errors(cast(Any, instance)), limit))
        except ValueError:
            return self._errors_of_readable(instance, limit)

    def first_errors(self, instance: object, limit: int, size: InstanceSize | None = None) -> FirstErrors:
        """Return at most `limit` errors; of a large value only some, in a fraction of the time.

        Args:
            instance: The value, which does not validate.
            limit: The most errors.
            size: Its size, where it is known already.

        Raises:
            NotChecked: As `is_valid`.
        """
        effort = current_effort()
        size = size or self._size(instance, effort)
        if size.members > LARGE and size.depth <= MAX_INSTANCE_DEPTH:
            self._cost.require_affordable(instance, effort, errors=True)
            try:
                if (found := self._failing_parts().errors(instance, limit)).errors:
                    return found
            except ValueError:
                pass
        return FirstErrors(self.errors(instance, limit, size))

    @property
    def schema(self) -> Any:
        """The schema in its checked form, in which the paths of errors lead."""
        return self._supported

    @property
    def names(self) -> SchemaNames:
        """The names of members that the schema speaks of."""
        if self._names is None:
            self._names = _names_in(self._supported)
        return self._names

    def uncheckable(self, instance: object) -> list[NotChecked]:
        """Return why parts of a value cannot be checked, whatever the effort; some of them, if there are many."""
        size = InstanceSize(instance, INLINE_MEMBERS)
        if size.depth > MAX_INSTANCE_DEPTH:
            return [NotChecked((), _TOO_DEEP, final=True)]
        found = self._cost.uncheckable(instance, current_effort()) if self._cost.free_text < 0 else []
        try:
            self._engine.is_valid(cast(Any, instance))
        except ValueError:
            found.append(NotChecked((), _UNREADABLE, final=True))
        return found

    def _is_valid_as_far_as_readable(self, instance: object, reason: str) -> bool:
        """Return whether what the validator can read of a value is valid.

        Raises:
            NotChecked: Nothing may be left out of a check here.
        """
        if current_effort().leniency == "none":
            raise NotChecked((), reason, final=True)
        return not self._errors_of_readable(instance, 1)

    def _errors_of_readable(self, instance: object, limit: int) -> list[jsonschema_rs.ValidationError]:
        engine = self._lenient_engine("uncheckable")
        try:
            errors = engine.iter_errors(cast(Any, readable_copy(instance)))
            # What is wrong with containers that were emptied is wrong with the copy only.
            return list(islice((one for one in errors if len(list(one.instance_path)) < MAX_INSTANCE_DEPTH - 1), limit))
        except ValueError:
            return []

    def repair_cost(self, instance: object) -> int:
        """Estimate what `errors` costs where alternatives are tried one by one, on the scale of `Effort`."""
        if self._branches > 1:
            # The estimate by levels is far too high for a filter that nests along one path.
            counted = self._cost.count(_MAX_COUNTED, instance)
            if counted is not None:
                return _COUNTING * counted
        return self._repair_cost(InstanceSize(instance))

    def _size(self, instance: object, effort: Effort) -> InstanceSize:
        """Return the size of a value.

        Raises:
            NotChecked: Finding it takes too long.
        """
        if effort.check_ns is None:
            return InstanceSize(instance)
        size = InstanceSize(instance, INLINE_MEMBERS)
        if not size.complete:
            raise too_many_values(instance)
        return size

    def _failing_parts(self) -> FailingParts:
        """Return what finds the parts that fail.

        Raises:
            NotChecked: To compile those parts of the schema takes too long here.
        """
        if self._parts is None:
            options = {**_OPTIONS, "pattern_options": _pattern_options(self._backtracking)}
            self._parts = FailingParts(self._supported, self._dialect, options)
        if self._parts.is_laborious and current_effort().check_ns is not None:
            raise NotChecked((), "there are too many references in the schema")
        return self._parts

    def _lenient_engine(self, leniency: Leniency) -> jsonschema_rs.Validator:
        """Return the validator without the patterns that may give up, or also without all costly ones."""
        known = self._without_patterns.get(leniency)
        if known is None:
            weight = CHEAP_PATTERN_BYTES if leniency == "costly" else PATTERN_BYTES
            without = checked_form(
                self._supported, lone_references=self._lone_references, without_quadratic=True, max_weight=weight
            ).schema
            known = self._without_patterns[leniency] = self._compile(without, True)
        return known

    def _repair_cost(self, size: InstanceSize) -> int:
        options = (self._weight - self._visits) // OPTIONS_PER_APPLICATION
        cost = (self._visits + self._required + options) * size.members
        # A recursive schema may follow each of its references again on each level of the value.
        for _level in range(size.depth if self._branches > 1 else 0):
            cost *= self._branches
            if cost > THOROUGH.repair_cost:
                break
        return cost

    def _compile(self, schema: Any, backtracking: bool) -> jsonschema_rs.Validator:
        return _compile(schema, self._dialect, backtracking)


def _compile(schema: Any, dialect: str, backtracking: bool) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, so that importing the registry stays quick

    make = cast("Callable[..., jsonschema_rs.Validator]", getattr(jsonschema_rs, dialect))
    try:
        return make(schema, **_OPTIONS, pattern_options=_pattern_options(backtracking))
    except jsonschema_rs.ValidationError as error:
        raise SchemaRejected("invalid_schema", _reason(error, schema)) from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise SchemaRejected("invalid_schema", str(error)[:_MAX_REASON]) from None


def _reason(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """Return what is wrong with a schema, and where."""
    path = list(error.instance_path)
    where = excerpt(format_path(path), _MAX_REASON // 2) if path else "the schema"
    if path and path[-1] == "type" and error.kind.name == "anyOf":  # else a member is called so
        declared = value_at(schema, path)
        # By nothing else is a schema quoted: models read this.
        wrong = [one for one in (declared if isinstance(declared, list) else [declared]) if one not in _TYPES]
        said = f" is {wrong[0]}, which" if wrong and isinstance(wrong[0], str) and _WORD.fullmatch(wrong[0]) else ""
        return f"{where}{said} is no type; expected {', '.join(_TYPES[:-1])} or {_TYPES[-1]}"
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
            for name, below in others.items() if isinstance(others := node.get(word), dict) else ():
                related.update((name, *_texts(below)))
        if isinstance(condition := node.get("if"), dict) and isinstance(tested := condition.get("properties"), dict):
            related.update(tested)
    return SchemaNames(frozenset(declared | related), frozenset(related))


def _texts(names: object) -> list[str]:
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
