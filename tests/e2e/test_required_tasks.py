"""Tools of 2025-11-25 that run only as tasks: every host calls them like plain tools."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import HandshakeSession, call_of, handshake, hello, post_stream
from support.clients.installed import everything_server, report
from support.gateways import RunningGateway, answer_of, brief_pause, messages_of, running_gateway, text_of
from support.upstreams import tasks_2025
from support.upstreams.running import listening

_PROGRAM = str(Path(tasks_2025.__file__))


@asynccontextmanager
async def served(tmp_path: Path, *, http: bool = False, **entry: Any) -> AsyncIterator[tuple[RunningGateway, Path]]:
    record = tmp_path / "messages.jsonl"
    record.touch()
    program = [sys.executable, _PROGRAM, str(record)]
    if not http:
        server = {"command": program[0], "args": program[1:], **entry}
        async with running_gateway(tmp_path, {"up": server}) as gateway:
            await gateway.until_listed("up__plain")
            yield gateway, record
        return
    process, port = await listening([*program, "--http"])
    try:
        async with running_gateway(tmp_path, {"up": {"url": f"http://127.0.0.1:{port}/mcp", **entry}}) as gateway:
            await gateway.until_listed("up__plain")
            yield gateway, record
    finally:
        process.kill()
        await process.aclose()


def sent(record: Path, method: str) -> list[dict[str, Any]]:
    messages = [json.loads(line) for line in record.read_text().splitlines()]
    return [message for message in messages if message.get("method") == method]


async def until_sent(record: Path, method: str, number: int = 1) -> list[dict[str, Any]]:
    with anyio.fail_after(25):
        while len(found := sent(record, method)) < number:
            await brief_pause()
    return found


@pytest.mark.parametrize("http", [False, True])
@pytest.mark.heavy
async def test_call_of_any_host_runs_the_task_and_gets_its_outcome(tmp_path: Path, http: bool) -> None:
    async with served(tmp_path, http=http) as (gateway, record):
        tools = await gateway.tools()
        assert "execution" not in tools["up__nested"]
        assert tools["up__plain"]["execution"] == {"vendor": 1}
        assert tools["up__free"]["execution"] == {"taskSupport": "optional"}
        session = await handshake(gateway)
        for name in ("plain", "nested", "at_once"):
            for result in (await gateway.call(f"up__{name}"), (await session.call(f"up__{name}"))["result"]):
                assert text_of(result) == f"{name} is done"
                assert not result.get("isError")
                assert tasks_2025.RELATED not in result.get("_meta", {})
        assert text_of(await gateway.call("up__no_task")) == "at once, and no task"
        failed = await gateway.call("up__fails")
        assert failed["isError"]
        assert text_of(failed) == "fails is done"
        late = await gateway.call("up__refuses_late")
        assert late["isError"]
        assert "the tool broke: the disk is full" in text_of(late)
        refused = await gateway.call("up__refuses")
        assert refused["isError"]
        assert "these arguments are wrong" in text_of(refused)
        withdrawn = await gateway.call("up__withdrawn")
        assert withdrawn["isError"]
        assert "cancelled the task of this call: the disk is full" in text_of(withdrawn)
        for name in ("forgotten", "vanishes"):
            forgotten = await gateway.call(f"up__{name}")
            assert forgotten["isError"]
            assert "no longer knows the task of this call" in text_of(forgotten)
            assert "not repeated" in text_of(forgotten)
        broken = await gateway.call("up__fails_in_state")
        assert (broken["isError"], text_of(broken)) == (True, "it broke")
        large = await gateway.call("up__large")
        assert len(text_of(large)) == 3_000_000
        assert large["_meta"]["kept"] == 1
        # A host that asks for a task is offered none: its call is a call.
        params = {"name": "up__free", "arguments": {}, "task": {"ttl": 1}}
        free = await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        assert text_of(answer_of(free)["result"]) == "no task"
        assert all(call["params"]["task"] == {} for call in sent(record, "tools/call") if "task" in call["params"])
        assert len([one for one in sent(record, "tools/call") if one["params"]["name"] == "forgotten"]) == 1
        assert sent(record, "tasks/cancel") == []


@pytest.mark.parametrize("http", [False, True])
async def test_progress_of_a_task_reaches_its_caller(tmp_path: Path, http: bool) -> None:
    async with served(tmp_path, http=http) as (gateway, _):
        answer = await gateway.post(call_of("up__reports", progressToken="mine"))
        progress = [one["params"] for one in messages_of(answer.text) if one.get("method") == "notifications/progress"]
        assert [one["progress"] for one in progress if one.get("total") == 3] == [1, 2, 3]
        assert {one["progressToken"] for one in progress} == {"mine"}
        numbers = [one["progress"] for one in progress]
        assert numbers == sorted(set(numbers))
        assert text_of(answer_of(answer)["result"]) == "reports is done"


async def test_task_status_is_reported_as_progress_and_a_disconnect_cancels_it(tmp_path: Path) -> None:
    async with served(tmp_path, callTimeout=1) as (gateway, record):
        async with post_stream(gateway, call_of("up__slow", progressToken=7)) as stream:
            progress = [(await stream.next())["params"] for _ in range(4)]
            # Longer than the time for a call without a sign of life.
            assert [one["message"] for one in progress] == ["step 0", "step 1", "step 2", "step 3"]
            assert [one["progress"] for one in progress] == [0.001, 0.002, 0.003, 0.004]
            assert sent(record, "tasks/cancel") == []
        [cancelled] = await until_sent(record, "tasks/cancel")
        assert cancelled["params"] == {"taskId": "slow-1"}
        polls = len(sent(record, "tasks/get"))
        assert text_of(await gateway.call("up__plain")) == "plain is done"
        assert [one["params"]["taskId"] for one in sent(record, "tasks/get")[polls:]] == ["plain-1"] * 3


@pytest.mark.heavy
async def test_cancelled_notification_of_the_host_cancels_the_task(tmp_path: Path) -> None:
    async with served(tmp_path, callTimeout=1) as (gateway, record):
        session = await handshake(gateway)
        params = {"name": "up__quiet", "arguments": {}}
        answers: list[str] = []

        async def call() -> None:
            body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}
            answers.append((await session.post(body)).text)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until_sent(record, "tasks/get", 30)  # at 60 ms each: past the time for a call
            await session.notify("notifications/cancelled", requestId=9)
        assert '"result"' not in answers[0]  # an error, or the end of the stream that it is now
        await until_sent(record, "tasks/cancel")
        assert len(sent(record, "tasks/cancel")) == 1


@pytest.mark.heavy
async def test_task_created_after_its_caller_left_is_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, record):
        with anyio.move_on_after(0.5) as left:
            await gateway.call("up__tardy")
        assert left.cancelled_caught
        assert sent(record, "tasks/cancel") == []
        [cancelled] = await until_sent(record, "tasks/cancel")
        assert cancelled["params"] == {"taskId": "tardy-1"}
        assert sent(record, "tasks/get") == []
        assert text_of(await gateway.call("up__plain")) == "plain is done"


@pytest.mark.heavy
async def test_broken_task_ends_with_the_call_timeout(tmp_path: Path) -> None:
    async with served(tmp_path, callTimeout=2) as (gateway, record):
        for number, name in enumerate(("odd", "mute"), 1):
            result = await gateway.call(f"up__{name}")
            assert result["isError"]
            assert "gave no answer within 2 s" in text_of(result)
            await until_sent(record, "tasks/cancel", number)


@pytest.mark.heavy
async def test_task_asking_its_user_continues_with_the_answer(tmp_path: Path) -> None:
    async with served(tmp_path, elicitation=True, callTimeout=2) as (gateway, _):
        first = hello()
        first["params"]["capabilities"] = {"elicitation": {}}
        opened = await gateway.post(first)
        head = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        session = HandshakeSession(gateway=gateway, headers=head)
        await session.notify("notifications/initialized")
        params = {"name": "up__asks", "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        accept = {**head, "accept": "application/json, text/event-stream"}
        async with gateway.client.stream("POST", gateway.url, json=body, headers=accept, timeout=30) as response:
            answer: dict[str, Any] = {}
            async for line in response.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: ") and line != "data: " else {}
                if message.get("method") == "elicitation/create":
                    await anyio.sleep(2.5)  # a person takes longer than a call may
                    reply = {"action": "accept", "content": {"it": "that one"}}
                    await session.post({"jsonrpc": "2.0", "id": message["id"], "result": reply})
                elif message.get("id") == 5:
                    answer = message
        assert "that one" in text_of(answer["result"])
        assert "_meta" not in answer["result"]
    async with served(tmp_path) as (gateway, _):
        # A caller that cannot be asked is told that reason.
        result = await gateway.call("up__asks")
        assert "is not offered by this client" in text_of(result)


@pytest.mark.heavy
async def test_task_survives_failed_polls_and_a_lost_one_is_not_restarted(tmp_path: Path) -> None:
    async with served(tmp_path, http=True) as (gateway, record):
        assert text_of(await gateway.call("up__stumbles")) == "stumbles is done"
        lost = await gateway.call("up__lost")
        assert lost["isError"]
        assert "outcome is unknown" in text_of(lost)
        for name in ("stumbles", "lost"):
            assert len([one for one in sent(record, "tools/call") if one["params"]["name"] == name]) == 1
    async with served(tmp_path) as (gateway, record):
        ended = await gateway.call("up__closes")
        assert ended["isError"]
        assert "outcome is unknown" in text_of(ended)
        assert len([one for one in sent(record, "tools/call") if one["params"]["name"] == "closes"]) == 1


async def test_announced_task_status_is_used_without_waiting_for_a_poll(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, _):
        with anyio.fail_after(25):
            assert text_of(await gateway.call("up__wakes")) == "wakes is done"


@pytest.mark.heavy
@pytest.mark.parametrize("client", ["typescript", "sdk1", "sdk2-legacy", "sdk2-auto"])
async def test_task_of_the_reference_server_is_called_by_every_sdk(tmp_path: Path, client: str) -> None:
    async with running_gateway(tmp_path, {"every": everything_server()}) as gateway:
        listed = await gateway.until_listed("every__simulate-research-query", within_s=60)
        assert "execution" not in listed["every__simulate-research-query"]
        call = {"name": "every__simulate-research-query", "arguments": {"topic": "bees"}}
        seen = await report(client, gateway.url, [call], deadline_s=120)
        [answer] = seen["calls"]
        assert "bees" in text_of(answer["result"])
        assert not answer["result"].get("isError")
