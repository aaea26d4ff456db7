"""Calls that wait for approval by the caller's host or by an administrator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from support.callers import HandshakeSession, call_of, hello
from support.gateways import (
    TOKEN,
    RunningGateway,
    answer_of,
    brief_pause,
    envelope,
    messages_of,
    running_gateway,
    text_of,
)
from support.upstreams.running import Recording, builtin_tools, scripted_stdio_server
from support.worker_groups import ready, until, worker_index_of, workers_of

ROOT = Path(__file__).parents[2]
META = "io.modelcontextprotocol/"
FORMS = {"elicitation": {"form": {}}}
KEYS = [{"name": name, "key": "tg_" + name * 20} for name in ("ann", "bob")]
ANN, BOB = ({"authorization": f"Bearer {key['key']}"} for key in KEYS)
# Characters that a person who decides cannot see: a tag character, an override, and a terminal escape.
HIDDEN = "\U000e0041\u202e\x1b[2J"

TRANSFERS: dict[str, Any] = {"name": "transfers ask", "wrappers": ["bank__echo", "bank__elicit"], "ask": True}


@asynccontextmanager
async def asking(
    tmp_path: Path,
    *,
    rule: dict[str, Any] = TRANSFERS,
    modern: bool = False,
    workers: int = 1,
    hooks: Sequence[dict[str, Any]] = (),
    **approvals: Any,
) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    """A gateway of which a rule asks for persons."""
    server, recording = scripted_stdio_server(
        tmp_path, "bank", tools=builtin_tools("echo", "elicit", "sleep"), modern=modern
    )
    settings = {"auth": {"apiKeys": KEYS}, "approvals": approvals, "policy": {"rules": [rule]}, "hooks": [*hooks]}
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    server |= {"copies": True} if workers > 1 else {}
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings, arguments=arguments) as gateway:
        gateway.client.headers |= ANN
        # Each worker has a separate connection, and is ready once it has a list.
        await ready(gateway)
        await gateway.until_listed("bank__echo")
        del gateway.client.headers["authorization"]
        yield gateway, recording


async def waiting(gateway: RunningGateway, count: int = 1) -> list[dict[str, Any]]:
    """Return the waiting calls once there are this many."""
    with anyio.fail_after(25):
        while True:
            rows = (await gateway.admin("approvals")).json()["approvals"]
            found: list[dict[str, Any]] = [row for row in rows if row["state"] == "waiting"]
            if len(found) == count:
                return found
            await brief_pause()


async def decide(gateway: RunningGateway, row: dict[str, Any], decision: str, **more: str) -> None:
    answer = await gateway.admin(f"approvals/{row['id']}", "POST", {"decision": decision, **more})
    assert answer.status_code == 200, answer.text


async def typegate(gateway: RunningGateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "approvals", *arguments, "--url", gateway.origin]
    env = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN}
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, env=env)
    )


async def decisions(gateway: RunningGateway) -> list[tuple[str, str, str]]:
    rows = (await gateway.admin("audit?event=approval&limit=1000")).json()["audit"][::-1]
    return [(row["decision"], row["by"], row["for"]) for row in rows]


@pytest.mark.heavy
async def test_call_waits_for_the_administrator_unless_no_rule_asks(tmp_path: Path) -> None:
    async with asking(tmp_path) as (gateway, bank), anyio.create_task_group() as group:
        results: list[dict[str, Any]] = []

        async def call(**arguments: Any) -> None:
            results.append(await gateway.call("bank__echo", arguments, headers=ANN))

        await gateway.call("bank__sleep", {"seconds": 0}, headers=ANN)
        group.start_soon(partial(call, amount=1, to=f"eve{HIDDEN}"))
        [row] = await waiting(gateway)
        assert (row["principal"], row["wrapper"], row["rule"]) == ("ann", "bank__echo", "transfers ask")
        assert json.loads(row["arguments"]) == {"amount": 1, "to": "eve"}
        assert bank.calls("echo") == []
        await decide(gateway, row, "allow")
        await waiting(gateway, 0)
        await bank.until(lambda record: record.calls("echo"))
        group.start_soon(partial(call, amount=2))
        [row] = await waiting(gateway)
        listed = await typegate(gateway, "list", "--json")
        assert json.loads(listed.stdout)[0]["id"] == row["id"]
        assert (await typegate(gateway, "deny", row["id"])).returncode == 0
        await waiting(gateway, 0)
        with anyio.fail_after(20):
            while len(results) < 2:
                await brief_pause()
        assert "isError" not in results[0]
        assert "the rule 'transfers ask'" in text_of(results[1])
        assert "the administrator has denied" in text_of(results[1])
        assert len(bank.calls("echo")) == 1
        again = await typegate(gateway, "allow", row["id"])
        assert (again.returncode, "no call with the id" in again.stderr) == (1, True)
        assert [one[:2] for one in await decisions(gateway)] == [
            ("asked", ""), ("allowed", "administrator"), ("asked", ""), ("denied", "administrator"),
        ]  # fmt: skip
        calls = (await gateway.admin("audit?tool=bank__echo&event=call")).json()["audit"][::-1]
        assert [(row["rule"], row.get("reason")) for row in calls] == [
            ("transfers ask", None), ("transfers ask", "denied"),
        ]  # fmt: skip


@pytest.mark.parametrize("lasts", ["once", "session", "tool"])
@pytest.mark.heavy
async def test_approval_lasts_once_for_the_session_or_for_the_callers_tool(lasts: str, tmp_path: Path) -> None:
    async with asking(tmp_path) as (gateway, _), anyio.create_task_group() as group:
        first, second = await session(gateway, ANN), await session(gateway, ANN)
        other = await session(gateway, BOB)
        group.start_soon(first.call, "bank__echo", {"n": 1})
        [row] = await waiting(gateway)
        assert (await typegate(gateway, "allow", row["id"], "--for", lasts)).returncode == 0
        await waiting(gateway, 0)
        needs_approval = []
        for caller in (first, second, other):
            with anyio.move_on_after(0.5) as scope:
                await caller.call("bank__echo", {"n": 2}, request_id=2)
            needs_approval.append(scope.cancelled_caught)
        assert (
            needs_approval
            == {"once": [True, True, True], "session": [False, True, True], "tool": [False, False, True]}[lasts]
        )
        # A caller that disconnects no longer waits.
        await waiting(gateway, 0)
        if lasts != "once":
            [granted] = (await gateway.admin("approvals")).json()["approvals"]
            assert (granted["state"], granted["for"]) == ("allowed", lasts)
            await decide(gateway, granted, "deny")
            with anyio.move_on_after(0.3) as scope:
                await first.call("bank__echo", {"n": 3}, request_id=3)
            assert scope.cancelled_caught, "what was taken back is asked about again"
        group.cancel_scope.cancel()


async def session(gateway: RunningGateway, head: dict[str, str], capabilities: Any = None) -> HandshakeSession:
    body = hello()
    body["params"]["capabilities"] = capabilities or {}
    opened = await gateway.post(body, head)
    more = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    made = HandshakeSession(gateway=gateway, headers={**head, **more})
    await made.notify("notifications/initialized")
    return made


@pytest.mark.parametrize(
    ("reply", "called"),
    [
        ({"action": "accept", "content": {"allow": "once"}}, True),
        ({"action": "accept", "content": {}}, True),
        ({"action": "accept"}, True),
        ({"action": "accept", "content": {"allow": "tool"}}, True),
        ({"action": "accept", "content": {"allow": "everything"}}, False),
        ({"action": "decline"}, False),
        ({"action": "cancel"}, False),
        ({}, False),
    ],
)  # fmt: skip
@pytest.mark.heavy
async def test_handshake_era_host_is_asked_during_the_call(reply: dict[str, Any], called: bool, tmp_path: Path) -> None:
    async with asking(tmp_path, by="host") as (gateway, bank):
        caller = await session(gateway, ANN, {"elicitation": {}})
        body = call_of("bank__echo", {"to": f"eve{HIDDEN}"}, request_id=7)
        body["params"]["_meta"] = {"progressToken": "p"}
        head = {**caller.headers, "content-type": "application/json", "accept": "application/json, text/event-stream"}
        messages: list[dict[str, Any]] = []
        async with gateway.client.stream("POST", gateway.url, json=body, headers=head) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    messages.append(json.loads(line[6:]))
                    if messages[-1].get("method") == "elicitation/create":
                        question = messages[-1]["params"]
                        assert "transfers ask" in question["message"]
                        assert "bank__echo" in question["message"]
                        assert "eve" in question["message"]
                        assert not set(HIDDEN) & set(question["message"]) - set("[2J")
                        assert question["requestedSchema"]["properties"]["allow"]["enum"] == ["once"]
                        await caller.post({"jsonrpc": "2.0", "id": messages[-1]["id"], "result": reply})
        progress = [one for one in messages if one.get("method") == "notifications/progress"]
        assert progress[0]["params"]["progressToken"] == "p"
        result = messages[-1]["result"]
        assert result.get("isError", False) is not called
        assert len(bank.calls("echo")) == int(called)
        assert (await decisions(gateway))[-1][:2] == ("allowed" if called else "denied", "host")


async def ask_modern(
    gateway: RunningGateway, arguments: Any, head: dict[str, str] = ANN, name: str = "bank__echo", **more: Any
) -> dict[str, Any]:
    meta = envelope(**{META + "clientCapabilities": FORMS})
    params = {"name": name, "arguments": arguments, **more, "_meta": meta}
    return answer_of(await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, head))


@pytest.mark.heavy
async def test_modern_host_brings_an_answer_valid_once_for_that_call(tmp_path: Path) -> None:
    async with asking(tmp_path, by="host") as (gateway, bank):
        question = (await ask_modern(gateway, {"to": "eve"}))["result"]
        assert question["resultType"] == "input_required"
        [(key, request)] = question["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert '"to": "eve"' in request["params"]["message"]
        answer = {"inputResponses": {key: {"action": "accept", "content": {"allow": "once"}}}}
        answer["requestState"] = question["requestState"]
        for arguments, head in (({"to": "bob"}, ANN), ({"to": "eve"}, BOB)):
            other = (await ask_modern(gateway, arguments, head, **answer))["result"]
            assert other["resultType"] == "input_required", "an answer is good for its own caller and call"
        assert bank.calls("echo") == []
        done = (await ask_modern(gateway, {"to": "eve"}, **answer))["result"]
        assert done.get("isError") is not True
        assert "requestState" not in json.dumps(bank.calls("echo")[0]["params"])
        again = (await ask_modern(gateway, {"to": "eve"}, **answer))["result"]
        assert again["resultType"] == "input_required", "an answer is good once"
        declined = {"inputResponses": {key: {"action": "decline"}}, "requestState": again["requestState"]}
        refused = (await ask_modern(gateway, {"to": "eve"}, **declined))["result"]
        assert "the user has denied" in text_of(refused)
        assert len(bank.calls("echo")) == 1


def accepting(question: dict[str, Any], allow: str = "once") -> dict[str, Any]:
    """Return what a host sends with the repeated call after its user has accepted or declined."""
    answers = {key: {"action": "accept", "content": {"allow": allow}} for key in question["inputRequests"]}
    return {"inputResponses": answers, "requestState": question["requestState"]}


@pytest.mark.parametrize("lasts", ["once", "session", "tool"])
@pytest.mark.heavy
async def test_host_answer_counts_for_one_call(lasts: str, tmp_path: Path) -> None:
    async with asking(tmp_path, by="host") as (gateway, bank):
        for count in (1, 2):
            question = (await ask_modern(gateway, {"n": 1}))["result"]
            assert question["resultType"] == "input_required"
            done = (await ask_modern(gateway, {"n": 1}, **accepting(question, lasts)))["result"]
            assert done.get("isError") is not True
            assert len(bank.calls("echo")) == count
        assert (await gateway.admin("approvals")).json()["approvals"] == []
        assert [one for one in await decisions(gateway) if one[0] == "allowed"] == [("allowed", "host", "once")] * 2


@pytest.mark.parametrize(
    ("approvals", "ask"),
    [({}, True), ({"by": "administrator"}, True), ({"by": "host"}, {"by": "administrator"})],
)  # fmt: skip
@pytest.mark.heavy
async def test_caller_with_a_key_cannot_approve_its_own_call(
    approvals: dict[str, Any], ask: Any, tmp_path: Path
) -> None:
    async with asking(tmp_path, rule={**TRANSFERS, "ask": ask}, **approvals) as (gateway, bank):
        caller = await session(gateway, ANN, {"elicitation": {}})
        forged = {"inputResponses": {"approval": {"action": "accept", "content": {"allow": "once"}}}}
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ask_modern, gateway, {"n": 1}, **forged, requestState="x"))
            group.start_soon(caller.call, "bank__echo", {"n": 2})
            rows = await waiting(gateway, 2)
            assert {row["by"] for row in rows} == {"administrator"}
            assert bank.calls("echo") == []
            for row in rows:
                await decide(gateway, row, "allow" if '"n": 2' in row["arguments"] else "deny")
        assert [one["arguments"] for one in bank.calls("echo")] == [{"n": 2}]
        assert {one[1] for one in await decisions(gateway)} == {"", "administrator"}


@pytest.mark.heavy
async def test_ask_rule_for_the_administrator_precedes_one_for_the_host(tmp_path: Path) -> None:
    rules = [
        {**TRANSFERS, "name": "by host", "ask": {"by": "host"}},
        {**TRANSFERS, "name": "large", "ask": {"by": "administrator", "when": {"arguments": {"n": {"above": 9}}}}},
    ]
    server, bank = scripted_stdio_server(tmp_path, "bank", tools=builtin_tools("echo"))
    settings = {"auth": {"apiKeys": KEYS}, "policy": {"rules": rules}}
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings) as gateway:
        gateway.client.headers |= ANN
        await gateway.until_listed("bank__echo")
        question = (await ask_modern(gateway, {"n": 1}))["result"]
        assert "by host" in json.dumps(question["inputRequests"])
        done = (await ask_modern(gateway, {"n": 1}, **accepting(question)))["result"]
        assert done.get("isError") is not True
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ask_modern, gateway, {"n": 10}, **accepting(question)))
            [row] = await waiting(gateway)
            assert row["rule"] == "large"
            await decide(gateway, row, "deny")
        assert [one["arguments"] for one in bank.calls("echo")] == [{"n": 1}]


@pytest.mark.heavy
async def test_host_of_a_local_user_is_asked_by_default(tmp_path: Path) -> None:
    server, bank = scripted_stdio_server(tmp_path, "bank", tools=builtin_tools("echo"))
    settings = {"policy": {"rules": [TRANSFERS]}}
    async with running_gateway(tmp_path, {"bank": server}, gateway=settings) as gateway:
        await gateway.until_listed("bank__echo")
        question = (await ask_modern(gateway, {"n": 1}, {}))["result"]
        done = (await ask_modern(gateway, {"n": 1}, {}, **accepting(question)))["result"]
        assert done.get("isError") is not True
        assert len(bank.calls("echo")) == 1
        assert [one[:2] for one in await decisions(gateway)] == [("asked", ""), ("allowed", "host")]


@pytest.mark.heavy
async def test_approved_call_continues_if_its_upstream_asks_for_input(tmp_path: Path) -> None:
    async with asking(tmp_path, modern=True, by="host") as (gateway, bank):
        arguments = {"message": "Which account?"}
        question = (await ask_modern(gateway, arguments, name="bank__elicit"))["result"]
        [key] = question["inputRequests"]
        yes = {"inputResponses": {key: {"action": "accept"}}, "requestState": question["requestState"]}
        inner = (await ask_modern(gateway, arguments, name="bank__elicit", **yes))["result"]
        assert inner["inputRequests"] != question["inputRequests"]
        [theirs] = inner["inputRequests"]
        reply = {"inputResponses": {theirs: {"action": "accept", "content": {"name": "x"}}}}
        reply["requestState"] = inner["requestState"]
        done = (await ask_modern(gateway, arguments, name="bank__elicit", **reply))["result"]
        assert done["resultType"] == "complete"
        assert len(bank.calls("elicit")) == 2
        # The same call again, with the state that was issued for it: a person is asked again.
        repeated = (await ask_modern(gateway, arguments, name="bank__elicit", **reply))["result"]
        assert [*repeated.get("inputRequests", ())] == [key]
        assert [one[0] for one in await decisions(gateway)] == ["asked", "allowed", "asked"]


@pytest.mark.heavy
async def test_unanswered_call_times_out_and_waiting_calls_are_bounded(tmp_path: Path) -> None:
    async with asking(tmp_path, timeout=1.5, waiting=2) as (gateway, bank), anyio.create_task_group() as group:
        results: list[str] = []

        async def call(number: int) -> None:
            results.append(text_of(await gateway.call("bank__echo", {"n": number}, headers=ANN)))

        for number in range(2):
            group.start_soon(call, number)
        await waiting(gateway, 2)
        full = text_of(await gateway.call("bank__echo", {"n": 3}, headers=ANN))
        assert "2 calls of ann already wait for approval" in full
        group.start_soon(partial(gateway.call, "bank__echo", {"n": 4}, headers=BOB))
        await waiting(gateway, 3)
        with anyio.fail_after(25):
            while len(results) < 2:
                await brief_pause()
        assert all("no decision was made in time" in text for text in results)
        assert bank.calls("echo") == []
        await waiting(gateway, 0)
        kinds = [kind for kind, _, _ in await decisions(gateway)]
        assert sorted(kinds)[:5] == ["asked", "asked", "asked", "expired", "expired"]


@pytest.mark.heavy
async def test_cancelled_call_is_withdrawn_from_approval(tmp_path: Path) -> None:
    async with asking(tmp_path) as (gateway, bank), anyio.create_task_group() as group:
        caller = await session(gateway, ANN)
        answers: list[Any] = []

        async def call() -> None:
            body = call_of("bank__echo", {"n": 1}, request_id=9)
            del body["params"]["_meta"]
            answers.append((await caller.post(body)).text)

        group.start_soon(call)
        await waiting(gateway)
        await caller.notify("notifications/cancelled", requestId=9)
        await waiting(gateway, 0)
        with contextlib.suppress(TimeoutError), anyio.fail_after(20):
            while not answers:
                await brief_pause()
        assert [kind for kind, _, _ in await decisions(gateway)] == ["asked", "withdrawn"]
        assert bank.calls("echo") == []
        assert messages_of(answers[0]) or "cancel" in answers[0]


@pytest.mark.heavy
async def test_invalid_decisions_are_refused_with_an_explanation(tmp_path: Path) -> None:
    async with asking(tmp_path) as (gateway, _):
        for body in (
            {"decision": "maybe"},
            {},
            [],
            {"decision": "allow", "for": "ever"},
            {"decision": "allow", "fro": "tool"},
        ):
            assert (await gateway.admin("approvals/x", "POST", body)).status_code == 400
        assert (await gateway.admin("approvals/x", "POST", {"decision": "allow"})).status_code == 404
        assert (await gateway.admin("approvals", token=None)).status_code == 401


@pytest.mark.heavy
async def test_approvals_work_at_any_of_two_workers(tmp_path: Path) -> None:
    async with asking(tmp_path, workers=2) as (gateway, recording):
        for number in range(6):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(gateway.call, "bank__echo", {"n": number}, headers=ANN))
                await decide(gateway, (await waiting(gateway))[0], "allow")
        assert len(recording.calls("echo")) == 6
        async with anyio.create_task_group() as group:
            group.start_soon(partial(gateway.call, "bank__echo", {}, headers=ANN))
            await decide(gateway, (await waiting(gateway))[0], "allow", **{"for": "tool"})
        for _ in range(6):
            assert not (await gateway.call("bank__echo", {}, headers=ANN)).get("isError")
        verified = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-m", "gateway", "audit", "verify", "--state-dir", str(gateway.state_dir)],
                capture_output=True, text=True, timeout=30, cwd=ROOT,
            )
        )  # fmt: skip
        assert verified.returncode == 0, verified.stderr


@pytest.mark.heavy
async def test_call_still_waits_after_a_restart_of_the_first_worker(tmp_path: Path) -> None:
    async with asking(tmp_path, workers=2) as (gateway, recording), AsyncExitStack() as stack:
        with anyio.fail_after(25):
            while True:
                client = await stack.enter_async_context(httpx2.AsyncClient(headers=ANN))
                second = replace(gateway, client=client)
                if await worker_index_of(second) == 1:
                    break
        async with anyio.create_task_group() as group:
            group.start_soon(second.call, "bank__echo", {})
            row = (await waiting(gateway))[0]
            before = workers_of(gateway)
            os.kill(before[0], signal.SIGKILL)
            await until(lambda: workers_of(gateway).get(0) not in (None, before[0]))
            await ready(gateway)
            assert [each["id"] for each in await waiting(gateway)] == [row["id"]]
            await decide(gateway, row, "allow")
        assert len(recording.calls("echo")) == 1


HOOK = """
from gateway.hooks import Before, Call, Hook


class Raise(Hook):
    async def before_call(self, call: Call) -> Before:
        return call.with_args({**call.args, "amount": 5000}) if call.args.get("raise") else None
"""


@pytest.mark.heavy
async def test_argument_condition_applies_after_hooks_too(tmp_path: Path) -> None:
    (tmp_path / "raise.py").write_text(HOOK)
    rule = {**TRANSFERS, "ask": {"when": {"arguments": {"amount": {"above": 1000}}}}}
    hook = {"name": "raise", "path": f"{tmp_path}/raise.py:Raise"}
    async with asking(tmp_path, rule=rule, hooks=[hook]) as (gateway, recording):
        assert not (await gateway.call("bank__echo", {"amount": 1}, headers=ANN)).get("isError")
        refused = await gateway.call("bank__echo", {"amount": 1, "raise": True}, headers=ANN)
        assert "transfers ask" in text_of(refused)
        assert "a hook of this gateway" in text_of(refused)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(gateway.call, "bank__echo", {"amount": 2000}, headers=ANN))
            row = (await waiting(gateway))[0]
            assert row["rule"] == "transfers ask"
            await decide(gateway, row, "allow")
        assert [call["arguments"] for call in recording.calls("echo")] == [{"amount": 1}, {"amount": 2000}]


@pytest.mark.heavy
async def test_call_changed_by_hooks_after_approval_is_asked_about_again(tmp_path: Path) -> None:
    (tmp_path / "raise.py").write_text(HOOK)
    hook = {"name": "raise", "path": f"{tmp_path}/raise.py:Raise"}
    async with asking(tmp_path, hooks=[hook]) as (gateway, bank):
        for decision in ("deny", "allow"):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(gateway.call, "bank__echo", {"amount": 1, "raise": True}, headers=ANN))
                [first] = await waiting(gateway)
                assert json.loads(first["arguments"])["amount"] == 1
                await decide(gateway, first, "allow")
                with anyio.fail_after(25):
                    while (row := (await waiting(gateway))[0])["id"] == first["id"]:
                        await brief_pause()
                assert json.loads(row["arguments"])["amount"] == 5000
                assert bank.calls("echo") == []
                await decide(gateway, row, decision)
        assert [one["arguments"]["amount"] for one in bank.calls("echo")] == [5000]
    (tmp_path / "host").mkdir()
    async with asking(tmp_path / "host", hooks=[hook], by="host") as (gateway, bank):
        arguments = {"amount": 1, "raise": True}
        question = (await ask_modern(gateway, arguments))["result"]
        again = (await ask_modern(gateway, arguments, **accepting(question)))["result"]
        assert "5000" in json.dumps(again["inputRequests"])
        assert bank.calls("echo") == []
        done = (await ask_modern(gateway, arguments, **accepting(again)))["result"]
        assert done.get("isError") is not True
        assert [one["arguments"]["amount"] for one in bank.calls("echo")] == [5000]
