"""The interface of the shared store, encryption of its values, and its status.

Calls are counted by account. An account belongs to one caller and has a quota of calls per minute. The quota refills
continuously, and an account is *full* if its whole quota is available.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

# The recommended nonce length for AES-GCM (NIST SP 800-38D, section 8.2). With random nonces, a key may encrypt 2**32
# values.
_NONCE_BYTES: Final = 12


class DecryptionFailed(Exception):
    """The encrypted value was modified, or was encrypted with another key or for another place."""


class ValueCipher:
    """Authenticated encryption of JSON values, bound to the place where they are stored."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def encrypt(self, value: Any, place: str) -> str:
        """Encrypt a JSON value.

        Args:
            place: Where the value will be stored, such as a field name. Decryption fails with any other place.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, json_bytes.dumps(value), place.encode())).decode()

    def decrypt(self, encrypted: str, place: str) -> Any:
        """Decrypt a value.

        Raises:
            DecryptionFailed: The value was modified, or was encrypted with another key or for another place.
        """
        try:
            raw = base64.b64decode(encrypted, validate=True)
            return json_bytes.loads(self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], place.encode()))
        except (InvalidTag, ValueError, binascii.Error):
            raise DecryptionFailed("the value was encrypted with another key or for another place") from None


HALF_USED_US: Final = 30_000_000
"""Half a minute. The store reports to all replicas each account that needs at least this long to be full again."""
BURST_US: Final = 60_600_000
"""The capacity of an account, as the time in which it refills. It exceeds a minute, because calls made without asking
the store are counted up to half a second late, and a caller at its limit must not be refused because of this delay."""
ALIVE_S: Final = 5
"""Seconds since the last report for which a replica counts as running; replicas report twice a second."""
MOST_OWED_US: Final = 120_000_000
"""The maximum time until an account is full again. An account may be overdrawn during an outage of the store."""
Trouble = Literal["down", "slow", "full"]


class StoreTrouble(Exception):
    """An operation of the store has failed.

    Attributes:
        kind: `down` if the store cannot be reached, `slow` if it took too long, or `full` if it has no memory left.
    """

    def __init__(self, kind: Trouble, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class StampedValue:
    """A stored value.

    Attributes:
        stamp: The time of the write, in microseconds since 1970. The latest value of a field replaces earlier values.
        encrypted: The value, encrypted for its field and stamp.
    """

    stamp: int
    encrypted: str


@dataclass(frozen=True, slots=True)
class Spent:
    """A process's report about the calls of an account since the last report.

    Attributes:
        calls: The number of calls made without asking the store.
        wanted: The number of calls that wait for the store's permission.
        interval_us: The time in which the quota of the account increases by one call, in microseconds.
    """

    calls: int
    wanted: int
    interval_us: int


@dataclass(frozen=True, slots=True)
class Running:
    """A worker's report about an account's requests in flight.

    Attributes:
        running: The number of running requests in this worker.
        wanted: The number of requests that wait for the parent's permission.
        most: The account's limit for all workers together.
        local_allowance: The number of requests that each worker runs without permission.
    """

    running: int
    wanted: int
    most: int
    local_allowance: int


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The response of the store to a report.

    Attributes:
        alive: The number of running replicas.
        given: The number of wanted calls that may be made, by account.
        full_us: Microseconds until an account is full again: for each account in the report, and for every other
            account that has used at least half of its quota.
    """

    alive: int
    given: dict[str, int]
    full_us: dict[str, int]


class CallStore(Protocol):
    """A store that counts the calls of several processes."""

    async def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        """Subtract calls from the quotas of accounts, and permit as many of the wanted calls as the quotas allow.

        Args:
            name: The name of this process, which counts as running for `ALIVE_S` from now on.
            spent: The report for each account.

        Raises:
            StoreTrouble: The calls were not counted.
        """


class SharedStore(CallStore, Protocol):
    """The store that replicas or workers share; every method except `close` raises `StoreTrouble` on failure."""

    async def version(self) -> str | None:
        """Return a token that changes with every write, or None if nothing was ever written."""

    async def read(self) -> dict[str, StampedValue]:
        """Return all fields."""

    async def merge(self, fields: Mapping[str, StampedValue]) -> None:
        """Write each field whose value is later than the stored value, and notify all replicas if one was written."""

    async def forget(self, fields: Iterable[str]) -> None:
        """Delete fields completely: `merge` can only replace the value of a field by a marker that it was removed."""

    def events(self) -> AsyncIterator[None]:
        """Yield once after subscribing, and once for each change by any replica."""

    async def claim(self, name: str, for_s: float) -> bool:
        """Claim a name for a number of seconds; return false if a process has already claimed the name.

        Of several processes that claim a name concurrently, only one succeeds.
        """

    async def close(self) -> None:
        """Close all connections."""


Use = Literal["changes", "limits", "approvals", "sign-ins"]
_MESSAGE_CHARS: Final = 200
_WORDS: Final = {
    "down": "the shared store cannot be reached",
    "slow": "the shared store is too slow",
    "full": "the shared store is full",
}


class StoreStatus:
    """The status of the shared store, derived from the last operations of this replica.

    Attributes:
        troubles: The number of failed operations by kind of failure.
    """

    def __init__(self) -> None:
        self.troubles: Counter[Trouble] = Counter()
        self._failing: dict[Use, StoreTrouble] = {}
        self._since_s = time.time()
        self._answered = False

    @property
    def state(self) -> str:
        """Return `up`, the kind of the current failure, or `starting` before the first response."""
        if self._failing:
            return next(iter(self._failing.values())).kind
        return "up" if self._answered else "starting"

    def answered(self, use: Use) -> None:
        """Record that an operation for a use of the store succeeded."""
        self._answered = True
        if self._failing.pop(use, None) is not None and not self._failing:
            log.warning("the shared store works again after %.1f s", time.time() - self._since_s)
            self._since_s = time.time()

    def failed(self, use: Use, trouble: StoreTrouble) -> None:
        """Record that an operation for a use of the store failed."""
        self.troubles[trouble.kind] += 1
        before = self._failing.get(use)
        if not self._failing:
            self._since_s = time.time()
        self._failing[use] = trouble
        if before is None or before.kind != trouble.kind:
            log.warning(
                "%s (%s): calls continue, limits apply per replica, and changes wait [%s]",
                _WORDS[trouble.kind],
                str(trouble)[:_MESSAGE_CHARS],
                use,
            )

    def row(self) -> dict[str, Any]:
        """Return the status, as `/admin/cluster` shows it."""
        return {
            "state": self.state,
            "since": round(self._since_s, 3),
            "lastError": next((str(trouble)[:_MESSAGE_CHARS] for trouble in self._failing.values()), None),
            "failing": sorted(self._failing),
        }
