"""Repair schemas so that no client loses a list to them, and whatever they accepted is still accepted.

Each keyword is held to the form that the drafts give it (`keyword_forms`): what is clearly meant is written in that
form, and what is not is removed. Identifiers are removed and references become pointers into the same schema: in a
client that keeps the schemas of all servers together, equal identifiers would be one schema. Clients also compile the
schemas of results, so their patterns are written in a syntax that all clients read.
"""

from __future__ import annotations

import re
from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.intake.keyword_forms import DROP, FORMS, TYPES, schema_form
from registry.intake.param_headers import KEYWORD
from registry.schema.checked_form import says_nullable, with_nulls_spelled_out
from registry.schema.display_text import clean_json, excerpt
from registry.schema.drafts import DRAFT_7, draft_of, has_lone_references, has_tuples_in_items, uri_of
from registry.schema.json_values import map_items, without_keys
from registry.schema.portable_patterns import portable
from registry.schema.references import (
    DATA_KEYWORDS,
    MISSING,
    REFERENCE_KEYWORDS,
    REMOTE,
    Resolution,
    SchemaDocument,
    encoded_pointer,
    pointers_of,
)
from registry.schema.weakening import Edit, schema_objects, weakened

# Texts that say what a schema accepts or refers to; all others are for readers, whatever they are called.
_NO_PROSE: Final = REFERENCE_KEYWORDS | DATA_KEYWORDS | {
    "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$schema", "pattern", "format", "contentEncoding",
    "contentMediaType", KEYWORD,
}  # fmt: skip
# Values that are shown, and change nothing of what is accepted.
_SHOWN_DATA: Final = frozenset({"default", "examples", "example"})
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "$comment", "deprecated", "readOnly", "writeOnly", "examples", "default", "example"}
)
# What stays of a schema in a draft where a reference, which leads nowhere, stood for all that is beside it.
_BESIDE_REFERENCES: Final = _ANNOTATIONS | {"$schema", "$defs", "definitions"}
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
# Of an outline: properties, and characters of a description. Together they stay far below the bounds of a schema.
_MAX_OUTLINED: Final = 200
_MAX_OUTLINED_TEXT: Final = 1_000
_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")
_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_DEFINITIONS: Final = ("$defs", "definitions")
# Keywords of 2020-12 that a schema which is declared as draft 7 would lose.
_SINCE_2020: Final = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor", "minContains", "maxContains"})


def repair_root(schema: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    """Return an input schema with the root `type: object`, which arguments always have."""
    kind = schema.get("type")
    if kind == "object":
        return schema
    if kind is None:
        notes.append(("root_type", "the input schema had no root type"))
    elif isinstance(kind, list) and "object" in kind:
        notes.append(("root_type", "the input schema allowed more than an object"))
    else:
        return schema
    return {**_with_root_apart(schema), "type": "object"}


def _with_root_apart(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose references to its root lead to a copy of it, for a root that is about to accept less."""
    document = SchemaDocument(schema)
    if id(schema) not in document.target_ids:
        return schema
    name = "root"
    while name in schema.get("$defs", {}):
        name += "_"

    def edit(node: dict[str, Any]) -> Edit:
        edit = Edit()
        for keyword, _, target, _ in document.resolutions.get(id(node), ()):
            if target is schema and (keyword == "$ref" or "$ref" not in node):
                edit.dropped |= {keyword} - {"$ref"}
                edit.changes["$ref"] = f"#/$defs/{name}"
        return edit

    apart: dict[str, Any] = weakened(schema, edit, document)
    root = without_keys(apart, ("$schema", "$defs", "definitions", "$recursiveAnchor", "$dynamicAnchor", "$anchor"))
    return {**apart, "$defs": {**apart.get("$defs", {}), name: root}}


def repair_schema(schema: Any, notes: RepairNotes, *, of_results: bool = False) -> Any:
    """Repair a schema within bounds and all of its subschemas; the same object if nothing was wrong.

    Args:
        schema: The schema.
        notes: What was repaired is added here.
        of_results: Whether clients compile it to check results.
    """
    if not isinstance(schema, dict):
        return schema
    document = SchemaDocument(schema)
    repair = _SchemaRepair(schema, document, notes, of_results=of_results)
    repaired = weakened(schema, repair.edit, document, repair.nodes)
    if of_results:
        spelled_out = with_nulls_spelled_out(repaired, lone_references=repair.has_lone_references)
        if spelled_out is not repaired:
            notes.append(("nullable", "nullable is written as a type, as all clients read it"))
        repaired = spelled_out
    return _cleaned(repaired, notes)


def outlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the names, types and descriptions of the properties of an object schema that cannot be used as a whole.

    It accepts whatever the schema accepts.
    """
    properties = schema.get("properties")
    outline: dict[str, Any] = {"type": "object"}
    if isinstance(description := schema.get("description"), str):
        outline["description"] = description[:_MAX_OUTLINED_TEXT]
    if isinstance(properties, dict):
        shown = list(properties.items())[:_MAX_OUTLINED]
        outline["properties"] = {name: _outlined_property(below) for name, below in shown if isinstance(name, str)}
    if isinstance(required := schema.get("required"), list):
        names = outline.get("properties", {})
        if kept := [name for name in dict.fromkeys(map(str, required[:_MAX_OUTLINED])) if name in names]:
            outline["required"] = kept
    return outline


def _outlined_property(schema: Any) -> dict[str, Any]:
    outline: dict[str, Any] = {}
    if not isinstance(schema, dict):
        return outline
    if schema.get("type") in TYPES and not says_nullable(schema):
        outline["type"] = schema["type"]
    if isinstance(description := schema.get("description"), str):
        outline["description"] = description[:_MAX_OUTLINED_TEXT]
    return outline


class _SchemaRepair:
    """Tells what to change in each schema of one document.

    Attributes:
        has_lone_references: Whether its draft ignores what is beside a reference.
        nodes: Every schema object in it.
    """

    def __init__(
        self, schema: dict[str, Any], document: SchemaDocument, notes: RepairNotes, *, of_results: bool
    ) -> None:
        self._root = schema
        self._document = document
        self._notes = notes
        self._of_results = of_results
        self.nodes = nodes = schema_objects(schema, document)
        known = {id(node) for node in nodes}
        declared = schema.get("$schema")
        self._draft = draft_of(declared)
        self.has_lone_references = has_lone_references(self._draft)
        self._loses_ids = any("$id" in node or "id" in node for node in nodes)
        # Anchors of two resources would be those of one when their identifiers are gone.
        self._loses_anchors = any(one in known and one != id(schema) for one in document.identified)
        self._converts_tuples = not has_tuples_in_items(self._draft)
        self._new_draft = uri_of(self._draft) if self._draft else declared
        if self._draft == "draft-04":
            self._new_draft = DRAFT_7
        elif (
            of_results
            and self._converts_tuples
            and any(isinstance(node.get("items"), list) for node in nodes)
            and not any(node.keys() & _SINCE_2020 for node in nodes)
        ):
            # Clients differ: one reads such a list as draft 7 does whatever is declared, another only if it is.
            self._converts_tuples, self._new_draft = False, DRAFT_7
        self._pointers: dict[int, str] | None = None

    def edit(self, node: dict[str, Any]) -> Edit:
        """Return what to change in one schema."""
        edit = Edit()
        self._edit_identity(node, edit)
        for resolution in self._document.resolutions.get(id(node), ()):
            self._edit_reference(node, resolution, edit)
        for key, value in node.items():
            if key in edit.dropped or key in edit.changes:
                continue
            form = FORMS.get(key)
            if form is None:
                continue
            fixed = form(value)
            if fixed is DROP:
                self._drop(key, value, edit)
            elif fixed is not value:
                edit.changes[key] = fixed
                self._notes.append((_code_of(key, value), f"{_shown(key)} was written in another form"))
        self._edit_alternatives(node, edit)
        self._edit_tuple(node, edit)
        self._edit_bounds(node, edit)
        self._edit_required(node, edit)
        if self._of_results:
            self._edit_for_clients(node, edit)
        return edit

    def _drop(self, key: str, value: Any, edit: Edit) -> None:
        edit.dropped.add(key)
        if key in ("if", "then", "else"):
            edit.dropped |= {"if"}
        edit.widens = edit.widens or key not in _ANNOTATIONS
        edit.uncovers = edit.uncovers or key in _COVERING
        self._notes.append((_code_of(key, value), _reason(key, value)))

    def _edit_identity(self, node: dict[str, Any], edit: Edit) -> None:
        is_root = node is self._root
        if "$schema" in node:
            if not is_root and self._loses_ids:
                edit.dropped.add("$schema")
            elif is_root and self._of_results and self._draft is None and self._new_draft == node["$schema"]:
                # A client refuses calls of a tool whose result is described in a dialect that it does not know.
                edit.dropped.add("$schema")
                self._notes.append(("dialect", "the dialect is not one of those that clients know"))
            elif is_root and isinstance(node["$schema"], str) and _is_other_draft(node["$schema"], self._new_draft):
                edit.changes["$schema"] = self._new_draft
                self._notes.append(("dialect", "the draft was named in a form that not all clients know"))
        elif is_root and self._new_draft is not None:
            edit.changes["$schema"] = self._new_draft
            self._notes.append(("dialect", "lists in `items` are those of draft 7, which was not declared"))
        for key in ("$id", "id"):
            if key in node:
                edit.dropped.add(key)
                self._notes.append(("identifier", f"{key} was removed: in a client it may be that of another schema"))
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(key)
            if key in node and (self._loses_anchors or not isinstance(anchor, str) or not _ANCHOR.fullmatch(anchor)):
                edit.dropped.add(key)
        if "$async" in node:  # of Ajv: its checks would return promises
            edit.dropped.add("$async")

    def _edit_reference(self, node: dict[str, Any], resolution: Resolution, edit: Edit) -> None:
        keyword, reference, target, from_root = resolution
        if target is MISSING or target is REMOTE or not isinstance(target, dict | bool):
            what = "to another document, which is not fetched" if target is REMOTE else "to what is not there"
            code = "output_reference" if self._of_results else "remote_ref" if target is REMOTE else "broken_ref"
            self._notes.append((code, f"a reference was removed, which leads {what}: {excerpt(reference, 120)}"))
            self._leave_out(node, keyword, edit)
        elif keyword == "$ref":
            self._edit_ref(node, reference, target, from_root, edit)
        elif self._loses_ids or self._loses_anchors:
            if keyword == "$recursiveRef":
                leads_on = self._loses_anchors and isinstance(target, dict) and target.get("$recursiveAnchor") is True
            else:
                leads_on = len(self._document.dynamic_anchors.get(reference.rpartition("#")[2], ())) > 1
            # With several schemas of the name, the one that is meant depends on where a check comes from.
            if "$ref" not in node and isinstance(target, dict) and not leads_on:
                edit.dropped.add(keyword)
                edit.changes["$ref"] = self._pointer(target)
            else:
                self._leave_out(node, keyword, edit)

    def _leave_out(self, node: dict[str, Any], keyword: str, edit: Edit) -> None:
        edit.dropped.add(keyword)
        if keyword == "$ref" and self.has_lone_references:
            edit.dropped |= node.keys() - _BESIDE_REFERENCES
        edit.widens = edit.uncovers = True

    def _edit_ref(
        self, node: dict[str, Any], reference: str, target: dict[str, Any] | bool, from_root: bool, edit: Edit
    ) -> None:
        fragment = reference.partition("#")[2]
        stays = from_root or not (self._loses_ids or self._loses_anchors)
        is_anchor = bool(fragment) and not fragment.startswith("/")
        if is_anchor and self.has_lone_references:
            stays = False  # anchors came with 2019-09
        if stays and reference.startswith("#") and _REFERENCE.fullmatch(fragment):
            return
        if isinstance(target, dict):
            pointer = self._pointer(target)
        elif from_root:
            pointer = "#" + encoded_pointer(fragment)
        elif target:
            self._leave_out(node, "$ref", edit)
            return
        else:
            edit.dropped.add("$ref")
            edit.changes["not"] = {}
            return
        if pointer != reference:
            edit.changes["$ref"] = pointer
            self._notes.append(("reference", f"a reference is written as a pointer now: {excerpt(reference, 120)}"))

    def _pointer(self, target: dict[str, Any]) -> str:
        if self._pointers is None:
            self._pointers = pointers_of(self._root)
        return self._pointers[id(target)]

    def _edit_alternatives(self, node: dict[str, Any], edit: Edit) -> None:
        """Replace what stands for no schema among alternatives; `oneOf` with such a member says nothing certain."""
        either = edit.changes.get("oneOf")
        if isinstance(either, list) and isinstance(node["oneOf"], list):
            edit.dropped.add("oneOf")
            del edit.changes["oneOf"]
            edit.widens = edit.uncovers = True

    def _edit_tuple(self, node: dict[str, Any], edit: Edit) -> None:
        """Move a list in `items` to `prefixItems`, where 2020-12 has it."""
        tuples = edit.changes.get("items", node.get("items"))
        if (
            not self._converts_tuples
            or not isinstance(tuples, list)
            or "prefixItems" in node
            or "items" in edit.dropped
        ):
            return
        self._notes.append(("tuple", "the schemas of single items stood in `items`, as in earlier dialects"))
        edit.changes.pop("items", None)
        edit.dropped |= {"items", "additionalItems"}
        if tuples:
            edit.changes["prefixItems"] = tuples
        if "additionalItems" in node and schema_form(node["additionalItems"]) is not DROP:
            edit.dropped.discard("items")
            edit.changes["items"] = schema_form(node["additionalItems"])

    def _edit_bounds(self, node: dict[str, Any], edit: Edit) -> None:
        """Make `exclusiveMinimum: true` beside a `minimum` a bound of its own, as since draft 6."""
        for exclusive, plain in _BOUNDS:
            switch = node.get(exclusive)
            if not isinstance(switch, bool):
                continue
            self._notes.append(("bound", f"{exclusive} was a boolean, as in draft 4"))
            bound = edit.changes.get(plain, node.get(plain))
            edit.changes.pop(exclusive, None)
            edit.dropped.add(exclusive)
            if switch and plain not in edit.dropped and plain in node:
                edit.dropped.discard(exclusive)
                edit.dropped.add(plain)
                edit.changes.pop(plain, None)
                edit.changes[exclusive] = bound

    def _edit_required(self, node: dict[str, Any], edit: Edit) -> None:
        """Require the properties that say `required: true` themselves, as in draft 3."""
        properties = node.get("properties")
        if not isinstance(properties, dict):
            return
        said = [
            name
            for name, below in properties.items()
            if isinstance(below, dict) and (below.get("required") is True or below.get("required") == "true")
        ]
        if said:
            named = edit.changes.get("required", node.get("required"))
            edit.dropped.discard("required")
            edit.changes["required"] = list(dict.fromkeys([*(named if isinstance(named, list) else ()), *said]))

    def _edit_for_clients(self, node: dict[str, Any], edit: Edit) -> None:
        """Write what the clients that compile schemas do not read alike in a form that all do."""
        pattern = node.get("pattern")
        if isinstance(pattern, str) and (same := portable(pattern)) != pattern:
            self._note_pattern(pattern, same)
            edit.widens = True
            if same is None:
                edit.dropped.add("pattern")
            else:
                edit.changes["pattern"] = same
        members = edit.changes.get("patternProperties", node.get("patternProperties"))
        if isinstance(members, dict) and "patternProperties" not in edit.dropped:
            self._edit_members(node, members, edit)

    def _edit_members(self, node: dict[str, Any], members: dict[str, Any], edit: Edit) -> None:
        kept: dict[str, Any] = {}
        for name, below in members.items():
            same = portable(name)
            if same != name:
                self._note_pattern(name, same)
                edit.widens = True
            if same is not None and same not in kept:
                kept[same] = below
        if list(kept) == list(members):
            return
        edit.changes["patternProperties"] = kept
        if len(kept) < len(members):
            edit.dropped |= {"additionalProperties"} & node.keys()
            edit.uncovers = True

    def _note_pattern(self, pattern: str, same: str | None) -> None:
        what = (
            "was removed, since not all clients read it" if same is None else "is written so that all clients read it"
        )
        self._notes.append(("pattern", f"a pattern of the output schema {what}: {excerpt(pattern, 120)}"))


def _cleaned(node: Any, notes: RepairNotes) -> Any:
    """Return a schema without hidden characters in what is read; the same object if there are none."""
    if isinstance(node, list):
        return map_items(node, lambda item: _cleaned(item, notes))
    if not isinstance(node, dict):
        return node
    changes: dict[str, Any] = {}
    for key, child in node.items():
        if key in _SHOWN_DATA or (isinstance(child, str) and key not in _NO_PROSE):
            new = clean_json(child)
            if new is not child:
                notes.append(("hidden_text", f"hidden characters removed from the {excerpt(key, 40)} of a schema"))
        else:
            new = _cleaned(child, notes) if isinstance(child, dict | list) and key not in DATA_KEYWORDS else child
        if new is not child:
            changes[key] = new
    return {**node, **changes} if changes else node


# Keywords that describe members, so that without them `unevaluatedProperties` and the like would apply to these.
_COVERING: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "items", "prefixItems", "additionalItems", "contains"}
    | {"allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies", "$ref"}
)
# Codes of repairs, by keyword.
_CODES: Final = {
    "properties": "properties",
    "required": "required",
    "$schema": "dialect",
    "type": "type",
    "enum": "enum",
}


def _code_of(key: str, value: Any) -> str:
    if value is None:
        return _CODES.get(key, "null_member")
    if key == "properties" and isinstance(value, dict):
        return "boolean_property" if any(isinstance(one, bool) for one in value.values()) else "properties"
    return _CODES.get(key, "keyword")


def _reason(key: str, value: Any) -> str:
    if value is None:
        return f"{_shown(key)} of a schema was null"
    if key == "required" and isinstance(value, bool):  # what it says is taken over by the object around it
        return "required was a boolean inside a property"
    if key == "type" and isinstance(value, str):
        return f"{excerpt(value, 40)} is not a type"
    return f"{_shown(key)} of a schema was not in the form of this keyword, and was removed"


def _shown(key: str) -> str:
    return excerpt(key, 40)


def _is_other_draft(declared: str, uri: object) -> bool:
    return declared.rstrip("#") != str(uri).rstrip("#")
