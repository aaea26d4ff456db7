"""Handshake-era sessions over HTTP: resumable streams and termination."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest
from e2e.lanes import Lane, entries
from support.gateways import running_gateway
from support.hosts_connected import http_host
from support.upstreams.full_running import full_stdio

CHANGED = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


async def test_resumed_stream_delivers_missed_events_once_and_in_order(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
        http_host(gateway.url, "2025-11-25", gateway.client) as other,
    ):
        lane = Lane(host=host, server=server, through=True)
        await lane.ready()
        paths = ("note", "pixel", "guarded", "item/1", "item/2")
        await host.watch(*(lane.uri(path) for path in paths))
        await lane.call("touch", uri=lane.uri("note"))
        await host.until(lambda: host.of(UPDATED))
        last = [number for number, via in host.event_ids if via == "get"][-1]
        host.hang_up()
        missed = [lane.uri(path) for path in paths[1:4]]
        for uri in missed:
            await lane.call("touch", uri=uri)
        await host.group.start(lambda **options: host.listen(last, via="again", **options))
        assert host.statuses["again"] == 200
        await host.until(lambda: len(host.of(UPDATED)) >= 4)
        await lane.call("touch", uri=lane.uri("item/2"))
        await host.until(lambda: len(host.of(UPDATED)) >= 5)
        updates = host.of(UPDATED)
        assert [one.params["uri"] for one in updates] == [lane.uri(path) for path in paths]
        assert [one.via for one in updates] == ["get", *["again"] * 4]
        numbers = [number for number, via in host.event_ids if via in ("get", "again") and number]
        assert len(set(numbers)) == len(numbers)
        # The events of another session cannot be resumed, whatever event id is given.
        await other.group.start(lambda **options: other.listen(last, via="stolen", **options))
        await lane.call("change", list="prompts")
        await other.until(lambda: other.of(CHANGED))
        assert other.of(UPDATED) == []


async def test_stream_can_be_resumed_while_the_old_one_seems_open(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
    ):
        lane = Lane(host=host, server=server, through=True)
        await lane.ready()
        await host.watch(lane.uri("note"))
        await lane.call("touch", uri=lane.uri("note"))
        await host.until(lambda: host.of(UPDATED))
        # A network that went away says nothing: the first stream is still open when its host comes back.
        last = [number for number, via in host.event_ids if via == "get"][-1]
        await host.group.start(lambda **options: host.listen(last, via="again", **options))
        assert host.statuses["again"] == 200
        host.hang_up()
        await lane.call("touch", uri=lane.uri("note"))
        await host.until(lambda: [one for one in host.of(UPDATED) if one.via == "again"])


@pytest.mark.heavy
async def test_stream_resumed_too_late_gets_the_newest_events_and_bad_ids_are_ignored(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
    ):
        lane = Lane(host=host, server=server, through=True)
        await lane.ready()
        uris = [lane.uri(f"item/{number}") for number in range(400)]
        async with anyio.create_task_group() as group:
            for uri in uris:
                group.start_soon(partial(host.result, "resources/subscribe", {"uri": uri}, within_s=20))
        for uri in uris:
            await lane.call("touch", uri=uri)
        for number, bad in enumerate(("x", "-1", "1.5", "9" * 30, "0")):
            via = f"stream-{number}"
            await host.group.start(lambda bad=bad, via=via, **options: host.listen(bad, via=via, **options))
            assert host.statuses[via] in (200, 400)
            if bad == "0":
                await host.until(lambda: host.of(UPDATED) and host.of(UPDATED)[-1].params["uri"] == uris[-1])
                received = [one.params["uri"] for one in host.received if one.via == via]
                assert 100 <= len(received) <= len(uris)
                assert received == uris[-len(received) :]
            host.hang_up(via)
            await host.result("ping")


async def test_deleted_session_is_unknown(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, "2025-11-25", gateway.client) as host,
    ):
        await Lane(host=host, server=server, through=True).ready()
        await host.open_stream()
        headers = {**host.headers, "mcp-protocol-version": "2025-11-25"}
        ended = await gateway.client.delete(gateway.url, headers=headers)
        assert ended.status_code in (200, 204)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await gateway.post(ping, headers)).status_code == 404
        stream = {**headers, "accept": "text/event-stream"}
        assert (await gateway.client.get(gateway.url, headers=stream)).status_code == 404
        assert (await gateway.client.delete(gateway.url, headers=headers)).status_code == 404
