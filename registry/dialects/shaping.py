"""Write one schema in the form that a model API requires, and say in words what it no longer expresses.

`remove_null_alternatives` is for upstreams that accept null for every optional argument. Declaring null for each
argument doubles the types that a model reads, without useful information. Null is still accepted in calls, because
calls are checked against the original schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.dialects.client_profiles import Dialect
from registry.dialects.merging import ANNOTATIONS
from registry.schema.display_text import excerpt
from registry.schema.json_paths import JsonPath
from registry.schema.json_values import map_items, map_members, without_keys
from registry.schema.packed_definition import members_of
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS
from registry.schema.schemas import MAX_SCHEMA_DEPTH, compact_json

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
            words := describe_keyword("additionalProperties", node)
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
