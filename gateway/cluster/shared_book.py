"""The book of approvals of one gateway, as all gateways of a cluster see it: asked here, answered anywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.calls.approval_book import ApprovalBook, Decision, Lasts, Question
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import SharedStore, StoreTrouble

Sync = Callable[[bool], Awaitable[None]]
# As long as what was decided can be brought back: longer than a question may wait.
_CLAIMED_S: Final = 86_400.0
# More than wait at all gateways together.
_MOST_ASKED: Final = 10_000


class SharedBook:
    """See `Book`. Only calls that a rule asks about come here, and of those only what a person has to decide waits.

    Args:
        own: The book of this gateway; what others ask and decide is brought into it.
        sync: Brings it, and takes what is asked and decided here to the others; with True at once.
        store: Where decisions are claimed.
        status: Is told how the store does.
    """

    def __init__(self, own: ApprovalBook, sync: Sync, store: SharedStore, status: StoreStatus) -> None:
        self._own = own
        self._sync = sync
        self._store = store
        self._status = status
        # Asked here: what is decided about these needs no other gateway.
        self._asked: dict[str, None] = {}

    async def begin(self, question: Question) -> bool:
        """See `Book.begin`."""
        if await self._own.begin(question):
            return True
        self._asked[question.id] = None
        while len(self._asked) > _MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        # Before its caller can come back, which it may do at any other gateway.
        await self._sync(False)
        return False

    async def wait(self, question: Question) -> Decision:
        """See `Book.wait`."""
        if not self._own.knows(question.id):
            await self._sync(True)
        decision = await self._own.wait(question)
        if decision.kind == "allowed" and not await self._claimed(question.id):
            # Another gateway has given it out, or cannot be asked whether it has.
            return Decision(kind="unknown")
        return decision

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        """See `Book.decide`."""
        if not self._own.knows(question_id):
            await self._sync(True)
        known = await self._own.decide(question_id, allow=allow, lasts=lasts, by=by)
        if known:
            await self._sync(False)
        return known

    async def withdraw(self, question: Question) -> None:
        """See `Book.withdraw`."""
        await self._own.withdraw(question)

    async def allow_again(self, question: Question) -> None:
        """See `Book.allow_again`."""
        await self._own.allow_again(question)
        await self._sync(False)

    async def _claimed(self, question_id: str) -> bool:
        asked_here = question_id in self._asked
        self._asked.pop(question_id, None)
        try:
            claimed = await self._store.claim(f"approval:{question_id}", _CLAIMED_S)
        except StoreTrouble as trouble:
            self._status.failed("approvals", trouble)
            return asked_here
        self._status.answered("approvals")
        return claimed
