"""Cross-origin requests: local origins and configured ones are allowed."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

ALLOWED = "https://app.example.test"
ISSUERS = [{"issuer": "http://127.0.0.1:9", "audiences": ["https://gate.example.test/mcp"]}]


async def test_named_origin_may_call_on_every_path(tmp_path: Path) -> None:
    listen = {"listen": {"allowedOrigins": [ALLOWED, "HTTPS://Upper.Example.test:8443/"]}}
    async with running_gateway(tmp_path, {}, gateway=listen) as gateway:
        for origin, allowed in (
            (ALLOWED, True),
            ("https://APP.example.test", True),
            ("https://upper.example.test:8443", True),
            ("http://localhost:3000", True),
            ("http://127.0.0.1", True),
            ("http://app.example.test", False),
            ("https://app.example.test:8443", False),
            ("https://app.example.test.evil.test", False),
            ("https://evil.test", False),
            ("https://upper.example.test", False),
            ("http://localhost.evil.test", False),
            ("http://localhost:80@evil.test", False),
            ("file://", False),
            ("null", False),
            ("", False),
        ):
            headers = {"origin": origin}
            for path in ("healthz", "readyz"):
                answer = await gateway.client.get(f"{gateway.origin}/{path}", headers=headers)
                assert answer.status_code == (200 if allowed else 403), (origin, path)
            listed = await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}, headers)
            assert (listed.status_code != 403) is allowed, origin
            admin = await gateway.client.get(f"{gateway.origin}/admin/servers", headers=headers)
            assert admin.status_code == (401 if allowed else 403), origin


async def test_only_local_origins_may_call_by_default(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        for origin, status in ((ALLOWED, 403), ("http://localhost:3000", 200), ("https://[::1]:9", 200)):
            answer = await gateway.client.get(f"{gateway.origin}/healthz", headers={"origin": origin})
            assert answer.status_code == status, origin


async def _preflight(gateway: RunningGateway, path: str, origin: str, **headers: str) -> httpx2.Response:
    head = {"origin": origin, "access-control-request-method": "POST", **headers}
    return await gateway.client.request("OPTIONS", gateway.origin + path, headers=head)


async def test_preflight_answer_lists_what_an_allowed_origin_may_send(tmp_path: Path) -> None:
    gateway_section = {
        "listen": {"allowedOrigins": [ALLOWED]},
        "auth": {"apiKeys": [{"name": "page", "key": "key-of-the-page-0123"}]},
        "profiles": {"work": {}},
    }
    async with running_gateway(tmp_path, {}, gateway=gateway_section) as gateway:
        for path in ("/mcp", "/mcp/", "/mcp/work", "/mcp/nothing", "/.well-known/oauth-protected-resource/mcp/work"):
            for origin, credentials in ((ALLOWED, "true"), ("http://localhost:6274", None)):
                wanted = {"access-control-request-headers": "Authorization, mcp-param-region,X-Trace"}
                answer = await _preflight(gateway, path, origin, **wanted)
                assert answer.status_code == 204, (path, answer.text)
                assert answer.headers["access-control-allow-origin"] == origin
                assert answer.headers.get("access-control-allow-credentials") == credentials
                allowed = answer.headers["access-control-allow-headers"].split(", ")
                for name in ("authorization", "mcp-param-region", "x-trace", "content-type", "mcp-protocol-version",
                             "mcp-session-id", "last-event-id"):  # fmt: skip
                    assert allowed.count(name) == 1
                assert {"GET", "POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))
                assert answer.headers["vary"] == "origin"
                assert answer.content == b""
        near = await _preflight(gateway, "/mcp", ALLOWED, **{"access-control-request-private-network": "true"})
        assert near.headers["access-control-allow-private-network"] == "true"
        for unclean in ("a b", "x-a\x85", "a:b", "x" * 5000):
            refused = await gateway.client.request(
                "OPTIONS", gateway.url, headers=[
                    (b"origin", ALLOWED.encode()), (b"access-control-request-method", b"POST"),
                    (b"access-control-request-headers", unclean.encode("latin-1")),
                ],
            )  # fmt: skip
            assert refused.status_code == 400, unclean
            assert "access-control-allow-headers" not in refused.headers
        # No page has any business at the administrators' address.
        assert (await _preflight(gateway, "/admin/servers", ALLOWED)).status_code != 204


async def test_other_origin_gets_no_information(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, gateway={"listen": {"allowedOrigins": [ALLOWED]}}) as gateway:
        for origin in ("https://evil.test", "null", "http://app.example.test", f"{ALLOWED}.evil.test"):
            for method, path in (("OPTIONS", "/mcp"), ("POST", "/mcp"), ("GET", "/mcp"), ("GET", "/healthz")):
                head = {"origin": origin, "access-control-request-method": "POST"}
                answer = await gateway.client.request(method, gateway.origin + path, headers=head)
                assert answer.status_code == 403
                assert not [name for name in answer.headers if name.startswith("access-control")]
        for path in ("/admin/servers", "/healthz", "/metrics"):
            answer = await gateway.client.get(gateway.origin + path, headers={"origin": ALLOWED})
            assert not [name for name in answer.headers if name.startswith("access-control")], path


async def test_allowed_page_may_read_every_answer_including_errors_and_streams(tmp_path: Path) -> None:
    upstream, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "progress"))
    section = {
        "listen": {"allowedOrigins": [ALLOWED]},
        "auth": {"apiKeys": [{"name": "page", "key": "key-of-the-page-0123"}], "oauth": {"issuers": ISSUERS}},
    }
    async with running_gateway(tmp_path, {"up": upstream}, gateway=section) as gateway:
        key = {"authorization": "Bearer key-of-the-page-0123"}
        page = {"origin": ALLOWED}

        def check(answer: httpx2.Response, status: int) -> None:
            assert answer.status_code == status, answer.text
            assert answer.headers.get_list("access-control-allow-origin") == [ALLOWED]
            assert answer.headers["access-control-allow-credentials"] == "true"
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"} <= set(exposed)
            assert "origin" in answer.headers["vary"]

        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
        first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        refused = await gateway.post(first, page)
        check(refused, 401)
        assert "resource_metadata=" in refused.headers["www-authenticate"]
        opened = await gateway.post(first, page | key)
        check(opened, 200)
        head = page | key | {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        for _ in range(3):  # the second one with this header block is not parsed again
            check(await gateway.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}, head), 200)
        call = {"name": "up__progress", "arguments": {"count": 3}, "_meta": {"progressToken": 7}}
        streamed = await gateway.post({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}, head)
        assert streamed.headers["content-type"] == "text/event-stream"
        check(streamed, 200)
        check(await gateway.post({}, head, raw=b"{"), 400)
        check(await gateway.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, head), 202)
        check(await gateway.post(first, head | {"content-type": "text/plain"}), 415)
        check(await gateway.post(first, head | {"accept": "text/html"}), 406)
        check(await gateway.client.put(gateway.url, headers=head), 405)
        check(await gateway.client.get(f"{gateway.url}/nothing", headers=head), 404)
        check(await gateway.client.delete(gateway.url, headers=head), 204)
        check(await gateway.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}, head), 404)
        check(await gateway.post({}, head, raw=b" " * (5 * 1024 * 1024)), 413)
        known = f"{gateway.origin}/.well-known/oauth-protected-resource"
        for path in ("", "/mcp", "/mcp/"):
            check(await gateway.client.get(known + path, headers=page), 200)
        check(await gateway.client.get(f"{known}/elsewhere", headers=page), 404)
        check(await gateway.client.get(f"{gateway.origin}/.well-known/oauth-authorization-server", headers=page), 404)
        # A cache must not serve a response without these headers to a page.
        plain = await gateway.client.get(known)
        assert plain.headers["vary"] == "origin"
        assert "access-control-allow-origin" not in plain.headers


async def test_hosts_of_the_public_urls_are_served(tmp_path: Path) -> None:
    oauth = {"resource": "https://gate.example.test:8443/tools/mcp", "issuers": ISSUERS}
    section = {"publicUrl": "https://pages.example.test", "auth": {"oauth": oauth}}
    async with running_gateway(tmp_path, {}, gateway=section) as gateway:
        for host, is_served in (
            ("gate.example.test:8443", True),
            ("pages.example.test", True),
            ("gate.example.test.evil.test", False),
            ("other.example.test", False),
        ):
            answer = await gateway.client.get(f"{gateway.origin}/healthz", headers={"host": host})
            assert answer.status_code == (200 if is_served else 421), host


@pytest.mark.heavy
async def test_trailing_slash_of_a_profile_path_is_ignored(tmp_path: Path) -> None:
    profiles = {"work": {}, "default": {}}
    async with running_gateway(tmp_path, {}, gateway={"profiles": profiles}) as gateway:
        for path in ("/mcp/", "/mcp/work", "/mcp/work/", "/mcp/default/"):
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
            sent = await gateway.client.post(gateway.origin + path, json=ping, headers={"accept": "*/*"})
            assert (sent.status_code, sent.json().get("result")) == (400, None), path
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "p", "version": "1"}}
            first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            opened = await gateway.client.post(gateway.origin + path, json=first)
            assert opened.status_code == 200, path
            head = {"mcp-session-id": opened.headers["mcp-session-id"]}
            other = path.removesuffix("/") if path.endswith("/") else f"{path}/"
            for each in (path, other):
                answer = await gateway.client.post(gateway.origin + each, json=ping, headers=head)
                assert answer.json()["result"] == {}, each
        for path in ("/mcp/work//", "/mcp/nothing/"):
            assert (await gateway.client.post(gateway.origin + path, json={})).status_code == 404, path
    section = {"profiles": profiles, "auth": {"oauth": {"issuers": ISSUERS}}}
    async with running_gateway(tmp_path, {}, gateway=section) as gateway:
        for path, named in (("/mcp/", "/mcp"), ("/mcp/work/", "/mcp/work")):
            answer = await gateway.client.post(gateway.origin + path, json={})
            metadata = answer.headers["www-authenticate"].split('resource_metadata="')[1].partition('"')[0]
            assert metadata.endswith(f"/.well-known/oauth-protected-resource{named}")
            assert (await gateway.client.get(metadata)).json()["resource"] == gateway.origin + named
