"""GraphQL upstreams whose files, schema, endpoint or configuration change (row G12)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.observing import eventually, until_server
from support.callers import get_stream, handshake, listen_to, post_stream
from support.gateways import COMMANDS, RunningGateway, brief_pause, running_gateway, text_of
from support.upstreams.graphql_running import GET_EMPLOYEE, HR_SDL, PLAIN, graphql_gateway, graphql_server

# Each waits until a changed schema is noticed.
pytestmark = pytest.mark.heavy

NAME = "hr__get_employee"
FILES = {"a.graphql": GET_EMPLOYEE, "b.graphql": PLAIN}


async def until_tools(
    gateway: RunningGateway, satisfied: Callable[[dict[str, dict[str, Any]]], Any], *, within_s: float = 25
) -> dict[str, dict[str, Any]]:
    """Wait until the list satisfies a condition."""
    with anyio.fail_after(within_s):
        while not satisfied(tools := await gateway.tools()):
            await brief_pause()
    return tools


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_g12_changed_file_is_announced_once_and_unchanged_files_never(tmp_path: Path, era: str) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        opened = get_stream(await handshake(gateway)) if era == "handshake" else post_stream(gateway, listen_to())
        async with opened as stream:
            if era == "modern":
                assert (await stream.next())["method"] == "notifications/subscriptions/acknowledged"
            (server.operations / "a.graphql").touch()
            server.write("b.graphql", PLAIN)
            for round_ in (1, 2):
                await gateway.admin("servers/hr/refresh", "POST")
                await eventually(lambda round_=round_: len(server.introspections()) > round_)
            os.kill(gateway.process.pid, 1)
            await eventually(lambda: "configuration reloaded" in gateway.logged())
            server.write("a.graphql", GET_EMPLOYEE.replace("Get one", "Find one"))
            with anyio.fail_after(25):
                notification = await stream.next()
            assert notification["method"] == "notifications/tools/list_changed"
            assert (await gateway.tools())[NAME]["description"].startswith("Find one")
            # The first announcement is that of this change, so the earlier one was not announced.
            server.write("a.graphql", GET_EMPLOYEE.replace("Get one", "Seek one"))
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            assert (await gateway.tools())[NAME]["description"].startswith("Seek one")
        assert (await gateway.server("hr"))["epoch"] == 1


@pytest.mark.heavy
async def test_g12_added_removed_renamed_files_and_swapped_folders_are_followed(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        server.write("deeper/c.graphql", "query Third { find { id } }")
        await gateway.until_listed("hr__third")
        (server.operations / "b.graphql").rename(server.operations / "b.txt")
        await until_tools(gateway, lambda tools: "hr__list_people" not in tools)
        server.write("a.graphql", "query Broken {")
        await until_tools(gateway, lambda tools: NAME not in tools)
        server.write("a.graphql", GET_EMPLOYEE)
        await gateway.until_listed(NAME)
        fresh = server.folder / "fresh"
        fresh.mkdir()
        (fresh / "d.graphql").write_text("query Fourth { find { id } }")
        server.operations.rename(server.folder / "old")
        fresh.rename(server.operations)
        await until_tools(gateway, lambda tools: set(tools) == {"hr__fourth"})
        server.write("e.graphql", "query Fifth { find { id } }")
        await gateway.until_listed("hr__fifth")
        shutil.rmtree(server.operations)
        row = await until_server(gateway, "hr", lambda row: row["lastError"])
        assert "listing failed: operations:" in row["lastError"]
        assert set(await gateway.tools()) == {"hr__fourth", "hr__fifth"}
        server.operations.mkdir()
        server.write("f.graphql", "query Sixth { find { id } }")
        await until_tools(gateway, lambda tools: set(tools) == {"hr__sixth"})
        await until_server(gateway, "hr", lambda row: row["lastError"] is None)


async def test_folder_of_symlinks_as_mounted_by_kubernetes_is_followed(tmp_path: Path) -> None:
    async with graphql_server(tmp_path) as server:
        for version, text in (("..1", PLAIN), ("..2", "query Second { find { id } }")):
            (server.operations / version).mkdir()
            (server.operations / version / "a.graphql").write_text(text)
        (server.operations / "..data").symlink_to("..1")
        (server.operations / "a.graphql").symlink_to("..data/a.graphql")
        async with running_gateway(tmp_path, {"hr": server.config()}) as gateway:
            await gateway.until_listed("hr__list_people")
            (server.operations / "..tmp").symlink_to("..2")
            (server.operations / "..tmp").replace(server.operations / "..data")
            await until_tools(gateway, lambda tools: set(tools) == {"hr__second"})


async def test_changed_schema_file_removes_invalid_operations_until_they_fit(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        config = {"hr": server.config(**server.schema_file)}
        async with running_gateway(tmp_path, config) as gateway:
            await gateway.until_listed(NAME, "hr__list_people")
            server.schema_path.write_text(HR_SDL.replace("salary: BigInt", "wage: BigInt"))
            await until_tools(gateway, lambda tools: set(tools) == {"hr__list_people"})
            [row] = (await gateway.admin("quarantine")).json()["quarantine"]
            assert (row["tool"], row["code"]) == ("a.graphql", "not_in_schema")
            assert "a.graphql:6:31: Cannot query field 'salary' on type 'Employee'" in row["detail"]
            server.schema_path.write_text("type Query { find(: Int }")
            row = await until_server(gateway, "hr", lambda row: row["lastError"])
            assert "schema.graphql:1:19" in row["lastError"]
            assert "hr__list_people" in await gateway.tools()
            server.schema_path.write_text(HR_SDL)
            await gateway.until_listed(NAME)
            assert (await gateway.admin("quarantine")).json()["quarantine"] == []
            assert (await gateway.server("hr"))["lastError"] is None


async def test_document_refused_by_the_endpoint_triggers_a_schema_request(tmp_path: Path) -> None:
    async with graphql_gateway(tmp_path, FILES) as (server, gateway):
        await gateway.until_listed(NAME)
        server.schema_path.write_text(HR_SDL.replace("salary: BigInt", "wage: BigInt"))
        result = await gateway.call(NAME, {"id": 1, "includeDetails": True})
        assert result["isError"]
        assert "Cannot query field 'salary'" in text_of(result)
        await until_tools(gateway, lambda tools: set(tools) == {"hr__list_people"})
        gone = await gateway.call(NAME, {"id": 1})
        assert gone["isError"]
        server.schema_path.write_text(HR_SDL)
        await gateway.admin("servers/hr/refresh", "POST")
        await gateway.until_listed(NAME)
        assert "isError" not in await gateway.call(NAME, {"id": 1})


@pytest.mark.heavy
async def test_endpoint_down_at_start_is_called_once_it_is_up(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        await server.stop()
        config = {"hr": server.config(**server.schema_file), "asks": server.config()}
        async with running_gateway(tmp_path, config) as gateway:
            assert set(await gateway.until_listed(NAME, "hr__list_people")) == {NAME, "hr__list_people"}
            row = await until_server(gateway, "asks", lambda row: row["lastError"])
            assert "cannot connect" in row["lastError"]
            with anyio.fail_after(25):
                result = await gateway.call(NAME, {"id": 1})
            assert result["isError"]
            assert "Nothing was sent" in text_of(result)
            row = await gateway.server("hr")
            assert row["state"] != "ready"
            assert NAME in await gateway.tools()
            await server.start()
            await gateway.until_listed("asks__get_employee")
            with anyio.fail_after(20):
                assert "isError" not in await gateway.call(NAME, {"id": 1})
            await server.stop()
            await gateway.call("hr__list_people")
            async with anyio.create_task_group() as tasks:
                results: list[dict[str, Any]] = []

                async def call() -> None:
                    results.append(await gateway.call("hr__list_people"))

                tasks.start_soon(call)
                await server.start()
            assert "isError" not in results[0], results


@pytest.mark.heavy
async def test_restart_answers_from_the_snapshot_while_the_endpoint_is_down(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server:
        async with running_gateway(tmp_path, {"hr": server.config()}) as gateway:
            await gateway.until_listed(NAME)
            await eventually(lambda: NAME.split("__")[1] in _text(gateway.state_dir / "snapshot.json"))
        await server.stop()
        async with running_gateway(tmp_path, {"hr": server.config()}) as gateway:
            assert set(await gateway.tools()) == {NAME, "hr__list_people"}
            assert (await gateway.server("hr"))["origin"] == "snapshot"
            result = await gateway.call(NAME, {})
            assert "Missing: id" in text_of(result)
        async with running_gateway(tmp_path, {"hr": server.config(excludeMutations=True)}) as gateway:
            assert await gateway.tools() == {}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_changed_configuration_affects_only_its_subject(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, {**FILES, "c.graphql": "mutation Fire { fire(id: 1) { id } }"}) as server:
        calm = {"calm": server.config()}
        async with running_gateway(tmp_path, {"hr": server.config(), **calm}) as gateway:
            tools = await gateway.until_listed("hr__fire", "calm__fire")
            role = {"f.graphql": "query F($r: [Role!]) { find(roles: $r) { id } }"}
            server.write("f.graphql", role["f.graphql"])
            tools = await gateway.until_listed("hr__f", "calm__f")
            assert tools["hr__f"]["inputSchema"]["properties"]["r"]["type"] == "array"
            count_before = len(server.introspections())

            def configure(**more: Any) -> None:
                servers = {"hr": server.config(**more), **calm}
                gateway.config.write_text(json.dumps({"mcpServers": servers}))

            configure(nullable="union")
            union = ["array", "null"]
            await until_tools(gateway, lambda tools: tools["hr__f"]["inputSchema"]["properties"]["r"]["type"] == union)
            # A changed display of null affects only texts, so the endpoint is not asked.
            assert len(server.introspections()) == count_before
            assert (await gateway.server("hr"))["epoch"] == 1
            configure(excludeMutations=True)
            await until_tools(gateway, lambda tools: "hr__fire" not in tools)
            configure(introspectionTools=True)
            await gateway.until_listed("hr__get_schema", "hr__fire")
            other = tmp_path / "other"
            other.mkdir()
            (other / "a.graphql").write_text("query Other { find { id } }")
            configure(operations="other")  # relative to the file
            await until_tools(gateway, lambda tools: {one for one in tools if one.startswith("hr")} == {"hr__other"})
            assert (await gateway.server("calm"))["epoch"] == 1


async def test_administrator_adds_and_removes_a_graphql_server(tmp_path: Path) -> None:
    async with graphql_server(tmp_path, FILES) as server, running_gateway(tmp_path, {}, gateway=COMMANDS) as gateway:
        added = await gateway.admin("servers", "POST", {"name": "hr", **server.config(headers={"X-Api-Key": "k3y"})})
        assert added.status_code == 201, added.text
        await gateway.until_listed(NAME)
        assert "k3y" not in added.text + (await gateway.admin("servers")).text
        for wrong, expected in (
            ({"operations": 5}, "operations"),
            ({"endpoint": "nowhere"}, "endpoint"),
            ({"nullable": "yes"}, "nullable"),
            ({"url": "http://h/"}, "which has no url"),
            ({"elicitation": True}, "does not support elicitation"),
        ):
            answer = await gateway.admin("servers", "POST", {"name": "x", **server.config(), **wrong})
            assert answer.status_code == 400
            assert expected in answer.json()["error"]
        assert (await gateway.admin("servers/hr", "DELETE")).status_code == 204
        await until_tools(gateway, lambda tools: tools == {})
