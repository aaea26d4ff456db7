"""Copy and check the JSON values that hooks return, limit their size, and read the settings of hooks."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from gateway.http.event_stream import MAX_MESSAGE_BYTES
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import MAX_QUOTED_CHARS

# Equal to the size limit of upstream responses, so that a hook can return every result that it has received.
MAX_PAYLOAD_BYTES: Final = MAX_MESSAGE_BYTES

T = TypeVar("T")


class BadPayload(ValueError):
    """A hook cannot handle a value, or has returned an invalid one. The text is a predicate for the hook's name."""


def deep_copy(value: T) -> T:
    """Return a copy of a JSON value that shares no container with it."""
    # The copy of a dict is a dict, and the copy of a list is a list. The type checker cannot infer that both are T.
    if isinstance(value, dict):
        return {key: deep_copy(item) if isinstance(item, dict | list) else item for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [deep_copy(item) if isinstance(item, dict | list) else item for item in value]  # type: ignore[return-value]
    return value


def plain(value: Any, limit: int = MAX_PAYLOAD_BYTES) -> tuple[Any, int]:
    """Return a copy of a hook's value as plain JSON, and the size of the copy in bytes.

    Before serialization, the lengths of the value's parts are added up, and a value that is too large is rejected.

    Raises:
        BadPayload: The value is not JSON, or is larger than the limit.
    """
    if _exceeds(value, limit):
        raise BadPayload(f"returned more than {limit} bytes")
    try:
        # Copy by serializing and parsing, so that the copy has no types of the hook and shares no objects with it.
        data = json_bytes.dumps(value)
        if len(data) > limit:
            raise BadPayload(f"returned {len(data)} bytes, which is more than {limit}")
        return json_bytes.loads(data), len(data)
    except json_bytes.MalformedJson as error:
        raise BadPayload(f"returned something that is not JSON ({str(error)[:MAX_QUOTED_CHARS]})") from None


def _exceeds(value: Any, limit: int) -> bool:
    # Not recursive, because a hook may return a value nested deeper than Python's stack.
    size, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, dict):
            # Each member has a comma and a colon, which are two bytes. If these exceed the limit, do not visit the
            # members.
            size += 2 * len(item)
            if size <= limit:
                pending += item.keys()
                pending += item.values()
        elif isinstance(item, list | tuple):
            size += 2 * len(item)
            if size <= limit:
                pending += item
        else:
            size += 1
        if size > limit:
            return True
    return False


def check_keys(config: Mapping[str, Any], *keys: str) -> None:
    """Reject unknown keys.

    Raises:
        ValueError: The configuration has a key that is not in `keys`; the message suggests a similar key.
    """
    for key in config:
        if key not in keys:
            near = get_close_matches(key, keys, n=1)
            hint = f"{near[0]} (did you mean it?), or another of: " if near else "one of: "
            raise ValueError(f"{key}: unknown key; expected {hint}{', '.join(sorted(keys))}")


def read_number(config: Mapping[str, Any], key: str, default: float, *, least: float, most: float) -> float:
    """Return a number within bounds.

    Raises:
        ValueError: The value is not a number within these bounds.
    """
    value = config.get(key, default)
    # A boolean is a mistake here, although bool is a subclass of int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{key} has a wrong value; expected a number from {least:g} to {most:g}")
    return float(value)


def read_flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a boolean.

    Raises:
        ValueError: The value is not a boolean.
    """
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} has a wrong value; expected true or false")
    return value


def read_words(
    config: Mapping[str, Any], key: str, default: tuple[str, ...], among: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a list of words.

    Args:
        among: The permitted words.

    Raises:
        ValueError: The value is not a list, or contains an unknown word.
    """
    value = config.get(key, list(default))  # a list, so that the checks below also accept the default
    if not isinstance(value, list) or any(word not in among for word in value):
        raise ValueError(f"{key} has a wrong value; expected a list of: {', '.join(among)}")
    return tuple(value)
