"""Apply a tool's configuration to the definition and the hints that its upstream gives.

Parameters that the upstream declares have precedence: configuration adds missing descriptions, and anything that
contradicts the schema is ignored with a warning, unless the override has `replace`. If the upstream declares no
parameters, the configured arguments become the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import orjson

from registry.errors import RegistryError
from registry.schema.display_text import clean, excerpt
from registry.schema.json_paths import MAX_SHOWN_KEY
from registry.schema.schemas import canonical_json, digest

Hints = Mapping[str, Any]
# MCP 2025-11-25 and 2026-07-28, "Tools", `ToolAnnotations`: the values of hints that a tool does not state.
DEFAULTS: Final = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
# True is the cautious value of these hints. For all other hints, true opens the tool to more callers.
WARNING: Final = frozenset({"destructiveHint", "openWorldHint"})
NO_HINTS: Final[Hints] = MappingProxyType({})
"""Shared by the many tools without hints."""
# Maximum number of removed tools whose first hints are remembered, in case the tools are listed again; the largest
# servers list about as many tools.
_MAX_GONE: Final = 10_000


def hints_of(annotations: object) -> Hints:
    """Return the hints among the annotations of a tool; equal hints share one object."""
    if not isinstance(annotations, Mapping):
        return NO_HINTS
    # Values other than booleans are ignored.
    hints = {name: hint for name, hint in annotations.items() if name.endswith("Hint") and isinstance(hint, bool)}
    return _shared_hints(canonical_json(hints)) if hints else NO_HINTS


# All combinations: four known hints, each true, false or absent.
@lru_cache(maxsize=81)
def _shared_hints(text: bytes) -> Hints:
    return MappingProxyType(orjson.loads(text))


def with_defaults(hints: Hints) -> dict[str, bool]:
    """Return all four hints, with defaults for absent hints."""
    complete = {name: hints[name] if isinstance(hints.get(name), bool) else usual for name, usual in DEFAULTS.items()}
    # The protocol gives `destructiveHint` a meaning only for tools that are not read-only.
    return {**complete, "destructiveHint": complete["destructiveHint"] and not complete["readOnlyHint"]}


def most_cautious_hints(now: Hints, before: Hints | None) -> Hints:
    """Return the hints that apply after a change: for each hint, the value that promises less."""
    if before is None or now is before:
        return now
    mine, theirs = with_defaults(now), with_defaults(before)
    lesser = {name: (any if name in WARNING else all)((mine[name], theirs[name])) for name in DEFAULTS}
    return now if lesser == mine else hints_of(lesser)


def first_hints(
    tools: Iterable[Mapping[str, Any]], earlier: Mapping[str, Hints], read: Mapping[str, Hints] = NO_HINTS
) -> Mapping[str, Hints]:
    """Return the hints with which each tool was first listed; `earlier` itself if no tool is new.

    Args:
        tools: The current definitions of a server.
        earlier: The earlier result. Its removed tools stay in the new result, because they may be listed again.
        read: Current hints that have been read already, by tool name.
    """
    tools = tuple(tools)
    new = {
        name: read[name] if name in read else hints_of(tool.get("annotations"))
        for tool in reversed(tools)
        if isinstance(name := tool.get("name"), str) and name not in earlier
    }
    if not new:
        return earlier
    hints = {**earlier, **new}
    if len(hints) > len(tools) + _MAX_GONE:
        listed = {tool.get("name") for tool in tools}
        unlisted = [name for name in hints if name not in listed]
        for name in unlisted[: len(unlisted) - _MAX_GONE]:
            del hints[name]
    return hints


ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")
# The largest tool in `tests/corpus` has 55 arguments; a longer list than this is a mistake in the file.
MAX_ARGUMENTS: Final = 200
# Maximum number of characters that messages quote from a name.
_MAX_QUOTED: Final = 64
_MEMBERS: Final = ("name", "type", "description", "required")
# Keywords other than `properties` that may declare parameters.
_COMPOSITION: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "patternProperties", "if")


class OverrideRejected(RegistryError):
    """The configured arguments of one tool are invalid. The message states the place and the expected value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedArgument:
    """One argument as the configuration describes it."""

    name: str
    type: str | None = None
    description: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """The configured override of one tool.

    Attributes:
        replace: True if the configured arguments take precedence over arguments that the upstream declares.
        hint: True if the arguments are shown but not enforced; the upstream validates them.
        description: Replaces the upstream's description.
        rejected: Why the configured arguments are not used, or None.
    """

    arguments: tuple[DocumentedArgument, ...] = ()
    replace: bool = False
    hint: bool = False
    description: str | None = None
    rejected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideResult:
    """A definition with its override applied.

    Attributes:
        definition: The same object if the override changes nothing.
        documented: The arguments whose documentation comes from configuration.
        warnings: One sentence for each part of the override that had no effect.
        checked: The input schema that calls are checked against, if it differs from the schema in the definition.
    """

    definition: Mapping[str, Any]
    checked: dict[str, Any] | None = None
    documented: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSummary:
    """One argument for display; `source` is `configuration` or `upstream`, whichever documented the argument."""

    name: str
    type: str
    required: bool
    description: str
    source: str


def parse_arguments(entries: object) -> tuple[DocumentedArgument, ...]:
    """Parse a configured list of arguments.

    Raises:
        OverrideRejected: An entry has no name, a repeated name, an unknown type, or is not an object.
    """
    if not isinstance(entries, list):
        raise OverrideRejected("arguments is not a list; expected a list of {name, type, description, required}")
    if len(entries) > MAX_ARGUMENTS:
        raise OverrideRejected(f"there are {len(entries)} arguments; expected at most {MAX_ARGUMENTS}")
    arguments: dict[str, DocumentedArgument] = {}
    for index, entry in enumerate(entries, 1):
        argument = _parse_argument(entry, index)
        if argument.name in arguments:
            raise OverrideRejected(
                f"the argument '{excerpt(argument.name, _MAX_QUOTED)}' occurs twice; expected each name once"
            )
        arguments[argument.name] = argument
    return tuple(arguments.values())


def _quote_argument(name: str) -> str:
    return f"the argument '{excerpt(name, _MAX_QUOTED)}'"


def _parse_argument(entry: object, index: int) -> DocumentedArgument:
    if not isinstance(entry, dict):
        raise OverrideRejected(f"argument {index} is not an object; expected {{name, type, description, required}}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise OverrideRejected(f"argument {index} has no name; expected name: text")
    label = _quote_argument(name)
    for member in entry:
        if member not in _MEMBERS:
            raise OverrideRejected(
                f"{label} has an unknown key '{excerpt(str(member), _MAX_QUOTED)}'; expected {_join_words(_MEMBERS)}"
            )
    kind, description, required = entry.get("type"), entry.get("description"), entry.get("required")
    if kind is not None and kind not in ARGUMENT_TYPES:
        raise OverrideRejected(
            f"{label} has the type {excerpt(str(kind), _MAX_QUOTED)!r}; expected {_join_words(ARGUMENT_TYPES)}"
        )
    if description is not None and not isinstance(description, str):
        raise OverrideRejected(f"{label} has a description that is not text; expected text")
    if required is not None and not isinstance(required, bool):
        raise OverrideRejected(f"{label} has a wrong value for required; expected true or false")
    return DocumentedArgument(
        name=name, type=kind, description=clean(description) if description else None, required=bool(required)
    )


def apply_override(definition: Mapping[str, Any], override: ToolOverride) -> OverrideResult:
    """Return a definition with configured documentation; the upstream's objects are not modified."""
    described = definition
    if override.description is not None:
        described = {**definition, "description": clean(override.description)}
    if override.rejected is not None:
        return OverrideResult(definition=described, warnings=(f"its arguments are not used: {override.rejected}",))
    schema = definition.get("inputSchema")
    if not override.arguments or not isinstance(schema, dict):
        return OverrideResult(definition=described)
    declared = schema.get("properties")
    properties: dict[str, Any] = dict(declared) if isinstance(declared, dict) else {}
    may_add = override.replace or _declares_nothing(schema)
    documented: set[str] = set()
    # These are warnings rather than errors, because the upstream may have changed since the file was written.
    warnings: list[str] = []
    required: list[str] = []
    for argument in override.arguments:
        if argument.name not in properties:
            if not may_add:
                warnings.append(
                    f"'{excerpt(argument.name, _MAX_QUOTED)}' is not a parameter of this tool; its schema is unchanged"
                )
                continue
            properties[argument.name] = _property_schema(argument)
        else:
            from_upstream = properties[argument.name]
            merged = _merge_property(from_upstream, argument, replace=override.replace)
            if merged is None:
                name = excerpt(argument.name, _MAX_QUOTED)
                warnings.append(f"'{name}' has another type than {argument.type}; the upstream's schema is unchanged")
                continue
            if merged is from_upstream and not argument.required:  # the override has no visible effect
                continue
            properties[argument.name] = merged
        documented.add(argument.name)
        if argument.required:
            required.append(argument.name)
    if not documented:
        return OverrideResult(definition=described, warnings=tuple(warnings))
    merged_schema = {**schema, "properties": properties}
    already = schema.get("required")
    names = list(dict.fromkeys([*(already if isinstance(already, list) else []), *required]))
    if names:
        merged_schema["required"] = names
    return OverrideResult(
        definition={**described, "inputSchema": merged_schema},
        checked=_declare_unenforced(schema, documented, replace=override.replace) if override.hint else None,
        documented=frozenset(documented),
        warnings=tuple(warnings),
    )


def _declare_unenforced(schema: dict[str, Any], documented: set[str], *, replace: bool) -> dict[str, Any]:
    """Return the upstream's schema, with the documented arguments declared but accepting any value."""
    declared = schema.get("properties")
    properties: dict[str, Any] = dict(declared) if isinstance(declared, dict) else {}
    for name in documented:
        if replace or name not in properties:
            properties[name] = {}
    return {**schema, "properties": properties}


def _declares_nothing(schema: Mapping[str, Any]) -> bool:
    closed = schema.get("additionalProperties") is False or schema.get("unevaluatedProperties") is False
    return not schema.get("properties") and not closed and not any(keyword in schema for keyword in _COMPOSITION)


def _property_schema(argument: DocumentedArgument) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if argument.type is not None:
        schema["type"] = argument.type
    if argument.type == "array":
        # Some model APIs reject an array that does not declare its items.
        schema["items"] = {}
    if argument.description is not None:
        schema["description"] = argument.description
    return schema


def _merge_property(declared: Any, argument: DocumentedArgument, *, replace: bool) -> Any:
    """Return a declared property with its configured documentation; None if they contradict each other."""
    if not isinstance(declared, dict):
        declared = {}
    documented = _property_schema(argument)
    kinds = declared.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    agrees = argument.type is None or kinds == [None] or argument.type in kinds
    if replace:
        # Bounds and formats of the upstream's type do not apply to another type.
        return {**declared, **documented} if agrees else documented
    if not agrees:
        return None
    if argument.description is None or (
        isinstance(declared.get("description"), str) and declared["description"].strip()
    ):
        return declared
    return {**declared, "description": argument.description}


def argument_summaries(definition: Mapping[str, Any], documented: frozenset[str]) -> list[ArgumentSummary]:
    """Return the arguments of a tool in the order of its schema."""
    schema = definition.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    summaries: list[ArgumentSummary] = []
    for name, member in properties.items() if isinstance(properties, dict) else ():
        member = member if isinstance(member, dict) else {}
        kind, description = member.get("type", "any"), member.get("description")
        summaries.append(
            ArgumentSummary(
                name=name,
                type=" or ".join(map(str, kind)) if isinstance(kind, list) else str(kind),
                required=isinstance(required, list) and name in required,
                description=description if isinstance(description, str) else "",
                source="configuration" if name in documented else "upstream",
            )
        )
    return summaries


def usage_text(definition: Mapping[str, Any]) -> str:
    """Return one tool as text for a model: its description, and a line for each argument.

    Further lines of a description are marked with `>`, and each argument is one line, so that upstream text cannot
    imitate an argument or a tool.
    """
    first, *more = f"{definition.get('name')}: {definition.get('description') or ''}".rstrip().splitlines()
    lines = [first, *(f"  > {line}".rstrip() for line in more)]
    arguments = argument_summaries(definition, frozenset())
    for argument in arguments:
        need = "required" if argument.required else "optional"
        description = f": {' '.join(argument.description.split())}" if argument.description else ""
        lines.append(f"  {excerpt(argument.name, MAX_SHOWN_KEY)} ({argument.type}, {need}){description}")
    return "\n".join(lines if arguments else [*lines, "  no declared arguments"])


def _join_words(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


# A note is appended to a description. Hosts show 2,048 characters of a description, and a note may use about half.
MAX_NOTE_LENGTH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An operator's note on one tool.

    Attributes:
        digest: Digest of the upstream's definition when the note was written; the note applies to no other definition.
        of_failure: True if the note is about a failure; the note then ends with the next success.
        until_s: When the note ends, in seconds since 1970; None for never.
    """

    id: str
    text: str
    digest: str
    of_failure: bool = False
    until_s: float | None = None


def notes_about(upstream: Mapping[str, Any], notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """Return the notes that were written about exactly this definition."""
    if not notes:  # nearly every tool: skip computing the digest
        return ()
    current = digest(upstream)
    return tuple(note for note in notes if note.digest == current)
