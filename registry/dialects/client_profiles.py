"""What hosts and model APIs accept, as data: names, descriptions, forms of schemas.

Measured or told by others; what hosts do changes, so a rule here is a line to edit, never code.
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
    """The rules of one host or model API; the defaults are the protocol's own: nothing is refused.

    Attributes:
        shown: How the host writes a tool's name for its model, of `{label}` and `{tool}`.
        name_limit: Characters of the shown name.
        characters: What a name keeps; the host replaces anything else by `_`.
        first: What a shown name begins with.
        tools_limit: How many tools there may be.
        description_limit: Characters of a tool's description.
        instructions_limit: Characters of the instructions that are sure to be seen.
        all_pages: Whether every page of a list is read.
        edits: Whether anything is done to schemas at all.
        root_refused: Composition that the root of a schema may not have.
        refs: Whether local `$ref`s are followed; otherwise they are inlined.
        known: The only keywords that are understood; None for all but `unknown`.
        unknown: Keywords that are refused, stripped, or without effect.
        formats: The only values of `format`, for each type; None for all.
        tuples: Whether the places of an array may have schemas of their own.
        typed: Whether a schema is either of a type or nothing but `anyOf`, with no other composition.
        type_lists: Whether a type may be a list; otherwise `nullable` stands for null.
        text_enums_only: Whether only texts may be enumerated.
        arrays_need_items: Whether an array without `items` is refused.
        strict: Every object is closed and every property required; optional ones accept null.
        closes_root: The host itself refuses properties that the root does not declare.
        key_pattern: What the name of a property has to match as a whole.
    """

    name: str
    shown: str = "{tool}"
    name_limit: int | None = None
    characters: str = "A-Za-z0-9_-"
    first: str = "A-Za-z0-9_-"
    tools_limit: int | None = None
    description_limit: int | None = None
    instructions_limit: int | None = None
    all_pages: bool = True
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

    def removes(self, keyword: str) -> bool:
        """Tell whether a keyword may not stay."""
        return keyword in self.unknown or (self.known is not None and keyword not in self.known)


_COMPOSITION: Final = frozenset({"anyOf", "oneOf", "allOf"})
_ANTHROPIC: Final = Dialect(
    name="anthropic",
    # 128 without tool search; nobody knows beforehand whether it is used.
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
# A host that serves models of several makers meets the narrowest rule of each of them.
_ANY_MODEL: Final = _ANTHROPIC

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect(name="mcp", edits=False, characters="A-Za-z0-9_.-", first="A-Za-z0-9_.-", name_limit=128),
        replace(
            _ANTHROPIC,
            name="claude-code",
            shown="mcp__{label}__{tool}",
            description_limit=2_048,
            instructions_limit=2_048,
        ),
        replace(_ANTHROPIC, name="claude-desktop", shown="mcp__{label}__{tool}", description_limit=2_048),
        replace(_ANY_MODEL, name="cursor", shown="{label}{tool}", name_limit=59),
        replace(_ANY_MODEL, name="vscode", shown="mcp_{label}_{tool}", tools_limit=128),
        Dialect(
            name="codex",
            shown="mcp__{label}__{tool}",
            name_limit=128,
            characters="A-Za-z0-9_",
            instructions_limit=250,
            unknown=_BOUNDS | {"default", "format", "pattern", "not", "if", "then", "else"},
            tuples=False,
        ),
        Dialect(
            name="gemini-cli",
            shown="mcp_{label}_{tool}",
            name_limit=63,
            characters="A-Za-z0-9_.:-",
            all_pages=False,
        ),
        Dialect(
            name="qwen-code",
            shown="mcp__{label}__{tool}",
            name_limit=63,
            characters="A-Za-z0-9_.-",
            instructions_limit=0,
            all_pages=False,
        ),
        replace(_ANY_MODEL, name="opencode", shown="{label}_{tool}", closes_root=True),
        _ANTHROPIC,
        _OPENAI,
        _STRICT,
        _GEMINI,
    )
}


def shown_name(name: str, dialect: Dialect, label: str) -> str:
    """Return the name as the host's model sees it, before the host shortens it."""
    unclean = f"[^{dialect.characters}]"
    return dialect.shown.format(label=re.sub(unclean, "_", label), tool=re.sub(unclean, "_", name))


def name_fits(name: str, dialect: Dialect, label: str = "gateway") -> bool:
    """Tell whether a host shows a name uncut, and unchanged but for `-`, which many write as `_`."""
    return name_misfit(name, dialect, label) is None


def name_misfit(name: str, dialect: Dialect, label: str = "gateway") -> str | None:
    """Return why a name does not fit under the label that the host gives us, or None."""
    shown = shown_name(name, dialect, label)
    if dialect.name_limit is not None and len(shown) > dialect.name_limit:
        return f"shown as {len(shown)} characters, and {dialect.name} takes {dialect.name_limit}"
    if not re.match(f"[{dialect.first}]", shown):
        return f"{dialect.name} does not take its first character"
    if re.search(f"[^-{dialect.characters.removesuffix('-')}]", name):
        return f"it has characters that {dialect.name} replaces"
    return None


def name_budget(dialect: Dialect, label: str = "gateway") -> int | None:
    """Return how many characters a name may have under a label; None without a limit."""
    return None if dialect.name_limit is None else dialect.name_limit - len(shown_name("", dialect, label))


def misfits(names: Iterable[str], dialect: Dialect, label: str = "gateway") -> dict[str, str]:
    """Return for each name that a host would lose, mangle or confuse why; a name given twice is confused too."""
    found: dict[str, str] = {}
    alike: dict[str, list[str]] = defaultdict(list)
    given = list(names)
    for place, name in enumerate(given):
        alike[shown_name(name, dialect, label)].append(name)
        if (reason := name_misfit(name, dialect, label)) is not None:
            found[name] = reason
        elif dialect.tools_limit is not None and place >= dialect.tools_limit:
            found[name] = f"{dialect.name} takes {dialect.tools_limit} tools"
    for shown, group in alike.items():
        if len(group) > 1:
            found |= {name: f"{dialect.name} shows {len(group)} tools as {shown}" for name in group}
    return found
