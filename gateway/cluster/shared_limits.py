"""Calls per minute, counted by all replicas or workers together; a worker is a replica whose store is its parent.

The store has one number for each account: the time at which its quota will be full again. A replica that has seen how
much is left may let some calls pass without asking, and reports these twice a second. Beyond that it asks the store
before it answers, so a caller is refused only when the calls of all replicas together have reached its quota. No
replica reserves calls, so a replica without callers withholds nothing from the others.

While the store does not answer, each replica counts alone.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Final

import anyio

from gateway.access.quotas import MINUTE_S, Account, Quotas
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import BURST_US, HALF_USED_US, CallStore, Spent, StoreTrouble

# Bounds for how long the other replicas do not know about calls that passed without asking.
_REPORT_S: Final = 0.5
# The default timeout of the store, and as long again where a report is under way already. A call that has waited this
# long is counted by its replica alone.
_ASK_S: Final = 1.0
_US: Final = 1e6
# The store holds a digest of a principal's name, because names may be personal data.
_DIGEST_CHARS: Final = 32
# The part of the remaining calls that all replicas together let pass without asking. A burst at every replica at once
# can exceed the quota by this part, which then counts against the next minute.
_UNASKED: Final = 1 / 8


@dataclass(slots=True, eq=False)
class _Question:
    """A call that waits for the store. `wait_s` is 0 if it may be made, and None until the store has answered."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    wait_s: float | None = None

    def answer(self, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self.answered.set()


@dataclass(slots=True)
class _Shared:
    """An account with a limit. Of `grant` calls that need no question, `unreported` have been made."""

    account: Account
    digest: str
    per_minute: int
    used_s: float
    grant: int = 0
    unreported: int = 0
    questions: list[_Question] = field(default_factory=list)


class SharedLimits:
    """Counts calls in a store (implements `Ledger`).

    Attributes:
        replicas: How many replicas are alive, this one included.
        shared: Whether the store has answered the last report.
        slack_s: How much later than it was made a call may be counted. A caller at its limit is not refused for that.
    """

    slack_s: Final = BURST_US / _US - MINUTE_S

    def __init__(self, name: str, quotas: Quotas, store: CallStore, status: StoreStatus) -> None:
        self._name = name
        self._quotas = quotas
        self._store = store
        self._status = status
        self._accounts: dict[str, _Shared] = {}
        # By digest, when each account of which half is used will be full again, by the clock of this replica.
        self._full_s: dict[str, float] = {}
        self._wanted = anyio.Event()
        self._reporting = anyio.Lock()
        self.replicas = 1
        self.shared = False

    def may_pass(self, account: Account, per_minute: int) -> bool:
        """Return whether a call may be made without asking the store."""
        one = self._of(account, per_minute)
        return one.unreported < one.grant or not self.shared

    def count(self, account: Account, per_minute: int) -> None:
        """Count one call that was made without asking the store."""
        one = self._of(account, per_minute)
        one.unreported += 1
        if self.shared and 2 * one.unreported >= one.grant:
            # Ask for more before the grant is used up, so that a steady caller never waits.
            self._wanted.set()

    async def ask(self, account: Account, per_minute: int) -> float | None:
        """Have the store count one call.

        Returns:
            0 if the call may be made; otherwise in how many seconds it may. None if the store does not answer.
        """
        one = self._of(account, per_minute)
        question = _Question()
        one.questions.append(question)
        self._wanted.set()
        try:
            with anyio.move_on_after(_ASK_S):
                await question.answered.wait()
        finally:
            if question in one.questions:
                one.questions.remove(question)
        return question.wait_s

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report()
            with anyio.move_on_after(_REPORT_S):
                await self._wanted.wait()

    async def report(self) -> None:
        """Report the calls made here, and answer those that wait."""
        async with self._reporting:
            if self._wanted.is_set():
                self._wanted = anyio.Event()
            # Before the store is asked: its answer counts from later on, so no account is thought to be emptier than
            # it is, and what this replica refuses by its own count the store would refuse, too.
            sent_s = self._quotas.clock()
            self._forget_idle(sent_s)
            reported = [one for one in self._accounts.values() if one.unreported or one.questions]
            questions = {one.digest: one.questions for one in reported}
            spent = {
                one.digest: Spent(one.unreported, len(one.questions), math.floor(MINUTE_S / one.per_minute * _US))
                for one in reported
            }
            for one in reported:
                one.grant -= one.unreported
                one.unreported, one.questions = 0, []
            try:
                counted = await self._store.count(self._name, spent)
            except StoreTrouble as trouble:
                self.shared = False
                self._status.failed("limits", trouble)
                for question in (each for waiting in questions.values() for each in waiting):
                    question.answer(None)
                return
            self.shared = True
            self._status.answered("limits")
            self.replicas = counted.alive
            self._full_s = {digest: sent_s + full_us / _US for digest, full_us in counted.full_us.items()}
            for one in self._accounts.values():
                self._grant(one)
            for digest, waiting in questions.items():
                wait_s = self._wait_s(digest, spent[digest].interval_us / _US)
                for place, question in enumerate(waiting):
                    question.answer(0.0 if place < counted.given[digest] else wait_s)

    def _of(self, account: Account, per_minute: int) -> _Shared:
        one = self._accounts.get(account.name)
        if one is None:
            digest = hashlib.sha256(account.name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
            one = self._accounts[account.name] = _Shared(account, digest, per_minute, self._quotas.clock())
            self._grant(one)
        elif one.per_minute != per_minute or one.account is not account:
            # Other limits, or an account that was dropped while it was not used.
            one.per_minute, one.account = per_minute, account
            self._grant(one)
        one.used_s = self._quotas.clock()
        return one

    def _grant(self, one: _Shared) -> None:
        """Decide how many calls pass without asking, and tell the account what other replicas have counted."""
        now_s = self._quotas.clock()
        interval_s = MINUTE_S / one.per_minute
        # The store names every account of which half is used: any other has more than the other half left.
        full_s = self._full_s.get(one.digest)
        if full_s is not None:
            one.account.set_full_at(full_s + one.unreported * interval_s)
        used_s = HALF_USED_US / _US if full_s is None else max(0.0, full_s - now_s)
        left = max(0.0, MINUTE_S - used_s) / interval_s - one.unreported
        one.grant = one.unreported + max(0, math.floor(left * _UNASKED / self.replicas))

    def _wait_s(self, digest: str, interval_s: float) -> float:
        """Return in how many seconds an account without calls will have one again."""
        return max(0.0, self._full_s[digest] + interval_s - BURST_US / _US - self._quotas.clock())

    def _forget_idle(self, now_s: float) -> None:
        # After a minute without calls an account is full, unless the store says otherwise.
        self._accounts = {
            name: one
            for name, one in self._accounts.items()
            if one.unreported or one.questions or now_s - one.used_s < MINUTE_S
        }
