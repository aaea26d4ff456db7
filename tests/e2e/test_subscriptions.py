"""Subscriptions and log levels are separate for each caller and survive a restart of the server."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import anyio
import pytest
from e2e.lanes import Lane, entries
from support.gateways import MODERN, brief_pause, running_gateway
from support.hosts_connected import http_host
from support.upstreams.full_running import full_http, full_stdio

UPDATED = "notifications/resources/updated"
SHARED = "full://shared"


@pytest.mark.parametrize("modern", [True, False])
async def test_unsubscribing_affects_no_other_caller(modern: bool, tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=modern)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as new,
        http_host(gateway.url, "2025-11-25", gateway.client) as old,
        http_host(gateway.url, "2025-06-18", gateway.client) as none,
    ):
        lane = Lane(host=new, server=server, through=True)
        await lane.ready()
        note, pixel = lane.uri("note"), lane.uri("pixel")
        await none.open_stream()
        watched = {host: await host.watch(note, pixel) for host in (new, old)}
        await lane.call("touch", uri=note)
        for host in (new, old):
            await host.until(lambda host=host: host.of(UPDATED))
        await old.unwatch(watched[old])
        await lane.call("touch", uri=note)
        await new.until(lambda: len(new.of(UPDATED)) == 2)
        await old.watch(pixel)
        await lane.call("touch", uri=pixel)
        await old.until(lambda: len(old.of(UPDATED)) == 2)
        assert [one.params["uri"] for one in old.of(UPDATED)] == [note, pixel]
        assert none.of(UPDATED) == []


@pytest.mark.parametrize("modern", [True, False])
async def test_subscription_survives_a_restart_of_its_server(modern: bool, tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=modern)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as new,
        http_host(gateway.url, "2025-11-25", gateway.client) as old,
    ):
        lane = Lane(host=new, server=server, through=True)
        await lane.ready()
        for host in (new, old):
            await host.watch(lane.uri("note"))
        wanted = "subscriptions/listen" if modern else "resources/subscribe"

        def subscribed(text: str) -> int:
            return sum(text in str(one["params"]) for one in server.recording.requests(wanted))

        known = subscribed(lane.uri("note"))
        os.kill(server.recording.starts()[-1], signal.SIGKILL)
        await server.recording.until(lambda r: len(r.starts()) == 2, within_s=10)
        await server.recording.until(lambda _: subscribed(lane.uri("note")) > known, within_s=10)
        await lane.call("touch", uri=lane.uri("note"))
        for host in (new, old):
            await host.until(lambda host=host: host.of(UPDATED))


async def test_subscriptions_of_an_ended_session_end_at_the_server(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as leaving,
        http_host(gateway.url, "2025-11-25", gateway.client) as staying,
    ):
        lane = Lane(host=staying, server=server, through=True)
        await lane.ready()
        note, pixel = lane.uri("note"), lane.uri("pixel")
        await leaving.watch(note, pixel)
        await staying.watch(pixel)
        headers = {**leaving.headers, "mcp-protocol-version": "2025-11-25"}
        assert (await gateway.client.delete(gateway.url, headers=headers)).status_code == 204
        ended = await server.recording.until(lambda record: record.requests("resources/unsubscribe"))
        # The other resource has a subscriber left.
        assert [one["params"]["uri"] for one in ended] == [note]
        await lane.call("touch", uri=pixel)
        await staying.until(lambda: staying.of(UPDATED))
        assert [one["params"]["uri"] for one in server.recording.requests("resources/unsubscribe")] == [note]


async def test_updates_denied_by_a_changed_configuration_stop(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as new,
        http_host(gateway.url, "2025-11-25", gateway.client) as old,
    ):
        lane = Lane(host=new, server=server, through=True)
        await lane.ready()
        note, pixel = lane.uri("note"), lane.uri("pixel")
        for host in (new, old):
            await host.watch(note, pixel)
        assert note in str((await gateway.rpc("resources/list"))["result"])
        config = json.loads(gateway.config.read_text())
        config["mcpServers"]["s"]["deny"] = {"resources": [note]}
        gateway.config.write_text(json.dumps(config))
        with anyio.fail_after(25):
            while note in str((await gateway.rpc("resources/list"))["result"]):
                await brief_pause()
        await lane.call("touch", uri=note)
        await lane.call("touch", uri=pixel)
        for host in (new, old):
            await host.until(lambda host=host: host.of(UPDATED))
            assert [one.params["uri"] for one in host.of(UPDATED)] == [pixel]


@pytest.mark.parametrize("modern", [True, False])
async def test_each_session_has_its_own_log_level(modern: bool, tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=modern)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as loud,
        http_host(gateway.url, "2025-11-25", gateway.client) as quiet,
        http_host(gateway.url, "2025-06-18", gateway.client) as unsaid,
        http_host(gateway.url, MODERN, gateway.client) as new,
    ):
        for host in (loud, quiet, unsaid, new):
            await host.open_stream()
        await loud.level("info")
        await quiet.level("error")
        levels_by_host = {}
        levels = ["debug", "info", "error"]
        for name, host in (("quiet", quiet), ("loud", loud), ("unsaid", unsaid), ("new", new), ("again", quiet)):
            lane, since = Lane(host=host, server=server, through=True), len(host.received)
            await lane.ready()
            await lane.call("log", levels=levels, data="said")
            if name != "new":
                await host.until(lambda host=host, since=since: host.of("notifications/message", since))
                await lane.call("echo")
            levels_by_host[name] = [one.params["level"] for one in host.of("notifications/message", since)]
        wanted = {"quiet": ["error"], "loud": ["info", "error"], "unsaid": levels, "new": [], "again": ["error"]}
        assert levels_by_host == wanted


@pytest.mark.parametrize("modern", [True, False])
async def test_no_update_is_lost_while_others_come_and_go(modern: bool, tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "s", modern=modern) as server,
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as steady,
        http_host(gateway.url, "2025-11-25", gateway.client) as fickle,
    ):
        lane = Lane(host=steady, server=server, through=True)
        await lane.ready()
        await steady.watch(lane.uri("note"))
        await fickle.open_stream()
        for number in range(30):
            since, uri = len(steady.received), lane.uri(f"item/{number}")
            async with anyio.create_task_group() as group:
                group.start_soon(fickle.watch, uri)
                group.start_soon(partial(lane.call, "touch", uri=lane.uri("note")))
            await steady.until(lambda since=since: steady.of(UPDATED, since), within_s=3)
            await fickle.unwatch([uri])


async def test_update_has_the_uri_its_subscriber_used(tmp_path: Path) -> None:
    servers = [full_stdio(tmp_path, "one", modern=True), full_stdio(tmp_path, "two", modern=False)]
    async with (
        running_gateway(tmp_path, entries(servers)) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as new,
        http_host(gateway.url, "2025-11-25", gateway.client) as old,
    ):
        lanes = [Lane(host=new, server=server, through=True) for server in servers]
        for lane in lanes:
            await lane.ready()
        # The URI belongs to the server that connected first; the URI of the other is qualified.
        owned = await new.result("resources/read", {"uri": SHARED})
        lanes.sort(key=lambda lane: owned["contents"][0]["text"] != f"{SHARED} of {lane.server.name}")
        second = f"typegate://{lanes[1].server.name}/{SHARED}"
        for host in (new, old):
            await host.watch(SHARED, second)
            for lane, uri in zip(lanes, (SHARED, second), strict=True):
                since = len(host.received)
                await lane.call("touch", uri=SHARED)
                updates = await host.until(lambda host=host, since=since: host.of(UPDATED, since))
                assert [one.params["uri"] for one in updates] == [uri]
                read = await host.result("resources/read", {"uri": uri})
                assert read["contents"][0]["uri"] == uri
                assert read["contents"][0]["text"] == f"{SHARED} of {lane.server.name}"
