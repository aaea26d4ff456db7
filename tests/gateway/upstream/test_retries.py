"""Pauses between attempts grow for every kind of failure, and start again where somebody wants a retry."""

from __future__ import annotations

import asyncio
import operator
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from support.certificates import authority
from support.raw_http import Peer, mcp, serving

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.upstream import link as links
from gateway.upstream.connector import connector_of
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_ports import LinkPorts
from gateway.upstream.link_states import Ready, Waiting
from gateway.upstream.transport.http_client import HttpClient

# With the least of each pause these are 0.25, 0.5, 1 and 2 s.
LEAST = 0.0


def linked(config: ServerConfig, client: HttpClient) -> UpstreamLink:
    return UpstreamLink("up", config, connector_of("up", config, client), LinkPorts(), chance=lambda: LEAST)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


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
}


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


async def test_pauses_grow_whether_or_not_the_port_accepts_connections(monkeypatch: pytest.MonkeyPatch) -> None:
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
            for kind in KINDS:
                group.start_soon(one, kind)
    client.close()
    for kind, found in pauses_s.items():
        assert all(map(operator.ge, found, [0.25, 0.5, 1, 2])), (kind, found)


async def test_a_process_that_exits_at_once_is_started_ever_more_seldom(tmp_path: Path) -> None:
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


async def test_a_certificate_that_is_not_trusted_is_not_tried_more_often(tmp_path: Path) -> None:
    client = HttpClient()
    tls = authority(tmp_path / "authority.pem").server("127.0.0.1")
    async with serving(hanging, tls=tls) as site, anyio.create_task_group() as group:
        link = linked(HttpConfig(url=site.url.replace("http:", "https:")), client)
        group.start_soon(link.run)
        await until(lambda: link._paused == 3)
        assert "certificate" in str(link.last_error)
        began_s = time.monotonic()
        await until(lambda: link._paused == 4)
        assert time.monotonic() - began_s >= 0.98
        link.close()
    client.close()


@pytest.mark.parametrize("how", ["refresh", "another entry"])
async def test_a_manual_retry_and_a_changed_entry_begin_with_short_pauses_again(how: str) -> None:
    client = HttpClient()
    async with serving(KINDS["a page"]) as site, anyio.create_task_group() as group:
        config = HttpConfig(url=site.url)
        link = linked(config, client)
        group.start_soon(link.run)
        await until(lambda: link._paused == 4 and isinstance(link.state, Waiting))
        began_s = time.monotonic()
        if how == "refresh":
            link.refresh()
        else:
            link.use(config.model_copy(update={"call_timeout": 7.0}))
        assert link._paused == 0
        await until(lambda: link._paused == 2)
        assert time.monotonic() - began_s < 1.5
        link.close()
    client.close()


async def test_a_server_that_comes_back_is_connected_at_once_while_its_port_has_refused() -> None:
    client = HttpClient()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = linked(HttpConfig(url=f"http://127.0.0.1:{port}/mcp"), client)
    async with anyio.create_task_group() as group:
        group.start_soon(link.run)
        await until(lambda: link._paused == 4 and isinstance(link.state, Waiting))
        began_s = time.monotonic()
        async with serving(mcp, port=port):
            await until(lambda: isinstance(link.state, Ready))
            assert time.monotonic() - began_s < 1.5
            link.close()
    client.close()
