"""Misbehaving GraphQL endpoints and files: each call fails alone, in time, within bounds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import MIB, append_result, eventually, rss_of, until_server
from support.callers import call_of
from support.gateways import COMMANDS, brief_pause, running_gateway, text_of
from support.upstreams.graphql_running import GET_EMPLOYEE, HR_SDL, PLAIN, graphql_gateway, graphql_server
from support.upstreams.running import builtin_tools, scripted_stdio_server

from gateway.process.extras import install_command

pytestmark = pytest.mark.heavy

NAME = "hr__fire"
FILES = {"a.graphql": "mutation Fire { fire(id: 1) { id } }", "b.graphql": PLAIN}
FAULTS: dict[str, dict[str, Any]] = {
    "hang": {"kind": "hang"},
    "slow": {"kind": "slow_bytes"},
    "half": {"kind": "half_body"},
    "reset": {"kind": "reset"},
    "big": {"kind": "big", "bytes": 100_000_000},
    "deep": {"kind": "deep"},
    "html": {"kind": "answer", "body": "<html>welcome</html>", "content_type": "text/html"},
    "stream": {"kind": "answer", "body": "data: {}\n\n", "content_type": "text/event-stream"},
    "multipart": {"kind": "answer", "body": '--\r\n{"data":{}}', "content_type": "multipart/mixed"},
    "nothing": {"kind": "answer", "body": ""},
    "no_content": {"kind": "answer", "status": 204},
    "not_json": {"kind": "answer", "body": '{"data": {"a": NaN}}'},
    "array": {"kind": "answer", "body": "[]"},
    "text": {"kind": "answer", "body": '"data"'},
    "null": {"kind": "answer", "body": '{"data": null}'},
    "list_of_data": {"kind": "answer", "body": '{"data": [1]}'},
    "no_errors": {"kind": "answer", "body": '{"data": null, "errors": []}'},
    "odd_errors": {"kind": "answer", "body": '{"data": null, "errors": 5}'},
    "empty": {"kind": "answer", "body": "{}"},
    "gzip": {"kind": "answer", "body": "x", "headers": {"content-encoding": "gzip"}},
}


async def test_every_broken_answer_fails_only_its_own_call(tmp_path: Path) -> None:
    healthy, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    async with graphql_server(tmp_path, FILES) as server:
        servers = {"hr": server.config(callTimeout=2, **server.schema_file), "calm": healthy}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed(NAME, "calm__echo")
            before = rss_of(gateway.process.pid)
            for name, fault in FAULTS.items():
                server.change(fault=fault)
                answers: list[dict[str, Any]] = []
                with anyio.fail_after(20):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(append_result, gateway, NAME, {}, answers)
                        assert (await gateway.call("calm__echo", {"n": 1}))["structuredContent"] == {"n": 1}
                [result] = answers
                assert result["isError"], name
                assert 20 < len(text_of(result)) < 400, (name, result)
                assert "'hr'" in text_of(result), (name, result)
            server.change(fault=None)
            assert "isError" not in await gateway.call(NAME)
            row = await gateway.server("hr")
            assert (row["state"], row["epoch"], row["inFlight"]) == ("ready", 1, 0)
            # A mutation is never sent twice, even if its answer is lost.
            assert len(server.sent()) == len(FAULTS) + 1
            assert rss_of(gateway.process.pid) - before < 64 * MIB


async def test_lost_query_is_repeated_once_and_a_mutation_is_not(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        server.change(fault={"kind": "reset"})
        assert "outcome is unknown" in text_of(await gateway.call(NAME))
        assert len(server.sent()) == 1
        assert "sent twice" in text_of(await gateway.call("hr__list_people"))
        assert len(server.sent()) == 3


async def test_cancelled_call_is_abandoned_and_its_connection_closed(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        server.change(fault={"kind": "hang"})
        with anyio.move_on_after(1):
            await gateway.post(call_of(NAME))
        await until_server(gateway, "hr", lambda row: row["inFlight"] == 0, within_s=3)
        server.change(fault=None)
        assert "isError" not in await gateway.call(NAME)


async def test_hanging_call_times_out_and_concurrent_ones_are_bounded(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES, callTimeout=1, maxConcurrency=5) as (server, gateway):
        await gateway.until_listed(NAME)
        server.change(fault={"kind": "hang"})
        answers: list[dict[str, Any]] = []
        began_s = anyio.current_time()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(append_result, gateway, NAME, {}, answers)
        assert anyio.current_time() - began_s < 5
        texts = [text_of(one) for one in answers]
        assert sum("within 1 s" in text for text in texts) == 5
        assert sum("calls in flight" in text for text in texts) == 15


BROKEN_INTROSPECTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"kind": "big", "bytes": 50_000_000}, "larger than 16777216 bytes"),
    ({"kind": "hang"}, "within 1 s"),
    ({"kind": "slow_bytes"}, "within 1 s"),
    ({"kind": "half_body"}, "closed the connection"),
    ({"kind": "deep"}, "not JSON"),
    ({"kind": "answer", "body": "<html>", "content_type": "text/html"}, "text/html"),
    (
        {"kind": "answer", "status": 401},
        "HTTP 401: no credentials are configured for this server; add them to its entry under `headers`",
    ),
    ({"kind": "answer", "status": 500}, "HTTP 500"),
    ({"kind": "answer", "status": 302, "headers": {"location": "http://127.0.0.1:1/"}}, "not followed"),
    ({"kind": "answer", "body": '{"data": {"__schema": {}}}'}, "the schema of the endpoint is invalid"),
    (
        {"kind": "answer", "body": '{"data": {"__schema": {"types": [{"kind": "OBJECT"}]}}}'},
        "the schema of the endpoint is invalid",
    ),
    ({"kind": "answer", "body": '{"data": {"__schema": null}}'}, "does not return its schema"),
    ({"kind": "answer", "body": '{"errors": [{"message": "not allowed"}]}'}, "(not allowed)"),
)


async def test_failed_introspection_is_reported_and_affects_no_other_server(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        servers = {"file": server.config(**server.schema_file)}
        async with running_gateway(tmp_path, servers, gateway=COMMANDS) as gateway:
            await gateway.until_listed("file__fire")
            for fault, reason in BROKEN_INTROSPECTIONS:
                before = rss_of(gateway.process.pid)
                server.change(fault={**fault, "introspection": True})
                # The server is added again each time, because an earlier schema would stay in use.
                added = await gateway.admin("servers", "POST", {"name": "hr", **server.config(connectTimeout=1)})
                assert added.is_success, added.text
                row = await until_server(gateway, "hr", lambda row: row["lastError"])
                assert reason in row["lastError"], row
                assert len(row["lastError"]) < 400
                assert "isError" not in await gateway.call("file__fire")
                assert rss_of(gateway.process.pid) - before < 64 * MIB
                server.change(fault=None)
                await gateway.admin("servers/hr/refresh", "POST")
                await gateway.until_listed(NAME)
                assert (await gateway.admin("servers/hr", "DELETE")).is_success


async def test_old_server_is_introspected_with_the_fields_it_knows(tmp_path: Path) -> None:
    async with (
        graphql_server(tmp_path, FILES, introspection="old") as server,
        running_gateway(tmp_path, {"hr": server.config()}) as gateway,
    ):
        await gateway.until_listed(NAME)
        assert len(server.introspections()) == 2


@pytest.mark.heavy
async def test_thousands_of_files_are_loaded_while_others_are_served(tmp_path: Path) -> None:
    healthy, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    many = {f"{n:05}.graphql": f"query Number{n}($id: Int!) {{ employee(id: $id) {{ name }} }}" for n in range(2_000)}
    async with graphql_server(tmp_path, many) as server:
        servers = {"hr": server.config(), "calm": healthy}
        profile = {"default": {"disclosure": "lazy"}}
        async with running_gateway(tmp_path, servers, gateway={"profiles": profile}) as gateway:
            slowest = 0.0
            with anyio.fail_after(120):
                while (await gateway.server("hr"))["state"] != "ready":
                    began_s = anyio.current_time()
                    await gateway.call("invoke_tool", {"server": "calm", "tool": "echo", "arguments": {}})
                    slowest = max(slowest, anyio.current_time() - began_s)
            assert slowest < 2.0
            assert (await gateway.server("hr"))["tools"] == 2_000
            assert "isError" not in await gateway.call("hr__number1999", {"id": 1})


async def test_missing_extra_is_one_message_and_other_servers_work(tmp_path: Path) -> None:
    healthy, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    # A package that comes first in the path and cannot be imported counts as not installed.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "graphql.py").write_text("raise ModuleNotFoundError('No module named graphql', name='graphql')")
    root = Path(__file__).parents[2]
    async with graphql_server(tmp_path, FILES) as server:
        path = {"PYTHONPATH": os.pathsep.join([str(hidden), str(root)])}
        async with running_gateway(tmp_path, {"hr": server.config(), "calm": healthy}, environment=path) as gateway:
            await gateway.until_listed("calm__echo")
            row = await until_server(gateway, "hr", lambda row: row["lastError"])
            assert row["lastError"] == (
                "server 'hr': type: graphql needs graphql-core, which is not installed; "
                f"expected: {install_command('graphql')}"
            )
            assert "Traceback" not in gateway.logged()
            assert "isError" not in await gateway.call("calm__echo")


async def test_graphql_library_is_not_imported_without_a_graphql_server(tmp_path: Path) -> None:
    healthy, _ = scripted_stdio_server(tmp_path, "calm", tools=builtin_tools("echo"))
    # The log names every import of the package.
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "graphql.py").write_text("import sys; print('graphql was imported', file=sys.stderr)")
    path = {"PYTHONPATH": os.pathsep.join([str(spy), str(Path(__file__).parents[2])])}
    async with running_gateway(tmp_path, {"calm": healthy}, environment=path) as gateway:
        await gateway.until_listed("calm__echo")
        assert "isError" not in await gateway.call("calm__echo")
        await gateway.admin("servers")
        assert "graphql was imported" not in gateway.logged()


async def test_frequent_file_changes_cause_few_listings(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        with anyio.move_on_after(2):
            for number in range(10_000):
                server.write("a.graphql", f"query Storm{number} {{ find {{ id }} }}")
                server.write("b.graphql", "query {" if number % 2 else PLAIN)
                await brief_pause()
        server.write("a.graphql", GET_EMPLOYEE)
        server.write("b.graphql", PLAIN)
        tools = await gateway.until_listed("hr__get_employee", "hr__list_people")
        assert len(tools) == 2
        assert len(server.introspections()) == 1


async def test_unusual_schema_types_affect_only_operations_using_them(tmp_path: Path) -> None:
    odd = HR_SDL + (
        "extend type Query { loop(a: Loop!): Int chain(c: C0): Int }\n"
        "input Loop { next: Loop! }\n"
        + "\n".join(f"input C{n} {{ next: C{n + 1} }}" for n in range(400))
        + "\ninput C400 { end: Int }"
    )
    files = {
        "loop.graphql": "query Loop($a: Loop!) { loop(a: $a) }",
        "chain.graphql": "query Chain($c: C0) { chain(c: $c) }",
        **FILES,
    }
    async with graphql_gateway(tmp_path, files, sdl=odd) as (_, gateway):
        tools = await gateway.until_listed(NAME, "hr__loop")
        assert tools["hr__loop"]["inputSchema"]["properties"]["a"] == {"$ref": "#/$defs/Loop"}
        await eventually(lambda: "quarantined" in gateway.logged())
        [row] = (await gateway.admin("quarantine")).json()["quarantine"]
        assert row["tool"] in ("chain", "chain.graphql")
        assert "hr__chain" not in tools


async def test_unrelated_files_in_and_beside_the_folder_are_ignored(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        inside, beside = tmp_path / "graphql" / "operations" / "some.log", tmp_path / "graphql" / "other.log"
        # The whole folder of the configuration, with state and log of the gateway, and one that is ordinary.
        servers = {"hr": {**server.config(), "operations": "."}, "calm": server.config()}
        async with running_gateway(tmp_path, servers) as gateway:
            await gateway.until_listed(NAME, "calm__fire")
            snapshot = gateway.state_dir / "snapshot.json"
            await eventually(lambda: snapshot.exists() and snapshot.read_text().count('"fire"') >= 2)
            await eventually(lambda: time.time_ns() - snapshot.stat().st_mtime_ns > 1_500_000_000)
            written = snapshot.stat().st_mtime_ns
            with anyio.move_on_after(2):
                while True:
                    inside.write_text("a line")
                    beside.write_text("a line")
                    (tmp_path / "typegate.log").write_text("a line")
                    await brief_pause()
            # Each listing is saved, and there was none.
            assert snapshot.stat().st_mtime_ns == written
            server.write("c.graphql", "query Third { find { id } }")
            await gateway.until_listed("hr__third", "calm__third")
