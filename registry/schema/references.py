"""References of one schema document: where each leads, and what expanding all of them would cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin

from registry.errors import SchemaRejected

REFERENCE_KEYWORDS: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

# Keywords by the form of what they hold; everything that walks a schema uses these tables. The lists and single
# schemas overlap: `items` may be either, depending on the draft.
SUBSCHEMA_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
SUBSCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SINGLE_SUBSCHEMAS: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_HOLDING_SCHEMAS: Final = SUBSCHEMA_MAPS | SUBSCHEMA_LISTS | SINGLE_SUBSCHEMAS
# Keywords that hold instance data, where a member called `$ref` means nothing.
DATA_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples", "example", "required", "type"})

# Sets of strings iterate differently in each process; reports have to name the same reference everywhere.
_REFERENCES_IN_ORDER: Final = tuple(sorted(REFERENCE_KEYWORDS))
# Before 2019-09 a reference stood for all that is beside it.
_LONE_REFERENCES: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
# RFC 3986, section 3.5, less the slash that separates steps; the quotation mark of strings is not among them.
_FRAGMENT_CHARACTERS: Final = "!$&'()*+,;=:@?~"
# What is quoted of a reference in an error.
_MAX_REPORTED: Final = 200
# Digits of an array index in a pointer; no array within the bounds of a schema has ten million items.
_MAX_INDEX_DIGITS: Final = 7


class Resolution(NamedTuple):
    """Where one reference leads.

    Attributes:
        keyword: Such as `$ref`.
        reference: As it is written.
        target: The schema; `MISSING` if it is not there, `REMOTE` if it is in another document.
        from_root: Whether it is a pointer from the root of the document.
    """

    keyword: str
    reference: str
    target: object
    from_root: bool


class SchemaDocument:
    """One schema document with its identifiers, anchors and references, found without recursion.

    Not `referencing`, which resolves one reference at a time: bounds need the whole graph, before anything is expanded.

    Attributes:
        remote: References to other documents, which are never fetched.
        broken: References to what is not there.
        resolutions: Where the references of each object lead, by the identity of the object.
        identified: Objects with an identifier (`$id`, or `id` as in draft 4), by identity.
        dynamic_anchors: The schemas of each `$dynamicAnchor`.
        is_recursive: Whether a schema refers back to itself; known after `visits`.
    """

    __slots__ = ("_anchors", "_edges", "_lone_references", "_maps", "_root", "_roots", "_unsure", "broken",
                 "dynamic_anchors", "identified", "is_recursive", "remote", "resolutions")  # fmt: skip

    def __init__(self, schema: object) -> None:
        self._root = schema
        self._roots: dict[str, object] = {"": schema}
        self._anchors: dict[tuple[str, str], object] = {}
        self._edges: dict[int, list[object]] = {}
        self._maps: set[int] = set()  # objects whose keys are the author's names, not keywords
        self.remote: list[str] = []
        self.broken: list[str] = []
        self.resolutions: dict[int, list[Resolution]] = {}
        self.identified: set[int] = set()
        self.dynamic_anchors: dict[str, list[dict[str, Any]]] = {}
        self.is_recursive = False
        declared = schema.get("$schema") if isinstance(schema, dict) else None
        self._lone_references = isinstance(declared, str) and any(draft in declared for draft in _LONE_REFERENCES)
        # All of them first: a reference may lead to an anchor further down.
        self._unsure: list[tuple[dict[Any, object], Any, object]] = []
        references = list(self._scan())
        for names, name, node in self._unsure:
            names.setdefault(name, node)
        for node, base, keyword, reference in references:
            self._follow(node, base, keyword, reference)

    def require_resolvable(self) -> None:
        """Reject references that lead out of the document or nowhere.

        Raises:
            SchemaRejected: `remote_ref` or `broken_ref`.
        """
        if self.remote:
            raise SchemaRejected("remote_ref", f"refers to another document: {self.remote[0][:_MAX_REPORTED]}")
        if self.broken:
            raise SchemaRejected("broken_ref", f"refers to what is not there: {self.broken[0][:_MAX_REPORTED]}")

    def visits(self, limit: int, *, with_options: bool = False) -> int:
        """Count the objects and lists that a compiler would visit if it expanded every local reference.

        A reference back into a schema that is being expanded counts once. Sets `is_recursive`.

        Args:
            limit: Where to stop counting.
            with_options: Count each member of an `enum` as well, since a check compares with all of them.
        """
        # Counts are kept for each node: nested doubling (a schema bomb) is summed, never walked.
        done: dict[int, int] = {}
        open_nodes: set[int] = {id(self._root)}
        stack: list[tuple[int, Iterator[object], list[int]]] = [
            (id(self._root), self._children(self._root), [_own_visits(self._root, with_options)])
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
                    stack.append((id(child), self._children(child), [_own_visits(child, with_options)]))
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
        """Return the schemas that the references of this very object lead to."""
        return tuple(self._edges.get(id(node), ()))

    @property
    def target_ids(self) -> frozenset[int]:
        """The identities of all schemas that references lead to."""
        return frozenset(id(target) for targets in self._edges.values() for target in targets)

    @property
    def reference_count(self) -> int:
        """The number of references within this document."""
        return sum(len(targets) for targets in self._edges.values())

    def _children(self, node: object) -> Iterator[object]:
        if isinstance(node, dict):
            # A definition costs where it is referred to; the size of the document itself is bounded elsewhere.
            skipped = _DEFINITIONS if id(node) not in self._maps else ()
            for key, child in node.items():
                if isinstance(child, dict | list) and key not in skipped:
                    yield child
            yield from self._edges.get(id(node), ())
        elif isinstance(node, list):
            for child in node:
                if isinstance(child, dict | list):
                    yield child

    def _scan(self) -> Iterator[tuple[dict[str, Any], str, str, str]]:
        """Record identifiers and anchors; yield each reference with its node, base URI and keyword."""
        # With each: whether its members are keywords, and whether it is known to be a schema by its place.
        stack: list[tuple[object, str, bool, bool]] = [(self._root, "", True, True)]
        while stack:
            node, base, is_schema, is_known = stack.pop()
            if isinstance(node, list):
                stack.extend((child, base, True, is_known) for child in node if isinstance(child, dict | list))
                continue
            if not isinstance(node, dict):
                continue
            if is_schema:
                base = self._identify(node, base, is_known)
                for keyword in _REFERENCES_IN_ORDER:
                    if isinstance(reference := node.get(keyword), str):
                        yield node, base, keyword, reference
            else:
                self._maps.add(id(node))
            for key, child in node.items():
                if isinstance(child, dict | list) and not (is_schema and key in DATA_KEYWORDS):
                    known = is_known and (not is_schema or key in _HOLDING_SCHEMAS)
                    stack.append((child, base, not (is_schema and key in SUBSCHEMA_MAPS), known))

    def _identify(self, node: dict[str, Any], base: str, is_known: bool) -> str:
        """Record what identifies a schema, and return the base of references in it.

        What an unknown keyword holds may look like a schema: it identifies something only if no schema does.
        """
        if self._lone_references and node is not self._root and isinstance(node.get("$ref"), str):
            return base  # all that is beside the reference means nothing
        for keyword in ("$id", "id"):
            identifier = node.get(keyword)
            if not isinstance(identifier, str) or not identifier:
                continue
            if identifier.startswith("#"):
                self.identified.add(id(node))
                self._record(self._anchors, (base, identifier[1:]), node, is_known)
                continue
            if keyword == "id" and node is not self._root and "://" not in identifier:
                continue  # since draft 6 an `id` is usually an ordinary property or a comment
            if is_known:
                self.identified.add(id(node))
            base = _join_uri(base, identifier).partition("#")[0]
            self._record(self._roots, base, node, is_known)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(keyword), str):
                self._record(self._anchors, (base, anchor), node, is_known)
                if keyword == "$dynamicAnchor":
                    self.dynamic_anchors.setdefault(anchor, []).append(node)
        return base

    def _record(self, names: dict[Any, object], name: object, node: object, is_known: bool) -> None:
        if is_known:
            names.setdefault(name, node)
        else:
            self._unsure.append((names, name, node))

    def _follow(self, node: dict[str, Any], base: str, keyword: str, reference: str) -> None:
        uri, _, fragment = reference.partition("#")
        target_base = _join_uri(base, uri) if uri else base
        root = self._roots.get(target_base, MISSING)
        if root is MISSING:
            self.remote.append(reference)
            self._note(node, Resolution(keyword, reference, REMOTE, from_root=False))
            return
        target = self._locate(root, target_base, unquote(fragment, errors="replace"))
        if target is MISSING and "%" in fragment:
            target = self._locate(root, target_base, fragment)  # a name with a percent sign, not encoded
        from_root = root is self._root and (not fragment or fragment.startswith("/"))
        self._note(node, Resolution(keyword, reference, target, from_root))
        if target is MISSING:
            self.broken.append(reference)
        elif isinstance(target, dict | list):
            edges = self._edges.setdefault(id(node), [])
            # By identity: schemas are compared by value nowhere in here, which would cost their whole size.
            if not any(known is target for known in edges):
                edges.append(target)

    def _note(self, node: dict[str, Any], resolution: Resolution) -> None:
        self.resolutions.setdefault(id(node), []).append(resolution)

    def _locate(self, root: object, base: str, fragment: str) -> object:
        if not fragment:
            return root
        if not fragment.startswith("/"):
            return self._anchors.get((base, fragment), MISSING)
        found = root
        for token in fragment[1:].split("/"):
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and _is_index(step) and int(step) < len(found):
                found = found[int(step)]
            else:
                return MISSING
        return found


MISSING: Final = object()
"""The target of a reference that leads nowhere."""
REMOTE: Final = object()
"""The target of a reference to another document, which is never fetched."""


def _is_index(step: str) -> bool:
    return step.isdecimal() and len(step) <= _MAX_INDEX_DIGITS


def _own_visits(node: object, counted: bool) -> int:
    options = node.get("enum") if counted and isinstance(node, dict) else None
    return 1 + (len(options) if isinstance(options, list) else 0)


def _join_uri(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri)
    except ValueError:  # such as an unclosed bracket of an IPv6 address
        return uri


def pointers_of(schema: Any) -> dict[int, str]:
    """Return the pointer of every object in a schema as a fragment that needs no encoding, by identity."""
    found: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            found.setdefault(id(node), pointer)
            pending += [(child, f"{pointer}/{encoded_step(key)}") for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(child, f"{pointer}/{index}") for index, child in enumerate(node)]
    return found


def encoded_step(key: str) -> str:
    """Return one step of a pointer as it stands in the fragment of a URI (RFC 6901, section 6)."""
    return quote(key.replace("~", "~0").replace("/", "~1"), safe=_FRAGMENT_CHARACTERS, errors="replace")


def encoded_pointer(fragment: str) -> str:
    """Return a pointer in a fragment with every character encoded that a URI may not hold."""
    return quote(fragment, safe=_FRAGMENT_CHARACTERS + "/%", errors="replace")
