"""Calls per minute and requests in flight, counted across all processes.

Each caller has an account with limits (`gateway.access.quotas`).

Requests in flight: a worker runs an eighth of its share of the limit without asking. Beyond that, the worker asks its
parent before it runs a request, and reports the end of each request at once. A caller is therefore refused only if its
requests in all workers have reached its limit.

Calls per minute: the store contains one number for each account, the time at which the account's quota will be full
again. From the remaining quota, a replica computes how many calls it may make without asking, and it reports such calls
twice a second. Beyond that, it asks the store before each call. A caller is therefore refused only if the calls of all
replicas together have reached its quota. Replicas do not reserve calls, so a replica without callers does not reduce
the quota of the others. Workers use the same method, with their parent as the store.

While the store does not respond, each process counts on its own.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from gateway.access.quotas import MINUTE_S, Account
from gateway.cluster.parent_store import ParentStore
from gateway.cluster.shared_store import BURST_US, HALF_USED_US, CallStore, Running, Spent, StoreStatus, StoreTrouble

log = logging.getLogger(__name__)

# All workers together run 1/8 of a limit without asking. A burst can exceed the limit by this fraction.
_UNASKED_DIVISOR: Final = 8
# Pause before asking the parent again after a refusal. A caller may send its next request before the parent has
# received the report that the caller's last request has ended.
_ASK_AGAIN_S: Final = 0.05
# Time limit for the parent's permission, equal to `_ASK_S`. After that, the worker counts the request on its own.
_ASK_RUNNING_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _RunningQuestion:
    """A request that waits for the parent's permission; `may_run` is None if the parent did not answer."""

    account: Account
    most: int
    answered: anyio.Event = field(default_factory=anyio.Event)
    may_run: bool | None = None


class SharedRunning:
    """Counts the requests in flight of all workers in their parent (implements `RunningLedger`)."""

    def __init__(self, workers: int, store: ParentStore) -> None:
        self._workers = workers
        self._store = store
        self._questions: list[_RunningQuestion] = []
        self._changed: dict[str, Account] = {}
        self._reported: dict[str, Account] = {}
        self._report_requested = anyio.Event()

    def local_allowance(self, most: int) -> int:
        """Return how many requests of a caller this worker may run without asking."""
        return most // (_UNASKED_DIVISOR * self._workers)

    def ended(self, account: Account) -> None:
        """Report the end of a request that the parent has counted."""
        self._changed[account.name] = account
        self._report_requested.set()

    async def request_run(self, account: Account, most: int) -> bool | None:
        """Return whether a request that is already included in `account.in_flight` may run; None without an answer."""
        with anyio.move_on_after(_ASK_RUNNING_S):
            if await self._ask(account, most):
                return True
            await anyio.sleep(_ASK_AGAIN_S)
            return await self._ask(account, most)
        return None

    async def run(self) -> None:
        """Send questions and reports to the parent until cancelled."""
        while True:
            await self._report_requested.wait()
            self._report_requested = anyio.Event()
            await self._report()

    async def _ask(self, account: Account, most: int) -> bool | None:
        question = _RunningQuestion(account, most)
        self._questions.append(question)
        self._report_requested.set()
        try:
            await question.answered.wait()
        finally:
            if question in self._questions:
                self._questions.remove(question)
            elif not question.answered.is_set():
                self.ended(account)  # the wait was cancelled, but the parent may have counted the request
        return question.may_run

    async def _report(self) -> None:
        questions, self._questions = self._questions, []
        changed, self._changed = self._changed, {}
        by_digest: dict[str, list[_RunningQuestion]] = {}
        rows: dict[str, Running] = {}
        accounts = {**changed, **{each.account.name: each.account for each in questions}}
        for name, account in accounts.items():
            waiting = [each for each in questions if each.account is account]
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            most = waiting[0].most if waiting else account.limits.in_flight or 0
            by_digest[digest] = waiting
            rows[digest] = Running(account.in_flight - len(waiting), len(waiting), most, self.local_allowance(most))
        self._reported |= accounts
        permitted: Mapping[str, int] | None = None
        try:
            permitted = await self._store.hold(rows)
        except StoreTrouble as trouble:
            log.debug("requests in flight not shared", extra={"reason": str(trouble)})
            # Report these accounts again, because the parent drops the counts of a lost connection.
            self._changed = {**self._reported, **self._changed}
        self._reported = {name: account for name, account in self._reported.items() if account.in_flight}
        for digest, waiting in by_digest.items():
            for place, question in enumerate(waiting):
                question.may_run = None if permitted is None else place < permitted[digest]
                question.answered.set()


# Seconds between reports. Until the next report, other replicas do not know about calls made without asking.
_REPORT_S: Final = 0.5
# Time limit for the store's permission: twice the default timeout of the store, because another report may be in
# progress. After that, the replica counts the call on its own.
_ASK_S: Final = 1.0
_US: Final = 1e6
# Length of the digests that replace the names of principals in the store, because names may be personal data.
_DIGEST_CHARS: Final = 32
# All replicas together make this fraction of an account's remaining calls without asking. A burst at all replicas at
# once can exceed the quota by this fraction, which is then missing from the next minute's quota.
_UNASKED: Final = 1 / 8


@dataclass(slots=True, eq=False)
class _Question:
    """A call that waits for the store's permission.

    Attributes:
        wait_s: 0 if the call may be made, else the seconds until it may be made; None if the store did not answer.
    """

    answered: anyio.Event = field(default_factory=anyio.Event)
    wait_s: float | None = None

    def answer(self, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self.answered.set()


@dataclass(slots=True)
class _Shared:
    """An account with a limit.

    Attributes:
        digest: The digest of the account's name, which identifies the account in the store.
        used_s: The time of the last call.
        grant: The number of calls that may be made without asking the store.
        unreported: The number of these calls that have been made, but not reported yet.
        questions: The calls that wait for the store's permission.
    """

    account: Account
    digest: str
    per_minute: int
    used_s: float
    grant: int = 0
    unreported: int = 0
    questions: list[_Question] = field(default_factory=list)


class SharedLimits:
    """Counts the calls of each account in a store (implements `Ledger`).

    Attributes:
        replicas: The number of running replicas, including this one.
        shared: Whether the store has answered the last report.
        slack_s: Calls may be counted this many seconds late without refusing a caller that stays within its limit.
    """

    slack_s: Final = BURST_US / _US - MINUTE_S

    def __init__(
        self, name: str, store: CallStore, status: StoreStatus, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._clock = clock
        self._store = store
        self._status = status
        self._accounts: dict[str, _Shared] = {}
        # For each account that has used at least half its quota: the time on the local clock when it is full again.
        self._full_at_s: dict[str, float] = {}
        self._report_requested = anyio.Event()
        self._reporting = anyio.Lock()
        self.replicas = 1
        self.shared = False

    def may_pass(self, account: Account, per_minute: int) -> bool:
        """Return whether a call may be made without asking the store."""
        entry = self._shared_account(account, per_minute)
        return entry.unreported < entry.grant or not self.shared

    def count(self, account: Account, per_minute: int) -> None:
        """Count one call that was made without asking the store."""
        entry = self._shared_account(account, per_minute)
        entry.unreported += 1
        if self.shared and 2 * entry.unreported >= entry.grant:
            # Report before the grant is used up, to get a new grant. A steady caller then never waits for permission.
            self._report_requested.set()

    async def request_call(self, account: Account, per_minute: int) -> float | None:
        """Ask the store whether one more call may be made, and count the call if so.

        Returns:
            0 if the call may be made, else the seconds until it may be made; None if the store does not respond.
        """
        entry = self._shared_account(account, per_minute)
        question = _Question()
        entry.questions.append(question)
        self._report_requested.set()
        try:
            with anyio.move_on_after(_ASK_S):
                await question.answered.wait()
        finally:
            if question in entry.questions:
                entry.questions.remove(question)
        return question.wait_s

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report()
            with anyio.move_on_after(_REPORT_S):
                await self._report_requested.wait()

    async def report(self) -> None:
        """Report the calls made by this process to the store, and answer the calls that wait for permission."""
        async with self._reporting:
            if self._report_requested.is_set():
                self._report_requested = anyio.Event()
            # The times in the response are relative to the moment of the store's answer, which is later than `sent_s`.
            # Adding them to `sent_s` never underestimates the remaining quota, so this replica refuses only calls that
            # the store would refuse as well.
            sent_s = self._clock()
            self._forget_idle(sent_s)
            reported = [entry for entry in self._accounts.values() if entry.unreported or entry.questions]
            questions = {entry.digest: entry.questions for entry in reported}
            spent = {
                entry.digest: Spent(
                    entry.unreported, len(entry.questions), math.floor(MINUTE_S / entry.per_minute * _US)
                )
                for entry in reported
            }
            for entry in reported:
                entry.grant -= entry.unreported
                entry.unreported, entry.questions = 0, []
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
            self._full_at_s = {digest: sent_s + full_us / _US for digest, full_us in counted.full_us.items()}
            for entry in self._accounts.values():
                self._grant(entry)
            for digest, waiting in questions.items():
                wait_s = self._wait_s(digest, spent[digest].interval_us / _US)
                for place, question in enumerate(waiting):
                    question.answer(0.0 if place < counted.given[digest] else wait_s)

    def _shared_account(self, account: Account, per_minute: int) -> _Shared:
        entry = self._accounts.get(account.name)
        if entry is None:
            digest = hashlib.sha256(account.name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
            entry = self._accounts[account.name] = _Shared(account, digest, per_minute, self._clock())
            self._grant(entry)
        elif entry.per_minute != per_minute or entry.account is not account:
            # The limit has changed, or the account was dropped while idle and created again.
            entry.per_minute, entry.account = per_minute, account
            self._grant(entry)
        entry.used_s = self._clock()
        return entry

    def _grant(self, entry: _Shared) -> None:
        """Set how many calls may be made without asking, and apply the calls at other replicas to the account."""
        now_s = self._clock()
        interval_s = MINUTE_S / entry.per_minute
        # The store returns every account that has used at least half its quota. Any other account has more than half of
        # its quota left.
        full_at_s = self._full_at_s.get(entry.digest)
        if full_at_s is not None:
            entry.account.set_full_at(full_at_s + entry.unreported * interval_s)
        used_s = HALF_USED_US / _US if full_at_s is None else max(0.0, full_at_s - now_s)
        remaining = max(0.0, MINUTE_S - used_s) / interval_s - entry.unreported
        entry.grant = entry.unreported + max(0, math.floor(remaining * _UNASKED / self.replicas))

    def _wait_s(self, digest: str, interval_s: float) -> float:
        """Return the seconds until an account without remaining calls may make a call."""
        return max(0.0, self._full_at_s[digest] + interval_s - BURST_US / _US - self._clock())

    def _forget_idle(self, now_s: float) -> None:
        # After a minute without calls, an account is full, unless there were calls at other replicas.
        self._accounts = {
            name: entry
            for name, entry in self._accounts.items()
            if entry.unreported or entry.questions or now_s - entry.used_s < MINUTE_S
        }
