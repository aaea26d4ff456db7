"""Hosts over Streamable HTTP and stdio."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from support.gateways import terminate
from support.hosts import Host, Message, abilities

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass(slots=True, kw_only=True, eq=False)
class HttpHost(Host):
    """A host over Streamable HTTP; each request has a separate stream."""

    url: str
    client: httpx2.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)
    statuses: dict[Any, int] = field(default_factory=dict)
    event_ids: list[tuple[str, Any]] = field(default_factory=list)  # the id of each event, and how it arrived
    _scopes: dict[Any, anyio.CancelScope] = field(default_factory=dict)

    async def send(self, message: Message) -> None:
        """POST one message; only a request is left running in the background."""
        if "method" in message and "id" in message:
            self._scopes[message["id"]] = anyio.CancelScope()
            self.group.start_soon(self._request, message)
        else:
            await self._request(message)

    async def _request(self, message: Message) -> None:
        method, number = message.get("method"), message.get("id")
        head = {"content-type": "application/json", "accept": "application/json, text/event-stream", **self.headers}
        if method != "initialize":
            head["mcp-protocol-version"] = self.version
        if self.modern:
            params = message.get("params") or {}
            named = params.get(_NAMED.get(str(method), "taskId" if str(method).startswith("tasks/") else ""))
            head |= {"mcp-method": str(method), **({"mcp-name": encoded(named)} if named is not None else {})}
        # A reply has the id of the other side's question, and does not belong to a request of this host.
        with (self._scopes.get(number) if method else None) or anyio.CancelScope():
            try:
                await self._exchange(message, head)
            except httpx2.HTTPError as broken:
                # Only this request is lost; it must not look as if an answer had come.
                self.receive({"id": number, "error": {"code": None, "message": repr(broken)}}, number)

    async def _exchange(self, message: Message, head: dict[str, str]) -> None:
        number, body = message.get("id"), json.dumps(message).encode()
        async with self.client.stream("POST", self.url, content=body, headers=head, timeout=60) as response:
            self.statuses[number] = response.status_code
            if message.get("method") == "initialize" and "mcp-session-id" in response.headers:
                self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await self._events(response, number)
            elif body := await response.aread():
                self.receive(json.loads(body), number)

    async def _events(self, response: httpx2.Response, via: Any) -> None:
        async for line in response.aiter_lines():
            if line.startswith("id:"):
                self.event_ids.append((line[3:].strip(), via))
            elif line.startswith("data:") and line[5:].strip():
                self.receive(json.loads(line[5:]), via)

    async def cancel(self, message_id: Any) -> None:
        """Cancel a modern request by closing its stream."""
        if self.modern:
            self._scopes[message_id].cancel()
        else:
            await Host.cancel(self, message_id)

    async def open_stream(self) -> None:
        """Open the GET stream of the session once; the modern era does not have one."""
        if not self.modern and "get" not in self._scopes:
            self._scopes["get"] = anyio.CancelScope()
            await self.group.start(self.listen)

    async def listen(
        self, since: str | None = None, *, via: str = "get", task_status: Any = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read the GET stream of the session until it ends, after the given event if there is one."""
        head = {**self.headers, "accept": "text/event-stream", "mcp-protocol-version": self.version}
        head |= {"last-event-id": since} if since is not None else {}
        with self._scopes.setdefault(via, anyio.CancelScope()):
            async with self.client.stream("GET", self.url, headers=head, timeout=60) as response:
                self.statuses[via] = response.status_code
                task_status.started()
                if response.status_code == 200:
                    await self._events(response, via)

    def hang_up(self, via: str = "get") -> None:
        """Cut a GET stream."""
        self._scopes.pop(via).cancel()


@dataclass(slots=True, kw_only=True, eq=False)
class StdioHost(Host):
    """A host that has started a process and speaks lines with it."""

    process: Process

    async def send(self, message: Message) -> None:
        """Write one line."""
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def read(self) -> None:
        """Take lines until the process ends them."""
        assert self.process.stdout is not None
        lines = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", 2**25)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
                return
            self.receive(json.loads(line), "stdio")


def encoded(value: str) -> str:
    """Return a header value in the encoding of 2026-07-28 for text that is not plain ASCII."""
    if value.isascii() and value.isprintable() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


@asynccontextmanager
async def http_host(
    url: str,
    version: str,
    client: httpx2.AsyncClient,
    *,
    headers: Mapping[str, str] | None = None,
    declared: Message | None = None,
) -> AsyncIterator[HttpHost]:
    """Connect a host over HTTP and initialize it."""
    async with anyio.create_task_group() as group:
        declared = abilities(version) if declared is None else declared
        host = HttpHost(
            version=version, declared=declared, group=group, url=url, client=client, headers=dict(headers or {})
        )
        await host.greet()
        yield host
        group.cancel_scope.cancel()


@asynccontextmanager
async def stdio_host(
    config: Mapping[str, Any], version: str, log: Path, *, declared: Message | None = None
) -> AsyncIterator[StdioHost]:
    """Start the command of an `mcpServers` entry as a host does, and initialize."""
    environment = {**os.environ, **config.get("env", {})}
    with log.open("ab") as sink:
        command = [config["command"], *config["args"]]
        process = await anyio.open_process(command, stdin=subprocess.PIPE, stderr=sink, env=environment)
    try:
        async with anyio.create_task_group() as group:
            declared = abilities(version) if declared is None else declared
            host = StdioHost(version=version, declared=declared, group=group, process=process)
            group.start_soon(host.read)
            await host.greet()
            yield host
            group.cancel_scope.cancel()
    finally:
        await terminate(process)
