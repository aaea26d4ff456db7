"""Histograms of durations by method, server, tool and kind of error."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, NamedTuple

from gateway.telemetry.trace_context import BUCKETS_S

Side = Literal["server", "client"]
MAX_NAMED_TOOLS: Final = 200
"""Maximum number of tools with separate series, the busiest first; all other tools are counted as `other`. A tool has
sixteen series for each kind of outcome, which a monitoring system stores at every scrape."""
OTHER: Final = "other"
# Limits the memory to a few MiB. Beyond it, new keys are counted as `other`.
_MAX_CELLS: Final = 20_000


class Key(NamedTuple):
    """The attributes of a duration.

    Attributes:
        side: `server` for requests from callers, `client` for requests to upstreams.
        method: The MCP method.
        server: The alias of the upstream, or empty.
        tool: The tool, or empty.
        error: The kind of error, or empty for success.
    """

    side: Side
    method: str
    server: str = ""
    tool: str = ""
    error: str = ""


class DurationHistogram:
    """The histogram of one key.

    Attributes:
        counts: The number of operations in each bucket; the last bucket has no upper bound.
        total_s: The sum of the durations in seconds.
    """

    __slots__ = ("_export", "counts", "total_s")

    def __init__(self, export: Callable[[float], None] | None = None) -> None:
        """Begin without operations. `export` also receives the seconds of each operation."""
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0
        self._export = export

    def record(self, seconds: float) -> None:
        """Count one operation."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds
        if self._export is not None:
            self._export(seconds)

    def add(self, other: DurationHistogram) -> None:
        """Add the operations of another histogram."""
        self.counts = [count + added for count, added in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s


class Durations:
    """The histograms of all keys."""

    def __init__(self, exporter_of: Callable[[Key], Callable[[float], None]] | None = None) -> None:
        """Begin without histograms. `exporter_of` returns what also receives the durations of a key."""
        self._exporter_of = exporter_of
        self._cells: dict[Key, DurationHistogram] = {}
        self._named_tools: dict[tuple[str, str], None] = {}

    def histogram(
        self, side: Side, method: str, server: str = "", tool: str = "", error: str = ""
    ) -> DurationHistogram:
        """Return the histogram of a key. Callers may keep it to record further operations."""
        # Look up a plain tuple, which is equal to a `Key`: creating a `Key` takes as long as everything else here.
        cell = self._cells.get((side, method, server, tool, error))  # type: ignore[call-overload] # see above
        return self._new_histogram(Key(side, method, server, tool, error)) if cell is None else cell

    def _new_histogram(self, key: Key) -> DurationHistogram:
        if len(self._cells) >= _MAX_CELLS:
            key = key._replace(server="", tool=OTHER)
        if (existing := self._cells.get(key)) is not None:
            return existing
        cell = self._cells[key] = DurationHistogram(self._exporter_of(key) if self._exporter_of is not None else None)
        return cell

    def named_tools(self) -> Collection[tuple[str, str]]:
        """Return the pairs of server and tool that have separate series, here and in other counts of calls by tool."""
        busy: dict[tuple[str, str], int] = {}
        for key, cell in self._cells.items():
            if key.tool:
                tool = (key.server, key.tool)
                busy[tool] = busy.get(tool, 0) + sum(cell.counts)
        # A tool keeps its series, because counters must not decrease when it is moved to or from `other`.
        for tool in sorted(busy, key=lambda tool: -busy[tool]):
            if len(self._named_tools) >= MAX_NAMED_TOOLS:
                break
            self._named_tools.setdefault(tool)
        return self._named_tools.keys()

    def series(self) -> Iterator[tuple[Key, DurationHistogram]]:
        """Yield the histogram of every series. Counts never decrease between calls."""
        named_tools = self.named_tools()
        other_tools: dict[Key, DurationHistogram] = {}
        for key, cell in self._cells.items():
            if not key.tool or (key.server, key.tool) in named_tools:
                yield key, cell
            else:
                other_tools.setdefault(key._replace(server="", tool=OTHER), DurationHistogram()).add(cell)
        yield from other_tools.items()
