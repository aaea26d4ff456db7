"""Count the outcomes and durations of calls by tool, and collect similar failures of a tool in clusters.

Only names of parameters and kinds of failure are stored, never values of arguments or results.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from cachetools import LRUCache
from msgspec import Struct

from gateway.calls.advice.mistakes import Mistakes
from gateway.calls.caller import Caller
from gateway.protocol.gateway_errors import (
    RpcError,
    UpstreamError,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.telemetry.trace_context import BUCKETS_S, MAX_NAMED_TOOLS, OTHER, TOOL_ERROR, Key, Side
from registry.arguments.coercion import Repair
from registry.arguments.diagnosis import ArgumentProblem
from registry.catalog.catalog import ToolWrapper
from registry.schema.json_paths import format_path

# Maximum number of histograms, which limits their memory to a few MiB. Further keys are counted as `other`.
_MAX_CELLS: Final = 20_000


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


log = logging.getLogger(__name__)

SENT_UNCHECKED: Final = "sent_unchecked"
"""The kind of failure for an argument that was sent although it could not be checked."""
# Failures are reported for one day, so that an operator who checks daily sees every cluster.
WINDOW_S: Final = 24 * 60 * 60.0
# One failure may be chance, and two may be a model's retry. A cluster is flagged from the third failure on, unless all
# failures come from one session. In that case, the caller is a more likely cause than the tool.
FLAG_FAILURES: Final = 3
FLAG_SESSIONS: Final = 2
# Maximum number of clusters. A full cluster takes about 10 kB, so all take at most 40 MB, and usually far less.
MAX_CLUSTERS: Final = 4_096
# Maximum number of tools in the metrics; a tool counts once for each route. Each adds several lines, which a
# monitoring system stores for every scrape.
MAX_COUNTED_TOOLS: Final = 20_000
# Failures stored per cluster: more than are needed to flag it. `total` also counts the dropped failures.
_MAX_RECENT: Final = 64
# Maximum characters of an error to read: the first sentence identifies its kind, and a stack trace may follow.
_MAX_CLASS_CHARS: Final = 300
_MAX_ITEMS: Final = 4
# Client names consist of a word or two.
_MAX_CLIENT_CHARS: Final = 64
# Parts that differ between errors of one kind: quoted values, words with a digit (numbers, identifiers), and spaces.
_PARTICULARS: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|[\w.:/-]*\d[\w.:/-]*|\s+")
# Server, tool, route and outcome of a call.
_Ending = tuple[str, str, str, str]
_ERRORS: Final = {"ok": "", "error_result": TOOL_ERROR, "error": "error"}
_KINDS: Final[tuple[tuple[type[UpstreamError], str], ...]] = (
    (UpstreamUnavailable, "unavailable"),
    (UpstreamTimeout, "timeout"),
    (UpstreamLost, "lost"),
    (UpstreamProtocolError, "malformed_answer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A class of failures: their kind, and a detail that distinguishes the class from others of the same kind."""

    kind: str
    detail: str = ""

    @classmethod
    def from_error(cls, error: UpstreamError) -> Failure:
        """Return the class of an upstream's failure."""
        return cls(kind=next((kind for error_type, kind in _KINDS if isinstance(error, error_type)), "refused_input"))

    @classmethod
    def from_protocol_error(cls, error: RpcError) -> Failure:
        """Return the class of a protocol error: its code and the class of its text."""
        return cls(kind="protocol_error", detail=f"{error.code} {_text_class(error.message)}".rstrip())

    @classmethod
    def from_problem(cls, problem: ArgumentProblem) -> Failure:
        """Return the class of an invalid argument: its path and the kind of problem."""
        return cls(kind=f"argument_{problem.kind}", detail=format_path(problem.path))

    @classmethod
    def from_unchecked(cls, problem: ArgumentProblem) -> Failure:
        """Return the class of an argument that was sent although it could not be checked."""
        return cls(kind=SENT_UNCHECKED, detail=format_path(problem.path))


@dataclass(slots=True)
class _FailureCluster:
    """Failures of one class in calls of one tool.

    Attributes:
        total: The number of failures since the cluster was created.
        recent: The time and the caller of each of the latest failures.
        flagged_at_s: The time at which the cluster was logged; None if that was not within the last day.
    """

    wrapper: str
    server: str
    tool: str
    failure: Failure
    total: int = 0
    recent: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    flagged_at_s: float | None = None


class _Counted(Struct, eq=False):
    cell: DurationHistogram
    calls: int = 0
    seconds: float = 0.0


class CallStats:
    """Counts calls, failures and repairs. At the maximum, a new cluster replaces the least recently used cluster.

    Attributes:
        calls: Number of calls by server, tool, route and outcome.
        seconds: Total duration by server, tool and route.
        durations: Histogram of durations.
        mistakes: The mistakes that callers make with each tool.

    Args:
        on_success: Called with the tool of each successful call.
        awaited: The tools (server and tool) whose successful calls `on_success` gets; None for all tools.
        on_failure: Called for each failure instead of `add_failure`, if another process stores the clusters.
        clock: A monotonic clock.
        durations: Records durations.
    """

    def __init__(
        self,
        *,
        on_success: Callable[[ToolWrapper], None] = lambda wrapper: None,
        awaited: Container[tuple[str, str]] | None = None,
        on_failure: Callable[[str, str, str, Failure, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        durations: Durations | None = None,
    ) -> None:
        self.durations = durations or Durations()
        self.mistakes = Mistakes()
        self._on_success = on_success
        self._awaited = awaited
        self._clock = clock
        self._clusters: LRUCache[tuple[str, Failure], _FailureCluster] = LRUCache(MAX_CLUSTERS)
        self._counted: dict[_Ending, _Counted] = {}
        self._routes: set[tuple[str, str, str]] = set()
        self._on_failure = on_failure or self.add_failure
        self._repairs: LRUCache[str, Counter[str]] = LRUCache(MAX_CLUSTERS)

    def count_call(self, wrapper: ToolWrapper, via: str, outcome: str, seconds: float) -> None:
        """Count a call of a wrapper. Beyond `MAX_COUNTED_TOOLS`, calls of further tools are not in the counters."""
        ending = (wrapper.server, wrapper.tool, via, outcome)
        counted = self._counted.get(ending)
        if counted is None:
            counted = self._add_counter(ending)
        counted.calls += 1
        counted.seconds += seconds
        counted.cell.record(seconds)

    def _add_counter(self, ending: _Ending) -> _Counted:
        server, tool, _, outcome = ending
        counted = _Counted(self.durations.histogram("server", "tools/call", server, tool, _ERRORS[outcome]))
        if ending[:3] in self._routes or len(self._routes) < MAX_COUNTED_TOOLS:
            self._routes.add(ending[:3])
            self._counted[ending] = counted
        return counted

    @property
    def calls(self) -> dict[_Ending, int]:
        """Number of calls by server, tool, route and outcome."""
        return {ending: counted.calls for ending, counted in self._counted.items()}

    @property
    def seconds(self) -> dict[tuple[str, str, str], float]:
        """Total duration in seconds by server, tool and route."""
        seconds: dict[tuple[str, str, str], float] = {}
        for ending, counted in self._counted.items():
            seconds[ending[:3]] = seconds.get(ending[:3], 0.0) + counted.seconds
        return seconds

    def record_result(
        self, wrapper: ToolWrapper, result: dict[str, Any], caller: Caller, arguments: Any = None
    ) -> None:
        """Record the result of a call: as a failure if it is an error result, otherwise as a success."""
        if result.get("isError") is True:
            text = _first_text(result)
            self.record_failure(wrapper, Failure(kind="error_result", detail=_text_class(text)), caller)
            self.mistakes.record_error(wrapper, text, arguments, caller.principal.name)
        elif self._awaited is None or (wrapper.server, wrapper.tool) in self._awaited:
            self._on_success(wrapper)

    def record_failure(self, wrapper: ToolWrapper, failure: Failure, caller: Caller) -> None:
        """Record a failure of a call in this process."""
        self._on_failure(wrapper.name, wrapper.server, wrapper.tool, failure, caller.session_id or client_key(caller))

    def add_failure(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        """Add a failure from any process to its cluster.

        Once a cluster has `FLAG_FAILURES` failures from `FLAG_SESSIONS` sessions within a day, it is logged, at most
        once per day.
        """
        key = (wrapper, failure)
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = self._clusters[key] = _FailureCluster(wrapper, server, tool, failure)
        now_s = self._clock()
        cluster.total += 1
        cluster.recent.append((now_s, who))
        recent = _recent(cluster, now_s)
        # A persistent failure is logged again after a day, so that it appears in each day's log.
        if cluster.flagged_at_s is not None and now_s - cluster.flagged_at_s > WINDOW_S:
            cluster.flagged_at_s = None
        enough = len(recent) >= FLAG_FAILURES and len({who for _, who in recent}) >= FLAG_SESSIONS
        if cluster.flagged_at_s is not None or not enough:
            return
        cluster.flagged_at_s = now_s
        fields = {"server": server, "tool": tool, "wrapper": wrapper}
        log.warning("calls keep failing: %s %s", failure.kind, failure.detail, extra=fields)

    def record_repairs(self, wrapper: ToolWrapper, repairs: Iterable[Repair]) -> None:
        """Record the repairs of one call."""
        counter = self._repairs.get(wrapper.name)
        if counter is None:
            counter = self._repairs[wrapper.name] = Counter()
        counter["calls"] += 1
        # Use a set, so that a call with two renamed parameters counts once.
        counter.update({repair.name for repair in repairs})

    def failure_rows(self) -> list[dict[str, Any]]:
        """Return one row for each class of failure in the last 24 hours, flagged classes first."""
        now_s = self._clock()
        rows = [
            {
                "wrapper": cluster.wrapper,
                "server": cluster.server,
                "tool": cluster.tool,
                "kind": cluster.failure.kind,
                "detail": cluster.failure.detail,
                "recent": len(recent),
                "sessions": len({who for _, who in recent}),
                "total": cluster.total,
                "lastSecondsAgo": round(now_s - recent[-1][0], 1),
                "flagged": cluster.flagged_at_s is not None,
            }
            for cluster in list(self._clusters.values())
            if (recent := _recent(cluster, now_s))
        ]
        return sorted(rows, key=lambda row: (not row["flagged"], -row["recent"], row["wrapper"]))

    def repair_rows(self) -> list[dict[str, Any]]:
        """Return one row for each tool with repaired calls."""
        return [
            {"wrapper": name, "calls": counter["calls"], "repairs": {k: n for k, n in counter.items() if k != "calls"}}
            for name, counter in sorted(self._repairs.items())
        ]


def client_key(caller: Caller) -> str:
    """Return a name for a caller without a session, which is the same for all connections of the caller.

    The name consists of the principal, the remote host and the client's name. The port differs between connections.
    """
    client = caller.client_info.get("name") if isinstance(caller.client_info, dict) else None
    suffix = f"/{client[:_MAX_CLIENT_CHARS]}" if isinstance(client, str) else ""
    return f"{caller.principal.name}@{caller.peer.rpartition(':')[0] or caller.peer}{suffix}"


def _first_text(result: dict[str, Any]) -> str:
    content = result.get("content")
    texts = (
        (item.get("text") for item in content[:_MAX_ITEMS] if isinstance(item, dict)) if type(content) is list else ()
    )
    return next((text for text in texts if isinstance(text, str)), "")


def _text_class(text: str) -> str:
    """Return a short hash of a text without its `_PARTICULARS`. The text itself must not be stored."""
    plain = _PARTICULARS.sub("", text[:_MAX_CLASS_CHARS]).casefold()
    return f"text {sha256(plain.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}" if plain.strip() else ""


def _recent(cluster: _FailureCluster, now_s: float) -> list[tuple[float, str]]:
    return [failure for failure in cluster.recent if now_s - failure[0] <= WINDOW_S]
