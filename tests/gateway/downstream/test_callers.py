"""A cached caller is reused until anything that it depends on changes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from support.callers import call_of, raw_post, status_of
from support.gateways import RunningGateway, brief_pause, running_gateway
from support.pace import limit_now
from support.upstreams.running import builtin_tools, scripted_stdio_server

from gateway.access.principal import Principal
from gateway.config.load import parse
from gateway.downstream.admission import AuthenticatedCaller, Callers, ProtectedResource
from gateway.http.http_client import HttpClient
from gateway.http.http_request import RequestHead
from gateway.serving.app import open_gateway

KEY, OTHER = "k" * 40, "o" * 40
DEV: dict[str, Any] = {"profiles": {"dev": {}}}


def key(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "keyHash": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", **more}


async def reconfigure(gateway: RunningGateway, settings: dict[str, Any]) -> None:
    """Write other settings, and return once they are in use, which a new profile shows."""
    document = json.loads(gateway.config.read_text())
    mark = f"mark-{uuid4().hex[:8]}"
    profiles = {**settings.get("profiles", {}), mark: {}}
    gateway.config.write_text(json.dumps({**document, "gateway": {**settings, "profiles": profiles}}))
    with anyio.fail_after(20):
        while mark not in (await gateway.admin("profiles")).text:
            await brief_pause()


async def called(gateway: RunningGateway, authorization: dict[str, str] | None = None) -> tuple[int, str]:
    """Call three times with one head on one connection, each in one packet; returns status and words of the last one.

    The first of all such requests is read by a parser, and the head of the others is known.
    """
    client, status, answer = HttpClient(), 0, b""
    head = {
        "content-type": "application/json", "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "up__echo",
        **(authorization or {}),
    }  # fmt: skip
    body = json.dumps(call_of("up__echo", {"text": "heard"})).encode()
    for _ in range(3):
        async with client.send("POST", f"{gateway.origin}/mcp/dev", head, body) as response:
            status, answer = response.status, await response.read()
    client.close()
    return status, answer.decode()


async def first_answer(gateway: RunningGateway, *packets: bytes) -> bytes:
    """Send packets on a connection of their own, and return what is answered at first."""
    host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        for packet in packets:
            await stream.send(packet)
            await anyio.sleep(0.05)  # so that they arrive apart, which nothing here can see
        with anyio.fail_after(25):
            return await stream.receive()


@pytest.mark.heavy
async def test_next_request_with_the_same_headers_sees_every_change(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    keys = [key("ann", KEY), key("bob", OTHER)]
    plain: dict[str, Any] = {"auth": {"apiKeys": keys}, **DEV}
    async with running_gateway(tmp_path, {"up": server}, gateway=plain) as gateway:
        ann = {"authorization": f"Bearer {KEY}"}
        gateway.client.headers |= ann
        await gateway.until_listed("up__echo")

        status, words = await called(gateway, ann)
        assert (status, "heard" in words) == (200, True)
        rule = {"name": "no echo", "deny": ["up__echo"]}
        narrow, elsewhere = key("ann", KEY, scopes=["prompts"]), key("ann", KEY, profiles=["default"])
        for change, changed, expected, is_allowed in (
            ("a rule", {"policy": {"rules": [rule]}}, 400, False),
            ("no rule", {}, 200, True),
            ("a profile without the tool", {"profiles": {"dev": {"tools": ["other"]}}}, 200, False),
            ("no profile", {"profiles": {}}, 404, False),
            ("all as it was", {}, 200, True),
            ("a key of other scopes", {"auth": {"apiKeys": [narrow, keys[1]]}}, 400, False),
            ("a key for another profile", {"auth": {"apiKeys": [elsewhere, keys[1]]}}, 404, False),
            ("a quota", {"quotas": {"default": {"callsPerMinute": 1}}}, 429, False),
            ("no key", {"auth": {"apiKeys": [keys[1]]}}, 401, False),
            ("the key again", {}, 200, True),
        ):  # fmt: skip
            await reconfigure(gateway, {**plain, **changed})
            status, words = await called(gateway, ann)
            assert (status, "heard" in words) == (expected, is_allowed), (change, words)


async def test_cached_headers_do_not_reach_a_removed_profile(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, gateway=DEV) as gateway:
        await gateway.until_listed("up__echo")
        assert (await called(gateway))[0] == 200
        for profiles, expected in (({}, 404), ({"dev": {}}, 200)):
            await reconfigure(gateway, {"profiles": profiles})
            assert (await called(gateway))[0] == expected


@pytest.mark.heavy
async def test_expired_key_is_refused_for_the_same_headers(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    valid_s = await limit_now(6)
    ends = datetime.now(UTC) + timedelta(seconds=valid_s)
    keys = [key("ann", KEY, expires=ends.isoformat())]
    async with running_gateway(tmp_path, {"up": server}, gateway={"auth": {"apiKeys": keys}, **DEV}) as gateway:
        ann = {"authorization": f"Bearer {KEY}"}
        gateway.client.headers |= ann
        await gateway.until_listed("up__echo")
        assert (await called(gateway, ann))[0] == 200
        await anyio.sleep((ends - datetime.now(UTC)).total_seconds())
        assert (await called(gateway, ann))[0] == 401


async def test_caller_uses_one_account_for_all_requests(tmp_path: Path) -> None:
    own = {"callsPerMinute": 5}
    settings = {"auth": {"apiKeys": [key("ann", KEY, groups=["staff"])]}, "quotas": {"groups": {"staff": own}}}
    config = parse(json.dumps({"mcpServers": {}, "gateway": settings}), environ={})
    async with open_gateway(config, state_dir=tmp_path) as gateway:
        quotas, views = gateway.quotas, gateway.views
        resource = ProtectedResource(lambda: None, lambda: views.profiles)
        callers = Callers(gateway.authenticator, views, quotas, resource, gateway.audit)
        fields = [(b"authorization", f"Bearer {KEY}".encode())]
        head = RequestHead(b"POST", b"/mcp", fields, version="1.1", keep_alive=True)
        header_block = callers.parse_head(head, modern=True)

        def authenticate() -> AuthenticatedCaller:
            found = callers.admit(header_block, head, "127.0.0.1:9")
            assert isinstance(found, AuthenticatedCaller)
            return found

        first = authenticate()
        assert authenticate() is first
        assert first.account.limits.calls_per_minute == 5
        # A caller with the same name but other groups, as after the next token of an issuer, and back.
        assert quotas.account(replace(first.principal, groups=frozenset())) is first.account
        assert first.account.limits.calls_per_minute is None
        assert authenticate().account.limits.calls_per_minute == 5
        # This many other callers cause unused accounts to be dropped; a caller with two accounts would lose one.
        before = authenticate().account
        for number in range(10_001):
            quotas.account(Principal(name=f"other {number}"))
        assert quotas.account(first.principal) is not before
        assert authenticate().account is quotas.account(first.principal)
        assert authenticate() is authenticate()


async def test_refused_request_does_not_identify_the_next_one_in_its_packet(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    keys = [key("ann", KEY)]
    async with running_gateway(tmp_path, {"up": server}, gateway={"auth": {"apiKeys": keys}}) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        await gateway.until_listed("up__echo")
        body = json.dumps(call_of("up__echo", {"text": "heard"})).encode()
        lines = ["accept: application/json, text/event-stream", "mcp-protocol-version: 2026-07-28"]
        lines += ["mcp-method: tools/call", "mcp-name: up__echo"]

        def request(host: str, text: str) -> bytes:
            head = raw_post(body, *lines, f"authorization: Bearer {text}", host=host)
            return head.replace(b"connection: close\r\n", b"")

        good = request("127.0.0.1", KEY)
        # All three have the same length, and as many lines.
        for bad, status in ((request("127.0.0.1", OTHER), 401), (request("evil.test", KEY), 421)):
            for sent in ((bad + good,), (good + bad,), (bad, good), (bad[:-9], bad[-9:] + good)):
                await first_answer(gateway, *sent)
                assert status_of(await first_answer(gateway, bad)) == status, sent
        assert status_of(await first_answer(gateway, good)) == 200
