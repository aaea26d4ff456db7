"""JSON values on their way into a hook and out of it: copied, plain, bounded."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from gateway import wire

MAX_BYTES: Final = 8 * 1024 * 1024
"""Largest payload that a hook may hand back: as much as an upstream may answer."""

T = TypeVar("T")


class BadPayload(ValueError):
    """What a hook handed back is no JSON, or too much of it; the text says which."""


def copied(value: T) -> T:
    """Return a JSON value that shares no container with the given one."""
    # A dict of T's kind becomes a dict, a list a list: the checker cannot see that.
    if isinstance(value, dict):
        return {key: copied(one) if isinstance(one, dict | list) else one for key, one in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(one) if isinstance(one, dict | list) else one for one in value]  # type: ignore[return-value]
    return value


def plain(value: Any, limit: int = MAX_BYTES) -> tuple[Any, int]:
    """Return a hook's value as plain JSON that nobody else holds, and its size in bytes.

    Too large a value is told from the lengths of its parts, before anything of its size is built.

    Raises:
        BadPayload: It is no JSON value, or larger than the limit.
    """
    if _exceeds(value, limit):
        raise BadPayload(f"handed back more than {limit} bytes")
    try:
        data = wire.dumps(value)
        if len(data) > limit:
            raise BadPayload(f"handed back {len(data)} bytes, which is more than {limit}")
        return wire.loads(data), len(data)
    except wire.MalformedJson as error:
        raise BadPayload(f"handed back something that is no JSON ({str(error)[:200]})") from None


def _exceeds(value: Any, limit: int) -> bool:
    size, pending = 0, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif isinstance(one, dict):
            size += 2 * len(one)
            if size <= limit:
                pending += one.keys()
                pending += one.values()
        elif isinstance(one, list | tuple):
            size += 2 * len(one)
            if size <= limit:
                pending += one
        else:
            size += 1
        if size > limit:
            return True
    return False
