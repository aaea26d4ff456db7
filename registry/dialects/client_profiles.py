"""The rules of hosts and model APIs, as data.

The rules were measured, or taken from documentation and bug reports. They change over time, so each rule is a
value in a table rather than code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

_BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The rules of one host or model API. The defaults are the rules of the protocol, which rejects nothing.

    Attributes:
        shown: The format of a name that the host shows to its model; `{label}` is the host's name for the gateway.
        name_limit: The length limit of the shown name.
        characters: Characters that may occur in a name; the host replaces all other characters with `_`.
        first: Characters that a shown name may begin with.
        tools_limit: The number of tools that the host accepts.
        description_limit: The length limit of a tool's description.
        edits: Whether schemas are rewritten at all.
        root_refused: Composition keywords that the root of a schema must not have.
        refs: Whether local `$ref`s are supported; otherwise they are inlined.
        known: The only supported keywords; None if all except `unknown` are supported.
        unknown: Keywords that are rejected, removed, or ignored.
        formats: The only supported values of `format` for each type; None if all are supported.
        tuples: Whether the items of an array may have a schema for each position.
        typed: Whether every schema needs a type, unless it has only `anyOf`; other composition is not supported.
        type_lists: Whether `type` may be a list; otherwise `nullable` expresses null.
        text_enums_only: Whether only strings may be enumerated.
        arrays_need_items: Whether an array without `items` is rejected.
        strict: Whether every object must be closed and every property required; optional properties then accept null.
        closes_root: Whether the host itself rejects arguments that the root schema does not declare.
        key_pattern: The pattern that a property name must match as a whole.
        checks_results: Whether the host validates results against `outputSchema`, and shows an error instead of an
            invalid result.
        loads_on_demand: Whether the host loads tools on demand, except tools that are marked with
            `anthropic/alwaysLoad`.
    """

    name: str
    shown: str = "{tool}"
    name_limit: int | None = None
    characters: str = "A-Za-z0-9_-"
    first: str = "A-Za-z0-9_-"
    tools_limit: int | None = None
    description_limit: int | None = None
    edits: bool = True
    root_refused: frozenset[str] = frozenset()
    refs: bool = True
    known: frozenset[str] | None = None
    unknown: frozenset[str] = frozenset()
    formats: Mapping[str, frozenset[str]] | None = None
    tuples: bool = True
    typed: bool = False
    type_lists: bool = True
    text_enums_only: bool = False
    arrays_need_items: bool = False
    strict: bool = False
    closes_root: bool = False
    key_pattern: str | None = None
    checks_results: bool = False
    loads_on_demand: bool = False

    def removes(self, keyword: str) -> bool:
        """Return whether the dialect does not support a keyword."""
        return keyword in self.unknown or (self.known is not None and keyword not in self.known)


_COMPOSITION: Final = frozenset({"anyOf", "oneOf", "allOf"})
_ANTHROPIC: Final = Dialect(
    name="anthropic",
    # No `tools_limit`: the limit is 128 without tool search, but this code cannot see whether the host uses tool
    # search.
    name_limit=64,
    root_refused=_COMPOSITION,
    key_pattern=r"[a-zA-Z0-9_.-]{1,64}",
)
_OPENAI: Final = Dialect(
    name="openai",
    name_limit=64,
    tools_limit=128,
    description_limit=1_024,
    root_refused=_COMPOSITION | {"not", "enum", "const"},
    arrays_need_items=True,
)
_STRICT: Final = replace(
    _OPENAI,
    name="openai-strict",
    known=frozenset(
        {"type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items"}
        | {"anyOf", "$ref", "$defs", "definitions", "pattern", "format", "minItems", "maxItems"}
        | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    formats={
        "string": frozenset(
            {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
        )
    },
    tuples=False,
    typed=True,
    # Not needed, because `strict` adds `items` with types.
    arrays_need_items=False,
    strict=True,
)
_GEMINI: Final = Dialect(
    name="gemini",
    name_limit=64,
    characters="A-Za-z0-9_.:-",
    first="A-Za-z_",
    refs=False,
    known=frozenset(
        {"type", "title", "description", "enum", "format", "nullable", "properties", "required", "items", "anyOf"}
        | {"minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength", "pattern"}
        | {"minimum", "maximum", "example", "propertyOrdering"}
    ),
    formats={
        "string": frozenset({"date-time", "enum"}),
        "integer": frozenset({"int32", "int64"}),
        "number": frozenset({"float", "double"}),
    },
    root_refused=_COMPOSITION,
    tuples=False,
    typed=True,
    type_lists=False,
    text_enums_only=True,
    arrays_need_items=True,
)
# Hosts that offer models of several vendors have to follow the strictest rules of any vendor.
_ANY_MODEL: Final = replace(_ANTHROPIC, arrays_need_items=True)

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect(name="mcp", edits=False, characters="A-Za-z0-9_.-", first="A-Za-z0-9_.-", name_limit=128),
        replace(
            _ANTHROPIC,
            name="claude-code",
            shown="mcp__{label}__{tool}",
            description_limit=2_048,
            loads_on_demand=True,
        ),
        replace(_ANTHROPIC, name="claude-desktop", shown="mcp__{label}__{tool}", description_limit=2_048),
        replace(_ANY_MODEL, name="cursor", shown="{label}{tool}", name_limit=59),
        replace(_ANY_MODEL, name="vscode", shown="mcp_{label}_{tool}", tools_limit=128),
        Dialect(
            name="codex",
            shown="mcp__{label}__{tool}",
            name_limit=128,
            characters="A-Za-z0-9_",
            unknown=_BOUNDS | {"default", "format", "pattern", "not", "if", "then", "else"},
            tuples=False,
            arrays_need_items=True,
        ),
        Dialect(
            name="gemini-cli",
            shown="mcp_{label}_{tool}",
            name_limit=63,
            characters="A-Za-z0-9_.:-",
            checks_results=True,
            arrays_need_items=True,
        ),
        Dialect(
            name="qwen-code",
            shown="mcp__{label}__{tool}",
            name_limit=63,
            characters="A-Za-z0-9_.-",
            checks_results=True,
        ),
        replace(_ANY_MODEL, name="opencode", shown="{label}_{tool}", closes_root=True, checks_results=True),
        _ANTHROPIC,
        _OPENAI,
        _STRICT,
        _GEMINI,
    )
}


def shown_name(name: str, dialect: Dialect, label: str) -> str:
    """Return a name as the host shows it to its model, before any truncation."""
    unclean = f"[^{dialect.characters}]"
    return dialect.shown.format(label=re.sub(unclean, "_", label), tool=re.sub(unclean, "_", name))


def name_fits(name: str, dialect: Dialect, label: str = "gateway") -> bool:
    """Return whether a host shows a name in full and unchanged, ignoring that many hosts replace `-` with `_`."""
    return name_problem(name, dialect, label) is None


def name_problem(name: str, dialect: Dialect, label: str = "gateway") -> str | None:
    """Return why a name is not supported under the label that the host gives the gateway, or None."""
    displayed = shown_name(name, dialect, label)
    if dialect.name_limit is not None and len(displayed) > dialect.name_limit:
        return f"shown with {len(displayed)} characters; {dialect.name} accepts {dialect.name_limit}"
    if not re.match(f"[{dialect.first}]", displayed):
        return f"{dialect.name} does not accept its first character"
    if re.search(f"[^-{dialect.characters.removesuffix('-')}]", name):
        return f"it has characters that {dialect.name} replaces"
    return None


def name_budget(dialect: Dialect, label: str = "gateway") -> int | None:
    """Return the length that a name may have under a label; None for any length."""
    return None if dialect.name_limit is None else dialect.name_limit - len(shown_name("", dialect, label))


def unsupported_names(names: Iterable[str], dialect: Dialect, label: str = "gateway") -> dict[str, str]:
    """Return each name that a host would drop, change or confuse with another name, with the reason."""
    problems: dict[str, str] = {}
    alike: dict[str, list[str]] = defaultdict(list)
    all_names = list(names)
    for index, name in enumerate(all_names):
        alike[shown_name(name, dialect, label)].append(name)
        if (reason := name_problem(name, dialect, label)) is not None:
            problems[name] = reason
        elif dialect.tools_limit is not None and index >= dialect.tools_limit:
            problems[name] = f"{dialect.name} accepts {dialect.tools_limit} tools"
    for displayed, group in alike.items():
        if len(group) > 1:
            problems |= {name: f"{dialect.name} shows {len(group)} tools as {displayed}" for name in group}
    return problems
