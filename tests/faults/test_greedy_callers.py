"""Quotas: a greedy caller is refused, and others are not affected."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from faults.observing import MIB, eventually, rss_of
from support.callers import call_of, get_stream, handshake, hello, listen_to, post_stream, raw_post
from support.gateways import RunningGateway, running_gateway, text_of
from support.upstreams.running import Recording, builtin_tools, scripted_stdio_server
from support.waiting import brief_pause

KEYS = [{"name": "ann", "key": "key-of-ann"}, {"name": "bob", "key": "key-of-bob"}]
ANN, BOB = {"authorization": "Bearer key-of-ann"}, {"authorization": "Bearer key-of-bob"}
QUOTA = -32029


@asynccontextmanager
async def shared_gateway(
    tmp_path: Path, *, server: dict[str, Any] | None = None, **limits: int
) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    """A gateway with two callers, and the record of its upstream."""
    config, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "hang", "sleep"))
    settings: dict[str, Any] = {"auth": {"apiKeys": KEYS}}
    if limits:
        settings["quotas"] = {"default": limits}
    async with running_gateway(tmp_path, {"up": {**config, **(server or {})}}, gateway=settings) as gateway:
        with anyio.fail_after(25):
            while not (await gateway.rpc("tools/list", headers=BOB))["result"]["tools"][1:]:
                await brief_pause()
        yield gateway, record


async def bob_is_served(gateway: RunningGateway) -> None:
    with anyio.fail_after(25):
        result = await gateway.call("up__echo", {"still": "here"}, headers=BOB)
    assert result["structuredContent"] == {"still": "here"}, result


async def test_slow_calls_of_one_caller_leave_room_at_the_upstream(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path, server={"callTimeout": 30}) as (gateway, record):
        results: list[dict[str, Any]] = []

        async def call() -> None:
            results.append(await gateway.call("up__hang", headers=ANN))

        async with anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(call)
            await record.until(lambda seen: len(seen.calls("hang")) == 48)
            await eventually(lambda: len(results) == 16)
            refusals = {text_of(result) for result in results}
            await bob_is_served(gateway)
            assert len(results) == 16, "those of Ann that were let in are under way"
            group.cancel_scope.cancel()
        assert all(result["isError"] for result in results)
        (refusal,) = refusals
        assert "48 of your calls are in flight" in refusal
        assert "Nothing was sent" in refusal


@pytest.mark.heavy
async def test_requests_in_flight_and_calls_per_minute_have_a_quota_in_both_eras(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path, inFlight=3, callsPerMinute=30) as (gateway, record):
        session = await handshake(gateway, **ANN)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(lambda: gateway.post(call_of("up__hang"), ANN))
            await record.until(lambda seen: len(seen.calls("hang")) == 3)
            for refused in (
                await gateway.post(call_of("up__echo", request_id="mine"), ANN),
                await session.post({"jsonrpc": "2.0", "id": "mine", "method": "tools/list"}),
            ):
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                answer = refused.json()
                assert (answer["id"], answer["error"]["code"]) == ("mine", QUOTA)
                assert "ann has 3 requests in flight" in answer["error"]["message"]
            await bob_is_served(gateway)
            group.cancel_scope.cancel()
        # Cancelled by their caller: their places are free again.
        await record.until(lambda seen: len(seen.cancelled()) == 3)
        for _ in range(27):
            assert (await session.call("up__echo"))["result"]
        handshake_call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "up__echo"}}
        for refused in (await gateway.post(call_of("up__echo"), ANN), await session.post(handshake_call)):
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, QUOTA)
            assert refused.headers["retry-after"] in ("1", "2")
            assert "30 calls within a minute" in refused.json()["error"]["message"]
        # Requests that do not reach an upstream are not counted.
        assert (await gateway.rpc("tools/list", headers=ANN))["result"]
        await bob_is_served(gateway)
        assert len(record.calls("echo")) == 29


async def test_session_quota_evicts_only_idle_sessions_of_that_caller(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path, sessions=5) as (gateway, record):
        running, idle = await handshake(gateway, **ANN), await handshake(gateway, **ANN)
        bobs = await handshake(gateway, **BOB)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: running.call("up__hang"))
            await record.until(lambda seen: seen.calls("hang"))
            opened = [await handshake(gateway, **ANN) for _ in range(20)]
            assert (await idle.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404
            assert (await opened[-1].call("up__echo"))["result"]
            assert (await bobs.call("up__echo"))["result"]
            assert record.cancelled() == []
            async with AsyncExitStack() as stack:
                for session in opened[-4:]:
                    await stack.enter_async_context(get_stream(session))
                refused = await gateway.post(hello(), ANN)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, QUOTA)
                assert "5 sessions in use" in refused.json()["error"]["message"]
                assert (await gateway.post(hello(), BOB)).status_code == 200
            group.cancel_scope.cancel()


async def test_streams_have_a_quota_whatever_opens_them(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path, streams=3) as (gateway, _), AsyncExitStack() as stack:
        gateway.client.headers.update(ANN)
        sessions = [await handshake(gateway), await handshake(gateway)]
        # Referenced, because the client closes a stream without references.
        streams = [await stack.enter_async_context(get_stream(sessions[0]))]
        for _ in range(2):
            streams.append(await stack.enter_async_context(post_stream(gateway, listen_to())))
            await streams[-1].next()
        refused = await gateway.post(listen_to(), ANN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, QUOTA)
        second = await gateway.client.get(gateway.url, headers={**sessions[1].headers, "accept": "text/event-stream"})
        assert second.status_code == 429
        await bob_is_served(gateway)
        gateway.client.headers.update(BOB)
        async with post_stream(gateway, listen_to()) as stream:
            await stream.next()


async def test_private_connections_have_a_quota(tmp_path: Path) -> None:
    elicits = {"elicitation": True}
    async with shared_gateway(tmp_path, server=elicits, privateConnections=2) as (gateway, record):
        sessions = [await handshake(gateway, **ANN) for _ in range(3)]
        for session in sessions[:2]:
            assert not (await session.call("up__echo"))["result"].get("isError")
        refused = (await sessions[2].call("up__echo"))["result"]
        assert refused["isError"]
        assert "2 connections to servers that belong to one session" in text_of(refused)
        assert not (await (await handshake(gateway, **BOB)).call("up__echo"))["result"].get("isError")
        assert len(record.starts()) == 4  # the shared one, two of ann's, one of bob's
        closed = await gateway.client.delete(gateway.url, headers=sessions[0].headers)
        assert closed.status_code == 204
        assert not (await sessions[2].call("up__echo"))["result"].get("isError")


@pytest.mark.heavy
async def test_revoked_key_loses_its_streams_sessions_and_calls_only(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (gateway, record), AsyncExitStack() as stack:
        sessions = {"ann": await handshake(gateway, **ANN), "bob": await handshake(gateway, **BOB)}
        streams: dict[str, Any] = {}
        for name, head in (("ann", ANN), ("bob", BOB)):
            gateway.client.headers.update(head)
            listening = await stack.enter_async_context(post_stream(gateway, listen_to()))
            await listening.next()
            streams[name] = (listening, await stack.enter_async_context(get_stream(sessions[name])))
        answers: list[httpx2.Response] = []

        async def call() -> None:
            answers.append(await gateway.post(call_of("up__hang"), ANN))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await record.until(lambda seen: seen.calls("hang"))
            config = json.loads(gateway.config.read_text())
            config["gateway"]["auth"]["apiKeys"] = KEYS[1:]
            gateway.config.write_text(json.dumps(config))
            for stream in streams["ann"]:
                assert await stream.rest(within_s=5) == []
        assert "error" in answers[0].json()
        await record.until(lambda seen: seen.cancelled())
        assert (await gateway.post(call_of("up__echo"), ANN)).status_code == 401
        assert (await sessions["bob"].call("up__echo"))["result"]
        for stream in streams["bob"]:
            with pytest.raises(TimeoutError):
                await stream.next(within_s=0.1)


async def test_initialize_parameters_are_bounded(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (gateway, _):
        large = hello()
        large["params"]["capabilities"] = {"experimental": {"x": {"text": "a" * 20_000}}}
        refused = await gateway.post(large, ANN)
        assert refused.json()["error"]["code"] == -32602
        assert "16384 bytes" in refused.json()["error"]["message"]
        unneeded = hello()
        unneeded["params"]["_meta"] = {"text": "a" * 1_000_000}
        assert (await gateway.post(unneeded, ANN)).status_code == 200
        named = listen_to()
        named["params"]["notifications"]["resourceSubscriptions"] = [
            f"x://{number}/" + "a" * 500 for number in range(300)
        ]
        refused = await gateway.post(named, ANN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32602)


async def test_body_with_too_many_values_is_refused_before_parsing(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path) as (gateway, record):
        dense = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"up__echo","arguments":{"a":['
        dense += b"[]," * 1_300_000 + b"[]]}}}"
        head = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "up__echo", **ANN}
        refused = await gateway.post({}, head, raw=dense)
        assert refused.status_code == 413
        assert "too many values" in refused.json()["error"]["message"]
        await bob_is_served(gateway)
        assert len(record.calls()) == 1


async def test_unfinished_requests_count_on_an_account_too(tmp_path: Path) -> None:
    async with shared_gateway(tmp_path, heldMebibytes=24) as (gateway, _):
        host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
        whole = raw_post(b" " * 4_000_000, "authorization: Bearer key-of-ann")
        callers = [socket.create_connection((host, int(port)), timeout=10) for _ in range(7)]
        try:
            for caller in callers:
                await anyio.to_thread.run_sync(caller.sendall, whole[:-1])
            answer = await anyio.to_thread.run_sync(callers[6].recv, 4096)
            assert answer.startswith(b"HTTP/1.1 429 ")
            await bob_is_served(gateway)
            # Memory that disconnected callers release is available to others.
            for caller in callers[1:]:
                caller.close()
            await bob_is_served(gateway)
            callers[0].sendall(whole[-1:])
            assert (await anyio.to_thread.run_sync(callers[0].recv, 4096)).startswith(b"HTTP/1.1 400 ")
        finally:
            for caller in callers:
                caller.close()


@pytest.mark.heavy
@pytest.mark.parametrize("keys", [True, False], ids=["keys", "no keys"])
async def test_large_requests_of_every_kind_use_bounded_memory(tmp_path: Path, keys: bool) -> None:
    """Introductions, calls, subscriptions, heads: each kind alone once took 450 MB and more."""
    config, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "sleep"))
    settings = {"auth": {"apiKeys": KEYS}} if keys else {}
    padding = "a" * 4_000_000
    rows = [{"id": number, "name": f"row {number}", "tags": ["x", "y"]} for number in range(75_000)]
    introduction, subscription = hello(), listen_to()
    introduction["params"]["capabilities"] = {"experimental": {"rows": rows}}
    subscription["params"]["notifications"]["resourceSubscriptions"] = [padding]
    padded = listen_to()
    padded["params"]["_meta"]["padding"] = rows
    bodies = [introduction, subscription, padded, call_of("up__sleep", {"seconds": 3, "rows": rows})]
    bodies += [call_of("up__sleep", {"seconds": 3, "text": padding + "\N{SLIGHTLY SMILING FACE}"})]
    async with running_gateway(tmp_path, {"up": config}, gateway=settings) as gateway:
        gateway.client.headers.update(ANN if keys else {})
        await gateway.until_listed("up__sleep")
        before, most = rss_of(gateway.process.pid), 0
        statuses: list[int] = []

        async def send(body: dict[str, Any]) -> None:
            async with gateway.client.stream(
                "POST", gateway.url, content=json.dumps(body), headers=_head(body), timeout=30
            ) as response:
                statuses.append(response.status_code)
                if response.headers["content-type"] == "application/json":
                    await response.aread()

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, rss_of(gateway.process.pid))
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as watching:
            watching.start_soon(watch)
            for body in bodies:
                async with anyio.create_task_group() as group:
                    for _ in range(16):
                        group.start_soon(send, body)
            watching.cancel_scope.cancel()
        print("grew by", (most - before) // MIB, "MiB; statuses", {one: statuses.count(one) for one in set(statuses)})
        assert most - before < 300 * MIB
        assert (await gateway.call("up__echo", {"still": "here"}))["structuredContent"] == {"still": "here"}


def _head(body: dict[str, Any]) -> dict[str, str]:
    head = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if body["method"] != "initialize":
        head |= {"mcp-protocol-version": "2026-07-28", "mcp-method": body["method"]}
    if "name" in body["params"]:
        head["mcp-name"] = body["params"]["name"]
    return head


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks/get", {"taskId": "up.x.y.z"}),
        ("tasks/update", {"taskId": "up.x.y.z"}),
        ("resources/subscribe", {"uri": "file:///a"}),
        ("subscriptions/listen", {"notifications": {"taskIds": ["up.x.y.z"]}}),
    ],
)
async def test_task_polls_and_subscriptions_count_as_calls(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    async with shared_gateway(tmp_path, callsPerMinute=5) as (gateway, _):
        headers, era = ANN, "modern"
        if method == "resources/subscribe":
            session = await handshake(gateway, **ANN)
            headers, era = session.headers, "handshake"
        codes = []
        for _ in range(7):
            if era == "modern":
                named = {"mcp-name": params["taskId"]} if "taskId" in params else {}
                codes.append((await gateway.rpc(method, params, headers={**headers, **named}))["error"]["code"])
            else:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                codes.append((await gateway.post(body, headers)).json()["error"]["code"])
        assert QUOTA not in codes[:5]
        assert codes[5:] == [QUOTA, QUOTA]
        # Requests that end something are accepted, and other callers are served.
        ended = await gateway.rpc("tasks/cancel", {"taskId": "a"}, headers={**ANN, "mcp-name": "a"})
        assert ended["error"]["code"] != QUOTA
        await bob_is_served(gateway)
