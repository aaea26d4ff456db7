"""Compiled schemas: a fast yes or no, and errors, each at a bounded cost whatever the schema and the value are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from registry.errors import SchemaRejected
from registry.schema.check_cost import OPTIONS_PER_APPLICATION, CheckCost, too_many_values
from registry.schema.effort import INLINE_MEMBERS, THOROUGH, Effort, current_effort
from registry.schema.failing_parts import FailingParts
from registry.schema.instance_size import MAX_INSTANCE_DEPTH, InstanceSize
from registry.schema.json_values import containers, without_keys
from registry.schema.patterns import BACKTRACK_LIMIT, PATTERN_BYTES, read_patterns

if TYPE_CHECKING:
    import jsonschema_rs

# Where a value is so large that its errors could take longer than a second, lists are cut to these lengths, one after
# the other: the first that is still invalid shows what is wrong with it.
_CUTS: Final = (2, 16, 200)
_MANY_MEMBERS: Final = 100_000
# Applications of schemas up to which the errors of a whole value are collected at once: 0.3 s if all of them fail.
_MAX_WHOLE: Final = 20_000
# What a list that was cut may be accused of wrongly.
# Applications that are counted to tell what a repair by a recursive schema costs: a filter of five levels has some
# hundred. Counting them costs about as much as checking them, and collecting their errors twice as much.
_MAX_COUNTED: Final = 500
_COUNTING: Final = 4
_ERRORS_OF_CUTS: Final = frozenset({"minItems", "contains"})
# What is quoted of a compiler's complaint about a schema.
_MAX_REASON: Final = 200
# `mask`: messages must not repeat a value that was sent, which may be a secret.
_OPTIONS: Final[dict[str, Any]] = {"validate_formats": False, "offline": True, "mask": "the value"}
_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}


class Validator:
    """A compiled schema. It never accesses the network, and no schema or value makes it stall.

    Attributes:
        unchecked_patterns: Patterns that no engine here supports: no text that one applies to can be checked.
    """

    __slots__ = ("_backtracking", "_branches", "_cost", "_dialect", "_engine", "_parts", "_required", "_supported",
                 "_visits", "_weight", "_without_patterns", "unchecked_patterns")  # fmt: skip

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
        patterns = read_patterns(schema)
        self.unchecked_patterns = patterns.left_out
        self._dialect = "Draft202012Validator"
        if isinstance(schema, dict) and "$schema" in schema:
            self._dialect = _DRAFTS.get(str(schema["$schema"]).rstrip("#"), "")
        self._supported, self._backtracking = patterns.schema, patterns.backtracking
        if not self._dialect:
            # The compiler would want to fetch a dialect that it does not know.
            self._supported = without_keys(self._supported, {"$schema"})
        self._engine = self._compile(self._supported, self._backtracking)
        self._parts: FailingParts | None = None
        self._without_patterns: jsonschema_rs.Validator | None = None
        self._cost = CheckCost(
            schema, patterns, visits=visits, options=weight - visits, recursive=branches > 0,
            has_references=has_references, required=self._required,
        )  # fmt: skip

    def is_valid(self, instance: object) -> bool:
        """Return whether a value validates; one that cannot be walked safely does not.

        Raises:
            NotChecked: It cannot be told within the bounds that hold here, see `registry.schema.effort`.
        """
        cost, engine = self._cost, self._engine
        size = InstanceSize(instance, INLINE_MEMBERS)
        if size.members > cost.free_members or size.text > cost.free_text or size.depth > cost.free_depth:
            effort = current_effort()
            # Also where there is time: the validator has no bound of its own on levels.
            size = size if size.complete else self._size(instance, effort)
            if size.depth > MAX_INSTANCE_DEPTH:
                return False
            cost.require_affordable(instance, effort)
            engine = self._lenient_engine() if effort.ignores_patterns else engine
        try:
            return engine.is_valid(cast(Any, instance))
        except ValueError:  # half of a surrogate pair, or an integer of thousands of digits
            return False

    def errors(self, instance: object, limit: int) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors of a value that does not validate; none if it cannot be walked safely.

        Raises:
            NotChecked: As `is_valid`.
        """
        cost, effort = self._cost, current_effort()
        size = self._size(instance, effort)
        if size.depth > MAX_INSTANCE_DEPTH:
            return []
        if size.members > cost.free_error_members or size.text > cost.free_text or size.depth > cost.free_depth:
            cost.require_affordable(instance, effort, errors=True)
        try:
            if cost.branching and not cost.is_within(_MAX_WHOLE, instance):
                return self._failing_parts().errors(instance, limit)
            if size.members > _MANY_MEMBERS:
                for length in _CUTS:
                    shorter = _with_short_lists(instance, length)
                    if not self._engine.is_valid(shorter):
                        found = islice(self._engine.iter_errors(shorter), limit)
                        if kept := [error for error in found if error.kind.name not in _ERRORS_OF_CUTS]:
                            return kept
            return list(islice(self._engine.iter_errors(cast(Any, instance)), limit))
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
        if self._parts is None:
            self._parts = FailingParts(self._supported, _compile_all(self._supported, self._backtracking))
        return self._parts

    def _lenient_engine(self) -> jsonschema_rs.Validator:
        """Return the validator without the patterns that may give up."""
        if self._without_patterns is None:
            self._without_patterns = self._compile(read_patterns(self._supported, without_quadratic=True).schema, True)
        return self._without_patterns

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
        return _compile(schema, self._dialect or "Draft202012Validator", backtracking)


def _with_short_lists(value: Any, length: int) -> Any:
    """Return a value with all of its lists cut to a length."""
    if isinstance(value, list):
        return [_with_short_lists(item, length) for item in value[:length]]
    if isinstance(value, dict):
        return {name: _with_short_lists(child, length) for name, child in value.items()}
    return value


def _compile(schema: Any, dialect: str, backtracking: bool) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, so that importing the registry stays quick

    make = cast("Callable[..., jsonschema_rs.Validator]", getattr(jsonschema_rs, dialect))
    try:
        return make(schema, **_OPTIONS, pattern_options=_pattern_options(backtracking))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(getattr(error, "message", error))[:_MAX_REASON]
        raise SchemaRejected("invalid_schema", reason) from None


def _compile_all(schema: Any, backtracking: bool) -> jsonschema_rs.ValidatorMap:
    """Return every schema in a document, compiled; it compiles as a whole."""
    import jsonschema_rs

    return jsonschema_rs.validator_map_for(schema, **_OPTIONS, pattern_options=_pattern_options(backtracking))


def _pattern_options(backtracking: bool) -> jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions:
    import jsonschema_rs

    if backtracking:
        return jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    return jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)


def _count_required(schema: object) -> int:
    """Return the number of names that a schema requires, at any depth."""
    demands = (node.get("required") for node in containers(schema) if isinstance(node, dict))
    return sum(len(required) for required in demands if isinstance(required, list))
