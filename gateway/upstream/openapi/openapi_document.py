"""Parse OpenAPI documents, given as bytes, and resolve their references.

Sources: OpenAPI 3.1.1, 3.0.4 and 2.0, sections "OpenAPI Description Structure" and "Reference Object".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote, urljoin

from referencing import Registry, Specification
from referencing.exceptions import NoSuchResource, Unresolvable

from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import GatewayError
from registry.intake.issues import ItemIssue
from registry.schema.display_text import excerpt

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
