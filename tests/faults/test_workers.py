"""Workers and their parent are killed or shut down; no process is left behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import httpx2
import pytest
from support.callers import get_stream, handshake
from support.gateways import RunningGateway, answer_of
from support.upstreams.running import children_of, scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, is_running, ready, running_workers, until, worker_of, workers_of

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
HANG = tool("hang")
SLEEP = tool("sleep", seconds={"type": "number"})


async def test_worker_killed_under_load_loses_only_its_own_calls_and_returns(tmp_path: Path) -> None:
    local, _ = scripted_stdio_server(tmp_path, "local", tools=[ECHO])
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, HANG]) as up,
        running_workers(tmp_path, {"up": up.config, "local": {**local, "copies": True}}) as gateway,
        each_worker(gateway) as workers,
        each_worker(gateway) as held,
    ):
        for one in workers:
            await one.until_listed("up__echo", "local__echo")
        before = workers_of(gateway)
        children = list(children_of(before[1]))
        assert len(children) == 1
        kept, lost = await handshake(workers[0]), await handshake(workers[1])
        ends: Counter[str] = Counter()
        killed = anyio.Event()

        async def load(worker: RunningGateway, name: str) -> None:
            while not killed.is_set():
                try:
                    await worker.call("up__echo", {"n": 1})
                    ends[f"{name} ok"] += 1
                except httpx2.HTTPError:
                    ends[f"{name} lost"] += 1

        async def carried() -> None:
            # The request arrived at the worker that stays alive, and runs at the one that is killed.
            body = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "up__hang", "arguments": {}}}
            answer = answer_of(await held[0].post(body, lost.headers))
            assert answer["id"] == 9
            assert "not known" in answer["error"]["message"]

        async with anyio.create_task_group() as group:
            group.start_soon(carried)
            await up.recording.until(lambda record: len(record.calls("hang")) == 1)
            for _ in range(4):
                group.start_soon(load, workers[0], "kept")
                group.start_soon(load, workers[1], "lost")
            await until(lambda: ends["kept ok"] > 20 and ends["lost ok"] > 20)
            os.kill(before[1], signal.SIGKILL)
            await until(lambda: workers_of(gateway).get(1) not in (None, before[1]))
            await ready(gateway)
            killed.set()
        assert ends["kept lost"] == 0
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for _ in range(6):
            assert (await gateway.post(ping, kept.headers)).status_code == 200
            assert (await gateway.post(ping, lost.headers)).status_code == 404
        assert workers_of(gateway)[0] == before[0]
        await until(lambda: not any(map(is_running, children)))
        async with each_worker(gateway) as again:
            assert (await again[1].call("up__echo", {"n": 5}))["structuredContent"] == {"n": 5}
        assert gateway.logged().count("worker 1 exited (SIGKILL)") == 1


@pytest.mark.heavy
async def test_repeatedly_dying_workers_are_restarted_with_growing_pauses(tmp_path: Path) -> None:
    async with running_workers(tmp_path, {}) as gateway:
        for _ in range(3):
            before = workers_of(gateway)
            for pid in before.values():
                os.kill(pid, signal.SIGKILL)
            await until(lambda: len(found := workers_of(gateway)) == 2 and not {*found.values()} & {*before.values()})  # noqa: B023 - over before the next round
        await ready(gateway)
        assert gateway.logged().count("restarting") == 6
        assert await gateway.stop() == 0


async def test_sigterm_answers_every_call_in_flight_and_leaves_no_process(tmp_path: Path) -> None:
    local, _ = scripted_stdio_server(tmp_path, "local", tools=[ECHO])
    async with (
        scripted_http_server(tmp_path, "up", tools=[SLEEP, HANG]) as up,
        running_workers(tmp_path, {"up": up.config, "local": {**local, "copies": True}}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__sleep", "local__echo")
        pids = [*workers_of(gateway).values()]
        pids += [child for pid in pids for child in children_of(pid)]
        assert len(pids) == 4
        sockets = sockets_of(pids[0])
        sessions = [await handshake(one) for one in workers]
        slow = {"name": "up__sleep", "arguments": {"seconds": 1.0}}
        answers = []

        async def call(worker: RunningGateway, headers: dict[str, str]) -> None:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow}
            answers.append(answer_of(await worker.post(body, headers)))

        async with get_stream(sessions[0]) as stream, anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(call, gateway, session.headers)
                group.start_soon(call, gateway, session.headers)
            await up.recording.until(lambda record: len(record.calls("sleep")) == 4)
            gateway.process.send_signal(signal.SIGTERM)
            assert await stream.rest() == []
        assert [one["result"].get("isError", False) for one in answers] == [False] * 4
        with anyio.fail_after(25):
            assert await gateway.process.wait() == 0
        assert not any(map(is_running, pids))
        assert not sockets.exists()
        with socket.socket() as probe:
            host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
            assert probe.connect_ex((host, int(port))) != 0


async def test_workers_exit_without_their_parent(tmp_path: Path) -> None:
    local, _ = scripted_stdio_server(tmp_path, "local", tools=[ECHO])
    async with running_workers(tmp_path, {"local": {**local, "copies": True}}, workers=3) as gateway:
        await gateway.until_listed("local__echo")
        await ready(gateway)
        pids = [*workers_of(gateway).values()]
        assert len(pids) == 3
        sockets = sockets_of(pids[0])
        pids += [child for pid in pids for child in children_of(pid)]
        assert len(pids) == 6
        gateway.process.send_signal(signal.SIGKILL)
        await until(lambda: not any(map(is_running, pids)), within_s=12)
        assert not sockets.exists()


async def test_private_sockets_require_the_owner_and_the_secret(tmp_path: Path) -> None:
    async with running_workers(tmp_path, {}) as gateway:
        await ready(gateway)
        sockets = sockets_of(workers_of(gateway)[0])
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        found = sorted(sockets.iterdir())
        assert [path.name for path in found] == ["0.sock", "1.sock", "parent.sock"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        for line in (b"GET / HTTP/1.1\r\n\r\n", b'{"secret": "", "name": "9", "spent": {}}\n', b"[1]\n"):
            async with await anyio.connect_unix(str(found[2])) as stream:
                await stream.send(line)
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        for path in found[:2]:
            for host in (b"127.0.0.1", b"localhost", b""):
                for target in (b"GET /shared/present", b"GET /own/readyz", b"GET /metrics", b"DELETE /mcp"):
                    async with await anyio.connect_unix(str(path)) as stream:
                        await stream.send(target + b" HTTP/1.1\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n")
                        assert (await stream.receive()).split(b" ")[1] == b"421"


async def test_session_reaches_its_worker_by_its_id(tmp_path: Path) -> None:
    async with running_workers(tmp_path, {}, workers=3) as gateway, each_worker(gateway, 3) as workers:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for index, one in enumerate(workers):
            session = await handshake(one)
            assert worker_of(session.headers["mcp-session-id"]) == index
            for other in workers:
                assert answer_of(await other.post(ping, session.headers))["result"] == {}
                moved = {
                    **session.headers,
                    "mcp-session-id": f"{(index + 1) % 3}{session.headers['mcp-session-id'][1:]}",
                }
                assert (await other.post(ping, moved)).status_code == 404


async def test_each_worker_allows_its_share_of_sessions_and_streams(tmp_path: Path) -> None:
    settings = {"quotas": {"default": {"sessions": 7, "streams": 3}}}
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with running_workers(tmp_path, {}, gateway=settings) as gateway, each_worker(gateway) as workers:
        for one in workers:
            sessions = [await handshake(one) for _ in range(5)]
            found = [(await gateway.post(ping, each.headers)).status_code for each in sessions]
            assert found == [404, 200, 200, 200, 200]
            async with AsyncExitStack() as stack:
                for each in sessions[1:3]:
                    await stack.enter_async_context(get_stream(replace(each, gateway=gateway)))
                head = {**sessions[3].headers, "accept": "text/event-stream"}
                refused = await gateway.client.get(gateway.url, headers=head)
                assert refused.status_code == 429
                assert "2 streams open, the most that its share of its quota at one of 2 workers allows" in refused.text


def sockets_of(pid: int) -> Path:
    """The directory of the private sockets that a worker listens on."""
    links: list[str] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            links.append(os.readlink(link))
    inodes = {link[8:-1] for link in links if "socket:[" in link}
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if fields[6] in inodes and len(fields) > 7 and fields[7].startswith(tempfile.gettempdir()):
            return Path(fields[7]).parent
    raise AssertionError("it listens on none")
