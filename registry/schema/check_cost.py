"""Estimate the highest cost of checking a value against a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import orjson

from registry.errors import NotChecked
from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import containers
from registry.schema.patterns import BACKTRACK_LIMIT, CheckedForm, finishes_within_limit
from registry.schema.references import SchemaDocument
from registry.schema.schema_nodes import Application, TooManyApplications, applications

# Collecting the errors of 20,000 applications (see `Effort`) takes 0.3 s.
_MAX_WHOLE: Final = 20_000


# The parts of a value that pass unchecked: none, uncheckable parts, or also texts to which costly patterns apply.
Leniency = Literal["none", "uncheckable", "costly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The limits of one check. An application is one schema applied to one value.

    Attributes:
        check_ns: The longest estimated time of a validity check; None for no limit.
        errors_ns: The longest estimated time of collecting errors; None for no limit.
        applications: Maximum number of applications examined for these estimates.
        repair_cost: The highest total cost of collecting errors for repairs; see `Validator.repair_cost`.
        whole: Maximum number of applications for which the errors of a whole value are collected at once. If checking a
            value takes more, its failing parts are searched for.
        leniency: The parts that pass unchecked. With `none`, `NotChecked` is raised for parts that cannot be checked.
    """

    check_ns: int | None
    errors_ns: int | None
    applications: int
    repair_cost: int
    whole: int = _MAX_WHOLE
    leniency: Leniency = "none"


# Blocking the event loop for 5 ms is not noticeable. An invalid call may take a few times as long, because the caller
# has to repeat it anyway. Examining one application takes a microsecond.
INLINE_MEMBERS: Final = 20_000  # counting this many members takes about 5 ms
INLINE: Final = Effort(check_ns=5_000_000, errors_ns=20_000_000, applications=5_000, repair_cost=60_000)
# The applications are limited here, too, because looking for patterns that cannot be run takes up to half a second.
THOROUGH: Final = Effort(check_ns=None, errors_ns=None, applications=500_000, repair_cost=6_000_000)

_current: ContextVar[Effort] = ContextVar("effort", default=INLINE)


def current_effort() -> Effort:
    """Return the limits of the current context."""
    return _current.get()


@contextmanager
def use_effort(effort: Effort) -> Iterator[None]:
    """Use other limits for all checks in this context. Use `THOROUGH` only where the check can be cancelled."""
    token = _current.set(effort)
    try:
        yield
    finally:
        _current.reset(token)


# The compiled validator is recursive. Ordinary arguments have fewer than ten levels, and 200 levels use only a small
# part of any thread's stack.
MAX_INSTANCE_DEPTH: Final = 200
# More members and characters than any value has.
UNBOUNDED: Final = 1 << 62
# Maximum size of an integer in bits, about 1,200 digits. Python itself converts up to 4,300 digits to text.
_READ_BITS: Final = 4_000
# Values with up to this many members are counted exactly even if an estimate would do. It takes a few milliseconds.
_COUNTED: Final = 5_000


class InstanceSize:
    """The depth of a value, the number of its members, and the length of its texts.

    If a value has more members than `limit`, counting stops, and the sizes cover only the part that was counted.

    Attributes:
        depth: The number of nested levels of objects and lists.
        members: The members and items on all levels.
        text: The characters of all texts, including names.
        complete: True if the whole value was counted.
    """

    __slots__ = ("complete", "depth", "members", "text")

    def __init__(self, value: object, limit: int = UNBOUNDED) -> None:
        # This runs for every call, so it avoids function calls and repeated lookups.
        self.complete = True
        depth, members = 0, 1
        text = len(value) if isinstance(value, str) else 0
        level: list[Any] = [value] if isinstance(value, dict | list) else []
        while level and depth <= MAX_INSTANCE_DEPTH:
            depth += 1
            inner: list[Any] = []
            for node in level:
                members += len(node)
                if members > limit:
                    self.complete = False
                    inner = []
                    break
                if isinstance(node, dict):
                    for key, child in node.items():
                        text += len(key)
                        if isinstance(child, str):
                            text += len(child)
                        elif isinstance(child, dict | list):
                            inner.append(child)
                    continue
                for child in node:
                    if isinstance(child, str):
                        text += len(child)
                    elif isinstance(child, dict | list):
                        inner.append(child)
            level = inner
        self.depth, self.members, self.text = depth, members, text

    @classmethod
    def at_most(cls, value: object, text: bytes | None = None) -> InstanceSize:
        """Return upper bounds of a value's sizes from its JSON text. For a megabyte, it takes 3 ms instead of 70 ms.

        The sizes are exact up to 5,000 members. For more members, `depth` is `MAX_INSTANCE_DEPTH`.

        Args:
            value: The value.
            text: The value as encoded by `orjson`, if available.
        """
        size = cls(value, _COUNTED)
        if size.complete:
            return size
        try:
            # Nesting that `orjson` refuses is too deep for every other check as well.
            text = orjson.dumps(value) if text is None else text
        except TypeError:  # lone surrogates, integers beyond 64 bits, too many levels
            return cls(value)
        size.depth, size.text = MAX_INSTANCE_DEPTH, len(text)
        size.members = 1 + text.count(b",") + text.count(b"{") + text.count(b"[")
        size.complete = True
        return size


def readable_copy(value: object) -> Any:
    """Return a copy of a value that the compiled validator reads without an error.

    Lone surrogates become U+FFFD, integers with too many digits become shorter, and containers below
    `MAX_INSTANCE_DEPTH` become empty.
    """
    return _readable(value, 1)


def _readable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _READ_BITS:
        return (1 << _READ_BITS) * (1 if value > 0 else -1)
    if isinstance(value, dict):
        items = value.items() if depth < MAX_INSTANCE_DEPTH else ()
        return {_readable(key, depth): _readable(child, depth + 1) for key, child in items}
    if isinstance(value, list):
        return [_readable(child, depth + 1) for child in (value if depth < MAX_INSTANCE_DEPTH else ())]
    return value


# The time of applying a schema to a value, and of collecting the errors if the value is invalid, measured on one core.
_APPLICATION_NS: Final = 100
_ERROR_NS: Final = 15_000
# Comparing a value with 50 `enum` members takes as long as applying a schema.
OPTIONS_PER_APPLICATION: Final = 50
# A recursive schema with alternatives needs no cost estimate up to this depth: the argument object and the objects or
# lists in it, which is as deep as most calls go.
_FREE_LEVELS: Final = 2
# A JSON text with more than `INLINE_MEMBERS` members is at least this long: the shortest member is `"":0,`.
_BYTES_OF_MANY: Final = 5 * INLINE_MEMBERS
TOO_MANY: Final = f"more than {INLINE_MEMBERS} values are too many for its schema"
"""The reason reported for a value that has too many members to be measured."""
# Keywords that apply more than one schema to the same value.
_BRANCHING: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "patternProperties", "propertyNames"}
    | {"additionalItems", "contains", "unevaluatedItems", "unevaluatedProperties"}
)
# Maximum number of texts reported as unchecked; each becomes a sentence in the result of the call.
_MAX_UNCHECKABLE: Final = 10
# Maximum length of a pattern that an error quotes.
_MAX_PATTERN: Final = 80


class CheckCost:
    """Cost estimates for one schema: sizes up to which every check is fast, and an estimate for each larger value.

    Attributes:
        branching: Whether more than one schema may apply to the same value.
        free_members: The number of members up to which every check is fast.
        free_error_members: The number of members up to which collecting errors is fast.
        free_text: The total length of texts up to which every check is fast; -1 if each text has to be examined.
        free_depth: The number of levels up to which every check is fast.
        free_bytes: The length of a JSON text up to which its value exceeds neither `free_members` nor `free_text`.
    """

    __slots__ = (
        "_document",
        "_left_out",
        "_patterns",
        "_schema",
        "branching",
        "free_bytes",
        "free_depth",
        "free_error_members",
        "free_members",
        "free_text",
    )

    def __init__(
        self,
        schema: dict[str, Any] | bool,
        patterns: CheckedForm,
        *,
        visits: int,
        options: int,
        recursive: bool,
        has_references: bool,
        required: int,
    ) -> None:
        """Compute the sizes of values that need no closer look.

        Args:
            schema: The schema.
            patterns: The checked form of the schema.
            visits: The number of objects and lists in the schema, with references expanded.
            options: The number of `enum` members in the schema, with references expanded.
            recursive: Whether a schema refers back to itself.
            has_references: Whether the schema contains references.
            required: The number of required names, at any depth.
        """
        self._schema = schema
        self._patterns = patterns
        self._left_out = frozenset(patterns.left_out)
        self._document: SchemaDocument | None = None
        self.branching = branching = has_references or _branches(schema)
        factor = (visits if branching else 1) + options // OPTIONS_PER_APPLICATION
        self.free_depth = _FREE_LEVELS if recursive and branching else MAX_INSTANCE_DEPTH
        self.free_members = min(INLINE_MEMBERS, (INLINE.check_ns or 0) // (_APPLICATION_NS * factor))
        self.free_error_members = (INLINE.errors_ns or 0) // (_ERROR_NS * (factor + required))
        self.free_text = _free_text(patterns, branching)
        # Every member takes at least two bytes, and the value itself counts as a member.
        self.free_bytes = min(self.free_text, 2 * (self.free_members - 1))

    def require_affordable(self, instance: object, effort: Effort, *, errors: bool = False) -> None:
        """Estimate the cost of a check from the schemas and patterns that apply to the value.

        Raises:
            NotChecked: The cost exceeds the current limits, or no engine can run a pattern that applies.
        """
        budget, each = (effort.errors_ns, _ERROR_NS) if errors else (effort.check_ns, _APPLICATION_NS)
        if budget is None and self.free_text >= 0:
            return  # every pattern can be run, and none can reach the step limit
        spent, dearest = 0, 0
        error_of_dearest: Callable[[Any], NotChecked] = too_many_values_error
        try:
            for application in applications(self._get_document(), self._schema, instance, effort.applications):
                spent += _own_cost(application, each, errors)
                for where, text, pattern in _pattern_matches(application):
                    cost = self._cost_of(where, len(text), pattern, effort)
                    spent += cost
                    if cost > dearest:
                        dearest, error_of_dearest = cost, partial(_too_long, where, len(text), pattern)
                    # Do not run a pattern once the budget is exceeded.
                    if budget is None or spent <= budget:
                        self._ensure_matching_ends(where, text, pattern, effort)
                if budget is not None and spent > budget:
                    raise (error_of_dearest if dearest * 2 > spent else too_many_values_error)(instance)
        except TooManyApplications:
            raise too_many_values_error(instance) from None

    def uncheckable(self, instance: object, effort: Effort) -> list[NotChecked]:
        """Return why texts cannot be checked, however high the limits are; at most `_MAX_UNCHECKABLE` reasons."""
        reasons: dict[tuple[JsonPath, str], NotChecked] = {}
        try:
            for application in applications(self._get_document(), self._schema, instance, effort.applications):
                for where, text, pattern in _pattern_matches(application):
                    try:
                        self._cost_of(where, len(text), pattern, INLINE)
                        self._ensure_matching_ends(where, text, pattern, INLINE)
                    except NotChecked as doubt:
                        reasons.setdefault((where, doubt.reason), doubt)
                if len(reasons) >= _MAX_UNCHECKABLE:
                    break
        except TooManyApplications:
            pass
        return list(reasons.values())

    def is_within(self, limit: int, instance: object) -> bool:
        """Return whether checking a value takes at most `limit` applications."""
        return self.count(limit, instance) is not None

    def count(self, limit: int, instance: object) -> int | None:
        """Return the number of applications that checking a value takes; None if it exceeds `limit`."""
        try:
            return sum(1 for _ in applications(self._get_document(), self._schema, instance, limit))
        except TooManyApplications:
            return None

    def _cost_of(self, where: JsonPath, length: int, pattern: str, effort: Effort) -> int:
        runnable = self._patterns.runnable.get(pattern)
        if runnable is not None:
            return runnable.cost_ns(length)
        if pattern in self._left_out and effort.leniency == "none":
            reason = f"its pattern {_quote_pattern(pattern)} is written in a syntax that is not supported here"
            raise NotChecked(where, reason, final=True)
        return 0

    def _ensure_matching_ends(self, where: JsonPath, text: str, pattern: str, effort: Effort) -> None:
        """Ensure that matching finishes. If it does not, the validator sees no match, and `not` inverts that result."""
        runnable = self._patterns.runnable.get(pattern)
        if runnable is None or not runnable.quadratic or effort.leniency != "none":
            return
        if not finishes_within_limit(runnable.source, text):
            reason = f"matching its pattern {_quote_pattern(pattern)} takes more than {BACKTRACK_LIMIT} steps"
            raise NotChecked(where, reason, final=True)

    def _get_document(self) -> SchemaDocument:
        # Created lazily, because most schemas are never applied to a value that needs a closer look.
        if self._document is None:
            self._document = SchemaDocument(self._schema)
        return self._document


def shows_too_many(text: bytes) -> bool:
    """Return whether the JSON text of a value, as written by `orjson`, shows that the value has too many members."""
    # This count is a lower bound of the members: `":` follows each name, and within a string it is written `\":`.
    return len(text) >= _BYTES_OF_MANY and text.count(b'":') - text.count(b'\\":') > INLINE_MEMBERS


def require_countable(value: object) -> None:
    """Ensure that a value is small enough to be traversed within the current limits.

    Raises:
        NotChecked: The value has too many members.
    """
    if current_effort().check_ns is not None and not InstanceSize(value, INLINE_MEMBERS).complete:
        raise too_many_values_error(value)


def too_many_values_error(instance: Any) -> NotChecked:
    """Return the error for a value with too many members. The error names the largest argument."""
    where: JsonPath = ()
    size = None
    if isinstance(instance, dict) and len(instance) == 1:
        [(name, instance)] = instance.items()
        where = (name,)
    elif isinstance(instance, dict) and instance:
        share = INLINE_MEMBERS // len(instance)
        sizes = {name: InstanceSize(child, share) for name, child in instance.items()}
        largest = max(sizes, key=lambda name: sizes[name].members)
        where, instance = (largest,), instance[largest]
        # Count the largest argument again only if its share of the limit was too small.
        size = sizes[largest] if sizes[largest].complete or share == INLINE_MEMBERS else None
    size = size or InstanceSize(instance, INLINE_MEMBERS)
    count = f"{size.members}" if size.complete else f"more than {INLINE_MEMBERS}"
    return NotChecked(where, f"{count} values are too many for its schema")


def _too_long(where: JsonPath, length: int, pattern: str, instance: Any) -> NotChecked:
    return NotChecked(where, f"{length} characters are too many for its pattern {_quote_pattern(pattern)}")


def _own_cost(application: Application, each: int, errors: bool) -> int:
    options, required = application.schema.get("enum"), application.schema.get("required")
    cost = each
    if isinstance(options, list):
        cost += each * (len(options) // OPTIONS_PER_APPLICATION)
    if errors and isinstance(application.value, dict) and isinstance(required, list):
        # Each missing name is a separate error, and each error copies the whole object that lacks the name.
        cost += _APPLICATION_NS * len(required) * len(application.value)
    return cost


def _pattern_matches(application: Application) -> list[tuple[JsonPath, str, str]]:
    """Return the texts that the patterns of a schema are matched against, each with its path and pattern."""
    value = application.value
    if isinstance(value, str):
        pattern = application.schema.get("pattern")
        return [(application.path, value, pattern)] if isinstance(pattern, str) else []
    patterns = application.schema.get("patternProperties")
    if isinstance(value, dict) and isinstance(patterns, dict):
        return [((*application.path, name), name, pattern) for pattern in patterns for name in value]
    return []


def _free_text(patterns: CheckedForm, branching: bool) -> int:
    """Return the total length of texts up to which a value needs no closer look."""
    if patterns.left_out or any(pattern.quadratic for pattern in patterns.runnable.values()):
        return -1
    # Several patterns can only apply to the same text if the schema branches.
    budget = (INLINE.check_ns or 0) // max(1, len(patterns.runnable) if branching else 1)
    return min((pattern.affordable_length(budget) for pattern in patterns.runnable.values()), default=UNBOUNDED)


def _branches(schema: Any) -> bool:
    return any(isinstance(node, dict) and not _BRANCHING.isdisjoint(node) for node in containers(schema))


def _quote_pattern(pattern: str) -> str:
    return excerpt(pattern, _MAX_PATTERN)
