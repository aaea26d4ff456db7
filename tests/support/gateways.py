"""A real `typegate serve` process for a test, and a minimal client for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from support.forking import ForkedProcess, can_fork, fork_gateway
from support.waiting import brief_pause

from gateway.calls.builtin_tools import BUILTIN_TOOLS

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
TOKEN = "admin-token-of-the-test"
# Settings of a gateway whose administrators may add servers that are programs.
COMMANDS = {"admin": {"allowCommands": True}}
_ROOT = Path(__file__).parents[2]
# The message of the interpreter about a coroutine that refuses to end, up to the next line of the log.
_OF_HOSTILE_HOOKS = re.compile(r"Exception ignored in: <coroutine object Hostile.*?(?=^\d{4}-\d\d|\Z)", re.S | re.M)

# The lines that servers write to their standard error.
_OF_SERVERS = re.compile(r"^.* INFO stderr: .*$", re.M)


def envelope(**members: Any) -> dict[str, Any]:
    """Return the `_meta` of a 2026-07-28 request."""
    return {META + "protocolVersion": MODERN, META + "clientCapabilities": {}, **members}


@dataclass(slots=True, kw_only=True)
class RunningGateway:
    """One gateway process."""

    process: Process | ForkedProcess
    origin: str
    state_dir: Path
    config: Path
    client: httpx2.AsyncClient
    log: Path
    _tried_servers: bool = False

    @property
    def url(self) -> str:
        """Where MCP is served."""
        return f"{self.origin}/mcp"

    async def post(
        self, body: Any, headers: Mapping[str, str] | None = None, *, raw: bytes | None = None, timeout_s: float = 30
    ) -> httpx2.Response:
        """POST one message; modern headers are computed from it unless given."""
        head = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        meta = (body.get("params") or {}).get("_meta", {}) if isinstance(body, dict) else {}
        if isinstance(meta, dict) and META + "protocolVersion" in meta:
            head |= {"mcp-protocol-version": meta[META + "protocolVersion"], "mcp-method": body["method"]}
            if isinstance(body["params"].get("name"), str):
                head["mcp-name"] = body["params"]["name"]
        head |= headers or {}
        content = raw if raw is not None else json.dumps(body).encode()
        return await self.client.post(self.url, content=content, headers=head, timeout=timeout_s)

    async def rpc(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Send one 2026-07-28 request and return the whole JSON-RPC answer."""
        if method == "tools/list" and not self._tried_servers:
            self._tried_servers = True
            await self._until_tried()
        params = dict(params or {})
        params["_meta"] = envelope(**params.get("_meta", {}))
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return answer_of(await self.post(body, **options))

    async def call(self, name: str, arguments: Any = None, **options: Any) -> dict[str, Any]:
        """Call one tool and return its result; a JSON-RPC error fails the test."""
        params = {"name": name, "arguments": arguments if arguments is not None else {}}
        answer = await self.rpc("tools/call", params, **options)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def tools(self, **options: Any) -> dict[str, dict[str, Any]]:
        """Return the tools of `tools/list` by name, without those of the gateway itself."""
        answer = await self.rpc("tools/list", **options)
        own = {one["name"] for one in BUILTIN_TOOLS}
        return {tool["name"]: tool for tool in answer["result"]["tools"] if tool["name"] not in own}

    async def until_listed(self, *names: str, within_s: float = 30, **options: Any) -> dict[str, dict[str, Any]]:
        """Wait until every name is listed."""
        tools: dict[str, dict[str, Any]] = {}
        with anyio.move_on_after(within_s):
            while True:
                tools = await self.tools(**options)
                if all(name in tools for name in names):
                    return tools
                await brief_pause()
        raise AssertionError(f"not listed within {within_s} s: {set(names) - set(tools)}")

    async def admin(
        self, path: str, method: str = "GET", body: Any = None, token: str | None = TOKEN
    ) -> httpx2.Response:
        """Ask the admin API."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return await self.client.request(method, f"{self.origin}/admin/{path}", json=body, headers=headers)

    async def server(self, name: str) -> dict[str, Any]:
        """Return the row of one upstream."""
        row: dict[str, Any] = (await self.admin(f"servers/{name}")).json()
        return row

    async def _until_tried(self) -> None:
        """Wait until no server connects for the first time, but not for servers that never answer.

        The gateway itself waits a few seconds with its first list, which a busy machine exceeds.
        """
        with anyio.move_on_after(20):
            while True:
                answer = await self.admin("servers")
                if answer.status_code != 200 or all(row["state"] != "connecting" for row in answer.json()["servers"]):
                    return
                await brief_pause()

    def logged(self) -> str:
        """Everything on standard error so far."""
        return self.log.read_text(errors="replace")

    async def stop(self, sign: signal.Signals = signal.SIGTERM, *, within_s: float = 25) -> int:
        """Signal it and return its exit code."""
        self.process.send_signal(sign)
        with anyio.fail_after(within_s):
            return await self.process.wait()


def answer_of(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON-RPC message in a response, sent as JSON or as the last event of a stream."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return messages_of(response.text)[-1]
    answer: dict[str, Any] = response.json()
    return answer


def messages_of(text: str) -> list[dict[str, Any]]:
    """Return all messages of an event stream; an event without data only has an id."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and line != "data: "]


def text_of(result: Mapping[str, Any]) -> str:
    """Return the text of a result."""
    return "\n".join(item["text"] for item in result["content"] if item["type"] == "text")


@asynccontextmanager
async def running_gateway(
    tmp_path: Path,
    servers: Mapping[str, Any],
    *,
    gateway: Mapping[str, Any] | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    through: tuple[str, ...] = (),
    from_scratch: bool = False,
) -> AsyncIterator[RunningGateway]:
    """Start `typegate serve` on a free port with these servers; yields once it listens.

    Args:
        through: A command that ends in becoming the one it is given, under other limits.
        from_scratch: Another interpreter is started, whose command line says what it runs; others are forked.
    """
    config = tmp_path / "typegate.json"
    config.write_text(json.dumps({"mcpServers": dict(servers), "gateway": dict(gateway or {})}))
    async with serving(
        config, tmp_path, arguments=arguments, environment=environment, through=through, from_scratch=from_scratch
    ) as running:
        yield running


@asynccontextmanager
async def serving(
    config: Path,
    tmp_path: Path,
    *,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    through: tuple[str, ...] = (),
    from_scratch: bool = False,
) -> AsyncIterator[RunningGateway]:
    """Start `typegate serve` with a configuration file; its state and log are in `tmp_path`.

    A gateway that the test has not ended itself has to end well when asked to, with exit code 0 and without a traceback
    in its log.
    """
    state, log = tmp_path / "state", tmp_path / "gateway.log"
    command = ["serve", "--config", str(config), "--port", "0", "--state-dir", str(state), *arguments]
    env = {**os.environ, "TYPEGATE_ADMIN_TOKEN": TOKEN, "PYTHONPATH": str(_ROOT), **(environment or {})}
    process: Process | ForkedProcess
    with log.open("ab") as sink:
        said_before = sink.tell()
        if not (through or from_scratch) and can_fork(command, environment or {}):
            process = fork_gateway(command, env, sink.fileno())
        else:
            program = [*through, sys.executable, "-m", "gateway", *command]
            process = await anyio.open_process(program, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
    try:
        origin = await _until_listening(process, log, said_before)
        async with httpx2.AsyncClient(timeout=30) as client:
            yield RunningGateway(process=process, origin=origin, state_dir=state, config=config, client=client, log=log)
    except BaseException:
        await terminate(process)
        # The failure of a test rarely shows the cause, so print the log as well.
        print(_log_since(log, said_before)[-4000:])
        raise
    was_running = process.returncode is None
    await terminate(process)
    if was_running:
        assert process.returncode == 0, f"exit code {process.returncode}: {_log_since(log, said_before)[-4000:]}"
    new_log = _OF_SERVERS.sub("", _OF_HOSTILE_HOOKS.sub("", _log_since(log, said_before)))
    assert "Traceback" not in new_log, new_log[-4000:]


async def terminate(process: Process | ForkedProcess, *, is_signalled: bool = False) -> None:
    """End a process for good, killing one that does not end within 12 s of being asked to."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None and not is_signalled:
            process.terminate()
        with anyio.move_on_after(12):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await process.aclose()


async def _until_listening(process: Process | ForkedProcess, log: Path, said_before: int) -> str:
    with anyio.move_on_after(60):
        while process.returncode is None:
            for word in _log_since(log, said_before).split():
                if word.startswith("http://") and word.endswith("/mcp"):
                    return word.removesuffix("/mcp")
            # The port is only known from the log; there is no event to wait for.
            await brief_pause()
    raise AssertionError(f"the gateway did not start: {_log_since(log, said_before)[-2000:]}")


def _log_since(log: Path, before: int) -> str:
    return log.read_bytes()[before:].decode(errors="replace")
