"""Count the durations of requests in histograms, by method, server, tool and kind of error."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, NamedTuple

from gateway.telemetry.trace_context import BUCKETS_S

Side = Literal["server", "client"]
MAX_NAMED_TOOLS: Final = 200
"""Maximum number of tools with separate time series, the busiest first. All other tools are counted as `other`.

A tool has sixteen time series for each kind of outcome, and a monitoring system stores all of them at every scrape.
"""
OTHER: Final = "other"
# Maximum number of histograms, which limits their memory to a few MiB. Further keys are counted as `other`.
_MAX_CELLS: Final = 20_000


class Key(NamedTuple):
    """The attributes of the requests that one histogram counts.

    Attributes:
        side: `server` for requests from callers, `client` for requests to upstreams.
        method: The MCP method.
        server: The alias of the upstream; empty if there is none.
        tool: The name of the tool; empty if the request does not concern a tool.
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
        counts: The number of requests in each bucket of `BUCKETS_S`, and in a last bucket without an upper bound.
        total_s: The sum of the durations in seconds.
    """

    __slots__ = ("_export", "counts", "total_s")

    def __init__(self, export: Callable[[float], None] | None = None) -> None:
        """Create an empty histogram. `export` is called with each recorded duration in seconds."""
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0
        self._export = export

    def record(self, seconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds
        if self._export is not None:
            self._export(seconds)

    def add(self, other: DurationHistogram) -> None:
        """Add the counts of another histogram."""
        self.counts = [count + added for count, added in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s


class Durations:
    """The histograms of all keys."""

    def __init__(self, exporter_of: Callable[[Key], Callable[[float], None]] | None = None) -> None:
        """Create the collection without histograms.

        Args:
            exporter_of: Returns a function that exports durations for a key; None to export nothing.
        """
        self._exporter_of = exporter_of
        self._cells: dict[Key, DurationHistogram] = {}
        self._named_tools: dict[tuple[str, str], None] = {}

    def histogram(
        self, side: Side, method: str, server: str = "", tool: str = "", error: str = ""
    ) -> DurationHistogram:
        """Return the histogram of a key. The caller may store the histogram and record further durations in it."""
        # Look up a plain tuple, which is equal to a `Key`. Creating a `Key` would double the time of this method.
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
        """Return the tools with separate time series, as pairs of server and tool; other metrics use the same tools."""
        busy: dict[tuple[str, str], int] = {}
        for key, cell in self._cells.items():
            if key.tool:
                tool = (key.server, key.tool)
                busy[tool] = busy.get(tool, 0) + sum(cell.counts)
        # A tool that has its own series never loses it, because counters must not decrease.
        for tool in sorted(busy, key=lambda tool: -busy[tool]):
            if len(self._named_tools) >= MAX_NAMED_TOOLS:
                break
            self._named_tools.setdefault(tool)
        return self._named_tools.keys()

    def series(self) -> Iterator[tuple[Key, DurationHistogram]]:
        """Yield each key to report with its histogram. The counts of a key never decrease from one call to the next."""
        named_tools = self.named_tools()
        other_tools: dict[Key, DurationHistogram] = {}
        for key, cell in self._cells.items():
            if not key.tool or (key.server, key.tool) in named_tools:
                yield key, cell
            else:
                other_tools.setdefault(key._replace(server="", tool=OTHER), DurationHistogram()).add(cell)
        yield from other_tools.items()
