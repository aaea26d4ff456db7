"""The first requests of eight hosts, replayed in order and with their pauses, are answered as each host expects.

`corpus/first_requests.json` has the requests. Those of hosts from npm were recorded from these versions between the
host and the gateway, one session over HTTP and one over stdio; those of Cursor and VS Code follow public reports. A
step is sent `pauseMs` after the answers to the steps in `after`, or after the step before it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from e2e.processes import RawStdio, raw_stdio, typegate
from support.gateways import META, MODERN, RunningGateway, messages_of, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server
from support.waiting import brief_pause

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "corpus/first_requests.json").read_text(encoding="utf-8")
)
# As long as the most patient host waits.
WITHIN_S = 60
TOOLS = {"up__echo", "up__progress", "invoke_tool", "get_server_details"}


def check(step: dict[str, Any], message: dict[str, Any]) -> None:
    """Check the parts of the response to one step that the host reads."""
    sent = step["message"]
    assert "result" in message, (sent, message)
    assert message["id"] == sent["id"]
    result = message["result"]
    match sent["method"]:
        case "initialize":
            assert result["protocolVersion"] == sent["params"]["protocolVersion"]
            assert result["serverInfo"]["name"] == "typegate"
            assert "tools" in result["capabilities"]
        case "server/discover":
            assert MODERN in result["supportedVersions"]
            assert "tools" in result["capabilities"]
        case "tools/list":
            # Hosts read a single page, or lose the tools of the others.
            assert {tool["name"] for tool in result["tools"]} == TOOLS
            assert "nextCursor" not in result
        case "prompts/list":
            assert [prompt["name"] for prompt in result["prompts"]] == ["gateway_tools"]
        case "resources/list":
            assert result["resources"] == []
        case method:
            assert method == "logging/setLevel", "every recorded request is checked"
    is_modern = META + "protocolVersion" in sent.get("params", {}).get("_meta", {})
    assert ("resultType" in result) == is_modern


class Replay:
    """One session of a host; a step waits for the answers that the host had when it sent it."""

    def __init__(self, steps: list[dict[str, Any]], group: TaskGroup) -> None:
        self.steps = steps
        self.answered = [anyio.Event() for _ in steps]
        self.group = group

    async def times(self) -> AsyncIterator[int]:
        """Yield the place of each step at its time."""
        for at, step in enumerate(self.steps):
            for before in step.get("after", ()):
                await self.answered[before].wait()
            await anyio.sleep(step.get("pauseMs", 0) / 1000)
            yield at


class HttpReplay(Replay):
    """The same over HTTP, with the headers of the host."""

    session = ""

    async def run(self, gateway: RunningGateway, url: str) -> None:
        """Send every step, and wait until all are answered; streams stay open until then."""
        async with AsyncExitStack() as streams:
            async for at in self.times():
                head = {name: self.session if value == "SESSION" else value for name, value in self._headers(at)}
                content = json.dumps(self.steps[at]["message"]).encode() if "message" in self.steps[at] else None
                opened = gateway.client.stream(
                    self.steps[at]["verb"], url, content=content, headers=head, timeout=WITHIN_S
                )
                if self._is_stream(at):
                    response = await streams.enter_async_context(opened)
                    assert response.status_code == 200
                    assert response.headers["content-type"].startswith("text/event-stream")
                    self.answered[at].set()
                else:
                    self.group.start_soon(self._answered, at, opened)
            for event in self.answered:
                await event.wait()

    def _headers(self, at: int) -> list[tuple[str, str]]:
        return [*self.steps[at]["headers"].items()]

    def _is_stream(self, at: int) -> bool:
        step = self.steps[at]
        return step["verb"] == "GET" or step.get("message", {}).get("method") == "subscriptions/listen"

    async def _answered(self, at: int, opened: Any) -> None:
        step = self.steps[at]
        async with opened as response:
            text = (await response.aread()).decode()
        if step["verb"] == "DELETE":
            assert response.status_code == 204
        elif "id" not in step["message"]:
            assert response.status_code == 202
        else:
            assert response.status_code == 200, text
            is_stream = response.headers["content-type"].startswith("text/event-stream")
            check(step, messages_of(text)[-1] if is_stream else json.loads(text))
            self.session = response.headers.get("mcp-session-id", self.session)
        self.answered[at].set()


class StdioReplay(Replay):
    """The same over standard streams."""

    async def run(self, process: RawStdio) -> None:
        """Send every step, and wait until all requests are answered."""
        self.group.start_soon(self._read, process)
        async for at in self.times():
            message = self.steps[at]["message"]
            await process.send_message(message)
            if "id" not in message:
                self.answered[at].set()
        for event in self.answered:
            await event.wait()
        self.group.cancel_scope.cancel()

    async def _read(self, process: RawStdio) -> None:
        places = {step["message"]["id"]: at for at, step in enumerate(self.steps) if "id" in step["message"]}
        while True:
            message = json.loads(await process.output.receive_until(b"\n", 1024 * 1024))
            if message.get("method") == "notifications/subscriptions/acknowledged":
                self.answered[places[message["params"]["_meta"][META + "subscriptionId"]]].set()
            elif "method" not in message:
                step = self.steps[places[message["id"]]]
                if step["message"]["method"] != "subscriptions/listen":
                    check(step, message)
                self.answered[places[message["id"]]].set()


@asynccontextmanager
async def replaying() -> AsyncIterator[TaskGroup]:
    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as group:
            yield group


def test_requests_of_eight_hosts_are_recorded() -> None:
    assert set(RECORDED) == {
        "claude-code", "codex", "copilot", "cursor", "gemini", "opencode", "qwen", "vscode",
    }  # fmt: skip
    for host, known in RECORDED.items():
        for transport in ("http", "stdio"):
            methods = [step["message"]["method"] for step in known[transport] if "message" in step]
            assert methods[0] in ("initialize", "server/discover"), host
            assert "tools/list" in methods, (host, transport)


async def test_first_requests_of_hosts_over_http_are_answered(tmp_path: Path) -> None:
    upstream, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "progress"))
    async with running_gateway(tmp_path, {"up": upstream}) as gateway:
        await gateway.until_listed("up__echo")
        async with anyio.create_task_group() as hosts:
            # All at once, as on the machine of a user who has several.
            for known in RECORDED.values():
                hosts.start_soon(_replay_http, known["http"], gateway)


async def _replay_http(steps: list[dict[str, Any]], gateway: RunningGateway) -> None:
    async with replaying() as group:
        await HttpReplay(steps, group).run(gateway, gateway.url)


@pytest.mark.heavy
async def test_first_requests_of_hosts_over_stdio_are_answered(tmp_path: Path) -> None:
    upstream, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "progress"))
    config, state = tmp_path / "typegate.json", tmp_path / "state"
    config.write_text(json.dumps({"mcpServers": {"up": upstream}}), encoding="utf-8")
    command = typegate("stdio", "--config", str(config), "--state-dir", str(state))
    async with raw_stdio(command) as process:
        # As when a host starts it again: the tools are stored.
        await process.initialize()
        with anyio.fail_after(WITHIN_S):
            while {tool["name"] for tool in await process.tools()} != TOOLS:
                await brief_pause()
    for known in RECORDED.values():
        async with raw_stdio(command) as process, replaying() as group:
            await StdioReplay(known["stdio"], group).run(process)
