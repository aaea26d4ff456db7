"""One rule: the callers that it concerns, the items that it covers, its conditions, and its effect.

Items are tools, prompts, resources and resource templates. Conditions are about the hints of a tool and the arguments
of a call. In case of doubt, a condition holds for a rule that denies or asks, and does not hold for a rule that allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal, Protocol

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import NAME_SEPARATOR
from registry.catalog.overrides import DEFAULTS, with_defaults
from registry.catalog.shape import ServerShape, selects_name, server_of
from registry.catalog.uris import allows_uri, denies_uri
from registry.errors import SchemaRejected
from registry.schema.patterns import PATTERN_BYTES, checked_form

# Maximum number of values to examine for one condition. The result is unknown if an argument has more values.
_MAX_VALUES: Final = 10_000
_ABSENT: Final = object()
# Strings that common libraries parse as booleans: pydantic, YAML, form parsers.
_TRUE: Final = frozenset({"true", "1", "yes", "on", "y", "t"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "n", "f"})
# Maximum length of a number that may be in another base: 64 bits in base 2, with the prefix `0b`.
_MAX_DIGITS: Final = 66
# Maximum number of compiled patterns in the cache. Configurations have a few dozen patterns.
_MAX_COMPILED: Final = 1_024
Predicate = Callable[[Mapping[str, Any]], bool]
# Returns whether a value matches; None if this is unknown, because an upstream may convert the value to another type.
Test = Callable[[Any], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentCondition:
    """A rule's condition on one argument. All attributes that are given have to match.

    Attributes:
        path: The name of the argument, or the path of a member inside it, such as `filter.owner`.
        equals: The argument has to have one of these values.
        excludes: The argument must not have any of these values.
        pattern: A regular expression that has to match a part of a string.
        present: True if the argument has to be present; false if it has to be absent.
        above, below: Exclusive bounds for a number.
    """

    path: str
    equals: tuple[Any, ...] | None = None
    excludes: tuple[Any, ...] | None = None
    pattern: str | None = None
    present: bool | None = None
    above: float | None = None
    below: float | None = None
    restricts: Predicate = field(init=False, repr=False, compare=False)
    """Return whether the condition holds for a rule that denies or asks: at least one value matches or may match."""
    permits: Predicate = field(init=False, repr=False, compare=False)
    """Return whether the condition holds for a rule that allows: there are values, and all of them certainly match."""

    def __post_init__(self) -> None:
        """Build the predicates in advance, because every call of a covered tool evaluates them."""
        test = _all_of(list(_tests_of(self)))
        object.__setattr__(self, "restricts", _restricting(self.path, self.present, test))
        object.__setattr__(self, "permits", _permitting(self.path, self.present, test))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All conditions of one rule, each of which has to hold.

    Attributes:
        hints: The hints that the tool must have, by annotation name.
        arguments: The conditions on arguments.
    """

    hints: Mapping[str, bool] = field(default_factory=dict)
    arguments: tuple[ArgumentCondition, ...] = ()
    restricts: Predicate = field(init=False, repr=False, compare=False)
    """Return whether all conditions on arguments hold for a rule that denies or asks; true in case of doubt."""
    permits: Predicate = field(init=False, repr=False, compare=False)
    """Return whether all conditions on arguments hold for a rule that allows; false in case of doubt."""

    def __post_init__(self) -> None:
        """Build the combined predicates."""
        object.__setattr__(self, "restricts", _conjunction([condition.restricts for condition in self.arguments]))
        object.__setattr__(self, "permits", _conjunction([condition.permits for condition in self.arguments]))

    def match_hints(self, hints: Mapping[str, bool]) -> bool:
        """Return whether a tool with these hints fulfils the conditions on hints."""
        return all(hints[name] == expected for name, expected in self.hints.items())


def check_pattern(pattern: str) -> None:
    """Check that a pattern can be matched against any string in linear time.

    Raises:
        SchemaRejected: The pattern is not valid, or cannot be matched in linear time.
    """
    use = checked_form({"pattern": pattern})
    if use.left_out or use.backtracking:
        reason = "patterns with look-around or back references, and very large patterns, are not supported"
        raise SchemaRejected("invalid_schema", reason)
    _compile_pattern(pattern)


@lru_cache(maxsize=_MAX_COMPILED)
def _compile_pattern(pattern: str) -> Any:
    # Imported lazily, because the import takes milliseconds and most rules have no pattern.
    import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    schema = checked_form({"pattern": pattern}).schema
    try:
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=options)
    except ValueError as error:
        raise SchemaRejected("invalid_schema", str(error).partition("\n")[0]) from None


def _conjunction(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 1:  # the usual case
        return predicates[0]
    return lambda arguments: all(predicate(arguments) for predicate in predicates)


def _restricting(path: str, present: bool | None, test: Test | None) -> Predicate:
    def anywhere(arguments: Mapping[str, Any]) -> bool:
        values = _values(arguments, path)
        # Too many values to examine (None) are present as well.
        if present is not None and (values != []) is not present:
            return False
        return test is None or values is None or any(test(value) is not False for value in values)

    accepts = None if test is None else lambda value: test(value) is not False
    return _with_short_cut(path, present, anywhere, accepts)


def _permitting(path: str, present: bool | None, test: Test | None) -> Predicate:
    def anywhere(arguments: Mapping[str, Any]) -> bool:
        values = _values(arguments, path)
        if present is not None and (values != []) is not present:
            return False
        return test is None or (bool(values) and all(test(value) is True for value in values or ()))

    accepts = None if test is None else lambda value: test(value) is True
    return _with_short_cut(path, present, anywhere, accepts)


def _with_short_cut(
    path: str, present: bool | None, anywhere: Predicate, accepts: Callable[[Any], bool] | None
) -> Predicate:
    """Return a predicate that decides like `anywhere`, but faster if the path is the name of an argument.

    Args:
        accepts: Whether a value meets the condition; None if only its presence counts.
    """
    if not _is_plain_name(path):
        return anywhere

    def at_top_level(arguments: Mapping[str, Any]) -> bool:
        value = arguments.get(path, _ABSENT)
        if isinstance(value, list):
            return anywhere(arguments)
        if present is not None and (value is not _ABSENT) is not present:
            return False
        return accepts is None or (value is not _ABSENT and accepts(value))

    return at_top_level


def _is_plain_name(path: str) -> bool:
    """Return whether the path is the name of a top-level argument, which is the usual case."""
    return bool(path) and "." not in path


def _tests_of(condition: ArgumentCondition) -> Iterator[Test]:
    if condition.equals is not None:
        yield _one_of(condition.equals, listed_matches=True)
    if condition.excludes is not None:
        yield _one_of(condition.excludes, listed_matches=False)
    if condition.pattern is not None:
        yield _matches_pattern(condition.pattern)
    if condition.above is not None or condition.below is not None:
        yield _range_test(condition.above, condition.below)


def _all_of(tests: list[Test]) -> Test | None:
    if len(tests) <= 1:
        return tests[0] if tests else None

    def test(value: object) -> bool | None:
        results = [each(value) for each in tests]
        if False in results:
            return False
        return None if None in results else True

    return test


def _one_of(listed: tuple[Any, ...], *, listed_matches: bool) -> Test:
    texts = frozenset(value for value in listed if isinstance(value, str))
    only_texts = len(texts) == len(listed)

    def test(value: object) -> bool | None:
        if isinstance(value, str) and (value in texts or only_texts):
            return (value in texts) is listed_matches
        if any(_are_equal_values(value, option) for option in listed):
            return listed_matches
        # The upstream may convert the value to the type of an option, if its schema accepts several types.
        return None if any(_may_be_converted(value, option) for option in listed) else not listed_matches

    return test


def _range_test(above: float | None, below: float | None) -> Test:
    def test(value: object) -> bool | None:
        number = _parse_number(value)
        if number is None:
            return None
        return (above is None or number > above) and (below is None or number < below)

    return test


def _matches_pattern(pattern: str) -> Test:
    is_found = _compile_pattern(pattern).is_valid

    def test(value: object) -> bool | None:
        if not isinstance(value, str):
            return None
        try:
            return is_found(value)  # type: ignore[no-any-return] # untyped; returns a bool
        except ValueError:  # a lone surrogate
            return None

    return test


def _values(arguments: Mapping[str, Any], path: str) -> list[Any] | None:
    """Return the values at a path. The items of a list are separate values. None if there are too many values."""
    values: list[Any] = []
    for value in _values_at(arguments, path):
        values.append(value)
        if len(values) > _MAX_VALUES:
            return None
    return values


def _values_at(node: Any, path: str) -> Iterator[Any]:
    # Do not use recursion, because arguments may be nested deeper than Python's recursion limit.
    waiting: list[tuple[Any, str]] = [(node, path)]
    while waiting:
        node, remaining = waiting.pop()
        if isinstance(node, list):
            waiting += [(item, remaining) for item in reversed(node)]
        elif not remaining:
            yield node
        elif isinstance(node, dict | Mapping):
            if remaining in node:
                waiting.append((node[remaining], ""))
            # Try every split at a dot, because names themselves may contain dots.
            for at, character in enumerate(remaining):
                if character == "." and remaining[:at] in node:
                    waiting.append((node[remaining[:at]], remaining[at + 1 :]))


def _are_equal_values(value: object, expected: object) -> bool:
    # In JSON, true does not equal 1.
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected


def _may_be_converted(value: object, expected: object) -> bool:
    """Return whether an upstream may treat the two values as equal after converting one of them.

    Upstreams convert strings to numbers or booleans, and numbers to booleans.
    """
    if isinstance(value, bool) or isinstance(expected, bool):
        truth = _parse_boolean(value)
        return truth is not None and truth is _parse_boolean(expected)
    if isinstance(value, str) is isinstance(expected, str):
        return False
    number = _parse_number(value)
    return number is not None and number == _parse_number(expected)


def _parse_boolean(value: object) -> bool | None:
    """Return the boolean to which an upstream may convert a value, or None."""
    if isinstance(value, str):
        word = value.strip().casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _parse_number(value: object) -> float | int | None:
    """Return a number, or the number to which an upstream may convert a string; None for other values."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        try:
            # JavaScript also parses strings such as 0x1f.
            return int(value.strip(), 0) if len(value) <= _MAX_DIGITS else None
        except ValueError:
            return None
    return None if math.isnan(number) else number


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
