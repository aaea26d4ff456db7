"""Starts scripted upstreams for a test: a server configuration to hand to the gateway, and the record."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from support.upstreams.scripted import builtin_tools
from support.waiting import brief_pause

__all__ = [
    "Recording",
    "ScriptedHttp",
    "builtin_tools",
    "children_of",
    "demo_config",
    "rescript",
    "scripted_http_server",
    "scripted_stdio_server",
    "tool",
    "unused_port",
]

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Recording:
    """All messages that one scripted upstream received, over all its starts."""

    path: Path

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the recorded events in order, or those of one kind."""
        if not self.path.exists():
            return []
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        events = [json.loads(line) for line in whole.splitlines()]
        return [one for one in events if event in (None, one["event"])]

    def calls(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return what came as tools/call: name, arguments, _meta, id and the raw params of each."""
        return [one for one in self.events("call") if name in (None, one["name"])]

    def requests(self, method: str | None = None) -> list[dict[str, Any]]:
        """Return the JSON-RPC requests that were no tools/call."""
        return [one for one in self.events("request") if method in (None, one["method"])]

    def http(self, path: str | None = None) -> list[dict[str, Any]]:
        """Return the HTTP requests: method, path and headers of each."""
        return [one for one in self.events("http") if path in (None, one["path"].partition("?")[0])]

    def cancelled(self) -> list[Any]:
        """Return the ids of the requests that were cancelled."""
        return [one["cancelled"] for one in self.events("cancelled")]

    def starts(self) -> list[int]:
        """Return the process id of each start."""
        return [one["pid"] for one in self.events("started")]

    def grandchildren(self) -> list[int]:
        """Return the process ids of the grandchildren."""
        return [one["grandchild"] for one in self.events("grandchild")]

    async def until(self, satisfied: Callable[[Recording], Any], *, within_s: float = 5) -> Any:
        """Wait for the record to satisfy a condition and return what it gave.

        The record belongs to another process and can only be looked at again.

        Raises:
            TimeoutError: it did not in time.
        """
        with anyio.fail_after(within_s):
            while not (found := satisfied(self)):
                await brief_pause()
        return found


def tool(name: str, /, *required: str, **properties: Any) -> dict[str, Any]:
    """Return a valid definition; the value of a property may be the name of its type."""
    shapes = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in required} | shapes}
    schema |= {"required": list(required)} if required else {}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema}


def demo_config(name: str) -> dict[str, Any]:
    """Return the configuration of a demo server: `calendar` or `bank`."""
    return {"command": sys.executable, "args": ["-m", f"gateway.demo.{name}"], "cwd": str(_ROOT)}


def scripted_stdio_server(tmp_path: Path, name: str, **script: Any) -> tuple[dict[str, Any], Recording]:
    """Write a script and return the configuration that runs it over stdio, with its record."""
    path = tmp_path / f"{name}.script.json"
    path.write_text(json.dumps(script), encoding="utf-8")
    recording = Recording(tmp_path / f"{name}.record.jsonl")
    # Without site-packages and the environment, the program starts faster and cannot use an SDK.
    program = ["-S", "-E", str(_HERE / "scripted_stdio.py")]
    options = ["--script", str(path), "--record", str(recording.path)]
    return {"command": sys.executable, "args": program + options}, recording


def rescript(config: dict[str, Any], recording: Recording, *, announce: bool = False, **script: Any) -> None:
    """Replace the script of a stdio upstream for its next start.

    Args:
        config: The entry that `scripted_stdio_server` returned.
        recording: The record it came with.
        announce: Also make the running process take over `tools` and say `list_changed`.
        script: The new script.
    """
    Path(config["args"][config["args"].index("--script") + 1]).write_text(json.dumps(script), encoding="utf-8")
    if announce:
        os.kill(recording.starts()[-1], signal.SIGUSR1)


@dataclass(slots=True, kw_only=True)
class ScriptedHttp:
    """A running scripted HTTP upstream."""

    script_path: Path
    recording: Recording
    legacy_sse_only: bool
    port: int = 0
    process: Process | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """The origin of every address of this server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address to configure."""
        return self.sse_url if self.legacy_sse_only else f"{self.origin}/mcp"

    @property
    def sse_url(self) -> str:
        """The address of the older HTTP+SSE transport."""
        return f"{self.origin}/sse"

    @property
    def config(self) -> dict[str, Any]:
        """The entry for `mcpServers`."""
        return {"type": "sse" if self.legacy_sse_only else "http", "url": self.url}

    async def start(self) -> None:
        """Start the process; its port stays the same over restarts."""
        program = [sys.executable, "-S", "-E", str(_HERE / "scripted_http.py"), "--port", str(self.port)]
        program += ["--script", str(self.script_path), "--record", str(self.recording.path)]
        self.process, self.port = await listening(program)

    async def stop(self) -> None:
        """Kill the process at once and wait for its end."""
        if self.process is None:
            return
        process, self.process = self.process, None
        await kill_and_wait(process)

    async def restart(self, **script: Any) -> None:
        """Kill the process, and start it again on the same port, optionally with another script."""
        await self.stop()
        if script:
            self.write(script)
        await self.start()

    def write(self, script: dict[str, Any]) -> None:
        """Replace the script for the next start or `announce`."""
        self.legacy_sse_only = bool(script.get("legacy_sse_only"))
        self.script_path.write_text(json.dumps(script), encoding="utf-8")

    def announce(self, **script: Any) -> None:
        """Make the running process take over `tools` of a new script and say `list_changed`."""
        self.write(script)
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)


@asynccontextmanager
async def scripted_http_server(tmp_path: Path, name: str, **script: Any) -> AsyncIterator[ScriptedHttp]:
    """Run a scripted upstream over HTTP for as long as the block lasts."""
    server = ScriptedHttp(
        script_path=tmp_path / f"{name}.script.json",
        recording=Recording(tmp_path / f"{name}.record.jsonl"),
        legacy_sse_only=False,
    )
    server.write(script)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def listening(program: list[str]) -> tuple[Process, int]:
    """Start a program that prints the port which it listens on: the process, and that port."""
    process = await anyio.open_process(program, stdin=subprocess.DEVNULL, stderr=None)
    assert process.stdout is not None
    printed = b""
    try:
        with anyio.fail_after(25):
            while not printed.endswith(b"\n"):
                printed += await process.stdout.receive()
        return process, int(printed)
    except BaseException:
        await kill_and_wait(process)
        raise


async def kill_and_wait(process: Process) -> None:
    """Kill a process at once and wait for its end."""
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await process.aclose()


def unused_port() -> int:
    """Return a port of 127.0.0.1 on which no program listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children_of(pid: int) -> Iterator[int]:
    """Yield the living child processes of a process (Linux)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                yield int(stat.parent.name)
