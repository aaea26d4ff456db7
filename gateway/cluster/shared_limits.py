"""Calls a minute, counted by all gateways together, without any call that waits for it.

Each gateway leases a share of what is left of an account, gives out that and no more, and reports twice a second, or
sooner where much was used; what it has not used by then it gives back. Where the store does not answer, each gateway
counts alone.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import anyio

from gateway.access.quotas import Account, Quotas
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import SharedStore, Spent, StoreTrouble

_REPORT_S: Final = 0.5
# Who has called nothing for so long holds nothing that others could use.
_LEASED_S: Final = 0.75
_MINUTE_S: Final = 60.0
_US: Final = 1e6
# Of a principal: its name is nobody's business in the store.
_DIGEST_CHARS: Final = 32
# An account of which nothing is heard has used less than half of its calls: every gateway may give out its share of
# the other half.
_UNHEARD: Final = 0.5


@dataclass(slots=True)
class _Shared:
    account: Account
    digest: str
    per_minute: int
    # What may be given out before the next report, what the store has leased of it, and what was given out.
    lease: int
    leased: int
    unreported: int
    used_s: float


class SharedLimits:
    """See `Ledger`.

    Attributes:
        replicas: How many gateways there are.
        shared: Whether the others are counted, too.
    """

    def __init__(self, name: str, quotas: Quotas, store: SharedStore, status: StoreStatus) -> None:
        self._name = name
        self._quotas = quotas
        self._store = store
        self._status = status
        self._accounts: dict[str, _Shared] = {}
        # Of accounts of which much is used: when they will be full again, by our clock.
        self._full_s: dict[str, float] = {}
        self._wanted = anyio.Event()
        self.replicas = 1
        self.shared = False

    def look(self, account: Account, per_minute: int) -> bool:
        """See `Ledger.look`."""
        one = self._accounts.get(account.name)
        if one is None or one.account is not account or one.per_minute != per_minute:
            one = self._accounts[account.name] = self._begun(account, per_minute)
        if not self.shared or one.unreported < one.lease:
            return True
        # What others have given back is known in a moment.
        self._wanted.set()
        return False

    def spent(self, account: Account) -> None:
        """See `Ledger.spent`."""
        one = self._accounts[account.name]
        one.unreported += 1
        one.used_s = self._quotas.clock()
        if 2 * one.unreported >= one.lease:
            self._wanted.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            with anyio.move_on_after(_REPORT_S):
                await self._wanted.wait()
            await self.report()

    async def report(self) -> None:
        """Tell what was used here, and lease anew."""
        self._wanted = anyio.Event()
        now_s = self._quotas.clock()
        # Whoever has called nothing for a minute has a full account, unless others say otherwise.
        self._accounts = {
            name: one
            for name, one in self._accounts.items()
            if one.unreported or one.leased or now_s - one.used_s < _MINUTE_S
        }
        reported = {one.digest: one for one in self._accounts.values()}
        spent = {
            digest: Spent(
                one.unreported, one.leased, now_s - one.used_s < _LEASED_S, round(_MINUTE_S / one.per_minute * _US)
            )
            for digest, one in reported.items()
        }
        for one in reported.values():
            # What is called until the answer is here is called on the lease that there still is.
            one.lease -= one.unreported
            one.unreported = one.leased = 0
        try:
            counted = await self._store.count(self._name, spent)
        except StoreTrouble as trouble:
            self.shared = False
            self._status.failed("limits", trouble)
            return
        self.shared = True
        self._status.answered("limits")
        self.replicas = counted.alive
        now_s = self._quotas.clock()
        self._full_s = {digest: now_s + full_us / _US for digest, full_us in counted.full_us.items()}
        for digest, one in reported.items():
            one.lease = one.leased = counted.leases[digest]
            full_in_s = counted.full_us[digest] / _US - (one.lease - one.unreported) * _MINUTE_S / one.per_minute
            one.account.refills_in(max(0.0, full_in_s))

    def _begun(self, account: Account, per_minute: int) -> _Shared:
        digest = hashlib.sha256(account.name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
        left: float = per_minute * _UNHEARD
        now_s = self._quotas.clock()
        if (full_s := self._full_s.get(digest, 0.0)) > now_s:
            account.refills_in(full_s - now_s)
            left = (_MINUTE_S - (full_s - now_s)) * per_minute / _MINUTE_S
        share = max(0, math.ceil(left / self.replicas))
        return _Shared(account, digest, per_minute, lease=share, leased=0, unreported=0, used_s=now_s)
