"""The size of a value that is to be checked: what a check costs depends on it."""

from __future__ import annotations

from typing import Any, Final

# The compiled validator walks values by recursion. Honest arguments nest less than ten levels, and 200 are far from
# the end of any thread's stack.
MAX_INSTANCE_DEPTH: Final = 200
# More members and characters than any value has.
UNBOUNDED: Final = 1 << 62


class InstanceSize:
    """The depth of a value, the number of its members, and the length of all its texts.

    Where there are more members than a limit, these are what was found until then, and `complete` is False.
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
                    for key in node:
                        text += len(key)
                for child in node.values() if isinstance(node, dict) else node:
                    if isinstance(child, str):
                        text += len(child)
                    elif isinstance(child, dict | list):
                        inner.append(child)
            level = inner
        self.depth, self.members, self.text = depth, members, text
