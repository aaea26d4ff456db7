"""Compiled schemas: a fast yes or no, and errors, both at a bounded cost whatever the schema and the value are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from registry.errors import SchemaRejected
from registry.schema.json_values import containers, without_keys
from registry.schema.patterns import BACKTRACK_LIMIT, PATTERN_BYTES, without_unsupported_patterns

if TYPE_CHECKING:
    import jsonschema_rs

# The compiled validator walks values by recursion. Honest arguments nest less than ten levels, and 200 are far from
# the end of any thread's stack.
MAX_INSTANCE_DEPTH: Final = 200
# Weight of the schema times members of the value: about a second of checking. Beyond it the upstream decides.
MAX_CHECK_COST: Final = 10_000_000
# The same product for collecting errors, which tries every branch and takes some 15 us for each error: 0.3 s.
MAX_ERRORS_COST: Final = 20_000
# Longer texts are only matched against linear patterns: look-around takes a bounded time at every character.
MAX_BACKTRACKED_TEXT: Final = 4_096

# The error of an `enum` holds a copy of all its options: so many take as long as one other error.
_OPTIONS_PER_VISIT: Final = 50
# Where all errors would cost too much, only members at the root are checked. These bounds keep that near 40 ms: members
# that the schema declares, members that it does not, missing names, and the length of a copied keyword. Each missing
# or undeclared name is an error that holds a copy of the whole object, so fewer of them are affordable.
_MAX_SHALLOW_MEMBERS: Final = 500
_MAX_SHALLOW_UNDECLARED: Final = 50
_MAX_SHALLOW_MISSING: Final = 40
_MAX_SHALLOW_OPTIONS: Final = 100
# What is quoted of a compiler's complaint about a schema.
_MAX_REASON: Final = 200
_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}


class InstanceSize:
    """The depth of a value, the number of its members, and the length of its longest text."""

    __slots__ = ("depth", "longest_text", "members")

    def __init__(self, value: object) -> None:
        # Every call comes through here, so there are no function calls and no repeated lookups.
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
    """A compiled schema. It never accesses the network, and no schema or value makes it stall.

    Attributes:
        unchecked_patterns: Patterns that no engine here supports; checking them is left to the upstream.
    """

    __slots__ = ("_branches", "_full", "_linear", "_required", "_schema", "_visits", "_weight", "unchecked_patterns")

    def __init__(self, schema: dict[str, Any] | bool, *, visits: int, weight: int, branches: int) -> None:
        """Compile a schema whose bounds and references were checked.

        Args:
            schema: The schema; an unknown dialect counts as 2020-12.
            visits: The number of schemas in it with its references expanded.
            weight: The same, with every member of every `enum`.
            branches: The number of its references if it is recursive, else 0.

        Raises:
            SchemaRejected: `invalid_schema`.
        """
        self._schema = schema
        self._visits = visits
        self._weight = weight
        self._branches = branches
        self._required = _count_required(schema)
        supported, self.unchecked_patterns, backtracking = without_unsupported_patterns(schema)
        dialect = "Draft202012Validator"
        if isinstance(supported, dict) and "$schema" in supported:
            declared = supported["$schema"]
            if isinstance(declared, str) and declared.rstrip("#") in _DRAFTS:
                dialect = _DRAFTS[declared.rstrip("#")]
            else:
                # The compiler would want to fetch a dialect that it does not know.
                supported = without_keys(supported, {"$schema"})
        self._full = self._linear = _compile(supported, dialect, backtracking)
        if backtracking:
            linear, _, _ = without_unsupported_patterns(supported, linear_only=True)
            self._linear = _compile(linear, dialect, False)

    def is_valid(self, instance: object) -> bool:
        """Return whether a value validates; one that cannot be walked safely does not.

        A value so large for its schema that the check could stall counts as valid: its upstream decides.
        """
        size = InstanceSize(instance)
        if size.depth > MAX_INSTANCE_DEPTH:
            return False
        if self._weight * size.members > MAX_CHECK_COST:
            return True
        try:
            return self._engine(size).is_valid(cast(Any, instance))
        except ValueError:  # half of a surrogate pair, or an integer of thousands of digits
            return False

    def errors(self, instance: object, limit: int) -> list[jsonschema_rs.ValidationError]:
        """Return at most `limit` errors, or only those at the root where collecting all of them could stall."""
        size = InstanceSize(instance)
        if size.depth > MAX_INSTANCE_DEPTH:
            return []
        try:
            if self._errors_cost(size) <= MAX_ERRORS_COST:
                return list(islice(self._engine(size).iter_errors(cast(Any, instance)), limit))
            if isinstance(instance, dict) and isinstance(self._schema, dict):
                shallow = _compile(_shallow_schema(self._schema, instance), "Draft202012Validator", False)
                return list(islice(shallow.iter_errors(_shallow_value(instance, self._schema)), limit))
        except ValueError:
            pass
        return []

    def errors_cost(self, instance: object) -> int:
        """Estimate the cost of `errors`, on the scale of MAX_ERRORS_COST."""
        cost = self._errors_cost(InstanceSize(instance))
        return cost if cost <= MAX_ERRORS_COST else _MAX_SHALLOW_MEMBERS

    def _engine(self, size: InstanceSize) -> jsonschema_rs.Validator:
        return self._full if size.longest_text <= MAX_BACKTRACKED_TEXT else self._linear

    def _errors_cost(self, size: InstanceSize) -> int:
        # Each missing name is an error of its own, and each error holds a copy of its whole object.
        options = (self._weight - self._visits) // _OPTIONS_PER_VISIT
        cost = (self._visits + self._required + options) * size.members
        # A recursive schema may follow each of its references again on each level of the value.
        for _level in range(size.depth if self._branches > 1 else 0):
            cost *= self._branches
            if cost > MAX_ERRORS_COST:
                break
        return cost


def _compile(schema: Any, dialect: str, backtracking: bool) -> jsonschema_rs.Validator:
    import jsonschema_rs  # here, so that importing the registry stays quick

    make = cast("Callable[..., jsonschema_rs.Validator]", getattr(jsonschema_rs, dialect))
    engine: object = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    if backtracking:
        engine = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES)
    try:
        # `mask`: messages must not repeat a value that was sent, which may be a secret.
        return make(schema, validate_formats=False, offline=True, mask="the value", pattern_options=engine)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(getattr(error, "message", error))[:_MAX_REASON]
        raise SchemaRejected("invalid_schema", reason) from None


def _shallow_schema(schema: dict[str, Any], instance: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema says about this value's own members: required, undeclared, of the wrong type."""
    shallow: dict[str, Any] = {"type": "object"}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        # Absent members have no errors of their own, however many are declared.
        present = [name for name in instance if name in properties]
        kept: dict[str, Any] = dict.fromkeys(present, True)
        for name in present[:_MAX_SHALLOW_MEMBERS]:
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
    kept = {key: value[key] for key in (*declared[:_MAX_SHALLOW_MEMBERS], *others[:_MAX_SHALLOW_UNDECLARED])}
    return {
        key: {} if isinstance(child, dict) else [] if isinstance(child, list) else child for key, child in kept.items()
    }


def _count_required(schema: object) -> int:
    """Return the number of names that a schema requires, at any depth."""
    demands = (node.get("required") for node in containers(schema) if isinstance(node, dict))
    return sum(len(required) for required in demands if isinstance(required, list))
