"""Where the references of one schema lead: inside the document, nowhere, or out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urljoin

from registry.errors import SchemaRejected

REFERENCE_KEYWORDS: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

_IN_ORDER: Final = tuple(sorted(REFERENCE_KEYWORDS))

SCHEMA_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose members are names given by the author, each with a schema."""

_DEFINITIONS: Final = frozenset({"$defs", "definitions"})

DATA_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples", "example", "required", "type"})
"""Keywords that hold instance data, where a member called `$ref` means nothing."""


class Document:
    """One schema document with its identifiers, anchors and references, found without recursion."""

    __slots__ = ("_anchors", "_edges", "_maps", "_root", "_roots", "broken", "is_recursive", "remote")

    def __init__(self, schema: object) -> None:
        self._root = schema
        self._roots: dict[str, object] = {"": schema}
        self._anchors: dict[tuple[str, str], object] = {}
        self._edges: dict[int, list[object]] = {}
        self._maps: set[int] = set()  # objects whose keys are the author's names, not keywords
        self.remote: list[str] = []
        self.broken: list[str] = []
        self.is_recursive = False
        references = list(self._scan())
        for node, base, reference in references:
            self._follow(node, base, reference)

    def require_resolvable(self) -> None:
        """Refuse references that lead out of the document or nowhere.

        Raises:
            SchemaRejected: `remote_ref` or `broken_ref`.
        """
        if self.remote:
            raise SchemaRejected("remote_ref", f"refers to another document: {self.remote[0][:200]}")
        if self.broken:
            raise SchemaRejected("broken_ref", f"refers to what is not there: {self.broken[0][:200]}")

    def visits(self, limit: int, *, with_options: bool = False) -> int:
        """Count objects and lists as a compiler that expands local references would meet them.

        A reference back into a schema that is being expanded counts once. Counts are kept for each
        node, so that nested doubling is summed and never walked. Sets `is_recursive`.
        With options, each member of an `enum` counts too: a check compares with all of them.
        """
        done: dict[int, int] = {}
        open_nodes: set[int] = {id(self._root)}
        stack: list[tuple[int, Iterator[object], list[int]]] = [
            (id(self._root), self._children(self._root), [_options(self._root, with_options)])
        ]
        while stack:
            key, children, total = stack[-1]
            for child in children:
                known = done.get(id(child))
                if known is None and id(child) in open_nodes:
                    known = 1
                    self.is_recursive = True
                if known is None:
                    open_nodes.add(id(child))
                    stack.append((id(child), self._children(child), [_options(child, with_options)]))
                    break
                total[0] = min(total[0] + known, limit + 1)
            else:
                stack.pop()
                done[key] = total[0]
                open_nodes.discard(key)
                if stack:
                    stack[-1][2][0] = min(stack[-1][2][0] + total[0], limit + 1)
        return done[id(self._root)]

    def targets(self, node: object) -> tuple[object, ...]:
        """Return the schemas to which the references of this very object lead; none for what is no schema."""
        return tuple(self._edges.get(id(node), ()))

    @property
    def target_ids(self) -> frozenset[int]:
        """The schemas to which references lead, by identity."""
        return frozenset(id(target) for targets in self._edges.values() for target in targets)

    @property
    def reference_count(self) -> int:
        """How many references lead to a schema of this document."""
        return sum(len(targets) for targets in self._edges.values())

    def _children(self, node: object) -> Iterator[object]:
        if isinstance(node, dict):
            # A definition costs where it is referred to; the document's own size is bounded elsewhere.
            skipped = _DEFINITIONS if id(node) not in self._maps else ()
            for key, child in node.items():
                if isinstance(child, dict | list) and key not in skipped:
                    yield child
            yield from self._edges.get(id(node), ())
        elif isinstance(node, list):
            for child in node:
                if isinstance(child, dict | list):
                    yield child

    def _scan(self) -> Iterator[tuple[dict[str, Any], str, str]]:
        """Note identifiers and anchors; yield each reference with its node and base URI."""
        stack: list[tuple[object, str, bool]] = [(self._root, "", True)]
        while stack:
            node, base, is_schema = stack.pop()
            if isinstance(node, list):
                stack.extend((child, base, True) for child in node if isinstance(child, dict | list))
                continue
            if not isinstance(node, dict):
                continue
            if is_schema:
                base = self._identify(node, base)
                for keyword in _IN_ORDER:
                    if isinstance(reference := node.get(keyword), str):
                        yield node, base, reference
            else:
                self._maps.add(id(node))
            for key, child in node.items():
                if isinstance(child, dict | list) and not (is_schema and key in DATA_KEYWORDS):
                    stack.append((child, base, not (is_schema and key in SCHEMA_MAPS)))

    def _identify(self, node: dict[str, Any], base: str) -> str:
        for keyword in ("$id", "id"):
            identifier = node.get(keyword)
            if not isinstance(identifier, str) or not identifier:
                continue
            if identifier.startswith("#"):
                self._anchors.setdefault((base, identifier[1:]), node)
                continue
            if keyword == "id" and node is not self._root and "://" not in identifier:
                continue  # since draft 6 an `id` is usually somebody's ordinary property or note
            base = _join(base, identifier).partition("#")[0]
            self._roots.setdefault(base, node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(keyword), str):
                self._anchors.setdefault((base, anchor), node)
        return base

    def _follow(self, node: dict[str, Any], base: str, reference: str) -> None:
        uri, _, fragment = reference.partition("#")
        target_base = _join(base, uri) if uri else base
        root = self._roots.get(target_base, _MISSING)
        if root is _MISSING:
            self.remote.append(reference)
            return
        target = self._locate(root, target_base, unquote(fragment, errors="replace"))
        if target is _MISSING:
            self.broken.append(reference)
        elif isinstance(target, dict | list):
            edges = self._edges.setdefault(id(node), [])
            if not any(known is target for known in edges):
                edges.append(target)

    def _locate(self, root: object, base: str, fragment: str) -> object:
        if not fragment:
            return root
        if not fragment.startswith("/"):
            return self._anchors.get((base, fragment), _MISSING)
        found = root
        for token in fragment[1:].split("/"):
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and len(step) < 8 and int(step) < len(found):
                found = found[int(step)]
            else:
                return _MISSING
        return found


_MISSING: Final = object()


def _options(node: object, counted: bool) -> int:
    options = node.get("enum") if counted and isinstance(node, dict) else None
    return 1 + (len(options) if isinstance(options, list) else 0)


def _join(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri
