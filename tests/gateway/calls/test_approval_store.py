"""The approval store registers calls, applies decisions to them, and drops what has expired."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.audit.recording import Audit
from gateway.calls.approval_store import (
    MAX_GRANTS,
    MAX_WAITING,
    ApprovalStore,
    Decision,
    Lasts,
    Question,
    TooManyWaiting,
)
from gateway.cluster.shared_state import SharedApprovals
from gateway.config.active_config import ConfigChange
from gateway.config.load import parse
from gateway.config.operation_config import ApprovalsConfig, Approver, AuditConfig

TIMEOUT_S, EXPIRES_S, CONTINUED_S = 100, 1_000, 600


def question(call: str = "1", *, by: Approver = "administrator", **members: str) -> Question:
    texts = {"principal": "ann", "session": "s", "wrapper": "bank__wire", "server": "bank", "definition": "d"}
    return Question(**{**texts, "rule": "ask", "arguments": "{}", **members}, call=call, by=by)


class Setup:
    """A store whose clock the test sets, with an audit log in a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now_s = 0.0
        self.audit = Audit(AuditConfig(), folder)
        self.folder = folder
        config = ApprovalsConfig(**{"timeout": TIMEOUT_S, "expires": EXPIRES_S, **settings})
        self.store = ApprovalStore(
            config, self.audit, clock=lambda: self.now_s, on_change=lambda: self.shared.changed()
        )
        # Keeps the fields until the store says that they have changed.
        self.shared = SharedApprovals(self.store)

    async def ask(self, *questions: Question) -> list[bool]:
        return [await self.store.register(each) for each in questions]

    async def decide(
        self, asked: Question, allow: bool = True, lasts: Lasts = "once", by: str = "administrator"
    ) -> bool:
        return await self.store.decide(asked.id, allow=allow, lasts=lasts, by=by)

    async def outcome(self, asked: Question) -> Decision:
        with anyio.fail_after(25):
            return await self.store.wait(asked)

    async def add_kind(self, kinds: list[str], asked: Question) -> None:
        kinds.append((await self.outcome(asked)).kind)

    def states(self) -> list[tuple[str, str]]:
        return [(row["id"], row["state"]) for row in self.store.rows()]

    async def recorded(self) -> list[tuple[str, str, str, str]]:
        await self.audit.flush()
        rows = [json.loads(line) for line in (self.folder / "audit.jsonl").read_bytes().splitlines()]
        return [(row["decision"], row["approval"], row["by"], row["for"]) for row in rows]


@pytest.fixture
def up(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


# waiting calls


async def test_repeated_registration_of_a_question_changes_nothing(tmp_path: Path) -> None:
    up, asked = Setup(tmp_path, waiting=1), question()
    assert await up.ask(asked) == [False]
    up.now_s = 1
    assert await up.ask(asked) == [False]
    assert up.store.fields()[f"asked:{asked.id}"]["until"] == TIMEOUT_S
    assert await up.recorded() == [("asked", asked.id, "", "once")]


async def test_calls_of_one_caller_are_limited(tmp_path: Path) -> None:
    up = Setup(tmp_path, waiting=2)
    first, second, third = (question(call) for call in "123")
    await up.ask(first, second)
    with pytest.raises(TooManyWaiting, match="2 calls of ann already wait for approval"):
        await up.ask(third)
    assert await up.ask(question(principal="bob")) == [False]
    up.now_s = TIMEOUT_S
    assert await up.ask(third) == [False], "expired questions do not count"


async def test_calls_of_all_callers_are_limited(up: Setup) -> None:
    await up.ask(*(question(principal=str(number)) for number in range(MAX_WAITING)))
    with pytest.raises(TooManyWaiting, match="too many calls wait for approval"):
        await up.ask(question())
    assert len(up.states()) == MAX_WAITING


@pytest.mark.parametrize(("now_s", "is_decided"), [(TIMEOUT_S - 1, True), (TIMEOUT_S, False), (TIMEOUT_S + 1, False)])
@pytest.mark.parametrize("allow", [True, False])
async def test_decision_comes_too_late_once_the_time_is_over(
    up: Setup, now_s: float, is_decided: bool, allow: bool
) -> None:
    asked = question()
    await up.ask(asked)
    up.now_s = now_s
    assert await up.decide(asked, allow) is is_decided
    assert (await up.outcome(asked)).kind == (("allowed" if allow else "denied") if is_decided else "expired")


async def test_only_the_first_waiter_gets_the_decision(up: Setup) -> None:
    asked, kinds = question(), list[str]()
    await up.ask(asked)

    async with anyio.create_task_group() as group:
        group.start_soon(up.add_kind, kinds, asked)
        group.start_soon(up.add_kind, kinds, asked)
        await anyio.wait_all_tasks_blocked()
        assert await up.decide(asked)
    assert sorted(kinds) == ["allowed", "unknown"]
    assert (await up.outcome(asked)).kind == "unknown"
    assert not up.store.knows(asked.id)


async def test_question_that_expires_is_recorded_once(up: Setup) -> None:
    asked = question()
    await up.ask(asked)
    kinds = list[str]()

    up.now_s = TIMEOUT_S
    async with anyio.create_task_group() as group:
        group.start_soon(up.add_kind, kinds, asked)
        group.start_soon(up.add_kind, kinds, asked)
    assert kinds == ["expired"] * 2
    assert await up.recorded() == [("asked", asked.id, "", "once"), ("expired", asked.id, "", "once")]


async def test_waiter_learns_that_its_question_was_dropped(up: Setup) -> None:
    asked, kinds = question(), list[str]()
    await up.ask(asked)

    async with anyio.create_task_group() as group:
        group.start_soon(up.add_kind, kinds, asked)
        await anyio.wait_all_tasks_blocked()
        up.now_s = TIMEOUT_S - 1
        assert up.states() == [(asked.id, "waiting")]
        up.now_s = TIMEOUT_S
        assert up.states() == []
    assert kinds == ["expired"]
    assert [kind for kind, *_ in await up.recorded()] == ["asked", "expired"]


async def test_decided_question_that_nobody_fetches_is_dropped_without_a_record(up: Setup) -> None:
    asked = question()
    await up.ask(asked)
    await up.decide(asked)
    assert up.states() == []
    assert up.store.knows(asked.id)
    up.now_s = TIMEOUT_S
    assert up.states() == []
    assert not up.store.knows(asked.id)
    assert [kind for kind, *_ in await up.recorded()] == ["asked", "allowed"]


async def test_withdrawn_question_cannot_be_decided(up: Setup) -> None:
    asked = question()
    await up.ask(asked)
    for _ in range(2):
        await up.store.withdraw(asked)
    assert await up.decide(asked) is False
    assert await up.recorded() == [("asked", asked.id, "", "once"), ("withdrawn", asked.id, "", "once")]


# decisions


@pytest.mark.parametrize("by", ["administrator", "host"])
@pytest.mark.parametrize(
    ("allow", "lasts", "decision"),
    [
        (True, "once", Decision(kind="allowed")),
        (True, "tool", Decision(kind="allowed", lasts="tool")),
        (False, "once", Decision(kind="denied")),
        (False, "tool", Decision(kind="denied")),
    ],
)
async def test_decision_is_final_and_recorded(
    up: Setup, by: Approver, allow: bool, lasts: Lasts, decision: Decision
) -> None:
    asked = question(by=by)
    await up.ask(asked)
    assert await up.decide(asked, allow, lasts, by) is True
    if lasts == "once":
        assert await up.decide(asked, not allow) is False
    # The approval of a host counts for one call.
    decision = replace(decision, by=by, lasts="once" if by == "host" else decision.lasts)
    assert await up.outcome(asked) == decision
    assert (await up.recorded())[1:] == [(decision.kind, asked.id, by, decision.lasts)]
    is_granted = allow and decision.lasts == "tool"
    assert await up.ask(question()) == [is_granted]


@pytest.mark.parametrize("allow", [True, False])
async def test_host_cannot_decide_for_the_administrator(up: Setup, allow: bool) -> None:
    asked = question()
    await up.ask(asked)
    assert await up.decide(asked, allow, "tool", "host") is False
    assert up.states() == [(asked.id, "waiting")]


@pytest.mark.parametrize(
    ("changed", "granted"),
    [
        ({}, {"session", "tool"}),
        ({"call": "2"}, {"session", "tool"}),
        ({"session": "t"}, {"tool"}),
        ({"principal": "bob"}, set()),
        ({"wrapper": "bank__read"}, set()),
        ({"definition": "changed"}, set()),
        ({"rule": "another"}, set()),
    ],
)
@pytest.mark.parametrize("lasts", ["once", "session", "tool"])
async def test_approval_covers_later_and_waiting_calls(
    up: Setup, lasts: Lasts, changed: dict[str, Any], granted: set[str]
) -> None:
    asked, other = question(), question(**changed)
    await up.ask(asked, other)
    await up.decide(asked, True, lasts)
    is_covered = lasts in granted
    assert up.states()[:1] == ([(other.id, "waiting")] if not is_covered else [(asked.id, "allowed")])
    if is_covered:
        assert await up.outcome(other) == Decision(kind="allowed", lasts=lasts, by="administrator")
        assert (await up.recorded())[-1] == ("allowed", other.id, "administrator", lasts)
    for _ in range(2):
        assert await up.ask(question(**changed)) == [is_covered]


async def test_call_that_was_denied_stays_denied_if_its_tool_is_allowed_later(up: Setup) -> None:
    first, second = question("1"), question("2")
    await up.ask(first, second)
    await up.decide(first, False)
    await up.decide(second, True, "tool")
    assert (await up.outcome(first)).kind == "denied"


@pytest.mark.parametrize(("allow", "lasts"), [(True, "once"), (False, "tool")])
async def test_decision_about_one_call_decides_no_other(up: Setup, allow: bool, lasts: Lasts) -> None:
    first, second = question("1"), question("2")
    await up.ask(first, second)
    # The second call may be made once more, in another request.
    await up.store.allow_again(second)
    await up.decide(first, allow, lasts)
    assert up.states() == [(second.id, "waiting")]
    assert await up.ask(question("2")) == [True]


# granted approvals


@pytest.mark.parametrize(("now_s", "is_granted"), [(CONTINUED_S - 1, True), (CONTINUED_S, False)])
async def test_approved_call_may_be_repeated_once_for_some_time(up: Setup, now_s: float, is_granted: bool) -> None:
    await up.store.allow_again(question())
    assert up.states() == []
    up.now_s = now_s
    assert await up.ask(question(session="t"), question("2"), question(), question()) == [
        False, False, is_granted, False,
    ]  # fmt: skip


@pytest.mark.parametrize("lasts", ["session", "tool"])
async def test_approval_of_a_tool_expires(up: Setup, lasts: Lasts) -> None:
    up.now_s = 5
    asked = question()
    await up.ask(asked)
    await up.decide(asked, True, lasts)
    up.now_s = 5 + EXPIRES_S - 1
    assert up.states() == [(asked.id, "allowed")]
    assert await up.ask(question()) == [True]
    up.now_s = 5 + EXPIRES_S
    assert up.states() == []
    assert await up.ask(question()) == [False]
    assert not any(name.startswith("grant:") for name in up.store.fields())


async def test_approval_can_be_revoked(up: Setup) -> None:
    kept, revoked = question(wrapper="bank__read"), question()
    for each in (kept, revoked):
        await up.ask(each)
        await up.decide(each, True, "session")
        await up.outcome(each)
    assert await up.decide(revoked, True) is False
    assert await up.decide(revoked, False) is True
    assert await up.decide(revoked, False) is False
    assert up.states() == [(kept.id, "allowed")]
    assert (await up.recorded())[4:] == [("taken_back", revoked.id, "administrator", "session")]
    assert await up.ask(question(wrapper="bank__read"), question()) == [True, False]


async def test_permission_to_repeat_a_call_cannot_be_revoked(up: Setup) -> None:
    asked = question()
    await up.store.allow_again(asked)
    assert await up.decide(asked, False) is False
    assert await up.ask(question()) == [True]


async def test_approval_that_was_not_used_for_longest_is_dropped_beyond_the_limit(up: Setup) -> None:
    asked = question("of the tool")
    await up.ask(asked)
    await up.decide(asked, True, "tool")
    await up.outcome(asked)
    repeated = [question(str(number), rule="another") for number in range(MAX_GRANTS)]
    for each in repeated[:-1]:
        await up.store.allow_again(each)
    assert await up.ask(question("uses the oldest")) == [True]
    await up.store.allow_again(repeated[-1])
    assert await up.ask(question(), *repeated[:3], repeated[-1]) == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("after", "is_granted"),
    [
        ({"approvals": {"timeout": 7}}, True),
        ({"policy": {"rules": [{"name": "ask", "deny": ["*"]}]}}, False),
        ({"names": {"maxLength": 40}}, False),
    ],
)
async def test_change_of_rules_revokes_approvals(up: Setup, after: dict[str, Any], is_granted: bool) -> None:
    asked = question()
    await up.ask(asked)
    await up.decide(asked, True, "tool")
    before, now = (parse(json.dumps({"mcpServers": {}, "gateway": each})) for each in ({}, after))
    apply = await up.store.validate(ConfigChange(before=before, after=now))
    assert await up.ask(question()) == [True]
    apply()
    assert await up.ask(question()) == [is_granted]
    other = question(principal="bob")
    await up.ask(other)
    assert up.store.fields()[f"asked:{other.id}"]["until"] == now.gateway.approvals.timeout


async def test_rows_describe_waiting_calls_and_approvals(up: Setup) -> None:
    granted, asked = question(session="t"), question(by="host", principal="bob")
    await up.ask(granted)
    await up.decide(granted, True, "session")
    up.now_s = 1
    await up.ask(asked)
    common = {"wrapper": "bank__wire", "server": "bank", "rule": "ask"}
    waiting = {"id": asked.id, "principal": "bob", "arguments": "{}", "by": "host", "state": "waiting", "for": None}
    allowed = {"id": granted.id, "principal": "ann", "arguments": None, "by": "administrator", "state": "allowed"}
    assert up.store.rows() == [
        {**common, **waiting, "asked": "1970-01-01T00:00:01.000Z", "expires": "1970-01-01T00:01:41.000Z"},
        {**common, **allowed, "for": "session", "asked": None, "expires": "1970-01-01T00:16:40.000Z"},
    ]


# state that replicas share


async def test_every_change_is_announced(up: Setup) -> None:
    first, second, third, fourth = (question(call) for call in "1234")
    changes: list[Callable[[], Any]] = [
        lambda: up.ask(first),
        lambda: up.decide(first),
        lambda: up.outcome(first),
        lambda: up.ask(second, third),
        lambda: up.store.withdraw(second),
        lambda: up.decide(third, True, "tool"),
        lambda: up.decide(third, False),
        lambda: up.store.allow_again(fourth),
        lambda: up.ask(fourth),
        lambda: up.ask(fourth),
    ]
    for change in changes:
        before = up.shared.fields()
        await change()
        assert up.shared.fields() == up.store.fields() != before
    before = up.shared.fields()
    up.now_s = TIMEOUT_S
    assert up.store.rows() == []
    assert up.shared.fields() == up.store.fields() != before
    await up.store.allow_again(fourth)
    before = up.shared.fields()
    up.store.forget()
    assert up.shared.fields() == up.store.fields() == {} != before


async def synced(source: Setup, target: Setup) -> None:
    """Send the state of one replica to another, as JSON."""
    target.store.replace_state(json.loads(json.dumps(source.store.fields())))


async def test_replica_knows_the_questions_and_approvals_of_another(tmp_path: Path) -> None:
    here, there = (Setup(tmp_path / name) for name in ("here", "there"))
    granted, asked = question(wrapper="bank__read"), question()
    await here.ask(granted, asked)
    await here.decide(granted, True, "tool")
    await here.outcome(granted)
    await synced(here, there)
    assert there.store.rows() == here.store.rows()
    assert there.store.fields() == here.store.fields()
    assert await there.ask(question("2", wrapper="bank__read")) == [True]
    decisions = list[Decision]()

    async def wait() -> None:
        decisions.append(await here.outcome(asked))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await there.decide(asked, False)
        await synced(there, here)
        await synced(there, here)
    assert decisions == [Decision(kind="denied", by="administrator")]
    # The approval is revoked elsewhere.
    await there.decide(granted, False)
    await synced(there, here)
    assert await here.ask(question("2", wrapper="bank__read")) == [False]


async def test_question_that_another_replica_has_removed_ends(tmp_path: Path) -> None:
    here, there = (Setup(tmp_path / name) for name in ("here", "there"))
    asked, decisions = question(), list[Decision]()
    await here.ask(asked)

    async def wait() -> None:
        decisions.append(await here.outcome(asked))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await synced(there, here)
    assert decisions == [Decision(kind="expired")]
    assert here.states() == []
    assert [kind for kind, *_ in await here.recorded()] == ["asked"]


async def test_replica_that_registered_a_question_records_that_it_expired(tmp_path: Path) -> None:
    here, there = (Setup(tmp_path / name) for name in ("here", "there"))
    await here.ask(question())
    await there.ask(question(principal="bob"))
    await synced(here, there)
    here.now_s = there.now_s = TIMEOUT_S
    assert here.states() == there.states() == []
    assert [kind for kind, *_ in await here.recorded()] == ["asked", "expired"]
    assert [kind for kind, *_ in await there.recorded()] == ["asked"]
