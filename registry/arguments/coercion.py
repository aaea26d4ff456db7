"""What else a single value may mean: text as JSON, an option in another case, one name spelt in another way."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable
from decimal import Decimal
from typing import Any, Final

from registry.schema.json_paths import MISSING

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})")
_SPELLING = str.maketrans("", "", "-_ .")
_SEVERAL = (",", ";", "\n")
_STRINGIFIED: Final = 2
"""How often a text may have been made of a text."""
MAX_OPTIONS: Final = 10_000
"""Longer enumerations are not searched for another case."""


def fold(name: str) -> str:
    """Return what is left of a parameter's name without case and separators: `account-ID` → `accountid`."""
    return name.translate(_SPELLING).casefold()


def parsed(text: str) -> Any:
    """Return the value that a text of JSON holds without loss, or MISSING."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float)
    except (ValueError, RecursionError):
        return MISSING


def container(text: str) -> Any:
    """Return the object or array that a text was made of, once or twice; MISSING if it was of none."""
    for _time in range(_STRINGIFIED):
        text = text.strip()
        if text[:1] not in ("{", "[", '"'):
            return MISSING
        value = parsed(text)
        if isinstance(value, dict | list):
            return value
        if not isinstance(value, str):
            return MISSING
        text = value
    return MISSING


def from_text(text: str, kinds: Collection[str], *, rounded: bool = False) -> Any:
    """Return the value of one of the JSON types that a text writes out, or MISSING.

    Args:
        text: What was sent where none of the types is `string`.
        kinds: The declared types.
        rounded: Also read `5.0` as the integer 5.
    """
    plain = text.strip()
    if "boolean" in kinds and plain.casefold() in ("true", "false"):
        return plain.casefold() == "true"
    if "null" in kinds and plain == "null":
        return None
    if "integer" in kinds and _INTEGER.fullmatch(plain):
        return int(plain)
    if "number" in kinds and _NUMBER.fullmatch(plain):
        return parsed(plain)
    if rounded and "integer" in kinds and _NUMBER.fullmatch(plain):
        number = parsed(plain)
        return int(number) if isinstance(number, float) and number.is_integer() else MISSING
    if "object" in kinds or "array" in kinds:
        value = container(plain)
        wanted = "object" if isinstance(value, dict) else "array"
        return value if wanted in kinds else MISSING
    return MISSING


def is_one_item(value: object) -> bool:
    """Tell whether a value can only be one item where a list was wanted: no text that may hold several."""
    if isinstance(value, str):
        plain = value.strip()
        return bool(plain) and plain[0] not in '[{"' and not any(mark in plain for mark in _SEVERAL)
    return isinstance(value, bool | int | float)


def by_letter_case(options: Iterable[Any]) -> dict[str, str]:
    """Return texts by their form without case, but for those that only case tells apart."""
    cases: dict[str, list[str]] = {}
    for option in options:
        if isinstance(option, str):
            cases.setdefault(option.casefold(), []).append(option)
    return {folded: alike[0] for folded, alike in cases.items() if len(alike) == 1}


def kinds_of(options: Iterable[Any]) -> set[str]:
    """Return the JSON types of these options that are no text and no container."""
    kinds: set[str] = set()
    for option in options:
        if option is None:
            kinds.add("null")
        elif isinstance(option, bool):
            kinds.add("boolean")
        elif isinstance(option, int | float):
            kinds.add("integer" if isinstance(option, int) else "number")
    return kinds


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _float(text: str) -> float:
    """Read a number that a float holds exactly as it is written; others would change on the way."""
    number = float(text)
    try:
        if math.isfinite(number) and Decimal(text) == Decimal(repr(number)):
            return number
    except ArithmeticError:
        pass
    raise ValueError("not exactly a float")
