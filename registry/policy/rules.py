"""One rule: the callers that it concerns, the items that it covers, and its effect.

Items are tools, prompts, resources and resource templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.overrides import DEFAULTS, with_defaults
from registry.catalog.shape import ServerShape, selects_name, server_of
from registry.catalog.uris import allows_uri, denies_uri
from registry.policy.conditions import Conditions

Effect = Literal["allow", "deny", "ask"]
Approver = Literal["host", "administrator"]
Kind = Literal["tools", "prompts", "resources", "completions"]
KINDS: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources", "completions")
SCOPE_CLAIM: Final = "scope"
"""The claim of an access token that contains its scopes."""
# The hints of prompts and resources. Reading a prompt or resource changes nothing, but may reach other systems.
_HINTS_OF_READING: Final = {**DEFAULTS, "readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}


class Subject(Protocol):
    """The properties of a caller that rules can use."""

    @property
    def name(self) -> str:
        """The caller's name."""

    @property
    def groups(self) -> frozenset[str]:
        """The groups of the caller."""

    @property
    def knows_groups(self) -> bool:
        """True if `groups` is complete; false if the caller may be in other groups as well."""

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes of the caller's key or token. An empty set does not restrict the caller."""

    @property
    def claims(self) -> frozenset[tuple[str, str]]:
        """The claims of the caller's access token: a pair of name and value for each value of a claim."""

    @property
    def unknown_claims(self) -> frozenset[str]:
        """The names of claims that may have other values than those in `claims`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerPatterns:
    """Patterns that select callers. Every given attribute and every claim in `claims` has to match."""

    principals: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def concerns(self, subject: Subject) -> bool | None:
        """Return whether the rule concerns this caller; None if the caller's token does not say whether it does."""
        answers = list(self._answers(subject))
        return False if False in answers else None if None in answers else True

    def _answers(self, subject: Subject) -> Iterator[bool | None]:
        if self.principals is not None:
            yield _matches_any((subject.name,), self.principals)
        if self.groups is not None:
            yield _matches_any(subject.groups, self.groups) or (False if subject.knows_groups else None)
        if self.scopes is not None:
            own = {*subject.scopes, *(value for name, value in subject.claims if name == SCOPE_CLAIM)}
            yield _matches_any(own, self.scopes)
        for claim, patterns in self.claims.items():
            is_matched = _matches_any((value for name, value in subject.claims if name == claim), patterns)
            # The name of a nested claim contains dots. If the value of an outer claim is unknown, so is the nested
            # value.
            outer = (claim[:at] for at, character in enumerate(claim) if character == ".")
            yield is_matched or (False if subject.unknown_claims.isdisjoint((claim, *outer)) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPatterns:
    """Patterns that select the items that a rule covers. Every attribute that is given has to match.

    Attributes:
        kinds: The kinds of requests that the rule covers.
        servers: Patterns for the server's alias.
        tags: Patterns for the server's tags. At least one tag has to match.
        patterns: Patterns for names of tools and prompts, and for URIs. In a pattern with `__`, the part before `__` is
            matched against the server, and the part after `__` against the name.
        wrappers: Patterns like `patterns`. A rule with `wrappers` covers only tools.
    """

    kinds: frozenset[Kind] = frozenset(KINDS)
    servers: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    patterns: tuple[str, ...] | None = None
    wrappers: tuple[str, ...] | None = None

    def covers_server(self, server: str, prefix: str, shape: ServerShape) -> bool:
        """Return whether the rule may cover at least one item of a server.

        Args:
            server: The alias of the server.
            prefix: The alias as it appears in wrapper names, where long aliases are shortened.
            shape: The configuration of the server.
        """
        if self.servers is not None and not _matches_any((server,), self.servers):
            return False
        if self.tags is not None and not _matches_any(shape.tags, self.tags):
            return False
        return all(
            patterns is None or any(_may_be_of((server, prefix), pattern) for pattern in patterns)
            for patterns in (self.patterns, self.wrappers)
        )

    def covers_whole(self, server: str, prefix: str, shape: ServerShape) -> bool:
        """Return whether the rule covers every item of a server, whichever items the server lists."""
        if self.kinds != frozenset(KINDS) or self.wrappers is not None or not self.covers_server(server, prefix, shape):
            return False
        return self.patterns is None or any(_is_whole((server, prefix), pattern) for pattern in self.patterns)

    def covers_tool(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether the rule covers a tool, given that `covers_server` is true."""
        return "tools" in self.kinds and all(
            patterns is None
            or any(
                selects_name(
                    pattern, server=wrapper.server, original=wrapper.tool, exposed=wrapper.name, prefixed=shape.prefixed
                )
                for pattern in patterns
            )
            for patterns in (self.patterns, self.wrappers)
        )

    def covers_prompt(self, prompt: ListedItem, shape: ServerShape, kind: Kind = "prompts") -> bool:
        """Return whether the rule covers a prompt, given that `covers_server` is true."""
        if kind not in self.kinds or self.wrappers is not None:
            return False
        return self.patterns is None or any(
            selects_name(
                pattern, server=prompt.server, original=prompt.original, exposed=prompt.key, prefixed=shape.prefixed
            )
            for pattern in self.patterns
        )

    def covers_uri(self, server: str, uri: str, kind: Kind = "resources", *, strictly: bool) -> bool:
        """Return whether the rule covers a resource, template or URI, given that `covers_server` is true.

        Args:
            uri: The upstream's URI.
            kind: The kind of request.
            strictly: True if every equivalent spelling of the URI has to match; false if one of them is sufficient.
        """
        if kind not in self.kinds or self.wrappers is not None:
            return False
        return self.patterns is None or any(_covers_uri(pattern, server, uri, strictly) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the policy.

    Attributes:
        who: The callers that the rule concerns.
        what: The items that the rule covers.
        conditions: The conditions under which the rule applies.
        ask_conditions: For the effect `ask`: the conditions under which a person has to allow the call. Other calls to
            which the rule applies are allowed.
        asks: For the effect `ask`: who has to allow the call; None for the default.
        doubtful: True if the caller's token does not say whether the rule concerns the caller. A doubtful rule can deny
            or ask, but not allow.
    """

    name: str
    effect: Effect
    who: CallerPatterns = field(default_factory=CallerPatterns)
    what: ItemPatterns = field(default_factory=ItemPatterns)
    conditions: Conditions = field(default_factory=Conditions)
    ask_conditions: Conditions = field(default_factory=Conditions)
    asks: Approver | None = None
    doubtful: bool = False

    @property
    def by_arguments(self) -> bool:
        """True if `conditions` contains conditions on the arguments of a call."""
        return bool(self.conditions.arguments)


def tool_hints(wrapper: ToolWrapper, shape: ServerShape) -> Mapping[str, bool]:
    """Return the hints of a tool: from the configuration, or else from the server, or else the protocol's defaults."""
    return with_defaults(shape.effective_hints(wrapper.tool, wrapper.hints))


def reading_hints() -> Mapping[str, bool]:
    """Return the hints that apply to prompts and resources."""
    return _HINTS_OF_READING


def _covers_uri(pattern: str, server: str, uri: str, strictly: bool) -> bool:
    alias = server_of(pattern)
    # If there is a colon before `__`, the pattern is a URI that contains `__`.
    if alias is not None and ":" not in alias:
        if not fnmatchcase(server, alias):
            return False
        pattern = pattern.partition(NAME_SEPARATOR)[2]
    return allows_uri(uri, (pattern,)) if strictly else denies_uri(uri, (pattern,))


def _may_be_of(names: Iterable[str], pattern: str) -> bool:
    alias = server_of(pattern)
    return alias is None or ":" in alias or _matches_any(names, (alias,))


def _is_whole(names: Iterable[str], pattern: str) -> bool:
    alias, _, local = pattern.partition(NAME_SEPARATOR)
    return pattern == "*" or (local == "*" and _matches_any(names, (alias,)))


def _matches_any(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
