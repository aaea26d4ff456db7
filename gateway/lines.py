"""Lines out of chunks: in linear time, and never more than a bound in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Of a line that is not kept: enough for the members of a JSON-RPC envelope, which stand at one of its ends.
ENDS_BYTES: Final = 512


class LineSplitter:
    """Chunks in, lines out; linear in the bytes; a line over the bound is skipped to its end.

    Args:
        limit_bytes: For each line.
        on_skipped: Is given the two ends of each line that was skipped, once it is over.
    """

    def __init__(self, limit_bytes: int, on_skipped: Callable[[bytes], None] = lambda ends: None) -> None:
        self._limit_bytes = limit_bytes
        self._on_skipped = on_skipped
        self._head = b""
        self._tail = b""
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
        # Only the first part may continue a line; the parts between are whole.
        lines = [] if self._skipping else [b"".join(self._parts)]
        if self._skipping:
            self._on_skipped(self._head + b"\n" + self._tail)
        self._parts, self._size, self._skipping = [], 0, False
        lines += rest
        self._hold(tail)
        return lines

    @property
    def held_bytes(self) -> int:
        """Of the line that has not ended, how much has come."""
        return self._size

    @property
    def held(self) -> bytes:
        """What has come of the line that has not ended; empty if it is skipped."""
        return b"".join(self._parts)

    def take(self, prefix: bytes) -> bytes | None:
        """What is kept of the line that has not ended, which goes on with what follows and counts as before.

        Args:
            prefix: What it must begin with, else None is returned and nothing is taken.
        """
        line = b"".join(self._parts)
        if not line.startswith(prefix):
            self._parts = [line]
            return None
        self._parts = []
        return line

    def _hold(self, part: bytes) -> None:
        if self._skipping:
            # The end is not known before the line is over: the last bytes so far are kept, whatever the chunks.
            self._tail = (self._tail + part[-ENDS_BYTES:])[-ENDS_BYTES:]
            return
        if not part:
            return
        self._size += len(part)
        if self._size > self._limit_bytes:
            line = b"".join((*self._parts, part))
            self._head, self._tail = line[:ENDS_BYTES], line[-ENDS_BYTES:]
            self._parts, self._size, self._skipping = [], 0, True
            self.skipped += 1
        else:
            self._parts.append(part)
