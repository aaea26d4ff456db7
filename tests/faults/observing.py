"""Observe a gateway from outside: its memory, its announcements, and the processes that it left."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from support.gateways import MODERN, RunningGateway, brief_pause, envelope

MIB = 2**20


def rss_of(pid: int) -> int:
    """Return the resident memory of a process in bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def descriptors_of(pid: int) -> int:
    """Return how many descriptors a process holds (Linux)."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def eventually(satisfied: Callable[[], Any], *, within_s: float = 25) -> Any:
    """Wait for a condition that other processes bring about and return what it gave."""
    with anyio.fail_after(within_s):
        while not (found := satisfied()):
            await brief_pause()
    return found


async def until_server(
    gateway: RunningGateway, name: str, satisfied: Callable[[dict[str, Any]], Any], *, within_s: float = 25
) -> dict[str, Any]:
    """Wait until the admin row of an upstream satisfies a condition."""
    row: dict[str, Any] = {}
    with anyio.move_on_after(within_s):
        while not satisfied(row := await gateway.server(name)):
            await brief_pause()
        return row
    raise AssertionError(f"not within {within_s} s: {row}")


async def append_result(gateway: RunningGateway, name: str, arguments: Any, answers: list[dict[str, Any]]) -> None:
    """Call one tool and append its result: for a task group."""
    answers.append(await gateway.call(name, arguments))


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with (Linux)."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if pair)


@dataclass(slots=True)
class Announcements:
    """Counts the list changes that a subscribed caller was notified of.

    Attributes:
        methods: The methods of all messages.
        messages: The messages themselves.
    """

    methods: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """Return how many changes of the tool list were announced."""
        return self.methods.count("notifications/tools/list_changed")


@asynccontextmanager
async def announcements(
    gateway: RunningGateway, *, meta: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Announcements]:
    """Subscribe to changes of the tool list, and to more, for as long as the block lasts."""
    announced = Announcements()
    method = "subscriptions/listen"
    params = {"notifications": {"toolsListChanged": True, **more}, "_meta": meta or envelope()}
    body = {"jsonrpc": "2.0", "id": "listen", "method": method, "params": params}
    head = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method}

    async def listen() -> None:
        async with (
            httpx2.AsyncClient(timeout=None) as client,
            client.stream("POST", gateway.url, json=body, headers=head) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    announced.messages.append(json.loads(line[6:]))
                    announced.methods.append(announced.messages[-1].get("method"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await eventually(lambda: announced.methods)
        yield announced
        tasks.cancel_scope.cancel()
