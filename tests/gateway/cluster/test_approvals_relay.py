"""Approvals of several workers are kept in one store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from gateway.audit.recording import Audit
from gateway.calls.approval_store import ApprovalStore, Decision, Question, TooManyWaiting
from gateway.cluster import relays
from gateway.cluster.relays import RelayedApprovals
from gateway.cluster.roles import PeerLost, Reply
from gateway.config.operation_config import ApprovalsConfig, Approver, AuditConfig
from gateway.protocol import json_bytes


def question(principal: str = "ann", call: str = "1", session: str = "s", by: Approver = "administrator") -> Question:
    return Question(
        principal=principal, session=session, wrapper="bank__wire", server="bank", definition="d", call=call,
        rule="ask", arguments="{}", by=by,
    )  # fmt: skip


class FakePeers:
    """The way to the first worker, which can be cut."""

    def __init__(self, poll_s: float = 10.0) -> None:
        self.poll_s = poll_s
        self.book = ApprovalStore(ApprovalsConfig(waiting=2), Audit(AuditConfig(), None))
        self.lost = False

    async def request(self, index: int, method: str, target: str, *, body: bytes, within_s: float) -> Reply:
        if self.lost:
            raise PeerLost("it is starting again")
        assert (index, method, target) == (0, "POST", relays.APPROVALS_TARGET)
        return await relays.answer_approval(json_bytes.loads(body), self.book, poll_s=self.poll_s)

    def replace(self) -> None:
        self.__init__()  # type: ignore[misc] # reset in place, because others hold a reference


def relayed(poll_s: float = 10.0) -> tuple[FakePeers, RelayedApprovals]:
    peers = FakePeers(poll_s)
    return peers, RelayedApprovals(cast("Any", peers), 10.0, retry_s=0.01)


async def waits(book: ApprovalStore, count: int = 1) -> list[dict[str, Any]]:
    with anyio.fail_after(25):
        while len(rows := book.rows()) != count:
            await anyio.lowlevel.checkpoint()
    return rows


async def during(wait: Callable[[], Any], then: Callable[[], Any]) -> Any:
    found: list[Any] = []

    async def run() -> None:
        found.append(await wait())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await then()
    return found[0]


async def test_call_waiting_on_another_worker_is_decided_on_the_first() -> None:
    # It looks more than once.
    peers, book = relayed(poll_s=0.01)
    pending = question()
    assert await book.register(pending) is False

    async def decide() -> None:
        [row] = await waits(peers.book)
        await anyio.sleep(0.05)
        assert await peers.book.decide(row["id"], allow=True, lasts="tool", by="administrator")

    decision = await during(lambda: book.wait(pending), decide)
    assert decision == Decision(kind="allowed", lasts="tool", by="administrator")
    assert await book.register(question(call="2", session="other")) is True
    assert await book.register(question("bob")) is False


async def test_host_on_another_worker_decides_and_a_cancelled_call_is_forgotten() -> None:
    peers, book = relayed()
    pending = question(by="host")
    assert await book.register(pending) is False
    assert await book.decide(pending.id, allow=False, lasts="once", by="host") is True
    assert (await book.wait(pending)).kind == "denied"
    assert (await book.wait(pending)).kind == "unknown", "a decision is given out once"
    other = question(call="3")
    await book.register(other)
    await book.withdraw(other)
    assert peers.book.rows() == []
    await book.allow_again(other)
    assert [await book.register(question(call="3")) for _ in range(2)] == [True, False]


async def test_host_cannot_decide_a_call_reserved_for_the_administrator() -> None:
    _, book = relayed()
    pending = question()
    await book.register(pending)
    for allow in (True, False):
        assert await book.decide(pending.id, allow=allow, lasts="tool", by="host") is False
    assert await book.decide(pending.id, allow=True, lasts="once", by="administrator") is True
    assert (await book.wait(pending)).by == "administrator"


async def test_too_many_waiting_calls_are_refused_with_the_first_workers_message() -> None:
    peers, book = relayed()
    await book.register(question(call="1"))
    await book.register(question(call="2"))
    with pytest.raises(TooManyWaiting, match="2 calls of ann already wait"):
        await book.register(question(call="3"))
    peers.lost = True
    with pytest.raises(TooManyWaiting, match="is restarting"):
        await book.register(question("bob"))
    assert await book.decide("x", allow=True, lasts="once", by="host") is False


async def test_replaced_first_worker_is_asked_again() -> None:
    peers, book = relayed()
    pending = question()
    await book.register(pending)
    peers.replace()
    peers.lost = True

    async def come_back_and_decide() -> None:
        await anyio.sleep(0.05)
        peers.lost = False
        [row] = await waits(peers.book)
        assert row["id"] == pending.id
        await peers.book.decide(row["id"], allow=True, lasts="once", by="administrator")

    decision = await during(lambda: book.wait(pending), come_back_and_decide)
    assert decision.kind == "allowed"


async def test_grant_is_for_one_rule_and_definition_and_expires() -> None:
    now = [0.0]
    settings = ApprovalsConfig(expires=100)
    book = ApprovalStore(settings, Audit(AuditConfig(), None), clock=lambda: now[0])
    pending = question()
    await book.register(pending)
    await book.decide(pending.id, allow=True, lasts="tool", by="administrator")
    from dataclasses import replace

    assert await book.register(question(call="9")) is True
    for other in (replace(question(), rule="another"), replace(question(), definition="changed")):
        assert await book.register(other) is False
    now[0] = 101.0
    assert await book.register(question(call="9")) is False


async def test_decision_for_a_tool_applies_to_all_its_waiting_calls() -> None:
    book = ApprovalStore(ApprovalsConfig(), Audit(AuditConfig(), None))
    calls = [question(call=str(number)) for number in range(3)]
    for one in calls:
        await book.register(one)
    await book.decide(calls[0].id, allow=True, lasts="tool", by="administrator")
    assert {(await book.wait(one)).kind for one in calls} == {"allowed"}
