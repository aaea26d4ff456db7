"""Peers that do not speak HTTP, broken or oversized streams, and processes that stop reading."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from faults.observing import MIB, append_result, rss_of, until_server
from support.gateways import brief_pause, running_gateway, text_of
from support.raw_http import Peer, mcp_answer, message_of, serving
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

from gateway.upstream.breaker import FAILURES_TO_OPEN, OPEN_S

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"content-type: application/json\r\n"
ANSWERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": b"\0" * 100_000,
    "half": OK + b"content-ty",
    "closed": b"",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "again": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "headers": OK + b"x: y\r\n" * 100_000 + b"\r\n",
    "header": OK + b"x: " + b"y" * 20 * MIB + b"\r\n\r\n",
    "chunks": JSON + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk": JSON + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    "negative": JSON + b"content-length: -5\r\n\r\n{}",
    "lengths": JSON + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "events": OK + b"content-type: text/event-stream\r\n\r\n" + b"data: x" * 2 * MIB,
    "comments": OK + b"content-type: text/event-stream\r\n\r\n" + b":\n" * 100_000,
    "body": JSON + b"content-length: 20000000\r\n\r\n" + b" " * 20_000_000,
}


@asynccontextmanager
async def saying(answers: dict[str, bytes]) -> AsyncIterator[dict[str, str]]:
    """Listen on one port for each answer, send it in response to anything, and yield the addresses."""

    async def serve(listener: Any, answer: bytes) -> None:
        async def say(stream: SocketStream) -> None:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                async with stream:
                    await stream.receive()
                    await stream.send(answer)

        try:
            await listener.serve(say)
        except* anyio.ClosedResourceError:
            pass  # closed at the end, below

    async with anyio.create_task_group() as tasks:
        urls, listeners = {}, []
        for name, answer in answers.items():
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
            listeners.append(listener)
            tasks.start_soon(serve, listener, answer)
            urls[name] = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
        yield urls
        # The peers have disconnected. Every connection ends without cancellation, which would leak its socket.
        for listener in listeners:
            await listener.aclose()


async def test_peer_that_does_not_speak_http_is_named_and_affects_no_other(tmp_path: Path) -> None:
    calm, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    async with saying(ANSWERS) as urls:
        servers: dict[str, Any] = {name: {"url": url, "connectTimeout": 3} for name, url in urls.items()}
        servers |= {f"{name}-old": {"type": "sse", "url": url, "connectTimeout": 3} for name, url in urls.items()}
        async with running_gateway(tmp_path, {**servers, "calm": calm}) as gateway:
            await gateway.until_listed("calm__echo")
            before = rss_of(gateway.process.pid)
            for name in servers:
                row = await until_server(gateway, name, lambda row: row["lastError"], within_s=15)
                assert row["state"] in ("connecting", "waiting"), name
                assert "unexpected" not in row["lastError"], (name, row["lastError"])
                assert "isError" not in await gateway.call("calm__echo")
            assert rss_of(gateway.process.pid) - before < 64 * MIB
            assert "Traceback" not in gateway.logged()


@pytest.mark.parametrize("fault", ["drop_sse", "reset", "half_body"])
async def test_sse_stream_broken_during_a_call_is_reopened(tmp_path: Path, fault: str) -> None:
    async with (
        scripted_http_server(tmp_path, "e", tools=builtin_tools(fault, "echo"), legacy_sse_only=True) as http,
        running_gateway(tmp_path, {"e": http.config}) as gateway,
    ):
        await gateway.until_listed("e__echo")
        with anyio.fail_after(20):
            result = await gateway.call(f"e__{fault}")
        assert "outcome is unknown" in text_of(result)
        assert len(http.recording.calls(fault)) == 1
        assert (await gateway.call("e__echo", {"a": 1}))["structuredContent"] == {"a": 1}


async def test_oversized_answer_on_an_sse_stream_fails_only_its_own_call(tmp_path: Path) -> None:
    tools = builtin_tools("big", "sleep", "echo", "raw", "wrong_ids")
    async with (
        scripted_http_server(tmp_path, "e", tools=tools, legacy_sse_only=True) as http,
        running_gateway(tmp_path, {"e": {**http.config, "callTimeout": 8}}) as gateway,
    ):
        await gateway.until_listed("e__echo")
        before = rss_of(gateway.process.pid)
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "e__sleep", {"seconds": 1.5}, answers)
            await http.recording.until(lambda seen: seen.calls("sleep"))
            assert (await gateway.call("e__big", {"bytes": 50_000_000}))["isError"]
        assert answers[0].get("structuredContent") == {"seconds": 1.5}, answers
        assert (await gateway.call("e__raw", {"line": "{no json"}))["isError"]
        assert (await gateway.call("e__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert (await gateway.server("e"))["epoch"] == 1
        assert rss_of(gateway.process.pid) - before < 64 * MIB


@pytest.mark.parametrize("legacy", [False, True])
async def test_notification_storm_on_an_event_stream_is_bounded(tmp_path: Path, legacy: bool) -> None:
    tools = builtin_tools("notification_storm", "echo")
    async with (
        scripted_http_server(tmp_path, "h", tools=tools, sse=True, legacy_sse_only=legacy) as http,
        running_gateway(tmp_path, {"h": http.config}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        before = rss_of(gateway.process.pid)
        assert "isError" not in await gateway.call("h__notification_storm", {"count": 30_000})
        assert "isError" not in await gateway.call("h__echo")
        assert len(http.recording.requests("tools/list")) < 150
        assert rss_of(gateway.process.pid) - before < 32 * MIB


async def test_process_that_stops_reading_is_abandoned_and_works_again(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 2}}) as gateway:
        await gateway.until_listed("s__echo")
        before = rss_of(gateway.process.pid)
        [pid] = record.starts()
        os.kill(pid, signal.SIGSTOP)
        answers: list[dict[str, Any]] = []
        with anyio.fail_after(25):
            async with anyio.create_task_group() as tasks:
                for _ in range(12):
                    tasks.start_soon(append_result, gateway, "s__echo", {"a": "x" * 2_000_000}, answers)
        assert all(one["isError"] for one in answers)
        assert any("Nothing was sent" in text_of(one) for one in answers), [text_of(one) for one in answers]
        assert rss_of(gateway.process.pid) - before < 128 * MIB
        os.kill(pid, signal.SIGCONT)
        with anyio.fail_after(20):
            while (result := await gateway.call("s__echo", {"a": 1})).get("isError"):
                await brief_pause()
        assert result["structuredContent"] == {"a": 1}
        assert len(record.starts()) == 1


async def test_calls_over_the_limit_are_refused_and_slots_released(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("hang", "echo"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 2, "maxConcurrency": 3}}) as gateway:
        await gateway.until_listed("s__echo")
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(append_result, gateway, "s__hang", {}, answers)
            await record.until(lambda seen: len(seen.calls("hang")) == 3)
            refused = await gateway.call("s__echo")
            assert refused["isError"]
            assert "3 calls in flight" in text_of(refused)
            assert not answers
        assert record.calls("echo") == []
        assert "isError" not in await gateway.call("s__echo")


@pytest.mark.parametrize("late_ms", [0, 5])
async def test_second_answer_on_an_idle_connection_reaches_no_later_call(tmp_path: Path, late_ms: int) -> None:
    sent = 0

    async def twice(peer: Peer) -> None:
        nonlocal sent
        while True:
            message = message_of(await peer.request())
            if message.get("method") != "tools/call":
                peer.say(mcp_answer(message))
                continue
            sent += 1
            peer.say(mcp_answer(message, {"content": [{"type": "text", "text": f"answer {sent}"}]}))
            # At once under ids that the next calls may have, too; later that would be an answer like any other.
            if late_ms:
                await anyio.sleep(late_ms / 1000)
            for ahead in range(1 if late_ms else 5):
                forged = {**message, "id": message["id"] + ahead}
                peer.say(mcp_answer(forged, {"content": [{"type": "text", "text": "forged"}]}))

    async with (
        serving(twice) as site,
        running_gateway(tmp_path, {"h": {"url": site.url}, "g": {"url": site.url}}) as gateway,
    ):
        await gateway.until_listed("h__echo", "g__echo")
        for number in range(1, 31):
            result = await gateway.call("h__echo" if number % 2 else "g__echo")
            # On its way already when the late answer came: only that is an answer to be seen, and it is refused.
            if not (late_ms and result.get("isError") and "the id of another request" in text_of(result)):
                assert text_of(result) == f"answer {number}"


@pytest.mark.heavy  # it waits for the breaker to let a probe through
async def test_consecutively_lost_calls_pause_the_server_until_it_answers(
    tmp_path: Path,
) -> None:
    lost = 0

    async def losing(peer: Peer) -> None:
        nonlocal lost
        while True:
            message = message_of(await peer.request())
            if message.get("method") == "tools/call" and lost < FAILURES_TO_OPEN:
                lost += 1
                return
            peer.say(mcp_answer(message))

    async with serving(losing) as site, running_gateway(tmp_path, {"h": {"url": site.url}}) as gateway:
        await gateway.until_listed("h__echo")
        for _ in range(FAILURES_TO_OPEN):
            assert "outcome is unknown" in text_of(await gateway.call("h__echo"))
        refused = await gateway.call("h__other")
        assert f"has failed {FAILURES_TO_OPEN} times in a row" in text_of(refused)
        assert "Nothing was sent" in text_of(refused)
        with anyio.fail_after(OPEN_S + 3):
            while (await gateway.call("h__other")).get("isError"):
                await brief_pause()
        assert text_of(await gateway.call("h__echo")) == "done"
