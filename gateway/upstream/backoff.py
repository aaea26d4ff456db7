"""How long to wait before the next attempt."""

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
