"""A call that needs approval is put to the user of its host or to an administrator, and waits for the decision."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from support.tasks import owned_tasks

from gateway.access.principal import LOCAL, Principal
from gateway.access.signing import Signer
from gateway.audit.recording import Audit
from gateway.calls.approval_requests import Approvals, Verdict
from gateway.calls.approval_store import ApprovalStore, Lasts
from gateway.calls.caller import Caller
from gateway.config.operation_config import ApprovalsConfig, Approver, AuditConfig
from gateway.process.secrets import SECRETS
from gateway.protocol.gateway_errors import RpcError
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.policy.policy import Decision as PolicyDecision

WIRE = ToolWrapper(
    name=WrapperName("bank__wire"),
    server=ServerName("bank"),
    tool=ToolName("wire"),
    definition={},
    digest="d",
    schema_digest="s",
)
ASK = PolicyDecision(effect="ask", reason="a rule asks", rule="transfers ask")
KEY = Principal(name="ann")
TOKEN = Principal(name="ann@id.test", issuer="https://id.test", client="app")
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
ACCEPT: dict[str, Any] = {"action": "accept", "content": {"allow": "once"}}
SHOWN_CHARS = 4_000
DENIED = "requires a person to allow calls of bank__wire, and the {} has denied this one. Do not call it again"
EXPIRED = "no decision was made in time. {}, then call the tool again."


def caller(
    principal: Principal = LOCAL, version: str = "2026-07-28", capabilities: dict[str, Any] = FORMS, **members: Any
) -> Caller:
    return Caller(principal=principal, view=cast("Any", None), version=version, capabilities=capabilities, **members)


def handshake_caller(ask: Callable[[str, Any], Awaitable[Any]] | None = None, **members: Any) -> Caller:
    return caller(version="2025-11-25", session_id="s", ask=ask, **members)


class Desk:
    """Approvals with a store whose clock the test sets."""

    def __init__(self, default: Approver | None = None, waiting: int = 16) -> None:
        self.now_s = 0.0
        settings = ApprovalsConfig(timeout=100, waiting=waiting)
        self.store = ApprovalStore(settings, Audit(AuditConfig(), None), clock=lambda: self.now_s)
        self.default = default
        self.signer = Signer()

    @asynccontextmanager
    async def approvals(self) -> AsyncIterator[Approvals]:
        async with owned_tasks() as tasks:
            yield Approvals(self.store, self.signer, tasks, asked_by_default=lambda: self.default)

    async def request(
        self, caller: Caller, arguments: object = None, decision: PolicyDecision = ASK, **params: Any
    ) -> Verdict:
        arguments = {"to": "eve"} if arguments is None else arguments
        with anyio.fail_after(25):
            async with self.approvals() as approvals:
                return await approvals.request_approval(caller, WIRE, arguments, decision=decision, params=params)

    async def decide(self, allow: bool = True, lasts: Lasts = "once") -> None:
        [row] = [row for row in self.store.rows() if row["state"] == "waiting"]
        assert await self.store.decide(row["id"], allow=allow, lasts=lasts, by="administrator")

    async def request_and(
        self, then: Callable[[], Awaitable[object]], caller: Caller, *more: Any, **params: Any
    ) -> Verdict:
        """Request approval, do something while the call waits, and return the verdict."""
        verdicts = list[Verdict]()

        async def request() -> None:
            verdicts.append(await self.request(caller, *more, **params))

        async with anyio.create_task_group() as group:
            group.start_soon(request)
            await anyio.wait_all_tasks_blocked()
            assert verdicts == []
            await then()
        return verdicts[0]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def text_of(verdict: Verdict) -> str:
    assert verdict.answer is not None
    assert verdict.answer["isError"] is True
    [content] = verdict.answer["content"]
    return str(content["text"])


# who decides


@pytest.mark.parametrize(
    ("rule", "default", "principal", "expected"),
    [
        ("host", "administrator", KEY, "host"),
        ("administrator", "host", LOCAL, "administrator"),
        (None, "host", KEY, "host"),
        (None, "administrator", LOCAL, "administrator"),
        (None, None, LOCAL, "host"),
        (None, None, KEY, "administrator"),
        (None, None, TOKEN, "host"),
        (None, None, replace(TOKEN, client=""), "host"),
        # A client credentials token: its subject is its client.
        (None, None, replace(TOKEN, name="app@id.test"), "administrator"),
        (None, None, replace(TOKEN, name="app2@id.test"), "host"),
    ],
)
async def test_rule_then_setting_then_caller_determine_who_decides(
    rule: Approver | None, default: Approver | None, principal: Principal, expected: Approver
) -> None:
    desk = Desk(default)
    verdict = await desk.request_and(desk.decide, caller(principal, capabilities={}), None, replace(ASK, by=rule))
    assert (verdict.question.by, verdict.answer) == (expected, None)


async def test_question_describes_the_call(desk: Desk) -> None:
    rows = list[dict[str, Any]]()

    async def deny() -> None:
        rows.extend(desk.store.rows())
        await desk.decide(False)

    await desk.request_and(deny, caller(KEY))
    names = ("principal", "wrapper", "server", "rule", "arguments", "by")
    shown = '{\n "to": "eve"\n}'
    expected = ("ann", "bank__wire", "bank", "transfers ask", shown, "administrator")
    assert [tuple(row[name] for name in names) for row in rows] == [expected]


async def test_rule_without_a_name_may_ask(desk: Desk) -> None:
    verdict = await desk.request_and(desk.decide, caller(KEY), None, replace(ASK, rule=None))
    assert (verdict.question.rule, verdict.answer) == ("", None)


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (handshake_caller(peer="10.0.0.1:1"), caller(peer="10.0.0.1:1")),
        (caller(peer="10.0.0.1:1"), caller(peer="10.0.0.2:1")),
    ],
)
async def test_approval_for_a_session_counts_for_callers_of_the_same_session(
    desk: Desk, same: Caller, other: Caller
) -> None:
    desk.default = "administrator"
    approved = await desk.request_and(lambda: desk.decide(lasts="session"), same)
    assert approved.decision is not None
    again = await desk.request(same)
    assert (again.answer, again.decision) == (None, None)
    refused = await desk.request_and(lambda: desk.decide(False), other)
    assert "denied" in text_of(refused)


# verdicts


async def test_allowed_call_is_made_with_its_params(desk: Desk) -> None:
    params = {"name": "bank__wire", "inputResponses": {"theirs": 1}, "requestState": 5}
    verdict = await desk.request_and(desk.decide, caller(KEY), **params)
    assert (verdict.answer, verdict.params) == (None, params)
    assert verdict.decision is not None
    assert (verdict.decision.kind, verdict.decision.by) == ("allowed", "administrator")


async def test_continued_call_is_made_once_without_asking(desk: Desk) -> None:
    verdict = await desk.request_and(desk.decide, caller(KEY))
    async with desk.approvals() as approvals:
        await approvals.allow_continuation(verdict)
    continued = await desk.request(caller(KEY), name="x")
    assert (continued.answer, continued.params, continued.decision) == (None, {"name": "x"}, None)
    await desk.request_and(desk.decide, caller(KEY))


@pytest.mark.parametrize(
    ("by", "who", "cure"),
    [
        ("host", "the user", "Ask the user"),
        ("administrator", "the administrator", "The administrator of this gateway decides"),
    ],
)
async def test_refused_call_says_why_and_what_to_do(desk: Desk, by: Approver, who: str, cure: str) -> None:
    desk.default = by
    asked = handshake_caller(ask=_answering({"action": "decline"}))
    denied = await (desk.request(asked) if by == "host" else desk.request_and(lambda: desk.decide(False), asked))
    assert text_of(denied).startswith("Not called: the rule 'transfers ask' of this gateway requires")
    assert DENIED.format(who.removeprefix("the ")) in text_of(denied)

    async def expire() -> None:
        desk.now_s = 100
        assert desk.store.rows() == []

    expired = await desk.request_and(expire, caller(capabilities={}))
    assert EXPIRED.format(cure) in text_of(expired)
    assert [each.decision is not None for each in (denied, expired)] == [True, True]


async def test_call_beyond_the_limit_is_refused() -> None:
    desk = Desk(waiting=1)

    async def request_another() -> None:
        refused = await desk.request(caller(KEY), name="x")
        assert text_of(refused) == "Not called: 1 calls of ann already wait for approval. Wait for an answer."
        assert (refused.decision, refused.params) == (None, {"name": "x"})
        await desk.decide()

    assert (await desk.request_and(request_another, caller(KEY))).answer is None


# hosts that repeat the request with the answer


async def test_modern_host_is_given_a_form(desk: Desk) -> None:
    verdict = await desk.request(caller(), name="x")
    assert verdict.answer is not None
    state = verdict.answer.pop("requestState")
    assert verdict.question.id not in state
    choice = {
        "type": "string",
        "title": "Allow",
        "description": "What to allow.",
        "enum": ["once"],
        "enumNames": ["this call only"],
        "default": "once",
    }
    form = {
        "mode": "form",
        "message": "Allow a call of bank__wire (server bank)? The rule “transfers ask” of the gateway requires this."
        '\n\nArguments:\n{\n "to": "eve"\n}',
        "requestedSchema": {"type": "object", "properties": {"allow": choice}},
    }
    request = {"method": "elicitation/create", "params": form}
    assert verdict.answer == {"resultType": "input_required", "inputRequests": {"approval": request}}
    assert (verdict.params, verdict.decision) == ({"name": "x"}, None)
    assert [row["id"] for row in desk.store.rows()] == [verdict.question.id]


async def asked_state(desk: Desk, asked: Caller | None = None, **members: Any) -> str:
    verdict = await desk.request(asked or caller(), **members)
    assert verdict.answer is not None
    return str(verdict.answer["requestState"])


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (ACCEPT, "allowed"),
        ({"action": "accept"}, "allowed"),
        ({"action": "accept", "content": {}}, "allowed"),
        ({"action": "accept", "content": []}, "allowed"),
        ({"action": "accept", "content": {"allow": "tool"}}, "allowed"),
        ({"action": "accept", "content": {"allow": "everything"}}, "denied"),
        ({"action": "accept", "content": {"allow": None}}, "denied"),
        ({"action": "decline", "content": {"allow": "once"}}, "denied"),
        ({"action": "cancel"}, "denied"),
        ({}, "denied"),
    ],
)
async def test_modern_host_returns_the_answer_of_its_user(desk: Desk, response: dict[str, Any], kind: str) -> None:
    state = await asked_state(desk)
    answers: dict[str, Any] = {"requestState": state, "inputResponses": {"approval": response}}
    verdict = await desk.request(caller(), name="x", **answers)
    assert verdict.decision is not None
    assert (verdict.decision.kind, verdict.decision.by, verdict.decision.lasts) == (kind, "host", "once")
    assert (verdict.answer is None) is (kind == "allowed")
    assert verdict.params == {"name": "x"}
    again = await desk.request(caller(), **answers)
    assert again.answer is not None
    assert again.answer["resultType"] == "input_required", "an answer counts once"


@pytest.mark.parametrize("responses", [None, [], {}, {"approval": "accept"}, {"theirs": ACCEPT}])
async def test_request_without_an_answer_waits_for_the_administrator(desk: Desk, responses: object) -> None:
    state = await asked_state(desk)
    verdict = await desk.request_and(desk.decide, caller(), requestState=state, inputResponses=responses)
    assert verdict.decision is not None
    assert (verdict.answer, verdict.params, verdict.decision.by) == (None, {}, "administrator")


@pytest.mark.parametrize(
    ("asked", "arguments", "rule"),
    [
        (caller(replace(TOKEN, name="eve@id.test")), None, ASK.rule),
        (caller(TOKEN, peer="10.0.0.9:1"), None, ASK.rule),
        (caller(TOKEN), {"to": "bob"}, ASK.rule),
        (caller(TOKEN), None, "another"),
    ],
)
async def test_answer_counts_only_for_its_own_call(desk: Desk, asked: Caller, arguments: object, rule: str) -> None:
    answers: dict[str, Any] = {
        "requestState": await asked_state(desk, caller(TOKEN)),
        "inputResponses": {"approval": ACCEPT},
    }
    verdict = await desk.request(asked, arguments, replace(ASK, rule=rule), **answers)
    assert verdict.answer is not None
    assert verdict.answer["resultType"] == "input_required"
    assert (await desk.request(caller(TOKEN), **answers)).answer is None


async def test_answer_of_a_host_does_not_count_if_the_administrator_decides(desk: Desk) -> None:
    state = await asked_state(desk)
    desk.default = "administrator"
    answers: dict[str, Any] = {"requestState": state, "inputResponses": {"approval": ACCEPT}}

    async def deny() -> None:
        rows = [row for row in desk.store.rows() if row["by"] == "administrator"]
        assert len(rows) == 1
        await desk.store.decide(rows[0]["id"], allow=False, lasts="once", by="administrator")

    assert "denied" in text_of(await desk.request_and(deny, caller(), **answers))


@pytest.mark.parametrize(
    ("by", "asked"),
    [
        ("administrator", caller()),
        ("host", caller(capabilities={})),
        ("host", caller(capabilities={"elicitation": {"url": {}}})),
        ("host", handshake_caller()),
        # A host of a handshake version is asked during the call, and has no request state.
        ("host", handshake_caller(capabilities={"elicitation": {}})),
    ],
)
async def test_call_waits_if_its_host_cannot_ask_its_user(desk: Desk, by: Approver, asked: Caller) -> None:
    desk.default = by
    verdict = await desk.request_and(desk.decide, asked, requestState="x", inputResponses={"approval": ACCEPT})
    assert verdict.decision is not None
    assert (verdict.answer, verdict.decision.by) == (None, "administrator")


# hosts that are asked during the call


def _answering(response: object, asked: list[Any] | None = None) -> Callable[[str, Any], Awaitable[Any]]:
    async def ask(method: str, params: Any) -> Any:
        if asked is not None:
            asked.append((method, params["mode"]))
        return response

    return ask


@pytest.mark.parametrize(
    ("response", "kind"), [(ACCEPT, "allowed"), ({"action": "decline"}, "denied"), (None, "denied"), ([], "denied")]
)
async def test_handshake_host_is_asked_during_the_call(desk: Desk, response: object, kind: str) -> None:
    asked = list[Any]()
    verdict = await desk.request(handshake_caller(_answering(response, asked)))
    assert verdict.decision is not None
    assert (verdict.decision.kind, verdict.decision.by) == (kind, "host")
    assert asked == [("elicitation/create", "form")]


@pytest.mark.parametrize(
    ("by", "capabilities"), [("administrator", FORMS), ("host", {}), ("host", {"elicitation": {"url": {}}})]
)
async def test_handshake_host_is_not_asked_what_it_cannot_answer(
    desk: Desk, by: Approver, capabilities: dict[str, Any]
) -> None:
    desk.default = by
    asked = list[Any]()
    verdict = await desk.request_and(
        desk.decide, handshake_caller(_answering(ACCEPT, asked), capabilities=capabilities)
    )
    assert verdict.decision is not None
    assert (verdict.decision.by, asked) == ("administrator", [])


async def test_administrator_decides_if_the_host_fails_or_does_not_answer(desk: Desk) -> None:
    async def fail(method: str, params: Any) -> Any:
        raise RpcError(-32603, "no window")

    async def hang(method: str, params: Any) -> Any:
        await anyio.sleep_forever()

    for ask in (fail, hang):
        verdict = await desk.request_and(desk.decide, handshake_caller(ask))
        assert verdict.decision is not None
        assert (verdict.answer, verdict.decision.by) == (None, "administrator")


async def test_waiting_call_reports_progress(desk: Desk) -> None:
    reports = list[dict[str, Any]]()
    verdict = await desk.request_and(desk.decide, caller(KEY, on_progress=reports.append))
    [report] = reports
    # The upstream's own progress usually begins at one, and progress must increase.
    assert 0 < report["progress"] < 0.01
    assert report["message"] == f"waits for a person to allow it ({verdict.question.id})"


# what a person sees


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([1, {"b": None}], '[\n 1,\n {\n  "b": null\n }\n]'),
        ({"to": "e\u202eve\U000e0041"}, '{\n "to": "eve"\n}'),
        ({"to": "évé"}, '{\n "to": "\\u00e9v\\u00e9"\n}'),
        ("x" * (SHOWN_CHARS - 2), f'"{"x" * (SHOWN_CHARS - 2)}"'),
        ("x" * (SHOWN_CHARS - 1), f'"{"x" * (SHOWN_CHARS - 1)}\n… and 1 more characters, not shown'),
        ("x" * (2 * SHOWN_CHARS), f'"{"x" * (SHOWN_CHARS - 1)}\n… and 4,002 more characters, not shown'),
    ],
)
async def test_person_sees_the_arguments(desk: Desk, arguments: object, shown: str) -> None:
    verdict = await desk.request_and(desk.decide, caller(KEY), arguments)
    assert verdict.question.arguments == shown


async def test_person_does_not_see_secrets(desk: Desk) -> None:
    SECRETS.hide(["a-secret-of-the-gateway"])
    verdict = await desk.request_and(desk.decide, caller(KEY), {"key": "a-secret-of-the-gateway"})
    assert "a-secret" not in verdict.question.arguments
