"""Which pages may call: those of this machine, and the origins that the configuration names."""

from __future__ import annotations

from pathlib import Path

from support.gateways import running_gateway

ALLOWED = "https://app.example.test"


async def test_a_page_may_call_where_its_origin_is_named_and_on_every_path(tmp_path: Path) -> None:
    listen = {"listen": {"allowedOrigins": [ALLOWED, "HTTPS://Upper.Example.test:8443"]}}
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


async def test_without_any_named_origin_only_pages_of_this_machine_may_call(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        for origin, status in ((ALLOWED, 403), ("http://localhost:3000", 200), ("https://[::1]:9", 200)):
            answer = await gateway.client.get(f"{gateway.origin}/healthz", headers={"origin": origin})
            assert answer.status_code == status, origin
