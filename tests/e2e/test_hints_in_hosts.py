"""Claude Code, from npm, on a scripted model: what it offers at once, and when it asks its user."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.test_host_file_round_trip import HOSTS
from support.clients import installed
from support.gateways import running_gateway
from support.upstreams.running import scripted_stdio_server, tool

pytestmark = pytest.mark.heavy

_NAME = "mcp__gw__up__"


def events(content: list[dict[str, Any]], reason: str) -> bytes:
    """Return the stream with which the model API answers."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    found: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            begun = {**block, "input": {}}
        else:
            delta, begun = {"type": "text_delta", "text": block["text"]}, {**block, "text": ""}
        found += [
            {"type": "content_block_start", "index": index, "content_block": begun},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    found.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
    found.append({"type": "message_stop"})
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in found).encode()


@contextmanager
def scripted_model(calls: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a model that calls one of these tools in each turn; yield its address and the requests that it received."""
    requests: list[dict[str, Any]] = []

    class Model(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kind, answer = "text/event-stream", events([{"type": "text", "text": "Done."}], "end_turn")
            if not self.path.split("?")[0].endswith("/messages"):
                kind, answer = "application/json", b'{"input_tokens": 1}'
            elif body.get("tools"):
                turn = len(requests)
                requests.append(body)
                if turn < len(calls):
                    use = {"type": "tool_use", "id": f"toolu_{turn}", "name": calls[turn], "input": {}}
                    answer = events([use], "tool_use")
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_host_loads_pinned_tools_at_once_and_asks_its_user_if_a_rule_asks(tmp_path: Path) -> None:
    host = HOSTS["claude-code"]
    program = await anyio.to_thread.run_sync(lambda: installed.npm("host-claude-code", (host.package,)))
    upstream, record = scripted_stdio_server(tmp_path, "up", tools=[tool(name) for name in ("pinned", "asks", "plain")])
    upstream["tools"] = {"pinned": {"pinned": True}, "asks": {"pinned": True}}
    section = {
        "profiles": {"default": {"dialect": "claude-code", "disclosure": "eager"}},
        "policy": {"rules": [{"name": "asks", "ask": ["up__asks"]}]},
    }
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    async with running_gateway(tmp_path, {"up": upstream}, gateway=section) as gateway:
        await gateway.until_listed("up__pinned")
        (home / "mcp.json").write_text(json.dumps({"mcpServers": {"gw": {"type": "http", "url": gateway.url}}}))
        with scripted_model([f"{_NAME}pinned", f"{_NAME}asks"]) as (address, requests):
            command = [
                str(program / ".bin" / host.program), "-p", "go", "--mcp-config", str(home / "mcp.json"),
                "--strict-mcp-config", "--model", "claude-sonnet-4-5", "--allowedTools", f"{_NAME}pinned,{_NAME}asks",
            ]  # fmt: skip
            environment = {
                "HOME": str(home), "PATH": f"{installed.node22().parent}:{os.environ['PATH']}", "CI": "1",
                "ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "no-key", "ENABLE_TOOL_SEARCH": "true",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }  # fmt: skip
            with anyio.fail_after(120):
                done = await anyio.run_process(
                    command, cwd=home / "work", env=environment, stdin=subprocess.DEVNULL, check=False
                )
            assert done.returncode == 0, done.stdout + done.stderr
    offered = {one["name"]: one for one in requests[0]["tools"]}
    assert {f"{_NAME}pinned", f"{_NAME}asks"} <= set(offered)
    assert f"{_NAME}plain" not in offered or offered[f"{_NAME}plain"].get("defer_loading")
    # Later turns repeat the results of earlier ones.
    results = {
        block["tool_use_id"]: bool(block.get("is_error"))
        for turn in requests[1:]
        for message in turn["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    }
    # The user has allowed both tools, and no user is present to answer a question.
    assert results == {"toolu_0": False, "toolu_1": True}
    assert [call["name"] for call in record.calls()] == ["pinned"]
