"""Parse OpenAPI documents, resolve their references, and convert their schemas to JSON Schema 2020-12.

References are never inlined. A component is a schema to which a reference leads. Every component that a tool's schemas
refer to, directly or through other components, becomes one of the tool's `$defs`, so that recursive schemas stay
recursive.

Sources: OpenAPI 3.1.1, 3.0.4 and 2.0, sections "OpenAPI Description Structure", "Reference Object" and "Schema
Object".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote, urljoin

from referencing import Registry, Specification
from referencing.exceptions import NoSuchResource, Unresolvable

from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from registry.intake.issues import ItemIssue
from registry.schema.display_text import excerpt
from registry.schema.references import SchemaDocument
from registry.schema.weakening import Edit, apply_edits

# The largest documents in the tests have 12 MB. Parsing 64 MiB takes about a second, and half a gigabyte of memory.
MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
# The YAML parser reads about 7 MB per second.
MAX_YAML_BYTES: Final = 32 * 1024 * 1024
# A document that is split into one file for each path and schema has a few hundred files.
MAX_DOCUMENTS: Final = 1_000
# Levels of nesting: `MAX_SCHEMA_DEPTH` of `registry.schema.schemas`, minus the levels that a tool definition adds.
MAX_DEPTH: Final = 190
# Limit for the length of a chain in which each reference leads to the next; real chains have one or two references.
MAX_HOPS: Final = 16
_MAX_DETAIL: Final = 300
_EXTERNAL: Final = re.compile(rb"""\$ref["']?\s*:\s*["']?(?![#"'\s])""")

Version = Literal["2.0", "3.0", "3.1"]
Key = tuple[str, str]
"""The URI of a document, and a JSON pointer into the document."""


class DocumentRefused(GatewayError):
    """A whole document cannot be used; the message gives the reason."""


class OperationRefused(GatewayError):
    """One operation cannot become a tool.

    Attributes:
        code: Stable identifier of the reason.
        place: The file name or URL, and the JSON pointer of the defect.
    """

    def __init__(self, code: str, detail: str, place: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.code = code
        self.detail = detail
        self.place = place

    def finding(self, name: str) -> ItemIssue:
        """Return this error as an issue to show to the operator."""
        detail = excerpt(f"{self.place}: {self.detail}", _MAX_DETAIL)
        return ItemIssue(tool=excerpt(name, 128), code=self.code, detail=detail)


def parse_document(data: bytes, name: str) -> dict[str, Any]:
    """Parse one JSON or YAML document.

    Args:
        name: The file name or URL, for messages.

    Raises:
        DocumentRefused: The document is malformed, too large, or not an object.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentRefused(f"{name}: has more than {MAX_DOCUMENT_BYTES} bytes")
    text = data.removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"{":
        try:
            root = json_bytes.loads(text)
        except json_bytes.MalformedJson as error:
            # A YAML document may begin with a brace too, but OpenAPI documents are hardly ever written that way.
            raise DocumentRefused(f"{name}: is not JSON ({excerpt(str(error), 200)})") from None
    else:
        root = _yaml(text, name)
    if not isinstance(root, dict):
        raise DocumentRefused(f"{name}: is not an object; expected an OpenAPI document")
    return root


def _yaml(data: bytes, name: str) -> Any:
    if len(data) > MAX_YAML_BYTES:
        raise DocumentRefused(f"{name}: has more than {MAX_YAML_BYTES} bytes of YAML; expected the document as JSON")
    from gateway.upstream.openapi.openapi_yaml import MalformedYaml, load_yaml  # lazily: JSON needs no PyYAML

    try:
        return load_yaml(data, MAX_DEPTH)
    except MalformedYaml as malformed:
        raise DocumentRefused(f"{name}: {malformed}") from None


def external_documents(data: bytes, root: object, uri: str) -> Iterator[str]:
    """Yield the URI of each external document that a document refers to; a URI may be repeated.

    Args:
        data: The document as bytes.
        root: The same document, parsed.
    """
    if not _EXTERNAL.search(data):  # fast path: visiting every value of a large document is slow
        return
    pending = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if id(node) in seen:
                continue
            seen.add(id(node))
            reference = node.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                yield join_uri(uri, reference).partition("#")[0]
            pending.extend(child for child in node.values() if isinstance(child, dict | list))
        elif isinstance(node, list):
            pending.extend(child for child in node if isinstance(child, dict | list))


def join_uri(base: str, reference: str) -> str:
    """Resolve a reference; return an invalid reference unchanged, so that the error occurs when it is looked up."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


@dataclass(slots=True)
class Node:
    """A value in a document, with its position. References in the value are resolved against the URI.

    Nodes are never changed. The class is not frozen, because creating a frozen dataclass takes three times as long, and
    a large document needs hundreds of thousands of nodes.

    Attributes:
        uri: The URI of the document.
        pointer: The JSON pointer of the value.
    """

    value: Any
    uri: str
    pointer: str

    def child(self, *steps: str | int) -> Node:
        """Return the node at these keys, one for each level; its value is None if there is no such value."""
        value, pointer = self.value, self.pointer
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                value = None
            pointer += f"/{_step(step)}"
        return Node(value, self.uri, pointer)

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield the keys and values of an object; yield nothing for other values."""
        if isinstance(self.value, dict):
            for key, value in self.value.items():
                yield key, Node(value, self.uri, f"{self.pointer}/{_step(key)}")

    def elements(self) -> Iterator[Node]:
        """Yield the items of a list; yield nothing for other values."""
        if isinstance(self.value, list):
            for index, value in enumerate(self.value):
                yield Node(value, self.uri, f"{self.pointer}/{index}")

    def text(self, *steps: str) -> str:
        """Return the text at these keys, one for each level; empty if there is no text."""
        value = self.value
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
        return value.strip() if isinstance(value, str) else ""


def _step(key: str | int) -> str | int:
    """Escape a key for use in a JSON pointer."""
    if isinstance(key, int) or ("/" not in key and "~" not in key):
        return key
    return key.replace("~", "~0").replace("/", "~1")


class Documents:
    """An OpenAPI document, and the documents that it refers to.

    Attributes:
        root: The whole main document.
        version: The OpenAPI version whose rules apply to the main document; versions after 3.1 are read as 3.1.
    """

    def __init__(self, uri: str, parsed: Mapping[str, dict[str, Any]], *, name: str) -> None:
        """Prepare the documents.

        Args:
            uri: The URI of the main document.
            parsed: All documents by URI, including the main document.
            name: The file name or URL of the main document, for messages.

        Raises:
            DocumentRefused: The main document is not an OpenAPI document of a known version.
        """
        self.root = Node(parsed[uri], uri, "")
        self.version = _version(self.root, name)
        self._names = {uri: name}
        opaque: Specification[Any] = Specification.OPAQUE
        self._registry: Registry[Any] = Registry().with_resources(
            [(key, opaque.create_resource(root)) for key, root in parsed.items()]
        )
        self._found: dict[tuple[str, str], Node | None] = {}

    def place(self, node: Node) -> str:
        """Return the file name or URL, and the JSON pointer of a value, for messages."""
        return f"{self._names.get(node.uri, node.uri)}#{node.pointer}"

    def refuse(self, code: str, detail: str, node: Node) -> OperationRefused:
        """Return the error to raise if a defect at `node` makes an operation unusable."""
        return OperationRefused(code, detail, self.place(node))

    def follow(self, node: Node) -> Node:
        """Follow the reference at a node, and further references at its target; return the first node without one.

        Raises:
            OperationRefused: A reference does not lead to a value, or the chain has more than `MAX_HOPS` references.
        """
        for _ in range(MAX_HOPS + 1):
            reference = node.value.get("$ref") if isinstance(node.value, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.target(node, reference)
        raise self.refuse("broken_ref", "the references form a cycle", node)

    def target(self, node: Node, reference: str) -> Node:
        """Return the node to which `reference`, found at `node`, leads.

        Raises:
            OperationRefused: The target does not exist.
        """
        cached = (node.uri, reference)
        if cached not in self._found:
            self._found[cached] = self._lookup(node.uri, reference)
        target = self._found[cached]
        if target is None:
            raise self.refuse("broken_ref", f"refers to a missing value: {excerpt(reference, 120)}", node)
        return target

    def _lookup(self, base: str, reference: str) -> Node | None:
        uri, _, fragment = join_uri(base, reference).partition("#")
        try:
            value = self._registry.resolver(base_uri=base).lookup(reference).contents
        except (NoSuchResource, Unresolvable, ValueError, TypeError, LookupError):
            return None
        return Node(value, uri, unquote(fragment))


def _version(root: Node, name: str) -> Version:
    stated = str(root.value.get("openapi") or root.value.get("swagger") or "")
    if stated.startswith("3.0"):
        return "3.0"
    if stated.startswith("3."):
        return "3.1"
    if stated.startswith("2"):
        return "2.0"
    what = f"is of version {excerpt(stated, 20)}" if stated else "is not an OpenAPI document: it names no version"
    raise DocumentRefused(f"{name}: {what}; expected `openapi: 3.1`, `openapi: 3.0` or `swagger: 2.0`")


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
