"""Lines out of chunks: in linear time, and never more than a bound in memory."""

from __future__ import annotations

from typing import Final

MAX_LINE_BYTES: Final = 8 * 1024 * 1024


class LineSplitter:
    """Chunks in, lines out; linear in the bytes; a line over the bound is skipped to its end."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self.skipped = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Lines that end within this chunk, without their line ends."""
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        first, *rest = chunk.split(b"\n")
        tail = rest.pop()
        self._hold(first)
        lines = [] if self._skipping else [b"".join(self._parts)]
        self._parts, self._size, self._skipping = [], 0, False
        lines += rest
        self._hold(tail)
        return lines

    def _hold(self, part: bytes) -> None:
        if self._skipping or not part:
            return
        self._size += len(part)
        if self._size > self._limit_bytes:
            self._parts, self._size, self._skipping = [], 0, True
            self.skipped += 1
        else:
            self._parts.append(part)
