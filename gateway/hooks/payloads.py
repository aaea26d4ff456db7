"""JSON values on their way into hooks and out of them: copied, checked, bounded."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from gateway import wire
from gateway.errors import MAX_QUOTED_CHARS
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
        return {key: copied(item) if isinstance(item, dict | list) else item for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(item) if isinstance(item, dict | list) else item for item in value]  # type: ignore[return-value]
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
        # Text and back: the only copy that surely keeps nothing of the hook's own types and references.
        data = wire.dumps(value)
        if len(data) > limit:
            raise BadPayload(f"handed back {len(data)} bytes, which is more than {limit}")
        return wire.loads(data), len(data)
    except wire.MalformedJson as error:
        raise BadPayload(f"handed back something that is no JSON ({str(error)[:MAX_QUOTED_CHARS]})") from None


def _exceeds(value: Any, limit: int) -> bool:
    # Not recursive: a hook may return something nested deeper than Python's stack.
    size, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, dict):
            # Two bytes for each member at least: a comma and a colon. Members are visited only while it may still fit.
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
