"""The tools that a session has found by its own searches, which its list has in addition to those of its profile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from registry.views.view import View

# Far above any `maxTools`: it bounds what a session remembers of tools that came and went.
_MAX_REMEMBERED: Final = 1_000


class FoundTools:
    """Wrapper names in the order in which they were found first, each with the time when it was found last.

    What was found longest ago gives way where the budget of the profile has no room for all; what stays keeps its
    place, so that hosts which cache the beginning of a list can go on using it.
    """

    __slots__ = ("_count", "_found")

    def __init__(self) -> None:
        self._found: dict[str, int] = {}
        self._count = 0

    def add(self, names: Iterable[str], view: View) -> bool:
        """Note that these were found now, the most important last; returns whether the list changes."""
        before = self.listed(view)
        for name in names:
            self._count += 1
            self._found[name] = self._count
        # What has no room now is forgotten: it would come back as if by itself when there is.
        kept = frozenset(self._kept(view))
        self._found = {name: at for name, at in self._found.items() if name in kept}
        return self.listed(view) != before

    def listed(self, view: View) -> tuple[str, ...]:
        """The names that are listed beside those of the view, in the order of their first finding."""
        if not self._found:
            return ()
        kept = view.fitting_found(sorted(self._found, key=self._found.__getitem__))
        return tuple(name for name in self._found if name in kept)

    def _kept(self, view: View) -> Iterable[str]:
        newest = sorted(self._found, key=self._found.__getitem__)[-_MAX_REMEMBERED:]
        fitting = view.fitting_found(newest)
        # A tool that is away, or in the list by itself at present, costs no place.
        return (name for name in newest if name in fitting or (entry := view.entry(name)) is None or entry.listed)
