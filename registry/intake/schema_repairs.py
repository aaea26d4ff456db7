"""Repair the schemas of tools, so that no client rejects a tool list because of an invalid schema.

Each keyword is converted to the form that the drafts require (`keyword_forms`) if its meaning is clear, and removed if
not. Identifiers are removed, and references become pointers into the same schema, because a client that compiles the
schemas of all servers together would confuse schemas with equal identifiers. Clients also compile output schemas, so
the patterns of output schemas are rewritten in a syntax that all clients support.

A property with a header annotation (`x-mcp-header`) is also sent as an HTTP header: specification 2026-07-28,
basic/transports/streamable-http, "Custom Headers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from registry.intake.issues import RepairNotes
from registry.intake.keyword_forms import DROP, FORMS, TYPES, schema_form
from registry.schema.display_text import clean_json, excerpt
from registry.schema.json_values import map_items, without_keys
from registry.schema.patterns import says_nullable, with_nulls_spelled_out
from registry.schema.portable_patterns import portable
from registry.schema.references import (
    DATA_KEYWORDS,
    DRAFT_7,
    MISSING,
    REFERENCE_KEYWORDS,
    REMOTE,
    SINGLE_SUBSCHEMAS,
    SUBSCHEMA_LISTS,
    SUBSCHEMA_MAPS,
    Resolution,
    SchemaDocument,
    draft_of,
    encoded_pointer,
    has_equal_anchors,
    has_lone_references,
    has_stray_identifiers,
    has_tuples_in_items,
    pointers_of,
    uri_of,
    without_stray_identifiers,
)
from registry.schema.weakening import Edit, apply_edits, schema_objects

KEYWORD: Final = "x-mcp-header"
# The keyword in canonical JSON, used to test quickly whether a definition has any header annotation.
KEYWORD_BYTES: Final = b'"x-mcp-header"'

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The types whose values have one unambiguous form as text.
_TYPES: Final = frozenset({"string", "integer", "boolean"})
# Maximum length of a path in a message. It is limited because the path consists of names that the upstream chose.
_MAX_SHOWN_PATH: Final = 120

PropertyPath = tuple[str, ...]


def invalid_header(schema: object) -> str | None:
    """Return why a header annotation is invalid, or None if all are valid."""
    seen: set[str] = set()
    for path, node in _schemas_with_paths(schema):
        if KEYWORD not in node:
            continue
        header = node[KEYWORD]
        if not path:
            return f"{KEYWORD} is only allowed on properties, not in items, definitions or alternatives"
        where = ".".join(path)[:_MAX_SHOWN_PATH]
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return f"{KEYWORD} of {where} is not a header token"
        kind = node.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            return f"{KEYWORD} of {where} needs the type string, integer or boolean"
        if header.lower() in seen:
            return f"{KEYWORD} of {where} is used twice"
        seen.add(header.lower())
    return None


def header_paths(schema: object) -> dict[str, PropertyPath]:
    """Return a dict from header names to the paths of their properties; empty if any annotation is invalid."""
    if invalid_header(schema) is not None:
        return {}
    return {node[KEYWORD]: path for path, node in _schemas_with_paths(schema) if path and KEYWORD in node}


def without_headers(schema: Any) -> Any:
    """Return the schema without header annotations. The caller has checked the depth, so recursion is safe."""
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for key, child in schema.items():
        if key == KEYWORD:
            continue
        if key in SUBSCHEMA_MAPS and isinstance(child, dict):
            child = {name: without_headers(below) for name, below in child.items()}
        elif key in SUBSCHEMA_LISTS and isinstance(child, list):
            child = [without_headers(below) for below in child]
        elif key in SINGLE_SUBSCHEMAS:
            child = without_headers(child)
        stripped[key] = child
    return stripped


def _schemas_with_paths(schema: object) -> Iterator[tuple[PropertyPath | None, dict[str, Any]]]:
    """Yield each subschema with its path; the path is None if it leads through keywords other than `properties`."""
    stack: list[tuple[PropertyPath | None, object]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, child in node.items():
            if key == "properties" and isinstance(child, dict):
                for name, below in child.items():
                    stack.append((None if path is None else (*path, name), below))
            elif key in SUBSCHEMA_MAPS and isinstance(child, dict):
                stack.extend((None, below) for below in child.values())
            elif key in SUBSCHEMA_LISTS and isinstance(child, list):
                stack.extend((None, below) for below in child)
            elif key in SINGLE_SUBSCHEMAS:
                stack.append((None, child))


# Keywords whose strings affect validation or references; the strings of all other keywords are prose.
_NO_PROSE: Final = (
    REFERENCE_KEYWORDS
    | DATA_KEYWORDS
    | {
        "$id",
        "id",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$schema",
        "pattern",
        "format",
        "contentEncoding",
        "contentMediaType",
        KEYWORD,
    }
)
# Data keywords that are shown to readers and do not affect validation.
_SHOWN_DATA: Final = frozenset({"default", "examples", "example"})
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "$comment", "deprecated", "readOnly", "writeOnly", "examples", "default", "example"}
    | {"$vocabulary"}
)
# In drafts that ignore keywords next to `$ref`, only these keywords are kept if an unresolvable `$ref` is removed.
_BESIDE_REFERENCES: Final = _ANNOTATIONS | {"$schema", "$defs", "definitions"}
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
# Maximum number of properties in an outline, and of characters in each description. They keep an outline far below the
# limits of schemas.
_MAX_OUTLINED: Final = 200
_MAX_OUTLINED_TEXT: Final = 1_000
_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")
_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_DEFINITIONS: Final = ("$defs", "definitions")
# Keywords of 2020-12 that would lose their effect if the schema declared draft 7.
_SINCE_2020: Final = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor", "minContains", "maxContains"})


def repair_root(schema: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    """Narrow the root type of an input schema to `object` if it allows other types. Arguments are always objects."""
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
    """Make references to the root refer to a copy in `$defs`, so that narrowing the root does not affect them."""
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

    apart: dict[str, Any] = apply_edits(schema, edit, document)
    root = without_keys(apart, ("$schema", "$defs", "definitions", "$recursiveAnchor", "$dynamicAnchor", "$anchor"))
    return {**apart, "$defs": {**apart.get("$defs", {}), name: root}}


def repair_schema(
    schema: Any,
    notes: RepairNotes,
    *,
    of_results: bool = False,
    document: SchemaDocument | None = None,
    is_clean: bool = False,
) -> Any:
    """Repair a schema and all of its subschemas; return the same object if nothing was wrong.

    Args:
        notes: Receives the repairs.
        of_results: Whether the schema is an output schema, which clients compile to check results.
        document: The schema with its resolved references, if known.
        is_clean: Whether the schema is known to contain no hidden characters.
    """
    if not isinstance(schema, dict):
        return schema
    document = SchemaDocument(schema) if document is None else document
    repair = _SchemaRepair(schema, document, notes, of_results=of_results)
    repaired = apply_edits(schema, repair.edit, document, repair.nodes)
    if of_results:
        spelled_out = with_nulls_spelled_out(repaired, lone_references=repair.has_lone_references)
        if spelled_out is not repaired:
            notes.append(("nullable", "nullable was replaced with a type that all clients support"))
        repaired = spelled_out
    if repair.has_stray_identifiers:
        repaired = without_stray_identifiers(repaired, is_schema=True)
    return repaired if is_clean else _remove_hidden_characters(repaired, notes)


def outlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an outline of an object schema that is not usable as a whole: property names, types and descriptions.

    The outline accepts everything that the schema accepts.
    """
    properties = schema.get("properties")
    outline: dict[str, Any] = {"type": "object"}
    if isinstance(description := schema.get("description"), str):
        outline["description"] = description[:_MAX_OUTLINED_TEXT]
    if isinstance(properties, dict):
        outlined_members = list(properties.items())[:_MAX_OUTLINED]
        outline["properties"] = {
            name: _outlined_property(below) for name, below in outlined_members if isinstance(name, str)
        }
    if isinstance(required := schema.get("required"), list):
        names = outline.get("properties", {})
        if required_names := [name for name in dict.fromkeys(map(str, required[:_MAX_OUTLINED])) if name in names]:
            outline["required"] = required_names
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
    """Determines the changes to each schema of one document.

    Attributes:
        has_lone_references: Whether the schema's draft ignores the keywords next to a `$ref`.
        nodes: Every schema object in the document.
    """

    def __init__(
        self, schema: dict[str, Any], document: SchemaDocument, notes: RepairNotes, *, of_results: bool
    ) -> None:
        self._root = schema
        self._document = document
        self._notes = notes
        self._of_results = of_results
        self.nodes = nodes = schema_objects(schema, document)
        node_ids = {id(node) for node in nodes}
        declared = schema.get("$schema")
        self._draft = draft_of(declared)
        self.has_lone_references = has_lone_references(self._draft)
        self._loses_ids = any("$id" in node or "id" in node for node in nodes)
        self._looping = document.looping(nodes) if of_results else frozenset()
        self.has_stray_identifiers = of_results and has_stray_identifiers(schema, node_ids)
        # Without identifiers, equal anchors of several embedded schemas would collide. Ajv rejects schemas with equal
        # anchors.
        self._loses_anchors = (
            self.has_stray_identifiers
            or any(identity in node_ids and identity != id(schema) for identity in document.identified)
            or has_equal_anchors(nodes)
        )
        self._converts_tuples = not has_tuples_in_items(self._draft)
        self._new_draft = uri_of(self._draft) if self._draft else declared
        if self._draft == "draft-04":
            self._new_draft = DRAFT_7
        elif (
            of_results
            and self._converts_tuples
            and any(isinstance(node.get("items"), list) and node["items"] for node in nodes)
            and not any(node.keys() & _SINCE_2020 for node in nodes)
        ):
            # Some clients always read a list in `items` as draft 7 does; other clients do so only if the schema
            # declares draft 7.
            self._converts_tuples, self._new_draft = False, DRAFT_7
        self._pointers: dict[int, str] | None = None

    def edit(self, node: dict[str, Any]) -> Edit:
        """Return the changes to one schema."""
        edit = Edit()
        self._edit_identity(node, edit)
        for resolution in self._document.resolutions.get(id(node), ()):
            self._edit_reference(node, resolution, edit)
        for key, value in node.items():
            form = FORMS.get(key)
            if form is None or (fixed := form(value)) is value or key in edit.dropped or key in edit.changes:
                continue
            if fixed is DROP:
                self._drop(key, value, edit)
            else:
                edit.changes[key] = fixed
                self._notes.append(
                    (_code_of(key, value), f"{_key_for_message(key)} was converted to its standard form")
                )
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
                # Clients reject calls to a tool whose output schema declares an unknown dialect.
                edit.dropped.add("$schema")
                self._notes.append(("dialect", "the dialect is unknown to clients"))
            elif is_root and isinstance(node["$schema"], str) and _is_other_draft(node["$schema"], self._new_draft):
                edit.changes["$schema"] = self._new_draft
                self._notes.append(("dialect", "the draft was named in a form that not all clients support"))
        elif is_root and self._new_draft is not None:
            edit.changes["$schema"] = self._new_draft
            self._notes.append(("dialect", "lists in `items` require draft 7, which was not declared"))
        for key in ("$id", "id"):
            if key in node:
                edit.dropped.add(key)
                self._notes.append(
                    ("identifier", f"{key} was removed, because other schemas may have the same identifier")
                )
        for key in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(key)
            if key in node and (self._loses_anchors or not isinstance(anchor, str) or not _ANCHOR.fullmatch(anchor)):
                edit.dropped.add(key)
        if "$async" in node:  # an Ajv extension that makes validation return a promise
            edit.dropped.add("$async")

    def _edit_reference(self, node: dict[str, Any], resolution: Resolution, edit: Edit) -> None:
        keyword, reference, target, from_root = resolution
        if target is MISSING or target is REMOTE or not isinstance(target, dict | bool):
            what = "another document, which is not fetched," if target is REMOTE else "a missing target"
            code = "output_reference" if self._of_results else "remote_ref" if target is REMOTE else "broken_ref"
            self._notes.append((code, f"a reference to {what} was removed: {excerpt(reference, 120)}"))
            self._leave_out(node, keyword, edit)
        elif id(node) in self._looping and id(target) in self._looping:
            # Clients follow circular references without end; Ajv does so even before it has a value to check.
            self._notes.append(("output_reference", f"a circular reference was removed: {excerpt(reference, 120)}"))
            self._leave_out(node, keyword, edit)
        elif keyword == "$ref":
            self._edit_ref(node, reference, target, from_root, edit)
        elif self._loses_ids or self._loses_anchors:
            if keyword == "$recursiveRef":
                leads_on = self._loses_anchors and isinstance(target, dict) and target.get("$recursiveAnchor") is True
            else:
                leads_on = len(self._document.dynamic_anchors.get(reference.rpartition("#")[2], ())) > 1
            # If several schemas have this anchor, the target depends on the schema where validation started.
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
            stays = False  # `$anchor` was introduced in 2019-09
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
            self._notes.append(("reference", f"a reference was rewritten as a pointer: {excerpt(reference, 120)}"))

    def _pointer(self, target: dict[str, Any]) -> str:
        if self._pointers is None:
            self._pointers = pointers_of(self._root)
        return self._pointers[id(target)]

    def _edit_alternatives(self, node: dict[str, Any], edit: Edit) -> None:
        """Remove a `oneOf` that has invalid members, because its meaning is uncertain."""
        either = edit.changes.get("oneOf")
        if isinstance(either, list) and isinstance(node["oneOf"], list):
            edit.dropped.add("oneOf")
            del edit.changes["oneOf"]
            edit.widens = edit.uncovers = True

    def _edit_tuple(self, node: dict[str, Any], edit: Edit) -> None:
        """Move a list in `items` to `prefixItems`, the keyword that 2020-12 uses for it."""
        tuples = edit.changes.get("items", node.get("items"))
        if (
            not isinstance(tuples, list)
            or (tuples and not self._converts_tuples)
            or "prefixItems" in node
            or "items" in edit.dropped
        ):
            return
        self._notes.append(("tuple", "`items` had a schema for each position, as in earlier dialects"))
        edit.changes.pop("items", None)
        edit.dropped |= {"items", "additionalItems"}
        if tuples:
            edit.changes["prefixItems"] = tuples
        if "additionalItems" in node and schema_form(node["additionalItems"]) is not DROP:
            edit.dropped.discard("items")
            edit.changes["items"] = schema_form(node["additionalItems"])

    def _edit_bounds(self, node: dict[str, Any], edit: Edit) -> None:
        """Convert `exclusiveMinimum: true` next to a `minimum` to a numeric bound, as in draft 6 and later."""
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
        """Add properties that contain `required: true`, as in draft 3, to the `required` list of their object."""
        properties = node.get("properties")
        if not isinstance(properties, dict):
            return
        required_names = [
            name
            for name, below in properties.items()
            if isinstance(below, dict) and (below.get("required") is True or below.get("required") == "true")
        ]
        if required_names:
            already_required = edit.changes.get("required", node.get("required"))
            edit.dropped.discard("required")
            edit.changes["required"] = list(
                dict.fromkeys([*(already_required if isinstance(already_required, list) else ()), *required_names])
            )

    def _edit_for_clients(self, node: dict[str, Any], edit: Edit) -> None:
        """Rewrite patterns that clients interpret differently in a form that all clients support."""
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
        portable_members: dict[str, Any] = {}
        for name, below in members.items():
            same = portable(name)
            if same != name:
                self._note_pattern(name, same)
                edit.widens = True
            if same is not None and same not in portable_members:
                portable_members[same] = below
        if list(portable_members) == list(members):
            return
        edit.changes["patternProperties"] = portable_members
        if len(portable_members) < len(members):
            edit.dropped |= {"additionalProperties"} & node.keys()
            edit.uncovers = True

    def _note_pattern(self, pattern: str, same: str | None) -> None:
        what = "was removed, because not all clients support it" if same is None else "was rewritten for all clients"
        self._notes.append(("pattern", f"a pattern of the output schema {what}: {excerpt(pattern, 120)}"))


def _remove_hidden_characters(node: Any, notes: RepairNotes) -> Any:
    """Return a schema without hidden characters in texts that are shown; the same object if there are none."""
    if isinstance(node, list):
        return map_items(node, lambda item: _remove_hidden_characters(item, notes))
    if not isinstance(node, dict):
        return node
    changes: dict[str, Any] = {}
    for key, child in node.items():
        if key in _SHOWN_DATA or (isinstance(child, str) and key not in _NO_PROSE):
            new = clean_json(child)
            if new is not child:
                notes.append(("hidden_text", f"hidden characters removed from the {excerpt(key, 40)} of a schema"))
        else:
            new = (
                _remove_hidden_characters(child, notes)
                if isinstance(child, dict | list) and key not in DATA_KEYWORDS
                else child
            )
        if new is not child:
            changes[key] = new
    return {**node, **changes} if changes else node


# Keywords that evaluate members. If such a keyword is removed, `unevaluatedProperties` would apply to its members.
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
        return "boolean_property" if any(isinstance(schema, bool) for schema in value.values()) else "properties"
    return _CODES.get(key, "keyword")


def _reason(key: str, value: Any) -> str:
    if value is None:
        return f"{_key_for_message(key)} of a schema was null"
    if key == "required" and isinstance(value, bool):  # moved to the surrounding object
        return "required was a boolean inside a property"
    if key == "type" and isinstance(value, str):
        return f"{excerpt(value, 40)} is not a type"
    return f"{_key_for_message(key)} of a schema was not in the form of this keyword, and was removed"


def _key_for_message(key: str) -> str:
    return excerpt(key, 40)


def _is_other_draft(declared: str, uri: object) -> bool:
    return declared.rstrip("#") != str(uri).rstrip("#")
