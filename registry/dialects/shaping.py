"""The form of one schema that a model API asks for: how types, null, enumerations and closed objects are written."""

from __future__ import annotations

from typing import Any, Final

from registry.dialects import hints
from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS
from registry.dialects.weakening import Report, Spot
from registry.schema.json_paths import Path

_SCALARS: Final = ["string", "number", "boolean", "null"]
_OF_TYPE: Final = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyOrdering"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format", "enum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
}
_IMPLIES: Final = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "patternProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "maxItems": "array",
    "pattern": "string",
    "minLength": "string",
    "maxLength": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
}
_ALIEN: Final = frozenset({"type", "$ref", "anyOf", "oneOf", "enum", "const"})


def inferred(node: dict[str, Any], path: Path, report: Report) -> dict[str, Any]:
    """Return the schema with the type that its author surely meant, where it has none."""
    if "type" in node or "$ref" in node:
        return node
    if "const" in node or isinstance(node.get("enum"), list):
        values = [node["const"]] if "const" in node else node["enum"]
        kinds = list(dict.fromkeys(_kind(value) for value in values))
        return {**node, "type": kinds[0] if len(kinds) == 1 else kinds} if kinds else node
    kind = next((_IMPLIES[key] for key in node if key in _IMPLIES), None)
    if kind is None:
        return node
    report.note(path, "type", f"taken for {'an' if kind[0] in 'ao' else 'a'} {kind}", narrower=True)
    return {**node, "type": kind}


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def spelt(node: dict[str, Any], rules: Dialect, spot: Spot, report: Report) -> dict[str, Any]:
    """Return the schema without formats and enumerations that the dialect does not take."""
    changed = node
    if rules.typed:
        changed = _with_numbers_for_ends(changed)
    if rules.formats is not None and "format" in changed:
        kind = changed.get("type")
        kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        if not any(changed["format"] in rules.formats.get(one, ()) for one in kinds):
            changed = _without(changed, "format", spot, report)
    if rules.text_enums_only:
        if "const" in changed and "enum" in changed:
            changed = _without(changed, "enum", spot, report)
        if isinstance(changed.get("const"), str) and changed["const"]:
            changed = {"enum" if key == "const" else key: value for key, value in changed.items()}
            changed["enum"] = [changed["enum"]]
        options = changed.get("enum")
        if isinstance(options, list):
            texts = [option for option in options if isinstance(option, str) and option]
            if len(texts) < sum(option is not None for option in options) or not texts:
                changed = _without(changed, "enum", spot, report)
            elif len(texts) < len(options):
                changed = {**changed, "enum": texts}
    return changed


def _with_numbers_for_ends(node: dict[str, Any]) -> dict[str, Any]:
    """Write the bounds of draft 4, where a boolean says that the bound itself does not fit, as later drafts do."""
    for end, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(strictly := node.get(exclusive), bool):
            node = {key: value for key, value in node.items() if key != exclusive}
            if strictly and end in node:
                node = {exclusive if key == end else key: value for key, value in node.items()}
    return node


def _without(node: dict[str, Any], keyword: str, spot: Spot, report: Report) -> dict[str, Any]:
    report.tell(keyword, node, spot)
    return {key: value for key, value in node.items() if key != keyword}


def shaped(node: dict[str, Any], rules: Dialect, spot: Spot, report: Report) -> dict[str, Any]:
    """Return the schema, whose subschemas have their form already, in the form of the dialect."""
    if rules.typed and isinstance(required := node.get("required"), list):
        properties = node.get("properties") or {}
        undeclared = [name for name in required if name not in properties]
        if undeclared:
            report.tell("required", {"required": undeclared}, spot)
            node = {**node, "required": [name for name in required if name in properties]}
    if not rules.type_lists:
        node = _with_nullable(node)
    if rules.arrays_need_items and node.get("type") == "array" and "items" not in node:
        node = {**node, "items": {}}
    return _strict(node, spot, report) if rules.strict else node


def _with_nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Write null as `nullable`, and several types as alternatives."""
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        if not kinds:
            return {**node, "type": "null"}
        if len(kinds) < len(kind):
            node = {**node, "nullable": True}
        if len(kinds) == 1:
            return {**node, "type": kinds[0]}
        return _by_type(node, kinds)
    branches = node.get("anyOf")
    if isinstance(branches, list):
        others = [one for one in branches if not (one.get("type") == "null" and one.keys() <= {"type", *ANNOTATIONS})]
        if others and len(others) < len(branches):
            node = {**node, "anyOf": others, "nullable": True}
            if len(others) == 1 and not (node.keys() & others[0].keys()) - ANNOTATIONS - {"nullable"}:
                node = {**others[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    return node


def _by_type(node: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    specific = {keyword for keywords in _OF_TYPE.values() for keyword in keywords}
    alternatives = [
        {"type": kind, **{key: node[key] for key in _OF_TYPE.get(kind, ()) if key in node}} for kind in kinds
    ]
    for one in alternatives:
        if one["type"] == "array":
            one.setdefault("items", {})
    common = {key: value for key, value in node.items() if key != "type" and key not in specific}
    return {**common, "anyOf": alternatives}


def _strict(node: dict[str, Any], spot: Spot, report: Report) -> dict[str, Any]:
    if "$ref" in node:
        rest = {key: value for key, value in node.items() if key in ANNOTATIONS}
        return {**rest, "anyOf": [{"$ref": node["$ref"]}]} if rest else node
    kind = node.get("type")
    if kind is None:
        if not spot.path or node.keys() & _ALIEN:
            return node
        report.note(spot.path, "type", "only texts, numbers, booleans and null", narrower=True)
        return {**node, "type": _SCALARS}
    kinds = [kind] if isinstance(kind, str) else kind
    if "array" in kinds and "items" not in node:
        report.note((*spot.path, "items"), "type", "only texts, numbers, booleans and null", narrower=True)
        node = {**node, "items": {"type": _SCALARS}}
    return _closed(node, spot, report) if "object" in kinds else node


def _closed(node: dict[str, Any], spot: Spot, report: Report) -> dict[str, Any]:
    properties = node.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = node.get("required")
    required = required if isinstance(required, list) else []
    shut = node.get("additionalProperties") is False
    demanded = set(required)
    written: dict[str, Any] = {}
    changed = not shut or not {"properties", "required"} <= node.keys() or required != list(properties)
    for name, below in properties.items():
        written[name] = below if name in demanded else _nullable(below)
        if written[name] is not below:
            changed = True
            report.note((*spot.path, "properties", name), "required", "null stands for what is left out")
    if not shut:
        stated = "additionalProperties" in node
        how = "members of any name cannot be given" if stated else "members that are not declared cannot be given"
        report.note(spot.path, "additionalProperties", how, narrower=True)
        if isinstance(node.get("additionalProperties"), dict) and (words := hints.hint("additionalProperties", node)):
            spot.told.append(f"{words}, which cannot be given here")
    if not changed:
        return node
    return {**node, "properties": written, "required": list(properties), "additionalProperties": False}


def _nullable(node: Any) -> Any:
    """Return a schema that accepts null as well; the same object where it does."""
    if not isinstance(node, dict):
        return node
    if isinstance(branches := node.get("anyOf"), list):
        null = any(isinstance(one, dict) and _accepts_null(one) for one in branches)
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
