"""A circuit breaker: after failures in a row it refuses at once, and lets single probes through.

In a row means one after another: calls that were all on their way when a connection broke are one failure. A new
connection is no success, or an upstream that takes connections and loses every call would never be left alone; but it
is worth a probe at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

# One or two are the calls that find a connection lost; five in a row are no accident.
FAILURES_TO_OPEN: Final = 5
# Half the time that a call waits for a connection at most: a caller who tries once more finds the upstream probed.
OPEN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """State of one breaker. Every change makes a new one; time comes in as an argument.

    Attributes:
        failures: Transport failures in a row.
        failed_at_s: When the last of them was known.
        open_until_s: No call passes before this time; None while closed.
    """

    failures: int = 0
    failed_at_s: float = -math.inf
    open_until_s: float | None = None

    def admits(self, now_s: float) -> bool:
        """Whether a call may pass now."""
        return self.open_until_s is None or now_s >= self.open_until_s

    def probing(self, now_s: float) -> Breaker:
        """One probe passes; the others wait for its outcome."""
        return self if self.open_until_s is None else replace(self, open_until_s=now_s + OPEN_S)

    def failed(self, now_s: float, chance: float, *, began_s: float) -> Breaker:
        """After a transport failure of a call that began at this time."""
        if began_s < self.failed_at_s:
            return self
        failures = self.failures + 1
        if failures < FAILURES_TO_OPEN:
            return replace(self, failures=failures, failed_at_s=now_s)
        # With jitter, so that several gateways do not probe one server at the same moment.
        until_s = now_s + OPEN_S * (0.5 + 0.5 * chance)
        return Breaker(failures=failures, failed_at_s=now_s, open_until_s=until_s)

    def reconnected(self, now_s: float) -> Breaker:
        """After a new connection: a probe may pass now."""
        return self if self.open_until_s is None else replace(self, open_until_s=now_s)

    def succeeded(self) -> Breaker:
        """After any answer, an error answer too: the transport works."""
        return CLOSED


CLOSED: Final = Breaker()
"""The usual state, in which every call passes."""
