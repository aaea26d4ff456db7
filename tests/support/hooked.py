"""Gateways with hooks for tests, callers of both eras on both routes, and what hooks have written down."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import HandshakeSession, handshake
from support.gateways import RunningGateway, answer_of, brief_pause, envelope, running_gateway
from support.upstreams.running import Recording, scripted_stdio_server, tool

SAMPLES = Path(__file__).parent / "hook_samples.py"
ERAS = ("modern", "handshake")
ROUTES = ("wrapper", "invoke_tool")
every_way = pytest.mark.parametrize(("era", "route"), [(era, route) for era in ERAS for route in ROUTES])


def sample(kind: str, /, **entry: Any) -> dict[str, Any]:
    """Return the entry of one of the sample hooks."""
    return {"name": kind.lower(), "path": f"{SAMPLES}:{kind}", **entry}


@dataclass(slots=True, kw_only=True)
class Hooked:
    """A gateway with one upstream `up`, and hooks."""

    gateway: RunningGateway
    recording: Recording
    path: Path
    session: HandshakeSession | None = None

    def seen(self, phase: str | None = None, by: str | None = None) -> list[dict[str, Any]]:
        """Return the entries that recording hooks have written."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [one for one in lines if phase in (None, one["phase"]) and by in (None, one["hook"])]

    def every_way(self) -> Iterator[tuple[str, str]]:
        """Yield each era with each route in turn; clear earlier recordings before each."""
        for era in ERAS:
            for route in ROUTES:
                for record in (self.path, self.recording.path):
                    if record.exists():
                        # The writers append, so they continue at the new end.
                        os.truncate(record, 0)
                yield era, route

    async def until_seen(self, count: int, phase: str | None = None, by: str | None = None) -> list[dict[str, Any]]:
        """Wait for this many lines, which another process writes."""
        with anyio.fail_after(25):
            while len(found := self.seen(phase, by)) < count:
                await brief_pause()
        return found

    async def ask(
        self, era: str, route: str, name: str, arguments: Any = None, *, request_id: Any = 7, **headers: str
    ) -> dict[str, Any]:
        """Call a tool of `up` and return the whole JSON-RPC answer."""
        sent: dict[str, Any] = {"name": f"up__{name}"} if route == "wrapper" else {"name": "invoke_tool"}
        if route == "wrapper":
            sent |= {} if arguments is None else {"arguments": arguments}
        else:
            inner = {} if arguments is None else {"arguments": arguments}
            sent["arguments"] = {"server": "up", "tool": name, **inner}
        return await self.rpc(era, "tools/call", sent, request_id=request_id, **headers)

    async def rpc(
        self, era: str, method: str, params: dict[str, Any], *, request_id: Any = 7, **headers: str
    ) -> dict[str, Any]:
        """Send one request of an era."""
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        if era == "modern":
            body["params"] = {**params, "_meta": envelope()}
            headers = {**headers, **({"mcp-name": params["uri"]} if "uri" in params else {})}
            return answer_of(await self.gateway.post(body, headers))
        if self.session is None or headers:
            self.session = await handshake(self.gateway, **headers)
        return answer_of(await self.session.post(body))

    async def hook(self, name: str) -> dict[str, Any]:
        """Return the row of one hook."""
        rows = (await self.gateway.admin("hooks")).json()["hooks"]
        row: dict[str, Any] = next(row for row in rows if row["name"] == name)
        return row


@asynccontextmanager
async def hooked(
    tmp_path: Path, *hooks: dict[str, Any], gateway: dict[str, Any] | None = None, server: dict[str, Any] | None = None,
    **script: Any,
) -> AsyncIterator[Hooked]:  # fmt: skip
    """Start a gateway with these hooks and a scripted upstream with the tools `echo` and `send`."""
    record = tmp_path / "hooks.jsonl"
    script.setdefault("tools", [tool("echo"), tool("send", "to", note="string")])
    config, recording = scripted_stdio_server(tmp_path, "up", **script)
    entries = [
        {**one, "config": {"record": str(record), "as": one["name"], **one.get("config", {})}}
        if str(SAMPLES) in one.get("path", "")
        else one
        for one in hooks
    ]
    options = {**(gateway or {}), "hooks": entries}
    async with running_gateway(tmp_path, {"up": {**config, **(server or {})}}, gateway=options) as running:
        if not (gateway or {}).get("auth"):
            await running.until_listed(f"up__{script['tools'][0]['name']}")
        yield Hooked(gateway=running, recording=recording, path=record)


def text_of_answer(answer: dict[str, Any]) -> str:
    """Return all texts of the result in a response."""
    return "\n".join(item.get("text", "") for item in answer["result"]["content"])
