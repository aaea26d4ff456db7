"""Administration of several workers: changes apply to all, and answers cover all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import handshake
from support.gateways import COMMANDS, RunningGateway, running_gateway
from support.upstreams.running import scripted_http_server, scripted_stdio_server, tool
from support.worker_groups import each_worker, ready, running_workers, until, workers_of

from gateway import __version__

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
FAIL = {"name": "fail", "inputSchema": {"type": "object"}}


def count_in_log(gateway: RunningGateway, words: str) -> int:
    return gateway.logged().count(words)


async def listed_at(worker: RunningGateway) -> set[str]:
    return set(await worker.tools())


async def test_added_and_removed_servers_apply_at_every_worker(tmp_path: Path) -> None:
    local, _ = scripted_stdio_server(tmp_path, "local", tools=[ECHO])
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {}, gateway=COMMANDS) as gateway,
        each_worker(gateway) as workers,
    ):
        for index, one in enumerate(workers):
            added = await one.admin("servers", "POST", {"name": f"s{index}", **up.config})
            assert added.status_code == 201, added.text
            refused = await one.admin("servers", "POST", {"name": f"s{index}", **up.config})
            assert refused.status_code == 400
            process = await one.admin("servers", "POST", {"name": "local", **local})
            assert process.status_code == 400
            assert "copies" in process.text
        for one in workers:
            await one.until_listed("s0__echo", "s1__echo")
            assert [row["name"] for row in (await one.admin("servers")).json()["servers"]] == ["s0", "s1"]
        assert (await workers[1].admin("servers/s0", "DELETE")).status_code == 204
        for one in workers:
            assert await listed_at(one) == {"s1__echo"}
            assert (await one.admin("servers/s0")).status_code == 404
            assert (await one.admin("servers", token="wrong")).status_code == 401
            assert (await one.admin("servers/s0/refresh", "POST")).status_code == 404
        assert (await workers[1].admin("servers/s1/refresh", "POST")).status_code == 202
        # Twice at the start, and now by each worker again.
        await until(lambda: len(up.recording.requests("tools/list")) >= 6)


async def restart(gateway: RunningGateway, index: int) -> None:
    """Kill a worker, and return once the worker that replaces it is ready."""
    before = workers_of(gateway)[index]
    os.kill(before, signal.SIGKILL)
    await until(lambda: workers_of(gateway).get(index) not in (None, before))
    await ready(gateway)


async def test_restarted_worker_knows_changes_made_meanwhile(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"old": up.config, "kept": up.config}) as gateway,
    ):
        await gateway.until_listed("kept__echo")
        assert (await gateway.admin("servers", "POST", {"name": "new", **up.config})).status_code == 201
        assert (await gateway.admin("servers/old", "DELETE")).status_code == 204
        note = {"wrapper": "kept__echo", "text": "Slow on Mondays."}
        assert (await gateway.admin("notes", "POST", note)).status_code == 201
        # A file that cannot be used in the meantime changes nothing for those that start again.
        gateway.config.write_text("{")
        await until(lambda: count_in_log(gateway, "configuration rejected"))
        for index in (1, 0):
            await restart(gateway, index)
            async with each_worker(gateway) as workers:
                for one in workers:
                    tools = await one.until_listed("new__echo", "kept__echo")
                    assert set(tools) == {"new__echo", "kept__echo"}
                    await until(lambda: described(one, "Does echo.\n\nSlow on Mondays."))  # noqa: B023 - over before the next round


async def test_restarted_workers_use_the_configuration_that_was_loaded_last(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"a": up.config}) as gateway,
    ):
        await ready(gateway)
        gateway.config.write_text(json.dumps({"mcpServers": {"b": up.config}}))
        await until(lambda: count_in_log(gateway, "configuration reloaded"))
        gateway.config.write_text("{")
        await until(lambda: count_in_log(gateway, "configuration rejected"))
        for index in (1, 0):
            await restart(gateway, index)
            async with each_worker(gateway) as workers:
                for one in workers:
                    assert set(await one.until_listed("b__echo")) == {"b__echo"}


async def test_suspended_worker_or_parent_stops_no_call_and_misses_no_change(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"kept": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("kept__echo")
        # The change waits five seconds for a worker that does not answer.
        workers[0].client.timeout = httpx2.Timeout(20)
        for suspended in (workers_of(gateway)[1], gateway.process.pid):
            os.kill(suspended, signal.SIGSTOP)
            try:
                note = {"wrapper": "kept__echo", "text": f"Written while {suspended} was suspended."}
                added = await workers[0].admin("notes", "POST", note)
                assert added.status_code == 201, added.text
                with anyio.fail_after(10):
                    for number in range(6):
                        answer = await workers[0].call("kept__echo", {"n": number})
                        assert answer["structuredContent"] == {"n": number}
            finally:
                os.kill(suspended, signal.SIGCONT)
            for one in workers:
                await until(lambda: noted(one, note["text"]))  # noqa: B023 - over before the next round
                assert (await one.call("kept__echo", {"n": 7}))["structuredContent"] == {"n": 7}


async def noted(worker: RunningGateway, words: str) -> bool:
    return words in (await worker.tools())["kept__echo"]["description"]


async def described(worker: RunningGateway, words: str) -> bool:
    return bool((await worker.tools())["kept__echo"]["description"] == words)


async def test_note_is_shown_at_every_worker_until_a_call_succeeds_at_any(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"kept": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("kept__echo")
        for calls, other in ((workers[1], workers[0]), (workers[0], workers[1])):
            note = {"wrapper": "kept__echo", "text": "It is down.", "failure": True}
            assert (await calls.admin("notes", "POST", note)).status_code == 201
            for one in workers:
                assert await described(one, "Does echo.\n\nIt is down.")
            await calls.call("kept__echo", {"n": 1})
            await until(lambda: described(other, "Does echo."))  # noqa: B023 - over before the next round
            await until(lambda: no_notes(other))  # noqa: B023 - over before the next round
        kept = json.loads((gateway.state_dir / "notes.json").read_text())
        assert kept == []


async def no_notes(worker: RunningGateway) -> bool:
    return (await worker.admin("notes")).json()["notes"] == []


async def test_failures_at_two_workers_are_flagged_together_and_counted_once(tmp_path: Path) -> None:
    faults = {"fail": {"kind": "error", "with": {"code": -32000, "message": "no"}}}
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, FAIL], behaviours=faults) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__fail")
        sessions = [await handshake(one) for one in workers]
        for session in (sessions[0], sessions[1], sessions[0]):
            await session.call("up__fail")
        for one in workers:
            [row] = (await one.admin("failures")).json()["failures"]
            assert (row["wrapper"], row["recent"], row["sessions"], row["flagged"]) == ("up__fail", 3, 2, True)
        await until(lambda: count_in_log(gateway, "calls keep failing"))
        assert count_in_log(gateway, "calls keep failing") == 1
        for one in workers:
            # Repairs are counted where they happen.
            await one.call("up__echo", {"n": "3"})
        [repaired] = (await workers[1].admin("failures")).json()["repaired"]
        assert repaired["calls"] == 2


async def test_scrape_sums_all_workers_and_counters_do_not_decrease(tmp_path: Path) -> None:
    line = 'typegate_calls_total{outcome="ok",server="up",tool="echo",via="wrapper"}'
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, tool("hang")]) as up,
        running_workers(tmp_path, {"up": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__echo")
            for number in range(3):
                await one.call("up__echo", {"n": number})

        async def figures(worker: RunningGateway) -> dict[str, float]:
            text = (await worker.client.get(f"{worker.origin}/metrics")).text
            pairs = (row.rpartition(" ") for row in text.splitlines() if row and row[0] != "#")
            return {name: float(value) for name, _, value in pairs}

        for one in workers:
            found = await figures(one)
            assert found[line] == 6.0, found
            assert found['typegate_upstream_up{server="up"}'] == 1.0
            assert found[f'typegate_info{{version="{__version__}"}}'] == 1.0
        async with anyio.create_task_group() as group:
            for one in workers:
                group.start_soon(quietly, one)
            await up.recording.until(lambda record: len(record.calls("hang")) == 2)
            assert (await figures(gateway))['typegate_upstream_in_flight{server="up"}'] == 2.0
            assert (await gateway.server("up"))["inFlight"] == 2
            group.cancel_scope.cancel()
        before = workers_of(gateway)
        os.kill(before[1], signal.SIGKILL)
        await until(lambda: workers_of(gateway).get(1) not in (None, before[1]))
        await ready(gateway)
        assert (await figures(gateway))[line] == 6.0


async def quietly(worker: RunningGateway) -> None:
    try:
        await worker.call("up__hang")
    except httpx2.HTTPError:
        return


async def test_changed_file_is_used_by_every_worker_and_an_invalid_one_reported_once(tmp_path: Path) -> None:
    local, _ = scripted_stdio_server(tmp_path, "local", tools=[ECHO])
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_workers(tmp_path, {"a": up.config}) as gateway,
        each_worker(gateway) as workers,
    ):
        await ready(gateway)

        def write(servers: dict[str, Any]) -> None:
            fresh = gateway.config.with_suffix(".new")
            fresh.write_text(json.dumps({"mcpServers": servers}))
            fresh.replace(gateway.config)

        write({"a": up.config, "b": up.config})
        for one in workers:
            await one.until_listed("b__echo")
        write({"a": up.config, "local": local})
        await until(lambda: count_in_log(gateway, "configuration rejected"))
        for one in workers:
            row = (await one.admin("config")).json()
            assert "local is a process" in row["error"]
            assert row["reloads"] == 1
        assert count_in_log(gateway, "configuration rejected") == 1
        write({"b": up.config})
        for one in workers:
            await until(lambda: only_b(one))  # noqa: B023 - over before the next round
        assert count_in_log(gateway, "configuration reloaded") == 2
        gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: count_in_log(gateway, "configuration reloaded") == 3)
        assert len(workers_of(gateway)) == 2


async def only_b(worker: RunningGateway) -> bool:
    return await listed_at(worker) == {"b__echo"}


async def test_single_worker_has_no_parent_and_plain_ids(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_gateway(tmp_path, {"up": up.config}, arguments=("--workers", "1")) as gateway,
    ):
        await gateway.until_listed("up__echo")
        assert workers_of(gateway) == {}
        assert len((await handshake(gateway)).headers["mcp-session-id"]) == 32


async def test_hooks_run_at_every_worker_and_are_counted_together(tmp_path: Path) -> None:
    hooks = [{"name": "again", "use": "cache", "config": {"ttl": 60}}]
    async with (
        scripted_http_server(tmp_path, "up", tools=[{**ECHO, "annotations": {"readOnlyHint": True}}]) as up,
        running_workers(tmp_path, {"up": up.config}, gateway={"hooks": hooks}) as gateway,
        each_worker(gateway) as workers,
    ):
        for one in workers:
            await one.until_listed("up__echo")
            for _ in range(2):
                assert (await one.call("up__echo", {"n": 1}))["structuredContent"] == {"n": 1}
        # Each remembers for itself.
        assert len(up.recording.calls("echo")) == len(workers)
        for one in workers:
            [row] = (await one.admin("hooks")).json()["hooks"]
            assert row["counts"]["answered"] == len(workers), row
        broken = {"mcpServers": {"up": up.config}, "gateway": {"hooks": [{"name": "limit", "use": "rate_limit"}]}}
        gateway.config.write_text(json.dumps(broken))
        await until(lambda: count_in_log(gateway, "configuration rejected"))
        assert "rate_limit" in gateway.logged()
        for one in workers:
            assert (await one.call("up__echo", {"n": 1}))["structuredContent"] == {"n": 1}
