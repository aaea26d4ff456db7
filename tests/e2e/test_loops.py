"""A loop in the configuration is detected, and does not start an endless chain of processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of, raw_stdio, typegate
from support.gateways import brief_pause, running_gateway, serving, text_of
from support.upstreams.running import scripted_stdio_server, tool, unused_port


async def skipped(tmp_path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """The row of an entry in a file that is served beside a sound server; as few processes run as are needed."""
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    # The nested gateway is recognized by the command line of the outer one.
    async with running_gateway(tmp_path, {"sound": sound, "again": entry}, from_scratch=True) as gateway:
        await gateway.until_listed("sound__t")
        row: dict[str, Any] = {}
        with anyio.fail_after(25):
            while not row.get("lastError"):
                row = await gateway.server("again")
                await brief_pause()
        assert set(await gateway.tools()) == {"sound__t"}
        assert len(descendants_of(gateway.process.pid)) <= 2
    return row


@pytest.mark.heavy
async def test_entry_serving_its_own_file_is_skipped_and_not_started(tmp_path: Path) -> None:
    row = await skipped(tmp_path, typegate("stdio", "--config", str(tmp_path / "typegate.json")))
    assert row["state"] == "disabled"
    assert row["lastError"].startswith("skipped: it starts typegate with this configuration")


@pytest.mark.heavy
async def test_loop_through_another_file_is_detected(tmp_path: Path) -> None:
    back = {"command": "sh", "args": ["-c", f"exec typegate stdio --config={tmp_path}/typegate.json"]}
    (tmp_path / "other.json").write_text(json.dumps({"mcpServers": {"back": back}}))
    entry = {"command": "uvx", "args": ["typegate@0.1.0", "stdio", "--config", str(tmp_path / "other.json")]}
    assert (await skipped(tmp_path, entry))["state"] == "disabled"


@pytest.mark.heavy
async def test_script_that_starts_the_gateway_again_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -m gateway stdio --config {tmp_path}/typegate.json\n")
    script.chmod(0o755)
    row = await skipped(tmp_path, {**typegate(), "command": str(script), "args": []})
    assert "is a loop" in row["lastError"]


@pytest.mark.parametrize("through", [("sh", "-c", '"$@"; true', "x"), ("timeout", "60")])
async def test_gateway_started_through_a_wrapper_program_is_not_a_loop(
    tmp_path: Path, through: tuple[str, ...]
) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    (tmp_path / "gw.json").write_text(json.dumps({"mcpServers": {"sound": sound}}))
    own = typegate("stdio", "--config", str(tmp_path / "gw.json"), "--state-dir", str(tmp_path / "state"))
    wrapped = {**own, "command": through[0], "args": [*through[1:], own["command"], *own["args"]]}
    async with raw_stdio(wrapped) as gateway:
        await gateway.initialize()
        with anyio.fail_after(20):
            while "sound__t" not in {one["name"] for one in await gateway.tools()}:
                await brief_pause()


@pytest.mark.heavy
async def test_own_url_is_skipped_directly_and_through_the_bridge(tmp_path: Path) -> None:
    port = unused_port()
    url = f"http://127.0.0.1:{port}/mcp"
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    config = tmp_path / "gw.json"
    servers = {"sound": sound, "own": {"url": url}, "bridge": typegate("stdio", "--url", url)}
    config.write_text(json.dumps({"mcpServers": servers}))
    async with serving(config, tmp_path, arguments=("--port", str(port))) as gateway:
        await gateway.until_listed("sound__t")
        for name in ("own", "bridge"):
            with anyio.fail_after(20):
                while "connects back to this gateway" not in ((await gateway.server(name))["lastError"] or ""):
                    await brief_pause()
        assert set(await gateway.tools()) == {"sound__t"}
        refused = text_of(await gateway.call("own__sound__t"))
        assert "connects back to this gateway" in refused
        assert refused.endswith("an operator has to check the server, so trying again at once will not help.")


@pytest.mark.heavy
async def test_one_of_two_gateways_in_a_loop_skips_the_other(tmp_path: Path) -> None:
    ports = unused_port(), unused_port()
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    for name, port in (("a", ports[1]), ("b", ports[0])):
        (tmp_path / name).mkdir()
        servers = {"sound": sound, "peer": {"url": f"http://127.0.0.1:{port}/mcp"}}
        (tmp_path / name / "gw.json").write_text(json.dumps({"mcpServers": servers}))
    async with serving(tmp_path / "a/gw.json", tmp_path / "a", arguments=("--port", str(ports[0]))) as first:
        await first.until_listed("sound__t")
        async with serving(tmp_path / "b/gw.json", tmp_path / "b", arguments=("--port", str(ports[1]))) as second:
            errors: list[str] = []
            with anyio.fail_after(60):
                while not any("connects back" in text for text in errors):
                    rows = [await one.server("peer") for one in (first, second)]
                    errors = [row["lastError"] or "" for row in rows]
                    for one, row in zip((first, second), rows, strict=True):
                        # Refresh, because the wait between attempts grows to 30 s if the other gateway starts slowly.
                        if row["state"] == "waiting":
                            await one.admin("servers/peer/refresh", "POST")
                    await brief_pause()
            for one in (first, second):
                assert all(name.count("__") <= 2 for name in await one.tools())


@pytest.mark.heavy
async def test_gateway_behind_a_gateway_without_a_loop_is_served(tmp_path: Path) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    inner, outer = tmp_path / "inner.json", tmp_path / "outer.json"
    inner.write_text(json.dumps({"mcpServers": {"sound": sound}}))
    entry = typegate("stdio", "--config", str(inner), "--state-dir", str(tmp_path / "inner"))
    outer.write_text(json.dumps({"mcpServers": {"inner": entry}}))
    async with raw_stdio(typegate("stdio", "--config", str(outer), "--state-dir", str(tmp_path / "outer"))) as gateway:
        await gateway.initialize()
        with anyio.fail_after(20):
            while "inner__sound__t" not in {one["name"] for one in await gateway.tools()}:
                await brief_pause()
