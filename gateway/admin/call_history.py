"""Call statistics, and their history of seven days in a file that all processes of the gateway share.

A `Figures` object counts calls by ending (`ok`, `error` or `denied`) and by duration. For each period, the history has
the figures of all calls, and the figures of each server, tool and caller.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import anyio

from gateway.audit.audit_entries import Outcome
from gateway.audit.log_reader import REFUSALS
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

Ending = Literal["ok", "error", "denied"]

# Each bound of the histogram is 20 % above the previous bound, so that the middle of a bucket is at most 10 % wrong.
_STEP: Final = 1.2
BOUNDS_MS: Final = tuple(round(0.05 * _STEP**place, 4) for place in range(100))
"""Upper bounds of the histogram's buckets in milliseconds, from 0.05 ms to an hour. Another bucket has no bound."""
# The maximum number of cached outcomes. Outcomes are combinations of policy reasons, hooks and error codes.
_MAX_ENDINGS: Final = 1_024


@lru_cache(maxsize=_MAX_ENDINGS)
def ending_of(ending: Outcome) -> Ending:
    """Classify the outcome of a call in one word."""
    transport, jsonrpc, tool, _, reason, hook, _, _ = ending
    if reason in REFUSALS or hook is not None:
        return "denied"
    if tool not in (None, "error"):
        return "ok"
    nothing = tool is None and transport is None and jsonrpc is None
    # If there is neither an outcome nor a reason, a hook has answered in place of the server.
    return "ok" if nothing and reason is None else "error"


class Figures:
    """The number of calls by ending, and a histogram of their durations."""

    __slots__ = ("calls", "denied", "errors", "histogram", "most_ms", "total_ms")

    def __init__(self) -> None:
        self.calls = self.errors = self.denied = 0
        self.total_ms = self.most_ms = 0.0
        # The number of calls by bucket index. Buckets without calls, which are most, are not stored.
        self.histogram: Counter[int] = Counter()

    def add(self, ending: Ending, took_ms: Sequence[float]) -> None:
        """Count calls with this ending and these durations."""
        calls = len(took_ms)
        self.calls += calls
        if ending == "error":
            self.errors += calls
        elif ending == "denied":
            self.denied += calls
        self.total_ms += sum(took_ms)
        self.most_ms = max(self.most_ms, *took_ms)
        self.histogram.update(bisect_left(BOUNDS_MS, one_ms) for one_ms in took_ms)

    def refuse(self, count: int) -> None:
        """Count requests that were refused before they became calls."""
        self.denied += count

    def merge(self, figures: Figures) -> None:
        """Add the calls of other figures."""
        self.calls += figures.calls
        self.errors += figures.errors
        self.denied += figures.denied
        self.total_ms += figures.total_ms
        self.most_ms = max(self.most_ms, figures.most_ms)
        self.histogram.update(figures.histogram)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add the calls in a `row` of another process."""
        self.calls += row["calls"]
        self.errors += row["errors"]
        self.denied += row["denied"]
        self.total_ms += row["totalMs"]
        self.most_ms = max(self.most_ms, row["maxMs"])
        self.histogram.update(dict(row["histogram"]))

    def summary(self) -> dict[str, Any]:
        """Return these figures as shown to people: counts, and durations in milliseconds."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "denied": self.denied,
            "totalMs": round(self.total_ms, 2),
            "maxMs": round(self.most_ms, 2),
            "p50Ms": self._quantile(0.5),
            "p95Ms": self._quantile(0.95),
        }

    def row(self) -> dict[str, Any]:
        """Return these figures with the histogram, which is needed to merge the rows of several processes."""
        return {**self.summary(), "histogram": sorted(self.histogram.items())}

    def _quantile(self, share: float) -> float:
        """Return the duration that this share of the calls does not exceed, approximated by the middle of a bucket."""
        remaining = share * sum(self.histogram.values())
        for place, count in sorted(self.histogram.items()):
            remaining -= count
            if remaining <= 0:
                middle_ms = BOUNDS_MS[place] / math.sqrt(_STEP) if place < len(BOUNDS_MS) else self.most_ms
                return round(min(middle_ms, self.most_ms), 2)
        return 0.0


FILE_NAME: Final = "history.sqlite"
OTHER: Final = "(other)"
"""The name for the calls of all further names, if a period has more names than the limit."""
Kind = Literal["all", "server", "tool", "caller"]


class Range(NamedTuple):
    """A time range that ends now.

    Attributes:
        step_s: The length of a period, in seconds.
        steps: The number of periods.
    """

    step_s: int
    steps: int


RANGES: Final = {
    "15m": Range(30, 30),
    "1h": Range(60, 60),
    "24h": Range(900, 96),
    "7d": Range(7_200, 84),
}
"""At most a hundred periods per range: as many as a plot can show."""
# Until figures are written, they are grouped by the shortest period. The other periods are multiples of the shortest.
_SHORTEST_S: Final = min(each.step_s for each in RANGES.values())
# The maximum number of names per kind and period. With these limits, a busy gateway's file stays below 32 MiB.
_MAX_NAMES: Final[Mapping[Kind, int]] = {"all": 1, "server": 100, "tool": 300, "caller": 100}
# The maximum size of the file in pages of 4 KiB. Only unusually long names can fill the file. While the file is full,
# new figures are lost.
_MAX_PAGES: Final = 16_384
# The pause between writes. A process that is killed loses the figures that it has collected during this time.
_SAVE_S: Final = 5.0
# How long the shutdown waits for the last write.
_CLOSE_S: Final = 2.0
# How long to wait while another process writes, which takes milliseconds.
_LOCK_TIMEOUT_S: Final = 5.0
# The maximum number of combinations (period, server, tool, caller) to be written. Others are counted as `OTHER`.
_MAX_WAITING: Final = 10_000
# The version of the table is part of its name, so that a table with changed columns starts empty.
_TABLE: Final = (
    "create table if not exists figures1 (step integer, at integer, kind text, name text, calls integer,"
    " errors integer, denied integer, total_ms real, most_ms real, histogram text,"
    " primary key (step, at, kind, name)) without rowid"
)
_COLUMNS: Final = "calls, errors, denied, total_ms, most_ms, histogram"
_Key = tuple[int, str, str, str]


class CallHistory:
    """Collects figures, and writes them to a file every few seconds.

    Attributes:
        last_error: Why the file cannot be used at present.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, *, max_names: Mapping[Kind, int] = _MAX_NAMES
    ) -> None:
        self._max_names = max_names
        self.last_error: str | None = None
        self._path = path
        self._clock = clock
        self._waiting: dict[_Key, Figures] = {}
        self._writing = anyio.Lock()

    def add(self, at_s: float, figures: Figures, *, server: str = "", tool: str = "", caller: str = "") -> None:
        """Count calls at this time, for all calls and for each name that is not empty."""
        start = int(at_s // _SHORTEST_S) * _SHORTEST_S
        key = (start, server, tool, caller)
        if key not in self._waiting and len(self._waiting) >= _MAX_WAITING:
            key = (start, OTHER, OTHER, OTHER)
        self._waiting.setdefault(key, Figures()).merge(figures)

    @asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Write the last figures at the end of the context."""
        try:
            yield
        finally:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self.save()

    async def save_periodically(self) -> None:
        """Write the collected figures until cancelled."""
        while True:
            await anyio.sleep(_SAVE_S)
            await self.save()

    async def save(self) -> None:
        """Write the collected figures now. After a failure, the next call tries again."""
        async with self._writing:
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, {}
            write = partial(_write, waiting, now_s=self._clock(), max_names=self._max_names)
            if await run_in_thread(partial(self._with_file, write)):
                return
            later, self._waiting = self._waiting, waiting
            for (at, server, tool, caller), figures in later.items():
                self.add(at, figures, server=server, tool=tool, caller=caller)

    async def document(self, name: str, *, by: Kind | None = None, only: tuple[Kind, str] = ("all", "")) -> Any:
        """Return the history of a range, as `/admin/history` shows it.

        Args:
            name: The name of the range.
            by: Also return the figures of each server, tool or caller.
            only: The kind and the name of the series whose points are returned.
        """
        await self.save()
        step_s, steps = RANGES[name]
        start = (int(self._clock() // step_s) - steps + 1) * step_s
        points: dict[int, Figures] = {}
        series: dict[str, Figures] = {}
        query = partial(_read, step_s, start, (by, only), points, series)
        await run_in_thread(partial(self._with_file, query))
        total = Figures()
        for figures in points.values():
            total.merge(figures)
        return {
            "range": name,
            "stepSeconds": step_s,
            "from": start,
            "to": start + step_s * steps,
            "points": [{"at": at, **figures.summary()} for at, figures in sorted(points.items())],
            "total": total.summary(),
            "series": [{"name": name, **figures.summary()} for name, figures in sorted(series.items())],
            "lastError": self.last_error,
        }

    def _with_file(self, action: Callable[[sqlite3.Connection], None]) -> bool:
        """Run an action in a transaction; return whether it has succeeded."""
        import sqlite3  # imported lazily, so that the start is not delayed

        try:
            base = sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S, isolation_level=None)
            with closing(base):
                self._path.chmod(0o600)
                base.execute(f"pragma max_page_count = {_MAX_PAGES}")
                # Lock the file at once, because a transaction that reads first cannot wait for another process's write.
                base.execute("begin immediate")
                base.execute(_TABLE)
                action(base)
                base.execute("commit")
        except (sqlite3.Error, OSError) as error:
            if self.last_error is None:
                log.warning("history of calls failed", extra={"path": str(self._path), "reason": str(error)})
            self.last_error = str(error)
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                # The file is damaged: start with an empty history, because nothing else depends on the file.
                with suppress(OSError):
                    self._path.unlink()
            return False
        self.last_error = None
        return True


def _write(
    waiting: Mapping[_Key, Figures], base: sqlite3.Connection, *, now_s: float, max_names: Mapping[Kind, int]
) -> None:
    """Add figures to the stored figures, and delete periods that no range contains any more."""
    totals: dict[tuple[int, int, Kind, str], Figures] = {}
    for (at, server, tool, caller), figures in waiting.items():
        names: dict[Kind, str] = {"all": "", "server": server, "tool": tool, "caller": caller}
        for step_s in {each.step_s for each in RANGES.values()}:
            for kind, name in names.items():
                if name or kind == "all":
                    totals.setdefault((step_s, at // step_s * step_s, kind, name), Figures()).merge(figures)
    for step_s, steps in RANGES.values():
        base.execute("delete from figures1 where step = ? and at < ?", (step_s, now_s - step_s * (steps + 1)))
    for (step_s, at, kind, name), figures in sorted(totals.items(), key=lambda item: item[0]):
        _add(base, (step_s, at, kind, name), figures, max_names[kind])


def _add(base: sqlite3.Connection, key: tuple[int, int, Kind, str], figures: Figures, max_names: int) -> None:
    step_s, at, kind, name = key
    where = "from figures1 where step = ? and at = ? and kind = ?"
    row = base.execute(f"select {_COLUMNS} {where} and name = ?", key).fetchone()
    if row is None and name != OTHER:
        [names] = base.execute(f"select count(*) {where}", key[:3]).fetchone()
        if names >= max_names:
            return _add(base, (step_s, at, kind, OTHER), figures, max_names)
    if row is not None:
        figures.merge(_figures_of(row))
    histogram = json_bytes.dumps(sorted(figures.histogram.items())).decode()
    values = (figures.calls, figures.errors, figures.denied, figures.total_ms, figures.most_ms, histogram)
    base.execute("insert or replace into figures1 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *values))
    return None


def _read(
    step_s: int,
    start: int,
    selection: tuple[Kind | None, tuple[Kind, str]],
    points: dict[int, Figures],
    series: dict[str, Figures],
    base: sqlite3.Connection,
) -> None:
    """Read the points of one series, and the total figures of every series of a kind."""
    by, (kind, name) = selection
    where = "from figures1 where step = ? and at >= ? and kind = ?"
    for at, *row in base.execute(f"select at, {_COLUMNS} {where} and name = ?", (step_s, start, kind, name)):
        points[at] = _figures_of(row)
    for each, *row in base.execute(f"select name, {_COLUMNS} {where}", (step_s, start, by)):
        series.setdefault(each, Figures()).merge(_figures_of(row))


def _figures_of(row: Sequence[Any]) -> Figures:
    figures = Figures()
    figures.calls, figures.errors, figures.denied, figures.total_ms, figures.most_ms, histogram = row
    figures.histogram.update(dict(json_bytes.loads(histogram)))
    return figures
