"""Signals, addresses and configuration of the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import call_of, get_stream, handshake, listen_to, post_stream, running_host
from support.gateways import brief_pause, running_gateway, text_of
from support.upstreams.running import (
    builtin_tools,
    children_of,
    scripted_http_server,
    scripted_stdio_server,
    unused_port,
)

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that still run; zombies do not."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


async def until_ended(pids: list[int], within_s: float = 25) -> None:
    with anyio.move_on_after(within_s):
        while alive(pids):
            await brief_pause()
    assert alive(pids) == []


async def test_sigterm_drains_ends_every_stream_and_leaves_no_process(tmp_path: Path) -> None:
    tools = builtin_tools("sleep", "hang", "echo")
    stdio, record = scripted_stdio_server(
        tmp_path, "up", tools=tools, modern=True, faults={"spawn_grandchild": True, "ignore_eof": True}
    )
    old, old_record = scripted_stdio_server(tmp_path, "old", tools=tools, faults={"spawn_grandchild": True})
    answers: dict[str, Any] = {}
    async with scripted_http_server(tmp_path, "web", tools=tools, list_changed=True) as web:
        servers = {"up": stdio, "old": old, "web": web.config}
        async with running_gateway(tmp_path, servers) as gateway, AsyncExitStack() as open_streams:
            await gateway.until_listed("up__sleep", "old__sleep", "web__sleep")
            session = await handshake(gateway)
            followed = await open_streams.enter_async_context(get_stream(session))
            listening = await open_streams.enter_async_context(post_stream(gateway, listen_to("mine")))
            acknowledged = await listening.next()
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"

            async def ask(alias: str) -> None:
                answers[alias] = await gateway.call(f"{alias}__sleep", {"seconds": 1.5})

            async def hang() -> None:
                answers["hang"] = await gateway.call("up__hang")

            pids = [*record.starts(), *record.grandchildren(), *old_record.starts(), *old_record.grandchildren()]
            assert len(alive(pids)) == 4
            async with anyio.create_task_group() as group:
                for alias in servers:
                    group.start_soon(ask, alias)
                group.start_soon(hang)
                await record.until(lambda one: len(one.calls()) == 2)
                await old_record.until(lambda one: one.calls())
                await web.recording.until(lambda one: one.calls())
                began_s = time.monotonic()
                gateway.process.send_signal(signal.SIGTERM)
                last = (await listening.rest())[-1]
                assert last["id"] == "mine"
                assert last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "mine"
                assert last["result"]["resultType"] == "complete"
                await followed.rest()
                refused = await gateway.client.get(f"{gateway.origin}/readyz")
                assert refused.status_code == 503
                assert (await gateway.post(call_of("up__echo"))).status_code == 503
                assert (await gateway.client.get(f"{gateway.origin}/healthz")).status_code == 200
                with anyio.fail_after(25):
                    assert await gateway.process.wait() == 0
            assert time.monotonic() - began_s <= 10
            for alias in servers:
                assert not answers[alias].get("isError"), answers
            assert answers["hang"]["isError"] is True
            assert "outcome of this request is unknown" in text_of(answers["hang"])
            assert alive(pids) == []
            assert "Traceback" not in gateway.logged()


async def test_sigterm_when_idle_is_quick_and_a_second_signal_is_harmless(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        gateway.process.send_signal(signal.SIGTERM)
        assert await gateway.stop(signal.SIGINT, within_s=8) == 0
        assert alive(record.starts()) == []
        assert "Traceback" not in gateway.logged()


async def test_children_exit_when_the_gateway_is_killed(tmp_path: Path) -> None:
    quiet, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("hang"))
    # This server neither reads its input nor exits at its end.
    deaf = {"command": sys.executable, "args": ["-c", "import time\nwhile True: time.sleep(1000)"]}
    async with running_gateway(tmp_path, {"up": quiet, "deaf": deaf}) as gateway:
        await gateway.until_listed("up__hang")
        children = list(children_of(gateway.process.pid))
        assert set(record.starts()) < set(children)
        assert len(children) == 2
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(httpx2.TransportError):
                    await gateway.post(call_of("up__hang"))

            group.start_soon(ask)
            await record.until(lambda one: one.calls())
            assert await gateway.stop(signal.SIGKILL) == -signal.SIGKILL
        await until_ended(children)


async def test_killed_or_disconnected_stdio_gateway_ends_its_children(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(
        tmp_path, "up", tools=builtin_tools("hang"), faults={"spawn_grandchild": True}
    )
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        assert await gateway.stop() == 0
    for number, sign in enumerate((None, signal.SIGTERM, signal.SIGKILL)):
        starts = len(record.starts())
        async with running_host(tmp_path, "--config", str(gateway.config), "--state-dir", str(tmp_path / "s")) as host:
            await host.until_listed("up__hang")
            await record.until(lambda one, before=starts: len(one.starts()) > before)
            await host.send(call_of("up__hang", request_id="open"))
            await record.until(lambda one, before=number: len(one.calls()) > before)
            if sign is None:
                assert await host.leave(within_s=12) == 0
            else:
                host.process.send_signal(sign)
                with anyio.fail_after(25):
                    assert await host.process.wait() == (0 if sign == signal.SIGTERM else -sign)
        await until_ended(record.starts())
        if sign != signal.SIGKILL:
            assert alive(record.grandchildren()) == []
    for pid in alive(record.grandchildren()):
        os.kill(pid, signal.SIGKILL)


async def run_serve(config: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a `typegate serve` that is expected to exit; return its exit code and standard error."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TYPEGATE_ADMIN_TOKEN": "t", **environment}
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), *arguments]
    with anyio.fail_after(25):
        done = await anyio.run_process(command, env=env, check=False, stderr=subprocess.PIPE)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line"),
        ("mcpServers: [", "line"),
        ("[]", "object"),
        ('{"mcpServers": {"a": {}}}', "a"),
        ('{"mcpServers": {"a": {"command": 5}}}', "command"),
        ('{"mcpServers": {"a": {"url": "ftp://x"}}}', "url"),
        ('{"mcpServers": {"a": {"command": "${NOT_SET_ANYWHERE}"}}}', "NOT_SET_ANYWHERE"),
        ('{"mcpServers": {}, "gateway": {"listn": {}}}', "listen"),
        ('{"mcpServers": {}, "gateway": {"listen": {"port": "many"}}}', "port"),
    ],
)
async def test_invalid_configuration_stops_the_start_with_one_line(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    code, printed = await run_serve(config, "--port", "0", "--state-dir", str(tmp_path / "state"))
    assert code == 2, printed
    assert len(printed.strip().splitlines()) == 1, printed
    assert "bad.yaml" in printed
    assert words in printed
    assert "Traceback" not in printed


async def test_missing_file_and_occupied_port_are_one_line_each(tmp_path: Path) -> None:
    code, printed = await run_serve(tmp_path / "none.json", "--port", "0")
    assert (code, len(printed.strip().splitlines())) == (2, 1), printed
    assert "none.json" in printed
    async with running_gateway(tmp_path, {}) as gateway:
        port = gateway.origin.rpartition(":")[2]
        code, printed = await run_serve(gateway.config, "--port", port, "--state-dir", str(tmp_path / "second"))
        assert (code, len(printed.strip().splitlines())) == (2, 1), printed
        assert port in printed
        assert (await gateway.client.get(f"{gateway.origin}/healthz")).status_code == 200


async def test_public_address_without_a_key_is_refused_unless_insecure(tmp_path: Path) -> None:
    config = tmp_path / "open.json"
    config.write_text('{"mcpServers": {}}')
    for host in ("0.0.0.0", "::"):
        code, printed = await run_serve(config, "--host", host, "--port", str(unused_port()))
        assert (code, len(printed.strip().splitlines())) == (2, 1), printed
        assert "apiKeys" in printed
        assert "--insecure" in printed
    for name in ("insecure", "with-key"):
        (tmp_path / name).mkdir()
    async with running_gateway(tmp_path / "insecure", {}, arguments=("--host", "0.0.0.0", "--insecure")) as gateway:
        port = gateway.origin.rpartition(":")[2]
        assert (await gateway.client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
    keys = {"auth": {"apiKeys": [{"name": "a", "key": "a-key-that-nobody-finds-by-trying"}]}}
    async with running_gateway(
        tmp_path,
        {},
        gateway=keys,
        arguments=(
            "--host",
            "0.0.0.0",
        ),
    ) as gateway:
        port = gateway.origin.rpartition(":")[2]
        assert (await gateway.client.post(f"http://127.0.0.1:{port}/mcp", content=b"{}")).status_code == 401
