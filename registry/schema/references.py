"""Resolve the references of a schema document, and recognize the drafts of JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin

from registry.errors import SchemaRejected
from registry.schema.json_values import containers

DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
"""The draft that every client supports."""

_URI: Final = re.compile(
    r"https?://(?:www\.)?json-schema\.org/(?:draft-0(?P<number>[3-7])|draft/(?P<date>2019-09|2020-12))"
    r"/(?:hyper-)?schema/?(?:\.json)?#?/?",
    re.IGNORECASE,
)
# Draft 5 only clarifies draft 4.
_BY_NUMBER: Final = {"3": "draft-04", "4": "draft-04", "5": "draft-04", "6": "draft-06", "7": "draft-07"}
_CLASSES: Final = {
    "draft-04": "Draft4Validator",
    "draft-06": "Draft6Validator",
    "draft-07": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}
_LONE_REFERENCES: Final = frozenset({"draft-04", "draft-06", "draft-07"})
_TUPLES_IN_ITEMS: Final = _LONE_REFERENCES | {"2019-09"}


def draft_of(declared: object) -> str | None:
    """Return the draft that a `$schema` value names, such as `draft-07` or `2020-12`; None for any other dialect."""
    match = _URI.fullmatch(declared.strip()) if isinstance(declared, str) else None
    return None if match is None else match["date"] or _BY_NUMBER[match["number"]]


def uri_of(draft: str) -> str:
    """Return the URI of a draft, as written in its specification."""
    if draft.startswith("draft-"):
        return f"http://json-schema.org/{draft}/schema#"
    return f"https://json-schema.org/draft/{draft}/schema"


def compiler_of(draft: str | None) -> str:
    """Return the validator class of `jsonschema_rs` for a draft; 2020-12 if the draft is unknown."""
    return _CLASSES[draft or "2020-12"]


def has_lone_references(draft: str | None) -> bool:
    """Return whether a `$ref` replaces all keywords next to it, as in drafts before 2019-09."""
    return draft in _LONE_REFERENCES


def has_tuples_in_items(draft: str | None) -> bool:
    """Return whether `items` may be a list with one schema for each position, as in drafts before 2020-12."""
    return draft in _TUPLES_IN_ITEMS


REFERENCE_KEYWORDS: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

# Keywords by the type of their value; every traversal of a schema uses these tables. `items` is in two of them, because
# the type of its value depends on the draft. The subschemas of the `_IN_PLACE` keywords apply to the same value as the
# schema that contains them.
SUBSCHEMA_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
SUBSCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
SINGLE_SUBSCHEMAS: Final = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"}
    | {"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_HOLDING_SCHEMAS: Final = SUBSCHEMA_MAPS | SUBSCHEMA_LISTS | SINGLE_SUBSCHEMAS
# Keywords that contain instance data, where a member named `$ref` has no meaning.
DATA_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples", "example", "required", "type"})

# Sorted, so that an error names the same reference in every process: the iteration order of sets is not stable.
_REFERENCES_IN_ORDER: Final = tuple(sorted(REFERENCE_KEYWORDS))
# Before 2019-09, a `$ref` replaces all keywords next to it.
_DRAFTS_OF_LONE_REFERENCES: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_IDENTIFYING: Final = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
_CONTAINERS: Final = (dict, list)
_CONTAINER_TYPES: Final = frozenset(_CONTAINERS)
# Characters that need no escape in a URI fragment (RFC 3986, section 3.5). The slash is not among them, because it
# separates the steps of a pointer.
_FRAGMENT_CHARACTERS: Final = "!$&'()*+,;=:@?~"
# Maximum length of a reference that an error quotes.
_MAX_REPORTED: Final = 200
# Maximum number of digits of an array index in a pointer. The limits of schemas exclude longer arrays.
_MAX_INDEX_DIGITS: Final = 7


class Resolution(NamedTuple):
    """The target of one reference.

    Attributes:
        keyword: The keyword, such as `$ref`.
        reference: The reference as written.
        target: The schema; `MISSING` if it does not exist, `REMOTE` if it is in another document.
        from_root: Whether the reference is a pointer from the root of the document.
    """

    keyword: str
    reference: str
    target: object
    from_root: bool


class SchemaDocument:
    """The identifiers, anchors and references of a schema document. They are found without recursion.

    The `referencing` library resolves one reference at a time; checking the limits needs the whole graph before
    anything is expanded.

    Attributes:
        remote: References to other documents, which are never fetched.
        broken: References whose target does not exist.
        resolutions: The references of each object with their targets, by the object's identity.
        identified: The identities of objects with an identifier (`$id`, or `id` as in draft 4).
        dynamic_anchors: For each `$dynamicAnchor`, the schemas that declare it.
        is_recursive: True if a schema refers back to itself; set by `visits`.
    """

    __slots__ = (
        "_anchors",
        "_edges",
        "_located",
        "_lone_references",
        "_maps",
        "_root",
        "_roots",
        "_unproven",
        "broken",
        "dynamic_anchors",
        "identified",
        "is_recursive",
        "remote",
        "resolutions",
    )

    def __init__(self, schema: object) -> None:
        self._root = schema
        self._roots: dict[str, object] = {"": schema}
        self._anchors: dict[tuple[str, str], object] = {}
        self._edges: dict[int, list[object]] = {}
        self._maps: set[int] = set()  # objects whose keys are names chosen by the author, not keywords
        self.remote: list[str] = []
        self.broken: list[str] = []
        self.resolutions: dict[int, list[Resolution]] = {}
        self.identified: set[int] = set()
        self.dynamic_anchors: dict[str, list[dict[str, Any]]] = {}
        self.is_recursive = False
        declared = schema.get("$schema") if isinstance(schema, dict) else None
        self._lone_references = isinstance(declared, str) and any(
            draft in declared for draft in _DRAFTS_OF_LONE_REFERENCES
        )
        # Scan everything first, because a reference may lead to an anchor further down.
        self._unproven: list[tuple[dict[Any, object], Any, object]] = []
        self._located: dict[tuple[str, str], tuple[object, bool]] = {}
        references = list(self._scan())
        for names, name, node in self._unproven:
            names.setdefault(name, node)
        for node, base, keyword, reference in references:
            self._resolve(node, base, keyword, reference)

    def require_resolvable(self) -> None:
        """Reject references to other documents or to missing targets.

        Raises:
            SchemaRejected: `remote_ref` or `broken_ref`.
        """
        if self.remote:
            raise SchemaRejected("remote_ref", f"refers to another document: {self.remote[0][:_MAX_REPORTED]}")
        if self.broken:
            raise SchemaRejected("broken_ref", f"refers to a missing schema: {self.broken[0][:_MAX_REPORTED]}")

    def visits(self, limit: int, *, with_options: bool = False) -> int:
        """Count the objects and lists that a compiler visits if it expands every local reference.

        A reference back into a schema that is being expanded counts once. This method sets `is_recursive`.

        Args:
            limit: The count at which to stop.
            with_options: Count each member of an `enum` as well, because a check compares the value with all of them.
        """
        # The total of each node is stored, so that definitions that expand exponentially (schema bombs) are added up
        # instead of traversed.
        done: dict[int, int] = {}
        open_nodes: set[int] = {id(self._root)}
        stack: list[tuple[int, Iterator[object], list[int]]] = [
            (id(self._root), self._children(self._root), [_own_visits(self._root, with_options)])
        ]
        while stack:
            key, children, total = stack[-1]
            for child in children:
                child_visits = done.get(id(child))
                if child_visits is None and self._is_leaf(child):
                    child_visits = done[id(child)] = _own_visits(child, with_options)
                if child_visits is None and id(child) in open_nodes:
                    child_visits = 1
                    self.is_recursive = True
                if child_visits is None:
                    open_nodes.add(id(child))
                    stack.append((id(child), self._children(child), [_own_visits(child, with_options)]))
                    break
                total[0] = min(total[0] + child_visits, limit + 1)
            else:
                stack.pop()
                done[key] = total[0]
                open_nodes.discard(key)
                if stack:
                    stack[-1][2][0] = min(stack[-1][2][0] + total[0], limit + 1)
        return done[id(self._root)]

    def targets(self, node: object) -> tuple[object, ...]:
        """Return the targets of the references in this object itself."""
        return tuple(self._edges.get(id(node), ()))

    @property
    def target_ids(self) -> frozenset[int]:
        """The identities of all targets of references."""
        return frozenset(id(target) for targets in self._edges.values() for target in targets)

    @property
    def reference_count(self) -> int:
        """The number of distinct references within the document."""
        return sum(len(targets) for targets in self._edges.values())

    def _is_leaf(self, node: Any) -> bool:
        """Return whether an object or list contains no object, list or reference, like most schemas of properties."""
        children = node.values() if isinstance(node, dict) else node
        # Compare types in C: a generator would take most of the time of `visits`, and large documents have a million
        # nodes.
        return id(node) not in self._edges and _CONTAINER_TYPES.isdisjoint(map(type, children))

    def looping(self, nodes: Sequence[dict[str, Any]]) -> frozenset[int]:
        """Return the identities of the schemas among `nodes` that apply themselves to the same value again.

        A check of such a schema never ends. The result also includes schemas that lead from one loop to another.
        """
        if not self._edges:
            return frozenset()
        after: dict[int, set[int]] = {}
        before: dict[int, set[int]] = {}
        for node in nodes:
            for child in self._applied_in_place(node):
                after.setdefault(id(node), set()).add(id(child))
                before.setdefault(id(child), set()).add(id(node))
        # Repeatedly remove the first and the last schema of every chain, until only loops are left.
        pending = list((after.keys() | before.keys()) - (after.keys() & before.keys()))
        while pending:
            removed = pending.pop()
            for ways, back in ((after, before), (before, after)):
                for neighbour in ways.pop(removed, ()):
                    back[neighbour].discard(removed)
                    if not back[neighbour]:
                        del back[neighbour]
                        pending.append(neighbour)
        return frozenset(after)

    def _applied_in_place(self, node: dict[str, Any]) -> Iterator[object]:
        yield from self._edges.get(id(node), ())
        if self._lone_references and "$ref" in node:
            return
        for key in _IN_PLACE:
            if key in node:
                yield node[key]
        for key in _IN_PLACE_LISTS:
            if isinstance(children := node.get(key), list):
                yield from children
        for key in _IN_PLACE_MAPS:
            if isinstance(schemas_by_name := node.get(key), dict):
                yield from schemas_by_name.values()

    def _children(self, node: object) -> Iterator[object]:
        if isinstance(node, dict):
            # A definition costs something only where it is referenced; the size of the document is limited elsewhere.
            skipped = _DEFINITIONS if id(node) not in self._maps else ()
            for key, child in node.items():
                if isinstance(child, _CONTAINERS) and key not in skipped:
                    yield child
            yield from self._edges.get(id(node), ())
        elif isinstance(node, list):
            for child in node:
                if isinstance(child, _CONTAINERS):
                    yield child

    def _scan(self) -> Iterator[tuple[dict[str, Any], str, str, str]]:
        """Record identifiers and anchors; yield each reference with its node, base URI and keyword."""
        # (node, base URI, whether its members are keywords, whether its position proves that it is a schema)
        stack: list[tuple[object, str, bool, bool]] = [(self._root, "", True, True)]
        while stack:
            node, base, is_schema, is_known = stack.pop()
            if isinstance(node, list):
                stack += [(child, base, True, is_known) for child in node if isinstance(child, _CONTAINERS)]
                continue
            if not isinstance(node, dict):
                continue
            if is_schema:
                if not _IDENTIFYING.isdisjoint(node):
                    base = self._identify(node, base, is_known)
                for keyword in _REFERENCES_IN_ORDER if not REFERENCE_KEYWORDS.isdisjoint(node) else ():
                    if isinstance(reference := node.get(keyword), str):
                        yield node, base, keyword, reference
            else:
                self._maps.add(id(node))
            for key, child in node.items():
                if isinstance(child, _CONTAINERS) and not (is_schema and key in DATA_KEYWORDS):
                    child_is_known = is_known and (not is_schema or key in _HOLDING_SCHEMAS)
                    stack.append((child, base, not (is_schema and key in SUBSCHEMA_MAPS), child_is_known))

    def _identify(self, node: dict[str, Any], base: str, is_known: bool) -> str:
        """Record the identifiers of a schema, and return the base URI of references in it.

        The value of an unknown keyword may look like a schema. Its identifiers are used only if no object that is
        certainly a schema has the same identifier.
        """
        if self._lone_references and node is not self._root and isinstance(node.get("$ref"), str):
            return base  # keywords next to the reference are ignored
        for keyword in ("$id", "id"):
            identifier = node.get(keyword)
            if not isinstance(identifier, str) or not identifier:
                continue
            if identifier.startswith("#"):
                self.identified.add(id(node))
                self._record(self._anchors, (base, identifier[1:]), node, is_known)
                continue
            if keyword == "id" and node is not self._root and "://" not in identifier:
                continue  # since draft 6, `id` is usually an ordinary property
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
            self._unproven.append((names, name, node))

    def _resolve(self, node: dict[str, Any], base: str, keyword: str, reference: str) -> None:
        # Cached, because large schemas refer to the same component many times.
        location = self._located.get((base, reference))
        if location is None:
            location = self._located[base, reference] = self._find_target(base, reference)
        target, from_root = location
        self._record_resolution(node, Resolution(keyword, reference, target, from_root))
        if target is REMOTE:
            self.remote.append(reference)
        elif target is MISSING:
            self.broken.append(reference)
        elif isinstance(target, dict | list):
            edges = self._edges.setdefault(id(node), [])
            # Compare by identity: the cost of comparing by value grows with the size of the schemas.
            if not any(edge is target for edge in edges):
                edges.append(target)

    def _find_target(self, base: str, reference: str) -> tuple[object, bool]:
        """Return the target of a reference, and whether it is a pointer from the root of the document."""
        uri, _, fragment = reference.partition("#")
        target_base = _join_uri(base, uri) if uri else base
        root = self._roots.get(target_base, MISSING)
        if root is MISSING:
            return REMOTE, False
        target = self._locate(root, target_base, unquote(fragment, errors="replace"))
        if target is MISSING and "%" in fragment:
            target = self._locate(root, target_base, fragment)  # a name with a literal percent sign
        return target, root is self._root and (not fragment or fragment.startswith("/"))

    def _record_resolution(self, node: dict[str, Any], resolution: Resolution) -> None:
        self.resolutions.setdefault(id(node), []).append(resolution)

    def _locate(self, root: object, base: str, fragment: str) -> object:
        if not fragment:
            return root
        if not fragment.startswith("/"):
            return self._anchors.get((base, fragment), MISSING)
        node = root
        for token in fragment[1:].split("/"):
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and _is_index(step) and int(step) < len(node):
                node = node[int(step)]
            else:
                return MISSING
        return node


MISSING: Final = object()
"""Stands for a target that does not exist."""
REMOTE: Final = object()
"""Stands for a target in another document, which is never fetched."""


def _is_index(step: str) -> bool:
    return step.isdecimal() and len(step) <= _MAX_INDEX_DIGITS


def _own_visits(node: object, counted: bool) -> int:
    options = node.get("enum") if counted and isinstance(node, dict) else None
    return 1 + (len(options) if isinstance(options, list) else 0)


def _join_uri(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri)
    except ValueError:  # for example an IPv6 address with an unclosed bracket
        return uri


def pointers_of(schema: Any) -> dict[int, str]:
    """Return the pointer of every object in a schema, percent-encoded for a URI fragment, by the object's identity."""
    pointers: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(schema, "#")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            pointers.setdefault(id(node), pointer)
            pending += [(child, f"{pointer}/{encoded_step(key)}") for key, child in node.items()]
        elif isinstance(node, list):
            pending += [(child, f"{pointer}/{index}") for index, child in enumerate(node)]
    return pointers


def encoded_step(key: str) -> str:
    """Return one step of a pointer, encoded for a URI fragment (RFC 6901, section 6)."""
    return quote(key.replace("~", "~0").replace("/", "~1"), safe=_FRAGMENT_CHARACTERS, errors="replace")


def encoded_pointer(fragment: str) -> str:
    """Percent-encode the characters of a pointer that a URI fragment must not contain."""
    return quote(fragment, safe=_FRAGMENT_CHARACTERS + "/%", errors="replace")


_IDENTIFIERS: Final = ("$id", "$anchor", "$dynamicAnchor")
# Keywords whose values Ajv does not search for identifiers.
_UNSEARCHED: Final = frozenset({"const", "enum", "default"})
# Keywords whose members Ajv treats as names instead of keywords, even a member named `$id`.
_NAMES_ONLY: Final = _UNSEARCHED | {"properties", "patternProperties", "definitions", "dependencies"}


def has_equal_anchors(nodes: Sequence[dict[str, Any]]) -> bool:
    """Return whether several of these schemas have the same anchor."""
    anchors = [node[key] for node in nodes for key in ("$anchor", "$dynamicAnchor") if isinstance(node.get(key), str)]
    return len(set(anchors)) < len(anchors)


def has_stray_identifiers(schema: dict[str, Any], schema_ids: Collection[int]) -> bool:
    """Return whether an object that is not a schema, such as an example, has identifiers like a schema."""
    return any(
        isinstance(node, dict)
        and id(node) not in schema_ids
        and any(isinstance(node.get(key), str) for key in _IDENTIFIERS)
        for node in containers(schema)
    )


def has_ambiguous_identifiers(schema: dict[str, Any]) -> bool:
    """Return whether an object has a member `$id` that is not an identifier but that Ajv reads as an identifier.

    Ajv does so for members of `$defs`, and for members of an unknown keyword that the pointer of a reference passes
    through.
    """
    return any(
        isinstance(node, dict)
        and any(
            isinstance(child, dict) and "$id" in child and not isinstance(child["$id"], str)
            for key, child in node.items()
            if key not in _NAMES_ONLY
        )
        for node in containers(schema)
    )


def without_stray_identifiers(node: Any, *, is_schema: bool) -> Any:
    """Remove identifiers from objects that are not schemas but in which Ajv looks for identifiers."""
    if isinstance(node, list):
        return [without_stray_identifiers(child, is_schema=is_schema) for child in node]
    if not isinstance(node, dict):
        return node
    built: dict[str, Any] = {}
    for key, child in node.items():
        if not is_schema and key in _IDENTIFIERS and isinstance(child, str):
            continue
        if is_schema and key in SUBSCHEMA_MAPS and isinstance(child, dict):
            child = {name: without_stray_identifiers(below, is_schema=True) for name, below in child.items()}
        elif key not in _UNSEARCHED:
            child_is_schema = is_schema and (key in SINGLE_SUBSCHEMAS or key in SUBSCHEMA_LISTS)
            child = without_stray_identifiers(child, is_schema=child_is_schema)
        built[key] = child
    return built
