"""The size of a value that is to be checked: what a check costs depends on it."""

from __future__ import annotations

from typing import Any, Final

import orjson

# The compiled validator walks values by recursion. Honest arguments nest less than ten levels, and 200 are far from
# the end of any thread's stack.
MAX_INSTANCE_DEPTH: Final = 200
# More members and characters than any value has.
UNBOUNDED: Final = 1 << 62
# Bits of an integer, some 1,200 digits, of which the limit of Python's conversion to text is several times as many.
_READ_BITS: Final = 4_000
# Members that are counted one by one where an estimate will do: a few milliseconds.
_COUNTED: Final = 5_000


class InstanceSize:
    """The depth of a value, the number of its members, and the length of all its texts.

    Where there are more members than a limit, these are what was found until then, and `complete` is False.

    Attributes:
        depth: The levels of objects and lists.
        members: The members and items on all levels.
        text: The characters of all texts.
        complete: Whether everything was counted.
    """

    __slots__ = ("complete", "depth", "members", "text")

    def __init__(self, value: object, limit: int = UNBOUNDED) -> None:
        # Every call comes through here, so there are no function calls and no repeated lookups.
        self.complete = True
        depth, members = 0, 1
        text = len(value) if isinstance(value, str) else 0
        level: list[Any] = [value] if isinstance(value, dict | list) else []
        while level and depth <= MAX_INSTANCE_DEPTH:
            depth += 1
            inner: list[Any] = []
            for node in level:
                members += len(node)
                if members > limit:
                    self.complete = False
                    inner = []
                    break
                if isinstance(node, dict):
                    for key, child in node.items():
                        text += len(key)
                        if isinstance(child, str):
                            text += len(child)
                        elif isinstance(child, dict | list):
                            inner.append(child)
                    continue
                for child in node:
                    if isinstance(child, str):
                        text += len(child)
                    elif isinstance(child, dict | list):
                        inner.append(child)
            level = inner
        self.depth, self.members, self.text = depth, members, text

    @classmethod
    def at_most(cls, value: object, text: bytes | None = None) -> InstanceSize:
        """Return a size that no value of its length in JSON exceeds: that of a megabyte is found in 3 ms, not in 70.

        Up to 5,000 members it is exact. Of more, `depth` may be the most that is walked safely.

        Args:
            value: The value.
            text: What `orjson` makes of it, if the caller knows that.
        """
        size = cls(value, _COUNTED)
        if size.complete:
            return size
        try:
            # Nested too deeply for this is too deep for anything.
            text = orjson.dumps(value) if text is None else text
        except TypeError:  # broken characters, integers that other languages lack, too many levels
            return cls(value)
        size.depth, size.text = MAX_INSTANCE_DEPTH, len(text)
        size.members = 1 + text.count(b",") + text.count(b"{") + text.count(b"[")
        size.complete = True
        return size


def readable_copy(value: object) -> Any:
    """Return a copy of a value that the compiled validator reads without error.

    Halves of surrogate pairs become U+FFFD, integers of more digits than the validator reads become shorter ones, and
    containers below `MAX_INSTANCE_DEPTH` are empty.
    """
    return _readable(value, 1)


def _readable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _READ_BITS:
        return (1 << _READ_BITS) * (1 if value > 0 else -1)
    if isinstance(value, dict):
        items = value.items() if depth < MAX_INSTANCE_DEPTH else ()
        return {_readable(key, depth): _readable(child, depth + 1) for key, child in items}
    if isinstance(value, list):
        return [_readable(child, depth + 1) for child in (value if depth < MAX_INSTANCE_DEPTH else ())]
    return value
