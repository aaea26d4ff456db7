"""The schemas that each host and model API refuses, written independently of the rules under test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from registry.dialects.client_profiles import Dialect
from registry.dialects.definitions import LoweredDefinition, lower_definition
from registry.errors import SchemaRejected
from registry.schema import schemas
from registry.schema.references import DATA_KEYWORDS, SUBSCHEMA_MAPS

ROOT_COMPOSITION = {"anyOf", "oneOf", "allOf"}
FREE_ROOT = {"mcp", "codex", "gemini-cli", "qwen-code"}
CODEX_STRIPS = {"default", "format", "pattern", "not", "if", "minimum", "maximum", "minLength", "maxItems"}
GEMINI_REFUSES = {"$ref", "$defs", "additionalProperties", "$schema", "oneOf", "allOf", "const", "prefixItems"}
STRICT_REFUSES = {"oneOf", "allOf", "not", "if", "patternProperties", "default", "prefixItems", "propertyNames"}
ANTHROPIC_KEYS = {"anthropic", "claude-code", "claude-desktop", "cursor", "vscode", "opencode"}
DESCRIPTIONS = {"claude-code": 2_048, "claude-desktop": 2_048, "openai": 1_024, "openai-strict": 1_024}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema inside a schema that is an object."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, child in schema.items():
        if key in SUBSCHEMA_MAPS and isinstance(child, dict):
            for below in child.values():
                yield from nodes(below)
        elif key not in DATA_KEYWORDS:
            for below in child if isinstance(child, list) else [child]:
                yield from nodes(below)


def violations(definition: Mapping[str, Any], dialect: str) -> list[str]:
    """Return what a host or API of this dialect would refuse, drop or strip in a definition."""
    schema = definition["inputSchema"]
    found = [] if schema.get("type") == "object" else ["the root is no object"]
    if dialect not in FREE_ROOT and ROOT_COMPOSITION & schema.keys():
        found.append("root composition")
    if len(definition["description"]) > DESCRIPTIONS.get(dialect, 10**9):
        found.append("the description is too long")
    for node in nodes(schema):
        found += _of_node(node, dialect)
    return found


def _of_node(node: dict[str, Any], dialect: str) -> Iterator[str]:
    properties = node.get("properties", {})
    if dialect != "mcp" and any(isinstance(below, bool) for below in properties.values()):
        yield "a boolean property"
    if dialect in ANTHROPIC_KEYS and not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in properties):
        yield "a property's name"
    if dialect == "codex":
        yield from CODEX_STRIPS & node.keys()
        if isinstance(node.get("items"), list):
            yield "items as a list"
    if dialect == "gemini":
        yield from GEMINI_REFUSES & node.keys()
        if isinstance(node.get("type"), list):
            yield "a list of types"
        if node.get("type") == "array" and "items" not in node:
            yield "an array without items"
        if not all(isinstance(option, str) and option for option in node.get("enum", ())):
            yield "an enum of something else than texts"
        if not set(node.get("required", ())) <= properties.keys():
            yield "something undeclared is required"
    if dialect == "openai-strict":
        yield from STRICT_REFUSES & node.keys()
        kind = node.get("type")
        if kind == "object" or (isinstance(kind, list) and "object" in kind):
            if node.get("additionalProperties") is not False:
                yield "an open object"
            if list(properties) != node.get("required"):
                yield "something is not required"
        if "$ref" in node and len(node) > 1:
            yield "something beside $ref"
        if not node.keys() & {"type", "anyOf", "$ref"}:
            yield "no type"


def as_json_schema(schema: Any) -> Any:
    """Return a schema with `nullable`, a word of OpenAPI, in the words of JSON Schema."""
    if isinstance(schema, list):
        return [as_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: child if key in DATA_KEYWORDS else as_json_schema(child) for key, child in schema.items()}
    if read.get("nullable") is not True:
        return read
    del read["nullable"]
    return {"anyOf": [read, {"type": "null"}]}


def renamed(value: Any, keys: Mapping[str, str], understood: Any = None) -> Any:
    """Return arguments as a caller writes them who was shown other names.

    Args:
        value: The arguments in original names.
        keys: Shown names, each with the original.
        understood: What became of the arguments with every name changed; only names that came back there stand
            where the schema speaks of them, and are changed. None changes every name.
    """
    shown = {original: key for key, original in keys.items()}
    if isinstance(value, list):
        return [renamed(one, keys, understood and understood[place]) for place, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    written = {}
    for key, one in value.items():
        name = shown.get(key, key)
        if understood and key not in understood:
            written[key] = renamed(one, keys, understood[name])
        else:
            written[name] = renamed(one, keys, understood and understood[key])
    return written


def remove_null_alternatives(value: Any) -> Any:
    """Return a value without the members that are null."""
    if isinstance(value, dict):
        return {key: remove_null_alternatives(one) for key, one in value.items() if one is not None}
    return [remove_null_alternatives(one) for one in value] if isinstance(value, list) else value


def admitted(schema: dict[str, Any]) -> Any:
    """Return the compiled form, or None if intake would reject the schema."""
    try:
        schemas.check_bounds(schema)
        return schemas.compile_schema(schema)
    except SchemaRejected:
        return None


def lowered_to(dialect: str | Dialect, schema: dict[str, Any], description: str = "Does it.") -> LoweredDefinition:
    """Lower a schema as that of a tool."""
    return lower_definition({"name": "t", "description": description, "inputSchema": schema}, dialect)
