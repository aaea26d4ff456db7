"""What large writes keep in memory while they are read: each of them all of its bytes, until the last one."""

from __future__ import annotations


class LargeWrites:
    """Those to one connection since its caller had read everything."""

    __slots__ = ("_all_bytes", "_largest_bytes")

    def __init__(self) -> None:
        self._all_bytes = self._largest_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Note one more."""
        self._all_bytes += size_bytes
        self._largest_bytes = max(self._largest_bytes, size_bytes)

    def held_bytes(self, unread_bytes: int) -> int:
        """Return what is in memory where so much is still to be read."""
        if not unread_bytes:
            self._all_bytes = self._largest_bytes = 0
        # One write at most is read in part; those before it are gone.
        return max(unread_bytes, min(self._all_bytes, unread_bytes + self._largest_bytes))
