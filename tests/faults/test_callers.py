"""Callers that send malformed, oversized, slow or forged requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of, handshake, hello, raw_exchange, raw_post, status_of
from support.gateways import RunningGateway, answer_of, running_gateway
from support.upstreams.running import Recording, builtin_tools, scripted_http_server, scripted_stdio_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def assert_still_serving(gateway: RunningGateway) -> None:
    with anyio.fail_after(20):
        result = await gateway.call("up__echo", {"still": "here"})
    assert result["structuredContent"] == {"still": "here"}


NO_REQUESTS = [
    (b"", -32700),
    (b"{", -32700),
    (b"\xff\xfe\x00", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"n":NaN}}', -32700),
    (b"[" * 200_000, -32700),
    (b'{"a":' * 60_000 + b"1" + b"}" * 60_000, -32700),
    (b"1234567890123456789" + b"0" * 5_000, -32700),
    (b"[]", -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', -32600),
    (b'"text"', -32600),
    (b"null", -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', -32600),
    (b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}', -32602),
]


@asynccontextmanager
async def serving_echo(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}, **options) as gateway:
        await gateway.until_listed("up__echo")
        yield gateway, record


async def test_invalid_request_is_refused_and_the_connection_continues(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, record):
        session = await handshake(gateway)
        for body, code in NO_REQUESTS:
            for headers in ({"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}, session.headers):
                with anyio.fail_after(20):
                    response = await gateway.post(None, headers, raw=body)
                answered = (response.status_code, response.json()["error"]["code"])
                assert answered == (400, code), (body[:80], headers, response.text)
        assert record.calls() == []
        await assert_still_serving(gateway)


async def test_wrong_types_in_params_are_errors_and_nothing_runs(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, record):
        session = await handshake(gateway)
        wrong: list[dict[str, Any]] = [{}, {"name": 5}, {"name": None}, {"name": ["up__echo"]}, {"name": {"a": 1}}]
        wrong += [{"name": "up__echo", "arguments": value} for value in ("text", 5, [1], True)]
        for params in wrong:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            for answer in (answer_of(await session.post(body)), await gateway.rpc("tools/call", params)):
                assert "error" in answer or answer["result"]["isError"] is True, answer
        for meta in (5, [], "text", None):
            body = call_of("up__echo")
            body["params"]["_meta"] = meta
            head = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "up__echo"}
            response = await gateway.post(body, head)
            assert (response.status_code, response.json()["error"]["code"]) == (400, -32602)
        assert record.calls() == []
        await assert_still_serving(gateway)


async def test_oversized_body_is_refused_without_being_read(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, _):
        with anyio.fail_after(25):
            declared = await raw_exchange(gateway, raw_post(b"", "content-length: 20971520", length=False))
            sent = await raw_exchange(gateway, raw_post(b" " * 20 * 2**20))
        assert status_of(declared) == 413
        # A caller that pushes on may find the connection reset before it has read the answer.
        assert status_of(sent) in (413, 0)
        await assert_still_serving(gateway)


async def test_endless_chunked_body_is_cut_off(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, _):
        host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        sent = 0
        with anyio.fail_after(25):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(raw_post(b"", "transfer-encoding: chunked", length=False))
                with suppress(anyio.BrokenResourceError):
                    while sent < 2**30:
                        await stream.send(chunk)
                        sent += len(chunk)
        assert sent < 64 * 2**20
        await assert_still_serving(gateway)


# Resolvers read some of these as addresses, and others as names.
NOT_QUITE_ADDRESSES = (
    "10.0.7.12.", "10.0.7", "0x0a00070c", "167774988", "010.0.7.12", "10.0.7.12.nip.example", "2001:db8::7",
    "[10.0.7.12]", "[2001:db8::7].example", "[fe80::1%25eth0]", "10.0.7.12:8765@evil.example",
)  # fmt: skip


async def test_foreign_origins_and_hosts_are_refused_on_every_path(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, _):
        body = json.dumps(hello()).encode()
        for origin in (
            "https://evil.example",
            "null",
            "http://127.0.0.1.evil.example",
            "http://localhost@evil.example",
            "",
        ):
            assert status_of(await raw_exchange(gateway, raw_post(body, f"origin: {origin}"))) == 403, origin
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "", *NOT_QUITE_ADDRESSES):
            assert status_of(await raw_exchange(gateway, raw_post(body, host=host))) == 421, host
        # Addresses are not resolved, so DNS rebinding is impossible; a page sends its Origin.
        for host in ("10.0.7.12:8765", "192.0.2.1", "[2001:db8::7]:8765", "[::ffff:10.0.0.1]"):
            assert status_of(await raw_exchange(gateway, raw_post(body, host=host))) == 200, host
            page = raw_post(body, "origin: https://evil.example", host=host)
            assert status_of(await raw_exchange(gateway, page)) == 403, host
        for path in ("admin/servers", "healthz"):
            response = await gateway.client.get(f"{gateway.origin}/{path}", headers={"host": "evil.example"})
            assert response.status_code == 421
        for origin in ("http://localhost:3000", "http://127.0.0.1"):
            assert status_of(await raw_exchange(gateway, raw_post(body, f"origin: {origin}"))) == 200, origin


async def test_path_traversal_finds_nothing(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, _):
        for path in (
            "/mcp/../admin/servers",
            "/mcp/..%2fadmin",
            "/../../etc/passwd",
            "//mcp",
            "/mcp/%2e%2e/healthz",
            "/x",
        ):
            received = await raw_exchange(gateway, raw_post(b"{}", path=path))
            assert status_of(received) == 404, (path, received)
            got = await raw_exchange(
                gateway, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
            )
            assert status_of(got) == 404, (path, got)


async def test_smuggled_and_malformed_requests_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, record):
        inner = json.dumps(call_of("up__echo")).encode()
        modern = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: up__echo")
        hidden = raw_post(inner, *modern)
        chunked = b"0\r\n\r\n" + hidden
        attempts = [
            raw_post(chunked, "transfer-encoding: chunked", f"content-length: {len(chunked)}", length=False),
            raw_post(hidden, "content-length: 0", f"content-length: {len(hidden)}", length=False),
            raw_post(chunked, "transfer-encoding: xchunked", length=False),
            raw_post(chunked, "transfer-encoding : chunked", length=False),
            raw_post(hidden, "content-length: +5", length=False),
            PREFACE,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
            b"GET /mcp\r\n\r\n",
            raw_post(inner, *modern).replace(b"host: 127.0.0.1\r\n", b""),
            raw_post(inner, *modern, "host: localhost"),
            b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx: a\x00b\r\n\r\n",
        ]
        for attempt in attempts:
            received = await raw_exchange(gateway, attempt, within_s=20)
            assert status_of(received) in (0, 400, 501, 505), (attempt[:200], received)
            assert received.count(b"HTTP/1.1 ") <= 1, (attempt[:200], received)
        assert record.calls() == []
        await assert_still_serving(gateway)


DISAGREEING: list[dict[str, str]] = [
    {"mcp-method": "tools/list"},
    {"mcp-method": ""},
    {"mcp-name": "up__other"},
    {"mcp-name": ""},
    {"mcp-name": "=?base64?!!!?="},
    {"mcp-protocol-version": "2026-07-29"},
    {"mcp-protocol-version": "2025-11-25"},
]


async def test_header_contradicting_its_body_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    async with serving_echo(tmp_path) as (gateway, record):
        for headers in DISAGREEING:
            response = await gateway.post(call_of("up__echo", request_id="mine"), headers)
            assert (response.status_code, response.json()["error"]["code"]) == (400, -32020), (headers, response.text)
            assert response.json()["id"] == "mine"
        without = call_of("up__echo")
        del without["params"]["_meta"]
        bare = await gateway.post(without, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"})
        assert bare.status_code == 400
        assert record.calls() == []
        await assert_still_serving(gateway)


async def test_session_belongs_to_its_principal_and_unknown_ids_are_404(tmp_path: Path) -> None:
    server, record = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    keys = [{"name": "ann", "key": "key-of-ann"}, {"name": "bob", "key": "key-of-bob"}]
    async with running_gateway(tmp_path, {"up": server}, gateway={"auth": {"apiKeys": keys}}) as gateway:
        for wrong in (
            {},
            {"authorization": "Bearer nobody"},
            {"authorization": "Basic key-of-ann"},
            {"authorization": "Bearer"},
        ):
            refused = await gateway.post(hello(), wrong)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert (await gateway.client.get(gateway.url, headers=wrong)).status_code == 401
        ann, bob = "Bearer key-of-ann", "Bearer key-of-bob"
        gateway.client.headers["authorization"] = ann
        await gateway.until_listed("up__echo")
        del gateway.client.headers["authorization"]
        session = await handshake(gateway, authorization=ann)
        assert (await session.call("up__echo"))["result"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "up__echo"}}
        stolen = {**session.headers, "authorization": bob, "accept": "text/event-stream, application/json"}
        assert (await gateway.post(body, stolen)).status_code == 404
        assert (await gateway.client.get(gateway.url, headers=stolen)).status_code == 404
        assert (await gateway.client.delete(gateway.url, headers=stolen)).status_code == 404
        forged = {**session.headers, "mcp-session-id": "f" * 32}
        assert (await gateway.post(body, forged)).status_code == 404
        assert (await gateway.client.delete(gateway.url, headers=session.headers)).status_code in (200, 204)
        assert (await gateway.post(body, session.headers)).status_code == 404
        assert (await gateway.client.delete(gateway.url, headers=session.headers)).status_code == 404
        assert len(record.calls()) == 1
        log = gateway.logged()
        assert "key-of-ann" not in log
        assert "key-of-bob" not in log


@pytest.mark.parametrize("modern", [True, False])
async def test_caller_credentials_and_cookies_never_reach_an_upstream(tmp_path: Path, modern: bool) -> None:
    keys = [{"name": "ann", "key": "caller-secret-1"}]
    secrets = {
        "authorization": "Bearer caller-secret-1", "cookie": "sid=caller-secret-2", "x-api-key": "caller-secret-3",
        "proxy-authorization": "Basic caller-secret-4", "mcp-param-x": "caller-secret-5",
    }  # fmt: skip
    async with scripted_http_server(tmp_path, "up", tools=builtin_tools("echo"), modern=modern) as upstream:
        servers = {"up": {**upstream.config, "headers": {"Authorization": "Bearer own-credential"}}}
        async with running_gateway(tmp_path, servers, gateway={"auth": {"apiKeys": keys}}) as gateway:
            gateway.client.headers["authorization"] = secrets["authorization"]
            await gateway.until_listed("up__echo")
            assert (await gateway.call("up__echo", {"a": 1}, headers=secrets))["structuredContent"] == {"a": 1}
            session = await handshake(gateway, **secrets)
            assert (await session.call("up__echo", {"a": 2}))["result"]["structuredContent"] == {"a": 2}
            assert len(upstream.recording.calls()) == 2
            assert {one["headers"]["authorization"] for one in upstream.recording.http()} == {"Bearer own-credential"}
            assert "caller-secret" not in upstream.recording.path.read_text()
            assert "caller-secret" not in gateway.logged()
