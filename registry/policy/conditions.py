"""Conditions on the arguments of a call, as rules have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from registry.errors import SchemaRejected
from registry.schema.checked_form import checked_form
from registry.schema.patterns import PATTERN_BYTES

# Values that one condition looks at: a list of more recipients or rows than this is none that a rule could describe,
# and is judged as one whose values are unknown.
_MAX_VALUES: Final = 10_000
_ABSENT: Final = object()
# Texts that libraries in use read as booleans: pydantic, YAML, form parsers.
_TRUE: Final = frozenset({"true", "1", "yes", "on", "y", "t"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "n", "f"})
# Of a number in another base: 64 bits in base 2, with its prefix.
_MAX_DIGITS: Final = 66
# Compiled patterns; configurations have some dozens.
_MAX_COMPILED: Final = 1_024
Predicate = Callable[[Mapping[str, Any]], bool]
# Whether a value is meant; None if it is of another kind than the condition.
Test = Callable[[Any], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentCondition:
    """What a rule asks of one argument; each test that is given has to hold.

    Attributes:
        path: The name of the argument; names of members inside it are joined by dots.
        equals: The values that are meant, one of them.
        excludes: Values that are not meant, any of them.
        pattern: A regular expression that is found in a text.
        present: Whether the argument is there at all.
        above, below: Bounds of a number, themselves excluded.
    """

    path: str
    equals: tuple[Any, ...] | None = None
    excludes: tuple[Any, ...] | None = None
    pattern: str | None = None
    present: bool | None = None
    above: float | None = None
    below: float | None = None
    restricts: Predicate = field(init=False, repr=False, compare=False)
    """Return whether a rule that refuses or asks is meant: one value is, or one of which that cannot be told."""
    permits: Predicate = field(init=False, repr=False, compare=False)
    """Return whether a rule that allows is meant: every value there is, for sure."""

    def __post_init__(self) -> None:
        """Put the tests together: every call of a tool that a rule covers comes here."""
        test = _all_of(list(_tests_of(self)))
        object.__setattr__(self, "restricts", _restricting(self.path, self.present, test))
        object.__setattr__(self, "permits", _permitting(self.path, self.present, test))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All conditions of one rule: each has to hold.

    Attributes:
        hints: What the tool has to be marked as, by the name of the annotation.
    """

    hints: Mapping[str, bool] = field(default_factory=dict)
    arguments: tuple[ArgumentCondition, ...] = ()
    restricts: Predicate = field(init=False, repr=False, compare=False)
    """Return whether these arguments are meant by a rule that refuses or asks; what is in doubt is."""
    permits: Predicate = field(init=False, repr=False, compare=False)
    """Return whether these arguments are meant by a rule that allows; what is in doubt is not."""

    def __post_init__(self) -> None:
        """Put the conditions together."""
        object.__setattr__(self, "restricts", _each([one.restricts for one in self.arguments]))
        object.__setattr__(self, "permits", _each([one.permits for one in self.arguments]))

    def fit(self, hints: Mapping[str, bool]) -> bool:
        """Return whether a tool that is marked so is meant."""
        return all(hints[name] == wanted for name, wanted in self.hints.items())


def check_pattern(pattern: str) -> None:
    """Check that a pattern can be run over any text in linear time.

    Raises:
        SchemaRejected: It cannot.
    """
    use = checked_form({"pattern": pattern})
    if use.left_out or use.backtracking:
        reason = "patterns with look-around or back references, and very large ones, cannot be run here"
        raise SchemaRejected("invalid_schema", reason)
    _compiled(pattern)


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(pattern: str) -> Any:
    # Late: the validator takes milliseconds to import, and most rules have no pattern.
    import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
    schema = checked_form({"pattern": pattern}).schema
    try:
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=options)
    except ValueError as error:
        raise SchemaRejected("invalid_schema", str(error).partition("\n")[0]) from None


def _each(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 1:  # as of most rules
        return predicates[0]
    return lambda arguments: all(predicate(arguments) for predicate in predicates)


def _restricting(path: str, present: bool | None, test: Test | None) -> Predicate:
    def anywhere(arguments: Mapping[str, Any]) -> bool:
        found = _values(arguments, path)
        if present is not None and bool(found) != present:
            return False
        return test is None or found is None or any(test(value) is not False for value in found)

    if not _is_name(path):
        return anywhere

    def named(arguments: Mapping[str, Any]) -> bool:
        value = arguments.get(path, _ABSENT)
        if isinstance(value, list):
            return anywhere(arguments)
        if present is not None and (value is not _ABSENT) is not present:
            return False
        return test is None or (value is not _ABSENT and test(value) is not False)

    return named


def _permitting(path: str, present: bool | None, test: Test | None) -> Predicate:
    def anywhere(arguments: Mapping[str, Any]) -> bool:
        found = _values(arguments, path)
        if present is not None and bool(found) != present:
            return False
        return test is None or (bool(found) and all(test(value) is True for value in found or ()))

    if not _is_name(path):
        return anywhere

    def named(arguments: Mapping[str, Any]) -> bool:
        value = arguments.get(path, _ABSENT)
        if isinstance(value, list):
            return anywhere(arguments)
        if present is not None and (value is not _ABSENT) is not present:
            return False
        return test is None or (value is not _ABSENT and test(value) is True)

    return named


def _is_name(path: str) -> bool:
    """Whether there is one argument at most to look at, as of most conditions; its value may be a list, though."""
    return bool(path) and "." not in path


def _tests_of(condition: ArgumentCondition) -> Iterator[Test]:
    if condition.equals is not None:
        yield _one_of(condition.equals, is_meant=True)
    if condition.excludes is not None:
        yield _one_of(condition.excludes, is_meant=False)
    if condition.pattern is not None:
        yield _found(condition.pattern)
    if condition.above is not None or condition.below is not None:
        yield _within(condition.above, condition.below)


def _all_of(tests: list[Test]) -> Test | None:
    if len(tests) <= 1:
        return tests[0] if tests else None

    def test(value: object) -> bool | None:
        results = [each(value) for each in tests]
        if False in results:
            return False
        return None if None in results else True

    return test


def _one_of(wanted: tuple[Any, ...], *, is_meant: bool) -> Test:
    texts = frozenset(one for one in wanted if isinstance(one, str))
    only_texts = len(texts) == len(wanted)

    def test(value: object) -> bool | None:
        if isinstance(value, str) and (value in texts or only_texts):
            return (value in texts) is is_meant
        if any(_same(value, one) for one in wanted):
            return is_meant
        # Where the schema leaves the type open, the upstream may read one for the other.
        return None if any(_alike(value, one) for one in wanted) else not is_meant

    return test


def _within(above: float | None, below: float | None) -> Test:
    def test(value: object) -> bool | None:
        number = _number(value)
        if number is None:
            return None
        return (above is None or number > above) and (below is None or number < below)

    return test


def _found(pattern: str) -> Test:
    is_found = _compiled(pattern).is_valid

    def test(value: object) -> bool | None:
        if not isinstance(value, str):
            return None
        try:
            return is_found(value)  # type: ignore[no-any-return] # it has no types, and answers true or false
        except ValueError:  # half of a surrogate pair
            return None

    return test


def _values(arguments: Mapping[str, Any], path: str) -> list[Any] | None:
    """The values at a path, those inside lists one by one; None if there are too many."""
    found: list[Any] = []
    for value in _at(arguments, path):
        found.append(value)
        if len(found) > _MAX_VALUES:
            return None
    return found


def _at(node: Any, path: str) -> Iterator[Any]:
    # An own stack: arguments may be nested deeper than this process recurses.
    waiting: list[tuple[Any, str]] = [(node, path)]
    while waiting:
        node, rest = waiting.pop()
        if isinstance(node, list):
            waiting += [(item, rest) for item in reversed(node)]
        elif not rest:
            yield node
        elif isinstance(node, dict | Mapping):
            if rest in node:  # also a name that has dots itself
                waiting.append((node[rest], ""))
            # Each name may have dots itself.
            for at, character in enumerate(rest):
                if character == "." and rest[:at] in node:
                    waiting.append((node[rest[:at]], rest[at + 1 :]))


def _same(value: object, wanted: object) -> bool:
    # In JSON true is not 1.
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _alike(value: object, wanted: object) -> bool:
    """Whether a value may be read as another one: a text as a number or a boolean, a number as a boolean."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        truth = _truth(value)
        return truth is not None and truth is _truth(wanted)
    if isinstance(value, str) is isinstance(wanted, str):
        return False
    number = _number(value)
    return number is not None and number == _number(wanted)


def _truth(value: object) -> bool | None:
    """The boolean that a value may be read as; None where it is none."""
    if isinstance(value, str):
        word = value.strip().casefold()
        return True if word in _TRUE else False if word in _FALSE else None
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _number(value: object) -> float | int | None:
    """A number, also one that is written as text, since an upstream may read it; None for anything else."""
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
            # As JavaScript reads texts, too: 0x1f.
            return int(value.strip(), 0) if len(value) <= _MAX_DIGITS else None
        except ValueError:
            return None
    return None if math.isnan(number) else number
