"""Names, URIs and ids of several megabytes are refused early and not repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults.observing import cpu_of
from support.callers import handshake, running_host
from support.gateways import META, answer_of, running_gateway
from support.pace import slowness
from support.upstreams.running import scripted_stdio_server, tool

LONG = "x" * 3_000_000
DOTTED = "file:///" + "/x1/../%2e%2e/" * 200_000
REF: dict[str, Any] = {"argument": {"name": "a", "value": "b"}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "resource": ("resources/read", {"uri": "file:///" + LONG}),
    "dotted resource": ("resources/read", {"uri": DOTTED}),
    "resource of ours": ("resources/read", {"uri": "typegate://a/" + LONG}),
    "template": ("completion/complete", {"ref": {"type": "ref/resource", "uri": DOTTED}, **REF}),
    "prompt to complete": ("completion/complete", {"ref": {"type": "ref/prompt", "name": LONG}, **REF}),
    "argument to complete": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "a__p"}, "argument": {"name": LONG, "value": ""}},
    ),
    "prompt": ("prompts/get", {"name": "a__" + LONG}),
    "tool": ("tools/call", {"name": "a__" + LONG, "arguments": {}}),
    "progress token": ("tools/call", {"name": "a__echo", "arguments": {}, "_meta": {"progressToken": LONG}}),
    "subscription": ("resources/subscribe", {"uri": DOTTED}),
    "end of a subscription": ("resources/unsubscribe", {"uri": DOTTED}),
    "level": ("logging/setLevel", {"level": LONG}),
    "cursor": ("resources/list", {"cursor": LONG}),
    "method": (LONG, {}),
}


def server(tmp_path: Path) -> dict[str, Any]:
    templates = [{"uriTemplate": f"file:///{{a}}/{n}/{{b}}/{{c}}", "name": f"t{n}"} for n in range(50)]
    config, _ = scripted_stdio_server(
        tmp_path,
        "a",
        tools=[tool("echo")],
        capabilities={"resources": {"subscribe": True}, "prompts": {}, "completions": {}},
        answers={
            "resources/templates/list": {"resourceTemplates": templates},
            "resources/list": {"resources": [{"uri": "file:///r", "name": "r"}]},
            "prompts/list": {"prompts": [{"name": "p"}]},
            "resources/read": {"contents": []},
        },
    )
    return config


RULES = {"policy": {"rules": [{"name": "no-etc", "kinds": ["resources"], "deny": ["*://*/etc/*/x", "file:///s/*"]}]}}


async def test_long_identifier_is_refused_at_once_over_http(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"a": server(tmp_path)}, gateway=RULES) as gateway:
        await gateway.until_listed("a__echo")
        session = await handshake(gateway)
        read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "file:///r"}}
        assert "result" in answer_of(await session.post(read))
        for what, (method, params) in REQUESTS.items():
            before_s = cpu_of(gateway.process.pid)
            response = await session.post({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
            answer = answer_of(response)
            assert "characters; expected at most 8192" in answer["error"]["message"], what
            assert answer["id"] == 7, what
            assert len(response.content) < 500, what
            # The time to read and parse three megabytes, and the resolution of the measurement.
            assert cpu_of(gateway.process.pid) - before_s < 0.15 * slowness(), what
        # The modern era has further ones, and ids are those of both.
        for body in (
            {"id": LONG, "method": "ping"},
            {"id": 1, "method": "subscriptions/listen", "params": {"notifications": {"taskIds": [LONG]}}},
            {"id": 1, "method": "tasks/get", "params": {"taskId": LONG}},
            {"id": 1, "method": "tools/list", "params": {"_meta": {META + "protocolVersion": LONG}}},
            {"method": "notifications/cancelled", "params": {"requestId": LONG}},
        ):
            response = await session.post({"jsonrpc": "2.0", **body})
            assert "characters; expected at most 8192" in response.json()["error"]["message"], body["method"]
            assert len(response.content) < 500
        assert len(gateway.logged()) < 20_000


@pytest.mark.parametrize("what", ["dotted resource", "tool", "progress token"])
async def test_long_identifier_is_refused_over_stdio(tmp_path: Path, what: str) -> None:
    config = tmp_path / "gw.json"
    config.write_text(json.dumps({"mcpServers": {"a": server(tmp_path)}, "gateway": RULES}))
    method, params = REQUESTS[what]
    async with running_host(tmp_path, "--config", str(config), "--state-dir", str(tmp_path / "state")) as host:
        answer = await host.answer({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert "characters; expected at most 8192" in answer["error"]["message"]
        assert len(json.dumps(answer)) < 500
        await host.answer({"jsonrpc": "2.0", "id": 8, "method": "ping"})
        assert await host.leave() == 0


@pytest.mark.parametrize(
    "uri",
    [
        "file:///" + "/x1/../%2e%2e/" * 580,
        "http://a/" + "%25252e%25252e/" * 540,
        "http://a/" + "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * 8_100,
        "http://a/" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 8_100,
        "file:///" + "\\..\\%5c" * 1_160,
        "http://a" + "/etc/" * 1_630,
    ],
    ids=["dots", "encodings", "ligatures", "letters", "backslashes", "matches"],
)
async def test_longest_uri_takes_a_fraction_of_a_second_with_rules_and_templates(tmp_path: Path, uri: str) -> None:
    async with running_gateway(tmp_path, {"a": server(tmp_path)}, gateway=RULES) as gateway:
        await gateway.until_listed("a__echo")
        session = await handshake(gateway)
        read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "http://a/1"}}
        assert "result" in answer_of(await session.post(read))
        before_s = cpu_of(gateway.process.pid)
        for number in range(5):
            # Each URI is a new one for the caches of URIs.
            body = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": f"{uri}{number}"}}
            await session.post(body)
        assert cpu_of(gateway.process.pid) - before_s < 5 * 0.1 * slowness()


LONG_NAME = "x" * 900_000
ADMIN: dict[str, tuple[str, Any]] = {
    "tool to try": ("try", {"wrapper": LONG_NAME}),
    "profile to try": ("try", {"wrapper": "a__echo", "profile": LONG_NAME}),
    "principal to try": ("try", {"wrapper": "a__echo", "principal": LONG_NAME}),
    "server to approve": ("changes", {"server": LONG_NAME}),
    "item to approve": ("changes", {"name": "a__" + LONG_NAME}),
    "server to add": ("servers", {"name": LONG_NAME, "config": {"url": "http://127.0.0.1:9/mcp"}}),
    "tool of a note": ("notes", {"wrapper": LONG_NAME, "text": "n"}),
    "text of a note": ("notes", {"wrapper": "a__echo", "text": LONG_NAME}),
    "kind of a key": ("keys", {"name": "k", "expires": LONG_NAME}),
    "proposal": ("proposals", {"what": LONG_NAME}),
    "name of a member": ("try", {LONG_NAME: 1}),
}
MANY = [1] * 400_000
MANY_PARTS: dict[str, tuple[str, Any]] = {
    "digests": ("changes", {"server": "a", "digests": MANY}),
    "classes": ("changes", {"server": "a", "classes": MANY}),
    "scopes": ("keys", {"name": "k", "scopes": MANY}),
    "command line": ("servers", {"name": "b", "config": {"command": "c", "args": [[]] * 300_000}}),
    "environment": (
        "preview",
        {"name": "b", "config": {"command": "c", "env": dict.fromkeys(map(str, range(60_000)))}},
    ),
    "unknown members": ("try", dict.fromkeys(map(str, range(60_000)))),
    "a list": ("try", MANY),
}


async def test_long_identifier_is_refused_by_the_admin_api(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {"a": server(tmp_path)}, gateway=RULES) as gateway:
        await gateway.until_listed("a__echo")
        for what, (path, body) in {**ADMIN, **MANY_PARTS}.items():
            before_s = cpu_of(gateway.process.pid)
            response = await gateway.admin(path, "POST", body)
            assert response.status_code == 400, (what, response.text[:300])
            expected = "characters; expected at most 8192" if what in ADMIN else "expected at most 10,000 beside"
            assert expected in response.json()["error"], what
            assert len(response.content) < 500, what
            assert cpu_of(gateway.process.pid) - before_s < 0.25 * slowness(), what
        long = "y" * 9_000
        for path in (
            f"policy/explain?principal=local&name={long}",
            f"policy/explain?principal={long}&name=a__echo",
            f"policy/explain?principal=local&name=a__echo&group={long}",
            f"wrappers?q={long}",
            f"wrappers?profile={long}",
            f"audit?tool={long}",
            f"wrappers/{long}",
            f"servers/{long}",
        ):
            response = await gateway.admin(path)
            assert response.status_code == 400, path[:30]
            assert "characters; expected at most 8192" in response.json()["error"], path[:30]
            assert len(response.content) < 300, path[:30]
        # A key of the query, and a name within the bound that is unknown: neither is repeated as a whole.
        for path, body in (
            (f"wrappers?{long}=1", None),
            (f"wrappers/{'y' * 8_000}", None),
            ("try", {"wrapper": "a__echo", "z" * 8_000: 1}),
            ("servers", {"name": "b", "config": {"url": "http://127.0.0.1:9/mcp", "z" * 8_000: 1}}),
            ("servers", {"name": "b", "config": {"command": "c", "env": {"z" * 8_000: []}}}),
        ):
            response = await gateway.admin(path, "GET" if body is None else "POST", body)
            assert response.status_code in (400, 404), path[:30]
            assert len(response.content) < 2_500, (path[:30], len(response.content))
        # Arguments of a tool have the bound of calls.
        tried = await gateway.admin(
            "try", "POST", {"wrapper": "a__echo", "arguments": {"text": LONG_NAME, "n": MANY[:9]}}
        )
        assert tried.status_code == 200
        assert LONG_NAME in tried.text
        assert len(gateway.logged()) < 20_000
        assert len((await gateway.admin("audit")).content) < 20_000
