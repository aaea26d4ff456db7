"""One rule: whom it concerns, what it covers, and what it does with that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol

from registry.catalog.catalog import ToolWrapper
from registry.catalog.filters import selects_name, server_of
from registry.catalog.hints import DEFAULTS, with_defaults
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.prompts_and_resources import ListedItem
from registry.catalog.shape import ServerShape
from registry.catalog.uri_spellings import allows_uri, denies_uri
from registry.policy.conditions import Conditions

Effect = Literal["allow", "deny", "ask"]
Approver = Literal["host", "administrator"]
Kind = Literal["tools", "prompts", "resources", "completions"]
KINDS: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources", "completions")
SCOPE_CLAIM: Final = "scope"
"""The claim under which a token's own scopes are found."""
# Rendering a prompt or reading a resource changes nothing; whether it reaches other systems is not known.
_HINTS_OF_READING: Final = {**DEFAULTS, "readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}


class Subject(Protocol):
    """Whoever wants something, as rules see it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def groups(self) -> frozenset[str]:
        """The groups that it belongs to."""

    @property
    def knows_groups(self) -> bool:
        """Whether these are all of its groups."""

    @property
    def scopes(self) -> frozenset[str]:
        """What its key or token may be used for; empty for everything."""

    @property
    def claims(self) -> frozenset[tuple[str, str]]:
        """What its issuer says of it, name and value; more than one value of one name is several pairs."""

    @property
    def unknown_claims(self) -> frozenset[str]:
        """Names of claims of which some values are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Patterns for callers; each kind that is given has to match, by one of its patterns."""

    principals: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def concerns(self, subject: Subject) -> bool | None:
        """Return whether this caller is meant; None if that cannot be told, since its token does not say all of it."""
        answers = list(self._answers(subject))
        return False if False in answers else None if None in answers else True

    def _answers(self, subject: Subject) -> Iterator[bool | None]:
        if self.principals is not None:
            yield _any((subject.name,), self.principals)
        if self.groups is not None:
            yield _any(subject.groups, self.groups) or (False if subject.knows_groups else None)
        if self.scopes is not None:
            own = {*subject.scopes, *(value for name, value in subject.claims if name == SCOPE_CLAIM)}
            yield _any(own, self.scopes)
        for wanted, patterns in self.claims.items():
            found = _any((value for name, value in subject.claims if name == wanted), patterns)
            # What is unknown of a claim is unknown of every claim inside it.
            outer = (wanted[:at] for at, character in enumerate(wanted) if character == ".")
            yield found or (False if subject.unknown_claims.isdisjoint((wanted, *outer)) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """Patterns for what a rule covers; each kind of pattern that is given has to match.

    Attributes:
        kinds: Of requests.
        patterns: For names of tools and prompts and for URIs. With `__` in it a pattern matches the server and what
            follows each on its own side.
        wrappers: The same, for tools only.
    """

    kinds: frozenset[Kind] = frozenset(KINDS)
    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    patterns: tuple[str, ...] | None = None
    wrappers: tuple[str, ...] | None = None

    def covers_server(self, server: str, prefix: str, shape: ServerShape) -> bool:
        """Return whether anything of a server may be covered.

        Args:
            server: Its alias.
            prefix: The same as it begins names.
            shape: What configuration says about it.
        """
        if self.servers is not None and not _any((server,), self.servers):
            return False
        if self.tags is not None and not _any(shape.tags, self.tags):
            return False
        return all(
            patterns is None or any(_may_be_of((server, prefix), pattern) for pattern in patterns)
            for patterns in (self.patterns, self.wrappers)
        )

    def covers_whole(self, server: str, prefix: str, shape: ServerShape) -> bool:
        """Return whether everything of a server is covered, whatever it lists."""
        if self.kinds != frozenset(KINDS) or self.wrappers is not None or not self.covers_server(server, prefix, shape):
            return False
        return self.patterns is None or any(_is_whole((server, prefix), pattern) for pattern in self.patterns)

    def covers_tool(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether a tool of a server that may be covered is."""
        return "tools" in self.kinds and all(
            patterns is None
            or any(
                selects_name(
                    pattern, server=wrapper.server, original=wrapper.tool, shown=wrapper.name, prefixed=shape.prefixed
                )
                for pattern in patterns
            )
            for patterns in (self.patterns, self.wrappers)
        )

    def covers_prompt(self, prompt: ListedItem, shape: ServerShape, kind: Kind = "prompts") -> bool:
        """Return whether a prompt of a server that may be covered is."""
        if kind not in self.kinds or self.wrappers is not None:
            return False
        return self.patterns is None or any(
            selects_name(
                pattern, server=prompt.server, original=prompt.original, shown=prompt.key, prefixed=shape.prefixed
            )
            for pattern in self.patterns
        )

    def covers_uri(self, server: str, uri: str, kind: Kind = "resources", *, strictly: bool) -> bool:
        """Return whether a resource, a template or a URI of a server that may be covered is.

        Args:
            server: The alias of its server.
            uri: As its server has it.
            kind: What is wanted of it.
            strictly: Whether every form that its server may take for the same has to match, and not just one of them.
        """
        if kind not in self.kinds or self.wrappers is not None:
            return False
        return self.patterns is None or any(_covers_uri(pattern, server, uri, strictly) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        conditions: When it applies at all.
        asked: For a rule that asks: when a person is asked. What it covers otherwise goes through.
        asks: And who that is; None for whoever is asked by default.
        doubtful: Whether it cannot be told if the rule concerns the caller: then it restricts, and allows nothing.
    """

    name: str
    effect: Effect
    who: Who = field(default_factory=Who)
    what: What = field(default_factory=What)
    conditions: Conditions = field(default_factory=Conditions)
    asked: Conditions = field(default_factory=Conditions)
    asks: Approver | None = None
    doubtful: bool = False

    @property
    def by_arguments(self) -> bool:
        """Whether the arguments of a call decide if it applies."""
        return bool(self.conditions.arguments)


def tool_hints(wrapper: ToolWrapper, shape: ServerShape) -> Mapping[str, bool]:
    """Return what a tool is marked as: by configuration, else by its server, else what the protocol assumes."""
    return with_defaults(shape.rights_of(wrapper.tool, wrapper.hints))


def reading_hints() -> Mapping[str, bool]:
    """Return what prompts and resources count as."""
    return _HINTS_OF_READING


def _covers_uri(pattern: str, server: str, uri: str, strictly: bool) -> bool:
    alias = server_of(pattern)
    # What has a colon in front of `__` is a URI with these characters in it.
    if alias is not None and ":" not in alias:
        if not fnmatchcase(server, alias):
            return False
        pattern = pattern.partition(NAME_SEPARATOR)[2]
    return allows_uri(uri, (pattern,)) if strictly else denies_uri(uri, (pattern,))


def _may_be_of(names: Iterable[str], pattern: str) -> bool:
    alias = server_of(pattern)
    return alias is None or ":" in alias or _any(names, (alias,))


def _is_whole(names: Iterable[str], pattern: str) -> bool:
    alias, separator, local = pattern.partition(NAME_SEPARATOR)
    return pattern == "*" or (bool(separator) and local == "*" and _any(names, (alias,)))


def _any(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
