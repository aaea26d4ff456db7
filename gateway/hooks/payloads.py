"""JSON values on their way into hooks and out of them: copied, checked, bounded."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from gateway import wire
from gateway.upstream.transport.bounds import MAX_MESSAGE_BYTES

# As much as an upstream may answer, so that a hook can return any result that it was given.
MAX_PAYLOAD_BYTES: Final = MAX_MESSAGE_BYTES

T = TypeVar("T")


class BadPayload(ValueError):
    """A hook returned something that is no JSON, or too large; the text completes a sentence with its name."""


def copied(value: T) -> T:
    """Return a JSON value that shares no container with the given one."""
    # A dict of T's kind becomes a dict, a list a list: the checker cannot see that.
    if isinstance(value, dict):
        return {key: copied(one) if isinstance(one, dict | list) else one for key, one in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(one) if isinstance(one, dict | list) else one for one in value]  # type: ignore[return-value]
    return value


def plain(value: Any, limit: int = MAX_PAYLOAD_BYTES) -> tuple[Any, int]:
    """Return a hook's value as plain JSON that shares nothing with it, and its size in bytes.

    A value that is too large is refused by the lengths of its parts, before it is serialised.

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
