"""Checks of the `config` object of hooks that ship with us; an error names the key and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any


def check_keys(config: Mapping[str, Any], *keys: str) -> None:
    """Refuse keys that the hook does not know.

    Raises:
        ValueError: There is one, which is probably misspelt.
    """
    for key in config:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            hint = f"{near[0]} (did you mean it?), or another of: " if near else "one of: "
            raise ValueError(f"{key}: unknown key; expected {hint}{', '.join(sorted(keys))}")


def number(config: Mapping[str, Any], key: str, default: float, *, least: float, most: float) -> float:
    """Return a number within bounds.

    Raises:
        ValueError: It is no such number.
    """
    value = config.get(key, default)
    # In Python true is a number; in a configuration it is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{key} has a wrong value; expected a number from {least:g} to {most:g}")
    return float(value)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return true or false.

    Raises:
        ValueError: It is neither.
    """
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} has a wrong value; expected true or false")
    return value


def words(config: Mapping[str, Any], key: str, default: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list of words from a vocabulary.

    Raises:
        ValueError: It is no list, or has another word.
    """
    value = config.get(key, list(default))  # a list, as configuration has it, so that one check serves both
    if not isinstance(value, list) or any(word not in among for word in value):
        raise ValueError(f"{key} has a wrong value; expected a list of: {', '.join(among)}")
    return tuple(value)
