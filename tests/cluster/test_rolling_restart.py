"""A rolling restart under load loses no call, mixes none up, and runs none twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import hello
from support.clusters import Cluster, running_cluster, running_store, start_again
from support.gateways import MODERN, brief_pause, envelope
from support.upstreams.running import scripted_http_server, tool

from gateway.http.http_client import HttpClient
from gateway.protocol.gateway_errors import ConnectionLost

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
CALLERS = 20
# 200 calls a second, if the machine is fast enough.
PAUSE_S = 0.1
DELAY_S = 1.0
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@dataclass(slots=True)
class Load:
    """Callers of both eras, and what became of their calls."""

    url: str
    made: int = 0
    lost: list[str] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)
    retries: Counter[str] = field(default_factory=Counter)
    ending: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for index in range(CALLERS):
                group.start_soon(self._caller, index)

    async def until_made(self, more: int) -> None:
        """Wait until that many more calls were begun."""
        wanted = self.made + more
        with anyio.fail_after(30):
            while self.made < wanted:
                await brief_pause()

    async def _caller(self, index: int) -> None:
        client, session, number = HttpClient(), dict[str, str](), index
        while not self.ending.is_set():
            number += CALLERS
            self.made += 1
            modern = index % 2 == 0
            for _ in range(200):
                answer = await self._once(client, session, number, modern=modern)
                if answer is None:
                    await brief_pause()
                    continue
                if "result" not in answer:
                    self.lost.append(f"{number}: {answer}")
                elif answer["result"].get("structuredContent") != {"n": number}:
                    self.crossed.append(f"{number}: {answer}")
                break
            else:
                self.lost.append(f"{number}: nobody has answered")
            with anyio.move_on_after(PAUSE_S):
                await self.ending.wait()
        client.close()

    async def _once(
        self, client: HttpClient, session: dict[str, str], number: int, *, modern: bool
    ) -> dict[str, Any] | None:
        """The answer to one try; None where nothing was run, so that it can be tried again."""
        params: dict[str, Any] = {"name": "up__echo", "arguments": {"n": number}}
        head = {**JSON, **session}
        if modern:
            params["_meta"] = envelope()
            head |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "up__echo"}
        elif not session:
            opened = await self._post(client, hello(), JSON)
            if opened is None or opened[0] != 200:
                return None
            session |= {"mcp-session-id": opened[1]["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            head |= session
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        answered = await self._post(client, body, head)
        if answered is None:
            return None
        status, _, text = answered
        if status in (404, 503):
            # Refused before anything was run: the session is gone, or the gateway is about to be.
            self.retries[str(status)] += 1
            if status == 404:
                session.clear()
            return None
        data = text.rpartition(b"data: ")[2] if text.startswith((b"event", b":", b"id", b"data")) else text
        found: dict[str, Any] = json.loads(data)
        return found if found.get("id") == number else {"error": f"status {status}: {text!r}"}

    async def _post(
        self, client: HttpClient, body: Any, head: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes] | None:
        try:
            async with client.send("POST", self.url, head, json.dumps(body).encode()) as response:
                return response.status, response.headers, await response.read()
        except ConnectionLost as lost:
            if lost.sent:
                return 599, {}, json.dumps({"id": body["id"], "error": f"lost: {lost}"}).encode()
            self.retries["not connected"] += 1
            return None


async def restart(cluster: Cluster, index: int, stack: AsyncExitStack) -> None:
    """End one gateway as an orchestrator does, and start it again with the state that it had."""
    one = cluster.gateways[index]
    one.process.send_signal(signal.SIGTERM)
    with anyio.fail_after(20):
        assert await one.process.wait() == 0
    assert "Traceback" not in one.logged()
    cluster.gateways[index] = again = await stack.enter_async_context(start_again(one.config.parent))
    with anyio.fail_after(20):
        while cluster.balancer.ports[index] not in cluster.balancer.ready:
            await brief_pause()
    await again.until_listed("up__echo")


async def test_rolling_restart_loses_mixes_up_and_repeats_no_call(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_cluster(
            tmp_path, {"up": up.config}, store={"url": store.url}, gateway={"drainDelay": DELAY_S}
        ) as cluster,
        AsyncExitStack() as stack,
    ):
        for one in cluster.gateways:
            await one.until_listed("up__echo")
        load = Load(cluster.any.url)
        async with anyio.create_task_group() as group:
            group.start_soon(load.run)
            await load.until_made(100)
            for index in range(3):
                await restart(cluster, index, stack)
            await load.until_made(100)
            load.ending.set()
        run = Counter(call["arguments"]["n"] for call in up.recording.calls("echo"))
        print(f"{load.made} calls, tried again: {dict(load.retries)}")
        assert load.lost == []
        assert load.crossed == []
        assert [number for number, times in run.items() if times != 1] == []
        assert len(run) == load.made
        assert load.made > 1_000
        # Every gateway has answered for others.
        rows = [(await one.admin("cluster")).json() for one in cluster.gateways]
        assert all(row["peers"].get("answered", 0) > 0 for row in rows[:1])
