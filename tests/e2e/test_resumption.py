"""A handshake-era call survives a broken connection: the caller reconnects and resumes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from support.callers import HandshakeSession, handshake
from support.gateways import running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server
from support.waiting import brief_pause

from gateway.access.quotas import independent_account
from gateway.downstream import resumption
from gateway.downstream.resumption import ResumableAnswer, ResumableAnswers


@dataclass(slots=True)
class Read:
    """The events that were read from one stream."""

    ids: list[str] = field(default_factory=list)
    retries_ms: list[int] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)


async def read(response: httpx2.Response, *, until: int | None = None) -> Read:
    """Read events up to the end of the stream, or this many of them."""
    seen = Read()
    with anyio.fail_after(25):
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                seen.ids.append(value)
            elif name == "retry":
                seen.retries_ms.append(int(value))
            elif name == "data" and value:
                seen.messages.append(json.loads(value))
            if not line and until is not None and len(seen.ids) >= until:
                break
    return seen


def call(name: str, arguments: dict[str, Any], **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": params}


async def broken_after(session: HandshakeSession, body: dict[str, Any], events: int) -> Read:
    """Begin a call, and disconnect after this many events."""
    head = {**session.headers, "accept": "application/json, text/event-stream"}
    async with session.gateway.client.stream(
        "POST", session.gateway.url, json=body, headers=head, timeout=30
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        return await read(answer, until=events)


async def resumed(session: HandshakeSession, last_id: str) -> Read:
    head = {**session.headers, "accept": "text/event-stream", "last-event-id": last_id}
    async with session.gateway.client.stream("GET", session.gateway.url, headers=head, timeout=30) as answer:
        assert answer.status_code == 200, await answer.aread()
        return await read(answer)


async def test_caller_reconnects_and_receives_what_it_missed(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("progress"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__progress")
        session = await handshake(gateway)
        body = call("up__progress", {"count": 10, "interval_s": 0.05}, progressToken="p")
        before = await broken_after(session, body, 4)
        after = await resumed(session, before.ids[-1])
        assert before.retries_ms == [1000]
        ids = before.ids + after.ids
        assert len(set(ids)) == len(ids) == 12, "the first event without data, ten of progress, the result"
        *progress, result = before.messages + after.messages
        assert [one["params"]["progress"] for one in progress] == list(range(1, 11))
        assert result["id"] == "mine"
        assert not result["result"].get("isError")
        assert len(record.calls()) == 1
        assert record.cancelled() == []
        # The gateway cannot know whether the result has arrived, so it can be fetched again for a while.
        assert (await resumed(session, ids[-2])).messages == [result]
        assert (await resumed(session, ids[-1])).messages == []


@pytest.mark.heavy
async def test_silent_call_can_be_resumed_only_by_its_own_session(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("sleep"))
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "key-of-ann"}, {"name": "bob", "key": "key-of-bob"}]}}
    async with running_gateway(tmp_path, {"up": server}, gateway=keys) as gateway:
        gateway.client.headers["authorization"] = "Bearer key-of-ann"
        await gateway.until_listed("up__sleep")
        session, sibling = await handshake(gateway), await handshake(gateway)
        before = await broken_after(session, call("up__sleep", {"seconds": 4}), 1)
        assert before.messages == []
        head = {**session.headers, "accept": "text/event-stream", "last-event-id": before.ids[0]}
        strangers = [{**head, "authorization": "Bearer key-of-bob"}, {**head, **sibling.headers}]
        statuses = [(await gateway.client.get(gateway.url, headers=one)).status_code for one in strangers]
        assert statuses == [404, 400]
        for unknown in ("99-0", "1-", "-1", "1-x", "1" * 5000 + "-1"):
            response = await gateway.client.get(gateway.url, headers={**head, "last-event-id": unknown})
            assert response.status_code == 400, unknown
        (result,) = (await resumed(session, before.ids[0])).messages
        assert result["id"] == "mine"
        assert not result["result"].get("isError")
        assert len(record.calls()) == 1


async def test_caller_without_a_resumable_id_cancels_by_disconnecting(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("hang"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__hang")
        session = await handshake(gateway)
        async with anyio.create_task_group() as group:
            group.start_soon(session.post, call("up__hang", {}))
            await record.until(lambda seen: seen.calls())
            group.cancel_scope.cancel()
        await record.until(lambda seen: seen.cancelled())


class Answering:
    """A responder of a request that is being answered."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ended = False
        self.on_stream: Any = None
        self.on_disconnect: Any = None
        self.cancelled = False
        self.task = self

    def report_to(self, *, on_stream: Any, on_disconnect: Any) -> None:
        self.on_stream, self.on_disconnect = on_stream, on_disconnect

    def begin_stream(self) -> None:
        begin, self.on_stream = self.on_stream, None
        if begin is not None:
            begin()

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)

    stream = write

    def end(self) -> None:
        self.ended = True

    def cancel(self) -> None:
        self.cancelled = True


async def test_caller_that_does_not_return_cancels_its_call_after_a_timeout() -> None:
    answers, responder, account = ResumableAnswers(away_s=0.01), Answering(), independent_account()
    answer = ResumableAnswer(answers, account, 1, responder)  # type: ignore[arg-type] # a fake
    answer.emit({"n": 1})
    assert answers.find("1-0") == (answer, 0)
    responder.on_disconnect()
    with anyio.fail_after(25):
        while not responder.cancelled:
            await brief_pause()
    assert answers.find("1-0") is None
    answer.finish((b"{}",))
    assert account.held_bytes == 0


async def test_unfetched_result_is_held_on_its_callers_account_for_a_while() -> None:
    answers, responder, account = ResumableAnswers(away_s=0.05), Answering(), independent_account()
    answer = ResumableAnswer(answers, account, 1, responder)  # type: ignore[arg-type] # a fake
    answer.pause(100)
    assert responder.ended
    answer.finish((b"x" * 1000,))
    assert account.held_bytes == 1000
    with anyio.fail_after(25):
        while account.held_bytes:
            await brief_pause()
    assert answers.find("1-0") is None


async def test_number_of_resumable_answers_per_session_is_bounded() -> None:
    answers, account = ResumableAnswers(), independent_account()
    made = []
    for number in range(resumption.MAX_ANSWERS + 1):
        made.append(ResumableAnswer(answers, account, number, Answering()))  # type: ignore[arg-type] # a fake
        made[-1].emit({"n": 1}) if number < resumption.MAX_ANSWERS else made[-1].pause(1)
    assert [one.resumable for one in made] == [True] * resumption.MAX_ANSWERS + [False]
    answers.close()
    assert answers.find("1-0") is None


async def test_caller_returning_while_its_answer_expires_does_not_wait_forever() -> None:
    answers, responder, back = ResumableAnswers(), Answering(), Answering()
    answer = ResumableAnswer(answers, independent_account(), 1, responder)  # type: ignore[arg-type] # a fake
    answer.pause(100)
    answers.close()
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(answer.resume, back, 0)
            await anyio.lowlevel.checkpoint()
            answer.finish((b"{}",))
    assert back.ended
