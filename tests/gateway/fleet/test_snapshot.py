"""Listings that are kept while upstreams or the gateway are down."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import handshake, hello, running_host
from support.gateways import RunningGateway, answer_of, brief_pause, running_gateway, text_of
from support.pace import limit_now
from support.upstreams.running import builtin_tools, rescript, scripted_http_server, scripted_stdio_server, tool

from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.fleet.snapshot import SavedListing, Snapshot, StoredListings, load, save
from registry.catalog.listing import CacheScope, ServerListing
from registry.catalog.names import ServerName

FILE = "snapshot.json"


async def until_saved(state_dir: Path, *names: str) -> bytes:
    with anyio.fail_after(25):
        while True:
            path = state_dir / FILE
            raw = path.read_bytes() if path.exists() else b""
            checksum, _, body = raw.partition(b"\n")
            sound = hashlib.sha256(body).hexdigest().encode() == checksum
            if sound and all(f'"name":"{name}"'.encode() in body for name in names):
                return raw
            await brief_pause()


async def server_state(
    gateway: RunningGateway, alias: str, satisfied: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    with anyio.fail_after(25):
        while not satisfied(row := await gateway.server(alias)):
            await brief_pause()
    return row


@pytest.mark.heavy
async def test_last_good_list_is_served_while_every_upstream_is_down(tmp_path: Path) -> None:
    whole = tool("write", "to", subject="string") | {"title": "Write", "x-unknown": {"kept": [1, None]}}
    stdio, record = scripted_stdio_server(tmp_path, "pipe", tools=[whole, tool("read")])
    async with scripted_http_server(tmp_path, "web", tools=builtin_tools("echo")) as web:
        servers = {
            "pipe": {**stdio, "callTimeout": 2},
            "web": web.config,
            "gone": {"command": "no-such-command-anywhere"},
        }
        async with running_gateway(tmp_path, servers) as gateway:
            alive = await gateway.until_listed("pipe__write", "pipe__read", "web__echo")
            row = await gateway.server("pipe")
            assert (row["origin"], row["stale"]) == ("live", False)
            await until_saved(gateway.state_dir, "write", "echo")
            assert await gateway.stop() == 0
        await web.stop()
        rescript(stdio, record, faults={"exit_at_start": True})
        gateway.log.unlink()
        async with running_gateway(tmp_path, servers) as gateway:
            assert await gateway.tools() == alive
            assert (await gateway.client.get(f"{gateway.origin}/readyz")).status_code in (200, 503)
            for alias in ("pipe", "web"):
                row = await server_state(gateway, alias, lambda one: one["lastError"])
                assert (row["origin"], row["stale"], row["epoch"]) == ("snapshot", True, 0)
                assert 0 < row["ageSeconds"] < 600
            rows = (await gateway.admin("wrappers")).json()["wrappers"]
            assert {one["origin"] for one in rows} == {"snapshot"}
            with anyio.fail_after(25):
                refused = await gateway.call("pipe__read")
            assert refused["isError"] is True
            assert "server 'pipe' is not reachable right now" in text_of(refused)
            # The call of a wrapper from the snapshot works once its server is up again.
            await web.start()
            with anyio.fail_after(25):
                while (answer := await gateway.call("web__echo", {"a": 1})).get("isError"):
                    await brief_pause()
            assert answer["structuredContent"] == {"a": 1}
            row = await server_state(gateway, "web", lambda one: one["origin"] == "live")
            assert (row["stale"], row["epoch"]) == (False, 1)
            assert sorted(await gateway.tools()) == sorted(alive)


@pytest.mark.heavy
async def test_stdio_gateway_answers_its_first_list_from_the_snapshot(tmp_path: Path) -> None:
    quick, record = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    async with running_gateway(tmp_path, {"up": quick}) as gateway:
        await gateway.until_listed("up__one")
        await until_saved(gateway.state_dir, "one")
        assert await gateway.stop() == 0
    rescript(quick, record, faults={"silent": True})
    arguments = ("--config", str(gateway.config), "--state-dir", str(gateway.state_dir))
    began_s = time.monotonic()
    async with running_host(tmp_path, *arguments) as host:
        await host.send(hello(), {"jsonrpc": "2.0", "method": "notifications/initialized"})
        answer = await host.answer({"jsonrpc": "2.0", "id": "list", "method": "tools/list"})
        took_s = time.monotonic() - began_s
        assert {one["name"] for one in answer["result"]["tools"]} >= {"up__one", "invoke_tool"}
    # Within one second on an idle machine; the upstream would let it wait for ever.
    assert took_s < await limit_now(3)


async def test_snapshot_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    stdio, _ = scripted_stdio_server(tmp_path, "pipe", tools=[tool("read")])
    stdio |= {"env": {"TOKEN": "secret-of-env"}}
    async with scripted_http_server(tmp_path, "web", tools=builtin_tools("echo")) as web:
        config = {**web.config, "headers": {"Authorization": "Bearer secret-of-header", "X-Api-Key": "secret-of-key"}}
        keys = {"auth": {"apiKeys": [{"name": "ann", "key": "secret-of-ann"}]}}
        async with running_gateway(tmp_path, {"pipe": stdio, "web": config}, gateway=keys) as gateway:
            gateway.client.headers["authorization"] = "Bearer secret-of-ann"
            await gateway.until_listed("pipe__read", "web__echo")
            assert (await gateway.call("web__echo", {"note": "secret-of-call"}))["structuredContent"]
            raw = await until_saved(gateway.state_dir, "read", "echo")
            assert b"secret-of" not in raw
            assert await gateway.stop() == 0
    kept = [path for path in gateway.state_dir.rglob("*") if path.is_file()]
    assert FILE in {path.name for path in kept}
    for path in kept:
        assert b"secret-of" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0, path
    assert gateway.state_dir.stat().st_mode & 0o077 == 0
    assert "secret-of" not in gateway.logged()


def damages(good: bytes) -> dict[str, bytes]:
    checksum, _, body = good.partition(b"\n")
    document = json.loads(body)

    def signed(text: bytes) -> bytes:
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text

    return {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "flipped": good.replace(b'"one"', b'"two"'),
        "unsigned": body,
        "binary": bytes(range(256)) * 64,
        "of another version": signed(json.dumps({**document, "version": 999}).encode()),
        "no object": signed(b"[]"),
        "of another maker": signed(json.dumps({"version": 1, "servers": {"up": {"tools": 5}}}).encode()),
        "with a malformed tool": signed(
            json.dumps({"version": 1, "servers": {"up": {**document["servers"]["up"], "tools": [5]}}}).encode()
        ),
        "deep": signed(b"[" * 100_000),
        "only a checksum": checksum,
    }


@pytest.mark.heavy
async def test_damaged_or_foreign_snapshot_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        good = await until_saved(gateway.state_dir, "one")
        assert await gateway.stop() == 0
    assert set(load(gateway.state_dir).listings) == {"up"}
    for what, raw in damages(good).items():
        (gateway.state_dir / FILE).write_bytes(raw)
        caplog.clear()
        assert load(gateway.state_dir) == Snapshot(), what
        assert caplog.text.count("snapshot ignored") == 1, what
    (gateway.state_dir / FILE).write_bytes(good[: len(good) // 2])
    gateway.log.unlink()
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        assert await until_saved(gateway.state_dir, "one")
        assert gateway.logged().count("snapshot ignored") == 1
        assert "Traceback" not in gateway.logged()


@pytest.mark.parametrize("obstacle", ["directory in its place", "file for a state directory"])
async def test_unwritable_snapshot_is_only_a_warning(tmp_path: Path, obstacle: str) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    state = tmp_path / "state"
    if obstacle == "directory in its place":
        (state / FILE / "full").mkdir(parents=True)
    else:
        state.write_text("in the way")
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        with anyio.fail_after(25):
            while "snapshot not written" not in gateway.logged():
                await brief_pause()
        assert (await gateway.call("up__echo", {"a": 1}))["structuredContent"] == {"a": 1}
        assert await gateway.stop() == 0
        assert "Traceback" not in gateway.logged()
    if obstacle == "directory in its place":
        assert {path.name for path in state.iterdir()} == {FILE, "audit.jsonl", "audit.jsonl.head", "history.sqlite"}


@pytest.mark.heavy
async def test_snapshot_of_another_server_under_the_same_alias_is_not_shown(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=[tool("one")])
    other, _ = scripted_stdio_server(tmp_path, "other", faults={"silent": True})
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__one")
        await until_saved(gateway.state_dir, "one")
        assert await gateway.stop() == 0
    (tmp_path / "again").mkdir()
    shutil.copytree(gateway.state_dir, tmp_path / "again" / "state")
    async with running_gateway(tmp_path / "again", {"up": other}) as gateway:
        assert await gateway.tools() == {}
        session = await handshake(gateway)
        # It waits for the new server as long as a host does, which may take a stream.
        listed = answer_of(await session.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
        assert [one["name"] for one in listed["result"]["tools"]] == ["invoke_tool", "get_server_details"]


@pytest.mark.parametrize("scope", ["public", "private", "unstated"])
def test_cache_scope_is_stored_as_declared(scope: CacheScope, tmp_path: Path) -> None:
    listing = ServerListing(server=ServerName("a"), epoch=1, tools=(), scope=scope)
    save(tmp_path, Snapshot({"a": SavedListing(fingerprint="f", at_s=1.0, listing=listing)}, {"b": "g"}))
    assert load(tmp_path).listings["a"].listing.scope == scope
    assert load(tmp_path).former == {"b": "g"}


@pytest.mark.heavy
@pytest.mark.parametrize("scope", ["public", "private"])
async def test_list_from_the_snapshot_keeps_its_cache_scope(scope: str, tmp_path: Path) -> None:
    config, record = scripted_stdio_server(tmp_path, "s", tools=[tool("read")], modern=True, scope=scope)
    for origin in ("live", "snapshot"):
        async with running_gateway(tmp_path, {"s": config}) as gateway:
            await gateway.until_listed("s__read")
            row = await server_state(gateway, "s", lambda row, origin=origin: row["origin"] == origin)
            assert row["origin"] == origin
            assert (await gateway.rpc("tools/list"))["result"]["cacheScope"] == scope
            await until_saved(gateway.state_dir, "read")
        rescript(config, record, faults={"exit_at_start": True})


def test_number_of_remembered_aliases_is_bounded() -> None:
    kept = StoredListings(None)
    server = StdioConfig(command="up")
    for number in range(1_000):
        kept.retire(f"a{number}", server)
    kept.retire("a900", server)
    known = [number for number in range(1_000) if kept.former_fingerprint(f"a{number}") is not None]
    assert len(known) < 300
    assert {900, 998, 999} <= set(known)
    assert known[0] > 700
