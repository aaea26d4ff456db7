"""Several servers as one: names, URIs, hints, capabilities and headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e.lanes import Lane, direct_lane, entries
from support.gateways import COMMANDS, MODERN, running_gateway
from support.hosts_connected import http_host
from support.upstreams.full_running import full_http, full_stdio

LISTS = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
KINDS = ("tools", "prompts", "resources")
TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=1",
    "baggage": "user=ana",
}


@pytest.mark.heavy
async def test_merged_list_has_the_shortest_ttl_and_is_private_unless_all_are_public(tmp_path: Path) -> None:
    long = full_stdio(tmp_path, "long", "--ttl-ms", "70000", modern=True)
    short = full_stdio(tmp_path, "short", "--ttl-ms", "50000", modern=True)
    private = full_stdio(tmp_path, "private", "--ttl-ms", "60000", "--scope", "private", modern=True)
    for servers, scope in (([long, short], "public"), ([long, short, private], "private")):
        place = tmp_path / scope
        place.mkdir()
        async with (
            running_gateway(place, entries(servers)) as gateway,
            http_host(gateway.url, MODERN, gateway.client) as host,
        ):
            for server in servers:
                await Lane(host=host, server=server, through=True).ready()
            for kind, method in LISTS.items():
                page = await host.result(method)
                assert (page["ttlMs"], page["cacheScope"]) == (50_000, scope), (kind, scope)
            read = await host.result("resources/read", {"uri": "full://long/note"})
            assert (read["ttlMs"], read["cacheScope"]) == (70_000, "public")


async def test_server_without_prefix_keeps_its_names_and_verbatim_errors(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "bare", modern=True, prefix="none") as server,
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as host,
    ):
        await gateway.until_listed("echo", "ask")
        assert {one["name"] for one in await host.every("prompts")} >= {"greet", "broken", "interview"}
        uris = {one["uri"] for one in await host.every("resources")}
        assert uris == {"full://shared", *(f"full://bare/{path}" for path in ("note", "pixel", "guarded"))}
        error = {"code": -32007, "message": "SMTP down", "data": {"deep": [None]}}
        answer = await host.ask("tools/call", {"name": "error", "arguments": error})
        assert answer["error"] == error
        greeting = await host.result("prompts/get", {"name": "greet", "arguments": {"name": "Bo"}})
        assert greeting["messages"][0]["content"]["text"] == "Good day, Bo!"


@pytest.mark.heavy
async def test_shared_uri_belongs_to_the_first_server_unless_qualified(tmp_path: Path) -> None:
    later = full_stdio(tmp_path, "alpha", modern=True)
    async with (
        full_http(tmp_path, "zulu", modern=False) as first,
        running_gateway(tmp_path, entries([first, later])) as gateway,
        http_host(gateway.url, "2025-06-18", gateway.client) as host,
    ):
        for server in (first, later):
            await Lane(host=host, server=server, through=True).ready()
        uris = [one["uri"] for one in await host.every("resources")]
        assert len(set(uris)) == len(uris)
        assert {"typegate://zulu/full://shared", "typegate://alpha/full://shared"} <= set(uris)
        for uri, name in (
            ("full://shared", "zulu"),
            ("typegate://zulu/full://shared", "zulu"),
            ("typegate://alpha/full://shared", "alpha"),
        ):
            read = await host.result("resources/read", {"uri": uri})
            assert read["contents"][0]["text"] == f"full://shared of {name}"
        unknown = await host.ask("resources/read", {"uri": "full://nobody/at/all"})
        assert unknown["error"]["code"] in (-32602, -32002)


async def test_trace_headers_reach_http_servers_and_caller_credentials_do_not(tmp_path: Path) -> None:
    secrets = {"authorization": "Bearer of-the-caller", "cookie": "a=of-the-caller", "x-api-key": "of-the-caller"}
    async with full_http(tmp_path, "new", modern=True) as new, full_http(tmp_path, "old", modern=False) as old:
        async with running_gateway(tmp_path, entries([new, old])) as gateway:
            for version in (MODERN, "2025-06-18"):
                async with http_host(gateway.url, version, gateway.client, headers={**TRACE, **secrets}) as host:
                    for server in (new, old):
                        lane = Lane(host=host, server=server, through=True)
                        await lane.ready()
                        received: dict[str, Any] = (await lane.call("received"))["structuredContent"]
                        assert {key: received["headers"].get(key) for key in TRACE} == TRACE, (version, server.name)
        for server in (new, old):
            assert "of-the-caller" not in server.recording.path.read_text()


@pytest.mark.parametrize("modern", [True, False])
async def test_every_page_of_every_list_is_fetched(modern: bool, tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "paged", "--page", "1", modern=modern)
    async with (
        direct_lane(tmp_path, server, MODERN if modern else "2025-11-25") as direct,
        running_gateway(tmp_path, entries([server])) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as host,
    ):
        await Lane(host=host, server=server, through=True).ready()
        for kind, method in LISTS.items():
            address = {"resources": "uri", "resourceTemplates": "uriTemplate"}.get(kind, "name")
            own = [one[address] for one in await direct.host.every(kind, method)]
            got = {one[address].removeprefix("paged__") for one in await host.every(kind, method)}
            assert len(own) > 1
            assert set(own) <= got, kind


async def test_added_or_removed_server_changes_every_list_for_everybody(tmp_path: Path) -> None:
    first, second = (full_stdio(tmp_path, name, modern=True) for name in ("first", "second"))
    async with (
        running_gateway(tmp_path, entries([first]), gateway=COMMANDS) as gateway,
        http_host(gateway.url, MODERN, gateway.client) as new,
        http_host(gateway.url, "2025-06-18", gateway.client) as old,
    ):
        await Lane(host=new, server=first, through=True).ready()
        for host in (new, old):
            await host.watch(lists=KINDS)
        for joins in (True, False):
            since = {host: len(host.received) for host in (new, old)}
            if joins:
                await gateway.admin("servers", "POST", {"name": "second", "config": second.config})
            else:
                await gateway.admin("servers/second", "DELETE")
            for host in (new, old):
                for kind in KINDS:
                    method = f"notifications/{kind}/list_changed"
                    await host.until(lambda h=host, m=method, s=since[host]: h.of(m, s))
                listed = [one["name"] for one in await host.every("prompts")]
                assert ("second__greet" in listed) == joins
                shared = "typegate://second/full://shared"
                uris = [one["uri"] for one in await host.every("resources")]
                assert (shared in uris) == joins
                assert ("full://shared" in uris) != joins
                answer = await host.ask("prompts/get", {"name": "second__greet", "arguments": {"name": "Bo"}})
                assert ("result" in answer) == joins
                assert joins or answer["error"]["code"] == -32602
