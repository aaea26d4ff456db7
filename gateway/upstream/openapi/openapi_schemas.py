"""Convert the schemas of an OpenAPI document to JSON Schema 2020-12.

References are never inlined. A component is a schema to which a reference leads. Every component that a tool's schemas
refer to, directly or through other components, becomes one of the tool's `$defs`, so that recursive schemas stay
recursive.

Sources: OpenAPI 3.1.1, 3.0.4 and 2.0, section "Schema Object".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from gateway.protocol import json_bytes
from gateway.upstream.openapi.openapi_document import MAX_DEPTH, MAX_HOPS, Documents, Key, Node, OperationRefused
from registry.schema.references import SchemaDocument
from registry.schema.weakening import Edit, apply_edits

Direction = Literal["request", "response"]
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
# Keywords whose value is one schema, a list of schemas, or an object of schemas.
_ONE: Final = frozenset(
    {"additionalProperties", "not", "items", "contains", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
# Keywords that do not constrain values, or whose meaning is converted to other keywords.
_DROPPED: Final = frozenset(
    {"nullable", "discriminator", "xml", "externalDocs", "example", "readOnly", "writeOnly", "collectionFormat"}
    | {"$defs", "definitions", "$id", "id", "$anchor", "$schema", "$comment", "$vocabulary", "$dynamicAnchor"}
)
# Keywords that are copied if they occur next to `$ref`. Before 3.1, the specification ignores every keyword next to
# `$ref`, but authors commonly rely on these keywords.
_BESIDE_REFERENCE: Final = frozenset({"description", "title", "default", "deprecated"})
_BINARY: Final = "Binary data, encoded as base64."


def has_reference(example: Any) -> bool:
    """Return whether an example contains a reference, which could not be resolved in a tool definition."""
    return isinstance(example, dict | list) and b'"$ref"' in json_bytes.dumps(example)


class SchemaConverter:
    """Converts the schemas of a document, each component once for requests and once for responses."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._names: dict[Key, str] = {}
        self._taken: set[str] = set()
        self._components: dict[tuple[Key, Direction], tuple[Any, tuple[Key, ...], int]] = {}
        self._nodes: dict[Key, Node] = {}
        # Keyed by content, because documents repeat small schemas, such as the schema of a name, in each operation.
        self._converted: dict[tuple[str, bytes, Direction], tuple[Any, frozenset[Key]]] = {}
        self._reached: dict[tuple[tuple[Key, ...], Direction, int | None], tuple[dict[str, Any], list[Any]]] = {}

    def convert(self, node: Node, direction: Direction) -> tuple[Any, frozenset[Key]]:
        """Return the converted schema, and the components that it refers to directly.

        Equal arguments return the same schema object, which must not be changed.

        Raises:
            OperationRefused: The value is not a schema, is nested too deeply, or refers to a missing schema.
        """
        key = (node.uri, json_bytes.dumps(node.value), direction)
        if (cached := self._converted.get(key)) is not None:
            return cached
        referenced: set[Key] = set()
        schema = _Conversion(self._documents, direction, self._refer, referenced).schema(node, 1)
        self._converted[key] = schema, frozenset(referenced)
        return self._converted[key]

    def definitions(self, keys: Iterable[Key], direction: Direction) -> dict[str, Any]:
        """Return the components with these keys, and all components that they refer to, by name.

        Raises:
            OperationRefused: A component is not a schema, or refers to a missing schema.
        """
        return self.definitions_within(keys, direction, None)[0]

    def definitions_within(
        self, keys: Iterable[Key], direction: Direction, most_bytes: int | None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Do the same as `definitions` within a size limit; also return a list of the components that were cut.

        Equal arguments return the same objects, which must not be changed.

        Args:
            most_bytes: Limit for the size of all components together; None for no limit. A component that would
                exceed the limit is cut to its type. Components are added in breadth-first order, starting from `keys`.

        Raises:
            OperationRefused: A component is not a schema, or refers to a missing schema.
        """
        pending = sorted(keys)
        cache_key = (tuple(pending), direction, most_bytes)
        if (cached := self._reached.get(cache_key)) is not None:
            return cached
        reached: dict[Key, Any] = {}
        cut: list[dict[str, Any]] = []
        size = 0
        for key in pending:  # the list grows in this loop, so that the nearest components come first
            if key in reached:
                continue
            if (key, direction) not in self._components:
                schema, keys_below = self.convert(self._nodes[key], direction)
                self._components[key, direction] = schema, tuple(sorted(keys_below)), len(json_bytes.dumps(schema))
            schema, below, own_bytes = self._components[key, direction]
            if most_bytes is not None and size + own_bytes > most_bytes:
                kind = schema.get("type") if isinstance(schema, dict) else None
                reached[key] = {"type": kind} if kind is not None else {}
                cut.append(reached[key])
                continue
            reached[key] = schema
            size += own_bytes
            pending += below
        by_name = {self._names[key]: schema for key, schema in reached.items()}
        self._reached[cache_key] = dict(sorted(by_name.items())), cut
        return self._reached[cache_key]

    def _refer(self, node: Node, reference: str) -> tuple[str, Key]:
        """Return the name and the key of the component to which a reference leads."""
        target = self._documents.target(node, reference)
        key = (target.uri, target.pointer)
        if key not in self._names:
            plain = _UNCLEAN.sub("_", target.pointer.rpartition("/")[2].replace("~1", "/")).strip("_")[:80] or "schema"
            name, number = plain, 1
            while name in self._taken:
                number += 1
                name = f"{plain}_{number}"
            self._taken.add(name)
            self._names[key] = name
            self._nodes[key] = target
        return self._names[key], key


class _Conversion:
    """Converts one schema, without the components that it refers to.

    Hidden properties, which are `readOnly` properties in a request and `writeOnly` ones in a response, are left out.
    """

    def __init__(
        self,
        documents: Documents,
        direction: Direction,
        refer: Callable[[Node, str], tuple[str, Key]],
        referenced: set[Key],
    ) -> None:
        self._documents = documents
        self._is_3_1 = documents.version == "3.1"
        self._hidden = "readOnly" if direction == "request" else "writeOnly"
        self._direction = direction
        self._refer = refer
        self._found = referenced

    def schema(self, node: Node, depth: int, hidden: frozenset[str] = frozenset()) -> Any:
        """Return the converted schema.

        Args:
            hidden: Names of properties that another schema in the surrounding `allOf` marks as hidden.
        """
        value = node.value
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise self._documents.refuse("bad_schema", f"is {type(value).__name__}; expected a schema", node)
        if depth > MAX_DEPTH:
            raise self._documents.refuse("too_deep", f"nested more than {MAX_DEPTH} levels", node)
        converted: dict[str, Any] = {}
        reference = value.get("$ref")
        if isinstance(reference, str):
            name, key = self._refer(node, reference)
            self._found.add(key)
            converted["$ref"] = f"#/$defs/{name}"
            if not self._is_3_1:
                return self._nullable(value, converted | {k: value[k] for k in _BESIDE_REFERENCE & value.keys()})
        if "properties" in value or "allOf" in value:
            hidden |= self._hidden_names(node, 0)
        for keyword, below in node.items():
            member = below.value
            if keyword in _DROPPED or keyword.startswith("x-") or (keyword == "$ref" and "$ref" in converted):
                continue
            if keyword in _MAPS and isinstance(member, dict):
                converted[keyword] = {
                    name: self.schema(child, depth + 1)
                    for name, child in below.items()
                    if keyword != "properties" or name not in hidden
                }
            elif keyword in _LISTS and isinstance(member, list):
                passed = hidden if keyword == "allOf" else frozenset()
                converted[keyword] = [self.schema(child, depth + 1, passed) for child in below.elements()]
            elif keyword == "items" and isinstance(member, list):
                converted["prefixItems"] = [self.schema(child, depth + 1) for child in below.elements()]
            elif keyword in _ONE and isinstance(member, dict | bool):
                converted[keyword] = self.schema(below, depth + 1)
            elif keyword == "required" and isinstance(member, list):
                converted[keyword] = [name for name in member if name not in hidden]
            else:
                converted[keyword] = member
        self._convert_examples(value, converted)
        self._convert_bounds(value, converted)
        self._convert_format(value, converted)
        self._convert_discriminator(node, converted)
        if not converted.get("required", True):
            del converted["required"]
        return self._nullable(value, converted) if not self._is_3_1 or value.get("nullable") is True else converted

    def _hidden_names(self, node: Node, depth: int) -> frozenset[str]:
        """Return the names of the hidden properties of a schema and of the schemas in its `allOf`."""
        if not isinstance(node.value, dict) or depth > MAX_HOPS:
            return frozenset()
        names: set[str] = set()
        for name, child in node.child("properties").items():
            value = child.value
            if self._is_hidden(child) or (
                isinstance(value, dict) and "$ref" in value and self._is_hidden(self._target(child))
            ):
                names.add(name)
        for part in node.child("allOf").elements():
            names |= self._hidden_names(self._target(part), depth + 1)
        return frozenset(names)

    def _is_hidden(self, node: Node) -> bool:
        return isinstance(node.value, dict) and node.value.get(self._hidden) is True

    def _target(self, node: Node) -> Node:
        try:
            return self._documents.follow(node)
        except OperationRefused:
            return Node(None, node.uri, node.pointer)  # the conversion of the reference itself reports the error

    def _convert_examples(self, value: Mapping[str, Any], converted: dict[str, Any]) -> None:
        examples = converted.pop("examples", None)
        if not isinstance(examples, list):
            examples = [value["example"]] if "example" in value else []
        if examples and (usable := [example for example in examples if not has_reference(example)]):
            converted["examples"] = usable
        # Generators of documents write `default: null` for "no default", but a model would send the null.
        accepts_null = value.get("nullable") is True or not isinstance(value.get("type"), str)
        if "default" in converted and converted["default"] is None and not accepts_null:
            del converted["default"]

    def _convert_bounds(self, value: Mapping[str, Any], converted: dict[str, Any]) -> None:
        for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(value.get(exclusive), bool):
                del converted[exclusive]
                if value[exclusive] and plain in converted:
                    converted[exclusive] = converted.pop(plain)

    def _convert_format(self, value: Mapping[str, Any], converted: dict[str, Any]) -> None:
        if value.get("type") == "file" or (value.get("type") == "string" and value.get("format") == "binary"):
            converted["type"] = "string"
            converted.pop("format", None)
            converted["contentEncoding"] = "base64"
        elif value.get("format") == "byte" and value.get("type") == "string":
            converted.pop("format", None)
            converted["contentEncoding"] = "base64"
        elif "contentMediaType" in value and value.get("type", "string") == "string" and self._is_3_1:
            # In OpenAPI 3.1, a string with a media type and without an encoding is binary data.
            converted.setdefault("type", "string")
            converted.setdefault("contentEncoding", "base64")
        else:
            return
        if self._direction == "request" and _BINARY not in str(converted.get("description")):
            converted["description"] = f"{converted.get('description') or ''} {_BINARY}".strip()

    def _convert_discriminator(self, node: Node, converted: dict[str, Any]) -> None:
        """Restrict the discriminator property of each alternative to the values that the mapping assigns to it."""
        discriminator = node.value.get("discriminator")
        if not isinstance(discriminator, dict) or not isinstance(discriminator.get("mapping"), dict):
            return
        name = discriminator.get("propertyName")
        keyword = next((keyword for keyword in ("oneOf", "anyOf") if keyword in converted), None)
        if keyword is None or not isinstance(name, str):
            return
        values: dict[str, list[str]] = {}
        for word, reference in discriminator["mapping"].items():
            if isinstance(reference, str):
                try:
                    target, _ = self._refer(node, self._component(reference))
                except OperationRefused:
                    continue  # a mapping only selects among the alternatives, so a missing schema selects nothing
                values.setdefault(f"#/$defs/{target}", []).append(word)
        for option in converted[keyword]:
            if isinstance(option, dict) and (words := values.get(option.get("$ref", ""))) and len(option) == 1:
                option["properties"] = {name: {"enum": words}}
                option["required"] = [name]

    def _component(self, reference: str) -> str:
        """Convert a value in a discriminator's mapping, which is a reference or a component's name, to a reference."""
        if "/" in reference or "#" in reference or "." in reference:
            return reference
        return f"{self._documents.root.uri}#/components/schemas/{reference}"

    def _nullable(self, value: Mapping[str, Any], converted: dict[str, Any]) -> dict[str, Any]:
        if value.get("nullable") is not True and value.get("x-nullable") is not True:
            return converted
        kind = converted.get("type")
        if isinstance(kind, str) and not (_LISTS | {"$ref", "not"}) & converted.keys():
            options = converted.get("enum")
            added = {"enum": [*options, None]} if isinstance(options, list) and None not in options else {}
            return {**converted, "type": [kind, "null"], **added}
        if not converted.keys() & (_LISTS | {"$ref", "type", "enum", "not"}):
            return converted  # the schema accepts any value, including null
        annotations = converted.keys() & {"title", "description", "default"}
        inner = {key: member for key, member in converted.items() if key not in annotations}
        return {**{key: converted[key] for key in sorted(annotations)}, "anyOf": [inner, {"type": "null"}]}


def accepting_more(schema: dict[str, Any], cut: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with keywords such as `not` and `oneOf` removed or weakened if they contain cut components.

    A cut component accepts more values than the whole component. Below `not`, the schema would then reject more values.
    """
    text = json_bytes.dumps(schema)
    if not any(keyword in text for keyword in (b'"not":', b'"if":', b'"oneOf":', b'"contains":')):
        return schema  # fast path: visiting every part of the schema takes a hundred times as long as this search
    accepting_more = {id(component) for component in cut}
    return dict(apply_edits(schema, lambda part: Edit(widens=id(part) in accepting_more), SchemaDocument(schema)))
