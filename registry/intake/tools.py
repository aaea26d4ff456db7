"""Check each tool of a listing on its own: accept it, repair it, or quarantine it with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal

from registry.errors import SchemaRejected
from registry.intake import param_headers
from registry.intake.issues import UNCHECKED_CODES, IntakeResult, RepairNotes, check_each
from registry.intake.repairs import MAX_TEXT_CHARS, cut_own_texts, cut_texts, repair_members
from registry.intake.schema_repairs import outlined, repair_root, repair_schema
from registry.schema import schemas
from registry.schema.display_text import name_as_words
from registry.schema.json_values import without_keys

# The protocol recommends at most 128 characters. Longer names are shortened for callers, but have to be kept, sent
# and compared as they are.
MAX_NAME_LENGTH: Final = 1_024
# Patterns that are reported as unchecked; one schema may have thousands.
_MAX_REPORTED_PATTERNS: Final = 3


Transport = Literal["stdio", "http"]


def admit_tools(
    tools: Iterable[object],
    *,
    transport: Transport,
    strict: bool = False,
    keep: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda definition: definition,
) -> IntakeResult[Mapping[str, Any]]:
    """Check every tool on its own; never raises for any JSON value.

    Repairs are made on copies and never change what a tool accepts. Every admitted schema is compiled: call this in a
    worker thread for long listings.

    Args:
        tools: As they were listed.
        transport: How they came.
        strict: Whether a tool is quarantined whose arguments cannot be checked, instead of being called unchecked.
        keep: Returns what stays in memory of a definition, an equal one.
    """
    digests: dict[str, bytes] = {}

    def check(tool: Any, notes: RepairNotes) -> Mapping[str, Any] | None:
        name = _name(tool)
        tool = cut_own_texts(tool, notes)
        if not strict:
            tool = _within_bounds(tool, notes)
        text = _bounded_text(tool)
        # Texts of thousands would take more memory meanwhile than all that stays.
        known = sha256(text).digest()
        if name in digests:
            if known != digests[name]:
                raise SchemaRejected("duplicate_name", "another tool of this name came first")
            notes.append(("duplicate", "listed twice with the same definition"))
            return None
        definition = _admit_one(tool, text, transport, notes, strict=strict)
        digests[name] = known
        return keep(definition)

    return check_each(tools, check, key="name", kind="tools", noun="tool")


def _name(tool: object) -> str:
    if not isinstance(tool, dict):
        raise SchemaRejected("not_an_object", f"a tool is an object, this is {type(tool).__name__}")
    name = tool.get("name")
    if not isinstance(name, str):
        raise SchemaRejected("no_name", "the tool has no name")
    if len(name) > MAX_NAME_LENGTH:
        raise SchemaRejected("name_too_long", f"the name has more than {MAX_NAME_LENGTH} characters")
    return name


def _bounded_text(tool: Any) -> bytes:
    """Return the canonical form of a definition within bounds."""
    # An output schema out of bounds is dropped later on; the tool can do without.
    without_output = without_keys(tool, {"outputSchema"})
    schemas.measure(without_output)
    try:
        schemas.measure(tool.get("outputSchema"))
    except SchemaRejected:
        return schemas.canonical_json(without_output)
    return schemas.canonical_json(tool)


def _admit_one(tool: Any, text: bytes, transport: Transport, notes: RepairNotes, *, strict: bool) -> dict[str, Any]:
    # A short text has no long one in it.
    definition = repair_members(cut_texts(tool, notes) if len(text) > MAX_TEXT_CHARS else tool, notes)
    definition = _with_input(definition, notes, strict=strict)
    definition = _with_output(definition, notes)
    if param_headers.KEYWORD_BYTES in text:  # spares nearly every tool a walk over its schema
        definition = _with_headers(definition, transport, notes)
    definition = _with_description(definition, notes)
    _check_unicode(definition, text)
    return definition


def _within_bounds(tool: Any, notes: RepairNotes) -> Any:
    """Return a tool with an outline of its input schema, if that is too large or too deep to be walked."""
    schema = tool.get("inputSchema")
    try:
        schemas.check_bounds(schema)
    except SchemaRejected as rejected:
        if not isinstance(schema, dict):
            raise
        notes.append(
            ("schema_unchecked", f"only an outline of the input schema is shown and checked: {rejected.detail}")
        )
        return {**tool, "inputSchema": outlined(schema)}
    return tool


def _with_input(definition: dict[str, Any], notes: RepairNotes, *, strict: bool) -> dict[str, Any]:
    schema = definition.get("inputSchema")
    # Many servers mean "no arguments" by this.
    if schema is None or schema is True or schema in ({}, []):
        notes.append(("input_schema", "there was no usable input schema"))
        repaired_schema: dict[str, Any] = {"type": "object"}
    elif not isinstance(schema, dict):
        if strict:
            raise SchemaRejected("schema_not_an_object", "the input schema is not an object")
        notes.append(("schema_unchecked", "the input schema was not an object, so arguments are not checked"))
        repaired_schema = {"type": "object"}
    else:
        if strict:  # otherwise `_within_bounds` has looked
            schemas.check_bounds(schema)
        before = len(notes)
        repaired_schema = repair_root(repair_schema(schema, notes), notes)
        if strict and (lost := [note for note in notes[before:] if note[0] in UNCHECKED_CODES]):
            raise SchemaRejected(*lost[0])
        if repaired_schema.get("type") != "object":
            if strict:
                raise SchemaRejected("root_type", "the input schema describes something else than an object")
            notes.append(("schema_unchecked", "the input schema described something else than an object"))
            repaired_schema = outlined({**repaired_schema, "type": "object"})
    # Compiled now, so that no call has to wait for it and a bad schema is known at once.
    try:
        compiled = schemas.validator(repaired_schema, schemas.digest(repaired_schema))
    except SchemaRejected as rejected:
        if strict:
            raise
        notes.append(("schema_unchecked", f"only an outline of the input schema is checked: {rejected.detail}"))
        repaired_schema = outlined(repaired_schema)
        compiled = schemas.validator(repaired_schema, schemas.digest(repaired_schema))
    for pattern in compiled.unchecked_patterns[:_MAX_REPORTED_PATTERNS]:
        notes.append(("pattern_unchecked", f"a pattern cannot be run here, so its texts are not checked: {pattern}"))
    return definition if repaired_schema is schema else {**definition, "inputSchema": repaired_schema}


def _with_output(definition: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    if "outputSchema" not in definition:
        return definition
    schema = definition["outputSchema"]
    try:
        if not isinstance(schema, dict):
            raise SchemaRejected("schema_not_an_object", "it is not an object")
        schemas.check_bounds(schema)
        repaired_schema = repair_schema(schema, notes, of_results=True)
        schemas.compile_schema(repaired_schema)
    except SchemaRejected as rejected:
        # Only results are checked against it, and a tool can do without.
        notes.append(("output_schema", f"the output schema was dropped: {rejected.detail}"))
        return without_keys(definition, {"outputSchema"})
    return definition if repaired_schema is schema else {**definition, "outputSchema": repaired_schema}


def _with_headers(definition: dict[str, Any], transport: Transport, notes: RepairNotes) -> dict[str, Any]:
    """Keep valid header annotations. A tool with an invalid one is rejected over HTTP, and loses them over stdio.

    Specification 2026-07-28, basic/transports/streamable-http, "Custom Headers".
    """
    schema = definition["inputSchema"]
    reason = param_headers.invalid_header(schema)
    if reason is None:
        return definition
    if transport == "http":
        raise SchemaRejected("invalid_header", reason)
    notes.append(("invalid_header", f"header annotations were removed: {reason}"))
    return {**definition, "inputSchema": param_headers.without_headers(schema)}


def _with_description(definition: dict[str, Any], notes: RepairNotes) -> dict[str, Any]:
    description = definition.get("description")
    if isinstance(description, str) and description.strip():
        return definition
    name = definition["name"]
    annotations = definition.get("annotations")
    candidates = (
        definition.get("title"),
        annotations.get("title") if isinstance(annotations, dict) else None,
        name_as_words(name),
    )
    chosen = next((text for text in candidates if isinstance(text, str) and text.strip()), "Tool")
    notes.append(("description", "there was no description; the title or the name stands for it"))
    return {**definition, "description": chosen}


def _check_unicode(definition: dict[str, Any], text: bytes) -> None:
    """Reject halves of surrogate pairs where they cannot be removed: UTF-8 cannot encode them."""
    if b"\\ud" not in text:
        return  # nothing else is escaped like this in the canonical form
    # The name is replaced by the wrapper's before anyone is shown it.
    rest = without_keys(definition, {"name"})
    try:
        json.dumps(rest, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SchemaRejected("not_unicode", "the definition holds broken characters") from None
