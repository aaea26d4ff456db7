"""How long to wait before the next attempt, and before the next reaction to something that keeps happening."""

from __future__ import annotations

from typing import Final

# A restart of a server takes about as long.
FIRST_S: Final = 0.5
# An upstream that is gone for days costs nothing, and one that is back is used within the time of a short break. A
# manual retry does not wait.
LONGEST_S: Final = 120.0
# By then the longest wait is reached whatever the figures above; beyond it the power would only grow.
_MAX_DOUBLINGS: Final = 10


def delay_s(attempt: int, chance: float) -> float:
    """Exponential backoff with jitter over the upper half of each step.

    Half of the step is always waited, so that a crash loop costs few processes.

    Args:
        attempt: Failures so far in a row, from 0.
        chance: A random number in [0, 1).
    """
    step_s = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return step_s * (0.5 + 0.5 * chance)


class Damping:
    """Lets a burst of reactions pass at once, and then one for each interval: a token bucket.

    Times are those of one clock, in seconds.
    """

    def __init__(self, *, burst: float, interval_s: float) -> None:
        """Begin with a full bucket."""
        self._burst, self._interval_s = burst, interval_s
        self._left, self._at_s = burst, 0.0

    def pause_s(self, now_s: float) -> float:
        """Return how long the next reaction has to wait."""
        self._refill(now_s)
        return max(0.0, (1 - self._left) * self._interval_s)

    def spend(self, now_s: float, cost: float = 1.0) -> None:
        """Count a reaction; one of a higher cost makes the next one wait for so many intervals."""
        self._refill(now_s)
        self._left -= cost

    def _refill(self, now_s: float) -> None:
        self._left = min(self._burst, self._left + (now_s - self._at_s) / self._interval_s)
        self._at_s = now_s
