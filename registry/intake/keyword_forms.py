"""Convert malformed values of schema keywords to the form that the specification requires.

Each function returns the converted value: the same object if it is well-formed, or `DROP` if its meaning is unclear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from registry.schema.schemas import canonical_json

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
"""The types of JSON Schema."""
# Type names of other languages. All values of such a type have the same JSON type.
_OTHER_TYPES: Final = {
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "uint": "integer",
    "uint32": "integer",
    "uint64": "integer",
    "long": "integer",
    "short": "integer",
    "bigint": "integer",
    "float": "number",
    "float32": "number",
    "float64": "number",
    "double": "number",
    "decimal": "number",
    "num": "number",
    "str": "string",
    "text": "string",
    "char": "string",
    "varchar": "string",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "vector": "array",
    "dict": "object",
    "dictionary": "object",
    "map": "object",
    "hash": "object",
    "struct": "object",
    "record": "object",
    "none": "null",
    "nil": "null",
    "nonetype": "null",
    "void": "null",
}

DROP: Final = object()
"""Marks a keyword that has to be removed."""


def schema_form(value: Any) -> Any:
    if isinstance(value, dict | bool):
        return value
    if isinstance(value, str):
        if value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        type_name = _type(value)
        return DROP if type_name is DROP else {"type": type_name}
    return {} if value == [] else DROP  # PHP serializes an empty object as an empty list


def _property(value: Any) -> Any:
    # Booleans are valid JSON Schema, but several model APIs and clients expect an object for each property.
    if isinstance(value, bool):
        return {} if value else {"not": {}}
    schema = schema_form(value)
    return {} if schema is DROP or isinstance(schema, bool) else schema


def _schemas(value: Any) -> Any:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list) or not value:
        return DROP
    fixed = [schema_form(schema) for schema in value]
    fixed = [True if schema is DROP else schema for schema in fixed]
    return value if all(new is old for new, old in zip(fixed, value, strict=True)) else fixed


def _valid_schemas(value: Any) -> Any:
    """Return the schemas of `allOf`, without invalid members."""
    fixed = _schemas(value)
    if not isinstance(fixed, list):
        return fixed
    restricting = [schema for schema in fixed if schema is not True] or [True]
    return fixed if len(restricting) == len(fixed) else restricting


def _items(value: Any) -> Any:
    if isinstance(value, list) and value:
        return _schemas(value)
    return value if value == [] else schema_form(value)


def _map(value: Any, form: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        return DROP
    fixed = {name: form(below) for name, below in value.items()}
    fixed = {name: {} if below is DROP else below for name, below in fixed.items()}
    return value if all(fixed[name] is below for name, below in value.items()) else fixed


def _dependencies(value: Any) -> Any:
    def form(below: Any) -> Any:
        if isinstance(below, str | list):
            return _names([below] if isinstance(below, str) else below)
        return schema_form(below)

    return _map(value, form)


def _dependent_names(value: Any) -> Any:
    if not isinstance(value, dict):
        return DROP
    fixed = {name: _names(below) for name, below in value.items()}
    fixed = {name: [] if below is DROP else below for name, below in fixed.items()}
    return value if all(fixed[name] is below for name, below in value.items()) else fixed


def _names(value: Any) -> Any:
    """Return a list of distinct names."""
    if isinstance(value, str) and value and value.lower() not in ("true", "false"):
        return [value]
    if not isinstance(value, list):
        return DROP
    names = list(dict.fromkeys(name for name in value if isinstance(name, str)))
    return value if len(names) == len(value) else names


def _type(value: Any) -> Any:
    if isinstance(value, list):
        kinds: list[str] = []
        for member in value:
            kind = _type(member)
            if kind is DROP or not isinstance(member, str):
                # If one of the alternatives is unknown, any type may be intended.
                return (
                    DROP if member is not None else _type([*(option for option in value if option is not None), "null"])
                )
            kinds += kind if isinstance(kind, list) else [kind]
        distinct = list(dict.fromkeys(kinds))
        return DROP if not distinct else value if distinct == value else distinct
    if not isinstance(value, str):
        return DROP
    if value in TYPES:
        return value
    plain = value.strip().lower()
    if plain in TYPES:
        return plain
    if plain.endswith("?"):
        return _type([plain[:-1], "null"])
    if "|" in plain or "," in plain:
        return _type([part.strip() for part in re.split(r"[|,]", plain)])
    if plain.endswith("[]") or re.fullmatch(r"(?:array|list|set)\s*[<\[(].*", plain):
        return "array"
    if re.fullmatch(r"(?:dict|map|record)\s*[<\[(].*", plain):
        return "object"
    return _OTHER_TYPES.get(plain, DROP)


def _options(value: Any) -> Any:
    """Return the distinct options of an `enum`."""
    if not isinstance(value, list) or not value:
        return DROP
    distinct: dict[bytes, Any] = {}
    for option in value:
        distinct.setdefault(canonical_json(option), option)
    options = list(distinct.values())
    return value if len(options) == len(value) else options


def _coerce_number(value: Any) -> Any:
    if isinstance(value, bool):
        return DROP
    if isinstance(value, str):
        try:
            value = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            return DROP
    return value if isinstance(value, int | float) and math.isfinite(value) else DROP


def _bound(value: Any) -> Any:
    return value if isinstance(value, bool) else _coerce_number(value)


def _divisor(value: Any) -> Any:
    number = _coerce_number(value)
    return number if number is not DROP and number > 0 else DROP


def _count(value: Any) -> Any:
    number = _coerce_number(value)
    if number is DROP or number < 0 or number != int(number):
        return DROP
    return int(number) if isinstance(number, float) else number


def _switch(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value if isinstance(value, bool) else DROP


def _vocabulary(value: Any) -> Any:
    return value if isinstance(value, dict) and all(isinstance(used, bool) for used in value.values()) else DROP


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else DROP


def _prose(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else DROP


def _coerce_list(value: Any) -> Any:
    return value if isinstance(value, list) else DROP if value is None else [value]


FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("title", "description", "$comment"), _prose),
    **dict.fromkeys(("$schema", "$ref", "$dynamicRef", "$recursiveRef", "pattern", "format"), _text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("minimum", "maximum"), _coerce_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _bound),
    "$vocabulary": _vocabulary,
    "multipleOf": _divisor,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly", "nullable", "$recursiveAnchor"), _switch),
    "type": _type,
    "enum": _options,
    "required": _names,
    "examples": _coerce_list,
    **dict.fromkeys(("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else"), schema_form),
    **dict.fromkeys(("propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"), schema_form),
    "items": _items,
    **dict.fromkeys(("anyOf", "oneOf", "prefixItems"), _schemas),
    "allOf": _valid_schemas,
    "properties": lambda value: _map(value, _property),
    **dict.fromkeys(
        ("patternProperties", "$defs", "definitions", "dependentSchemas"), lambda value: _map(value, schema_form)
    ),
    "dependencies": _dependencies,
    "dependentRequired": _dependent_names,
}
"""The function that converts the value of each keyword."""
