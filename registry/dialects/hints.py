"""Keywords of a schema as a few words of prose, for readers who are not shown the keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from registry.schema.schemas import text_of
from registry.schema.text import excerpt

MAX_HINT: Final = 160
_MAX_VALUE: Final = 60
_MAX_MEMBERS: Final = 6
_MAX_ALTERNATIVES: Final = 12
_NO_BOUND: Final = 2**53 - 1
_PAIRS: Final = {
    "minLength": ("minLength", "maxLength", " characters"),
    "minItems": ("minItems", "maxItems", " items"),
    "minProperties": ("minProperties", "maxProperties", " members"),
}
_UPPER: Final = {"maxLength": "minLength", "maxItems": "minItems", "maxProperties": "minProperties"}


def shown(value: Any) -> str:
    """Return a JSON value as short text; large ones are named by their kind."""
    if isinstance(value, str):
        return excerpt(value, _MAX_VALUE) or '""'
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < 128 else "a very large number"
    if isinstance(value, dict | list):
        small = len(value) <= _MAX_MEMBERS and not any(
            isinstance(child, dict | list) for child in (value.values() if isinstance(value, dict) else value)
        )
        if not small:
            return "an object" if isinstance(value, dict) else "a list"
    return excerpt(text_of(value), _MAX_VALUE)


def brief(schema: Any, depth: int = 0) -> str:
    """Return what a schema accepts in a few words, whatever its size."""
    if not isinstance(schema, dict):
        return "nothing" if schema is False else "anything"
    if "const" in schema:
        return shown(schema["const"])
    if isinstance(options := schema.get("enum"), list):
        return " or ".join(map(shown, options[:_MAX_MEMBERS])) + (" or others" if len(options) > _MAX_MEMBERS else "")
    for keyword, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if isinstance(branches := schema.get(keyword), list) and depth < 2:
            return excerpt(word.join(brief(one, depth + 1) for one in branches[:_MAX_MEMBERS]), MAX_HINT)
    kind = schema.get("type")
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)]
    text = " or ".join(kinds[:_MAX_MEMBERS])
    if depth < 2 and isinstance(properties := schema.get("properties"), dict) and properties:
        members = [f"{excerpt(name, 40)}: {brief(below, depth + 1)}" for name, below in list(properties.items())[:4]]
        text = f"{text or 'object'} with {', '.join(members)}"
    elif isinstance(required := schema.get("required"), list) and required:
        text = f"{text or 'object'} with {_names(required)}"
    if isinstance(schema.get("$ref"), str):
        text = excerpt(schema["$ref"].rpartition("/")[2], 40) or "the whole"
    parts = [text] if text else []
    for keyword in ("format", "pattern", "minimum", "exclusiveMinimum", "minLength", "minItems"):
        if keyword in schema and (part := hint(keyword, schema)):
            parts.append(part)
    return excerpt(", ".join(parts), MAX_HINT) or "anything"


def alternatives(keyword: str, branches: Sequence[Any]) -> str:
    """Return what the alternatives of an object ask for, in the order of the author."""
    told = [excerpt(_alternative(branch), MAX_HINT) for branch in branches[:_MAX_ALTERNATIVES]]
    text = "; ".join(f"{place}) {words}" for place, words in enumerate(told, 1))
    return f"{'Exactly one' if keyword == 'oneOf' else 'One'} of: {text}" + ("; …" if len(branches) > len(told) else "")


def _alternative(branch: Any) -> str:
    if not isinstance(branch, dict):
        return brief(branch)
    declared = branch.get("properties")
    properties = declared if isinstance(declared, dict) else {}
    fixed = [name for name, below in properties.items() if isinstance(below, dict) and "const" in below]
    parts = [f"{excerpt(name, 40)} = {shown(properties[name]['const'])}" for name in fixed[:_MAX_MEMBERS]]
    required = branch.get("required")
    needed = [name for name in required if name not in fixed] if isinstance(required, list) else []
    if needed:
        parts.append(f"needs {_names(needed)}")
    others = [name for name in properties if name not in fixed and name not in needed]
    if others:
        parts.append(f"takes {_names(others)}")
    title = branch.get("title")
    text = ", ".join(parts) or brief({key: value for key, value in branch.items() if key != "properties"})
    return f"{excerpt(title, 40)}: {text}" if isinstance(title, str) and title else text


def hint(keyword: str, schema: Mapping[str, Any]) -> str | None:
    """Return the words for one keyword of a schema; None where nothing is to be told, or another keyword tells it."""
    value = schema[keyword]
    if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return _range(keyword, schema)
    if keyword in _PAIRS:
        low, high, unit = _PAIRS[keyword]
        return _between(schema[low], schema.get(high), unit)
    if keyword in _UPPER:
        return None if _UPPER[keyword] in schema else f"at most {shown(value)}{_PAIRS[_UPPER[keyword]][2]}"
    words = _words(keyword, value, schema)
    return excerpt(words, MAX_HINT) if words else None


def _words(keyword: str, value: Any, schema: Mapping[str, Any]) -> str | None:
    match keyword:
        case "default" if value is None:
            return None
        case "format" | "pattern" | "default":
            return f"{keyword}: {value if isinstance(value, str) and value else shown(value)}"
        case "multipleOf":
            return f"a multiple of {shown(value)}"
        case "uniqueItems":
            return "no duplicates" if value is True else None
        case "const":
            return f"always {shown(value)}"
        case "enum" if isinstance(value, list):
            return f"one of: {', '.join(map(shown, value[:20]))}{', …' if len(value) > 20 else ''}"
        case "examples" if isinstance(value, list):
            return f"for example {' or '.join(map(shown, value[:2]))}" if value else None
        case "not":
            return f"not {brief(value)}" if value not in ({}, True) else None
        case "if":
            words = f"if {brief(value)}"
            words += f" then {brief(schema['then'])}" if "then" in schema else ""
            return words + (f" else {brief(schema['else'])}" if "else" in schema else "")
        case "anyOf" | "oneOf" if isinstance(value, list):
            many = f"{'exactly one' if keyword == 'oneOf' else 'one'} of: "
            return many + "; ".join(brief(one) for one in value[:_MAX_MEMBERS])
        case "dependentRequired" | "dependencies" | "dependentSchemas" if isinstance(value, dict):
            return "; ".join(
                f"{excerpt(name, 40)} needs {_names(names) if isinstance(names, list) else brief(names)}"
                for name, names in list(value.items())[:_MAX_MEMBERS]
            )
        case "patternProperties" if isinstance(value, dict):
            return "; ".join(
                f"names like {excerpt(pattern, 40)}: {brief(below)}"
                for pattern, below in list(value.items())[:_MAX_MEMBERS]
            )
        case "propertyNames" | "contains":
            return f"{'names' if keyword == 'propertyNames' else 'contains'}: {brief(value)}"
        case "additionalProperties" if isinstance(value, dict):
            return f"other members: {brief(value)}"
        case "prefixItems" | "items" if isinstance(value, list):
            return f"in this order: {', '.join(brief(one) for one in value[:_MAX_MEMBERS])}"
        case "required" if isinstance(value, list) and value:
            return f"needs {_names(value)}"
        case "contentEncoding" | "contentMediaType":
            return shown(value)
        case "deprecated":
            return "deprecated" if value is True else None
    return None


def _names(names: list[Any]) -> str:
    text = ", ".join(excerpt(str(name), 40) for name in names[:_MAX_MEMBERS])
    return text + (" …" if len(names) > _MAX_MEMBERS else "")


def _range(keyword: str, schema: Mapping[str, Any]) -> str | None:
    """Both ends in the words of the first one that is there."""
    order = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    # Draft 4 has booleans beside the bounds.
    there = [one for one in order if one in schema and not isinstance(schema[one], bool)]
    # Generators write the limits of their language's numbers.
    there = [one for one in there if abs(schema[one]) < _NO_BOUND]
    if not there or keyword != there[0]:
        return None
    if there == ["minimum", "maximum"] and not any(isinstance(schema.get(one), bool) for one in order):
        return f"{shown(schema['minimum'])} to {shown(schema['maximum'])}"
    strictly = {"minimum": schema.get("exclusiveMinimum") is True, "maximum": schema.get("exclusiveMaximum") is True}
    words = {
        "minimum": "more than" if strictly["minimum"] else "at least",
        "exclusiveMinimum": "more than",
        "maximum": "less than" if strictly["maximum"] else "at most",
        "exclusiveMaximum": "less than",
    }
    return ", ".join(f"{words[one]} {shown(schema[one])}" for one in there)


def _between(low: Any, high: Any, unit: str) -> str | None:
    if high is None:
        return f"at least {shown(low)}{unit}" if low not in (0, None) else None
    return f"{shown(low)}{unit}" if low == high else f"{shown(low)} to {shown(high)}{unit}"
