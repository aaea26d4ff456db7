"""Strategies for schemas that make dialects work, with arguments that have to do with them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from registry.schema.json_paths import resolve_reference

NAMES = st.sampled_from(["a", "b", "kind", "odd key", "日付", "x" * 70])
SCALARS = st.sampled_from([None, True, 0, 5, 1.5, "5", "x", "", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
PLAIN = (
    st.booleans()
    | st.sampled_from(KINDS).map(lambda kind: {"type": kind})
    | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(lambda kinds: {"type": kinds})
    | st.sampled_from(
        [
            {},
            {"enum": ["x", "a", 5]},
            {"enum": ["x", ""], "type": "string"},
            {"enum": ["x", None]},
            {"const": "x"},
            {"const": 5},
            {"type": "integer", "minimum": 3, "exclusiveMaximum": 9},
            {"type": "string", "minLength": 1, "pattern": "^[a-z]+$", "default": "x"},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "uri"},
            {"$ref": "#"},
            {"$ref": "#/$defs/node"},
            {"$ref": "#/$defs/leaf", "description": "A leaf."},
            {"$ref": "#/$defs/leaf", "maxLength": 1},
            {"$ref": "#/$defs/other/properties/a"},
            {"$dynamicRef": "#node"},
            {"minItems": 1},
            {"uniqueItems": True, "maxItems": 2},
        ]
    )
)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": inner.map(lambda below: {"^k": below}),
            "propertyNames": st.just({"pattern": "^[a-z]"}),
            "minProperties": st.integers(0, 2),
        },
    )


def _list_of(keyword: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda branches: {keyword: branches})


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    both = st.tuples(inner, inner)
    return (
        _object(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | both.map(lambda two: {"type": "array", "prefixItems": [two[0]], "items": two[1]})
        | st.lists(inner, min_size=1, max_size=2).map(lambda items: {"prefixItems": items, "maxItems": len(items)})
        | _list_of("anyOf", inner)
        | _list_of("oneOf", inner)
        | _list_of("allOf", inner)
        | st.tuples(_object(inner), _list_of("anyOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.tuples(_object(inner), _list_of("oneOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.tuples(_list_of("anyOf", inner), _list_of("oneOf", inner)).map(lambda two: {**two[0], **two[1]})
        | st.lists(NAMES, min_size=1, max_size=2).map(lambda names: {"required": names})
        | inner.map(lambda wrong: {"not": wrong})
        | both.map(lambda two: {"if": two[0], "then": two[1]})
        | both.map(lambda two: {"contains": two[0], "maxContains": 1})
        | inner.map(lambda needed: {"dependentSchemas": {"a": needed}})
        | _object(inner).map(lambda node: {**node, "unevaluatedProperties": False})
    )


SUBSCHEMAS = st.recursive(PLAIN, _compound, max_leaves=5)
COMBINED = st.tuples(_compound(SUBSCHEMAS), _object(SUBSCHEMAS)).map(lambda two: {**two[1], **two[0]})
ROOTS = st.tuples(_object(SUBSCHEMAS) | COMBINED | SUBSCHEMAS, SUBSCHEMAS, _object(SUBSCHEMAS)).map(
    lambda three: {
        **(three[0] if isinstance(three[0], dict) else {}),
        "type": "object",
        "$defs": {
            "node": {"$dynamicAnchor": "node", "type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}},
            "leaf": three[1],
            "other": {"type": "object", "properties": {"a": three[2]}},
        },
    }
)
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def in_draft_7(schema: Any) -> Any:
    """Return the same schema in draft 7, where keywords next to `$ref` are ignored."""
    if isinstance(schema, list):
        return [in_draft_7(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    newer = {"$dynamicRef", "$dynamicAnchor", "unevaluatedProperties", "maxContains"}
    read = {
        {"$defs": "definitions", "dependentSchemas": "dependencies"}.get(key, key): in_draft_7(child)
        for key, child in schema.items()
        if key not in newer
    }
    if isinstance(read.get("$ref"), str):
        read["$ref"] = read["$ref"].replace("$defs", "definitions")
    if isinstance(read.get("prefixItems"), list):
        rest = {"additionalItems": read.pop("items")} if "items" in read else {}
        read |= {"items": read.pop("prefixItems"), **rest}
    return read


ANY_ROOT = ROOTS | ROOTS.map(in_draft_7).map(lambda schema: {"$schema": DRAFT_7, **schema})
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


@st.composite
def fitting(draw: st.DrawFn, schema: Any, root: Any, depth: int = 0) -> Any:
    """Draw a value related to a schema, which often matches it."""
    schema = resolve_reference(schema, root)
    if not isinstance(schema, dict) or depth > 4 or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    branch: Any = None
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            branch = draw(fitting(draw(st.sampled_from(schema[keyword])), root, depth + 1))
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else draw(st.sampled_from(schema["enum"]))
    kinds = schema.get("type", "object" if schema.keys() & {"properties", "required"} else None)
    match draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds:
        case "object":
            value = dict(branch) if isinstance(branch, dict) else {}
            for name, below in schema.get("properties", {}).items():
                if below is not False and (name in schema.get("required", ()) or draw(st.booleans())):
                    value[name] = draw(fitting(below, root, depth + 1))
            if schema.get("additionalProperties") is not False:
                value |= draw(st.dictionaries(NAMES | st.just("k1"), VALUES, max_size=1))
            return value
        case "array":
            below = schema.get("items", schema.get("additionalItems", {}))
            value = [draw(fitting(one, root, depth + 1)) for one in schema.get("prefixItems", ())]
            return value + [draw(fitting(below, root, depth + 1)) for _ in range(draw(st.integers(0, 2)))]
        case "integer" | "number":
            return draw(st.integers(3, 8))
        case "string":
            return draw(st.sampled_from(["x", "", "a", "2020-01-01T00:00:00Z"]))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
    return draw(VALUES) if branch is None else branch


def with_arguments(schema: Any) -> st.SearchStrategy[tuple[Any, list[Any]]]:
    """Return a strategy for the schema with a few argument objects."""
    calls = fitting(schema, schema).filter(lambda value: isinstance(value, dict)) | ARGUMENTS
    return st.tuples(st.just(schema), st.lists(calls, min_size=1, max_size=6))


CALLED = ANY_ROOT.flatmap(with_arguments)
