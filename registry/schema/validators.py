"""Compiled schemas: quick answers, and errors, both at a bounded cost whatever schema and value are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from registry.errors import SchemaRejected
from registry.schema.patterns import BACKTRACK_LIMIT, PATTERN_BYTES, without_unreadable_patterns

if TYPE_CHECKING:
    import jsonschema_rs

MAX_INSTANCE_DEPTH: Final = 200
"""Deeper values are not given to the compiled validator, which walks them by recursion."""
MAX_CHECK_COST: Final = 10_000_000
"""Weight of the schema times members of the value; beyond it (a second) the upstream decides."""
MAX_ERRORS_COST: Final = 20_000
"""The same for collecting errors, which takes every branch and some 15 us for each error."""
MAX_BACKTRACKED_TEXT: Final = 4_096
"""Longer texts meet only linear patterns: lookaround takes a bounded time at every character."""

_OPTIONS_IN_A_VISIT: Final = 50
"""An error of an `enum` holds a copy of all its options: so many take as long as one other error."""
_MAX_SHALLOW: Final = 500
_MAX_SHALLOW_OPTIONS: Final = 100
_MAX_SHALLOW_MISSING: Final = 40
_MAX_SHALLOW_OTHERS: Final = 50
_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}


class Extent:
    """How deep a value is, how many members it has, and the length of its longest text."""

    __slots__ = ("depth", "longest_text", "members")

    def __init__(self, value: object) -> None:
        # Every valid call comes by here, so nothing is called and nothing looked up twice.
        depth, members = 0, 1
        longest = len(value) if isinstance(value, str) else 0
        level: list[Any] = [value] if isinstance(value, dict | list) else []
        while level and depth <= MAX_INSTANCE_DEPTH:
            depth += 1
            inner: list[Any] = []
            for node in level:
                members += len(node)
                if isinstance(node, dict):
                    for key in node:
                        if len(key) > longest:
                            longest = len(key)
                for child in node.values() if isinstance(node, dict) else node:
                    if isinstance(child, str):
                        if len(child) > longest:
                            longest = len(child)
                    elif isinstance(child, dict | list):
                        inner.append(child)
            level = inner
        self.depth, self.members, self.longest_text = depth, members, longest


class Validator:
    """A compiled schema. Asks no network, and no schema or value makes it stall.

    Attributes:
        unchecked_patterns: what no engine here reads; left to the upstream.
    """

    __slots__ = ("_branches", "_compiled", "_demands", "_linear", "_schema", "_visits", "_weight", "unchecked_patterns")

    def __init__(
        self,
        schema: dict[str, Any] | bool,
        compiled: jsonschema_rs.Validator,
        linear: jsonschema_rs.Validator,
        *,
        visits: int,
        weight: int,
        branches: int,
        unchecked_patterns: tuple[str, ...],
    ) -> None:
        self._schema = schema
        self._compiled = compiled
        self._linear = linear
        self._visits = visits
        self._demands = _demands(schema)
        self._weight = weight
        self._branches = branches
        self.unchecked_patterns = unchecked_patterns

    def is_valid(self, instance: object) -> bool:
        """Tell whether the value fits; one that cannot be walked safely does not.

        A value so large for its schema that checking could stall counts as valid: its upstream decides.
        """
        extent = Extent(instance)
        if extent.depth > MAX_INSTANCE_DEPTH:
            return False
        if self._weight * extent.members > MAX_CHECK_COST:
            return True
        try:
            return self._engine(extent).is_valid(cast(Any, instance))
        except ValueError:
            return False

    def errors(self, instance: object, limit: int) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors; only those at the root where more could stall."""
        extent = Extent(instance)
        if extent.depth > MAX_INSTANCE_DEPTH:
            return []
        try:
            if self._errors_cost(extent) <= MAX_ERRORS_COST:
                return _first(self._engine(extent).iter_errors(cast(Any, instance)), limit)
            if isinstance(instance, dict) and isinstance(self._schema, dict):
                shallow = _make(_shallow_schema(self._schema, instance), "Draft202012Validator", False)
                return _first(shallow.iter_errors(_shallow_value(instance, self._schema)), limit)
        except ValueError:
            pass
        return []

    def errors_cost(self, instance: object) -> int:
        """Estimate what asking for errors costs, on the scale of MAX_ERRORS_COST; those at the root cost little."""
        cost = self._errors_cost(Extent(instance))
        return cost if cost <= MAX_ERRORS_COST else _MAX_SHALLOW

    def _engine(self, extent: Extent) -> jsonschema_rs.Validator:
        return self._compiled if extent.longest_text <= MAX_BACKTRACKED_TEXT else self._linear

    def _errors_cost(self, extent: Extent) -> int:
        # Each missing name is an error of its own, and each error holds a copy of its whole object.
        options = (self._weight - self._visits) // _OPTIONS_IN_A_VISIT
        cost = (self._visits + self._demands + options) * extent.members
        # A recursive schema may take each of its references anew on each level of the value.
        for _level in range(extent.depth if self._branches > 1 else 0):
            cost *= self._branches
            if cost > MAX_ERRORS_COST:
                break
        return cost


def compile_validator(schema: dict[str, Any] | bool, *, visits: int, weight: int, branches: int) -> Validator:
    """Compile a schema whose bounds and references were checked.

    Args:
        schema: the schema; a dialect that is not known counts as 2020-12.
        visits: how many schemas it holds with its references expanded.
        weight: the same with every member of every `enum`.
        branches: how many references it has if it is recursive, else 0.

    Raises:
        SchemaRejected: `invalid_schema`.
    """
    readable, unreadable, backtracking = without_unreadable_patterns(schema)
    dialect = "Draft202012Validator"
    if isinstance(readable, dict) and "$schema" in readable:
        declared = readable["$schema"]
        if isinstance(declared, str) and declared.rstrip("#") in _DRAFTS:
            dialect = _DRAFTS[declared.rstrip("#")]
        else:
            readable = {key: value for key, value in readable.items() if key != "$schema"}
    compiled = linear = _make(readable, dialect, backtracking)
    if backtracking:
        plain, _, _ = without_unreadable_patterns(readable, linear_only=True)
        linear = _make(plain, dialect, False)
    return Validator(
        schema,
        compiled,
        linear,
        visits=visits,
        weight=weight,
        branches=branches,
        unchecked_patterns=unreadable,
    )


def _make(schema: Any, dialect: str, backtracking: bool) -> jsonschema_rs.Validator:
    import jsonschema_rs

    make = cast("Callable[..., jsonschema_rs.Validator]", getattr(jsonschema_rs, dialect))
    engine: object = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    if backtracking:
        engine = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    try:
        return make(schema, validate_formats=False, offline=True, mask="the value", pattern_options=engine)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(getattr(error, "message", error))[:200]
        raise SchemaRejected("invalid_schema", reason) from None


def _first(errors: Any, limit: int) -> list[jsonschema_rs.ValidationError]:
    found: list[jsonschema_rs.ValidationError] = []
    for error in errors:
        found.append(error)
        if len(found) >= limit:
            break
    return found


def _shallow_schema(schema: dict[str, Any], instance: dict[str, Any]) -> dict[str, Any]:
    """Keep of a schema what can be said of the root of this value: required, unknown, wrongly typed members."""
    shallow: dict[str, Any] = {"type": "object"}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        # Members that are not there have nothing to be said of, however many are declared.
        present = [name for name in instance if name in properties]
        kept: dict[str, Any] = dict.fromkeys(present, True)
        for name in present[:_MAX_SHALLOW]:
            if isinstance(below := properties[name], dict):
                kept[name] = {word: below[word] for word in ("type", "enum", "const") if _is_short(below.get(word))}
        shallow["properties"] = kept
    if isinstance(required := schema.get("required"), list):
        shallow["required"] = [name for name in required if name not in instance][:_MAX_SHALLOW_MISSING]
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        shallow["additionalProperties"] = False
    return shallow


def _is_short(keyword: object) -> bool:
    return keyword is not None and not (isinstance(keyword, list | dict | str) and len(keyword) > _MAX_SHALLOW_OPTIONS)


def _shallow_value(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    declared = [key for key in value if key in properties] if isinstance(properties, dict) else []
    others = [key for key in value if key not in properties] if isinstance(properties, dict) else list(value)
    kept = {key: value[key] for key in (*declared[:_MAX_SHALLOW], *others[:_MAX_SHALLOW_OTHERS])}
    return {
        key: {} if isinstance(child, dict) else [] if isinstance(child, list) else child for key, child in kept.items()
    }


def _demands(schema: object) -> int:
    """Count the names that a schema requires, wherever in it."""
    count = 0
    pending: list[Any] = [schema] if isinstance(schema, dict) else []
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            required = node.get("required")
            count += len(required) if isinstance(required, list) else 0
            pending += [child for child in node.values() if isinstance(child, dict | list)]
        else:
            pending += [child for child in node if isinstance(child, dict | list)]
    return count
