"""The store that several gateways share: what is asked of it, and what is said when it does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

HALF_USED_US: Final = 30_000_000
"""Accounts that need longer than this to be full again have used half of a minute's calls: every gateway is told."""
BURST_US: Final = 60_600_000
"""Accounts hold the calls of so much time. More than a minute, because calls that are made without asking are counted
up to half a second late, which must not cost a caller at its limit anything."""
ALIVE_S: Final = 5
"""A gateway tells that it lives several times in this time; one that does not has no part in the limits."""
MOST_OWED_US: Final = 120_000_000
"""An account that was overdrawn while the store was away waits so long at most."""
Trouble = Literal["down", "slow", "full"]


class StoreTrouble(Exception):
    """The store has not done what was asked.

    Attributes:
        kind: It cannot be reached, took too long, or has no room.
    """

    def __init__(self, kind: Trouble, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Stamped:
    """One value as it is stored.

    Attributes:
        stamp: Microseconds since 1970: of two values of one field the later one counts.
        sealed: The value, encrypted for its field and stamp.
    """

    stamp: int
    sealed: str


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls on one account.

    Attributes:
        calls: How many were made since the last report.
        wanted: How many wait for permission.
        interval_us: Microseconds after which the account is given one more call.
    """

    calls: int
    wanted: int
    interval_us: int


@dataclass(frozen=True, slots=True)
class Running:
    """Requests of one account at one worker.

    Attributes:
        running: How many run.
        wanted: How many more wait for permission.
        most: How many may run at all workers.
        unasked: How many run at each worker without permission.
    """

    running: int
    wanted: int
    most: int
    unasked: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What the store knows of all accounts.

    Attributes:
        alive: How many replicas there are.
        given: By account, how many of the wanted calls may be made.
        full_us: By account, in how many microseconds it will be full again: of those that were reported, and of all
            others of which half is used.
    """

    alive: int
    given: dict[str, int]
    full_us: dict[str, int]


class CallStore(Protocol):
    """Counts calls for several processes."""

    async def count(self, name: str, spent: Mapping[str, Spent]) -> Counted:
        """Subtract calls from accounts; of those that are wanted, as many as are left.

        Args:
            name: The name of this replica, which is noted as alive.
            spent: By account.

        Raises:
            StoreTrouble: The store has not counted them.
        """


class SharedStore(CallStore, Protocol):
    """What is asked; each of these raises `StoreTrouble`."""

    async def version(self) -> str | None:
        """Differs after every change; None where nothing was ever written."""

    async def read(self) -> dict[str, Stamped]:
        """All fields."""

    async def merge(self, fields: Mapping[str, Stamped]) -> None:
        """Write those that are later than what is there, and have everybody told."""

    async def forget(self, fields: Iterable[str]) -> None:
        """Remove fields."""

    def events(self) -> AsyncIterator[None]:
        """One item when the events begin, and one for each change by anybody."""

    async def claim(self, name: str, for_s: float) -> bool:
        """Whether nobody has claimed this before; of several who try, one does."""

    async def close(self) -> None:
        """Drop every connection."""
