"""Write one schema in the form that a model API requires.

`remove_null_alternatives` is for upstreams that accept null for every optional argument. Declaring null for each
argument doubles the types that a model reads, without useful information. Null is still accepted in calls, because
calls are checked against the original schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.dialects import schema_prose
from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS
from registry.dialects.schema_prose import LossReport, SchemaPosition
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import map_items, map_members, without_keys
from registry.schema.packed_definition import members_of
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS
from registry.schema.schemas import MAX_SCHEMA_DEPTH

_NULL: Final = {"type": "null"}


def remove_null_alternatives(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a definition whose input schema does not offer null as an alternative; the same object if unchanged."""
    members = members_of(definition)
    schema = members.get("inputSchema")
    plain = _without_null(schema, 0)
    return definition if plain is schema else {**members, "inputSchema": plain}


def _without_null(node: Any, depth: int) -> Any:
    # `registry.intake` limits the depth, but a snapshot file may have been edited.
    if not isinstance(node, dict) or depth > MAX_SCHEMA_DEPTH:
        return node
    changed = {key: _in_keyword(key, child, depth) for key, child in node.items()}
    types, options, branches = changed.get("type"), changed.get("enum"), changed.get("anyOf")
    if remaining_types := _non_null_alternatives(types, "null", str):
        changed["type"] = remaining_types[0] if len(remaining_types) == 1 else remaining_types
        if remaining := _non_null_alternatives(options, None):
            changed["enum"] = remaining
        _drop_null_default(changed)
    if remaining := _non_null_alternatives(branches, _NULL):
        own = without_keys(changed, {"anyOf"})
        if len(remaining) > 1:
            changed["anyOf"] = remaining
        elif isinstance(remaining[0], dict) and not remaining[0].keys() & own.keys() - {"description"}:
            # The argument's own description has precedence over the description of its type.
            changed = {**remaining[0], **own}
        _drop_null_default(changed)
    same = changed.keys() == node.keys() and all(child is node[key] for key, child in changed.items())
    return node if same else changed


def _non_null_alternatives(alternatives: Any, null: Any, kind: type = object) -> list[Any]:
    """Return the alternatives other than null; empty if null is absent, or if they are not all of type `kind`."""
    if not isinstance(alternatives, list) or null not in alternatives:
        return []
    remaining = [option for option in alternatives if option != null]
    return remaining if all(isinstance(option, kind) for option in remaining) else []


def _drop_null_default(schema: dict[str, Any]) -> None:
    if schema.get("default", ...) is None:
        del schema["default"]


def _in_keyword(key: str, child: Any, depth: int) -> Any:
    if key in SUBSCHEMA_MAPS and isinstance(child, dict):
        return map_members(child, lambda below: _without_null(below, depth + 1))
    if key in DATA_KEYWORDS:
        return child
    if isinstance(child, list):
        return map_items(child, lambda below: _without_null(below, depth + 1))
    return _without_null(child, depth + 1)


# In strict dialects every schema needs a type. Every scalar value has one of these types.
_SCALAR_TYPES: Final = ["string", "number", "boolean", "null"]
_NUMBER_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_KEYWORDS_OF_TYPE: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyOrdering"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format", "enum"),
    "number": (*_NUMBER_KEYWORDS, "format"),
    "integer": (*_NUMBER_KEYWORDS, "format"),
}
# Keywords that imply a type, because authors only use them with that type.
_IMPLIED_TYPES: Final = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), "object"),
    **dict.fromkeys(_KEYWORDS_OF_TYPE["array"], "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength", "format"), "string"),
    **dict.fromkeys(_NUMBER_KEYWORDS, "number"),
}
_TYPE_GIVING_KEYWORDS: Final = frozenset({"type", "$ref", "anyOf", "oneOf", "enum", "const"})


def with_inferred_type(node: dict[str, Any], path: JsonPath, report: LossReport) -> dict[str, Any]:
    """Return a schema with the type that its other keywords imply, unless it has a type."""
    if "type" in node or "$ref" in node:
        return node
    if "const" in node or isinstance(node.get("enum"), list):
        values = [node["const"]] if "const" in node else node["enum"]
        kinds = list(dict.fromkeys(_json_type(value) for value in values))
        return {**node, "type": kinds[0] if len(kinds) == 1 else kinds} if kinds else node
    kind = next((_IMPLIED_TYPES[key] for key in node if key in _IMPLIED_TYPES), None)
    if kind is None:
        return node
    report.record(path, "type", f"assumed to be {'an' if kind[0] in 'ao' else 'a'} {kind}", narrower=True)
    return {**node, "type": kind}


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def without_unsupported_values(
    node: dict[str, Any], rules: Dialect, position: SchemaPosition, report: LossReport
) -> dict[str, Any]:
    """Return a schema without formats and enumerations that the dialect does not support."""
    changed = node
    if rules.typed:
        changed = _with_numeric_bounds(changed)
    if rules.formats is not None and "format" in changed:
        kind = changed.get("type")
        kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        if not any(changed["format"] in rules.formats.get(name, ()) for name in kinds):
            changed = _drop_keyword(changed, "format", position, report)
    if rules.text_enums_only:
        # `const` is more specific than `enum`, and is rewritten as an `enum` below.
        if "const" in changed and "enum" in changed:
            changed = _drop_keyword(changed, "enum", position, report)
        if isinstance(changed.get("const"), str) and changed["const"]:
            changed = {"enum" if key == "const" else key: value for key, value in changed.items()}
            changed["enum"] = [changed["enum"]]
        options = changed.get("enum")
        if isinstance(options, list):
            texts = [option for option in options if isinstance(option, str) and option]
            # Dropping null needs no remark: `nullable` expresses it, or the caller may omit the argument.
            if len(texts) < sum(option is not None for option in options) or not texts:
                changed = _drop_keyword(changed, "enum", position, report)
            elif len(texts) < len(options):
                changed = {**changed, "enum": texts}
    return changed


def _with_numeric_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """Rewrite the bounds of draft 4, where a boolean excludes the bound itself, in the form of later drafts."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(is_exclusive := node.get(exclusive), bool):
            node = without_keys(node, {exclusive})
            if is_exclusive and bound in node:
                node = {exclusive if key == bound else key: value for key, value in node.items()}
    return node


def _drop_keyword(node: dict[str, Any], keyword: str, position: SchemaPosition, report: LossReport) -> dict[str, Any]:
    report.describe(keyword, node, position)
    return without_keys(node, {keyword})


def in_dialect_form(
    node: dict[str, Any], rules: Dialect, position: SchemaPosition, report: LossReport
) -> dict[str, Any]:
    """Return a schema in the form of the dialect; its subschemas must already have that form."""
    if rules.typed and isinstance(required := node.get("required"), list):
        properties = node.get("properties") or {}
        # APIs reject a required name that is not declared, so such a name is described in a remark instead.
        undeclared = [name for name in required if name not in properties]
        if undeclared:
            report.describe("required", {"required": undeclared}, position)
            node = {**node, "required": [name for name in required if name in properties]}
    if not rules.type_lists:
        node = _with_nullable(node)
    if rules.arrays_need_items and "items" not in node and _may_be_array(node.get("type")):
        node = {**node, "items": {}}
    return _strict(node, position, report) if rules.strict else node


def _may_be_array(kind: Any) -> bool:
    return kind == "array" or (isinstance(kind, list) and "array" in kind)


def _with_nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that expresses null with `nullable`, and a choice of several types with `anyOf`."""
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        if not kinds:
            return {**node, "type": "null"}
        if len(kinds) < len(kind):
            node = {**node, "nullable": True}
        if len(kinds) == 1:
            return {**node, "type": kinds[0]}
        return _by_type(node, kinds)
    branches = node.get("anyOf")
    if isinstance(branches, list):
        non_null = [
            branch for branch in branches if branch.get("type") != "null" or branch.keys() - {"type", *ANNOTATIONS}
        ]
        if non_null and len(non_null) < len(branches):
            node = {**node, "anyOf": non_null, "nullable": True}
            if len(non_null) == 1 and not (node.keys() & non_null[0].keys()) - ANNOTATIONS - {"nullable"}:
                node = {**non_null[0], **without_keys(node, {"anyOf"})}
    return node


def _by_type(node: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    specific = {keyword for keywords in _KEYWORDS_OF_TYPE.values() for keyword in keywords}
    alternatives = [
        {"type": kind, **{key: node[key] for key in _KEYWORDS_OF_TYPE.get(kind, ()) if key in node}} for kind in kinds
    ]
    for alternative in alternatives:
        if alternative["type"] == "array":
            alternative.setdefault("items", {})
    common = {key: value for key, value in node.items() if key != "type" and key not in specific}
    return {**common, "anyOf": alternatives}


def _strict(node: dict[str, Any], position: SchemaPosition, report: LossReport) -> dict[str, Any]:
    if "$ref" in node:
        # In strict dialects, other keywords must not be next to a `$ref`, so the `$ref` moves into an `anyOf`.
        kept_annotations = {key: value for key, value in node.items() if key in ANNOTATIONS}
        return {**kept_annotations, "anyOf": [{"$ref": node["$ref"]}]} if kept_annotations else node
    kind = node.get("type")
    if kind is None:
        if not position.path or node.keys() & _TYPE_GIVING_KEYWORDS:
            return node
        report.record(position.path, "type", "only strings, numbers, booleans and null", narrower=True)
        return {**node, "type": _SCALAR_TYPES}
    kinds = [kind] if isinstance(kind, str) else kind
    if "array" in kinds and "items" not in node:
        report.record((*position.path, "items"), "type", "only strings, numbers, booleans and null", narrower=True)
        node = {**node, "items": {"type": _SCALAR_TYPES}}
    return _close_object(node, position, report) if "object" in kinds else node


def _close_object(node: dict[str, Any], position: SchemaPosition, report: LossReport) -> dict[str, Any]:
    properties = node.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = node.get("required")
    required = required if isinstance(required, list) else []
    closed = node.get("additionalProperties") is False
    demanded = set(required)  # searched once per property, of which there may be thousands
    strict_properties: dict[str, Any] = {}
    changed = not closed or not {"properties", "required"} <= node.keys() or required != list(properties)
    for name, below in properties.items():
        strict_properties[name] = below if name in demanded else _nullable(below)
        if strict_properties[name] is not below:
            changed = True
            report.record((*position.path, "properties", name), "required", "null represents an omitted value")
    if not closed:
        stated = "additionalProperties" in node
        how = "members of any name cannot be given" if stated else "members that are not declared cannot be given"
        report.record(position.path, "additionalProperties", how, narrower=True)
        if isinstance(node.get("additionalProperties"), dict) and (
            words := schema_prose.describe_keyword("additionalProperties", node)
        ):
            position.remarks.append(f"{words}, which cannot be given here")
    if not changed:
        return node
    return {**node, "properties": strict_properties, "required": list(properties), "additionalProperties": False}


def _nullable(node: Any) -> Any:
    """Return a schema that also accepts null; the same object if the schema already accepts null."""
    if not isinstance(node, dict):
        return node
    if isinstance(branches := node.get("anyOf"), list):
        null = any(isinstance(branch, dict) and _accepts_null(branch) for branch in branches)
        return node if null else {**node, "anyOf": [*branches, {"type": "null"}]}
    if _accepts_null(node):
        return node
    if "$ref" in node:
        return {"anyOf": [node, {"type": "null"}]}
    if "const" in node:
        node = {"enum" if key == "const" else key: value for key, value in node.items()}
        node["enum"] = [node["enum"]]
    kind = node.get("type")
    changed = dict(node)
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        changed["type"] = kinds if "null" in kinds else [*kinds, "null"]
    if isinstance(options := node.get("enum"), list) and None not in options:
        changed["enum"] = [*options, None]
    return changed


def _accepts_null(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    if "$ref" in node or "anyOf" in node or ("const" in node and node["const"] is not None):
        return False
    if isinstance(options := node.get("enum"), list) and None not in options:
        return False
    return kind is None or kind == "null" or (isinstance(kind, list) and "null" in kind)
