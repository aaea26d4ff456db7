"""What happens, for whoever watches: the latest lines of the record and changes of servers, in this process and others.

Nothing waits for a watcher. Lines go into a ring; who reads too slowly misses some, and is told how many.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway.admin.activity import Activity, ending_of
from gateway.audit.lines import CallLine, Line

MAX_WATCHERS: Final = 32
"""Tabs of administrators; each costs a connection and a task."""
MAX_EVENTS: Final = 500
"""Kept for watchers that are late: some seconds of a busy gateway, and about 200 kB."""
# Events that come together are sent together; a page draws them in one go.
_GATHER_S: Final = 0.25
# How often servers and other processes are looked at while somebody watches: what a person takes for at once.
_LOOK_S: Final = 0.5
# A comment this often shows proxies and browsers that the stream lives.
_PING_S: Final = 15.0
_VALUES: Final = frozenset({"arguments", "result"})

Others = Callable[[Mapping[int, int]], Awaitable[Mapping[int, list[dict[str, Any]]]]]
"""Given the number of the latest event that is known of each other process, their later ones."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What is told of a server when it changes.

    Attributes:
        shown: As it is sent.
        entered: Another object each time that a state is entered. A server that keeps failing is back in its state
            before the next look, and whoever has asked for it in between has been shown the other one.
    """

    shown: Mapping[str, Any]
    entered: object = None


class TooManyWatchers(Exception):
    """As many watch as can be served."""


class EventFeed:
    """The events of this process, and of the others where there are some.

    Attributes:
        others: Fetches the events of other processes; None where there are none.
    """

    def __init__(self, states: Callable[[], Mapping[str, ServerState]], catalog: Callable[[], object]) -> None:
        """Watch these.

        Args:
            states: The state of each server, by alias.
            catalog: What is served at present: another object after each change.
        """
        self.activity = Activity()
        self.others: Others | None = None
        self._states = states
        self._catalog = catalog
        self._ring: deque[tuple[int, Line]] = deque(maxlen=MAX_EVENTS)
        # From the wall clock: numbers of a process that has taken the place of another go on above its.
        self._number = time.time_ns() // 1_000_000
        self._watchers = 0
        self._news = anyio.Event()

    @property
    def latest(self) -> int:
        """The number of the latest event."""
        return self._number

    def take(self, lines: list[Line]) -> None:
        """Take lines that are about to be written to the record."""
        self.activity.add(lines)
        latest = lines[-MAX_EVENTS:]
        self._ring.extend(enumerate(latest, self._number + 1))
        self._number += len(latest)
        self._news.set()

    def since(self, number: int) -> list[dict[str, Any]]:
        """The events after the one with this number, as they are sent."""
        if number >= self._number:
            return []
        return [{"number": at, **_shown(line)} for at, line in self._ring if at > number]

    async def watch(self, ending: Callable[[], bool]) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield events as they happen, an empty list at once and after each time without any, until closed.

        Args:
            ending: Whether nobody is to watch any more.

        Raises:
            TooManyWatchers: There is no room.
        """
        if self._watchers >= MAX_WATCHERS:
            raise TooManyWatchers
        self._watchers += 1
        try:
            known, elsewhere = self._number, dict[int, int]()
            states, catalog = dict(self._states()), self._catalog()
            if self.others is not None:
                # From now on: what has happened before is told by other routes.
                elsewhere = {index: _last(rows, -1) for index, rows in (await self.others({})).items()}
            yield []
            silent_s = anyio.current_time()
            while not ending():
                with anyio.move_on_after(_LOOK_S):
                    await self._news.wait()
                    await anyio.sleep(_GATHER_S)
                self._news = anyio.Event()
                # Those who wait for the event that was replaced look again by themselves a moment later.
                events = self.since(known)
                if events and events[0]["number"] > known + 1:
                    events.insert(0, {"event": "missed", "lines": events[0]["number"] - known - 1})
                known = self._number
                if self.others is not None:
                    for index, rows in (await self.others(elsewhere)).items():
                        elsewhere[index] = _last(rows, elsewhere.get(index, -1))
                        events += rows
                now = dict(self._states())
                changed = {alias: state.shown for alias, state in now.items() if states.get(alias) != state}
                gone = [alias for alias in states if alias not in now]
                if changed or gone:
                    events.append({"event": "state", "servers": changed, "gone": gone})
                if self._catalog() is not catalog:
                    catalog = self._catalog()
                    events.append({"event": "catalog"})
                states = now
                if events or anyio.current_time() - silent_s >= _PING_S:
                    silent_s = anyio.current_time()
                    yield events
        finally:
            self._watchers -= 1


def _last(rows: list[dict[str, Any]], otherwise: int) -> int:
    return max((int(row["number"]) for row in rows), default=otherwise)


def _shown(line: Line) -> dict[str, Any]:
    shown = {name: value for name, value in line.row().items() if name not in _VALUES}
    if type(line) is CallLine:
        shown["ending"] = ending_of(line.ending)
    return shown
