"""Edit a schema so that it still accepts every value that it accepted before.

Below `not`, `if`, `oneOf` and `maxContains`, a subschema that accepts more makes the whole schema accept less, even if
only a reference leads to the subschema. These keywords are removed or weakened if a subschema below them was changed to
accept more.
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

_CONTAINERS: Final = (dict, list)
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")


@dataclass(slots=True)
class Edit:
    """Changes to the keywords of one schema object.

    Attributes:
        changes: New values of keywords; subschemas in them are edited as well.
        dropped: Keywords to remove.
        widens: Whether the edited object accepts more.
        uncovers: Whether a keyword that evaluates members is lost, so that `unevaluatedProperties` and
            `unevaluatedItems` would start to apply to these members.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    widens: bool = False
    uncovers: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the edit changes nothing."""
        return not (self.changes or self.dropped or self.widens)


def apply_edits(
    schema: Any,
    edit: Callable[[dict[str, Any]], Edit],
    document: SchemaDocument,
    nodes: Sequence[dict[str, Any]] | None = None,
) -> Any:
    """Apply edits to a schema of bounded depth; return the same object if there are none.

    Args:
        schema: The schema.
        edit: Returns the changes to one schema object; called once for each object.
        document: The schema with its resolved references.
        nodes: Every schema object in the schema, if already listed.
    """
    edits: dict[int, Edit] = {}
    nodes = schema_objects(schema, document) if nodes is None else nodes
    for node in nodes:
        node_edit = edit(node)
        if not node_edit.is_empty:
            edits[id(node)] = node_edit
    if not edits:
        return schema
    wider = _nodes_reaching_wider(schema, document, edits)
    uncovers = any(each.uncovers for each in edits.values()) or any(id(node.get("if")) in wider for node in nodes)
    rebuild = _Rebuild(edits, wider, document.target_ids, uncovers=uncovers)
    done = rebuild.rebuild_schema(schema, ())
    return rebuild.with_references(done) if rebuild.moved else done


def schema_objects(schema: Any, document: SchemaDocument) -> list[dict[str, Any]]:
    """Return every object that is a schema because of its position or because a reference points to it."""
    targets = document.target_ids
    schemas: list[dict[str, Any]] = []
    pending: list[tuple[Any, bool]] = [(schema, True)]
    while pending:
        node, is_schema = pending.pop()
        if isinstance(node, list):
            pending += [(child, is_schema or id(child) in targets) for child in node]
        elif isinstance(node, dict):
            if is_schema:
                schemas.append(node)
            for key, child in node.items():
                if not isinstance(child, _CONTAINERS):
                    continue
                if is_schema and key in SUBSCHEMA_MAPS and isinstance(child, dict):
                    pending += [(below, True) for below in child.values()]
                else:
                    child_is_schema = is_schema and (key in SINGLE_SUBSCHEMAS or key in SUBSCHEMA_LISTS)
                    pending.append((child, child_is_schema or id(child) in targets))
    return schemas


def _nodes_reaching_wider(schema: Any, document: SchemaDocument, edits: dict[int, Edit]) -> frozenset[int]:
    """Return the identities of all objects and lists from which a widened schema can be reached."""
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
                pending.append(id(node))  # a dynamic reference may point to any schema
    reached: set[int] = set()
    while pending:
        node_id = pending.pop()
        if node_id not in reached:
            reached.add(node_id)
            pending += parents.get(node_id, ())
    return frozenset(reached)


class _Rebuild:
    """Builds the edited schema.

    Attributes:
        moved: Pointers (before, after) of lists that were moved.
    """

    def __init__(
        self, edits: dict[int, Edit], wider: frozenset[int], targets: frozenset[int], *, uncovers: bool
    ) -> None:
        self._edits = edits
        self._wider = wider
        self._targets = targets
        self._uncovers = uncovers
        self.moved: list[tuple[str, str]] = []

    def rebuild_schema(self, node: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            return node
        edit = self._edits.get(id(node))
        source = node
        if edit is not None:
            source = {key: value for key, value in {**node, **edit.changes}.items() if key not in edit.dropped}
        built: dict[str, Any] = {}
        same = source is node
        for key, child in source.items():
            below = self._rebuild_keyword(key, child, (*path, key), True) if isinstance(child, dict | list) else child
            built[key] = below
            same = same and below is child
        weaker = self._without_reversing_keywords(source, built, path) if id(node) in self._wider else built
        if self._uncovers and any(word in weaker for word in _UNEVALUATED):
            weaker = {key: value for key, value in weaker.items() if key not in _UNEVALUATED}
        return node if same and weaker is built else weaker

    def _rebuild_keyword(self, key: str, child: Any, path: tuple[str, ...], is_schema: bool) -> Any:
        if is_schema and key in SUBSCHEMA_MAPS and isinstance(child, dict):
            return _unless_changed(
                child, {name: self.rebuild_schema(below, (*path, name)) for name, below in child.items()}
            )
        child_is_schema = is_schema and (key in SINGLE_SUBSCHEMAS or key in SUBSCHEMA_LISTS)
        return self._rebuild_any(child, path, child_is_schema)

    def _rebuild_any(self, node: Any, path: tuple[str, ...], is_schema: bool) -> Any:
        """Rebuild a schema, a list of schemas, or any value that contains the target of a reference."""
        if isinstance(node, list):
            items: list[Any] = []
            # Use a loop, because a comprehension takes twice as much stack.
            for index, item in enumerate(node):
                items.append(self._rebuild_any(item, (*path, str(index)), is_schema))
            return node if all(new is old for new, old in zip(items, node, strict=True)) else items
        if not isinstance(node, dict):
            return node
        if is_schema or id(node) in self._targets:
            return self.rebuild_schema(node, path)
        return _unless_changed(
            node, {key: self._rebuild_any(child, (*path, key), False) for key, child in node.items()}
        )

    def _without_reversing_keywords(
        self, source: dict[str, Any], built: dict[str, Any], path: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return a schema without the keywords that would accept less because their subschemas accept more."""
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
            # A value may now match more than one branch.
            branches = weaker.pop("oneOf")
            place: tuple[str, ...] = ("anyOf",)
            if "anyOf" in weaker:
                every = weaker.get("allOf")
                conjuncts = every if isinstance(every, list) else []
                place = ("allOf", str(len(conjuncts)), "anyOf")
                weaker["allOf"] = [*conjuncts, {"anyOf": branches}]
            else:
                weaker["anyOf"] = branches
            self.moved.append((_pointer((*path, "oneOf")), _pointer((*path, *place))))
        return weaker

    def with_references(self, schema: Any) -> Any:
        """Update references into moved lists."""
        moved = sorted(self.moved, key=lambda pair: len(pair[0]))

        def edit(node: dict[str, Any]) -> Edit:
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return Edit()
            redirected = _redirect(reference, moved)
            return Edit(changes={"$ref": redirected}) if redirected != reference else Edit()

        return _edited_everywhere(schema, edit)


def _redirect(reference: str, moved: Sequence[tuple[str, str]]) -> str:
    # The pointers are those of the original document, so the outermost list has to be replaced last.
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


def _unless_changed(node: dict[str, Any], built: dict[str, Any]) -> dict[str, Any]:
    return node if all(built[key] is child for key, child in node.items()) else built


def _pointer(path: Sequence[str]) -> str:
    return "#" + "".join(f"/{encoded_step(step)}" for step in path)
