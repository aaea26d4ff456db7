"""Approvals, call statistics and events, sent between the first worker and the others.

The first worker stores the approvals and the failure statistics of all workers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import anyio

from gateway.admin.activity import EventFeed
from gateway.calls.approval_store import ApprovalStore, Decision, Lasts, Question, TooManyWaiting
from gateway.calls.call_stats import CallStats, Failure
from gateway.cluster.roles import FIRST, PeerLost, Peers, Reply
from gateway.fleet.operator_notes import OperatorNotes
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

APPROVALS_TARGET: Final = "/shared/approvals"
# Duration of one long poll for a decision: long enough to be cheap, and short enough to notice a restart of the first
# worker.
_POLL_S: Final = 10.0
# Pause before another request to the first worker; a restart of the first worker takes about a second.
_RETRY_S: Final = 0.5
# Time limit for an answer of the first worker, in addition to the time for which a long poll waits.
_MARGIN_S: Final = 5.0


class RelayedApprovals:
    """The approval store of the first worker, as used by another worker (implements `ApprovalBackend`).

    Args:
        peers: The other workers.
        timeout_s: The maximum time for which a call waits for a decision.
        retry_s: The pause before another request to a first worker that does not answer.
    """

    def __init__(self, peers: Peers, timeout_s: float, *, retry_s: float = _RETRY_S) -> None:
        self._peers = peers
        self._retry_s = retry_s
        self.timeout_s = timeout_s

    async def register(self, question: Question) -> bool:
        try:
            answer = await self._ask("begin", question=question.to_json())
        except PeerLost:
            raise TooManyWaiting("the process that stores approvals is restarting") from None
        if "refused" in answer:
            raise TooManyWaiting(answer["refused"])
        return bool(answer["granted"])

    async def wait(self, question: Question) -> Decision:
        end_s = time.monotonic() + self.timeout_s
        while time.monotonic() < end_s:
            try:
                answer = await self._ask("wait", within_s=_POLL_S + _MARGIN_S, question=question.to_json())
                if answer["kind"] != "waiting":
                    return Decision(kind=answer["kind"], lasts=answer["lasts"], by=answer["by"])
            except PeerLost:
                # If the first worker was restarted, it no longer has the question, so register the question again.
                await anyio.sleep(self._retry_s)
                try:
                    if await self.register(question):
                        return Decision(kind="allowed")
                except TooManyWaiting:
                    continue
        return Decision(kind="expired")

    async def decide(self, question_id: str, *, allow: bool, lasts: Lasts, by: str) -> bool:
        try:
            answer = await self._ask("decide", id=question_id, allow=allow, lasts=lasts, by=by)
        except PeerLost:
            return False
        return bool(answer["known"])

    async def withdraw(self, question: Question) -> None:
        try:
            await self._ask("withdraw", question=question.to_json())
        except PeerLost:
            return  # the first worker has ended, so the question no longer exists

    async def allow_again(self, question: Question) -> None:
        try:
            await self._ask("allow_again", question=question.to_json())
        except PeerLost:
            return  # the person will be asked again

    async def _ask(self, what: str, *, within_s: float = _MARGIN_S, **about: Any) -> dict[str, Any]:
        body = json_bytes.dumps({"do": what, **about})
        reply = await self._peers.request(FIRST, "POST", APPROVALS_TARGET, body=body, within_s=within_s)
        if reply.status != 200:
            raise PeerLost(f"worker {FIRST} answered {reply.status}")
        answer: dict[str, Any] = json_bytes.loads(reply.body)
        return answer


async def answer_approval(document: dict[str, Any], approval_store: ApprovalStore, *, poll_s: float = _POLL_S) -> Reply:
    """Apply another worker's request to the approval store of this worker, and return the reply.

    Args:
        poll_s: How long to wait for a decision before replying that there is none yet.
    """
    answer: dict[str, Any] = {}
    if document["do"] == "decide":
        answer["known"] = await approval_store.decide(
            document["id"], allow=document["allow"], lasts=document["lasts"], by=document["by"]
        )
        return _reply(answer)
    question = Question(**document["question"])
    match document["do"]:
        case "begin":
            try:
                answer["granted"] = await approval_store.register(question)
            except TooManyWaiting as error:
                answer["refused"] = str(error)
        case "wait":
            decision: Decision | None = None
            with anyio.move_on_after(poll_s):
                decision = await approval_store.wait(question)
            answer = (
                {"kind": "waiting"}
                if decision is None
                else {"kind": decision.kind, "lasts": decision.lasts, "by": decision.by}
            )
        case "withdraw":
            await approval_store.withdraw(question)
        case "allow_again":
            await approval_store.allow_again(question)
    return _reply(answer)


def _reply(answer: dict[str, Any]) -> Reply:
    return Reply(status=200, headers={"content-type": "application/json"}, body=json_bytes.dumps(answer))


CALL_STATS_TARGET: Final = "/shared/call-stats"
# Maximum number of failures to send: enough for a burst while the first worker restarts. Beyond it, the oldest failures
# are dropped.
_MAX_WAITING: Final = 10_000
# Time to wait for further failures, to send them in one message.
_GATHER_S: Final = 0.05


class CallStatsRelay:
    """Tells the first worker about failed calls, and about failure notes that successful calls have made obsolete."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._failures: deque[list[str]] = deque(maxlen=_MAX_WAITING)
        self._cleared: dict[tuple[str, str], None] = {}
        self._changed = anyio.Event()
        self._sending = anyio.Lock()

    async def run(self) -> None:
        """Send recorded failures until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Send everything that has been recorded so far."""
        async with self._sending:
            self._changed = anyio.Event()
            failures, cleared = list(self._failures), list(self._cleared)
            self._failures.clear()
            self._cleared.clear()
            if not failures and not cleared:
                return
            try:
                await self._peers.request(
                    FIRST, "POST", CALL_STATS_TARGET, body=json_bytes.dumps({"failures": failures, "cleared": cleared})
                )
            except PeerLost as error:
                log.warning("%d failures not counted", len(failures), extra={"reason": str(error)})

    def failed(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        """Record a failed call, to be sent."""
        self._failures.append([wrapper, server, tool, failure.kind, failure.detail, who])
        self._changed.set()

    def cleared(self, server: str, tool: str) -> None:
        """Record that the failure notes of a tool are obsolete, to be sent."""
        self._cleared[server, tool] = None
        self._changed.set()


def apply_call_stats(document: dict[str, Any], call_stats: CallStats, notes: OperatorNotes) -> bool:
    """Apply the failures and obsolete notes that another worker has sent; return whether notes have changed."""
    for wrapper, server, tool, kind, detail, who in document["failures"]:
        call_stats.add_failure(wrapper, server, tool, Failure(kind=kind, detail=detail), who)
    changed = [notes.clear(server, tool) for server, tool in document["cleared"]]
    return any(changed)


EVENTS_TARGET: Final = "/shared/events"
# Time limit for the events of another worker. While an administrator watches the events, all workers are asked twice a
# second, and slower workers are skipped.
_ASK_S: Final = 2.0


async def events_of_others(peers: Peers, latest_numbers: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
    """Return the new events of every other worker that answers, by the worker's index.

    Args:
        latest_numbers: The number of the last known event of each worker, by index.
    """
    events: dict[int, list[dict[str, Any]]] = {}

    async def ask(index: int) -> None:
        try:
            body = json_bytes.dumps({"since": latest_numbers.get(index, -1)})
            reply = await peers.request(index, "POST", EVENTS_TARGET, body=body, within_s=_ASK_S)
        except PeerLost:
            return
        if reply.status == 200:
            events[index] = json_bytes.loads(reply.body)

    async with anyio.create_task_group() as group:
        for index in peers.other_workers:
            group.start_soon(ask, index)
    return events


def answer_events(document: dict[str, Any], feed: EventFeed) -> Reply:
    """Return the events of this worker to another worker."""
    return Reply(status=200, headers={}, body=json_bytes.dumps(feed.events_for_peer(int(document["since"]))))
