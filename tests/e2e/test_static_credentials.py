"""Static credentials are read again when they change, and never shown."""

from __future__ import annotations

import base64
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of

OLD, NEW = "Bearer old-token-8f3a2b1c", "Bearer new-token-77d1e0aa"


@dataclass(slots=True)
class Guarded:
    """A server that takes one Authorization header, and repeats in every refusal what it was sent."""

    url: str = ""
    takes: str = OLD
    seen: list[str] = field(default_factory=list)


@asynccontextmanager
async def guarded() -> AsyncIterator[Guarded]:
    server = Guarded()

    async def mcp(request: Request) -> Response:
        sent = request.headers.get("authorization", "")
        server.seen.append(sent)
        if sent != server.takes:
            echoed = {"error": f"bad credentials {sent}", "jsonrpc": "2.0", "id": 1}
            challenge = f'Bearer error="invalid_token", error_description="{sent}"'
            return JSONResponse(echoed, 401, headers={"www-authenticate": challenge, "x-echo": sent})
        message = await request.json()
        tool = {"name": "hello", "inputSchema": {"type": "object"}}
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "serverInfo": {"name": "g", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] not in results:
            error = {"code": -32601, "message": "no such method"}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    app = Starlette(routes=[Route("/mcp", mcp, methods=["POST"])])
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve, [listener])
        try:
            yield server
        finally:
            running.should_exit = running.force_exit = True
    listener.close()


async def until(gateway: RunningGateway, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    with anyio.move_on_after(12):
        while True:
            row = await gateway.server("g")
            if wanted(row):
                return row
            await brief_pause()
    raise AssertionError(row)


async def test_credential_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(OLD)
    async with guarded() as server:
        entry = {"url": server.url, "headers": {"Authorization": f"${{file:{token}}}"}}
        async with running_gateway(tmp_path, {"g": entry}) as gateway:
            await until(gateway, lambda row: row["state"] == "ready")
            server.takes = NEW
            result = await gateway.call("g__hello")
            assert result["isError"]
            row = await until(gateway, lambda row: row["lastError"] is not None and row["state"] == "waiting")
            shown = json.dumps([row, result]) + gateway.logged() + (await gateway.admin("config")).text
            assert "refused" in row["lastError"]
            assert "old-token" not in shown
            token.write_text(NEW)
            await until(gateway, lambda row: row["state"] == "ready")
            assert text_of(await gateway.call("g__hello")) == "hello"
            assert "new-token" not in gateway.logged()


@pytest.mark.heavy
async def test_header_command_runs_again_when_its_headers_are_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(OLD)
    program = f"import json, pathlib; print(json.dumps({{'Authorization': pathlib.Path({str(token)!r}).read_text()}}))"
    async with guarded() as server:
        entry = {"url": server.url, "headersCommand": [sys.executable, "-c", program]}
        async with running_gateway(tmp_path, {"g": entry}) as gateway:
            await until(gateway, lambda row: row["state"] == "ready")
            assert set(server.seen) == {OLD}
            # The file is not read again before a request is refused.
            token.write_text(NEW)
            assert text_of(await gateway.call("g__hello")) == "hello"
            with anyio.move_on_after(2.1):
                await anyio.sleep_forever()
            server.takes = NEW
            assert text_of(await gateway.call("g__hello")) == "hello"
            server.takes = "something else"
            result = await gateway.call("g__hello")
            row = await until(gateway, lambda row: row["lastError"] is not None)
            shown = json.dumps([row, result]) + gateway.logged()
            assert "token-" not in shown


@pytest.mark.parametrize(
    ("userinfo", "sent"),
    [
        pytest.param("ann:pass%2Fword-8f3a2b1c", "ann:pass/word-8f3a2b1c", marks=pytest.mark.heavy),
        ("token-8f3a2b1c77d1e0aa", "token-8f3a2b1c77d1e0aa:"),
        pytest.param(":only-pass-8f3a2b1c", ":only-pass-8f3a2b1c", marks=pytest.mark.heavy),
        ("%C3%A4nn:p%3Aw-8f3a2b1c!x", "änn:p:w-8f3a2b1c!x"),
    ],
)
@pytest.mark.heavy
async def test_userinfo_of_a_url_is_sent_as_basic_auth_and_never_shown(
    tmp_path: Path, userinfo: str, sent: str
) -> None:
    async with guarded() as server:
        encoded = base64.b64encode(sent.encode()).decode()
        url = server.url.replace("://", f"://{userinfo}@")
        server.takes = f"Basic {encoded}"
        refusing = {"url": url, "headers": {"authorization": "Bearer another-8f3a2b1c"}}
        async with running_gateway(tmp_path, {"open": {"url": url}, "explicit": refusing}) as gateway:
            await gateway.until_listed("open__hello")
            assert (await gateway.call("open__hello"))["content"][0]["text"] == "hello"
            for _ in range(100):
                row = await gateway.server("explicit")
                if "Bearer another-8f3a2b1c" in server.seen and row["lastError"]:
                    break
                await brief_pause()
            # A header that the entry has is sent in its place.
            assert set(server.seen) == {server.takes, "Bearer another-8f3a2b1c"}
            shown = [gateway.logged()]
            for path in (
                "servers",
                "servers/open",
                "servers/explicit",
                "config",
                "openapi.json",
                "overlay",
                "quarantine",
            ):
                shown.append((await gateway.admin(path)).text)
            preview = await gateway.admin("preview", "POST", {"name": "third", "config": {"url": url}})
            assert preview.json()["runs"] == server.url
            assert preview.json()["sends"] == ["Authorization"]
            shown.append(preview.text)
            added = await gateway.admin("servers", "POST", {"name": "fourth", "config": {"url": url}})
            assert added.status_code == 201
            await gateway.until_listed("fourth__hello")
            shown += [added.text, (await gateway.admin("overlay")).text, (await gateway.admin("audit")).text]
            command = [sys.executable, "-m", "gateway", "check", "--config", str(gateway.config), "--json"]
            checked = await anyio.run_process(command, check=False)
            shown += [checked.stdout.decode(), checked.stderr.decode()]
        shown += [
            file.read_text(errors="replace") for file in (tmp_path / "state").rglob("snapshot*") if file.is_file()
        ]
        secrets = {
            encoded,
            userinfo.strip(":").rpartition(":")[2],
            sent.strip(":").partition(":")[2] or sent.strip(":"),
        }
        for secret in secrets:
            assert not [text for text in shown if secret in text], secret
