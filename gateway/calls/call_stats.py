"""How calls end, by tool: counters, clusters of similar failures, and repairs.

No arguments or results are kept, only names of parameters and kinds of failure.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from cachetools import LRUCache
from msgspec import Struct

from gateway.calls.context import Caller
from gateway.errors import (
    RpcError,
    UpstreamError,
    UpstreamLost,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.instruments.conventions import TOOL_ERROR
from gateway.instruments.durations import Cell, Durations
from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.repair_report import Repair
from registry.catalog.catalog import ToolWrapper
from registry.schema.json_paths import format_path

log = logging.getLogger(__name__)

SENT_UNCHECKED: Final = "sent_unchecked"
"""The kind of an argument that was sent although it could not be checked."""
# A day, so that an operator who looks once a day sees every cluster.
WINDOW_S: Final = 24 * 60 * 60.0
# One failure is chance and two may be one model that tries again. The third is flagged, unless all come from one
# session: then it is more likely the caller than the tool.
FLAG_FAILURES: Final = 3
FLAG_SESSIONS: Final = 2
# A cluster with all its failures takes about 10 kB, so this is 40 MB at most, and usually far less.
MAX_CLUSTERS: Final = 4_096
# Each counted tool becomes several lines of the metrics, which a monitoring system stores for every scrape.
MAX_COUNTED_TOOLS: Final = 20_000
# Of each cluster; more than enough to flag it, and `total` counts on.
_MAX_RECENT: Final = 64
# An error says in its first sentence what kind it is; what follows may be a stack trace.
_MAX_CLASS_CHARS: Final = 300
_MAX_ITEMS: Final = 4
# Names of clients are a word or two.
_MAX_CLIENT_CHARS: Final = 64
# What differs between two errors of one kind: quoted values, and words with a digit, as numbers and identifiers have.
_PARTICULARS: Final = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`|[\w.:/-]*\d[\w.:/-]*|\s+")
# How a call ended, as the conventions for metrics name it.
# A server, a tool, the route to it, and the outcome.
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
    """One class of failure: its kind, and the detail that distinguishes it from others of its kind."""

    kind: str
    detail: str = ""

    @classmethod
    def of(cls, error: UpstreamError) -> Failure:
        """The class of an upstream's failure."""
        return cls(kind=next((kind for known, kind in _KINDS if isinstance(error, known)), "refused_input"))

    @classmethod
    def of_protocol_error(cls, error: RpcError) -> Failure:
        """The class of a protocol error: its code and its kind of text."""
        return cls(kind="protocol_error", detail=f"{error.code} {_class_of(error.message)}".rstrip())

    @classmethod
    def of_problem(cls, problem: ArgumentProblem) -> Failure:
        """The class of a wrong argument: which one, and what is wrong with it."""
        return cls(kind=f"argument_{problem.kind}", detail=format_path(problem.path))

    @classmethod
    def of_unchecked(cls, problem: ArgumentProblem) -> Failure:
        """The class of an argument that was sent although it could not be checked."""
        return cls(kind=SENT_UNCHECKED, detail=format_path(problem.path))


@dataclass(slots=True)
class _FailureCluster:
    """Failures of one class at one tool.

    Attributes:
        recent: The latest ones: when, and who called.
    """

    wrapper: str
    server: str
    tool: str
    failure: Failure
    total: int = 0
    recent: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    flagged_at_s: float | None = None


class _Counted(Struct, eq=False):
    cell: Cell
    calls: int = 0
    seconds: float = 0.0


class CallStats:
    """Counts calls, failures and repairs; bounded: the least recently used cluster makes room for a new one.

    Attributes:
        calls: The number of calls by server, tool, route and outcome.
        seconds: The time that they took together, by server, tool and route.
        durations: How long each took, in buckets.

    Args:
        on_success: Called with the tool of each call that succeeded.
        on_failure: Takes each failure instead, where one process keeps the clusters of several.
        clock: A monotonic clock.
        durations: Where durations are counted.
    """

    def __init__(
        self,
        *,
        on_success: Callable[[ToolWrapper], None] = lambda wrapper: None,
        on_failure: Callable[[str, str, str, Failure, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        durations: Durations | None = None,
    ) -> None:
        self.durations = durations or Durations()
        self._on_success = on_success
        self._clock = clock
        self._clusters: LRUCache[tuple[str, Failure], _FailureCluster] = LRUCache(MAX_CLUSTERS)
        self._counted: dict[_Ending, _Counted] = {}
        self._routes: set[tuple[str, str, str]] = set()
        self._on_failure = on_failure or self.add_failure
        self._repairs: LRUCache[str, Counter[str]] = LRUCache(MAX_CLUSTERS)

    def count_call(self, wrapper: ToolWrapper, via: str, outcome: str, seconds: float) -> None:
        """Count one call that reached a wrapper; beyond `MAX_COUNTED_TOOLS` those of further tools are not counted."""
        ending = (wrapper.server, wrapper.tool, via, outcome)
        counted = self._counted.get(ending)
        if counted is None:
            counted = self._first(ending)
        counted.calls += 1
        counted.seconds += seconds
        counted.cell.record(seconds)

    def _first(self, ending: _Ending) -> _Counted:
        server, tool, _, outcome = ending
        counted = _Counted(self.durations.of("server", "tools/call", server, tool, _ERRORS[outcome]))
        if ending[:3] in self._routes or len(self._routes) < MAX_COUNTED_TOOLS:
            self._routes.add(ending[:3])
            self._counted[ending] = counted
        return counted

    @property
    def calls(self) -> dict[_Ending, int]:
        """How many calls there were, by server, tool, route and outcome."""
        return {ending: counted.calls for ending, counted in self._counted.items()}

    @property
    def seconds(self) -> dict[tuple[str, str, str], float]:
        """How long they took together, by server, tool and route."""
        seconds: dict[tuple[str, str, str], float] = {}
        for ending, counted in self._counted.items():
            seconds[ending[:3]] = seconds.get(ending[:3], 0.0) + counted.seconds
        return seconds

    def record_result(self, wrapper: ToolWrapper, result: dict[str, Any], caller: Caller) -> None:
        """Record a result: a success, or an error result."""
        if result.get("isError") is True:
            self.record_failure(wrapper, Failure(kind="error_result", detail=_class_of(_first_text(result))), caller)
        else:
            self._on_success(wrapper)

    def record_failure(self, wrapper: ToolWrapper, failure: Failure, caller: Caller) -> None:
        """Record a failure of a call in this process."""
        self._on_failure(wrapper.name, wrapper.server, wrapper.tool, failure, caller.session_id or name_of(caller))

    def add_failure(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        """Record a failure of any process; the third of its class from a second session is logged, once a day."""
        key = (wrapper, failure)
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = self._clusters[key] = _FailureCluster(wrapper, server, tool, failure)
        now_s = self._clock()
        cluster.total += 1
        cluster.recent.append((now_s, who))
        recent = _recent(cluster, now_s)
        # Flagged again after a day, so that a failure which goes on is in every day's log.
        if cluster.flagged_at_s is not None and now_s - cluster.flagged_at_s > WINDOW_S:
            cluster.flagged_at_s = None
        enough = len(recent) >= FLAG_FAILURES and len({who for _, who in recent}) >= FLAG_SESSIONS
        if cluster.flagged_at_s is not None or not enough:
            return
        cluster.flagged_at_s = now_s
        fields = {"server": server, "tool": tool, "wrapper": wrapper}
        log.warning("calls keep failing: %s %s", failure.kind, failure.detail, extra=fields)

    def record_repairs(self, wrapper: ToolWrapper, repairs: Iterable[Repair]) -> None:
        """Record how one call was repaired."""
        counter = self._repairs.get(wrapper.name)
        if counter is None:
            counter = self._repairs[wrapper.name] = Counter()
        counter["calls"] += 1
        # A set: a call with two renamed parameters is one call with a renamed parameter.
        counter.update({repair.name for repair in repairs})

    def failure_rows(self) -> list[dict[str, Any]]:
        """One row for each class of failure of the last 24 hours, flagged ones first."""
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
        """One row for each tool with repaired calls."""
        return [
            {"wrapper": name, "calls": counter["calls"], "repairs": {k: n for k, n in counter.items() if k != "calls"}}
            for name, counter in sorted(self._repairs.items())
        ]


def name_of(caller: Caller) -> str:
    """Return what tells a caller without a session from others, over however many connections it calls.

    That is the principal, the host, and how the client introduces itself; a port is of a single connection.
    """
    client = caller.client_info.get("name") if isinstance(caller.client_info, dict) else None
    named = f"/{client[:_MAX_CLIENT_CHARS]}" if isinstance(client, str) else ""
    return f"{caller.principal.name}@{caller.peer.rpartition(':')[0] or caller.peer}{named}"


def _first_text(result: dict[str, Any]) -> str:
    content = result.get("content")
    texts = (
        (item.get("text") for item in content[:_MAX_ITEMS] if isinstance(item, dict)) if type(content) is list else ()
    )
    return next((text for text in texts if isinstance(text, str)), "")


def _class_of(text: str) -> str:
    """Return a short word for texts that say the same of different things; of the text itself nothing is kept."""
    plain = _PARTICULARS.sub("", text[:_MAX_CLASS_CHARS]).casefold()
    return f"text {sha256(plain.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}" if plain.strip() else ""


def _recent(cluster: _FailureCluster, now_s: float) -> list[tuple[float, str]]:
    return [failure for failure in cluster.recent if now_s - failure[0] <= WINDOW_S]
