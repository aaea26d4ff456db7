"""Protocol extensions: declared ones are answered, apps reach their own server, and more can be configured."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.gateways import RunningGateway, running_gateway, text_of
from support.hosts_connected import HttpHost, http_host

from gateway.protocol.extensions import APP_MIME_TYPE, APPS, OFFICIAL, TASKS

PROGRAM = Path(__file__).parent.parent / "support/upstreams/extended.py"
EAGER: dict[str, Any] = {"profiles": {"default": {"disclosure": "eager"}}}
SHOWS = {"ui": {"resourceUri": "ui://panel/app.html"}, "ui/resourceUri": "ui://panel/app.html"}
# Every official extension, as the page https://modelcontextprotocol.io/extensions lists them in November 2026.
OF_SIGN_IN = ("io.modelcontextprotocol/oauth-client-credentials",
              "io.modelcontextprotocol/enterprise-managed-authorization")  # fmt: skip


def tool(name: str, **meta: Any) -> dict[str, Any]:
    """A definition."""
    return {"name": name, "description": f"Do {name}.", "inputSchema": {"type": "object"}, "_meta": meta}


def of_app(name: str, *visibility: str) -> dict[str, Any]:
    """A tool of an app."""
    return tool(name, ui={"resourceUri": "ui://panel/app.html", "visibility": list(visibility)})


def server(tmp_path: Path, name: str, **spec: Any) -> dict[str, Any]:
    """The entry of a server."""
    whole = {"name": name, "record": str(tmp_path / f"{name}.jsonl"), **spec}
    return {"command": sys.executable, "args": [str(PROGRAM), json.dumps(whole)]}


def received(tmp_path: Path, name: str, method: str) -> list[dict[str, Any]]:
    """Return the requests with one method that a server received."""
    messages = map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())
    return [one.get("params", {}) for one in messages if one.get("method") == method]


@asynccontextmanager
async def hosts_of(
    tmp_path: Path,
    servers: Mapping[str, Any],
    *names: str,
    gateway: Mapping[str, Any] | None = None,
    declared: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[tuple[HttpHost, HttpHost], RunningGateway]]:
    """A host of each era that has met a gateway whose servers have listed these tools."""
    async with running_gateway(tmp_path, servers, gateway={**EAGER, **(gateway or {})}) as running:
        await running.until_listed(*names)
        async with (
            http_host(running.url, "2026-07-28", running.client, declared=declared) as modern,
            http_host(running.url, "2025-11-25", running.client, declared=declared) as earlier,
        ):
            yield (modern, earlier), running


# Declarations


async def test_every_declared_extension_is_answered(tmp_path: Path) -> None:
    offered = {each.identifier: {} for each in OFFICIAL}
    offered |= {identifier: {} for identifier in OF_SIGN_IN} | {"com.example/unknown": {"x": 1}, "broken": None}
    entry = {
        "uri": "skill://plan/SKILL.md",
        "frontmatter": {"name": "plan", "description": "x"},
        "resources": "dynamic",
    }
    results = {
        "tasks/get": {"taskId": "1", "status": "working"},
        "skills/list": {"skills": [entry]},
        "skills/get": {"skill": entry},
        "resources/directory/read": {"resources": []},
    }
    offered["io.modelcontextprotocol/skills"] = {"directoryRead": True}
    servers = {"up": server(tmp_path, "up", modern=True, extensions=offered, results=results, tools=[tool("say")])}
    declares = {"extensions": {TASKS: {}}}
    async with hosts_of(tmp_path, servers, "up__say", declared=declares) as (hosts, _):
        for host in hosts:
            declared = host.hello["capabilities"]["extensions"]
            tables = {each.identifier: each for each in OFFICIAL}
            assert set(declared) == {one for one in tables if host.modern or not tables[one].modern_only}
            for identifier in declared:
                for method, rule in tables[identifier].methods.items():
                    answer = await host.ask(method, {rule.member: entry["uri"]} if rule.owner != "listed" else {})
                    # An unknown task has a different error, which shows that the method exists.
                    assert "result" in answer or answer["error"]["code"] != -32601, answer
            for method in ("tasks/get", "skills/list"):
                routed = any(method in tables[identifier].methods for identifier in declared)
                answer = await host.ask(method, {"taskId": "x"})
                assert routed or answer["error"]["code"] == -32601, answer


async def test_extension_that_no_server_has_is_not_declared(tmp_path: Path) -> None:
    servers = {"up": server(tmp_path, "up", modern=True, tools=[tool("say")])}
    async with hosts_of(tmp_path, servers, "up__say") as (hosts, _):
        for host in hosts:
            assert "extensions" not in host.hello["capabilities"]
            assert (await host.ask("skills/list"))["error"]["code"] == -32601


# MCP Apps


@pytest.mark.parametrize("modern", [False, True])
async def test_app_tools_are_listed_and_callable_for_every_caller(modern: bool, tmp_path: Path) -> None:
    spec = {"modern": modern, "tools": [tool("plain"), of_app("show", "model", "app")]}
    servers = {"up": server(tmp_path, "up", resources={"ui://panel/app.html": "<p>up</p>"}, listed=[], **spec)}
    async with hosts_of(tmp_path, servers, "up__plain", "up__show", declared={}) as (hosts, _):
        for host in hosts:
            assert text_of(await host.call("up__show")) == "show of up"
            read = await host.result("resources/read", {"uri": "ui://panel/app.html"})
            assert read["contents"][0]["text"] == "<p>up</p>"
    first_request = received(tmp_path, "up", "server/discover" if modern else "initialize")[0]
    meta = first_request.get("_meta", {})
    able = meta["io.modelcontextprotocol/clientCapabilities"] if modern else first_request["capabilities"]
    assert able["extensions"] == {APPS: {"mimeTypes": [APP_MIME_TYPE]}}


async def test_app_calls_tools_of_its_own_server_by_their_own_names(tmp_path: Path) -> None:
    spec = {"resources": {"ui://panel/app.html": "x"}}
    servers = {
        "one": server(tmp_path, "one", tools=[of_app("show"), of_app("save", "app"), tool("both")], **spec),
        "two": server(tmp_path, "two", tools=[of_app("show"), of_app("ask", "model"), tool("both")], **spec),
        # This server has no app, so its tools cannot be called by their short names.
        "three": server(tmp_path, "three", tools=[tool("save"), tool("only")], **spec),
    }
    listed = ("one__show", "two__show", "two__ask", "three__save")
    async with hosts_of(tmp_path, servers, *listed) as (hosts, _):
        for host in hosts:
            assert text_of(await host.call("save")) == "save of one"
            for name in ("both", "show"):
                refused = await host.call(name)
                assert refused["isError"]
                assert f"one__{name}" in text_of(refused)
                assert f"two__{name}" in text_of(refused)
            for name in ("ask", "only"):  # for models only; of a server without an app
                refused = await host.call(name)
                assert refused["isError"]
                assert f"__{name}" in text_of(refused)
    assert [one["name"] for one in received(tmp_path, "one", "tools/call")] == 2 * ["save"]
    assert not received(tmp_path, "three", "tools/call")


async def test_denied_tool_is_not_callable_by_its_own_name(tmp_path: Path) -> None:
    tools = [of_app("show"), of_app("save", "app")]
    servers = {"one": {**server(tmp_path, "one", tools=tools), "deny": ["save"]}}
    async with hosts_of(tmp_path, servers, "one__show") as (hosts, _):
        for host in hosts:
            answer = await host.ask("tools/call", {"name": "save", "arguments": {}})
            assert "error" in answer or answer["result"]["isError"]
    assert not received(tmp_path, "one", "tools/call")


async def test_app_only_tools_are_listed_and_hidden_from_models(tmp_path: Path) -> None:
    tools = [tool("find"), *(of_app(f"refresh{at}", "app") for at in range(8))]
    servers = {"up": server(tmp_path, "up", tools=tools)}
    lazy = {"profiles": {"default": {"disclosure": "auto", "maxTools": 7, "maxTokens": 2_000}}}
    async with hosts_of(tmp_path, servers, "up__find", gateway=lazy) as (hosts, running):
        for host in hosts:
            names = [one["name"] for one in await host.every("tools")]
            assert {f"up__refresh{at}" for at in range(8)} < set(names)
            assert "find_tools" not in names  # the others fit
            details = await host.call("get_server_details", {"server": "up", "schemas": True})
            manual = await host.result("prompts/get", {"name": "gateway_tools"})
            unknown = await host.ask("tools/call", {"name": "up__refresh_all", "arguments": {}})
            for shown in (details, manual, unknown):
                assert "refresh" not in json.dumps(shown).replace("refresh_all", "")
            assert "up__find" in json.dumps(details)
            rows = {row["name"]: row for row in (await running.admin("wrappers")).json()["wrappers"]}
            assert (rows["up__refresh0"]["listed"], rows["up__refresh0"]["disclosure"]) == (True, "for apps")
            [budget] = (await running.admin("budget")).json()["profiles"]
            assert [one["name"] for one in budget["wrappers"]] == ["up__find"]
            assert text_of(await host.call("up__refresh0")) == "refresh0 of up"


async def test_app_only_tools_are_not_found_by_search(tmp_path: Path) -> None:
    tools = [*(tool(f"find{at}") for at in range(9)), of_app("refresh", "app")]
    servers = {"up": server(tmp_path, "up", tools=tools)}
    lazy = {"profiles": {"default": {"disclosure": "lazy"}}}
    async with hosts_of(tmp_path, servers, "up__refresh", gateway=lazy) as (hosts, _):
        for host in hosts:
            found = await host.call("find_tools", {"query": "refresh", "limit": 20})
            assert "up__refresh" not in json.dumps(found)
            servers_found = await host.call("list_servers")
            assert servers_found["structuredContent"]["servers"][0]["tools"] == 9
            refused = await host.call("invoke_tool", {"server": "up", "tool": "refresh", "arguments": {}})
            assert refused["isError"]
            assert "only for apps of that server" in text_of(refused)
            assert not received(tmp_path, "up", "tools/call")


async def test_apps_with_equal_uris_are_rendered_from_their_own_servers(tmp_path: Path) -> None:
    servers = {
        name: server(
            tmp_path,
            name,
            tools=[tool("show", **SHOWS)],
            resources={"ui://panel/app.html": f"<p>{name}</p>"},
            listed=listed,
        )
        for name, listed in (("one", ["ui://panel/app.html"]), ("two", []))
    }
    async with hosts_of(tmp_path, servers, "one__show", "two__show") as (hosts, _):
        for host in hosts:
            tools = {one["name"]: one for one in await host.every("tools")}
            for name in ("one", "two"):
                meta = tools[f"{name}__show"]["_meta"]
                uri = f"ui://{name}/panel/app.html"
                assert meta == {"ui": {"resourceUri": uri}, "ui/resourceUri": uri}
                [content] = (await host.result("resources/read", {"uri": uri}))["contents"]
                assert content == {"uri": uri, "mimeType": APP_MIME_TYPE, "text": f"<p>{name}</p>"}


# Further extensions


NOTES = {
    "com.example/notes": {
        "methods": {
            "notes/list": {"owner": "all", "member": "notes"},
            "notes/open": {"owner": "uri"},
            "notes/run": {"owner": "tool"},
            "notes/state": {"owner": "server"},
        }
    }
}


async def test_configured_extensions_are_declared_and_routed(tmp_path: Path) -> None:
    def noting(name: str, **more: Any) -> dict[str, Any]:
        pages = [{"notes": [{"uri": "note://same", "by": name}]}, {"notes": [{"uri": f"note://{name}", "by": name}]}]
        results = {
            "notes/list": pages,
            "notes/open": {"byUri": {uri: {"note": {"uri": uri, "by": name}} for uri in ("note://same", "note://two")}},
            "notes/run": {"by": name},
            "notes/state": {"by": name},
        }
        texts = {"note://same": name, f"note://{name}": name}
        return server(
            tmp_path,
            name,
            modern=True,
            extensions={"com.example/notes": {"depth": {name: True}}},
            results=results,
            resources=texts,
            tools=[tool("say")],
            **more,
        )

    servers = {"one": noting("one"), "two": noting("two"), "plain": server(tmp_path, "plain", tools=[tool("say")])}
    listed = ("one__say", "two__say", "plain__say")
    async with hosts_of(tmp_path, servers, *listed, gateway={"extensions": NOTES}) as (hosts, running):
        for host in hosts:
            assert host.hello["capabilities"]["extensions"] == {
                "com.example/notes": {"depth": {"one": True, "two": True}}
            }
            notes = (await host.result("notes/list"))["notes"]
            assert [(one["uri"], one["by"]) for one in notes] == [
                ("typegate://one/note://same", "one"), ("note://one", "one"),
                ("typegate://two/note://same", "two"), ("note://two", "two"),
            ]  # fmt: skip
            for uri, name in (("typegate://two/note://same", "two"), ("note://two", "two")):
                assert (await host.result("notes/open", {"uri": uri}))["note"] == {"uri": uri, "by": name}
            assert (await host.ask("notes/open", {"uri": "note://none"}))["error"]["code"] in (-32602, -32002)
            assert (await host.result("notes/run", {"name": "two__say"}))["by"] == "two"
            assert received(tmp_path, "two", "notes/run")[0]["name"] == "say"
            assert (await host.ask("notes/run", {"name": "plain__say"}))["error"]["code"] == -32602
            unclear = (await host.ask("notes/state"))["error"]
            assert unclear["code"] == -32602
            assert "one, two" in unclear["message"]
            assert (await host.ask("notes/other"))["error"]["code"] == -32601
    entries = [json.loads(line) for line in (running.state_dir / "audit.jsonl").read_text().splitlines()]
    assert {"notes/open", "notes/run", "notes/list"} <= {one.get("method") for one in entries}
    assert not received(tmp_path, "plain", "notes/list")
