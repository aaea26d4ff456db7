"""Failed log-ins: told in the log, and answered more and more slowly for each address."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

# Somebody who mistypes, or a script with yesterday's token, is told so; nobody guesses a token in five attempts.
FREE_ATTEMPTS: Final = 5
# Doubled with each further failure, up to a minute: at that pace a million guesses take two years.
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
# An address that has not failed for this long begins anew.
_FORGOTTEN_S: Final = 15 * 60.0
# Addresses that failed lately; an attacker with more of them gets five attempts from each, whatever is remembered.
_MAX_ADDRESSES: Final = 1024
# By then the longest wait is reached; beyond it the power would only grow.
_MAX_DOUBLINGS: Final = 10
# The network of one customer or machine in IPv6, in which it takes addresses as it likes.
_IPV6_PREFIX: Final = 64


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class FailedLogins:
    """Counts failures by address.

    Args:
        clock: The time in seconds; it never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_address)

    def wait_s(self, peer: str) -> float:
        """How long this peer has to wait before another attempt of it is looked at; 0 for not at all."""
        failures = self._by_address.get(_address(peer))
        return 0.0 if failures is None else max(0.0, failures.until_s - self._clock())

    def failed(self, peer: str) -> None:
        """Note a failure of this peer, `host:port` as connections name it; empty for a local socket."""
        now_s, address = self._clock(), _address(peer)
        failures = self._by_address.pop(address, None)
        if failures is None or now_s - failures.last_s > _FORGOTTEN_S:
            failures = _Failures()
        failures.count, failures.last_s = failures.count + 1, now_s
        excess = failures.count - FREE_ATTEMPTS
        if excess >= 0:
            failures.until_s = now_s + min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(excess, _MAX_DOUBLINGS))
        # The one that failed longest ago is forgotten first.
        self._by_address[address] = failures
        if len(self._by_address) > _MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        log.warning("a log-in to the admin API failed: %s, %d in a row", address, failures.count)

    def succeeded(self, peer: str) -> None:
        """Note that this peer has proved itself."""
        if self._by_address:
            self._by_address.pop(_address(peer), None)


def _address(peer: str) -> str:
    host = peer.rpartition(":")[0].strip("[]")
    if not host:
        return "a local socket"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)
