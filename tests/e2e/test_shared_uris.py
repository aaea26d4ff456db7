"""A URI that several servers have is resolved to the server that named it, in every place."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.gateways import COMMANDS, RunningGateway, brief_pause, running_gateway
from support.hosts_connected import HttpHost, http_host
from support.visitors import in_both_eras

UPDATED = "notifications/resources/updated"
PROGRAM = Path(__file__).parent.parent / "support/upstreams/namesake.py"
EAGER: dict[str, Any] = {"profiles": {"default": {"disclosure": "eager"}}}
LISTED = [
    "ui://app/main.html", "ui://app", "ui://one/app", "file:///notes.txt", "doc://readme", "https://example.test/page",
    "urn:isbn:1", "doc://my notes/1", "plain.txt",
]  # fmt: skip
# URIs of templates, URIs that only tools name, and URIs that no server has listed.
UNLISTED = ["note://5", "ui://cards/7/view", "ui://panel/only.html"]
TEMPLATES = ["note://{id}", "ui://cards/{id}/view"]
URIS = [*LISTED, *UNLISTED]


def server(name: str, **spec: Any) -> dict[str, Any]:
    """The entry of a server that names these URIs."""
    whole = {"name": name, "listed": LISTED, "templates": TEMPLATES, "named": URIS, **spec}
    return {"command": sys.executable, "args": [str(PROGRAM), json.dumps(whole)]}


@asynccontextmanager
async def two_servers(
    tmp_path: Path, era: str, servers: dict[str, Any] | None = None, gateway: dict[str, Any] | None = None
) -> AsyncIterator[tuple[RunningGateway, HttpHost]]:
    """A host at a gateway of two servers that have the same URIs."""
    servers = servers or {"one": server("one"), "two": server("two")}
    async with (
        running_gateway(tmp_path, servers, gateway={**EAGER, **(gateway or {})}) as running,
        http_host(running.url, era, running.client) as host,
    ):
        await running.until_listed(*(f"{alias}__touch" for alias in servers))
        yield running, host


async def read(host: HttpHost, uri: str) -> str:
    """The text of a resource, or the error."""
    answer = await host.ask("resources/read", {"uri": uri})
    if "error" in answer:
        return str(answer["error"])
    [first, second] = answer["result"]["contents"]
    assert first["uri"] == uri, answer
    assert second["uri"].endswith("#2")
    return str(first["text"])


def uris_of(value: Any) -> Iterator[str]:
    """Every URI in a value: what stands under `uri`, and every text in a `_meta` but one."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("uri", "resourceUri", "ui/resourceUri", "openai/outputTemplate"):
                yield member
            elif name in ("other", "uris"):
                yield from (one for one in member if one != "x")
            else:
                yield from uris_of(member)
    elif isinstance(value, list):
        for one in value:
            yield from uris_of(one)


async def named_by(host: HttpHost, alias: str) -> dict[str, set[str]]:
    """Every URI that a host sees of one server, by the server's own."""
    seen: dict[str, set[str]] = {}
    tools = {one["name"]: one for one in await host.every("tools")}
    for at, own in enumerate(URIS):
        called = await host.result("tools/call", {"name": f"{alias}__name{at}", "arguments": {}})
        seen[own] = {*uris_of(tools[f"{alias}__name{at}"]["_meta"]), *uris_of(called)}
        assert called["content"][2]["text"] == own
    resources = [one for one in await host.every("resources") if one["name"] == alias]
    assert len(resources) == len(LISTED)
    messages = (await host.result("prompts/get", {"name": f"{alias}__say"}))["messages"]
    for own, item in zip(LISTED, resources, strict=False):
        assert {*uris_of(item)} == {item["uri"]}, own
    for own, link, embedded in zip(URIS, messages[::2], messages[1::2], strict=True):
        seen[own] |= {link["content"]["uri"], *uris_of(embedded)}
    return seen


@in_both_eras
async def test_shared_uri_leads_to_its_own_server_in_every_place(era: str, tmp_path: Path) -> None:
    async with two_servers(tmp_path, era) as (_, host):
        for alias in ("one", "two"):
            for own, shown in (await named_by(host, alias)).items():
                for uri in shown:
                    assert await read(host, uri) == f"{own} of {alias}", (own, uri)
                    assert uri.startswith("ui://") == own.startswith("ui://")
            for item in await host.every("resources"):
                assert (await read(host, item["uri"])).endswith(f" of {item['name']}")
        keys = {one["uri"] for one in await host.every("resources")}
        assert len(keys) == 2 * len(LISTED)
        assert {f"ui://{alias}/app/main.html" for alias in ("one", "two")} <= keys
        assert {f"typegate://{alias}/doc://readme" for alias in ("one", "two")} <= keys


@in_both_eras
async def test_templates_and_completions_keep_their_server(era: str, tmp_path: Path) -> None:
    async with two_servers(tmp_path, era) as (_, host):
        templates = await host.every("resourceTemplates", "resources/templates/list")
        assert {one["uriTemplate"] for one in templates} == {
            f"{start}{alias}/{rest}"
            for alias in ("one", "two")
            for start, rest in (("typegate://", "note://{id}"), ("ui://", "cards/{id}/view"))
        }
        for one in templates:
            expanded = one["uriTemplate"].replace("{id}", "42")
            text = await read(host, expanded)
            assert text in (f"note://42 of {one['name']}", f"ui://cards/42/view of {one['name']}")
            params = {
                "ref": {"type": "ref/resource", "uri": one["uriTemplate"]}, "argument": {"name": "id", "value": "4"},
            }  # fmt: skip
            completed = (await host.result("completion/complete", params))["completion"]["values"]
            assert completed[0] == one["name"]
            assert completed[1] in TEMPLATES


@in_both_eras
async def test_update_reaches_watchers_of_that_servers_resource_only(era: str, tmp_path: Path) -> None:
    async with two_servers(tmp_path, era) as (_, host):
        watched = [f"ui://{alias}/app/main.html" for alias in ("one", "two")]
        watched += [f"typegate://{alias}/doc://readme" for alias in ("one", "two")]
        await host.watch(*watched)
        for alias in ("two", "one"):
            for own, key in (("ui://app/main.html", f"ui://{alias}/app/main.html"),
                             ("doc://readme", f"typegate://{alias}/doc://readme")):  # fmt: skip
                since = len(host.received)
                await host.result("tools/call", {"name": f"{alias}__touch", "arguments": {"uri": own}})
                updates = await host.until(lambda since=since: host.of(UPDATED, since))
                assert [one.params["uri"] for one in updates] == [key]


@in_both_eras
async def test_unshared_uri_is_unchanged(era: str, tmp_path: Path) -> None:
    only = ["ui://two/of/my/own", "ui://mine/x.html", "mine://{id}"]
    servers = {"one": server("one"), "two": server("two", listed=only[:2], templates=only[2:], named=only[:2])}
    async with two_servers(tmp_path, era, servers) as (_, host):
        for at, uri in enumerate(only[:2]):
            tools = {one["name"]: one for one in await host.every("tools")}
            called = await host.result("tools/call", {"name": f"two__name{at}", "arguments": {}})
            assert {*uris_of(tools[f"two__name{at}"]["_meta"]), *uris_of(called)} == {uri}
            assert await read(host, uri) == f"{uri} of two"
        assert {one["uri"] for one in await host.every("resources")} == {
            *only[:2], *LISTED[:-2], *(f"typegate://one/{uri}" for uri in LISTED[-2:]),
        }  # fmt: skip
        # No URLs: the Python SDK 1.x would refuse the whole list for one of them.
        assert await read(host, "typegate://one/plain.txt") == "plain.txt of one"
        assert await read(host, "plain.txt") == "plain.txt of one"


@in_both_eras
async def test_remembered_uri_keeps_its_server_when_another_shares_it(era: str, tmp_path: Path) -> None:
    uris = ["ui://app/main.html", "doc://readme"]
    # The new server precedes the other one in the configuration.
    servers = {"new": server("new", listed=[], templates=[], named=[]), "old": server("old", named=uris)}
    async with two_servers(tmp_path, era, servers) as (_, host):
        for uri in uris:
            assert await read(host, uri) == f"{uri} of old"
        await host.watch(uris[0], lists=("resources",))
        await host.result("tools/call", {"name": "new__list", "arguments": {"uris": uris}})
        with anyio.fail_after(25):
            while "ui://new/app/main.html" not in {one["uri"] for one in await host.every("resources")}:
                await brief_pause()
        for uri in uris:
            assert await read(host, uri) == f"{uri} of old"
        assert await read(host, "ui://new/app/main.html") == "ui://app/main.html of new"
        assert await read(host, "ui://old/app/main.html") == "ui://app/main.html of old"
        tools = {one["name"]: one for one in await host.every("tools")}
        assert tools["old__name0"]["_meta"]["ui"] == {"resourceUri": "ui://old/app/main.html"}
        since = len(host.received)
        for alias in ("new", "old"):
            await host.result("tools/call", {"name": f"{alias}__touch", "arguments": {"uri": uris[0]}})
        updates = await host.until(lambda: host.of(UPDATED, since))
        assert [one.params["uri"] for one in updates] == [uris[0]]


async def test_qualified_uri_is_readable_after_the_other_server_left(tmp_path: Path) -> None:
    async with two_servers(tmp_path, "2025-11-25", gateway=COMMANDS) as (gateway, host):
        await gateway.admin("servers/one", "DELETE")
        with anyio.fail_after(25):
            while "ui://app/main.html" not in {one["uri"] for one in await host.every("resources")}:
                await brief_pause()
        for uri in ("ui://app/main.html", "doc://readme"):
            assert await read(host, uri) == f"{uri} of two"
        assert await read(host, "ui://two/app/main.html") == "ui://app/main.html of two"
        assert await read(host, "typegate://two/doc://readme") == "doc://readme of two"
        assert "not found" in (await read(host, "typegate://one/doc://readme")).lower()


@in_both_eras
@pytest.mark.parametrize("by_rule", [True, False])
async def test_denied_uri_of_one_server_is_denied_in_every_form(era: str, by_rule: bool, tmp_path: Path) -> None:
    pattern = "ui://app/*"
    servers = {"one": server("one"), "two": server("two")}
    rule = {"name": "no apps", "servers": ["one"], "kinds": ["resources"], "deny": [pattern]}
    if not by_rule:
        servers["one"]["deny"] = {"resources": [pattern]}
    gateway = {"policy": {"rules": [rule]}} if by_rule else {}
    async with two_servers(tmp_path, era, servers, gateway) as (_, host):
        uris = {one["uri"] for one in await host.every("resources")}
        assert not {uri for uri in uris if uri.startswith("ui://one/app/")}
        for uri in (
            "ui://one/app/main.html", "typegate://one/ui://app/main.html", "ui://one/app/other.html",
            "ui://one/app/%6dain.html", "ui://one/app/x/../main.html",
        ):  # fmt: skip
            assert " of one" not in await read(host, uri), uri
        shown = [one["uri"] for one in await host.every("resources") if one["name"] == "two"]
        for uri in shown:
            assert (await read(host, uri)).endswith(" of two")


async def test_audit_entry_has_the_server_and_its_own_uri(tmp_path: Path) -> None:
    async with two_servers(tmp_path, "2025-11-25") as (gateway, host):
        await read(host, "ui://two/app/main.html")
        rows = (await gateway.admin("audit")).json()["audit"]
    [row] = [one for one in rows if one["event"] == "request"]
    assert (row["name"], row["server"], row["original"]) == ("ui://two/app/main.html", "two", "ui://app/main.html")


@in_both_eras
async def test_large_result_has_uris_of_its_own_server_too(era: str, tmp_path: Path) -> None:
    async with two_servers(tmp_path, era) as (_, host):
        for alias in ("one", "two"):
            for own in ("doc://readme", "ui://app/main.html"):
                called = await host.result("tools/call", {"name": f"{alias}__large", "arguments": {"uri": own}})
                for uri in {*uris_of(called)}:
                    assert await read(host, uri) == f"{own} of {alias}"


@in_both_eras
async def test_unlisted_uri_is_read_from_the_server_that_named_it_last(era: str, tmp_path: Path) -> None:
    uris = ["made://up/1", "ui://made/up.html"]
    bare = {"listed": ["own://{0}"], "templates": [], "named": []}
    servers = {
        name: server(name, **{**bare, "listed": [f"own://{name}"]}) for name in ("one", "two")
    }  # fmt: skip
    async with two_servers(tmp_path, era, servers) as (_, host):
        for alias in ("two", "one", "two"):
            for own in uris:
                called = await host.result("tools/call", {"name": f"{alias}__large", "arguments": {"uri": own}})
                for uri in {*uris_of(called)}:
                    assert await read(host, uri) == f"{own} of {alias}", uri
        assert called["content"][0]["uri"] == "ui://made/up.html"


async def test_unlisted_uri_is_read_from_the_server_that_named_it_in_the_session(tmp_path: Path) -> None:
    uri, servers = "made://up/1", {}
    for name in ("one", "two"):
        servers[name] = server(name, listed=[f"own://{name}"], templates=[], named=[])
    async with (
        two_servers(tmp_path, "2025-11-25", servers) as (gateway, first),
        http_host(gateway.url, "2025-11-25", gateway.client) as second,
    ):
        for host, alias in ((first, "one"), (second, "two")):
            called = await host.result("tools/call", {"name": f"{alias}__large", "arguments": {"uri": uri}})
            assert called["content"][0]["uri"] == uri
        for host, alias in ((first, "one"), (second, "two")):
            assert await read(host, uri) == f"{uri} of {alias}"
