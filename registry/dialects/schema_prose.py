"""Describe schemas in a few words, and record what a schema no longer expresses after lowering (see `definitions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import without_keys
from registry.schema.schemas import compact_json

# Maximum number of characters of one clause. Several clauses are added to a description, whose length is limited.
MAX_PROSE: Final = 160
# Maximum length of a value, and of a name, in such a clause.
_MAX_VALUE: Final = 60
_MAX_NAME: Final = 40
# Maximum number of members of an enumeration or object, and of alternatives of a union, that are named.
_MAX_MEMBERS: Final = 6
_MAX_ALTERNATIVES: Final = 12
_MAX_OPTIONS: Final = 20
_MAX_EXAMPLES: Final = 2
# Levels of nested schemas that are described; with three levels the clause would be cut anyway.
_MAX_NESTED: Final = 2
# Larger integers are not written out, because they have 39 digits or more.
_MAX_INTEGER_BITS: Final = 128
# The largest integer that JavaScript represents exactly; JavaScript schema generators write this number if no bound is
# intended.
_NO_BOUND: Final = 2**53 - 1
# Pairs of bounds with their unit. Both bounds are described together when the keyword of the lower bound is described.
_PAIRS: Final = {
    "minLength": ("minLength", "maxLength", " characters"),
    "minItems": ("minItems", "maxItems", " items"),
    "minProperties": ("minProperties", "maxProperties", " members"),
}
_UPPER: Final = {"maxLength": "minLength", "maxItems": "minItems", "maxProperties": "minProperties"}


def format_value(value: Any) -> str:
    """Return a JSON value as short text, or just its type if it is large."""
    if isinstance(value, str):
        return excerpt(value, _MAX_VALUE) or '""'
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < _MAX_INTEGER_BITS else "a very large number"
    if isinstance(value, dict | list):
        small = len(value) <= _MAX_MEMBERS and not any(
            isinstance(child, dict | list) for child in (value.values() if isinstance(value, dict) else value)
        )
        if not small:
            return "an object" if isinstance(value, dict) else "a list"
    return excerpt(compact_json(value), _MAX_VALUE)


def describe_schema(schema: Any, depth: int = 0) -> str:
    """Describe in a few words what a schema accepts, whatever its size."""
    if not isinstance(schema, dict):
        return "nothing" if schema is False else "anything"
    if "const" in schema:
        return format_value(schema["const"])
    if isinstance(options := schema.get("enum"), list):
        return " or ".join(map(format_value, options[:_MAX_MEMBERS])) + (
            " or others" if len(options) > _MAX_MEMBERS else ""
        )
    for keyword, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if isinstance(branches := schema.get(keyword), list) and depth < _MAX_NESTED:
            described = (describe_schema(branch, depth + 1) for branch in branches[:_MAX_MEMBERS])
            return excerpt(word.join(described), MAX_PROSE)
    kind = schema.get("type")
    kinds = [name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str)]
    text = " or ".join(kinds[:_MAX_MEMBERS])
    if depth < _MAX_NESTED and isinstance(properties := schema.get("properties"), dict) and properties:
        members = [
            f"{_short_name(name)}: {describe_schema(below, depth + 1)}" for name, below in list(properties.items())[:4]
        ]
        text = f"{text or 'object'} with {', '.join(members)}"
    elif isinstance(required := schema.get("required"), list) and required:
        text = f"{text or 'object'} with {_joined_names(required)}"
    if isinstance(schema.get("$ref"), str):
        text = excerpt(schema["$ref"].rpartition("/")[2], _MAX_NAME) or "the whole"
    parts = [text] if text else []
    for keyword in ("format", "pattern", "minimum", "exclusiveMinimum", "minLength", "minItems"):
        if keyword in schema and (part := describe_keyword(keyword, schema)):
            parts.append(part)
    return excerpt(", ".join(parts), MAX_PROSE) or "anything"


def describe_alternatives(keyword: str, branches: Sequence[Any]) -> str:
    """Describe what each alternative of an object requires, in the original order."""
    described = [excerpt(_alternative(branch), MAX_PROSE) for branch in branches[:_MAX_ALTERNATIVES]]
    text = "; ".join(f"{number}) {words}" for number, words in enumerate(described, 1))
    return f"{'Exactly one' if keyword == 'oneOf' else 'One'} of: {text}" + (
        "; …" if len(branches) > len(described) else ""
    )


def _alternative(branch: Any) -> str:
    if not isinstance(branch, dict):
        return describe_schema(branch)
    declared = branch.get("properties")
    properties = declared if isinstance(declared, dict) else {}
    fixed = [name for name, below in properties.items() if isinstance(below, dict) and "const" in below]
    parts = [f"{_short_name(name)} = {format_value(properties[name]['const'])}" for name in fixed[:_MAX_MEMBERS]]
    required = branch.get("required")
    needed = [name for name in required if name not in fixed] if isinstance(required, list) else []
    if needed:
        parts.append(f"needs {_joined_names(needed)}")
    optional = [name for name in properties if name not in fixed and name not in needed]
    if optional:
        parts.append(f"takes {_joined_names(optional)}")
    title = branch.get("title")
    text = ", ".join(parts) or describe_schema(without_keys(branch, {"properties"}))
    return f"{_short_name(title)}: {text}" if isinstance(title, str) and title else text


def describe_keyword(keyword: str, schema: Mapping[str, Any]) -> str | None:
    """Describe one keyword of a schema; None if there is nothing to say, or if another keyword's words include it."""
    value = schema[keyword]
    if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return _range(keyword, schema)
    if keyword in _PAIRS:
        low, high, unit = _PAIRS[keyword]
        return _describe_range(schema[low], schema.get(high), unit)
    if keyword in _UPPER:
        return None if _UPPER[keyword] in schema else f"at most {format_value(value)}{_PAIRS[_UPPER[keyword]][2]}"
    words = _describe_value(keyword, value, schema)
    return excerpt(words, MAX_PROSE) if words else None


def _describe_value(keyword: str, value: Any, schema: Mapping[str, Any]) -> str | None:  # noqa: C901 - one case per keyword
    match keyword:
        # Generators write a default of null for every optional argument.
        case "default" if value is None:
            return None
        case "format" | "pattern" | "default":
            return f"{keyword}: {value if isinstance(value, str) and value else format_value(value)}"
        case "multipleOf":
            return f"a multiple of {format_value(value)}"
        case "uniqueItems":
            return "no duplicates" if value is True else None
        case "const":
            return f"always {format_value(value)}"
        case "enum" if isinstance(value, list):
            more = ", …" if len(value) > _MAX_OPTIONS else ""
            return f"one of: {', '.join(map(format_value, value[:_MAX_OPTIONS]))}{more}"
        case "examples" if isinstance(value, list):
            return f"for example {' or '.join(map(format_value, value[:_MAX_EXAMPLES]))}" if value else None
        case "not":
            return f"not {describe_schema(value)}" if value not in ({}, True) else None
        case "if":
            words = f"if {describe_schema(value)}"
            words += f" then {describe_schema(schema['then'])}" if "then" in schema else ""
            return words + (f" else {describe_schema(schema['else'])}" if "else" in schema else "")
        case "anyOf" | "oneOf" if isinstance(value, list):
            many = f"{'exactly one' if keyword == 'oneOf' else 'one'} of: "
            return many + "; ".join(describe_schema(item) for item in value[:_MAX_MEMBERS])
        case "dependentRequired" | "dependencies" | "dependentSchemas" if isinstance(value, dict):
            return "; ".join(
                f"{_short_name(name)} needs "
                + (_joined_names(needs) if isinstance(needs, list) else describe_schema(needs))
                for name, needs in list(value.items())[:_MAX_MEMBERS]
            )
        case "patternProperties" if isinstance(value, dict):
            return "; ".join(
                f"names like {_short_name(pattern)}: {describe_schema(below)}"
                for pattern, below in list(value.items())[:_MAX_MEMBERS]
            )
        case "propertyNames" | "contains":
            return f"{'names' if keyword == 'propertyNames' else 'contains'}: {describe_schema(value)}"
        case "additionalProperties" if isinstance(value, dict):
            return f"other members: {describe_schema(value)}"
        case "prefixItems" | "items" if isinstance(value, list):
            return f"in this order: {', '.join(describe_schema(item) for item in value[:_MAX_MEMBERS])}"
        case "required" if isinstance(value, list) and value:
            return f"needs {_joined_names(value)}"
        case "contentEncoding" | "contentMediaType":
            return format_value(value)
        case "deprecated":
            return "deprecated" if value is True else None
    return None


def _short_name(name: str) -> str:
    return excerpt(name, _MAX_NAME)


def _joined_names(names: list[Any]) -> str:
    text = ", ".join(_short_name(str(name)) for name in names[:_MAX_MEMBERS])
    return text + (" …" if len(names) > _MAX_MEMBERS else "")


def _range(keyword: str, schema: Mapping[str, Any]) -> str | None:
    """Describe all bounds of a schema at once if `keyword` is its first bound; otherwise return None."""
    order = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    # In draft 4 the exclusive bounds are booleans.
    present = [key for key in order if key in schema and not isinstance(schema[key], bool)]
    present = [key for key in present if abs(schema[key]) < _NO_BOUND]
    if not present or keyword != present[0]:
        return None
    if present == ["minimum", "maximum"] and not any(isinstance(schema.get(key), bool) for key in order):
        return f"{format_value(schema['minimum'])} to {format_value(schema['maximum'])}"
    exclusive = {"minimum": schema.get("exclusiveMinimum") is True, "maximum": schema.get("exclusiveMaximum") is True}
    words = {
        "minimum": "more than" if exclusive["minimum"] else "at least",
        "exclusiveMinimum": "more than",
        "maximum": "less than" if exclusive["maximum"] else "at most",
        "exclusiveMaximum": "less than",
    }
    return ", ".join(f"{words[key]} {format_value(schema[key])}" for key in present)


def _describe_range(low: Any, high: Any, unit: str) -> str | None:
    if high is None:
        return f"at least {format_value(low)}{unit}" if low not in (0, None) else None
    return f"{format_value(low)}{unit}" if low == high else f"{format_value(low)} to {format_value(high)}{unit}"


# Keywords that identify or locate a schema without constraining values.
IDENTITY_KEYWORDS: Final = frozenset(
    {"$id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"}
)
# Removing these keywords does not change the meaning of a schema, so it is not a loss.
_NOT_REPORTED: Final = IDENTITY_KEYWORDS | {"$comment", "title", "$vocabulary"}


@dataclass(frozen=True, slots=True)
class SchemaLoss:
    """A loss of information at one place of a lowered schema.

    Attributes:
        path: The place in the lowered schema; empty for the root and the tool as a whole.
        keyword: The keyword that was changed.
        how: A phrase that describes the change.
        narrower: True if some call that the original accepts cannot be expressed; false if the schema accepts more.
    """

    path: JsonPath
    keyword: str
    how: str
    narrower: bool = False


@dataclass(slots=True)
class SchemaPosition:
    """One schema while it is lowered.

    Attributes:
        path: The place in the lowered schema.
        remarks: Remarks to add to the description of the schema.
        opened: The identities of the definitions that were expanded into the schema.
    """

    path: JsonPath
    remarks: list[str] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)


class LossReport:
    """Collects the losses of one pass over a schema."""

    __slots__ = ("losses",)

    def __init__(self) -> None:
        self.losses: list[SchemaLoss] = []

    def record(self, path: JsonPath, keyword: str, how: str, *, narrower: bool = False) -> None:
        """Record one loss for operators."""
        self.losses.append(SchemaLoss(path, keyword, how, narrower))

    def describe(self, keyword: str, node: Mapping[str, Any], position: SchemaPosition) -> None:
        """Record the loss of a keyword, and describe it to models if a few words suffice."""
        prose = describe_keyword(keyword, node)
        if prose:
            position.remarks.append(prose)
        if keyword not in _NOT_REPORTED and not keyword.startswith("x-"):
            self.record(position.path, keyword, f"described: {prose}" if prose else "removed")
