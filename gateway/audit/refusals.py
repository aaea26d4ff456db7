"""Which entries of one address or caller are written, and which are only counted.

A caller without any rights could otherwise fill the audit log, so that the entries of all others are deleted for size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MINUTE_S: Final = 60.0
_MAX_SOURCES: Final = 1_024


class EntryLimit:
    """Counts the entries of each source: the first ones of a minute are written, the others are counted."""

    def __init__(self, clock: Callable[[], float], *, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._of_sources: OrderedDict[str, list[float]] = OrderedDict()

    def more(self, source: str) -> int | None:
        """Return how many entries of a source one entry stands for beside its own; None if it is not to be written."""
        now_s = self._clock()
        count, began_s, untold = self._of_sources.pop(source, [0.0, now_s, 0.0])
        if not 0 <= now_s - began_s < _MINUTE_S:
            count, began_s = 0.0, now_s
        told = count < self._per_minute
        self._of_sources[source] = [count + 1, began_s, 0.0 if told else untold + 1]
        if len(self._of_sources) > _MAX_SOURCES:
            self._of_sources.popitem(last=False)
        return int(untold) if told else None
