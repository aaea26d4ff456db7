"""Edits a schema so that whatever it accepted is still accepted, where parts of it have to accept more.

A part that accepts more makes the whole accept less below `not`, `if`, `oneOf` and `maxContains`, also where a
reference leads from there to the part. Wherever these keywords lead to such a part, they are removed or made weaker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from registry.schema.json_values import containers
from registry.schema.references import (
    REFERENCE_KEYWORDS,
    SINGLE_SUBSCHEMAS,
    SUBSCHEMA_LISTS,
    SUBSCHEMA_MAPS,
    SchemaDocument,
    encoded_step,
)

_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")


@dataclass(slots=True)
class Edit:
    """What is to be changed in one schema object, its own keywords only.

    Attributes:
        changes: New values of keywords, in which subschemas are edited as well.
        dropped: Keywords to remove.
        widens: Whether the object accepts more then.
        uncovers: Whether members that it described are described by nothing then, so that `unevaluatedProperties` and
            `unevaluatedItems` would apply to them.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    widens: bool = False
    uncovers: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.changes or self.dropped or self.widens)


def weakened(
    schema: Any,
    edit: Callable[[dict[str, Any]], Edit],
    document: SchemaDocument,
    nodes: Sequence[dict[str, Any]] | None = None,
) -> Any:
    """Return a schema, of bounded depth, with edits; the same object if there are none.

    Args:
        schema: The schema.
        edit: Tells what to change in one schema object. It is called once for each.
        document: The same with its references.
        nodes: Every schema object in it, if the caller has listed them.
    """
    edits: dict[int, Edit] = {}
    nodes = schema_objects(schema, document) if nodes is None else nodes
    for node in nodes:
        found = edit(node)
        if not found.is_empty:
            edits[id(node)] = found
    if not edits:
        return schema
    wider = _leading_to(schema, document, edits)
    uncovers = any(one.uncovers for one in edits.values()) or any(id(node.get("if")) in wider for node in nodes)
    rebuild = _Rebuild(edits, wider, document.target_ids, uncovers=uncovers)
    done = rebuild.schema(schema, ())
    return rebuild.with_references(done) if rebuild.moved else done


def schema_objects(schema: Any, document: SchemaDocument) -> list[dict[str, Any]]:
    """Return every object of a document that is a schema: by its place, or since a reference leads there."""
    targets = document.target_ids
    found: list[dict[str, Any]] = []
    pending: list[tuple[Any, bool]] = [(schema, True)]
    while pending:
        node, is_schema = pending.pop()
        if isinstance(node, list):
            pending += [(child, is_schema or id(child) in targets) for child in node]
        elif isinstance(node, dict):
            if is_schema:
                found.append(node)
            for key, child in node.items():
                if isinstance(child, dict | list):
                    pending += _children(key, child, is_schema, targets)
    return found


def _children(key: str, child: Any, is_schema: bool, targets: frozenset[int]) -> list[tuple[Any, bool]]:
    if is_schema and key in SUBSCHEMA_MAPS and isinstance(child, dict):
        return [(below, True) for below in child.values()]
    known = is_schema and (key in SINGLE_SUBSCHEMAS or key in SUBSCHEMA_LISTS)
    return [(child, known or id(child) in targets)]


def _leading_to(schema: Any, document: SchemaDocument, edits: dict[int, Edit]) -> frozenset[int]:
    """Return the identities of all objects and lists from which a schema that accepts more can be reached."""
    parents: dict[int, list[int]] = {}
    pending: list[int] = [key for key, edit in edits.items() if edit.widens]
    if not pending:
        return frozenset()
    for node in containers(schema):
        for child in node.values() if isinstance(node, dict) else node:
            if isinstance(child, dict | list):
                parents.setdefault(id(child), []).append(id(node))
        if isinstance(node, dict) and not REFERENCE_KEYWORDS.isdisjoint(node):
            for target in document.targets(node):
                parents.setdefault(id(target), []).append(id(node))
            if "$dynamicRef" in node or "$recursiveRef" in node:
                pending.append(id(node))  # it may lead anywhere
    found: set[int] = set()
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += parents.get(one, ())
    return frozenset(found)


class _Rebuild:
    """Makes the new schema.

    Attributes:
        moved: Pointers before and after, of lists that have another place now.
    """

    def __init__(
        self, edits: dict[int, Edit], wider: frozenset[int], targets: frozenset[int], *, uncovers: bool
    ) -> None:
        self._edits = edits
        self._wider = wider
        self._targets = targets
        self._uncovers = uncovers
        self.moved: list[tuple[str, str]] = []

    def schema(self, node: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            return node
        edit = self._edits.get(id(node))
        source = node
        if edit is not None:
            source = {key: value for key, value in {**node, **edit.changes}.items() if key not in edit.dropped}
        built: dict[str, Any] = {}
        same = source is node
        for key, child in source.items():
            below = self._below(key, child, (*path, key), True) if isinstance(child, dict | list) else child
            built[key] = below
            same = same and below is child
        weaker = self._without_reversing(source, built, path) if id(node) in self._wider else built
        if self._uncovers and any(word in weaker for word in _UNEVALUATED):
            weaker = {key: value for key, value in weaker.items() if key not in _UNEVALUATED}
        return node if same and weaker is built else weaker

    def _below(self, key: str, child: Any, path: tuple[str, ...], is_schema: bool) -> Any:
        if is_schema and key in SUBSCHEMA_MAPS and isinstance(child, dict):
            return _same_or(child, {name: self.schema(below, (*path, name)) for name, below in child.items()})
        known = is_schema and (key in SINGLE_SUBSCHEMAS or key in SUBSCHEMA_LISTS)
        return self._any(child, path, known)

    def _any(self, node: Any, path: tuple[str, ...], is_schema: bool) -> Any:
        """Rebuild a schema, a list of some, or whatever holds a schema that a reference leads to."""
        if isinstance(node, list):
            items: list[Any] = []
            # A plain loop: a comprehension takes twice as much of Python's stack.
            for index, item in enumerate(node):
                items.append(self._any(item, (*path, str(index)), is_schema))
            return node if all(new is old for new, old in zip(items, node, strict=True)) else items
        if not isinstance(node, dict):
            return node
        if is_schema or id(node) in self._targets:
            return self.schema(node, path)
        return _same_or(node, {key: self._any(child, (*path, key), False) for key, child in node.items()})

    def _without_reversing(
        self, source: dict[str, Any], built: dict[str, Any], path: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return a schema without keywords that accept less where what they lead to accepts more."""
        wider = {key for key in ("not", "if", "oneOf", "contains") if id(source.get(key)) in self._wider}
        if not wider:
            return built
        dropped = {"not"} & wider
        if "if" in wider:
            dropped |= {"if", "then", "else"}
        if "contains" in wider:
            dropped.add("maxContains")
        weaker = {key: value for key, value in built.items() if key not in dropped}
        if "oneOf" in wider:
            # More than one may fit now.
            branches = weaker.pop("oneOf")
            place: tuple[str, ...] = ("anyOf",)
            if "anyOf" in weaker:
                every = weaker.get("allOf")
                others = every if isinstance(every, list) else []
                place = ("allOf", str(len(others)), "anyOf")
                weaker["allOf"] = [*others, {"anyOf": branches}]
            else:
                weaker["anyOf"] = branches
            self.moved.append((_pointer((*path, "oneOf")), _pointer((*path, *place))))
        return weaker

    def with_references(self, schema: Any) -> Any:
        """Return the schema with references into what was moved, outermost lists first, as they lead there now."""
        moved = sorted(self.moved, key=lambda pair: len(pair[0]))

        def edit(node: dict[str, Any]) -> Edit:
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return Edit()
            led = _led(reference, moved)
            return Edit(changes={"$ref": led}) if led != reference else Edit()

        return _edited_everywhere(schema, edit)


def _led(reference: str, moved: Sequence[tuple[str, str]]) -> str:
    # Pointers were noted as they were; so what is before a moved list is replaced last.
    for before, after in reversed(moved):
        if reference.startswith(before + "/"):
            reference = after + reference[len(before) :]
    return reference


def _edited_everywhere(node: Any, edit: Callable[[dict[str, Any]], Edit]) -> Any:
    if isinstance(node, list):
        return [_edited_everywhere(child, edit) for child in node]
    if not isinstance(node, dict):
        return node
    return {key: _edited_everywhere(child, edit) for key, child in {**node, **edit(node).changes}.items()}


def _same_or(node: dict[str, Any], built: dict[str, Any]) -> dict[str, Any]:
    return node if all(built[key] is child for key, child in node.items()) else built


def _pointer(path: Sequence[str]) -> str:
    return "#" + "".join(f"/{encoded_step(step)}" for step in path)
