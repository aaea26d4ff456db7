"""How long operations took, in buckets, by method, server, tool and kind of error."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final, Literal, NamedTuple

from gateway.instruments.conventions import BUCKETS_S

Side = Literal["server", "client"]
MAX_NAMED_TOOLS: Final = 200
"""Tools with series of their own: each has sixteen for each kind of outcome, and a monitoring system stores all of
them at every scrape. The busiest when they are first asked for come first; the rest are `other`."""
OTHER: Final = "other"
# What is kept between two scrapes; beyond it further tools are counted as `other` at once. Some MiB.
_MAX_CELLS: Final = 20_000


class Key(NamedTuple):
    """What a duration is of.

    Attributes:
        side: `server` for what a caller asked of us, `client` for what we asked of an upstream.
        method: Of MCP.
        server: The alias of an upstream; empty where there is none.
        tool: The tool; empty where there is none.
        error: The kind of error that it ended in; empty for none.
    """

    side: Side
    method: str
    server: str = ""
    tool: str = ""
    error: str = ""


class Cell:
    """The durations of one key.

    Attributes:
        counts: How many in each bucket, the last for those beyond all bounds.
        total_s: All of them together.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one operation."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def add(self, other: Cell) -> None:
        """Take another one's in."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s


class Durations:
    """Counts durations."""

    def __init__(self) -> None:
        self._cells: dict[Key, Cell] = {}
        self._named: dict[tuple[str, str], None] = {}

    def of(self, side: Side, method: str, server: str = "", tool: str = "", error: str = "") -> Cell:
        """Where operations of a key are counted; it may be kept."""
        # Looked up as a plain tuple, which is equal: to make a key costs as much as all the rest.
        cell = self._cells.get((side, method, server, tool, error))  # type: ignore[call-overload] # as said above
        return self._new(Key(side, method, server, tool, error)) if cell is None else cell

    def _new(self, key: Key) -> Cell:
        if len(self._cells) >= _MAX_CELLS:
            key = key._replace(server="", tool=OTHER)
        return self._cells.setdefault(key, Cell())

    def named(self) -> Collection[tuple[str, str]]:
        """The servers and tools that have series of their own, here and wherever else calls are counted by tool."""
        busy: dict[tuple[str, str], int] = {}
        for key, cell in self._cells.items():
            if key.tool:
                tool = (key.server, key.tool)
                busy[tool] = busy.get(tool, 0) + sum(cell.counts)
        # A tool that has its name keeps it: leaving `other` later would take its calls out of there.
        for tool in sorted(busy, key=lambda tool: -busy[tool]):
            if len(self._named) >= MAX_NAMED_TOOLS:
                break
            self._named.setdefault(tool)
        return self._named.keys()

    def series(self) -> Iterator[tuple[Key, Cell]]:
        """Every key that has a series of its own, with what it counts; no count of it ever decreases."""
        named = self.named()
        rest: dict[Key, Cell] = {}
        for key, cell in self._cells.items():
            if not key.tool or (key.server, key.tool) in named:
                yield key, cell
            else:
                rest.setdefault(key._replace(server="", tool=OTHER), Cell()).add(cell)
        yield from rest.items()
