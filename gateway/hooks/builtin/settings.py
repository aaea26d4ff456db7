"""The `config` object of a hook of ours: known keys, each of its kind; a fault names key and expected form."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any


def known(config: Mapping[str, Any], *keys: str) -> None:
    """Refuse keys that the hook does not have.

    Raises:
        ValueError: There is one.
    """
    for key in config:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            hint = f"{near[0]} (did you mean it?), or another of: " if near else "one of: "
            raise ValueError(f"{key}: unknown key; expected {hint}{', '.join(sorted(keys))}")


def number(config: Mapping[str, Any], key: str, default: float, *, least: float, most: float) -> float:
    """Return a number within its bounds.

    Raises:
        ValueError: It is none.
    """
    value = config.get(key, default)
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
    """Return words out of a vocabulary.

    Raises:
        ValueError: It is no list, or has another word.
    """
    value = config.get(key, list(default))
    if not isinstance(value, list) or any(one not in among for one in value):
        raise ValueError(f"{key} has a wrong value; expected a list of: {', '.join(among)}")
    return tuple(value)
