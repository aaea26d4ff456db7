"""Items that differ at each start of their server, which no approval can settle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from registry.lock.changes import Change

# What was approved, and two others: a server that was updated has changed once.
_VERSIONS: Final = 3
# Items of one server that are remembered; what changes more than these is told by the first ones.
_MAX_ITEMS: Final = 2_000


@dataclass(slots=True)
class Flapping:
    """Remembers which versions of each item were seen.

    Attributes:
        seen: By kind and name, the digests of the versions that were seen, a few at most.
    """

    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def note(self, change: Change, versions: tuple[str, str]) -> None:
        """Take a change into account.

        Args:
            change: How an item differs from what is approved, or from what was listed before.
            versions: The digests of both.
        """
        key = (change.kind, change.name)
        if change.before is None or change.after is None or (key not in self.seen and len(self.seen) >= _MAX_ITEMS):
            return
        known = self.seen.setdefault(key, set())
        if len(known) < _VERSIONS:
            known.update(versions)

    def flaps(self, change: Change) -> bool:
        """Whether an item was seen in more versions than an update makes."""
        return len(self.seen.get((change.kind, change.name), ())) >= _VERSIONS
