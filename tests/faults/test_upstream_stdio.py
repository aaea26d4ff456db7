"""Child processes that crash, hang, print noise or loop affect only their own calls."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, environment_of, eventually, is_alive, rss_of, until_server
from support.gateways import running_gateway, text_of
from support.pace import limit_now
from support.upstreams.running import builtin_tools, rescript, scripted_stdio_server, tool

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy


def marked(name: str) -> dict[str, Any]:
    """A tool that may be run twice."""
    return {**tool(name), "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize("modern", [True, False])
async def test_crash_during_a_call_is_an_immediate_error_and_the_next_call_works(tmp_path: Path, modern: bool) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("exit", "hang", "echo"), modern=modern)
    async with running_gateway(tmp_path, {"s": server}) as gateway:
        await gateway.until_listed("s__echo")
        began_s = anyio.current_time()
        result = await gateway.call("s__exit", {"code": 5})
        heard_s = [anyio.current_time() - began_s]
        assert result["isError"]
        assert "outcome is unknown" in text_of(result), result
        assert "code 5" in text_of(result)
        began_s = anyio.current_time()
        assert (await gateway.call("s__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert anyio.current_time() - began_s < await limit_now(3)
        assert [one["name"] for one in record.calls()] == ["exit", "echo"]

        answers: list[dict[str, Any]] = []
        with anyio.fail_after(25):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(append_result, gateway, "s__hang", {}, answers)
                await record.until(lambda seen: len(seen.calls("hang")) == 3)
                os.kill(record.starts()[-1], signal.SIGKILL)
                began_s = anyio.current_time()
        heard_s.append(anyio.current_time() - began_s)
        # The better of two measurements, because the machine may be busy; a call may take a minute.
        assert min(heard_s) <= 0.5, heard_s
        assert max(heard_s) < 5, heard_s
        assert all(one["isError"] and "outcome is unknown" in text_of(one) for one in answers), answers
        assert all("SIGKILL" in text_of(one) for one in answers)
        assert "isError" not in await gateway.call("s__echo")
        assert len(record.calls("hang")) == 3
        assert len(record.starts()) == 3


async def test_only_a_repeatable_tool_is_called_again_after_a_crash(tmp_path: Path) -> None:
    script: dict[str, Any] = {"tools": [marked("look"), tool("change")]}
    dying = {"look": "exit", "change": "exit"}
    once, record = scripted_stdio_server(tmp_path, "once", **script, behaviours=dying)
    always, always_record = scripted_stdio_server(tmp_path, "always", **script, behaviours=dying)
    async with running_gateway(tmp_path, {"once": once, "always": always}) as gateway:
        await gateway.until_listed("once__look", "always__change")
        rescript(once, record, **script)
        assert (await gateway.call("once__look", {"a": 1}))["structuredContent"] == {"a": 1}
        assert len(record.calls("look")) == 2

        change = await gateway.call("always__change")
        assert change["isError"]
        assert "outcome is unknown" in text_of(change)
        assert len(always_record.calls("change")) == 1
        await until_server(gateway, "always", lambda row: row["state"] == "ready" and row["epoch"] == 2)
        look = await gateway.call("always__look")
        assert look["isError"]
        assert "outcome is unknown" in text_of(look)
        assert len(always_record.calls("look")) == 2


async def test_tool_without_repeatable_annotations_is_never_called_twice(tmp_path: Path) -> None:
    hints: dict[str, dict[str, Any]] = {
        "writes": {"readOnlyHint": False},
        "destroys": {"destructiveHint": True, "openWorldHint": True},
        "gentle": {"destructiveHint": False},
        "titled": {"title": "Look", "idempotentHint": False},
        "wordy": {"readOnlyHint": "true", "idempotentHint": 1},
        "empty": {},
    }
    tools = [{**tool(name), "annotations": annotations} for name, annotations in hints.items()]
    servers, records = {}, {}
    for name in hints:
        servers[name], records[name] = scripted_stdio_server(tmp_path, name, tools=tools, behaviours={name: "exit"})
    async with running_gateway(tmp_path, servers) as gateway:
        for name in hints:
            await gateway.until_listed(f"{name}__{name}")
            lost = await gateway.call(f"{name}__{name}", {"a": 1})
            assert lost["isError"]
            assert "it was not repeated" in text_of(lost)
            await until_server(gateway, name, lambda row: row["state"] == "ready" and row["epoch"] == 2)
            assert len(records[name].calls()) == 1


async def test_arguments_refused_by_the_upstream_are_not_sent_again(tmp_path: Path) -> None:
    refusing = {"error": {"code": -32602, "message": "no such date"}}
    server, record = scripted_stdio_server(tmp_path, "s", tools=[marked("look")], faults=refusing)
    async with running_gateway(tmp_path, {"s": server}) as gateway:
        await gateway.until_listed("s__look")
        result = await gateway.call("s__look")
        assert result["isError"]
        assert "no such date" in text_of(result)
        assert len(record.calls()) == 1


async def test_hanging_call_times_out_without_affecting_others(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("hang", "echo"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 1}}) as gateway:
        await gateway.until_listed("s__hang")
        answers: list[dict[str, Any]] = []
        began_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "s__hang", {}, answers)
            await record.until(lambda seen: seen.calls("hang"))
            for number in range(20):
                assert (await gateway.call("s__echo", {"n": number}))["structuredContent"] == {"n": number}
            assert not answers
        assert 1 <= anyio.current_time() - began_s < 5
        assert answers[0]["isError"]
        assert "within 1 s" in text_of(answers[0])
        await record.until(lambda seen: seen.cancelled() == [seen.calls("hang")[0]["id"]])
        assert (await gateway.server("s"))["inFlight"] == 0
        assert (await gateway.server("s"))["epoch"] == 1


async def test_partial_answer_fails_one_call_at_its_deadline(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("half_line", "echo"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 1}}) as gateway:
        await gateway.until_listed("s__half_line")
        for ended in (False, True):
            answers: list[dict[str, Any]] = []
            began_s = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append_result, gateway, "s__half_line", {}, answers)
                await record.until(lambda seen, count=ended + 1: len(seen.calls("half_line")) == count)
                if ended:
                    # The next answer ends the line that was cut.
                    assert (await gateway.call("s__echo", {"a": 1}))["structuredContent"] == {"a": 1}
            took_s = anyio.current_time() - began_s
            assert ended or 1 <= took_s < 5
            assert answers[0]["isError"]
            assert ("not JSON" if ended else "within 1 s") in text_of(answers[0])
            for number in range(20):
                assert (await gateway.call("s__echo", {"n": number}))["structuredContent"] == {"n": number}
        assert (await gateway.server("s"))["inFlight"] == 0
        assert (await gateway.server("s"))["epoch"] == 1


async def test_progress_extends_the_deadline_of_a_call(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("progress"))
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 3}}) as gateway:
        await gateway.until_listed("s__progress")
        assert "isError" not in await gateway.call("s__progress", {"count": 5, "interval_s": 0.8})
        silent = await gateway.call("s__progress", {"count": 2, "interval_s": 9})
        assert silent["isError"]


async def test_noise_on_stdout_is_skipped_with_bounded_memory(tmp_path: Path) -> None:
    names = ("garbage", "invalid_utf8", "endless_line", "wrong_ids", "big", "echo")
    server, record = scripted_stdio_server(
        tmp_path, "s", tools=builtin_tools(*names), faults={"garbage_at_start": True}, modern=True
    )
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 30}}) as gateway:
        await gateway.until_listed("s__echo")
        assert "isError" not in await gateway.call("s__big", {"bytes": 4_000_000})
        before = rss_of(gateway.process.pid)
        for name in names[:4]:
            assert (await gateway.call(f"s__{name}", {"a": name}))["structuredContent"] == {"a": name}
            assert (await gateway.call("s__echo", {"b": name}))["structuredContent"] == {"b": name}
        # A response over the bound is skipped like any such line, but its call fails at once.
        with anyio.fail_after(20):
            assert "more than 8388608 bytes" in text_of(await gateway.call("s__big", {"bytes": 50_000_000}))
        assert "isError" not in await gateway.call("s__echo")
        assert rss_of(gateway.process.pid) - before < 64 * MIB
        assert len(record.starts()) == 1


async def test_invalid_answer_is_an_error_for_its_own_caller_only(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("raw", "sleep", "echo"))
    members = (
        '"result": null', '"result": {}', '"result": []', '"error": "broken"',
        '"error": {"code": "x", "message": 5}', '"error": {}', '"neither": 1', '"result": 7, "error": null',
    )  # fmt: skip
    async with running_gateway(tmp_path, {"s": {**server, "callTimeout": 2}}) as gateway:
        await gateway.until_listed("s__echo")
        answers: list[dict[str, Any]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "s__sleep", {"seconds": 1, "mine": True}, answers)
            await record.until(lambda seen: seen.calls("sleep"))
            for member in members:
                following = record.calls()[-1]["id"] + 1
                line = f'{{"jsonrpc": "2.0", "id": {following}, {member}}}'
                with anyio.fail_after(20):
                    result = await gateway.call("s__raw", {"line": line})
                assert result.get("isError"), (member, result)
                assert text_of(result)
        assert answers[0]["structuredContent"] == {"seconds": 1, "mine": True}
        deep = f'{{"jsonrpc": "2.0", "id": 1, "result": {"[" * 200_000}{"]" * 200_000}}}'
        assert (await gateway.call("s__raw", {"line": deep}))["isError"]
        assert (await gateway.call("s__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert len(record.starts()) == 1


async def test_answers_with_wrong_and_repeated_ids_reach_no_other_caller(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("wrong_ids", "echo"))
    async with running_gateway(tmp_path, {"s": server}) as gateway:
        await gateway.until_listed("s__echo")

        async def own(name: str, number: int) -> None:
            result = await gateway.call(name, {"number": number})
            assert result["structuredContent"] == {"number": number}

        async with anyio.create_task_group() as tasks:
            for number in range(25):
                tasks.start_soon(own, "s__wrong_ids", number)
                tasks.start_soon(own, "s__echo", 1000 + number)


async def test_storms_of_notifications_errors_and_requests_are_bounded(tmp_path: Path) -> None:
    names = ("notification_storm", "echo")
    stormy, record = scripted_stdio_server(
        tmp_path, "s", tools=builtin_tools(*names), list_changed=True, faults={"stderr_flood": 8 * MIB}
    )
    asking, asking_record = scripted_stdio_server(
        tmp_path, "q", tools=builtin_tools("echo"), faults={"server_requests": 50}
    )
    calm, _ = scripted_stdio_server(tmp_path, "c", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"s": stormy, "q": asking, "c": calm}) as gateway:
        await gateway.until_listed("s__echo", "q__echo", "c__echo")
        before = rss_of(gateway.process.pid)
        answers: list[dict[str, Any]] = []
        slowest_s = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_result, gateway, "s__notification_storm", {"count": 100_000}, answers)
            while not answers:
                began_s = anyio.current_time()
                assert "isError" not in await gateway.call("c__echo")
                slowest_s = max(slowest_s, anyio.current_time() - began_s)
        assert slowest_s < 3
        assert "isError" not in answers[0]
        assert "isError" not in await gateway.call("s__echo")
        assert len(record.requests("tools/list")) < 150
        for _ in range(3):
            assert "isError" not in await gateway.call("q__echo")
        await asking_record.until(lambda seen: len(seen.events("response")) == 150)
        assert {one["message"]["error"]["code"] for one in asking_record.events("response")} == {-32601}
        assert rss_of(gateway.process.pid) - before < 32 * MIB
        assert gateway.log.stat().st_size < MIB


@pytest.mark.heavy
async def test_crash_loop_starts_rarely_however_often_it_is_called(tmp_path: Path) -> None:
    dead, dead_record = scripted_stdio_server(tmp_path, "dead", faults={"exit_at_start": 3})
    brief, brief_record = scripted_stdio_server(tmp_path, "brief", tools=builtin_tools("exit"))
    async with running_gateway(tmp_path, {"dead": dead, "brief": brief}) as gateway:
        with anyio.move_on_after(8):
            while True:
                await gateway.tools()
                with anyio.move_on_after(0.3):
                    await gateway.call("brief__exit")
                await gateway.call("invoke_tool", {"server": "dead", "tool": "x", "arguments": {}})
        assert 3 <= len(dead_record.starts()) <= 8
        assert 3 <= len(brief_record.starts()) <= 8
        row = await gateway.server("dead")
        assert row["state"] in ("connecting", "waiting")
        assert "exited with code 3" in row["lastError"]
        assert "exited with code 3" in text_of(await gateway.call("invoke_tool", {"server": "dead", "tool": "x"}))


async def test_children_and_grandchildren_end_with_a_crash_and_with_the_gateway(tmp_path: Path) -> None:
    faults = {"spawn_grandchild": True}
    plain, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("exit"), faults=faults)
    deaf, deaf_record = scripted_stdio_server(tmp_path, "d", tools=[], faults={**faults, "ignore_eof": True})
    async with running_gateway(tmp_path, {"s": plain, "d": deaf}) as gateway:
        await gateway.until_listed("s__exit")
        await until_server(gateway, "d", lambda row: row["state"] == "ready")
        first = record.grandchildren()[0]
        assert is_alive(first)
        await gateway.call("s__exit")
        await eventually(lambda: not is_alive(first))
        await until_server(gateway, "s", lambda row: row["state"] == "ready" and row["epoch"] == 2)
        everyone = [pid for one in (record, deaf_record) for pid in (*one.starts(), *one.grandchildren())]
        assert sum(map(is_alive, everyone)) == 4
        assert await gateway.stop() == 0
        assert not any(map(is_alive, everyone))


async def test_child_sees_only_its_environment_and_its_stderr_is_labeled(tmp_path: Path) -> None:
    safe = {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "TZ"}
    # Only on machines behind a proxy, or with certificates of their own.
    safe |= {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    safe |= {"REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
    server, record = scripted_stdio_server(tmp_path, "s", tools=builtin_tools("echo"))
    noisy, _ = scripted_stdio_server(tmp_path, "loud-one", faults={"exit_at_start": 4})
    servers = {"s": {**server, "env": {"NAMED": "yes"}}, "loud-one": noisy}
    async with running_gateway(tmp_path, servers, environment={"SECRET_OF_OURS": "no"}) as gateway:
        await gateway.until_listed("s__echo")
        seen = environment_of(record.starts()[0])
        assert seen["NAMED"] == "yes"
        assert {name.upper() for name in seen} - {"NAMED"} <= safe
        assert seen["PATH"] == os.environ["PATH"]
        words = "scripted upstream: exit at start"
        await eventually(lambda: words in gateway.logged())
        labelled = [line for line in gateway.logged().splitlines() if words in line]
        assert all("loud-one" in line for line in labelled), labelled


async def test_nonexistent_command_delays_no_other_and_is_explained(tmp_path: Path) -> None:
    fine, _ = scripted_stdio_server(tmp_path, "fine", tools=builtin_tools("echo"))
    later = tmp_path / "later"
    servers = {"gone": {"command": str(later), "args": fine["args"]}, "fine": fine}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("fine__echo", within_s=5)
        row = await until_server(gateway, "gone", lambda row: row["lastError"])
        assert "command not found" in row["lastError"]
        assert "later" in row["lastError"]
        await until_server(gateway, "gone", lambda row: row["state"] == "waiting")
        later.symlink_to(fine["command"])
        assert "gone__echo" in await gateway.until_listed("gone__echo")
        assert json.loads(text_of(await gateway.call("gone__echo", {"a": 1}))) == {"a": 1}
