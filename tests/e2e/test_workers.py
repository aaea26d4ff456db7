"""Several workers serve as one (`typegate serve --workers`): calls, sessions and streams of both eras."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import get_stream, handshake, listen_to, post_stream
from support.gateways import RunningGateway, answer_of, messages_of, running_gateway
from support.state_checks import request_state_and_task_hold
from support.upstreams.full_running import full_http
from support.upstreams.running import scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, ready, running_workers, until, worker_of

ECHO = tool("echo", n={"type": "integer"})
HANG = tool("hang")
CHANGED = "notifications/tools/list_changed"


def call(name: str, arguments: Any = None, request_id: Any = 1, **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


@pytest.mark.heavy
async def test_many_sessions_use_any_connection_and_keep_their_state(tmp_path: Path) -> None:
    chance = random.Random(7)
    progress = tool("progress", count={"type": "integer"})
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, progress], sse=True) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        await ready(gateway)
        for one in workers:
            await one.until_listed("up__echo")
        sessions = [await handshake(chance.choice([gateway, *workers])) for _ in range(24)]
        assert {worker_of(one.headers["mcp-session-id"]) for one in sessions} == {0, 1}

        async def converse(index: int) -> None:
            headers = sessions[index].headers
            for step in range(6):
                number = index * 100 + step
                via: RunningGateway = chance.choice([gateway, *workers])
                answer = answer_of(await via.post(call("up__echo", {"n": number}, number), headers))
                assert answer["id"] == number
                assert answer["result"]["structuredContent"] == {"n": number}
                modern = await via.rpc("tools/call", {"name": "up__echo", "arguments": {"n": -number}})
                assert modern["result"]["structuredContent"] == {"n": -number}
            response = await gateway.post(call("up__progress", {"count": 3}, "p", progressToken=index), headers)
            *steps, last = messages_of(response.text)
            assert [one["params"]["progressToken"] for one in steps] == [index] * 3
            assert last["id"] == "p"

        async with anyio.create_task_group() as group:
            for index in range(len(sessions)):
                group.start_soon(converse, index)


@pytest.mark.heavy
async def test_session_is_protected_and_deletable_at_any_worker(tmp_path: Path) -> None:
    keys = {"auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]}}
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"up": up.config}, gateway=keys) as gateway,
    ):
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for _ in range(6):
            session = await handshake(gateway, authorization="Bearer k-ada")
            for _ in range(4):
                assert (await session.post(ping)).status_code == 200
                stolen = {**session.headers, "authorization": "Bearer k-bob"}
                assert (await gateway.post(ping, stolen)).status_code == 404
            for method in ("HEAD", "PUT", "OPTIONS"):
                for _ in range(2):
                    refused = await gateway.client.request(method, gateway.url, headers=session.headers)
                    assert refused.status_code == 405
            assert (await gateway.client.delete(gateway.url, headers=session.headers)).status_code == 204
            for _ in range(4):
                assert (await session.post(ping)).status_code == 404
        for made_up in ("0-" + "f" * 32, "1-" + "f" * 32, "2-x", "-", "f" * 32):
            headers = {**session.headers, "mcp-session-id": made_up}
            assert (await gateway.post(ping, headers)).status_code == 404
        assert "ASGI" not in gateway.logged()


@pytest.mark.heavy
@pytest.mark.parametrize("owner", [0, 1])
async def test_session_requests_pass_through_another_worker(tmp_path: Path, owner: int) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, HANG], list_changed=True) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__echo")
        session = await handshake(workers[owner])
        other = session.__class__(gateway=workers[1 - owner], headers=session.headers)
        stream_client = session.__class__(gateway=gateway, headers=session.headers)
        async with anyio.create_task_group() as group:
            # Cancelled by a notification that arrives at one worker, while the call came by another.
            answers: list[dict[str, Any]] = []

            async def hang(request_id: str) -> None:
                answers.append(answer_of(await gateway.post(call("up__hang", {}, request_id), session.headers)))

            group.start_soon(hang, "h1")
            await up.recording.until(lambda record: len(record.calls("hang")) == 1)
            await other.notify("notifications/cancelled", requestId="h1")
            await up.recording.until(lambda record: len(record.cancelled()) == 1)
        assert answers[0]["error"]["code"] == -32800
        # Cancelled by its caller's leaving.
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(other.post, call("up__hang", {}, "h2"))
                await up.recording.until(lambda record: len(record.calls("hang")) == 2)
                scope.cancel()
        await up.recording.until(lambda record: len(record.cancelled()) == 2)
        # The stream of notifications, wherever it is opened; only one at a time; taken up again where it stopped.
        async with each_worker(gateway) as fresh:
            reading = session.__class__(gateway=fresh[1 - owner], headers=session.headers)
            async with get_stream(reading) as stream:
                head = {**session.headers, "accept": "text/event-stream"}
                assert (await gateway.client.get(gateway.url, headers=head)).status_code == 409
                up.announce(tools=[ECHO, HANG, tool("second")], list_changed=True)
                assert (await stream.next())["method"] == CHANGED
                await gateway.client.delete(gateway.url, headers=session.headers)
                assert await stream.rest() == []
        assert (await stream_client.post(call("up__echo"))).status_code == 404


@pytest.mark.heavy
async def test_upstream_changes_reach_listeners_at_every_worker(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO], list_changed=True) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__echo")
        async with post_stream(workers[0], listen_to("a")) as first, post_stream(workers[1], listen_to("b")) as second:
            for stream in (first, second):
                assert (await stream.next())["method"].endswith("acknowledged")
            up.announce(tools=[ECHO, tool("second")], list_changed=True)
            for stream in (first, second):
                assert (await stream.next())["method"] == CHANGED
        async with each_worker(gateway) as again:
            for one in again:
                await one.until_listed("up__second")


@pytest.mark.heavy
async def test_request_state_and_task_are_valid_at_every_worker(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "f", modern=True) as full,
        running_workers(tmp_path, {"f": full.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("f__ask")
        for begins, ends in ((0, 1), (1, 0)):
            await request_state_and_task_hold(workers[begins], workers[ends])


@pytest.mark.heavy
async def test_process_is_copied_per_worker_only_if_its_entry_allows_it(tmp_path: Path) -> None:
    config, recording = scripted_stdio_server(tmp_path, "up", tools=[ECHO])
    with pytest.raises(AssertionError, match=r"up is a process.*copies"):
        async with running_workers(tmp_path, {"up": config}):
            raise RuntimeError("it started")
    async with (
        running_workers(tmp_path, {"up": {**config, "copies": True}}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__echo")
            assert (await one.call("up__echo", {"n": 3}))["structuredContent"] == {"n": 3}
        assert len(set(recording.starts())) == 2
        assert await gateway.stop() == 0
    async with running_gateway(tmp_path, {"up": config}, arguments=("--workers", "1")) as gateway:
        await until(lambda: gateway.tools())
