"""A circuit breaker: after failures in a row it refuses at once, and lets single probes through."""

from __future__ import annotations

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
        open_until_s: No call passes before this time; None while closed.
    """

    failures: int = 0
    open_until_s: float | None = None

    def admits(self, now_s: float) -> bool:
        """Whether a call may pass now."""
        return self.open_until_s is None or now_s >= self.open_until_s

    def probing(self, now_s: float) -> Breaker:
        """One probe passes; the others wait for its outcome."""
        return self if self.open_until_s is None else replace(self, open_until_s=now_s + OPEN_S)

    def failed(self, now_s: float, chance: float) -> Breaker:
        """After a transport failure."""
        failures = self.failures + 1
        if failures < FAILURES_TO_OPEN:
            return replace(self, failures=failures)
        # With jitter, so that several gateways do not probe one server at the same moment.
        return Breaker(failures=failures, open_until_s=now_s + OPEN_S * (0.5 + 0.5 * chance))

    def succeeded(self) -> Breaker:
        """After any answer, an error answer too: the transport works."""
        # The same object in the usual case: every call ends here.
        return self if self.failures == 0 else Breaker()
