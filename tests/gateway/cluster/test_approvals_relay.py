"""Approvals of several workers: one book, whichever worker has the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from gateway import wire
from gateway.audit.record import Audit
from gateway.calls.approval_book import ApprovalBook, Decision, Question, TooManyWaiting
from gateway.cluster import approvals_relay
from gateway.cluster.approvals_relay import RelayedBook
from gateway.cluster.peers import PeerLost, Reply
from gateway.config.approvals import ApprovalsConfig, Approver
from gateway.config.audit import AuditConfig


def question(principal: str = "ann", call: str = "1", session: str = "s", by: Approver = "administrator") -> Question:
    return Question(
        principal=principal, session=session, wrapper="bank__wire", server="bank", definition="d", call=call,
        rule="ask", arguments="{}", by=by,
    )  # fmt: skip


class FakePeers:
    """The way to the first worker, which can be cut."""

    def __init__(self) -> None:
        self.book = ApprovalBook(ApprovalsConfig(waiting=2), Audit(AuditConfig(), None))
        self.lost = False

    async def ask(self, index: int, method: str, target: str, *, body: bytes, within_s: float) -> Reply:
        if self.lost:
            raise PeerLost("it is starting again")
        assert (index, method, target) == (0, "POST", approvals_relay.TARGET)
        return await approvals_relay.take(wire.loads(body), self.book)

    def replace(self) -> None:
        self.__init__()  # type: ignore[misc] # anew, for those who hold it


def relayed() -> tuple[FakePeers, RelayedBook]:
    peers = FakePeers()
    return peers, RelayedBook(cast("Any", peers), 10.0)


async def waits(book: ApprovalBook, count: int = 1) -> list[dict[str, Any]]:
    with anyio.fail_after(5):
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


async def test_what_waits_at_another_worker_is_decided_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks more than once.
    monkeypatch.setattr(approvals_relay, "_LOOK_S", 0.01)
    peers, book = relayed()
    asked = question()
    assert await book.begin(asked) is False

    async def decide() -> None:
        [row] = await waits(peers.book)
        await anyio.sleep(0.05)
        assert await peers.book.decide(row["id"], allow=True, lasts="tool", by="administrator")

    decision = await during(lambda: book.wait(asked), decide)
    assert decision == Decision(kind="allowed", lasts="tool", by="administrator")
    assert await book.begin(question(call="2", session="other")) is True
    assert await book.begin(question("bob")) is False


async def test_a_host_at_another_worker_decides_too_and_who_leaves_is_forgotten() -> None:
    peers, book = relayed()
    asked = question(by="host")
    assert await book.begin(asked) is False
    assert await book.decide(asked.id, allow=False, lasts="once", by="host") is True
    assert (await book.wait(asked)).kind == "denied"
    assert (await book.wait(asked)).kind == "unknown", "a decision is given out once"
    other = question(call="3")
    await book.begin(other)
    await book.withdraw(other)
    assert peers.book.rows() == []
    await book.allow_again(other)
    assert [await book.begin(question(call="3")) for _ in range(2)] == [True, False]


async def test_no_host_decides_what_is_left_to_the_administrator() -> None:
    _, book = relayed()
    asked = question()
    await book.begin(asked)
    for allow in (True, False):
        assert await book.decide(asked.id, allow=allow, lasts="tool", by="host") is False
    assert await book.decide(asked.id, allow=True, lasts="once", by="administrator") is True
    assert (await book.wait(asked)).by == "administrator"


async def test_too_many_are_refused_with_the_words_of_the_first_worker() -> None:
    peers, book = relayed()
    await book.begin(question(call="1"))
    await book.begin(question(call="2"))
    with pytest.raises(TooManyWaiting, match="2 calls of ann wait"):
        await book.begin(question(call="3"))
    peers.lost = True
    with pytest.raises(TooManyWaiting, match="starting again"):
        await book.begin(question("bob"))
    assert await book.decide("x", allow=True, lasts="once", by="host") is False


async def test_a_first_worker_that_is_replaced_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_relay, "_AGAIN_S", 0.01)
    peers, book = relayed()
    asked = question()
    await book.begin(asked)
    peers.replace()
    peers.lost = True

    async def come_back_and_decide() -> None:
        await anyio.sleep(0.05)
        peers.lost = False
        [row] = await waits(peers.book)
        assert row["id"] == asked.id
        await peers.book.decide(row["id"], allow=True, lasts="once", by="administrator")

    decision = await during(lambda: book.wait(asked), come_back_and_decide)
    assert decision.kind == "allowed"


async def test_a_grant_is_of_one_rule_and_one_definition_and_ends() -> None:
    now = [0.0]
    settings = ApprovalsConfig(expires=100)
    book = ApprovalBook(settings, Audit(AuditConfig(), None), clock=lambda: now[0])
    asked = question()
    await book.begin(asked)
    await book.decide(asked.id, allow=True, lasts="tool", by="administrator")
    from dataclasses import replace

    assert await book.begin(question(call="9")) is True
    for other in (replace(question(), rule="another"), replace(question(), definition="changed")):
        assert await book.begin(other) is False
    now[0] = 101.0
    assert await book.begin(question(call="9")) is False


async def test_one_answer_for_the_tool_is_one_for_all_its_calls_that_wait() -> None:
    book = ApprovalBook(ApprovalsConfig(), Audit(AuditConfig(), None))
    calls = [question(call=str(number)) for number in range(3)]
    for one in calls:
        await book.begin(one)
    await book.decide(calls[0].id, allow=True, lasts="tool", by="administrator")
    assert {(await book.wait(one)).kind for one in calls} == {"allowed"}
