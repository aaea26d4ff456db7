"""Check the tools of a listing one by one: accept, repair, or quarantine each with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

from registry.errors import SchemaRejected
from registry.intake import schema_repairs
from registry.intake.issues import UNCHECKED_CODES, IntakeResult, RepairNotes, check_each
from registry.intake.item_intake import MAX_TEXT_CHARS, cut_own_texts, cut_texts, repair_members
from registry.intake.schema_repairs import outlined, repair_root, repair_schema
from registry.schema import schemas
from registry.schema.display_text import is_clean_json, name_as_words
from registry.schema.json_values import without_keys
from registry.schema.references import has_ambiguous_identifiers

# The protocol recommends at most 128 characters. Longer names are shortened for callers, but the original has to be
# stored, compared and sent to the upstream.
MAX_NAME_LENGTH: Final = 1_024
# Maximum number of unchecked patterns that are reported per schema, which may have thousands.
_MAX_REPORTED_PATTERNS: Final = 3


Transport = Literal["stdio", "http"]


def admit_tools(
    tools: Iterable[object],
    *,
    transport: Transport,
    strict: bool = False,
    keep: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda definition: definition,
) -> IntakeResult[Mapping[str, Any]]:
    """Check every tool separately; never raises for any JSON value.

    Repairs are made on copies and never change what a tool accepts. Every admitted schema is compiled: call this in a
    worker thread for long listings.

    Args:
        tools: The tools as listed.
        transport: The transport of the upstream.
        strict: Quarantine a tool whose arguments cannot be checked, instead of calling it unchecked.
        keep: Returns an equal definition in the form in which it is stored in memory.
    """
    admission = _Admission(transport, strict=strict)

    def check(tool: Any, notes: RepairNotes) -> Mapping[str, Any] | None:
        definition = admission.admit(tool, notes)
        return None if definition is None else keep(definition)

    return check_each(tools, check, key="name", kind="tools", noun="tool")


@dataclass(frozen=True, slots=True)
class _Measured:
    """A schema of a tool after it was measured.

    Attributes:
        digest: The digest of the schema's canonical form; None if the schema has no canonical form. Not shortened, so
            that no server can find a second schema with the digest of an accepted schema.
        bounds: The result of checking the schema's limits; None if an equal schema has been admitted unchanged.
        is_clean: Whether the schema certainly has no hidden characters.
    """

    schema: Any
    digest: str | None
    measured: schemas.Measurements
    bounds: schemas.SchemaBounds | None
    is_clean: bool = False


class _Admission:
    """Checks the tools of one listing.

    The tools of an API share schemas: the 1,014 operations of Kubernetes have 381 input schemas and 172 output schemas.
    A schema that is admitted unchanged and without a note is recorded, and equal schemas are not checked again.
    """

    def __init__(self, transport: Transport, *, strict: bool) -> None:
        self._transport: Transport = transport
        self._strict = strict
        # Store only digests: the texts of thousands of tools would take more memory than the result.
        self._digests: dict[str, bytes] = {}
        self._sound: dict[tuple[str, str], schemas.Measurements] = {}

    def admit(self, tool: Any, notes: RepairNotes) -> dict[str, Any] | None:
        """Return the definition of an admitted tool; None if the same tool was listed before.

        Raises:
            SchemaRejected: The tool cannot be admitted.
        """
        name = _name(tool)
        tool = cut_own_texts(tool, notes)
        tool, measured = self._measure_input(tool, notes)
        text, output = self._bounded_text(tool, measured)
        tool_digest = sha256(text).digest()
        if name in self._digests:
            if tool_digest != self._digests[name]:
                raise SchemaRejected("duplicate_name", "another tool with this name is listed before it")
            notes.append(("duplicate", "listed twice with the same definition"))
            return None
        # A short definition cannot contain a long text.
        definition = repair_members(cut_texts(tool, notes) if len(text) > MAX_TEXT_CHARS else tool, notes)
        definition = self._with_input(definition, measured, notes)
        definition = self._with_output(definition, output, notes)
        if schema_repairs.KEYWORD_BYTES in text:  # avoids traversing the schema of nearly every tool
            definition = _with_headers(definition, self._transport, notes)
        definition = _with_description(definition, notes)
        _check_unicode(definition, text)
        self._digests[name] = tool_digest
        return definition

    def _measure(self, kind: str, schema: Any) -> _Measured:
        """Measure a schema, unless an equal schema has been admitted unchanged.

        Raises:
            SchemaRejected: The schema is too large or too deep.
        """
        try:
            text = schemas.canonical_json(schema)
        except SchemaRejected:
            bounds = schemas.check_bounds(schema)
            return _Measured(schema, None, bounds.measured, bounds)
        digest = sha256(text).hexdigest()
        if (cached := self._sound.get((kind, digest))) is not None:
            return _Measured(schema, digest, cached, None)
        bounds = schemas.check_bounds(schema)
        return _Measured(schema, digest, bounds.measured, bounds, is_clean_json(text))

    def _record(self, kind: str, measured: _Measured) -> None:
        if measured.digest is not None:
            self._sound[kind, measured.digest] = measured.measured

    def _measure_input(self, tool: Any, notes: RepairNotes) -> tuple[Any, _Measured]:
        """Return a tool and its measured input schema, or an outline of a schema that is too large or too deep."""
        schema = tool.get("inputSchema")
        try:
            return tool, self._measure("input", schema)
        except SchemaRejected as rejected:
            if self._strict or not isinstance(schema, dict):
                raise
            notes.append(
                ("schema_unchecked", f"only an outline of the input schema is shown and checked: {rejected.detail}")
            )
            outline = outlined(schema)
            return {**tool, "inputSchema": outline}, self._measure("input", outline)

    def _bounded_text(self, tool: Any, measured: _Measured) -> tuple[bytes, _Measured | None]:
        """Check the size of a definition; return its canonical form, and its measured output schema if there is one.

        An oversized output schema is dropped later, because a tool can be used without an output schema.
        """
        _check_sum(schemas.measure(without_keys(tool, ("inputSchema", "outputSchema"))), measured.measured)
        if "outputSchema" not in tool:
            return schemas.canonical_json(tool), None
        try:
            output = self._measure("output", tool["outputSchema"])
        except SchemaRejected:
            return schemas.canonical_json(without_keys(tool, {"outputSchema"})), None
        return schemas.canonical_json(tool), output

    def _with_input(self, definition: dict[str, Any], measured: _Measured, notes: RepairNotes) -> dict[str, Any]:
        schema = definition.get("inputSchema")
        is_measured = schema is measured.schema
        if is_measured and measured.bounds is None:
            return definition
        before = len(notes)
        # Many servers write "no arguments" this way.
        if schema is None or schema is True or schema in ({}, []):
            notes.append(("input_schema", "there was no usable input schema"))
            repaired_schema: dict[str, Any] = {"type": "object"}
        elif not isinstance(schema, dict):
            if self._strict:
                raise SchemaRejected("schema_not_an_object", "the input schema is not an object")
            notes.append(("schema_unchecked", "the input schema was not an object, so arguments are not checked"))
            repaired_schema = {"type": "object"}
        else:
            document = measured.bounds.document if is_measured and measured.bounds is not None else None
            is_clean = is_measured and measured.is_clean
            repaired_schema = repair_schema(schema, notes, document=document, is_clean=is_clean)
            repaired_schema = repair_root(repaired_schema, notes)
            if self._strict and (unchecked_notes := [note for note in notes[before:] if note[0] in UNCHECKED_CODES]):
                raise SchemaRejected(*unchecked_notes[0])
            if repaired_schema.get("type") != "object":
                if self._strict:
                    raise SchemaRejected("root_type", "the input schema does not describe an object")
                notes.append(("schema_unchecked", "the input schema did not describe an object"))
                repaired_schema = outlined({**repaired_schema, "type": "object"})
        is_unchanged = is_measured and repaired_schema is schema
        repaired_schema = self._compilable_schema(repaired_schema, measured if is_unchanged else None, notes)
        if is_unchanged and len(notes) == before:
            self._record("input", measured)
        return definition if repaired_schema is schema else {**definition, "inputSchema": repaired_schema}

    def _compilable_schema(
        self, schema: dict[str, Any], measured: _Measured | None, notes: RepairNotes
    ) -> dict[str, Any]:
        """Return the schema, or an outline if it cannot be compiled.

        The schema is compiled now, so that no call has to wait and an invalid schema is found at once.
        """
        bounds = measured.bounds if measured is not None else None
        try:
            compiled = schemas.validator(schema, schemas.digest(schema), bounds)
        except SchemaRejected as rejected:
            if self._strict:
                raise
            notes.append(("schema_unchecked", f"only an outline of the input schema is checked: {rejected.detail}"))
            schema = outlined(schema)
            compiled = schemas.validator(schema, schemas.digest(schema))
        for pattern in compiled.unchecked_patterns[:_MAX_REPORTED_PATTERNS]:
            notes.append(
                ("pattern_unchecked", f"a pattern cannot be evaluated here, so texts are not checked: {pattern}")
            )
        return schema

    def _with_output(
        self, definition: dict[str, Any], measured: _Measured | None, notes: RepairNotes
    ) -> dict[str, Any]:
        if "outputSchema" not in definition:
            return definition
        schema = definition["outputSchema"]
        is_measured = measured is not None and schema is measured.schema
        if measured is not None and is_measured and measured.bounds is None:
            return definition
        before = len(notes)
        try:
            if not isinstance(schema, dict):
                raise SchemaRejected("schema_not_an_object", "it is not an object")
            bounds = measured.bounds if measured is not None and is_measured else None
            bounds = schemas.check_bounds(schema) if bounds is None else bounds
            is_clean = measured is not None and is_measured and measured.is_clean
            repaired_schema = repair_schema(schema, notes, of_results=True, document=bounds.document, is_clean=is_clean)
            if has_ambiguous_identifiers(repaired_schema):
                raise SchemaRejected("ambiguous_id", "a definition named `$id` would be read as an identifier")
            schemas.compile_schema(repaired_schema, bounds if repaired_schema is schema else None)
        except SchemaRejected as rejected:
            # A tool can be used without an output schema, since output schemas are only used to check results.
            notes.append(("output_schema", f"the output schema was dropped: {rejected.detail}"))
            return without_keys(definition, {"outputSchema"})
        if measured is not None and is_measured and repaired_schema is schema and len(notes) == before:
            self._record("output", measured)
        return definition if repaired_schema is schema else {**definition, "outputSchema": repaired_schema}


def _name(tool: object) -> str:
    if not isinstance(tool, dict):
        raise SchemaRejected("not_an_object", f"a tool must be an object, but this is {type(tool).__name__}")
    name = tool.get("name")
    if not isinstance(name, str):
        raise SchemaRejected("no_name", "the tool has no name")
    if len(name) > MAX_NAME_LENGTH:
        raise SchemaRejected("name_too_long", f"the name has more than {MAX_NAME_LENGTH} characters")
    return name


def _check_sum(others_size: schemas.Measurements, member: schemas.Measurements) -> None:
    """Reject an object whose members exceed the limits together.

    Args:
        others_size: The measurements of the object without one of its members.
        member: The measurements of that member.

    Raises:
        SchemaRejected: `too_large`, `too_deep` or `too_complex`.
    """
    if others_size.size + member.size > schemas.MAX_SCHEMA_BYTES:
        raise SchemaRejected("too_large", f"more than {schemas.MAX_SCHEMA_BYTES} bytes")
    if others_size.visits + member.visits > schemas.MAX_SCHEMA_VISITS:
        raise SchemaRejected("too_complex", f"more than {schemas.MAX_SCHEMA_VISITS} objects and lists")
    if member.depth >= schemas.MAX_SCHEMA_DEPTH:
        raise SchemaRejected("too_deep", f"nested more than {schemas.MAX_SCHEMA_DEPTH} levels")


def _with_headers(definition: dict[str, Any], transport: Transport, notes: RepairNotes) -> dict[str, Any]:
    """Return the definition if its header annotations are valid; else remove them (stdio) or reject the tool (HTTP).

    Specification 2026-07-28, basic/transports/streamable-http, "Custom Headers".
    """
    schema = definition["inputSchema"]
    reason = schema_repairs.invalid_header(schema)
    if reason is None:
        return definition
    if transport == "http":
        raise SchemaRejected("invalid_header", reason)
    notes.append(("invalid_header", f"header annotations were removed: {reason}"))
    return {**definition, "inputSchema": schema_repairs.without_headers(schema)}


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
    notes.append(("description", "there was no description; the title or the name is used instead"))
    return {**definition, "description": chosen}


def _check_unicode(definition: dict[str, Any], text: bytes) -> None:
    """Reject lone surrogates that cannot be removed, because UTF-8 cannot encode them."""
    if b"\\ud" not in text:
        return  # in the canonical form only surrogates are escaped like this
    # The name is not checked, because callers only see the wrapper's name.
    unnamed = without_keys(definition, {"name"})
    try:
        json.dumps(unnamed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SchemaRejected("not_unicode", "the definition contains broken characters") from None
