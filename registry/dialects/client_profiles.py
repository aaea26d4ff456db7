"""What hosts and model APIs accept, as data: names, descriptions, and forms of schemas.

These rules were measured, or are documented or reported by others. They change, so each is a value here, never code.
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
    """The rules of one host or model API. The defaults are those of the protocol: nothing is rejected.

    Attributes:
        shown: The form in which the host shows a tool's name to its model, from `{label}` and `{tool}`.
        name_limit: Characters of that name.
        characters: Characters that are kept in a name; the host replaces any other by `_`.
        first: Characters that a shown name may begin with.
        tools_limit: The number of tools that are accepted.
        description_limit: Characters of a tool's description.
        edits: Whether schemas are lowered at all.
        root_refused: Composition that the root of a schema must not have.
        refs: Whether local `$ref`s are supported; otherwise they are inlined.
        known: The only supported keywords; None for all except `unknown`.
        unknown: Keywords that are rejected, removed, or ignored.
        formats: The only supported values of `format` for each type; None for all.
        tuples: Whether the items of an array may have a schema for each position.
        typed: Whether every schema needs a type, unless it has only `anyOf`; other composition is not supported.
        type_lists: Whether `type` may be a list; otherwise `nullable` stands for null.
        text_enums_only: Whether only strings may be enumerated.
        arrays_need_items: Whether an array without `items` is rejected.
        strict: Every object is closed and every property required; optional ones accept null.
        closes_root: The host itself rejects arguments that the root does not declare.
        key_pattern: What the name of a property must match as a whole.
        checks_results: The host checks results against `outputSchema`, and shows an error in place of one that does not
            fit.
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

    def removes(self, keyword: str) -> bool:
        """Return whether a keyword is not supported."""
        return keyword in self.unknown or (self.known is not None and keyword not in self.known)


_COMPOSITION: Final = frozenset({"anyOf", "oneOf", "allOf"})
_ANTHROPIC: Final = Dialect(
    name="anthropic",
    # No `tools_limit`: it is 128 without tool search, and it is not known beforehand whether that is used.
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
    # `strict` gives items a type, too.
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
# Hosts that offer models of several makers have to keep the strictest rules among them.
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
    """Return a name as the host shows it to its model, before it is shortened."""
    unclean = f"[^{dialect.characters}]"
    return dialect.shown.format(label=re.sub(unclean, "_", label), tool=re.sub(unclean, "_", name))


def name_fits(name: str, dialect: Dialect, label: str = "gateway") -> bool:
    """Return whether a host shows a name in full and unchanged, except for `-`, which many replace by `_`."""
    return name_problem(name, dialect, label) is None


def name_problem(name: str, dialect: Dialect, label: str = "gateway") -> str | None:
    """Return why a name is not supported under the label that the host gives us, or None."""
    shown = shown_name(name, dialect, label)
    if dialect.name_limit is not None and len(shown) > dialect.name_limit:
        return f"shown as {len(shown)} characters, and {dialect.name} takes {dialect.name_limit}"
    if not re.match(f"[{dialect.first}]", shown):
        return f"{dialect.name} does not take its first character"
    if re.search(f"[^-{dialect.characters.removesuffix('-')}]", name):
        return f"it has characters that {dialect.name} replaces"
    return None


def name_budget(dialect: Dialect, label: str = "gateway") -> int | None:
    """Return the number of characters that a name may have under a label; None if there is no limit."""
    return None if dialect.name_limit is None else dialect.name_limit - len(shown_name("", dialect, label))


def unsupported_names(names: Iterable[str], dialect: Dialect, label: str = "gateway") -> dict[str, str]:
    """Return each name that a host would drop, change or confuse with another, with the reason."""
    found: dict[str, str] = {}
    alike: dict[str, list[str]] = defaultdict(list)
    given = list(names)
    for index, name in enumerate(given):
        alike[shown_name(name, dialect, label)].append(name)
        if (reason := name_problem(name, dialect, label)) is not None:
            found[name] = reason
        elif dialect.tools_limit is not None and index >= dialect.tools_limit:
            found[name] = f"{dialect.name} takes {dialect.tools_limit} tools"
    for shown, group in alike.items():
        if len(group) > 1:
            found |= {name: f"{dialect.name} shows {len(group)} tools as {shown}" for name in group}
    return found
