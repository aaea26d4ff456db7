"""API keys over real connections: creation by the command, profiles, and expiry."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.callers import call_of, get_stream, handshake, hello, listen_to, post_stream
from support.gateways import running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

ROOT = Path(__file__).parents[2]


def typegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)


def made(*arguments: str) -> tuple[str, dict[str, Any]]:
    """A new key, and its entry."""
    done = typegate("key", "new", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["key"] not in json.dumps(answer["entry"])
    return answer["key"], answer["entry"]


@pytest.mark.heavy
async def test_key_opens_its_profiles_and_hides_the_others(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    (sec, first), (default, second) = made("ann", "--profile", "sec"), made("bob", "--profile", "default")
    settings = {"auth": {"apiKeys": [first, second]}, "profiles": {"sec": {}, "other": {}}}
    async with running_gateway(tmp_path, {"up": server}, gateway=settings) as gateway:
        seen: dict[tuple[str, str], int] = {}
        for name, key in (("ann", sec), ("bob", default), ("nobody", sec[:-1])):
            for path in ("/mcp", "/mcp/default", "/mcp/sec", "/mcp/other", "/mcp/none"):
                response = await gateway.client.post(
                    gateway.origin + path, json=hello(),
                    headers={"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"},
                )  # fmt: skip
                seen[name, path] = response.status_code
                if response.status_code == 404:
                    assert response.json()["error"]["message"] == "there is no such profile"
        opened = {pair for pair, status in seen.items() if status == 200}
        assert opened == {("ann", "/mcp/sec"), ("bob", "/mcp"), ("bob", "/mcp/default")}
        assert {status for (name, _), status in seen.items() if name == "nobody"} == {401}
        assert sorted({status for pair, status in seen.items() if pair not in opened and pair[0] != "nobody"}) == [404]
        log = gateway.logged()
        assert sec not in log
        assert default not in log


@pytest.mark.heavy
async def test_expired_key_loses_its_streams_within_seconds(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    key, entry = made("ann")
    entry["expires"] = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    async with running_gateway(tmp_path, {"up": server}, gateway={"auth": {"apiKeys": [entry]}}) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {key}"
        await gateway.until_listed("up__echo")
        session = await handshake(gateway)
        async with post_stream(gateway, listen_to()) as listening, get_stream(session) as stream:
            await listening.next()
            assert await listening.rest(within_s=9) == []
            assert await stream.rest(within_s=1) == []
        assert (await gateway.post(call_of("up__echo"))).status_code == 401


@pytest.mark.heavy
def test_keys_are_listed_with_their_rights_and_never_shown(tmp_path: Path) -> None:
    key, entry = made("ann", "--profile", "default", "--scope", "tools:read", "--group", "robots", "--expires", "90d")
    old = {"name": "old", "key": "a key that has been good", "expires": "2020-01-01"}
    config = tmp_path / "typegate.json"
    config.write_text(json.dumps({"mcpServers": {}, "gateway": {"auth": {"apiKeys": [entry, old]}}}))
    listed = typegate("key", "list", "--config", str(config), "--json")
    rows = json.loads(listed.stdout)
    assert [(row["name"], row["state"]) for row in rows] == [("ann", "good"), ("old", "expired")]
    assert (rows[0]["profiles"], rows[0]["scopes"], rows[0]["groups"]) == ("default", "tools:read", "robots")
    left = datetime.fromisoformat(rows[0]["expires"]) - datetime.now(UTC)
    assert timedelta(days=89, hours=23) < left < timedelta(days=90, minutes=1)
    assert key not in listed.stdout + listed.stderr
    assert "has been good" not in listed.stdout + listed.stderr


@pytest.mark.heavy
def test_invalid_option_is_one_readable_line() -> None:
    for arguments, message in (
        (("--expires", "soon"), "--expires soon: expected a number of hours, days or weeks: 12h, 90d or 4w"),
        (("--scope", "tool"), "--scope tool: expected tools (did you mean it?)"),
        (("--prof", "x"), "there is no option --prof; did you mean --profile?"),
    ):
        done = typegate("key", "new", "ann", *arguments)
        assert done.returncode == 2
        assert message in done.stderr, done.stderr
        assert done.stdout == ""
    reserved = typegate("key", "new", "local")
    assert (reserved.returncode, reserved.stdout) == (2, "")
    assert "is reserved (local) for callers without a key" in reserved.stderr
    plain = typegate("key", "new", "ann")
    key, line = plain.stdout.splitlines()
    assert key.startswith("tg_")
    assert json.loads(line.removeprefix("- "))["name"] == "ann"
