"""Limits of the admin API for clients with its token, and its defense against clients without one."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import raw_exchange, status_of
from support.gateways import COMMANDS, TOKEN, RunningGateway, brief_pause, running_gateway, serving
from support.upstreams.running import builtin_tools, rescript, scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, running_workers

from gateway.cli import main
from registry.schema.display_text import is_hidden


async def until_logged(gateway: RunningGateway, pattern: str) -> str:
    with anyio.fail_after(25):
        while (found := re.search(pattern, gateway.logged())) is None:
            await brief_pause()
    return found[1]


async def test_admin_api_adds_no_local_program_and_reads_no_local_file(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    graphql = {"endpoint": "http://127.0.0.1:9/graphql", "introspectionTools": True}
    refused: list[tuple[dict[str, Any], str]] = [
        (server, "command"),
        ({"command": "touch", "args": [str(tmp_path / "made")]}, "command"),
        ({"type": "graphql", **graphql, "schema": "/etc/passwd"}, "schema"),
        ({"type": "graphql", **graphql, "operations": "/etc", "schema": "/etc/passwd"}, "operations and schema"),
    ]
    async with running_gateway(tmp_path, {}) as gateway:
        for config, keys in refused:
            for body in ({"name": "x", "config": config}, {"name": "x", **config}):
                for path in ("servers", "trials"):
                    answer = await gateway.admin(path, "POST", body)
                    assert answer.status_code == 403, answer.text
                    assert f"its {keys} would" in answer.json()["error"]
                    assert "gateway.admin.allowCommands" in answer.json()["error"]
        assert (await gateway.admin("servers")).json() == {"servers": []}
        assert record.starts() == []
        assert not (tmp_path / "made").exists()
        # Allowed from the next reload on; no start is needed.
        gateway.config.write_text('{"mcpServers": {}, "gateway": {"admin": {"allowCommands": true}}}')
        await until_logged(gateway, "(configuration reloaded)")
        assert (await gateway.admin("servers", "POST", {"name": "x", "config": server})).status_code == 201
        await gateway.until_listed("x__one")
        assert "takes effect at the next start" not in gateway.logged()


async def test_placeholders_of_an_added_server_are_not_expanded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of-this-machine")
    headers = {"X-A": "${file:" + str(tmp_path / "secret") + "}", "X-B": "${HOME}"}
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {}, gateway=COMMANDS) as gateway,
    ):
        added = await gateway.admin("servers", "POST", {"name": "up", "config": {**up.config, "headers": headers}})
        assert added.status_code == 201
        await gateway.until_listed("up__echo")
        assert {(one["headers"]["x-a"], one["headers"]["x-b"]) for one in up.recording.http("/mcp")} == {
            (headers["X-A"], "${HOME}")
        }


async def test_wrong_tokens_are_logged_and_delayed_and_a_strong_token_still_works(
    tmp_path: Path,
) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        statuses = [(await gateway.admin("servers", token=f"guess-{number}")).status_code for number in range(20)]
        assert statuses[:5] == [401] * 5
        assert set(statuses[5:]) <= {401, 429}
        assert 429 in statuses
        slowed = await gateway.admin("servers", token="another")
        if slowed.status_code == 429:
            assert int(slowed.headers["retry-after"]) >= 1
            assert "too many failed log-ins" in slowed.json()["error"]
        assert (await gateway.admin("servers", token=None)).status_code == 401
        assert "a log-in to the admin API failed: 127.0.0.1, 5 in a row" in gateway.logged()
        assert "guess-" not in gateway.logged()
        assert (await gateway.admin("servers")).status_code == 200


async def test_weak_token_is_not_checked_while_its_address_is_delayed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, environment={"TYPEGATE_ADMIN_TOKEN": "short"}) as gateway:
        assert (await gateway.admin("servers", token="short")).status_code == 200
        for number in range(5):
            assert (await gateway.admin("servers", token=f"guess-{number}")).status_code == 401
        assert (await gateway.admin("servers", token="short")).status_code == 429
        with anyio.fail_after(20):
            while (await gateway.admin("servers", token="short")).status_code != 200:
                await brief_pause()


async def check_apart(gateway: RunningGateway, admin: str, client: httpx2.AsyncClient) -> None:
    """The admin API is at `admin` and nowhere else; callers and orchestrators find what is theirs as ever."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert (await gateway.admin("servers")).status_code == 404
    assert (await gateway.admin("servers", "POST", {"name": "x"}, token="wrong")).status_code == 404
    assert (await gateway.client.get(f"{gateway.origin}/healthz")).status_code == 200
    assert "up__echo" in await gateway.until_listed("up__echo")
    rows = (await client.get(f"{admin}/admin/servers", headers=headers)).json()["servers"]
    assert [row["name"] for row in rows] == ["up"]
    assert (await client.get(f"{admin}/admin/servers")).status_code == 401
    assert (await client.get(f"{admin}/readyz")).status_code == 200
    assert (await client.post(f"{admin}/mcp", json={}, headers=headers)).status_code == 404


@pytest.mark.heavy
async def test_admin_api_with_its_own_port_is_not_on_the_public_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"up": up.config}, gateway={"admin": {"listen": 0}}) as gateway,
    ):
        admin = await until_logged(gateway, r"admin API listening on (\S+)")
        await check_apart(gateway, admin, gateway.client)
        foreign = await gateway.client.get(f"{admin}/admin/servers", headers={"host": "evil.test"})
        assert foreign.status_code == 421
        head = b"GET /admin/servers HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        assert status_of(await raw_exchange(gateway, head)) == 404
        monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
        assert await anyio.to_thread.run_sync(main, ["servers", "--url", admin]) == 0
        assert "up" in capsys.readouterr().out
        assert await anyio.to_thread.run_sync(main, ["servers", "--url", gateway.origin]) == 1
        assert "gateway.admin.listen" in capsys.readouterr().err
        assert await gateway.stop() == 0


@pytest.mark.heavy
async def test_admin_socket_is_accessible_to_its_owner_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "admin.sock"
    # One that was left behind by a gateway that was killed.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    listen = {"admin": {"listen": f"unix:{path}"}}
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_gateway(tmp_path, {"up": up.config}, gateway=listen) as gateway,
        httpx2.AsyncClient(timeout=30, transport=httpx2.AsyncHTTPTransport(uds=str(path))) as client,
    ):
        assert path.stat().st_mode & 0o777 == 0o600
        await check_apart(gateway, "http://localhost", client)
        monkeypatch.setenv("TYPEGATE_ADMIN_TOKEN", TOKEN)
        assert await anyio.to_thread.run_sync(main, ["servers", "--url", f"unix:{path}"]) == 0
        assert "up" in capsys.readouterr().out
        # A second gateway does not remove the socket of the first.
        (tmp_path / "second").mkdir()
        with pytest.raises(AssertionError, match="cannot listen on"):
            async with serving(gateway.config, tmp_path / "second"):
                pass
        assert path.exists()
        assert await gateway.stop() == 0
    assert not path.exists()


@pytest.mark.heavy
async def test_several_workers_serve_one_admin_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as up,
        running_workers(tmp_path, {"up": up.config}, gateway={"admin": {"listen": f"unix:{path}"}}) as gateway,
        httpx2.AsyncClient(timeout=30, transport=httpx2.AsyncHTTPTransport(uds=str(path))) as client,
        each_worker(gateway) as workers,
    ):
        for worker in workers:
            await check_apart(worker, "http://localhost", client)
        assert await gateway.stop() == 0
    assert not path.exists()


# Invisible characters: a zero-width space, a direction override, a tag, a control, a private one, and an escape.
_UNSEEN = "\u200b\u202e\U000e0041\x07\ue000\x1b[31m"
_PATHS = (
    *("servers", "servers/up", "servers/dead", "wrappers", "quarantine", "changes", "failures", "budget", "profiles"),
    *(
        "audit",
        "activity",
        "notes",
        "config",
        "hooks",
        "approvals",
        "overlay",
        "policy/explain?principal=local&name=up__one",
    ),
)


@pytest.mark.heavy
async def test_admin_answers_contain_no_hidden_characters_of_upstreams(tmp_path: Path) -> None:
    def odd(text: str) -> str:
        return text[:2] + _UNSEEN + text[2:]

    choices = {"type": "string", "enum": [odd("choice"), "choice"], "default": odd("choice"), "const": odd("choice")}
    one = tool("one", **{odd("name"): choices, "name": "string"}) | {
        "title": odd("One"),
        "_meta": {odd("of"): odd("it")},
    }
    failure = {"message": odd("an error"), "data": {odd("key"): odd("value")}}
    script = {
        "tools": [one, tool("error"), tool(odd("named")), {"name": odd("bad"), "inputSchema": 5}],
        "behaviours": {"error": {"kind": "error", "with": failure}},
        "server_info": {member: odd(f"the {member}") for member in ("name", "title", "version", "description")},
        "instructions": odd("Call one."),
        "capabilities": {"experimental": {odd("able"): {}}},
    }
    up, recording = scripted_stdio_server(tmp_path, "up", **script)
    statements = f"print({odd('Error: no key')!r}, file=sys.stderr); print({odd('Usage')!r}); sys.exit(1)"
    dead = {"command": "python3", "args": ["-c", f"import sys; {statements}"]}
    async with running_gateway(tmp_path, {"up": up, "dead": dead}) as gateway:
        listed = await gateway.until_listed("up__one")
        # Hosts get names and values in the form that the server accepts.
        assert odd("name") in listed["up__one"]["inputSchema"]["properties"]
        for _ in range(3):
            await gateway.call("up__error")
        tried = (await gateway.admin("try", "POST", {"wrapper": "up__error"})).json()
        rescript(up, recording, announce=True, **{**script, "tools": [{**one, "description": odd("Another.")}]})
        with anyio.fail_after(25):
            while not (await gateway.admin("changes")).json()["changes"]:
                await brief_pause()
        wrapper = (await gateway.admin("wrappers/up__one")).json()
        shown = {"wrappers/up__one": wrapper, "try": tried}
        for path in _PATHS:
            answer = await gateway.admin(path)
            assert answer.status_code == 200, (path, answer.text)
            shown[path] = answer.json()
    for path, document in shown.items():
        for text in texts_in(document):
            assert not any(is_hidden(char) for char in text), (path, text)
    properties = wrapper["definition"]["inputSchema"]["properties"]
    # Two names that look equal are shown differently.
    assert [name for name in properties if name.startswith("na")] == ["na" + json.dumps(_UNSEEN)[1:-1] + "me", "name"]
    assert next(iter(properties.values()))["enum"] == ["choice", "choice"]
    assert shown["servers/up"]["serverInfo"]["name"] == "the name"
    assert "ror: no key" in shown["servers/dead"]["lastError"]
    assert "an error" in json.dumps(tried["response"])
    # A difference is visible, even if it consists only of hidden characters.
    assert "\\u200b" in json.dumps([one["after"] for one in shown["changes"]["changes"]])


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from texts_in(member)


@pytest.mark.heavy
async def test_server_on_trial_that_does_not_start_is_answered_with_the_reason(tmp_path: Path) -> None:
    failing: list[tuple[dict[str, Any], str]] = [
        ({"command": "/missing/program"}, "command not found"),
        ({"command": sys.executable, "args": ["-c", "pass"]}, "exited with code 0"),
        ({"command": sys.executable, "args": ["x" * 200_000]}, "Argument list too long"),
        ({"url": "http://127.0.0.1:1/mcp"}, "Connection refused"),
    ]
    async with running_gateway(tmp_path, {}, gateway={"admin": {"allowCommands": True}}) as gateway:
        for config, reason in failing:
            for accept in ("application/json", "text/event-stream"):
                head = {"authorization": f"Bearer {TOKEN}", "accept": accept}
                body = {"name": "x", "config": config}
                url = f"{gateway.origin}/admin/trials"
                answer = await gateway.client.post(url, json=body, headers=head, timeout=60)
                last = answer.text.strip().splitlines()[-1].removeprefix("data: ")
                assert answer.status_code == 200, answer.text
                assert reason in json.loads(last)["error"]
