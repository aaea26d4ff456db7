"""`/mcp` in both eras: streams of changes, progress, sessions and their bounds."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from support.callers import (
    call_of,
    get_stream,
    handshake,
    hello,
    listen_to,
    post_stream,
    raw_exchange,
    raw_post,
    status_of,
)
from support.gateways import COMMANDS, META, MODERN, brief_pause, envelope, messages_of, running_gateway
from support.upstreams.running import builtin_tools, rescript, scripted_http_server, scripted_stdio_server, tool

from gateway.access.principal import LOCAL, Principal
from gateway.access.quotas import Account, Quotas
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth_config import QuotaLimits, QuotasConfig
from gateway.downstream import sessions
from gateway.downstream.messages import SERVER_INFO
from gateway.downstream.sessions import MAX_SESSIONS, ChangeAnnouncer, Session, SessionTable
from gateway.protocol.gateway_errors import QuotaExceeded
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape

CHANGED = "notifications/tools/list_changed"
SUBSCRIPTION = META + "subscriptionId"
SERVER = META + "serverInfo"
QUOTAS = Quotas(QuotasConfig())


async def test_change_is_announced_on_the_session_stream(tmp_path: Path) -> None:
    script = {"tools": [tool("first")], "list_changed": True}
    server, record = scripted_stdio_server(tmp_path, "up", **script)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__first")
        session = await handshake(gateway)
        async with get_stream(session) as stream:
            rescript(server, record, announce=True, **{**script, "tools": [tool("first"), tool("second")]})
            assert await stream.next() == {"jsonrpc": "2.0", "method": CHANGED}
            await gateway.until_listed("up__second", within_s=1)
            head = {**session.headers, "accept": "text/event-stream"}
            second = await gateway.client.get(gateway.url, headers=head)
            assert second.status_code == 409


async def test_change_without_an_open_stream_is_announced_when_one_opens(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    async with running_gateway(tmp_path, {}, gateway=COMMANDS) as gateway:
        absent, present = await handshake(gateway), await handshake(gateway)
        async with get_stream(present) as stream:
            assert (await gateway.admin("servers", "POST", {"name": "up", "config": server})).status_code == 201
            assert (await stream.next())["method"] == CHANGED
        async with get_stream(absent) as stream:
            assert (await stream.next())["method"] == CHANGED


async def test_subscription_is_acknowledged_first_and_every_frame_has_its_id(tmp_path: Path) -> None:
    script = {"tools": [tool("first")], "list_changed": True, "modern": True}
    server, record = scripted_stdio_server(tmp_path, "up", **script)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__first")
        nothing = listen_to("nothing")
        nothing["params"]["notifications"] = {"resourcesListChanged": True}
        async with (
            post_stream(gateway, listen_to(7)) as numbered,
            post_stream(gateway, listen_to("text")) as named,
            post_stream(gateway, nothing) as deaf,
        ):
            for stream, key in ((numbered, 7), (named, "text")):
                assert await stream.next() == {
                    "jsonrpc": "2.0",
                    "method": "notifications/subscriptions/acknowledged",
                    "params": {"notifications": {"toolsListChanged": True}, "_meta": {SUBSCRIPTION: key}},
                }
            assert (await deaf.next())["params"] == {"notifications": {}, "_meta": {SUBSCRIPTION: "nothing"}}
            rescript(server, record, announce=True, **{**script, "tools": [tool("second")]})
            for stream, key in ((numbered, 7), (named, "text")):
                # An earlier announcement may arrive first; the new tool is listed after its own one.
                for _ in range(2):
                    frame = await stream.next()
                    assert (frame["method"], frame["params"]) == (CHANGED, {"_meta": {SUBSCRIPTION: key}})
                    if "up__second" in await gateway.tools():
                        break
                else:
                    raise AssertionError("announced, but not listed")
            code = await gateway.stop()
            for stream, key in ((numbered, 7), (named, "text"), (deaf, "nothing")):
                assert (await stream.rest())[-1] == {
                    "jsonrpc": "2.0",
                    "id": key,
                    "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: key, SERVER: SERVER_INFO}},
                }
            assert code == 0


async def test_refresh_without_a_change_is_not_announced(tmp_path: Path) -> None:
    first, second = tool("first", "a", b="integer"), tool("second")
    script = {"tools": [first, second], "list_changed": True}
    server, record = scripted_stdio_server(tmp_path, "up", **script)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__first")
        async with post_stream(gateway, listen_to()) as stream:
            await stream.next()
            turned = [{key: one[key] for key in reversed(one)} for one in (second, first)]
            for tools in (turned, [first, second]) * 3:
                count_before = len(record.requests("tools/list"))
                rescript(server, record, announce=True, **{**script, "tools": tools})
                await record.until(lambda seen, before=count_before: len(seen.requests("tools/list")) > before)
            rescript(server, record, announce=True, **{**script, "tools": [first, second, tool("third")]})
            await gateway.until_listed("up__third")
            assert await gateway.stop() == 0
            *frames, _ = await stream.rest()
            # One frame for the third tool, and at most one for the first listing. The six changes between cause none.
            assert len(frames) <= 2, frames


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_thousand_progress_notifications_arrive_in_order(tmp_path: Path, era: str) -> None:
    tools = builtin_tools("progress")
    new, _ = scripted_stdio_server(tmp_path, "new", tools=tools, modern=True)
    old, _ = scripted_stdio_server(tmp_path, "old", tools=tools, modern=False)
    async with scripted_http_server(tmp_path, "web", tools=tools, sse=True, modern=True) as web:
        servers = {"new": new, "old": old, "web": web.config}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("new__progress", "old__progress", "web__progress")
            session = await handshake(gateway)
            for alias in servers:
                body = call_of(f"{alias}__progress", {"count": 1000}, request_id="p", progressToken=f"token-{alias}")
                if era == "handshake":
                    body["params"]["_meta"] = {"progressToken": f"token-{alias}"}
                    response = await session.post(body)
                else:
                    response = await gateway.post(body)
                *steps, answer = messages_of(response.text)
                assert [one["params"]["progress"] for one in steps] == list(range(1, 1001))
                assert {one["params"]["progressToken"] for one in steps} == {f"token-{alias}"}
                assert {one["method"] for one in steps} == {"notifications/progress"}
                assert (answer["id"], answer["result"].get("isError")) == ("p", None)
            assert [one["_meta"].get("progressToken") for one in web.recording.calls()] != ["token-web"]


async def test_both_eras_get_the_same_list_in_their_own_form(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("one", "a"), tool("two")], modern=True)
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        new = (await gateway.rpc("tools/list"))["result"]
        session = await handshake(gateway)
        listed = await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        old = listed.json()["result"]
        assert old == {"tools": new["tools"]}
        assert (new["resultType"], type(new["ttlMs"]), new["cacheScope"]) == ("complete", int, "public")
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
            result = (await gateway.post(hello(version))).json()["result"]
            assert result["protocolVersion"] == version
            assert result["capabilities"]["tools"] == {"listChanged": True}
            assert "resources" not in result["capabilities"], "no server has any"
        assert (await gateway.post(hello("1999-01-01"))).json()["result"]["protocolVersion"] == "2025-11-25"
        future = await gateway.post(call_of("up__two", **{META + "protocolVersion": "2099-01-01"}))
        assert (future.status_code, future.json()["error"]["code"]) == (400, -32022)
        assert future.json()["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}
        unknown = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {"_meta": envelope()}})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)


def a_table(registry: Registry | None = None, max_sessions: int = MAX_SESSIONS) -> tuple[SessionTable, ChangeAnnouncer]:
    registry = registry or Registry(Shape())
    announcer = ChangeAnnouncer(registry, ProfileViews(registry, {}))
    return SessionTable(announcer, max_sessions=max_sessions), announcer


async def test_longest_idle_session_is_evicted_and_none_in_use() -> None:
    table, _ = a_table()
    ann = Principal(name="ann")
    account = Quotas(QuotasConfig(default=QuotaLimits(sessions=4))).account(ann)
    running, streaming, used, idle = (opened(table, ann, account) for _ in range(4))
    running.running[1] = anyio.CancelScope()
    streaming.open_stream(lambda message, number: None, lambda: None)
    assert table.get(used.id, ann) is used
    neighbours = [opened(table, LOCAL) for _ in range(10)]
    ended: list[Session] = []
    for session in (running, streaming, used, idle, *neighbours):
        session.on_end.append(lambda one=session: ended.append(one))
    fifth = opened(table, ann, account)
    opened(table, ann, account)
    assert ended == [idle, used]
    fifth.running[1] = anyio.CancelScope()
    opened(table, ann, account).running[1] = anyio.CancelScope()
    with pytest.raises(QuotaExceeded, match="ann has 4 sessions in use"):
        opened(table, ann, account)
    assert account.sessions == 4
    assert not set(ended) & {running, streaming, *neighbours}


async def test_caller_with_most_sessions_loses_one_when_the_table_is_full() -> None:
    table, _ = a_table(max_sessions=10)
    many, few, new = (Principal(name=name) for name in ("many", "few", "new"))
    owned = [opened(table, many) for _ in range(8)]
    kept = [opened(table, few) for _ in range(2)]
    first = opened(table, new)
    assert len(table) == 10
    assert table.get(owned[0].id, many) is None
    assert [table.get(one.id, one.principal) for one in (*owned[1:], *kept, first)] == [*owned[1:], *kept, first]


def opened(table: SessionTable, principal: Principal, account: Account | None = None) -> Session:
    account = account or QUOTAS.account(principal)
    session = Session(principal, version="2025-11-25", params={}, account=account)
    table.add(session)
    return session


async def test_session_belongs_to_its_principal_and_is_unknown_once_closed() -> None:
    table, _ = a_table()
    session = opened(table, Principal(name="ann"))
    assert len({opened(table, LOCAL).id for _ in range(100)} | {session.id}) == 101
    assert table.get(session.id, Principal(name="bob")) is None
    assert table.get(session.id, LOCAL) is None
    assert table.get(session.id, Principal(name="ann")) is session
    table.close(session)
    assert table.get(session.id, Principal(name="ann")) is None
    table.close(session)


async def test_idle_session_expires_and_one_in_use_does_not() -> None:
    now_s = 0.0
    registry = Registry(Shape())
    table = SessionTable(ChangeAnnouncer(registry, ProfileViews(registry, {})), clock=lambda: now_s)
    idle, used, streaming, running = (opened(table, LOCAL) for _ in range(4))
    ended: list[str] = []
    for session in (idle, used, streaming, running):
        session.on_end.append(lambda one=session.id: ended.append(one))
    streaming.open_stream(lambda message, number: None, lambda: None)
    running.running[1] = anyio.CancelScope()
    for _ in range(4):
        now_s += sessions.IDLE_S * 0.4
        assert table.get(used.id, LOCAL) is used
        table.sweep()
    assert ended == [idle.id]
    assert [table.get(one.id, LOCAL) for one in (idle, used, streaming, running)] == [None, used, streaming, running]


async def test_closed_session_receives_no_change() -> None:
    registry = Registry(Shape())
    table, announcer = a_table(registry)
    notified: list[Session] = []
    live, closed = opened(table, LOCAL), opened(table, LOCAL)
    live.open_stream(lambda message, number: notified.append(live), lambda: None)
    closed.open_stream(lambda message, number: notified.append(closed), lambda: None)
    table.close(closed)
    async with anyio.create_task_group() as group:
        group.start_soon(announcer.run)
        registry.put(a_listing())
        with anyio.fail_after(25):
            while not notified:
                await brief_pause()
        group.cancel_scope.cancel()
    assert notified == [live]


def a_listing() -> ServerListing:
    return ServerListing(server=ServerName("up"), epoch=1, tools=(tool("one"),))


@pytest.mark.heavy
async def test_unreadable_name_is_reported_only_to_authorized_callers(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    body = json.dumps(call_of("up__echo", {})).encode()
    lines = f"mcp-protocol-version: {MODERN}", "mcp-method: tools/call", "mcp-name: =?base64?NAME?="
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "k" * 43}]}}
    async with running_gateway(tmp_path, {"up": server}, gateway=keys) as gateway:
        for name in (b"\xe9", b"!!!", b"/w=="):
            for headers, status in (((*lines, f"authorization: Bearer {'k' * 43}"), 400), (lines, 401)):
                sent = raw_post(body, "accept: application/json, text/event-stream", *headers).replace(b"NAME", name)
                assert status_of(await raw_exchange(gateway, sent)) == status
        assert "Traceback" not in gateway.logged()
