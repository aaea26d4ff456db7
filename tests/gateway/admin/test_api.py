"""The admin API: authorization, rows, and adding and removing servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import listen_to, post_stream
from support.gateways import COMMANDS, TOKEN, RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.running import (
    builtin_tools,
    rescript,
    scripted_http_server,
    scripted_stdio_server,
    tool,
    unused_port,
)

ROUTES = (
    ("wrappers", "GET"),
    ("servers", "GET"),
    ("servers", "POST"),
    ("servers/up", "GET"),
    ("servers/up", "DELETE"),
    ("servers/up/refresh", "POST"),
    ("quarantine", "GET"),
)
WRONG = ("Bearer", "Bearer wrong", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}2", "Bearer é", f"Basic {TOKEN}", TOKEN)


async def until_row(gateway: RunningGateway, alias: str, state: str) -> dict[str, Any]:
    with anyio.fail_after(25):
        while (row := await gateway.server(alias))["state"] != state:
            await brief_pause()
    return row


async def test_every_admin_route_requires_the_token(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        new = {"name": "more", "config": server}
        for path, method in ROUTES:
            for value in (None, *WRONG):
                headers = {} if value is None else {"authorization": value.encode()}
                url = f"{gateway.origin}/admin/{path}"
                refused = await gateway.client.request(method, url, json=new, headers=headers)
                # Wrong tokens are slowed down after a few; a request without a token always gets 401.
                assert refused.status_code in ((401,) if value is None else (401, 429)), (path, method, value)
                assert refused.status_code == 429 or refused.headers["www-authenticate"] == "Bearer"
        assert [row["name"] for row in (await gateway.admin("servers")).json()["servers"]] == ["up"]
        for path in ("healthz", "readyz"):
            assert (await gateway.client.get(f"{gateway.origin}/{path}")).status_code == 200


async def test_rows_cover_every_wrapper_server_and_quarantined_tool(tmp_path: Path) -> None:
    bad = {"name": "bad", "inputSchema": {"type": "object"}, "extra": "x" * 1_100_000}
    up, _ = scripted_stdio_server(
        tmp_path,
        "up",
        tools=[tool("one", "a"), tool("y" * 80), bad],
        server_info={"name": "s", "version": "7"},
    )
    options = {"displayName": "The Up", "tags": ["vcs"]}
    servers = {"up": {**up, **options}, "gone": {"command": "no-such-command-anywhere"}}
    async with running_gateway(tmp_path, servers) as gateway:
        listed = await gateway.until_listed("up__one")
        rows = (await gateway.admin("wrappers")).json()["wrappers"]
        assert {row["name"] for row in rows} == set(listed)
        wanted = {"name", "server", "tool", "epoch", "digest", "status", "origin", "listed", "tokens", "reason"}
        assert all(wanted <= set(row) for row in rows)
        one = next(row for row in rows if row["tool"] == "one")
        assert (one["name"], one["server"], one["epoch"], one["origin"], one["listed"]) == (
            "up__one",
            "up",
            1,
            "live",
            True,
        )
        assert one["tokens"] > 5
        [long] = [row for row in rows if row["tool"] == "y" * 80]
        assert len(long["name"]) <= 48
        assert long["reason"]
        assert (await gateway.admin("wrappers?server=gone")).json() == {"wrappers": []}
        assert len((await gateway.admin("wrappers?server=up")).json()["wrappers"]) == len(rows)
        row = await until_row(gateway, "up", "ready")
        assert (row["displayName"], row["tags"], row["type"]) == ("The Up", ["vcs"], "stdio")
        assert (row["protocol"], row["serverInfo"], row["tools"]) == (
            "2025-11-25",
            {"name": "s", "version": "7"},
            len(rows),
        )
        assert row["lastError"] is None
        gone = await until_row(gateway, "gone", "waiting")
        assert "no-such-command-anywhere" in gone["lastError"]
        assert (gone["tools"], gone["epoch"], gone["origin"]) == (0, 0, None)
        refused = (await gateway.admin("quarantine")).json()["quarantine"]
        assert [(one["server"], one["tool"], one["status"]) for one in refused] == [("up", "bad", "quarantined")]
        assert refused[0]["code"]
        assert refused[0]["detail"]
        assert row["quarantined"] == 1
        assert (await gateway.admin("servers/none")).status_code == 404
        assert (await gateway.admin("servers/none/refresh", "POST")).status_code == 404
        assert (await gateway.admin("servers/none", "DELETE")).status_code == 404


async def test_added_server_is_listed_callable_and_announced(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "late", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {}, gateway=COMMANDS) as gateway, post_stream(gateway, listen_to()) as stream:
        await stream.next()
        added = await gateway.admin("servers", "POST", {"name": "late", "config": server})
        assert (added.status_code, added.json()["name"]) == (201, "late")
        # No list is asked for: the call waits for the connection.
        assert (await gateway.call("late__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert "late__echo" in await gateway.tools()
        assert (await stream.next())["method"] == "notifications/tools/list_changed"
        twice = await gateway.admin("servers", "POST", {"name": "late", "config": server})
        assert twice.status_code == 400
        assert "there is already a server 'late'" in twice.json()["error"]
        assert (await gateway.admin("servers/late", "DELETE")).status_code == 204
        assert (await stream.next())["method"] == "notifications/tools/list_changed"
        assert await gateway.tools() == {}
        assert (await gateway.admin("servers/late")).status_code == 404
        removed = await gateway.call("late__echo", {"a": 2})
        assert removed["isError"] is True
        assert "Not called" in text_of(removed)
        assert "late" in text_of(removed)
        assert len(record.calls()) == 1
        await record.until(lambda seen: seen.events("eof"))


async def test_call_to_an_unreachable_server_fails_within_its_timeout(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        config = {"type": "http", "url": f"http://127.0.0.1:{unused_port()}/mcp", "callTimeout": 1}
        assert (await gateway.admin("servers", "POST", {"name": "down", "config": config})).status_code == 201
        with anyio.fail_after(25):
            answer = await gateway.call("down__anything")
            assert answer["isError"] is True
            assert "server 'down' is not reachable right now" in text_of(answer)
            generic = await gateway.call("invoke_tool", {"server": "down", "tool": "anything"})
        assert "not reachable right now" in text_of(generic)


UNSOUND: list[tuple[Any, str]] = [
    (None, "name"),
    ([], "name"),
    ({"name": 5, "config": {}}, "name"),
    ({"name": "x"}, ""),
    ({"name": "a__b", "config": {"command": "x"}}, "a__b"),
    ({"name": "-a", "config": {"command": "x"}}, "-a"),
    ({"name": "U-P", "config": {"command": "x"}}, ""),
    ({"name": "x", "config": {"url": "ftp://secret-user:secret-word@host/"}}, "url"),
    ({"name": "x", "config": {"command": "x", "headers": "secret-text"}}, ""),
    ({"name": "x", "config": {"command": "x", "callTimeout": "secret-text"}}, "callTimeout"),
    ({"name": "x", "config": "secret-text"}, ""),
]


async def test_invalid_server_is_refused_with_a_reason_and_no_secret(tmp_path: Path) -> None:
    servers = {"u-p": {"command": "no-such-command-anywhere"}}
    async with running_gateway(tmp_path, servers, gateway=COMMANDS) as gateway:
        for body, words in UNSOUND:
            refused = await gateway.admin("servers", "POST", body)
            assert refused.status_code == 400, (body, refused.text)
            assert words in refused.json()["error"], (body, refused.text)
            assert "secret" not in refused.text
        assert "secret" not in gateway.logged()
        assert [row["name"] for row in (await gateway.admin("servers")).json()["servers"]] == ["u-p"]


async def test_old_names_of_a_reregistered_server_answer_with_the_new_ones(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=builtin_tools("echo")) as upstream,
        running_gateway(tmp_path, {}) as gateway,
    ):
        await gateway.admin("servers", "POST", {"name": "old", "config": upstream.config})
        await gateway.until_listed("old__echo")
        assert (await gateway.admin("servers/old", "DELETE")).status_code == 204
        await gateway.admin("servers", "POST", {"name": "new", "config": upstream.config})
        await gateway.until_listed("new__echo")
        answer = await gateway.call("old__echo", {"a": 1})
        assert answer["isError"] is True
        assert "new__echo" in text_of(answer)
        assert upstream.recording.calls() == []


async def test_refresh_lists_again_over_the_same_connection(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        count_before = len(record.requests("tools/list"))
        assert (await gateway.admin("servers/up/refresh", "POST")).status_code == 202
        await record.until(lambda seen: len(seen.requests("tools/list")) > count_before)
        rescript(server, record, tools=[tool("one")])
        assert len(record.starts()) == 1


@pytest.mark.parametrize("modern", [True, False])
async def test_credential_reaches_its_server_and_appears_nowhere_else(tmp_path: Path, modern: bool) -> None:
    token = "credential-0123456789"
    environment = {"UP_TOKEN": token}
    tools = builtin_tools("echo", "unauthorized")
    async with scripted_http_server(tmp_path, "up", tools=tools, modern=modern) as upstream:
        (tmp_path / "token").write_text(token + "\n")
        headers = {"Authorization": "Bearer ${UP_TOKEN}", "X-Api-Key": "${file:" + str(tmp_path / "token") + "}"}
        servers = {"up": {**upstream.config, "headers": headers}}
        async with running_gateway(tmp_path, servers, environment=environment) as gateway:
            await gateway.until_listed("up__echo")
            assert (await gateway.call("up__echo"))["content"]
            sent = [one["headers"] for one in upstream.recording.http("/mcp")]
            assert {(one["authorization"], one["x-api-key"]) for one in sent} == {(f"Bearer {token}", token)}
            refused = await gateway.call("up__unauthorized")
            assert refused["isError"] is True
            assert "'up'" in text_of(refused)
            assert "401" in text_of(refused)
            added = {"name": "more", "config": {**upstream.config, "headers": {"Authorization": f"Bearer {token}"}}}
            shown = (await gateway.admin("servers", "POST", added)).text
            await gateway.until_listed("more__echo")
            for path in ("servers", "servers/up", "servers/more", "wrappers", "quarantine"):
                shown += (await gateway.admin(path)).text
            assert (await gateway.server("up"))["auth"] is True
            assert token not in shown + text_of(refused) + gateway.logged()


async def test_rejected_credential_names_the_upstream_and_hides_the_credential(tmp_path: Path) -> None:
    token = "credential-0123456789"
    refusal = {"unauthorized": {"on": ["initialize", "server/discover", "tools/list"]}}
    async with scripted_http_server(tmp_path, "up", faults=refusal) as upstream:
        servers = {"up": {**upstream.config, "headers": {"Authorization": f"Bearer {token}"}, "callTimeout": 1}}
        async with running_gateway(tmp_path, servers) as gateway:
            row = await until_row(gateway, "up", "waiting")
            assert "401" in row["lastError"]
            answer = await gateway.call("up__anything")
            assert answer["isError"] is True
            assert "'up'" in text_of(answer)
            assert "401" in text_of(answer)
            assert token not in str(row) + text_of(answer) + gateway.logged()


async def test_repeated_failure_is_reported_although_the_state_is_the_same(tmp_path: Path) -> None:
    # A page that asked during the attempt has shown the attempt, and would keep it on the screen.
    async with running_gateway(tmp_path, {"up": {"url": f"http://127.0.0.1:{unused_port()}/mcp"}}) as gateway:
        await until_row(gateway, "up", "waiting")
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with gateway.client.stream("GET", f"{gateway.origin}/admin/events", headers=headers) as stream:
            lines = stream.aiter_lines()
            with anyio.fail_after(25):
                await anext(lines)
                assert (await gateway.admin("servers/up/refresh", "POST")).status_code == 202
                event_line = await anext(line async for line in lines if '"waiting"' in line)
            states = [one for one in json.loads(event_line.removeprefix("data: ")) if one["event"] == "state"]
            assert "Connection refused" in states[0]["servers"]["up"]["lastError"]
