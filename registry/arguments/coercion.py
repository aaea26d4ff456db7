"""What else a single value may mean: text as JSON, an option in another case, a name in another spelling."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from decimal import Decimal
from typing import Any, Final

from registry.schema.json_paths import MISSING

# Digits are bounded: Python converts long ones in quadratic time, and a float ends at about 308 digits anyway.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})")
_IGNORED_IN_NAMES = str.maketrans("", "", "-_ .")
# A text with one of these may hold several items.
_ITEM_SEPARATORS = (",", ";", "\n")
# What programs and models write for no value at all; as an item of a list it would be one nobody meant.
_NO_VALUE: Final = frozenset({"null", "none", "nil", "undefined", "nan", "n/a"})
# How often a text may have been serialized; models do it once or twice.
_MAX_SERIALIZED: Final = 2
# Enumerations longer than this are not searched for another case: indexing one takes some milliseconds.
MAX_OPTIONS: Final = 10_000


def normalized_parameter(name: str) -> str:
    """Return a parameter's name without case and separators: `account-ID` gives `accountid`."""
    return name.translate(_IGNORED_IN_NAMES).casefold()


def parse_json_exactly(text: str) -> Any:
    """Return the value of a JSON text, or MISSING if it is invalid, a number would be rounded, or a key is repeated."""
    try:
        return json.loads(
            text, parse_constant=_reject_constant, parse_float=_exact_float, object_pairs_hook=_distinct_members
        )
    except (ValueError, RecursionError):
        return MISSING


def parse_container(text: str) -> Any:
    """Return the object or array that a text was serialized from, once or twice, or MISSING."""
    for _time in range(_MAX_SERIALIZED):
        text = text.strip()
        # Looking at one character spares ordinary texts the parser.
        if text[:1] not in ("{", "[", '"'):
            return MISSING
        value = parse_json_exactly(text)
        if isinstance(value, dict | list):
            return value
        if not isinstance(value, str):
            return MISSING
        text = value
    return MISSING


def coerce_text(text: str, types: Collection[str], *, rounded: bool = False) -> Any:
    """Return the value of one of these JSON types that a text writes out, or MISSING.

    Args:
        text: What was sent where a string is not declared.
        types: The declared types.
        rounded: Also read `5.0` as the integer 5.
    """
    plain = text.strip()
    if "boolean" in types and plain.casefold() in ("true", "false"):
        return plain.casefold() == "true"
    if "null" in types and plain in ("null", "None"):
        return None
    if "integer" in types and _INTEGER.fullmatch(plain):
        return int(plain)
    if "number" in types and _NUMBER.fullmatch(plain):
        return parse_json_exactly(plain)
    if rounded and "integer" in types and _NUMBER.fullmatch(plain):
        number = parse_json_exactly(plain)
        return int(number) if isinstance(number, float) and number.is_integer() else MISSING
    if "object" in types or "array" in types:
        value = parse_container(plain)
        found = "object" if isinstance(value, dict) else "array"
        return value if found in types else MISSING
    return MISSING


def is_single_item(value: object) -> bool:
    """Return whether a value can only be one item of an expected list, and not a text that may hold several."""
    if isinstance(value, str):
        plain = value.strip()
        return (
            bool(plain)
            and plain[0] not in '[{"'
            and plain.casefold() not in _NO_VALUE
            and not any(mark in plain for mark in _ITEM_SEPARATORS)
        )
    return isinstance(value, bool | int | float)


class EnumOptions:
    """The options of one `enum` or `const`, indexed once for any number of values."""

    __slots__ = ("_by_case", "_others", "_types")

    def __init__(self, schema: dict[str, Any]) -> None:
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if not isinstance(options, list) or len(options) > MAX_OPTIONS:
            options = []
        by_case: dict[str, list[str]] = {}
        for option in options:
            if isinstance(option, str):
                by_case.setdefault(option.casefold(), []).append(option)
        # Options that differ in case only cannot be told apart by a value in a third spelling.
        self._by_case = {plain: alike[0] for plain, alike in by_case.items() if len(alike) == 1}
        self._others = [option for option in options if not isinstance(option, str)]
        self._types = {found for option in self._others if (found := _scalar_type(option)) is not None}

    def match(self, text: str) -> tuple[Any, str]:
        """Return the option that a text means, or MISSING, and the name of the repair."""
        option: Any = self._by_case.get(text.casefold(), MISSING)
        if option is not MISSING:
            return option, "letter_case"
        read = coerce_text(text, self._types)
        # With its type, because 1 equals True in Python.
        if read is not MISSING and any(read == other and type(read) is type(other) for other in self._others):
            return read, "converted"
        return MISSING, ""


def _scalar_type(value: object) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    return None


def _distinct_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object.

    Raises:
        ValueError: A key is repeated, so that one of its values would be lost.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated key")
    return members


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)


def _exact_float(text: str) -> float:
    """Return a number that a float holds exactly as it is written.

    Raises:
        ValueError: It would be rounded.
    """
    number = float(text)
    try:
        if math.isfinite(number) and Decimal(text) == Decimal(repr(number)):
            return number
    except ArithmeticError:
        pass
    raise ValueError("not exactly a float")
