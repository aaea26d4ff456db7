"""Everything that can stand between a caller and the bench upstream, as processes with a URL."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from support.clients.installed import node, npm, venv
from support.gateways import running_gateway

from gateway.http import http_client as upstream_http
from gateway.http.http_client import HttpClient

MODERN = "2026-07-28"
FASTMCP = ("fastmcp==4.1.2",)
MCP_PROXY = ("mcp-proxy==0.12.0", "mcp==1.30.0")
SUPERGATEWAY = ("supergateway@4.0.0",)
ARGUMENTS = {"query": "q" * 200, "path": "/srv/data/reports", "limit": 25, "recursive": True}
_HERE = Path(__file__).parent
_ENVELOPE = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
_JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
_ids = itertools.count(1)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The bench holds as many connections as it has callers.
upstream_http.MAX_IDLE = 1024


@dataclass(slots=True)
class Contender:
    """One way to the upstream.

    Attributes:
        name: The printed name.
        url: Where it is called.
        tool: What the tool is called there.
        pids: The processes that are the proxy; none for a direct call.
        modern: Speak 2026-07-28 to it; otherwise a session of 2025-11-25.
        pace: How many calls to give it, as a part of what the quickest gets.
    """

    name: str
    url: str
    tool: str = "tool_0001"
    pids: tuple[int, ...] = ()
    modern: bool = True
    pace: float = 1.0
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, method: str, **params: Any) -> tuple[dict[str, str], bytes]:
        """Headers and body of one request."""
        headers = {**_JSON, **self.headers}
        if self.modern:
            params["_meta"] = _ENVELOPE
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
        # In a session no two requests may have one id at the same time.
        begin = b'{"jsonrpc":"2.0","id":%d,' % next(_ids)
        return headers, begin + orjson.dumps({"method": method, "params": params})[1:]

    def call(self) -> tuple[dict[str, str], bytes]:
        """One call of a tool."""
        return self.request("tools/call", name=self.tool, arguments=ARGUMENTS)

    def cpu_s(self) -> float:
        """CPU time that its processes have used."""
        return sum(map(cpu_s, self.pids))

    async def begin(self, client: HttpClient, within_s: float = 60) -> None:
        """Wait until it answers; open a session where it wants one."""
        with anyio.fail_after(within_s):
            while True:
                try:
                    if not self.modern:
                        await self.initialize(client)
                    headers, body = self.call()
                    async with client.send("POST", self.url, headers, body) as response:
                        answer = await response.read()
                    if response.status == 200 and b'"result"' in answer and b'"isError":true' not in answer:
                        return
                except Exception:  # noqa: BLE001 - whatever it is, it is not ready
                    self.headers.clear()
                await anyio.sleep(0.2)

    async def initialize(self, client: HttpClient) -> None:
        """Open a session, and use it from now on."""
        self.headers.clear()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        headers, body = self.request("initialize", **hello)
        async with client.send("POST", self.url, headers, body) as response:
            await response.read()
            session = response.headers.get("mcp-session-id")
        if session is not None:
            self.headers["mcp-session-id"] = session
        self.headers["mcp-protocol-version"] = "2025-11-25"
        notification = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        async with client.send("POST", self.url, {**_JSON, **self.headers}, notification) as response:
            await response.read()


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_port() -> int:
    """Return a port on which no program listens at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def upstream_command(
    tools: int, size_bytes: int = 500, *, words: int = 1, file: Path | None = None, stdio: bool = False
) -> list[str]:
    """How to start the bench upstream."""
    command = [sys.executable, str(_HERE / "upstream.py"), "--tools", str(tools), "--size-bytes", str(size_bytes)]
    if file is not None:
        command += ["--file", str(file)]
    return [*command, "--words", str(words), *(["--stdio"] if stdio else [])]


@asynccontextmanager
async def process(command: list[str], environment: Mapping[str, str] | None = None) -> AsyncIterator[anyio.abc.Process]:
    """A program for as long as the block lasts."""
    env = {**os.environ, **(environment or {})}
    async with await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@asynccontextmanager
async def direct(
    tools: int, size_bytes: int = 500, *, words: int = 1, file: Path | None = None
) -> AsyncIterator[Contender]:
    """The bench upstream over HTTP."""
    async with process(upstream_command(tools, size_bytes, words=words, file=file)) as running:
        assert running.stdout is not None
        port = (await running.stdout.receive()).strip().decode()
        yield Contender("direct", f"http://127.0.0.1:{port}/mcp", pids=(running.pid,))


@asynccontextmanager
async def typegate(name: str, server: Mapping[str, Any], *arguments: str) -> AsyncIterator[Contender]:
    """This gateway before one server."""
    with tempfile.TemporaryDirectory() as tmp:
        server = {"maxConcurrency": 1000, **server}
        async with running_gateway(Path(tmp), {"b": server}, arguments=arguments) as gateway:
            await gateway.until_listed("b__tool_0001", within_s=60)
            yield Contender(name, gateway.url, tool="b__tool_0001", pids=(gateway.process.pid,))


@asynccontextmanager
async def peer(name: str, command: list[str], port: int, *, modern: bool, pace: float) -> AsyncIterator[Contender]:
    """Another proxy."""
    async with process(command) as running:
        yield Contender(name, f"http://127.0.0.1:{port}/mcp", pids=(running.pid,), modern=modern, pace=pace)


@asynccontextmanager
async def program(command: list[str], upstream_url: str) -> AsyncIterator[Contender]:
    """A program of one's own between the caller and the upstream; its name is that of its last option."""
    port = free_port()
    with tempfile.TemporaryDirectory() as tmp:
        config = Path(tmp) / "config.json"
        config.write_bytes(orjson.dumps({"mcpServers": {"b": {"url": upstream_url}}}))
        whole = [*command, "--config", str(config), "--port", str(port)]
        async with process(whole) as running:
            url = f"http://127.0.0.1:{port}/mcp"
            yield Contender(f"program {command[-1]}", url, tool="b__tool_0001", pids=(running.pid,))


def peer_commands(upstream_url: str, tools: int, size_bytes: int) -> list[tuple[str, list[str], int, float]]:
    """Name, command, port and pace of every peer that can be installed here."""
    ports = [free_port() for _ in range(5)]
    fastmcp, sdk = _HERE / "peers/fastmcp_proxy.py", _HERE / "peers/sdk_proxy.py"
    stdio = upstream_command(tools, size_bytes, stdio=True)
    fastmcp_python, mcp_proxy_python = str(venv("fastmcp", FASTMCP)), str(venv("mcp-proxy", MCP_PROXY))
    supergateway = npm("supergateway", SUPERGATEWAY) / "supergateway/dist/index.js"
    return [
        ("SDK proxy", [sys.executable, str(sdk), upstream_url, str(ports[0])], ports[0], 0.2),
        ("FastMCP, one client", [fastmcp_python, str(fastmcp), upstream_url, str(ports[1]), "shared"], ports[1], 0.1),
        ("FastMCP", [fastmcp_python, str(fastmcp), upstream_url, str(ports[2])], ports[2], 0.02),
        (
            "mcp-proxy → stdio",
            [mcp_proxy_python, "-m", "mcp_proxy", "--port", str(ports[3]), "--log-level", "ERROR", "--", *stdio],
            ports[3],
            0.3,
        ),
        (
            "supergateway → stdio",
            [
                str(node()), str(supergateway), "--stdio", " ".join(stdio), "--outputTransport", "streamableHttp",
                "--stateful", "--port", str(ports[4]), "--logLevel", "none",
            ],
            ports[4],
            0.3,
        ),
    ]  # fmt: skip


async def load(
    client: HttpClient, contender: Contender, calls: int, width: int, method: str = "tools/call"
) -> tuple[float, list[float]]:
    """Send `calls` requests, `width` at a time: the seconds of all together, and of each."""
    took: list[float] = []
    left = calls
    one = contender.call if method == "tools/call" else lambda: contender.request(method)
    requests = [one() for _ in range(calls)]

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            headers, body = requests[left]
            began_s = time.perf_counter()
            async with client.send("POST", contender.url, headers, body) as response:
                answer = await response.read()
            took.append(time.perf_counter() - began_s)
            if response.status != 200 or b'"isError":true' in answer or b'"result"' not in answer:
                raise RuntimeError(f"{contender.name}: {response.status} {answer[:300]!r}")

    began_s = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(width):
            group.start_soon(caller)
    return time.perf_counter() - began_s, took
