"""Calls of the last hour in figures, counted from the lines of the record: no arguments, no results."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final, Literal

from gateway.admin.routes import Document
from gateway.audit.call import Outcome
from gateway.audit.lines import CallLine, Line

Ending = Literal["ok", "error", "denied"]

BUCKET_S: Final = 10
"""Wide enough for a figure to mean something, narrow enough to see when it began."""
KEPT_S: Final = 3_600
# Tools and callers with the most recent calls; each takes about 300 bytes.
_MAX_TOOLS: Final = 2_000
_MAX_CALLERS: Final = 500
# Milliseconds: doubled from 1 to an hour.
_BOUNDS: Final = tuple(2**power for power in range(23))
# Ways in which calls end: rules and hooks that decide, and codes of errors.
_MAX_ENDINGS: Final = 1_024
# Why a call was not made that somebody or a rule has kept from it.
_DENIED: Final = frozenset({"policy", "asked", "denied", "expired", "unknown"})


class Activity:
    """Counts calls by time, by tool and by caller.

    Args:
        clock: Seconds since 1970: processes of one gateway put their figures together by it.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._buckets: OrderedDict[int, _Figures] = OrderedDict()
        self._tools: OrderedDict[str, _Figures] = OrderedDict()
        self._callers: OrderedDict[str, _Figures] = OrderedDict()

    def add(self, lines: Iterable[Line]) -> None:
        """Count what is among these lines."""
        # Together for each kind of call: a busy gateway has hundreds of a kind in one batch.
        kinds: defaultdict[tuple[float, str | None, str, Outcome], list[float]] = defaultdict(list)
        for line in lines:
            if type(line) is CallLine:
                kinds[line.time_s // BUCKET_S, line.target[0], line.caller[0], line.ending].append(line.took_s * 1000)
        for (bucket, name, caller, ending), took_ms in kinds.items():
            figures, tool = _Figures(), str(name)
            figures.add(ending_of(ending), took_ms)
            _of(self._buckets, int(bucket) * BUCKET_S, KEPT_S // BUCKET_S).merge(figures)
            _of(self._tools, tool, _MAX_TOOLS).merge(figures)
            _of(self._callers, caller, _MAX_CALLERS).merge(figures)

    def document(self) -> Document:
        """The figures of this process."""
        oldest = self._clock() - KEPT_S
        return {
            "bucketSeconds": BUCKET_S,
            "buckets": [{"at": at, **one.row()} for at, one in sorted(self._buckets.items()) if at >= oldest],
            "tools": [{"name": name, **one.row()} for name, one in self._tools.items()],
            "callers": [{"name": name, **one.row()} for name, one in self._callers.items()],
        }


@lru_cache(maxsize=_MAX_ENDINGS)
def ending_of(ending: Outcome) -> Ending:
    """How a call has ended, in one word, of what its line tells."""
    transport, jsonrpc, tool, _, reason, hook, _, _ = ending
    if reason in _DENIED or hook is not None:
        return "denied"
    if tool not in (None, "error"):
        return "ok"
    nothing = tool is None and transport is None and jsonrpc is None
    # A hook has answered in place of the server.
    return "ok" if nothing and reason is None else "error"


def all_activity(documents: Sequence[Document]) -> Document:
    """`/admin/activity` of every process."""
    return {
        **documents[0],
        **{
            member: sorted(
                _summed(key, [document[member] for document in documents]), key=lambda row: (row.get("at", 0),)
            )
            for member, key in (("buckets", "at"), ("tools", "name"), ("callers", "name"))
        },
    }


def _summed(key: str, lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    found: dict[Any, _Figures] = {}
    for rows in lists:
        for row in rows:
            found.setdefault(row[key], _Figures()).take(row)
    return [{key: name, **one.row()} for name, one in found.items()]


class _Figures:
    __slots__ = ("calls", "denied", "errors", "histogram", "most_ms", "total_ms")

    def __init__(self) -> None:
        self.calls = self.errors = self.denied = 0
        self.total_ms = self.most_ms = 0.0
        self.histogram = [0] * (len(_BOUNDS) + 1)

    def add(self, ending: Ending, took_ms: Sequence[float]) -> None:
        calls = len(took_ms)
        self.calls += calls
        if ending == "error":
            self.errors += calls
        elif ending == "denied":
            self.denied += calls
        self.total_ms += sum(took_ms)
        self.most_ms = max(self.most_ms, *took_ms)
        for place, count in Counter(map(int.bit_length, map(int, took_ms))).items():
            self.histogram[min(place, len(_BOUNDS))] += count

    def merge(self, other: _Figures) -> None:
        self.calls += other.calls
        self.errors += other.errors
        self.denied += other.denied
        self.total_ms += other.total_ms
        self.most_ms = max(self.most_ms, other.most_ms)
        self.histogram = list(map(add, self.histogram, other.histogram))

    def take(self, row: Mapping[str, Any]) -> None:
        self.calls += row["calls"]
        self.errors += row["errors"]
        self.denied += row["denied"]
        self.total_ms += row["totalMs"]
        self.most_ms = max(self.most_ms, row["maxMs"])
        for place, count in enumerate(row["histogram"]):
            self.histogram[place] += count

    def row(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "errors": self.errors,
            "denied": self.denied,
            "totalMs": round(self.total_ms, 2),
            "maxMs": round(self.most_ms, 2),
            "p50Ms": self._quantile(0.5),
            "p95Ms": self._quantile(0.95),
            "histogram": list(self.histogram),
        }

    def _quantile(self, share: float) -> float:
        """The bound below which this share of the calls took, and never more than the longest."""
        left = share * self.calls
        for place, count in enumerate(self.histogram):
            left -= count
            if count and left <= 0:
                bound = _BOUNDS[place] if place < len(_BOUNDS) else self.most_ms
                return round(min(float(bound), self.most_ms), 2)
        return 0.0


def _of(figures: OrderedDict[Any, _Figures], key: Any, most: int) -> _Figures:
    found = figures.get(key)
    if found is None:
        found = figures[key] = _Figures()
        if len(figures) > most:
            figures.popitem(last=False)
    else:
        figures.move_to_end(key)
    return found
