"""The form that each keyword of a schema has: what is meant by a value in another form, or that it means nothing.

Each function returns a value in the right form: the same object if it has that form, and `DROP` if nothing is meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from registry.schema.schemas import canonical_json

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
"""The types of JSON Schema."""
# Names of types in other languages, where no value of the language is anything else in JSON.
_OTHER_TYPES: Final = {
    "int": "integer", "int32": "integer", "int64": "integer", "uint": "integer", "uint32": "integer",
    "uint64": "integer", "long": "integer", "short": "integer", "bigint": "integer", "float": "number",
    "float32": "number", "float64": "number", "double": "number", "decimal": "number", "num": "number",
    "str": "string", "text": "string", "char": "string", "varchar": "string", "bool": "boolean", "list": "array",
    "tuple": "array", "set": "array", "vector": "array", "dict": "object", "dictionary": "object", "map": "object",
    "hash": "object", "struct": "object", "record": "object", "none": "null", "nil": "null", "nonetype": "null",
    "void": "null",
}  # fmt: skip

DROP: Final = object()
"""Stands for the value of a keyword that has to be removed."""


def schema_form(value: Any) -> Any:
    if isinstance(value, dict | bool):
        return value
    if isinstance(value, str):
        if value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        found = _type(value)
        return DROP if found is DROP else {"type": found}
    return {} if value == [] else DROP  # PHP has one empty value for lists and objects


def _property(value: Any) -> Any:
    # Valid JSON Schema, but several model APIs and clients expect an object for each property.
    if isinstance(value, bool):
        return {} if value else {"not": {}}
    found = schema_form(value)
    return {} if found is DROP or isinstance(found, bool) else found


def _schemas(value: Any) -> Any:
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list) or not value:
        return DROP
    fixed = [schema_form(one) for one in value]
    fixed = [True if one is DROP else one for one in fixed]
    return value if all(new is old for new, old in zip(fixed, value, strict=True)) else fixed


def _every(value: Any) -> Any:
    """Return the schemas of `allOf`, without what is none."""
    fixed = _schemas(value)
    if not isinstance(fixed, list):
        return fixed
    kept = [one for one in fixed if one is not True] or [True]
    return fixed if len(kept) == len(fixed) else kept


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
    """Return a list of names, each once."""
    if isinstance(value, str) and value and value.lower() not in ("true", "false"):
        return [value]
    if not isinstance(value, list):
        return DROP
    kept = list(dict.fromkeys(name for name in value if isinstance(name, str)))
    return value if len(kept) == len(value) else kept


def _type(value: Any) -> Any:
    if isinstance(value, list):
        found: list[str] = []
        for one in value:
            kind = _type(one)
            if kind is DROP or not isinstance(one, str):
                # One of the alternatives is not known, so any type may be meant.
                return DROP if one is not None else _type([*(other for other in value if other is not None), "null"])
            found += kind if isinstance(kind, list) else [kind]
        kept = list(dict.fromkeys(found))
        return DROP if not kept else value if kept == value else kept
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
    """Return the options of an `enum`, each once."""
    if not isinstance(value, list) or not value:
        return DROP
    distinct: dict[bytes, Any] = {}
    for option in value:
        distinct.setdefault(canonical_json(option), option)
    kept = list(distinct.values())
    return value if len(kept) == len(value) else kept


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return DROP
    if isinstance(value, str):
        try:
            value = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            return DROP
    return value if isinstance(value, int | float) and math.isfinite(value) else DROP


def _bound(value: Any) -> Any:
    return value if isinstance(value, bool) else _number(value)


def _divisor(value: Any) -> Any:
    found = _number(value)
    return found if found is not DROP and found > 0 else DROP


def _count(value: Any) -> Any:
    found = _number(value)
    if found is DROP or found < 0 or found != int(found):
        return DROP
    return int(found) if isinstance(found, float) else found


def _switch(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value if isinstance(value, bool) else DROP


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else DROP


def _prose(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else DROP


def _list(value: Any) -> Any:
    return value if isinstance(value, list) else DROP if value is None else [value]


FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("title", "description", "$comment"), _prose),
    **dict.fromkeys(("$schema", "$ref", "$dynamicRef", "$recursiveRef", "pattern", "format"), _text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _bound),
    "multipleOf": _divisor,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("minContains", "maxContains"), _count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly", "nullable", "$recursiveAnchor"), _switch),
    "type": _type,
    "enum": _options,
    "required": _names,
    "examples": _list,
    **dict.fromkeys(("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else"), schema_form),
    **dict.fromkeys(("propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"), schema_form),
    "items": _items,
    **dict.fromkeys(("anyOf", "oneOf", "prefixItems"), _schemas),
    "allOf": _every,
    "properties": lambda value: _map(value, _property),
    **dict.fromkeys(
        ("patternProperties", "$defs", "definitions", "dependentSchemas"), lambda value: _map(value, schema_form)
    ),
    "dependencies": _dependencies,
    "dependentRequired": _dependent_names,
}
"""The form of each keyword."""
