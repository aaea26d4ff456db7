"""Locks by key, each for as long as somebody holds it or waits for it."""

from __future__ import annotations

from weakref import WeakValueDictionary

import anyio


class KeyedLocks:
    """One lock for each key in use; keys that nobody uses cost nothing."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    def of(self, key: str) -> anyio.Lock:
        """The lock of a key, the same one for everybody who has it at the time: enter it at once."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = anyio.Lock()
        return lock
