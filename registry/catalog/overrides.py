"""Apply what configuration says about a tool to its upstream's definition.

Where the upstream declares parameters, it has precedence: configuration adds missing descriptions, and whatever
contradicts the schema is ignored with a warning, unless the override says `replace`. Where the upstream declares
nothing, the configured arguments become the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.errors import RegistryError
from registry.schema.display_text import clean, excerpt
from registry.schema.json_paths import MAX_SHOWN_KEY

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")
# The tool with the most arguments in `tests/corpus` has 55; a list of more than this is a mistake in the file.
MAX_ARGUMENTS: Final = 200
# How much of a name is quoted in a message.
_MAX_QUOTED: Final = 64
_MEMBERS: Final = ("name", "type", "description", "required")
# Where parameters may be declared other than in `properties`.
_COMPOSITION: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "patternProperties", "if")


class OverrideRejected(RegistryError):
    """The configured arguments of one tool are invalid; the message says where, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedArgument:
    """One argument as configuration documents it."""

    name: str
    type: str | None = None
    description: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """What configuration says about one tool.

    Attributes:
        arguments: In the order of the file.
        replace: The arguments take precedence over what the upstream declares.
        hint: The arguments are shown and not enforced: the upstream judges what is sent.
        description: Replaces the upstream's.
        rejected: Why the configured arguments are not used, if so.
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
        documented: The arguments that show configured documentation.
        warnings: What had no effect, one sentence each.
        checked: The input schema that calls are checked against, if it is not the one in the definition.
    """

    definition: Mapping[str, Any]
    checked: dict[str, Any] | None = None
    documented: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSummary:
    """One argument as people and models read it; `source` says who documented it."""

    name: str
    type: str
    required: bool
    description: str
    source: str


def parse_arguments(entries: object) -> tuple[DocumentedArgument, ...]:
    """Return the arguments that a list in the configuration describes.

    Raises:
        OverlayRejected: An entry has no name, a repeated name, an unknown type, or is not an object at all.
    """
    if not isinstance(entries, list):
        raise OverrideRejected("arguments is no list; expected a list of {name, type, description, required}")
    if len(entries) > MAX_ARGUMENTS:
        raise OverrideRejected(f"there are {len(entries)} arguments; expected at most {MAX_ARGUMENTS}")
    arguments: dict[str, DocumentedArgument] = {}
    for index, entry in enumerate(entries, 1):
        argument = _parse_argument(entry, index)
        if argument.name in arguments:
            raise OverrideRejected(
                f"the argument '{excerpt(argument.name, _MAX_QUOTED)}' stands twice; expected each name once"
            )
        arguments[argument.name] = argument
    return tuple(arguments.values())


def _quoted(name: str) -> str:
    return f"the argument '{excerpt(name, _MAX_QUOTED)}'"


def _parse_argument(entry: object, index: int) -> DocumentedArgument:
    if not isinstance(entry, dict):
        raise OverrideRejected(f"argument {index} is no object; expected {{name, type, description, required}}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise OverrideRejected(f"argument {index} has no name; expected name: text")
    label = _quoted(name)
    for member in entry:
        if member not in _MEMBERS:
            raise OverrideRejected(
                f"{label} has an unknown key '{excerpt(str(member), _MAX_QUOTED)}'; expected {_list(_MEMBERS)}"
            )
    kind, description, required = entry.get("type"), entry.get("description"), entry.get("required")
    if kind is not None and kind not in ARGUMENT_TYPES:
        raise OverrideRejected(
            f"{label} has the type {excerpt(str(kind), _MAX_QUOTED)!r}; expected {_list(ARGUMENT_TYPES)}"
        )
    if description is not None and not isinstance(description, str):
        raise OverrideRejected(f"{label} has a description that is no text; expected text")
    if required is not None and not isinstance(required, bool):
        raise OverrideRejected(f"{label} has a wrong value for required; expected true or false")
    return DocumentedArgument(
        name=name, type=kind, description=clean(description) if description else None, required=bool(required)
    )


def apply_override(definition: Mapping[str, Any], override: ToolOverride) -> OverrideResult:
    """Return a definition with configured documentation; the upstream's objects are not changed in place."""
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
    # Not an error: the upstream may have changed since the file was written.
    warnings: list[str] = []
    required: list[str] = []
    for argument in override.arguments:
        if argument.name not in properties:
            if not may_add:
                warnings.append(
                    f"'{excerpt(argument.name, _MAX_QUOTED)}' is no parameter of this tool; the upstream's schema stays"
                )
                continue
            properties[argument.name] = _property_schema(argument)
        else:
            known = properties[argument.name]
            merged = _merge_property(known, argument, replace=override.replace)
            if merged is None:
                name = excerpt(argument.name, _MAX_QUOTED)
                warnings.append(f"'{name}' is of another type than {argument.type}; the upstream's schema stays")
                continue
            if merged is known and not argument.required:  # nothing of it is shown
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
        checked=_unenforced(schema, documented, replace=override.replace) if override.hint else None,
        documented=frozenset(documented),
        warnings=tuple(warnings),
    )


def _unenforced(schema: dict[str, Any], documented: set[str], *, replace: bool) -> dict[str, Any]:
    """Return the upstream's schema with the documented arguments as declared names that may hold anything."""
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
        # Some model APIs reject an array whose items are not declared.
        schema["items"] = {}
    if argument.description is not None:
        schema["description"] = argument.description
    return schema


def _merge_property(known: Any, argument: DocumentedArgument, *, replace: bool) -> Any:
    """Return a declared property with its configured documentation; None if the two contradict."""
    if not isinstance(known, dict):
        known = {}
    documented = _property_schema(argument)
    kinds = known.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    agrees = argument.type is None or kinds == [None] or argument.type in kinds
    if replace:
        # With another type, the upstream's bounds and formats of the old one make no sense.
        return {**known, **documented} if agrees else documented
    if not agrees:
        return None
    if argument.description is None or (isinstance(known.get("description"), str) and known["description"].strip()):
        return known
    return {**known, "description": argument.description}


def argument_summaries(definition: Mapping[str, Any], documented: frozenset[str]) -> list[ArgumentSummary]:
    """Return the arguments of a tool, in the order of its schema."""
    schema = definition.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    found: list[ArgumentSummary] = []
    for name, member in properties.items() if isinstance(properties, dict) else ():
        member = member if isinstance(member, dict) else {}
        kind, description = member.get("type", "any"), member.get("description")
        found.append(
            ArgumentSummary(
                name=name,
                type=" or ".join(map(str, kind)) if isinstance(kind, list) else str(kind),
                required=isinstance(required, list) and name in required,
                description=description if isinstance(description, str) else "",
                source="configuration" if name in documented else "upstream",
            )
        )
    return found


def usage_text(definition: Mapping[str, Any]) -> str:
    """Return one tool as text for a model: its description, and each argument with type and description.

    Lines of a description are marked, and an argument is one line, so that no text of an upstream's looks like an
    argument or a tool.
    """
    first, *more = f"{definition.get('name')}: {definition.get('description') or ''}".rstrip().splitlines()
    lines = [first, *(f"  > {line}".rstrip() for line in more)]
    arguments = argument_summaries(definition, frozenset())
    for argument in arguments:
        need = "required" if argument.required else "optional"
        description = f": {' '.join(argument.description.split())}" if argument.description else ""
        lines.append(f"  {excerpt(argument.name, MAX_SHOWN_KEY)} ({argument.type}, {need}){description}")
    return "\n".join(lines if arguments else [*lines, "  no declared arguments"])


def _list(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
