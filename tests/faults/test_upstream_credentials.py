"""Credentials that upstreams repeat reach no caller, administrator or log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_http_server, tool

TOKEN = "up-5ecret-0123456789"


async def everything_shown(gateway: RunningGateway) -> str:
    """All that administrators are shown, and the log."""
    shown = [(await gateway.admin(path)).text for path in ("servers", "wrappers", "quarantine", "failures", "profiles")]
    return "".join([*shown, gateway.logged()])


def rpc_refusal(status: int) -> dict[str, Any]:
    error = {"code": -32001, "message": f"Authorization: Bearer {TOKEN} was refused", "data": {"sent": TOKEN}}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return {"code": status, "body": body, "content_type": "application/json"}


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("status", [401, 403, 400, 500])
async def test_upstream_refusal_repeating_a_credential_is_scrubbed(tmp_path: Path, status: int, modern: bool) -> None:
    async with scripted_http_server(tmp_path, "h", tools=builtin_tools("status", "echo"), modern=modern) as http:
        config = {**http.config, "headers": {"Authorization": f"Bearer {TOKEN}"}}
        async with running_gateway(tmp_path, {"h": config}) as gateway:
            await gateway.until_listed("h__echo")
            # The script sends a text body without changes.
            answer = await gateway.rpc("tools/call", {"name": "h__status", "arguments": rpc_refusal(status)})
            assert TOKEN not in json.dumps(answer)
            assert "isError" in answer["result"]
            if status in (401, 403):
                assert f"HTTP {status}: the credentials were refused" in text_of(answer["result"])
            assert TOKEN not in await everything_shown(gateway)
            assert "isError" not in await gateway.call("h__echo")


async def test_error_or_failed_result_with_status_200_is_scrubbed(tmp_path: Path) -> None:
    failed = {"content": [{"type": "text", "text": f"401 for Bearer {TOKEN}"}], "isError": True}
    succeeded = {"content": [{"type": "text", "text": f"you are {TOKEN}"}]}
    listed = {**tool("described"), "description": f"Signed in with {TOKEN}."}
    tools = [*builtin_tools("error", "result", "log", "echo"), listed]
    async with scripted_http_server(tmp_path, "h", tools=tools, instructions=f"Uses {TOKEN}.") as http:
        config = {**http.config, "headers": {"X-Api-Key": "${UP_VALUE}"}}
        environment = {"UP_VALUE": TOKEN}
        async with running_gateway(tmp_path, {"h": config}, environment=environment) as gateway:
            assert TOKEN not in str(await gateway.until_listed("h__echo"))
            arguments = {"code": -32050, "message": f"bad key {TOKEN}", "data": {"headers": {"x-api-key": TOKEN}}}
            error = await gateway.rpc("tools/call", {"name": "h__error", "arguments": arguments})
            assert "bad key" in json.dumps(error)
            assert TOKEN not in json.dumps(error)
            result = await gateway.call("h__result", {"result": failed})
            assert "401 for Bearer" in text_of(result)
            assert TOKEN not in json.dumps(result)
            # The result of a call is forwarded unchanged.
            assert (await gateway.call("h__result", {"result": succeeded}))["content"] == succeeded["content"]
            assert TOKEN not in await everything_shown(gateway)


async def test_failed_handshake_with_credential_and_escapes_is_scrubbed(tmp_path: Path) -> None:
    refusal = {"error": {"code": -32000, "message": f"\x1b[31mno {TOKEN}\x1b]0;owned\x07\nforged line"}}
    faults = {"error": {**refusal["error"], "on": ["initialize"]}}
    async with scripted_http_server(tmp_path, "h", faults=faults) as http:
        config = {**http.config, "headers": {"Authorization": f"Bearer {TOKEN}"}, "callTimeout": 1}
        async with running_gateway(tmp_path, {"h": config}) as gateway:
            with anyio.fail_after(25):
                while not (row := await gateway.server("h"))["lastError"]:
                    await brief_pause()
            assert row["lastError"] == "no [hidden] forged line"
            answer = await gateway.call("h__anything")
            shown = await everything_shown(gateway) + json.dumps(answer)
            assert TOKEN not in shown
            assert "\x1b" not in shown
            assert not any(line.startswith("forged") for line in gateway.logged().splitlines())


async def test_child_printing_its_environment_is_logged_without_secrets(tmp_path: Path) -> None:
    program = "import os, sys; print(dict(os.environ), file=sys.stderr); print(sys.argv[1:], file=sys.stderr)"
    config = {
        "command": sys.executable,
        "args": ["-c", program, "--password", "hunter-7"],
        "env": {"UP_PASSWORD": TOKEN, "LOG_LEVEL": "verbose"},
    }
    async with running_gateway(tmp_path, {"h": config}) as gateway:
        with anyio.fail_after(25):
            while "--password" not in gateway.logged():
                await brief_pause()
        assert "'LOG_LEVEL': 'verbose'" in gateway.logged()
        shown = await everything_shown(gateway)
        assert TOKEN not in shown
        assert "hunter-7" not in shown
