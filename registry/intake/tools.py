"""Check each tool of a listing alone: accept, repair, or quarantine with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.errors import SchemaRejected
from registry.intake import param_headers
from registry.intake.repairs import Notes, mend_members, mend_root, mend_schema
from registry.schema import schemas
from registry.schema.text import excerpt, words

MAX_NAME_LENGTH: Final = 1_024
_MAX_DETAIL: Final = 300

Transport = Literal["stdio", "http"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What intake saw in one item: its name as far as it can be shown, a stable code, one sentence.

    Attributes:
        tool: The name; for anything but a tool, what identifies it.
        kind: As its list is called on the wire.
    """

    tool: str
    code: str
    detail: str
    kind: str = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What became of one listing; sound definitions are the very objects that came in."""

    tools: tuple[dict[str, Any], ...]
    quarantined: tuple[Finding, ...]
    repaired: tuple[Finding, ...]


def admit(tools: Sequence[object], *, transport: Transport) -> Intake:
    """Look at every tool alone, so that one bad definition costs no other tool its place.

    Repairs are made on copies and never change what a tool accepts. Compiles every schema that it
    admits: for long listings call it in a worker thread. Never raises for any JSON value.
    """
    admitted: dict[str, dict[str, Any]] = {}
    texts: dict[str, bytes] = {}
    quarantined: list[Finding] = []
    repaired: list[Finding] = []
    for index, tool in enumerate(tools):
        label = _label(tool, index)
        try:
            name = _name(tool)
            text = _bounded_text(tool)
            if name in admitted:
                _refuse_namesake(text == texts[name])
                repaired.append(_finding(label, "duplicate", "listed twice with the same definition"))
                continue
            notes: Notes = []
            definition = _admit_one(tool, text, transport, notes)
        except SchemaRejected as rejected:
            quarantined.append(_finding(label, rejected.code, rejected.detail))
            continue
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # Boundary: whatever a hostile definition provokes spoils that definition only.
            quarantined.append(_finding(label, "unreadable", f"{type(error).__name__}: {error}"))
            continue
        admitted[name], texts[name] = definition, text
        repaired.extend(_finding(label, code, detail) for code, detail in dict.fromkeys(notes))
    return Intake(tools=tuple(admitted.values()), quarantined=tuple(quarantined), repaired=tuple(repaired))


def _finding(tool: str, code: str, detail: str) -> Finding:
    return Finding(tool=tool, code=code, detail=excerpt(detail, _MAX_DETAIL))


def _label(tool: object, index: int) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    shown = excerpt(name, 128) if isinstance(name, str) else ""
    return shown or f"(tool {index + 1})"


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
    """Return the canonical form; output schemas have their own bounds and cost the tool nothing."""
    schemas.measure({key: value for key, value in tool.items() if key != "outputSchema"})
    if "outputSchema" in tool and _out_of_bounds(tool["outputSchema"]):
        return schemas.canonical({key: value for key, value in tool.items() if key != "outputSchema"})
    return schemas.canonical(tool)


def _out_of_bounds(schema: object) -> bool:
    try:
        schemas.measure(schema)
    except SchemaRejected:
        return True
    return False


def _refuse_namesake(equal: bool) -> None:
    if not equal:
        raise SchemaRejected("duplicate_name", "another tool of this name came first")


def _admit_one(tool: Any, text: bytes, transport: Transport, notes: Notes) -> dict[str, Any]:
    definition = mend_members(tool, notes)
    definition = _with_input(definition, notes)
    definition = _with_output(definition, notes)
    if param_headers.KEYWORD_BYTES in text:
        definition = _with_headers(definition, transport, notes)
    definition = _with_description(definition, notes)
    _check_unicode(definition, text)
    return definition


def _with_input(definition: dict[str, Any], notes: Notes) -> dict[str, Any]:
    schema = definition.get("inputSchema")
    if schema is None or schema is True or schema == {}:
        notes.append(("input_schema", "there was no usable input schema"))
        mended: dict[str, Any] = {"type": "object"}
    elif not isinstance(schema, dict):
        raise SchemaRejected("schema_not_an_object", "the input schema is not an object")
    else:
        schemas.check_bounds(schema)
        mended = mend_root(mend_schema(schema, notes), notes)
        if mended.get("type") != "object":
            raise SchemaRejected("root_type", "the input schema describes something else than an object")
    compiled = schemas.validator(mended, schemas.digest(mended))
    for pattern in compiled.unchecked_patterns[:3]:
        notes.append(("pattern_unchecked", f"this pattern is left to the upstream: {pattern}"))
    return definition if mended is schema else {**definition, "inputSchema": mended}


def _with_output(definition: dict[str, Any], notes: Notes) -> dict[str, Any]:
    if "outputSchema" not in definition:
        return definition
    schema = definition["outputSchema"]
    try:
        if not isinstance(schema, dict):
            raise SchemaRejected("schema_not_an_object", "it is not an object")
        schemas.check_bounds(schema)
        mended = mend_schema(schema, notes)
        schemas.compile_schema(mended)
    except SchemaRejected as rejected:
        notes.append(("output_schema", f"the output schema was dropped: {rejected.detail}"))
        return {key: value for key, value in definition.items() if key != "outputSchema"}
    return definition if mended is schema else {**definition, "outputSchema": mended}


def _with_headers(definition: dict[str, Any], transport: Transport, notes: Notes) -> dict[str, Any]:
    """Keep valid annotations. Over HTTP a client must drop a tool with an invalid one; stdio has none.

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


def _with_description(definition: dict[str, Any], notes: Notes) -> dict[str, Any]:
    description = definition.get("description")
    if isinstance(description, str) and description.strip():
        return definition
    name = definition["name"]
    annotations = definition.get("annotations")
    candidates = (
        definition.get("title"),
        annotations.get("title") if isinstance(annotations, dict) else None,
        words(name),
    )
    chosen = next((text for text in candidates if isinstance(text, str) and text.strip()), "Tool")
    notes.append(("description", "there was no description; the title or the name stands for it"))
    return {**definition, "description": chosen}


def _check_unicode(definition: dict[str, Any], text: bytes) -> None:
    """Refuse halves of surrogate pairs where they cannot be removed; no JSON text can carry them."""
    if b"\\ud" not in text:
        return  # the canonical form escapes nothing else in this way
    # The name is replaced by the wrapper's before anybody sees it.
    rest = {key: value for key, value in definition.items() if key != "name"}
    try:
        json.dumps(rest, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SchemaRejected("not_unicode", "the definition holds broken characters") from None
