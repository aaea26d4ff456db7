"""Requests in flight, counted by all workers together; the parent has what runs at each.

A worker lets an eighth of its share run without asking. Beyond that it asks the parent before a request runs, and
reports each end at once, so that a caller is refused only when its requests at all workers have reached its quota.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from gateway.access.quotas import Account
from gateway.cluster.parent_store import ParentStore
from gateway.cluster.store import Running, StoreTrouble

log = logging.getLogger(__name__)

# The part of a quota that all workers together let run without asking, and by which a burst can exceed it.
_UNASKED: Final = 8
# A worker reports the end of a request when it sends the answer: after this time the parent knows the end, too.
_ENDS_S: Final = 0.05
# As for calls per minute: a request that has waited this long is counted by its worker alone.
_ASK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Question:
    """A request that waits for the parent; `may_run` is None until there is an answer."""

    account: Account
    most: int
    answered: anyio.Event = field(default_factory=anyio.Event)
    may_run: bool | None = None


class SharedRunning:
    """See `gateway.access.quotas.RunningLedger`."""

    def __init__(self, workers: int, store: ParentStore) -> None:
        self._workers = workers
        self._store = store
        self._questions: list[_Question] = []
        self._changed: dict[str, Account] = {}
        self._reported: dict[str, Account] = {}
        self._wanted = anyio.Event()

    def unasked(self, most: int) -> int:
        """Return how many requests of one caller may run here without asking."""
        return most // (_UNASKED * self._workers)

    def ended(self, account: Account) -> None:
        """Report that a request has ended for which the parent was asked."""
        self._changed[account.name] = account
        self._wanted.set()

    async def ask(self, account: Account, most: int) -> bool | None:
        """Ask whether one more request may run; it is in `account.in_flight` already. None without an answer."""
        with anyio.move_on_after(_ASK_S):
            if await self._ask(account, most):
                return True
            await anyio.sleep(_ENDS_S)
            return await self._ask(account, most)
        return None

    async def run(self) -> None:
        """Ask and report until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._report()

    async def _ask(self, account: Account, most: int) -> bool | None:
        question = _Question(account, most)
        self._questions.append(question)
        self._wanted.set()
        try:
            await question.answered.wait()
        finally:
            if question in self._questions:
                self._questions.remove(question)
            elif not question.answered.is_set():
                self.ended(account)  # it was cancelled, and the parent may have counted it
        return question.may_run

    async def _report(self) -> None:
        questions, self._questions = self._questions, []
        changed, self._changed = self._changed, {}
        by_digest: dict[str, list[_Question]] = {}
        rows: dict[str, Running] = {}
        accounts = {**changed, **{one.account.name: one.account for one in questions}}
        for name, account in accounts.items():
            asked = [one for one in questions if one.account is account]
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            most = asked[0].most if asked else account.limits.in_flight or 0
            by_digest[digest] = asked
            rows[digest] = Running(account.in_flight - len(asked), len(asked), most, self.unasked(most))
        self._reported |= accounts
        given: Mapping[str, int] | None = None
        try:
            given = await self._store.hold(rows)
        except StoreTrouble as trouble:
            log.debug("requests in flight are counted by this worker alone: %s", trouble)
            # The parent forgets what a lost connection has reported.
            self._changed = {**self._reported, **self._changed}
        self._reported = {name: one for name, one in self._reported.items() if one.in_flight}
        for digest, asked in by_digest.items():
            for place, question in enumerate(asked):
                question.may_run = None if given is None else place < given[digest]
                question.answered.set()
