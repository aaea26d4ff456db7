"""Callers of a gateway: a handshake-era session over HTTP, a host over stdio, and plain bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from support.gateways import TOKEN, RunningGateway, answer_of, brief_pause, envelope, terminate

_ROOT = Path(__file__).parents[2]


def call_of(name: str, arguments: Any = None, *, request_id: Any = 1, **meta: Any) -> dict[str, Any]:
    """Return a 2026-07-28 `tools/call` request."""
    params = {"name": name, "arguments": arguments or {}, "_meta": envelope(**meta)}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def listen_to(request_id: Any = "listen-1") -> dict[str, Any]:
    """Return a 2026-07-28 `subscriptions/listen` request for changed tools."""
    params = {"notifications": {"toolsListChanged": True}, "_meta": envelope()}
    return {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}


@dataclass(slots=True, kw_only=True)
class HandshakeSession:
    """One session of the handshake era over HTTP."""

    gateway: RunningGateway
    headers: dict[str, str]

    async def post(self, body: Any) -> httpx2.Response:
        """POST one message of the session."""
        return await self.gateway.post(body, self.headers)

    async def call(self, name: str, arguments: Any = None, *, request_id: Any = 1, **meta: Any) -> dict[str, Any]:
        """Call one tool and return the whole JSON-RPC answer."""
        params = {"name": name, "arguments": arguments or {}, **({"_meta": meta} if meta else {})}
        body = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        return answer_of(await self.post(body))

    async def notify(self, method: str, **params: Any) -> None:
        """Send one notification."""
        response = await self.post({"jsonrpc": "2.0", "method": method, "params": params})
        assert response.status_code == 202, response.text


def hello(version: str = "2025-11-25", request_id: Any = 0) -> dict[str, Any]:
    """Return an `initialize` request."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "caller", "version": "1"}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}


async def handshake(gateway: RunningGateway, **headers: str) -> HandshakeSession:
    """Open a session of the handshake era."""
    opened = await gateway.post(hello(), headers)
    assert opened.status_code == 200, opened.text
    version = opened.json()["result"]["protocolVersion"]
    head = {**headers, "mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": version}
    session = HandshakeSession(gateway=gateway, headers=head)
    await session.notify("notifications/initialized")
    return session


class Stream:
    """An open event stream, message by message."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self, within_s: float = 25) -> dict[str, Any]:
        """Return the next message; the end of the stream fails the test."""
        with anyio.fail_after(within_s):
            async for line in self._lines:
                if line.startswith("data: ") and line != "data: ":
                    message: dict[str, Any] = json.loads(line[6:])
                    return message
        raise AssertionError("the stream ended")

    async def rest(self, within_s: float = 25) -> list[dict[str, Any]]:
        """Everything until the stream's end."""
        with anyio.fail_after(within_s):
            return [
                json.loads(line[6:]) async for line in self._lines if line.startswith("data: ") and line != "data: "
            ]


@asynccontextmanager
async def get_stream(session: HandshakeSession) -> AsyncIterator[Stream]:
    """Open the GET stream of a session."""
    head = {**session.headers, "accept": "text/event-stream"}
    async with session.gateway.client.stream("GET", session.gateway.url, headers=head, timeout=30) as response:
        assert response.status_code == 200
        yield Stream(response)


@asynccontextmanager
async def post_stream(gateway: RunningGateway, body: dict[str, Any]) -> AsyncIterator[Stream]:
    """Send a modern request and read its response as a stream."""
    head = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
        "mcp-method": body["method"],
    }  # fmt: skip
    if "name" in body["params"]:
        head["mcp-name"] = body["params"]["name"]
    async with gateway.client.stream("POST", gateway.url, json=body, headers=head, timeout=30) as response:
        assert response.status_code == 200
        yield Stream(response)


async def raw_exchange(gateway: RunningGateway, *parts: bytes, within_s: float = 25) -> bytes:
    """Send bytes as they are and return what comes back until the other side closes."""
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    received = b""
    with anyio.fail_after(within_s):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            try:
                for part in parts:
                    await stream.send(part)
                while True:
                    received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received


def raw_post(body: bytes, *headers: str, host: str = "127.0.0.1", path: str = "/mcp", length: bool = True) -> bytes:
    """Return the bytes of a POST request that closes the connection."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", "connection: close", *headers]
    lines += [f"content-length: {len(body)}"] if length else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def status_of(received: bytes) -> int:
    """Return the status of a raw response, 0 if the connection was closed without one."""
    return int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/1.1 ") else 0


@dataclass(slots=True, kw_only=True)
class Host:
    """A host that has started `typegate stdio` and speaks lines with it."""

    process: Process
    log: Path
    lines: BufferedByteReceiveStream
    received: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, *messages: Any) -> None:
        """Send messages; bytes go as they are."""
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            await self.process.stdin.send(line + b"\n")

    async def until(self, wanted: Callable[[dict[str, Any]], Any], within_s: float = 25) -> dict[str, Any]:
        """Return the first message that matches, already received or still to come."""
        for message in self.received:
            if wanted(message):
                return message
        with anyio.fail_after(within_s):
            while True:
                message = json.loads(await self.lines.receive_until(b"\n", 2**25))
                self.received.append(message)
                if wanted(message):
                    return message

    async def answer(self, request: dict[str, Any], within_s: float = 25) -> dict[str, Any]:
        """Send one request and return its answer."""
        await self.send(request)
        return await self.until(lambda one: "method" not in one and one.get("id") == request["id"], within_s)

    async def until_listed(self, *names: str, within_s: float = 25) -> None:
        """Wait until every name is listed, asking in the handshake era."""
        count = 0
        with anyio.fail_after(within_s):
            while True:
                count += 1
                answer = await self.answer({"jsonrpc": "2.0", "id": f"list-{count}", "method": "tools/list"})
                if set(names) <= {tool["name"] for tool in answer["result"]["tools"]}:
                    return
                await brief_pause()

    async def leave(self, within_s: float = 25) -> int:
        """Close standard input and return the exit code."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        with anyio.fail_after(within_s):
            return await self.process.wait()


@asynccontextmanager
async def running_host(
    tmp_path: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Host]:
    """Start `typegate stdio` with these arguments."""
    log = tmp_path / "host.log"
    env = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN, "PYTHONPATH": str(_ROOT), **(environment or {})}
    with log.open("ab") as sink:
        command = [sys.executable, "-m", "gateway", "stdio", *arguments]
        process = await anyio.open_process(command, stdin=subprocess.PIPE, stderr=sink, env=env)
    assert process.stdout is not None
    try:
        yield Host(process=process, log=log, lines=BufferedByteReceiveStream(process.stdout))
    finally:
        await terminate(process)
