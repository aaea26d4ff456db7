"""Processes that a test starts and observes, with raw JSON over stdin and stdout instead of an SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from support.gateways import terminate
from support.upstreams.running import children_of

_ROOT = Path(__file__).parents[2]
_LINE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class RawStdio:
    """One process and what it said besides answers."""

    process: Process
    output: BufferedByteReceiveStream
    others: list[dict[str, Any]] = field(default_factory=list)
    # Whether lines that are not JSON are skipped, as clients do; otherwise they fail the test.
    skips_noise: bool = False
    _last_id: int = 0

    async def send_message(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, *, within_s: float = 30) -> Any:
        """Send one request and return its result; an error or silence fails the test."""
        message = await self.reply(method, params, within_s=within_s)
        assert "result" in message, message
        return message["result"]

    async def reply(self, method: str, params: Mapping[str, Any] | None = None, *, within_s: float = 30) -> Any:
        """Send one request, and return the whole response, which may be an error."""
        self._last_id += 1
        await self.send_message({"id": self._last_id, "method": method, "params": dict(params or {})})
        with anyio.fail_after(within_s):
            while True:
                line = await self.output.receive_until(b"\n", _LINE_BYTES)
                if self.skips_noise and not line.startswith(b"{"):
                    continue
                message = json.loads(line)
                if message.get("id") == self._last_id and "method" not in message:
                    return message
                self.others.append(message)

    async def initialize(self, version: str = "2025-11-25") -> dict[str, Any]:
        """Shake hands and return the answer to `initialize`."""
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        answer: dict[str, Any] = await self.ask("initialize", hello)
        await self.send_message({"method": "notifications/initialized"})
        return answer

    async def tools(self) -> list[dict[str, Any]]:
        """Return every tool of every page, as sent."""
        tools: list[dict[str, Any]] = []
        page = await self.ask("tools/list")
        tools += page["tools"]
        while cursor := page.get("nextCursor"):
            page = await self.ask("tools/list", {"cursor": cursor})
            tools += page["tools"]
        return tools


@asynccontextmanager
async def raw_stdio(config: Mapping[str, Any], *, skips_noise: bool = False) -> AsyncIterator[RawStdio]:
    """Run what an `mcpServers` entry says; leaving closes its input, waits, and kills what does not end."""
    command = [config["command"], *config.get("args", [])]
    environment = {**os.environ, **config.get("env", {})}
    process = await anyio.open_process(
        command, stderr=subprocess.DEVNULL, env=environment, cwd=config.get("cwd"), start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield RawStdio(process=process, output=BufferedByteReceiveStream(process.stdout), skips_noise=skips_noise)
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(OSError, anyio.BrokenResourceError):
                await process.stdin.aclose()
        await terminate(process, is_signalled=True)


def typegate(*arguments: str) -> dict[str, Any]:
    """The command line as a host's configuration starts it."""
    return {"command": sys.executable, "args": ["-m", "gateway", *arguments], "env": {"PYTHONPATH": str(_ROOT)}}


def descendants_of(pid: int) -> list[int]:
    """All living processes below one."""
    children = list(children_of(pid))
    return children + [deeper for child in children for deeper in descendants_of(child)]


def still_running(pids: Iterable[int]) -> list[int]:
    """Those of these processes that are still there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
