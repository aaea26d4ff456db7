"""Backoff between connection attempts, and a circuit breaker.

Calls that were in flight together when a connection broke count as one failure. If a new connection closed the
breaker, an upstream that accepts connections but loses every call would keep the breaker closed forever. Instead, a new
connection allows one call, the probe, to be sent at once.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Final

import anyio

from gateway.http.http_client import split_url
from gateway.http.proxies import ProxyChoice, proxy_for

# The delay after the first failure: about as long as a server takes to restart.
FIRST_S: Final = 0.5
# The longest delay. While an upstream is down for days, attempts at this interval cost almost nothing. The gateway uses
# the recovered upstream within two minutes. A manual retry does not wait.
LONGEST_S: Final = 120.0
# Larger exponents could overflow; the delay reaches `LONGEST_S` after eight doublings.
_MAX_DOUBLINGS: Final = 10


def delay_s(attempt: int, chance: float) -> float:
    """Return the exponential backoff in seconds, with jitter over the upper half of each step.

    The delay is at least half of the step, so that the gateway starts few processes for a server that keeps crashing.

    Args:
        attempt: The number of consecutive failures before the latest failure; 0 for the first failure.
        chance: A random number in [0, 1).
    """
    step_s = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, _MAX_DOUBLINGS))
    return step_s * (0.5 + 0.5 * chance)


class ReactionLimiter:
    """A token bucket that limits how often the gateway reacts to an event: a burst, then one reaction per interval.

    All times are in seconds, on a clock that the caller chooses.
    """

    def __init__(self, *, burst: float, interval_s: float) -> None:
        """Create a full bucket."""
        self._burst, self._interval_s = burst, interval_s
        self._left, self._at_s = burst, 0.0

    def pause_s(self, now_s: float) -> float:
        """Return how many seconds the next reaction has to wait."""
        self._refill(now_s)
        return max(0.0, (1 - self._left) * self._interval_s)

    def spend(self, now_s: float, cost: float = 1.0) -> None:
        """Count a reaction, which uses up `cost` tokens."""
        self._refill(now_s)
        self._left -= cost

    def _refill(self, now_s: float) -> None:
        self._left = min(self._burst, self._left + (now_s - self._at_s) / self._interval_s)
        self._at_s = now_s


# A server whose port takes longer to accept a TCP connection is not likely to complete a handshake either.
_CONNECT_S: Final = 1.0


def is_behind_proxy(url: str, choice: ProxyChoice) -> bool:
    """Return whether requests to this URL go through a proxy.

    The open port of a proxy does not show whether the server behind the proxy is up.
    """
    origin, _ = split_url(url)
    return proxy_for(origin.host, origin.port, secure=origin.secure, choice=choice) is not None


async def accepts_connections(url: str) -> bool:
    """Return whether the host and port of this URL accept TCP connections."""
    origin, _ = split_url(url)
    try:
        with anyio.fail_after(_CONNECT_S):
            stream = await anyio.connect_tcp(origin.host, origin.port)
        await stream.aclose()
    except (OSError, TimeoutError):
        return False
    return True


# A single lost connection may cause one or two failures, but not five in a row.
FAILURES_TO_OPEN: Final = 5
# Half of the longest time that a call waits for a connection. A caller who tries again after such a wait therefore
# finds that the breaker admits a probe again.
OPEN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The immutable state of a circuit breaker; the caller passes the current time.

    Attributes:
        failures: The number of consecutive transport failures.
        failed_at_s: The time of the latest failure.
        open_until_s: The time until which calls are refused; None while the breaker is closed.
    """

    failures: int = 0
    failed_at_s: float = -math.inf
    open_until_s: float | None = None

    def admits(self, now_s: float) -> bool:
        """Return whether a call may be sent now."""
        return self.open_until_s is None or now_s >= self.open_until_s

    def probing(self, now_s: float) -> Breaker:
        """Return the state after an admitted call; if the breaker is open, the call is the only probe for a while."""
        return self if self.open_until_s is None else replace(self, open_until_s=now_s + OPEN_S)

    def failed(self, now_s: float, chance: float, *, began_s: float) -> Breaker:
        """Return the state after a transport failure of a call that was sent at `began_s`."""
        if began_s < self.failed_at_s:
            return self
        failures = self.failures + 1
        if failures < FAILURES_TO_OPEN:
            return replace(self, failures=failures, failed_at_s=now_s)
        # Jitter keeps several gateways from probing one server simultaneously.
        until_s = now_s + OPEN_S * (0.5 + 0.5 * chance)
        return Breaker(failures=failures, failed_at_s=now_s, open_until_s=until_s)

    def reconnected(self, now_s: float) -> Breaker:
        """Return the state after a new connection, which may be probed at once."""
        return self if self.open_until_s is None else replace(self, open_until_s=now_s)

    def succeeded(self) -> Breaker:
        """Return the state after any response: even an error response shows that the transport works."""
        return CLOSED


CLOSED: Final = Breaker()
"""The initial state, which admits every call."""


# The interval between probes of a port that refused a connection. The interval is short at first, to notice a restarted
# server at once, and grows to half a minute for a server that has been down for minutes.
_PROBE_PORT_S: Final = 0.4
_LONGEST_PROBE_S: Final = 30.0
_PROBES_PER_OUTAGE: Final = 10


async def wait_accepting(url: str, *, down_s: float) -> None:
    """Wait until the port of a URL accepts connections; the longer the outage, the longer the interval.

    Args:
        down_s: The number of seconds since the last connection ended.
    """
    began_s = time.monotonic()
    while True:
        outage_s = down_s + time.monotonic() - began_s
        await anyio.sleep(min(max(_PROBE_PORT_S, outage_s / _PROBES_PER_OUTAGE), _LONGEST_PROBE_S))
        if await accepts_connections(url):
            return
