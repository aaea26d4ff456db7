"""HTTP servers that refuse, truncate, stall, forget sessions and redirect: each exchange fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, eventually, rss_of, until_server
from support.gateways import brief_pause, running_gateway, text_of
from support.pace import limit_now
from support.upstreams.running import builtin_tools, scripted_http_server, tool

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

SECRET = "Bearer only-for-its-own-origin"


@pytest.mark.parametrize("sse", [True, False])
async def test_every_broken_answer_fails_only_its_own_call(tmp_path: Path, sse: bool) -> None:
    broken: dict[str, dict[str, Any]] = {
        "half_body": {}, "reset": {}, "drop_sse": {}, "not_json": {}, "gzip_bomb": {"bytes": 2**27},
        "big": {"bytes": 50_000_000}, "hang": {}, "slow_bytes": {"delay_s": 0.3},
    }  # fmt: skip
    tools = builtin_tools(*broken, "raw", "echo")
    async with (
        scripted_http_server(tmp_path, "h", tools=tools, sse=sse) as http,
        # In the meantime, the server writes 180 MB in the only thread, which also answers `echo`.
        running_gateway(tmp_path, {"h": {**http.config, "callTimeout": 8}}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        before = rss_of(gateway.process.pid)
        answers: list[dict[str, Any]] = []
        with anyio.fail_after(40):
            async with anyio.create_task_group() as tasks:
                for name, arguments in broken.items():
                    tasks.start_soon(append_result, gateway, f"h__{name}", arguments, answers)
                for line in ("", "[", "[" * 100_000, '{"jsonrpc": "2.0"}', "[1]", '"text"', "null", "\ufeff{}"):
                    tasks.start_soon(append_result, gateway, "h__raw", {"line": line}, answers)
                for number in range(20):
                    result = await gateway.call("h__echo", {"n": number})
                    assert result.get("structuredContent") == {"n": number}, result
        assert len(answers) == len(broken) + 8
        assert all(one["isError"] and len(text_of(one)) > 20 for one in answers), answers
        assert (await gateway.call("h__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        row = await gateway.server("h")
        assert (row["state"], row["epoch"], row["inFlight"]) == ("ready", 1, 0)
        assert all(len(http.recording.calls(name)) == 1 for name in broken)
        assert rss_of(gateway.process.pid) - before < 64 * MIB


async def test_status_without_an_answer_is_reported_and_the_next_call_works(tmp_path: Path) -> None:
    statuses = (202, 204, 301, 302, 400, 401, 403, 405, 406, 409, 410, 413, 415, 429, 500, 502, 503, 504)
    async with scripted_http_server(tmp_path, "h", tools=builtin_tools("status", "unauthorized", "echo")) as http:
        config = {**http.config, "headers": {"Authorization": SECRET}}
        async with running_gateway(tmp_path, {"h": config}) as gateway:
            await gateway.until_listed("h__echo")
            for status in statuses:
                with anyio.fail_after(20):
                    result = await gateway.call("h__status", {"code": status})
                assert result["isError"], status
                assert status < 300 or str(status) in text_of(result), result
                assert "isError" not in await gateway.call("h__echo")
            refused = await gateway.call("h__unauthorized")
            assert "401" in text_of(refused)
            assert "'h'" in text_of(refused)
            assert SECRET not in text_of(refused) + gateway.logged()
            assert len(http.recording.calls("status")) == len(statuses)
            assert (await gateway.server("h"))["epoch"] == 1


async def test_credentials_do_not_follow_a_redirect_to_another_origin(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "other", tools=builtin_tools("echo")) as other,
        scripted_http_server(tmp_path, "h", tools=builtin_tools("redirect", "echo")) as http,
        scripted_http_server(tmp_path, "e", tools=[], sse_endpoint=f"{other.origin}/messages?sessionId=1") as sse,
    ):
        headers = {"headers": {"Authorization": SECRET}}
        servers = {"h": {**http.config, **headers}, "e": {"type": "sse", "url": sse.sse_url, **headers}}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("h__echo")
            secret = tmp_path / "secret"
            secret.write_text("a file of ours")
            places = (other.url, secret.as_uri(), "http://[broken", "", http.url.replace("127.0.0.1", "localhost"))
            for place in places:
                for code in (307, 308):
                    with anyio.fail_after(20):
                        result = await gateway.call("h__redirect", {"to": place, "code": code})
                    assert result["isError"], place
                    assert "a file of ours" not in text_of(result)
            assert "isError" not in await gateway.call("h__echo")
            row = await until_server(gateway, "e", lambda row: row["lastError"])
            assert "another origin" in row["lastError"]
            assert row["state"] != "ready"
            assert other.recording.http() == []


async def test_sent_call_is_repeated_only_if_its_tool_allows_it(tmp_path: Path) -> None:
    look = {**tool("look"), "annotations": {"idempotentHint": True}}
    for fault in ("reset", "half_body", "drop_sse"):
        here = tmp_path / fault
        here.mkdir()
        script = {"tools": [look, tool("change")], "faults": {fault: {"calls": 1}}}
        async with (
            scripted_http_server(here, "a", **script) as first,
            scripted_http_server(here, "b", **script) as second,
            running_gateway(here, {"a": first.config, "b": second.config}) as gateway,
        ):
            await gateway.until_listed("a__look", "b__change")
            assert (await gateway.call("a__look", {"a": 1}))["structuredContent"] == {"a": 1}
            assert len(first.recording.calls()) == 2
            result = await gateway.call("b__change", {"a": 1})
            assert result["isError"]
            assert "outcome is unknown" in text_of(result)
            assert len(second.recording.calls()) == 1
            assert "isError" not in await gateway.call("b__change")


@pytest.mark.parametrize("legacy", [False, True])
async def test_hanging_call_times_out_and_is_cancelled(tmp_path: Path, legacy: bool) -> None:
    tools = builtin_tools("hang", "echo", "progress")
    async with (
        scripted_http_server(tmp_path, "h", tools=tools, legacy_sse_only=legacy, sse=True) as http,
        running_gateway(tmp_path, {"h": {**http.config, "callTimeout": 1}}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        began_s = anyio.current_time()
        result = await gateway.call("h__hang")
        assert result["isError"]
        assert 1 <= anyio.current_time() - began_s < 5
        sent = http.recording.calls("hang")[0]["id"]
        await http.recording.until(lambda seen: sent in seen.cancelled())
        assert "isError" not in await gateway.call("h__progress", {"count": 5, "interval_s": 0.4})
        assert "isError" not in await gateway.call("h__echo")


@pytest.mark.parametrize("legacy", [False, True])
async def test_server_killed_during_a_call_is_an_immediate_error_and_soon_back(tmp_path: Path, legacy: bool) -> None:
    tools = builtin_tools("hang", "echo")
    async with (
        scripted_http_server(tmp_path, "h", tools=tools, legacy_sse_only=legacy) as http,
        running_gateway(tmp_path, {"h": {**http.config, "callTimeout": 1.5}}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        answers: list[dict[str, Any]] = []
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append_result, gateway, "h__hang", {}, answers)
                await http.recording.until(lambda seen: seen.calls("hang"))
                await http.stop()
        assert "outcome is unknown" in text_of(answers[0])
        with anyio.fail_after(25):
            down = await gateway.call("h__echo")
        assert "not reachable right now" in text_of(down)
        assert "h__echo" in await gateway.tools()
        await http.start()
        with anyio.fail_after(20):
            while "isError" in await gateway.call("h__echo"):
                await brief_pause()
        assert len(http.recording.calls("hang")) == 1
        assert len(http.recording.calls("echo")) == 1


async def test_forgotten_session_loses_no_call(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "h", tools=builtin_tools("forget", "echo")) as http,
        running_gateway(tmp_path, {"h": http.config}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        for number in range(3):
            await gateway.call("h__forget")
            assert (await gateway.call("h__echo", {"n": number}))["structuredContent"] == {"n": number}
        await http.restart()
        assert (await gateway.call("h__echo", {"n": 9}))["structuredContent"] == {"n": 9}
        assert len(http.recording.calls("echo")) == 4
        assert (await gateway.server("h"))["epoch"] == 5


async def test_call_in_a_forgotten_session_is_checked_against_the_new_listing(tmp_path: Path) -> None:
    number, text = ([tool("put", "n", n={"type": kind})] for kind in ("integer", "string"))
    async with (
        scripted_http_server(tmp_path, "h", tools=number) as http,
        running_gateway(tmp_path, {"h": {**http.config, "repair": "off"}}) as gateway,
    ):
        await gateway.until_listed("h__put")
        await http.restart(tools=text)
        refused = await gateway.call("h__put", {"n": 1})
        assert refused["isError"]
        assert "n is declared as string, you sent an integer" in text_of(refused)
        assert http.recording.calls() == []
        await http.restart(tools=builtin_tools("echo"))
        gone = await gateway.call("h__put", {"n": "1"})
        assert "no longer has the tool 'put'" in text_of(gone)
        assert http.recording.calls() == []


async def test_slow_call_survives_a_reconnect_and_waiting_calls_share_one_connection(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "h", tools=builtin_tools("sleep", "forget", "echo")) as http,
        running_gateway(tmp_path, {"h": http.config}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        answers: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "h__sleep", {"seconds": 2}, answers)
            await http.recording.until(lambda seen: seen.calls("sleep"))
            await gateway.call("h__forget")
            async with anyio.create_task_group() as crowd:
                for number in range(20):
                    crowd.start_soon(append_result, gateway, "h__echo", {"n": number}, others)
            assert not answers
        assert answers[0].get("structuredContent") == {"seconds": 2}, answers
        assert sorted(one["structuredContent"]["n"] for one in others) == list(range(20))
        assert len(http.recording.calls("echo")) == 20
        assert len(http.recording.requests("initialize")) == 2

        # The same when the administrator has it discovered again.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "h__sleep", {"seconds": 1}, answers)
            await http.recording.until(lambda seen: len(seen.calls("sleep")) == 2)
            assert (await gateway.admin("servers/h/refresh", "POST")).status_code == 202
            await http.recording.until(lambda seen: len(seen.requests("tools/list")) == 3)
            await gateway.call("h__echo")
        assert answers[1].get("structuredContent") == {"seconds": 1}, answers
        assert "unexpected" not in gateway.logged()
        assert "Traceback" not in gateway.logged()


@pytest.mark.parametrize("legacy", [False, True])
async def test_server_refusing_connections_delays_no_other_and_joins_later(tmp_path: Path, legacy: bool) -> None:
    async with (
        scripted_http_server(tmp_path, "late", tools=builtin_tools("echo"), legacy_sse_only=legacy) as late,
        scripted_http_server(tmp_path, "fine", tools=builtin_tools("echo")) as fine,
    ):
        await late.stop()
        async with running_gateway(tmp_path, {"late": late.config, "fine": fine.config}) as gateway:
            await gateway.until_listed("fine__echo", within_s=5)
            row = await until_server(gateway, "late", lambda row: row["state"] == "waiting" and row["lastError"])
            assert "cannot connect" in row["lastError"]
            joined_s: list[float] = []
            while not joined_s or (len(joined_s) < 3 and joined_s[-1] > 1):
                await late.stop()
                await until_server(gateway, "late", lambda row: row["state"] == "waiting")
                await late.start()
                began_s = anyio.current_time()
                await until_server(gateway, "late", lambda row: row["state"] == "ready")
                joined_s.append(anyio.current_time() - began_s)
                assert "isError" not in await gateway.call("late__echo")
            assert joined_s[-1] <= 1, joined_s


async def test_server_not_answering_the_handshake_delays_no_other(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "mute", faults={"silent": True}) as mute,
        scripted_http_server(tmp_path, "deaf", faults={"silent": True}, legacy_sse_only=True) as deaf,
        scripted_http_server(tmp_path, "fine", tools=builtin_tools("echo")) as fine,
    ):
        patience = {"connectTimeout": 1}
        servers = {"mute": mute.config | patience, "deaf": deaf.config | patience, "fine": fine.config}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed("fine__echo", within_s=5)
            for name in ("mute", "deaf"):
                row = await until_server(gateway, name, lambda row: row["lastError"])
                assert "handshake" in row["lastError"], row
            await mute.restart(tools=builtin_tools("echo"))
            await gateway.until_listed("mute__echo")


async def test_dropped_change_stream_is_reopened(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "h", tools=builtin_tools("echo"), list_changed=True) as http,
        running_gateway(tmp_path, {"h": http.config}) as gateway,
    ):
        await gateway.until_listed("h__echo")
        await http.recording.until(lambda seen: seen.events("stream"))
        await http.restart(tools=[*builtin_tools("echo"), tool("second")], list_changed=True)
        began_s = anyio.current_time()
        await gateway.until_listed("h__second")
        assert anyio.current_time() - began_s < await limit_now(3)
        await eventually(lambda: len(http.recording.events("stream")) == 2)
        http.announce(tools=[*builtin_tools("echo"), tool("third")], list_changed=True)
        tools = await gateway.until_listed("h__third")
        assert "h__second" not in tools
