"""What configuration says about a tool, laid over what its upstream says, as functions on definitions.

Where the upstream declares parameters it knows best: configuration fills descriptions that are missing,
and what contradicts is left out with a warning, unless the overlay says that it replaces. Where the
upstream declares nothing, the configured arguments are the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.errors import RegistryError
from registry.schema.text import clean, excerpt

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")
MAX_ARGUMENTS: Final = 200
_MEMBERS: Final = ("name", "type", "description", "required")
_COMPOSITION: Final = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "patternProperties", "if")


class OverlayRejected(RegistryError):
    """The configured arguments of one tool cannot be used; the text says which, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument as configuration documents it."""

    name: str
    type: str | None = None
    description: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What configuration says about one tool.

    Attributes:
        arguments: In the order of the file.
        replace: The arguments win over what the upstream declares.
        description: Stands in the place of the upstream's.
        rejected: Why the configured arguments are not used.
    """

    arguments: tuple[Argument, ...] = ()
    replace: bool = False
    description: str | None = None
    rejected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """A definition under its overlay.

    Attributes:
        definition: The same object when the overlay changes nothing.
        documented: The arguments of which configuration said something that is shown.
        warnings: What the overlay said in vain, one sentence each.
    """

    definition: dict[str, Any]
    documented: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRow:
    """One argument as people and models read it; `source` says whose words its documentation is."""

    name: str
    type: str
    required: bool
    description: str
    source: str


def read_arguments(entries: object) -> tuple[Argument, ...]:
    """The arguments that a configuration's list stands for.

    Raises:
        OverlayRejected: One has no name, a name that stands twice, an unknown type, or is nothing of the kind.
    """
    if not isinstance(entries, list):
        raise OverlayRejected("arguments is no list; expected a list of {name, type, description, required}")
    if len(entries) > MAX_ARGUMENTS:
        raise OverlayRejected(f"there are {len(entries)} arguments; expected at most {MAX_ARGUMENTS}")
    arguments: dict[str, Argument] = {}
    for index, entry in enumerate(entries, 1):
        argument = _read(entry, index)
        if argument.name in arguments:
            raise OverlayRejected(f"the argument '{excerpt(argument.name, 64)}' stands twice; expected each name once")
        arguments[argument.name] = argument
    return tuple(arguments.values())


def _read(entry: object, index: int) -> Argument:
    if not isinstance(entry, dict):
        raise OverlayRejected(f"argument {index} is no object; expected {{name, type, description, required}}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise OverlayRejected(f"argument {index} has no name; expected name: text")
    label = f"the argument '{excerpt(name, 64)}'"
    for member in entry:
        if member not in _MEMBERS:
            raise OverlayRejected(
                f"{label} has an unknown key '{excerpt(str(member), 64)}'; expected {_list(_MEMBERS)}"
            )
    kind, description, required = entry.get("type"), entry.get("description"), entry.get("required")
    if kind is not None and kind not in ARGUMENT_TYPES:
        raise OverlayRejected(f"{label} has the type {excerpt(str(kind), 64)!r}; expected {_list(ARGUMENT_TYPES)}")
    if description is not None and not isinstance(description, str):
        raise OverlayRejected(f"{label} has a description that is no text; expected text")
    if required is not None and not isinstance(required, bool):
        raise OverlayRejected(f"{label} has a wrong value for required; expected true or false")
    return Argument(
        name=name,
        type=kind,
        description=clean(description) if description else None,
        required=bool(required),
    )


def enrich(definition: dict[str, Any], overlay: Overlay) -> Enriched:
    """Lay configuration over a definition; nothing that the upstream gave is changed in place."""
    described = definition
    if overlay.description is not None:
        described = {**definition, "description": clean(overlay.description)}
    if overlay.rejected is not None:
        return Enriched(definition=described, warnings=(f"its arguments are not used: {overlay.rejected}",))
    schema = definition.get("inputSchema")
    if not overlay.arguments or not isinstance(schema, dict):
        return Enriched(definition=described)
    declared = schema.get("properties")
    properties: dict[str, Any] = dict(declared) if isinstance(declared, dict) else {}
    open_ = overlay.replace or _declares_nothing(schema)
    documented: set[str] = set()
    warnings: list[str] = []
    required: list[str] = []
    for argument in overlay.arguments:
        if argument.name not in properties:
            if not open_:
                warnings.append(
                    f"'{excerpt(argument.name, 64)}' is no parameter of this tool; the upstream's schema stays"
                )
                continue
            properties[argument.name] = _property(argument)
        else:
            known = properties[argument.name]
            merged = _merged(known, argument, replace=overlay.replace)
            if merged is None:
                name = excerpt(argument.name, 64)
                warnings.append(f"'{name}' is of another type than {argument.type}; the upstream's schema stays")
                continue
            if merged is known and not argument.required:
                continue
            properties[argument.name] = merged
        documented.add(argument.name)
        if argument.required:
            required.append(argument.name)
    if not documented:
        return Enriched(definition=described, warnings=tuple(warnings))
    enriched = {**schema, "properties": properties}
    already = schema.get("required")
    names = list(dict.fromkeys([*(already if isinstance(already, list) else []), *required]))
    if names:
        enriched["required"] = names
    return Enriched(
        definition={**described, "inputSchema": enriched},
        documented=frozenset(documented),
        warnings=tuple(warnings),
    )


def _declares_nothing(schema: Mapping[str, Any]) -> bool:
    closed = schema.get("additionalProperties") is False or schema.get("unevaluatedProperties") is False
    return not schema.get("properties") and not closed and not any(keyword in schema for keyword in _COMPOSITION)


def _property(argument: Argument) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if argument.type is not None:
        made["type"] = argument.type
    if argument.type == "array":
        # Some model APIs refuse an array that says nothing of its items.
        made["items"] = {}
    if argument.description is not None:
        made["description"] = argument.description
    return made


def _merged(known: Any, argument: Argument, *, replace: bool) -> Any:
    """The property under its documentation; None where the two contradict."""
    if not isinstance(known, dict):
        known = {}
    said = _property(argument)
    kinds = known.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    agrees = argument.type is None or kinds == [None] or argument.type in kinds
    if replace:
        # Another type makes nothing of what the upstream said about the old one.
        return {**known, **said} if agrees else said
    if not agrees:
        return None
    if argument.description is None or (isinstance(known.get("description"), str) and known["description"].strip()):
        return known
    return {**known, "description": argument.description}


def rows(definition: Mapping[str, Any], documented: frozenset[str]) -> list[ArgumentRow]:
    """The arguments of a tool, in the order of its schema."""
    schema = definition.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    found: list[ArgumentRow] = []
    for name, member in properties.items() if isinstance(properties, dict) else ():
        member = member if isinstance(member, dict) else {}
        kind, description = member.get("type", "any"), member.get("description")
        found.append(
            ArgumentRow(
                name=name,
                type=" or ".join(map(str, kind)) if isinstance(kind, list) else str(kind),
                required=isinstance(required, list) and name in required,
                description=description if isinstance(description, str) else "",
                source="configuration" if name in documented else "upstream",
            )
        )
    return found


def manual(definition: Mapping[str, Any]) -> str:
    """One tool as text for a model: its arguments with type, description, required or optional."""
    lines = [f"{definition.get('name')}: {definition.get('description') or ''}".rstrip()]
    arguments = rows(definition, frozenset())
    for one in arguments:
        need = "required" if one.required else "optional"
        lines.append(f"  {one.name} ({one.type}, {need}){': ' + one.description if one.description else ''}")
    return "\n".join(lines if arguments else [*lines, "  no declared arguments"])


def _list(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
