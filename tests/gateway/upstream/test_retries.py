"""Pauses between attempts grow for every kind of failure, and are reset on request."""

from __future__ import annotations

import operator
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from support.certificates import authority
from support.raw_http import Peer, mcp, mcp_answer, message_of, serving
from support.waiting import until

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.http.http_client import HttpClient
from gateway.upstream import link as links
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import LinkPorts, Ready, Waiting
from gateway.upstream.session import connector_of

# With the least of each pause these are 0.25, 0.5, 1 and 2 s.
LEAST = 0.0


def linked(config: ServerConfig, client: HttpClient) -> UpstreamLink:
    return UpstreamLink("up", config, connector_of("up", config, client), LinkPorts(), chance=lambda: LEAST)


def answering(head: bytes, body: bytes = b"") -> Callable[[Peer], Awaitable[None]]:
    async def serve(peer: Peer) -> None:
        while True:
            await peer.request()
            peer.answer(body, head)

    return serve


async def closing(peer: Peer) -> None:
    await peer.request()


async def closing_at_once(peer: Peer) -> None:
    """Accept the connection alone."""


async def hanging(peer: Peer) -> None:
    await peer.request()
    await peer.reader.read()


def breaking(method: str) -> Callable[[Peer], Awaitable[None]]:
    """Serve until a message with this method comes, then close the connection."""

    async def serve(peer: Peer) -> None:
        while (message := message_of(await peer.request())).get("method") != method:
            peer.say(mcp_answer(message))

    return serve


def versioned(version: str | None) -> Callable[[Peer], Awaitable[None]]:
    async def serve(peer: Peer) -> None:
        while True:
            peer.say(mcp_answer(message_of(await peer.request()), {"protocolVersion": version, "capabilities": {}}))

    return serve


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
KINDS = {
    "a page": answering(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n", b"<!doctype html><title>App</title>"),
    "500": answering(b"HTTP/1.1 500 No\r\ncontent-type: text/html\r\n", b"<html>"),
    "502": answering(b"HTTP/1.1 502 No\r\n"),
    "401": answering(b"HTTP/1.1 401 No\r\n"),
    "403": answering(b"HTTP/1.1 403 No\r\n"),
    "404": answering(b"HTTP/1.1 404 No\r\n"),
    "429": answering(b"HTTP/1.1 429 No\r\n"),
    "a redirect": answering(b"HTTP/1.1 302 Found\r\nlocation: /login\r\n"),
    "JSON": answering(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n", b"{}"),
    "an empty answer": answering(b"HTTP/1.1 202 Accepted\r\n"),
    "a lost connection": closing,
    "a connection alone": closing_at_once,
    "no answer": hanging,
    "302 to itself": answering(b"HTTP/1.1 307 Again\r\nlocation: /mcp\r\n"),
    "no HTTP": answering(b"-ERR unknown command\r\n"),
    "an endless head": answering(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000),
    "compressed": answering(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\n", b"\x0b"),
    "an empty stream": answering(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"),
    "a stream of nothing": answering(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n", b": hi\n\n" * 9),
    "another answer": answering(JSON, b'{"jsonrpc": "2.0", "id": 99999999, "result": {}}'),
    "an error": answering(JSON, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "boom"}}'),
    "a version of tomorrow": versioned("2099-01-01"),
    "no version": versioned(None),
    "503 and a date": answering(b"HTTP/1.1 503 No\r\nretry-after: 0\r\n"),
    "lists that break": breaking("tools/list"),
    "a notification that breaks": breaking("notifications/initialized"),
}


FIRST_KINDS = list(KINDS)[:13]
FURTHER_KINDS = list(KINDS)[13:]


class Timed(UpstreamLink):
    """Notes how long each pause was."""

    async def _pause(self, seconds: float, *, probe_port: bool) -> None:
        began_s = time.monotonic()
        await super()._pause(seconds, probe_port=probe_port)
        self.pauses_s.append(time.monotonic() - began_s)

    @property
    def pauses_s(self) -> list[float]:
        found: list[float] = self.__dict__.setdefault("_pauses_s", [])
        return found


@pytest.mark.parametrize("kinds", [FIRST_KINDS, pytest.param(FURTHER_KINDS, marks=pytest.mark.heavy)])
@pytest.mark.heavy
async def test_pauses_grow_whether_or_not_the_port_accepts_connections(
    monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    # A handshake that hangs for longer than a sound connection lives is still a failure.
    monkeypatch.setattr(links, "SOUND_S", 0.1)
    pauses_s: dict[str, list[float]] = {}
    client = HttpClient()

    async def one(kind: str) -> None:
        async with serving(KINDS[kind]) as site, anyio.create_task_group() as group:
            config = HttpConfig(url=site.url, connectTimeout=0.2, headers={"authorization": "x"})  # type: ignore[call-arg]
            connector = connector_of("up", config, client)
            link = Timed("up", config, connector, LinkPorts(), chance=lambda: LEAST)
            group.start_soon(link.run)
            pauses_s[kind] = link.pauses_s
            await until(lambda: len(link.pauses_s) == 4)
            link.close()

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            for kind in kinds:
                group.start_soon(one, kind)
    client.close()
    for kind, found in pauses_s.items():
        assert all(map(operator.ge, found, [0.25, 0.5, 1, 2])), (kind, found)


ANSWERING = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == sys.argv[1]:
        {end}
    about = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}}, "serverInfo": {{}}}}
    results = {{"initialize": about, "tools/list": {{"tools": []}}}}
    if "id" in message:
        answer = {{"jsonrpc": "2.0", "id": message["id"]}}
        known = message["method"] in results
        answer |= {{"result": results[message["method"]]}} if known else {{"error": {{"code": -32601, "message": "?"}}}}
        print(json.dumps(answer), flush=True)
"""
PROCESSES = {
    "exits": ["-c", "raise SystemExit(1)"],
    "exits well": ["-c", ""],
    "is killed": ["-c", "import os; os.kill(os.getpid(), 9)"],
    "prints usage": ["-c", "print('usage: server [--stdio]')"],
    "prints a page": ["-c", "print('<html>' * 1000)"],
    "closes its output": ["-c", "import os, sys; os.close(1); sys.stdin.read()"],
    "exits at the handshake": ["-c", ANSWERING.format(end="sys.exit(3)"), "initialize"],
    "exits after the handshake": ["-c", ANSWERING.format(end="sys.exit(3)"), "notifications/initialized"],
    "exits at its list": ["-c", ANSWERING.format(end="sys.exit(3)"), "tools/list"],
    "exits after its list": [
        "-c", ANSWERING.format(end="import threading; threading.Timer(0.05, os._exit, [0]).start()"), "tools/list",
    ],
}  # fmt: skip
COMMANDS = {"is missing": "/no/such/program", "is a folder": "/", "is not executable": __file__}


@pytest.mark.heavy
async def test_failing_processes_are_restarted_with_growing_pauses() -> None:
    pauses_s: dict[str, list[float]] = {}
    client = HttpClient()

    async def one(kind: str, config: StdioConfig) -> None:
        link = Timed("up", config, connector_of("up", config, client), LinkPorts(), chance=lambda: LEAST)
        pauses_s[kind] = link.pauses_s
        async with anyio.create_task_group() as group:
            group.start_soon(link.run)
            await until(lambda: len(link.pauses_s) == 4)
            link.close()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for kind, program in PROCESSES.items():
                group.start_soon(one, kind, StdioConfig(command=sys.executable, args=["-S", "-E", *program]))
            for kind, command in COMMANDS.items():
                group.start_soon(one, kind, StdioConfig(command=command))
    client.close()
    for kind, found in pauses_s.items():
        assert all(map(operator.ge, found, [0.25, 0.5, 1, 2])), (kind, found)


@pytest.mark.heavy
async def test_process_that_exits_at_once_is_restarted_with_growing_pauses(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"open({str(starts)!r}, 'a').write('.')"
    link = linked(StdioConfig(command=sys.executable, args=["-S", "-E", "-c", program]), HttpClient())
    async with anyio.create_task_group() as group:
        group.start_soon(link.run)
        with anyio.fail_after(20):
            await until(lambda: starts.exists() and len(starts.read_text()) == 4)
            began_s = time.monotonic()
            await until(lambda: len(starts.read_text()) == 5)
        assert time.monotonic() - began_s >= 1.5
        link.close()


async def test_untrusted_certificate_is_not_retried_more_often(tmp_path: Path) -> None:
    client = HttpClient()
    tls = authority(tmp_path / "authority.pem").server("127.0.0.1")
    async with serving(hanging, tls=tls) as site, anyio.create_task_group() as group:
        link = linked(HttpConfig(url=site.url.replace("http:", "https:")), client)
        group.start_soon(link.run)
        await until(lambda: link._pause_count == 3)
        assert "certificate" in str(link.last_error)
        began_s = time.monotonic()
        await until(lambda: link._pause_count == 4)
        assert time.monotonic() - began_s >= 0.98
        link.close()
    client.close()


@pytest.mark.parametrize("how", ["refresh", "another entry"])
async def test_manual_retry_and_changed_entry_reset_the_pauses(how: str) -> None:
    client = HttpClient()
    async with serving(KINDS["a page"]) as site, anyio.create_task_group() as group:
        config = HttpConfig(url=site.url)
        link = linked(config, client)
        group.start_soon(link.run)
        await until(lambda: link._pause_count == 4 and isinstance(link.state, Waiting))
        began_s = time.monotonic()
        if how == "refresh":
            link.refresh()
        else:
            link.use(config.model_copy(update={"call_timeout": 7.0}))
        assert link._pause_count == 0
        await until(lambda: link._pause_count == 2)
        assert time.monotonic() - began_s < 1.5
        link.close()
    client.close()


async def test_server_whose_port_refused_is_connected_as_soon_as_it_returns() -> None:
    client = HttpClient()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = linked(HttpConfig(url=f"http://127.0.0.1:{port}/mcp"), client)
    async with anyio.create_task_group() as group:
        group.start_soon(link.run)
        await until(lambda: link._pause_count == 4 and isinstance(link.state, Waiting))
        began_s = time.monotonic()
        async with serving(mcp, port=port):
            await until(lambda: isinstance(link.state, Ready))
            assert time.monotonic() - began_s < 1.5
            link.close()
    client.close()
