"""The book of approvals for all workers: the first one has it, the others ask there."""

from __future__ import annotations

import time
from typing import Any, Final

import anyio

from gateway import wire
from gateway.calls.approval_book import ApprovalBook, Decision, Lasts, Question, TooManyWaiting
from gateway.cluster.assignment import FIRST
from gateway.cluster.peers import PeerLost, Peers, Reply

TARGET: Final = "/shared/approvals"
# One look for a decision: long enough to cost nothing, short enough to notice that the first worker was replaced.
_LOOK_S: Final = 10.0
# Until a first worker that does not answer is asked again: it starts in about a second.
_AGAIN_S: Final = 0.5
_MARGIN_S: Final = 5.0


class RelayedBook:
    """The book of the first worker, as another one sees it.

    Args:
        peers: The other workers.
        timeout_s: How long a call waits at most.
    """

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._peers = peers
        self.timeout_s = timeout_s

    async def begin(self, question: Question) -> bool:
        """See `Book.begin`."""
        try:
            answer = await self._ask("begin", question=question.to_json())
        except PeerLost:
            raise TooManyWaiting("the process that keeps approvals is starting again") from None
        if "refused" in answer:
            raise TooManyWaiting(answer["refused"])
        return bool(answer["granted"])

    async def wait(self, question: Question) -> Decision:
        """See `Book.wait`."""
        end_s = time.monotonic() + self.timeout_s
        while time.monotonic() < end_s:
            try:
                answer = await self._ask("wait", within_s=_LOOK_S + _MARGIN_S, question=question.to_json())
                if answer["kind"] != "waiting":
                    return Decision(kind=answer["kind"], lasts=answer["lasts"], by=answer["by"])
            except PeerLost:
                # Whichever replaces it knows nothing of this call.
                await anyio.sleep(_AGAIN_S)
                try:
                    if await self.begin(question):
                        return Decision(kind="allowed")
                except TooManyWaiting:
                    continue
        return Decision(kind="expired")

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        """See `Book.decide`."""
        try:
            answer = await self._ask("decide", id=question_id, allow=allow, lasts=lasts, by=by)
        except PeerLost:
            return False
        return bool(answer["known"])

    async def withdraw(self, question: Question) -> None:
        """See `Book.withdraw`."""
        try:
            await self._ask("withdraw", question=question.to_json())
        except PeerLost:
            return  # with that worker the question is gone, too

    async def allow_again(self, question: Question) -> None:
        """See `Book.allow_again`."""
        try:
            await self._ask("allow_again", question=question.to_json())
        except PeerLost:
            return  # the person is asked once more

    async def _ask(self, what: str, *, within_s: float = _MARGIN_S, **about: Any) -> dict[str, Any]:
        body = wire.dumps({"do": what, **about})
        reply = await self._peers.ask(FIRST, "POST", TARGET, body=body, within_s=within_s)
        if reply.status != 200:
            raise PeerLost(f"worker {FIRST} answered {reply.status}")
        answer: dict[str, Any] = wire.loads(reply.body)
        return answer


async def take(document: dict[str, Any], book: ApprovalBook) -> Reply:
    """Do in the book what another worker asks for."""
    answer: dict[str, Any] = {}
    if document["do"] == "decide":
        answer["known"] = await book.decide(
            document["id"], allow=document["allow"], lasts=document["lasts"], by=document["by"]
        )
        return _reply(answer)
    question = Question(**document["question"])
    match document["do"]:
        case "begin":
            try:
                answer["granted"] = await book.begin(question)
            except TooManyWaiting as error:
                answer["refused"] = str(error)
        case "wait":
            decision: Decision | None = None
            with anyio.move_on_after(_LOOK_S):
                decision = await book.wait(question)
            answer = {"kind": "waiting"} if decision is None else {
                "kind": decision.kind, "lasts": decision.lasts, "by": decision.by
            }  # fmt: skip
        case "withdraw":
            await book.withdraw(question)
        case "allow_again":
            await book.allow_again(question)
    return _reply(answer)


def _reply(answer: dict[str, Any]) -> Reply:
    return Reply(status=200, headers={"content-type": "application/json"}, body=wire.dumps(answer))
