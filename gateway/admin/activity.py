"""The live event feed, and statistics of the last hour's calls.

A watcher is a client that receives the events, such as an open admin page. Watchers never slow down calls: events are
stored in a ring buffer. A watcher that reads too slowly misses events, and receives the number of missed events.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import anyio

from gateway.admin.call_history import BOUNDS_MS, CallHistory, Figures, ending_of
from gateway.admin.routes import Document
from gateway.audit.audit_entries import CallEntry, EventEntry, Line, Outcome

BUCKET_S: Final = 10
"""The period of one bucket: long enough for a meaningful number of calls, short enough to show when a problem began."""
KEPT_S: Final = 3_600
"""The period that all buckets together cover."""
# The maximum numbers of stored tools and callers. The least recently used are dropped. Each takes about a kilobyte.
_MAX_TOOLS: Final = 2_000
_MAX_CALLERS: Final = 500
# The maximum number of stored names of unknown tools that callers have requested. The oldest names are dropped.
_MAX_UNKNOWN: Final = 100


class Activity:
    """Statistics of calls by time, by tool and by caller.

    Args:
        history: The history on disk, which receives the same figures.
        clock: Seconds since 1970, so that the buckets of several processes can be merged.
    """

    def __init__(self, history: CallHistory, clock: Callable[[], float] = time.time) -> None:
        self._history = history
        self._clock = clock
        self._buckets: OrderedDict[int, Figures] = OrderedDict()
        self._tools: OrderedDict[str, Figures] = OrderedDict()
        self._callers: OrderedDict[str, Figures] = OrderedDict()
        self._unknown: OrderedDict[str, _UnknownTool] = OrderedDict()

    def add(self, lines: Iterable[Line]) -> None:
        """Count the calls and the refused requests among these audit entries."""
        # Group the calls first, because one batch of a busy gateway contains hundreds of calls of the same kind.
        kinds: defaultdict[tuple[float, tuple[str | None, ...], str, Outcome], list[float]] = defaultdict(list)
        for line in lines:
            if isinstance(line, CallEntry):
                kinds[line.time_s // BUCKET_S, line.target, line.caller[0], line.outcome].append(line.took_s * 1000)
            elif line.members.get("event") == "refused":
                self._add_refused(line)
        for (bucket, target, caller, ending), took_ms in kinds.items():
            figures, tool = Figures(), str(target[0])
            figures.add(ending_of(ending), took_ms)
            # A tool of the gateway itself does not belong to a server.
            server = str(target[1]) if len(target) > 1 else ""
            self._history.add(bucket * BUCKET_S, figures, server=server, tool=tool, caller=caller)
            _figures_for(self._buckets, int(bucket) * BUCKET_S, KEPT_S // BUCKET_S).merge(figures)
            _figures_for(self._tools, tool, _MAX_TOOLS).merge(figures)
            _figures_for(self._callers, caller, _MAX_CALLERS).merge(figures)

    def _add_refused(self, line: EventEntry) -> None:
        about = line.members
        caller, name = str(about["principal"]), str(about["name"])
        is_call, is_unknown = about["method"] == "tools/call", about["reason"] == "unknown_tool"
        figures, further = Figures(), Figures()
        figures.refuse(1)
        # `more` counts this caller's refused requests without an entry. These requests may have named other tools.
        further.refuse(int(about.get("more", 0)))
        tool = name if is_call and not is_unknown else ""
        self._history.add(line.time_s, figures, server=str(about.get("server", "")), tool=tool, caller=caller)
        if further.denied:
            self._history.add(line.time_s, further, caller=caller)
        bucket = _figures_for(self._buckets, int(line.time_s // BUCKET_S) * BUCKET_S, KEPT_S // BUCKET_S)
        for each in (bucket, _figures_for(self._callers, caller, _MAX_CALLERS)):
            each.refuse(1 + further.denied)
        if tool:
            _figures_for(self._tools, tool, _MAX_TOOLS).refuse(1)
        elif is_call:
            before = self._unknown.pop(name, _UnknownTool())
            self._unknown[name] = _UnknownTool(before.calls + 1, round(line.time_s, 3))
            if len(self._unknown) > _MAX_UNKNOWN:
                self._unknown.popitem(last=False)

    def document(self) -> Document:
        """Return the statistics of this process, as `/admin/activity` shows them, but without suggested names."""
        oldest = self._clock() - KEPT_S
        return {
            "bucketSeconds": BUCKET_S,
            "boundsMs": BOUNDS_MS,
            "buckets": [{"at": at, **figures.row()} for at, figures in sorted(self._buckets.items()) if at >= oldest],
            "tools": [{"name": name, **figures.row()} for name, figures in self._tools.items()],
            "callers": [{"name": name, **figures.row()} for name, figures in self._callers.items()],
            "unknownTools": [{"name": name, **unknown._asdict()} for name, unknown in self._unknown.items()],
        }


class _UnknownTool(NamedTuple):
    """The number of calls with a name that no tool has, and the time of the last call in seconds since 1970."""

    calls: int = 0
    at: float = 0.0


def all_activity(documents: Sequence[Document]) -> Document:
    """Merge the `/admin/activity` documents of all processes."""
    return {
        **documents[0],
        **{
            member: sorted(
                _summed(key, [document[member] for document in documents]), key=lambda row: (row.get("at", 0),)
            )
            for member, key in (("buckets", "at"), ("tools", "name"), ("callers", "name"))
        },
        "unknownTools": _all_unknown(row for document in documents for row in document["unknownTools"]),
    }


def _all_unknown(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = totals.setdefault(row["name"], {**row, "calls": 0})
        total["calls"] += row["calls"]
        total["at"] = max(total["at"], row["at"])
    return sorted(totals.values(), key=lambda row: -row["calls"])


def _summed(key: str, lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    totals: dict[Any, Figures] = {}
    for rows in lists:
        for row in rows:
            totals.setdefault(row[key], Figures()).add_row(row)
    return [{key: name, **figures.row()} for name, figures in totals.items()]


def _figures_for(figures: OrderedDict[Any, Figures], key: Any, most: int) -> Figures:
    """Return the figures of a key, or new figures. Drop the least recently used figures above the number `most`."""
    entry = figures.get(key)
    if entry is None:
        entry = figures[key] = Figures()
        if len(figures) > most:
            figures.popitem(last=False)
    else:
        figures.move_to_end(key)
    return entry


MAX_WATCHERS: Final = 32
"""The maximum number of watchers, usually browser tabs of administrators; each needs a connection and a task."""
MAX_EVENTS: Final = 500
"""The maximum number of events buffered for slow watchers: a few seconds of a busy gateway, about 200 kB."""
# Events within this time are sent together, so that the page draws them once.
_GATHER_S: Final = 0.25
# The interval at which servers and other processes are polled during a watch: short enough to look immediate.
_POLL_S: Final = 0.5
# Events about this process that a watcher of this process detects by polling, and therefore skips in the ring buffer.
_POLLED: Final = frozenset({"state", "catalog"})
# Without events, a comment is sent at this interval, because proxies and browsers close idle streams.
_PING_S: Final = 15.0
_VALUES: Final = frozenset({"arguments", "result"})

Others = Callable[[Mapping[int, int]], Awaitable[Mapping[int, list[dict[str, Any]]]]]
"""Fetches new events of the other processes. The argument maps the index of a process to the number of the last event
received from this process; the result maps the index of a process to its new events."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server as watchers see it.

    Attributes:
        shown: The members that are sent to watchers.
        entered: A new object each time the server enters a state. A server that fails repeatedly can leave and enter
            the same state between two polls. The new object makes the poll report a change, because a client may have
            read another state between the polls.
    """

    shown: Mapping[str, Any]
    entered: object = None


class TooManyWatchers(Exception):
    """The limit of concurrent watchers is reached."""


class EventFeed:
    """The events of this process and, if there are any, of the other processes of this gateway."""

    def __init__(
        self,
        states: Callable[[], Mapping[str, ServerState]],
        catalog: Callable[[], object],
        others: Others | None = None,
        *,
        history: CallHistory,
    ) -> None:
        """Create a feed.

        Args:
            states: Returns the state of each server, by alias.
            catalog: Returns the current catalog. If the catalog changes, this is a different object.
            others: Fetches the events of other processes; None for a single process.
            history: The history of calls, which receives the calls among the events.
        """
        self.history = history
        self.activity = Activity(history)
        self._others = others
        self._states = states
        self._catalog = catalog
        self._ring: deque[tuple[int, Line | _Noted]] = deque(maxlen=MAX_EVENTS)
        self._last_seen: tuple[Mapping[str, ServerState], object] | None = None
        # Start at the wall clock, so that the numbers of a restarted process are above those of its predecessor.
        self._number = time.time_ns() // 1_000_000
        self._watchers = 0
        self._news = anyio.Event()

    @property
    def latest(self) -> int:
        """The number of the latest event."""
        return self._number

    def publish(self, lines: list[Line]) -> None:
        """Publish entries that are about to be written to the audit log."""
        self.activity.add(lines)
        latest = lines[-MAX_EVENTS:]
        self._number += len(lines)
        self._ring.extend(enumerate(latest, self._number - len(latest) + 1))
        self._news.set()

    def events_since(self, number: int) -> list[dict[str, Any]]:
        """Return the events after the given number, as they are sent to watchers."""
        if number >= self._number:
            return []
        return [{"number": at, **_event_row(line)} for at, line in self._ring if at > number]

    def events_for_peer(self, number: int) -> list[dict[str, Any]]:
        """Return the events after the given number, for the watchers of another process.

        The events include changes of server states and of the catalog since the last call of this method.
        """
        states, catalog = dict(self._states()), self._catalog()
        noted = _changes(*self._last_seen, states, catalog) if self._last_seen is not None else []
        self._last_seen = states, catalog
        self._ring.extend(enumerate(map(_Noted, noted), self._number + 1))
        self._number += len(noted)
        return self.events_since(number)

    async def watch(self, ending: Callable[[], bool]) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield batches of events as they happen.

        The first batch is empty. After each `_PING_S` seconds without events, another empty batch is yielded.

        Args:
            ending: Returns true when the stream has to end.

        Raises:
            TooManyWatchers: `MAX_WATCHERS` streams are open.
        """
        if self._watchers >= MAX_WATCHERS:
            raise TooManyWatchers
        self._watchers += 1
        try:
            last_number, elsewhere = self._number, dict[int, int]()
            states, catalog = dict(self._states()), self._catalog()
            if self._others is not None:
                # Only the latest numbers are needed, because earlier events are available from other routes.
                elsewhere = {index: _latest_number(rows, -1) for index, rows in (await self._others({})).items()}
            yield []
            silent_s = anyio.current_time()
            while not ending():
                with anyio.move_on_after(_POLL_S):
                    await self._news.wait()
                    await anyio.sleep(_GATHER_S)
                self._news = anyio.Event()
                # Watchers that still wait for the previous `_news` wake up at the end of their poll interval.
                events = _with_missed(self.events_since(last_number), last_number)
                last_number = self._number
                events = [event for event in events if event["event"] not in _POLLED]
                if self._others is not None:
                    for index, rows in (await self._others(elsewhere)).items():
                        # Skip the first events of a process that has not responded before: they may precede the watch.
                        if (latest := elsewhere.get(index)) is not None:
                            # Events are missing only if the ring buffer is full. A gap in the numbers can also be due
                            # to a restart of the process.
                            events += _with_missed(rows, latest) if len(rows) == MAX_EVENTS else rows
                        elsewhere[index] = _latest_number(rows, -1 if latest is None else latest)
                before, now = (states, catalog), (dict(self._states()), self._catalog())
                events += _changes(*before, *now)
                states, catalog = now
                if events or anyio.current_time() - silent_s >= _PING_S:
                    silent_s = anyio.current_time()
                    yield events
        finally:
            self._watchers -= 1


class _Noted(NamedTuple):
    """A change of server states or of the catalog, stored in the ring buffer for the watchers of other processes."""

    shown: dict[str, Any]

    def row(self) -> dict[str, Any]:
        return self.shown


def _changes(
    states: Mapping[str, ServerState], catalog: object, new_states: Mapping[str, ServerState], new_catalog: object
) -> list[dict[str, Any]]:
    """Return the events that describe how the server states and the catalog have changed."""
    changed = {alias: state.shown for alias, state in new_states.items() if states.get(alias) != state}
    gone = [alias for alias in states if alias not in new_states]
    events: list[dict[str, Any]] = [{"event": "state", "servers": changed, "gone": gone}] if changed or gone else []
    return events if new_catalog is catalog else [*events, {"event": "catalog"}]


def _with_missed(rows: list[dict[str, Any]], latest: int) -> list[dict[str, Any]]:
    """Return the events. If the ring buffer has dropped events after `latest`, put an event `missed` first.

    Args:
        latest: The number of the last event that was received; -1 if no event was received.
    """
    missed = rows[0]["number"] - latest - 1 if rows and latest >= 0 else 0
    return [{"event": "missed", "lines": missed}, *rows] if missed > 0 else rows


def _latest_number(rows: list[dict[str, Any]], otherwise: int) -> int:
    return max((int(row["number"]) for row in rows), default=otherwise)


def _event_row(line: Line | _Noted) -> dict[str, Any]:
    row = {name: value for name, value in line.row().items() if name not in _VALUES}
    if type(line) is CallEntry:
        row["ending"] = ending_of(line.outcome)
    return row
