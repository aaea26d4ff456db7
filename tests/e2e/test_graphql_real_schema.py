"""A large public schema: an operation for each root field is listed and called on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from faults.observing import until_server
from graphql import build_client_schema, build_schema, print_schema
from support.clients.installed import github_schema
from support.gateways import RunningGateway, running_gateway, text_of
from support.upstreams.graphql_operations import operations_of
from support.upstreams.graphql_running import graphql_server

from gateway.upstream.graphql.operations import snake_case

# Hundreds of operations over a schema of a megabyte.
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("source", ["endpoint", "schema.graphql", "schema.json"])
async def test_every_operation_of_a_real_schema_is_listed_and_answered(tmp_path: Path, source: str) -> None:
    place = await anyio.to_thread.run_sync(github_schema)
    sdl = (place / "schema.graphql").read_text(encoding="utf-8")
    if source == "schema.json":
        # The two files of the package have different dates.
        found = json.loads((place / source).read_text(encoding="utf-8"))
        sdl = print_schema(build_client_schema(found, assume_valid=True))
    operations = operations_of(build_schema(sdl, assume_valid=True))
    assert len(operations) >= 200
    files: dict[str, str | bytes] = {f"{name}.graphql": text for name, (text, _) in operations.items()}
    async with graphql_server(tmp_path, files, sdl=sdl) as server:
        schema = {} if source == "endpoint" else {"schema": str(place / source)}
        config = server.config(introspectionTools=True, callTimeout=30, connectTimeout=30, **schema)
        limits = {"profiles": {"default": {"disclosure": "eager"}}}
        async with running_gateway(tmp_path, {"gh": config}, gateway=limits) as gateway:
            await until_server(gateway, "gh", lambda row: row["state"] == "ready", within_s=60)
            rows = (await gateway.admin("quarantine")).json()["quarantine"]
            assert [row for row in rows if row["status"] != "repaired"] == []
            assert len(await gateway.tools()) == len(operations) + 2
            wanted = list(operations.items())
            # All of them in one way, some in the others.
            answered: list[str] = []
            async with anyio.create_task_group() as tasks:
                for start in range(4):
                    for_this_one = wanted[start::4] if source == "endpoint" else wanted[start::16]
                    tasks.start_soon(_call_all, gateway, for_this_one, answered)
            assert len(answered) >= 60
            assert len(server.sent()) == len(answered)
            schema_told = text_of(await gateway.call("gh__get_schema"))
            assert len(schema_told) <= 60_000
            assert "repository(" in schema_told
            assert "type Repository" in text_of(await gateway.call("gh__get_schema", {"type": "Repository"}))


async def _call_all(
    gateway: RunningGateway, operations: list[tuple[str, tuple[str, dict[str, Any]]]], answered: list[str]
) -> None:
    for name, (_, arguments) in operations:
        invoked = {"server": "gh", "tool": snake_case(name), "arguments": arguments}
        result = await gateway.call("invoke_tool", invoked, timeout_s=60)
        assert "isError" not in result, (name, text_of(result))
        assert len(result["structuredContent"]) == 1, name
        answered.append(name)
