"""A configuration that leads to the gateway itself is recognised, and starts nothing without end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import below, raw_stdio, typegate
from support.gateways import glance_again, running_gateway, serving, text_of
from support.upstreams.running import scripted_stdio_server, tool, unused_port


async def skipped(tmp_path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """The row of an entry in a file that is served beside a sound server; as few processes run as are needed."""
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    # One is recognised below another by the command line of that.
    async with running_gateway(tmp_path, {"sound": sound, "again": entry}, from_scratch=True) as gateway:
        await gateway.until_listed("sound__t")
        row: dict[str, Any] = {}
        with anyio.fail_after(15):
            while not row.get("lastError"):
                row = await gateway.server("again")
                await glance_again()
        assert set(await gateway.tools()) == {"sound__t"}
        assert len(below(gateway.process.pid)) <= 2
    return row


async def test_an_entry_that_serves_its_own_file_is_skipped_and_starts_no_process(tmp_path: Path) -> None:
    row = await skipped(tmp_path, typegate("stdio", "--config", str(tmp_path / "typegate.json")))
    assert row["state"] == "disabled"
    assert row["lastError"].startswith("skipped: it starts typegate with this very configuration")


async def test_a_file_that_leads_back_by_way_of_another_one_is_recognised(tmp_path: Path) -> None:
    back = {"command": "sh", "args": ["-c", f"exec typegate stdio --config={tmp_path}/typegate.json"]}
    (tmp_path / "other.json").write_text(json.dumps({"mcpServers": {"back": back}}))
    entry = {"command": "uvx", "args": ["typegate@0.1.0", "stdio", "--config", str(tmp_path / "other.json")]}
    assert (await skipped(tmp_path, entry))["state"] == "disabled"


async def test_a_script_that_starts_the_gateway_again_gets_a_refusal_and_no_children(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -m gateway stdio --config {tmp_path}/typegate.json\n")
    script.chmod(0o755)
    row = await skipped(tmp_path, {**typegate(), "command": str(script), "args": []})
    assert "leads back to itself" in row["lastError"]


@pytest.mark.parametrize("through", [("sh", "-c", '"$@"; true', "x"), ("timeout", "60")])
async def test_what_starts_the_gateway_itself_is_not_taken_for_one_above_it(
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
                await glance_again()


async def test_our_own_url_is_skipped_directly_and_through_the_bridge(tmp_path: Path) -> None:
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
                while "leads back to this gateway" not in ((await gateway.server(name))["lastError"] or ""):
                    await glance_again()
        assert set(await gateway.tools()) == {"sound__t"}
        refused = text_of(await gateway.call("own__sound__t"))
        assert "leads back to this gateway" in refused
        assert refused.endswith("its operator has to look at it, so trying again at once will not help.")


@pytest.mark.heavy
async def test_of_two_gateways_that_lead_to_each_other_one_does_without_the_other(tmp_path: Path) -> None:
    ports = unused_port(), unused_port()
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    for name, port in (("a", ports[1]), ("b", ports[0])):
        (tmp_path / name).mkdir()
        servers = {"sound": sound, "peer": {"url": f"http://127.0.0.1:{port}/mcp"}}
        (tmp_path / name / "gw.json").write_text(json.dumps({"mcpServers": servers}))
    async with serving(tmp_path / "a/gw.json", tmp_path / "a", arguments=("--port", str(ports[0]))) as first:
        await first.until_listed("sound__t")
        async with serving(tmp_path / "b/gw.json", tmp_path / "b", arguments=("--port", str(ports[1]))) as second:
            told: list[str] = []
            with anyio.fail_after(60):
                while not any("leads back" in text for text in told):
                    rows = [await one.server("peer") for one in (first, second)]
                    told = [row["lastError"] or "" for row in rows]
                    for one, row in zip((first, second), rows, strict=True):
                        # The slower the start of the other was, the longer it would wait by itself: up to 30 s.
                        if row["state"] == "waiting":
                            await one.admin("servers/peer/refresh", "POST")
                    await glance_again()
            for one in (first, second):
                assert all(name.count("__") <= 2 for name in await one.tools())


async def test_a_gateway_behind_a_gateway_that_does_not_lead_back_is_served(tmp_path: Path) -> None:
    sound, _ = scripted_stdio_server(tmp_path, "sound", tools=[tool("t")])
    inner, outer = tmp_path / "inner.json", tmp_path / "outer.json"
    inner.write_text(json.dumps({"mcpServers": {"sound": sound}}))
    entry = typegate("stdio", "--config", str(inner), "--state-dir", str(tmp_path / "inner"))
    outer.write_text(json.dumps({"mcpServers": {"inner": entry}}))
    async with raw_stdio(typegate("stdio", "--config", str(outer), "--state-dir", str(tmp_path / "outer"))) as gateway:
        await gateway.initialize()
        with anyio.fail_after(20):
            while "inner__sound__t" not in {one["name"] for one in await gateway.tools()}:
                await glance_again()
