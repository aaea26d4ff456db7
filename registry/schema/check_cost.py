"""What checking a value against one schema costs at most, and whether that is within the bounds that hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from registry.errors import NotChecked
from registry.schema.applications import Application, TooManyApplications, applications
from registry.schema.checked_form import CheckedForm
from registry.schema.display_text import excerpt
from registry.schema.effort import INLINE, INLINE_MEMBERS, Effort, current_effort
from registry.schema.instance_size import MAX_INSTANCE_DEPTH, UNBOUNDED, InstanceSize
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import containers
from registry.schema.patterns import BACKTRACK_LIMIT, ends_in_time
from registry.schema.references import SchemaDocument

# Measured on one core: applying one schema to one value, and collecting the errors of it if it fails.
_APPLICATION_NS: Final = 100
_ERROR_NS: Final = 15_000
# Comparing with so many options of an `enum` takes as long as applying a schema.
OPTIONS_PER_APPLICATION: Final = 50
# Levels of a value up to which a schema that branches and refers to itself is not looked at for its cost: the argument
# object and one object or list in it, which most calls of tools with such a schema have.
_FREE_LEVELS: Final = 2
# What so many members that have a name take at least: `"":0,`.
_BYTES_OF_MANY: Final = 5 * INLINE_MEMBERS
TOO_MANY: Final = f"more than {INLINE_MEMBERS} values are too many for its schema"
"""What is said of a value that is not walked over."""
# Keywords that apply more than one schema to the same value.
_BRANCHING: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "patternProperties", "propertyNames"}
    | {"additionalItems", "contains", "unevaluatedItems", "unevaluatedProperties"}
)
# Texts that are reported as unchecked; each is a sentence in the result of the call.
_MAX_UNCHECKABLE: Final = 10
# What is quoted of a pattern.
_MAX_PATTERN: Final = 80


class CheckCost:
    """Estimates for one schema, from sizes that need no closer look to every pattern that applies.

    Attributes:
        branching: Whether more than one schema may apply to the same value.
        free_members: Up to so many members no check can take long,
        free_error_members: nor can collecting errors.
        free_text: The same for the length of all texts together; -1 where each has to be looked at.
        free_depth: The same for levels.
        free_bytes: The same for the length of the value as JSON, from which members and texts follow.
    """

    __slots__ = ("_document", "_left_out", "_patterns", "_schema", "branching", "free_bytes", "free_depth",
                 "free_error_members", "free_members", "free_text")  # fmt: skip

    def __init__(
        self, schema: dict[str, Any] | bool, patterns: CheckedForm, *, visits: int, options: int, recursive: bool,
        has_references: bool, required: int,
    ) -> None:  # fmt: skip
        """Find the sizes of values that need no closer look.

        Args:
            schema: The schema.
            patterns: Its patterns.
            visits: The number of schemas in it with its references expanded.
            options: The number of members of every `enum`, in the same way.
            recursive: Whether a schema refers back to itself.
            has_references: Whether there are any references.
            required: The number of names that it requires, at any depth.
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
        # Every member takes two bytes at least, and the value itself is counted with them.
        self.free_bytes = min(self.free_text, 2 * (self.free_members - 1))

    def require_affordable(self, instance: object, effort: Effort, *, errors: bool = False) -> None:
        """Estimate what a value costs by the schemas and patterns that apply to it.

        Raises:
            NotChecked: Too much, or a pattern applies that no engine runs.
        """
        budget, each = (effort.errors_ns, _ERROR_NS) if errors else (effort.check_ns, _APPLICATION_NS)
        if budget is None and self.free_text >= 0:
            return  # every pattern can be run, and none can give up
        spent, dearest = 0, 0
        of_dearest: Callable[[Any], NotChecked] = too_many_values
        try:
            for found in applications(self._references(), self._schema, instance, effort.applications):
                spent += _own_cost(found, each, errors)
                for where, text, pattern in _matched(found):
                    cost = self._cost_of(where, len(text), pattern, effort)
                    spent += cost
                    if cost > dearest:
                        dearest, of_dearest = cost, partial(_too_long, where, len(text), pattern)
                    # What is too much in all is not tried, either.
                    if budget is None or spent <= budget:
                        self._require_end(where, text, pattern, effort)
                if budget is not None and spent > budget:
                    raise (of_dearest if dearest * 2 > spent else too_many_values)(instance)
        except TooManyApplications:
            raise too_many_values(instance) from None

    def uncheckable(self, instance: object, effort: Effort) -> list[NotChecked]:
        """Return the texts of a value that no effort can check, each with the reason; at most `_MAX_UNCHECKABLE`."""
        found: dict[tuple[JsonPath, str], NotChecked] = {}
        try:
            for one in applications(self._references(), self._schema, instance, effort.applications):
                for where, text, pattern in _matched(one):
                    try:
                        self._cost_of(where, len(text), pattern, INLINE)
                        self._require_end(where, text, pattern, INLINE)
                    except NotChecked as doubt:
                        found.setdefault((where, doubt.reason), doubt)
                if len(found) >= _MAX_UNCHECKABLE:
                    break
        except TooManyApplications:
            pass
        return list(found.values())

    def is_within(self, limit: int, instance: object) -> bool:
        """Return whether schemas are applied to parts of a value no more often than this."""
        return self.count(limit, instance) is not None

    def count(self, limit: int, instance: object) -> int | None:
        """Return how often schemas are applied to parts of a value; None if more often than this."""
        try:
            return sum(1 for _ in applications(self._references(), self._schema, instance, limit))
        except TooManyApplications:
            return None

    def _cost_of(self, where: JsonPath, length: int, pattern: str, effort: Effort) -> int:
        runnable = self._patterns.runnable.get(pattern)
        if runnable is not None:
            return runnable.cost_ns(length)
        if pattern in self._left_out and effort.leniency == "none":
            reason = f"its pattern {_quoted(pattern)} is written in a syntax that is not supported here"
            raise NotChecked(where, reason, final=True)
        return 0

    def _require_end(self, where: JsonPath, text: str, pattern: str, effort: Effort) -> None:
        """Check that matching comes to an end: the validator takes giving up for no match, of which `not` makes one."""
        runnable = self._patterns.runnable.get(pattern)
        if runnable is None or not runnable.quadratic or effort.leniency != "none":
            return
        if not ends_in_time(runnable.source, text):
            reason = f"matching its pattern {_quoted(pattern)} takes more than {BACKTRACK_LIMIT} steps"
            raise NotChecked(where, reason, final=True)

    def _references(self) -> SchemaDocument:
        # Only now: most schemas are never applied to a value that needs a closer look.
        if self._document is None:
            self._document = SchemaDocument(self._schema)
        return self._document


def shows_too_many(text: bytes) -> bool:
    """Return whether a value has more members than may be walked over here, as its JSON by `orjson` shows at once."""
    # No fewer than these: such characters in a text have a backslash before them.
    return len(text) >= _BYTES_OF_MANY and text.count(b'":') - text.count(b'\\":') > INLINE_MEMBERS


def require_countable(value: object) -> None:
    """Check that a value is small enough to be walked over here.

    Raises:
        NotChecked: It has too many members.
    """
    if current_effort().check_ns is not None and not InstanceSize(value, INLINE_MEMBERS).complete:
        raise too_many_values(value)


def too_many_values(instance: Any) -> NotChecked:
    """Return that the largest argument has too many values for a check."""
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
        # Where the share was enough, or all that there is, it need not be walked once more.
        size = sizes[largest] if sizes[largest].complete or share == INLINE_MEMBERS else None
    size = size or InstanceSize(instance, INLINE_MEMBERS)
    count = f"{size.members}" if size.complete else f"more than {INLINE_MEMBERS}"
    return NotChecked(where, f"{count} values are too many for its schema")


def _too_long(where: JsonPath, length: int, pattern: str, instance: Any) -> NotChecked:
    return NotChecked(where, f"{length} characters are too many for its pattern {_quoted(pattern)}")


def _own_cost(found: Application, each: int, errors: bool) -> int:
    options, required = found.schema.get("enum"), found.schema.get("required")
    cost = each
    if isinstance(options, list):
        cost += each * (len(options) // OPTIONS_PER_APPLICATION)
    if errors and isinstance(found.value, dict) and isinstance(required, list):
        # Each missing name is an error of its own, and each error holds a copy of its whole object.
        cost += _APPLICATION_NS * len(required) * len(found.value)
    return cost


def _matched(found: Application) -> list[tuple[JsonPath, str, str]]:
    """Return the texts that the patterns of one schema are matched against, with their paths."""
    value = found.value
    if isinstance(value, str):
        pattern = found.schema.get("pattern")
        return [(found.path, value, pattern)] if isinstance(pattern, str) else []
    patterns = found.schema.get("patternProperties")
    if isinstance(value, dict) and isinstance(patterns, dict):
        return [((*found.path, name), name, pattern) for pattern in patterns for name in value]
    return []


def _free_text(patterns: CheckedForm, branching: bool) -> int:
    """Return the length that all texts of a value may have together without a closer look."""
    if patterns.left_out or any(pattern.quadratic for pattern in patterns.runnable.values()):
        return -1
    # Only alternatives and the like apply several patterns to one text.
    budget = (INLINE.check_ns or 0) // max(1, len(patterns.runnable) if branching else 1)
    return min((pattern.affordable_length(budget) for pattern in patterns.runnable.values()), default=UNBOUNDED)


def _branches(schema: Any) -> bool:
    return any(isinstance(node, dict) and not _BRANCHING.isdisjoint(node) for node in containers(schema))


def _quoted(pattern: str) -> str:
    return excerpt(pattern, _MAX_PATTERN)
