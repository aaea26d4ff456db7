"""`/me`: every request is authenticated as its caller, and answers nothing about others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from support.fake_issuer import FakeIssuer, fake_issuer
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import demo_config

pytestmark = pytest.mark.heavy

KEYS = {name: "tg_" + name[0] * 40 for name in ("ann", "bob", "cara")}
SETTINGS: dict[str, Any] = {
    "auth": {
        "apiKeys": [
            {"name": "ann", "key": KEYS["ann"], "profiles": ["small"]},
            {"name": "bob", "key": KEYS["bob"]},
            {"name": "cara", "key": KEYS["cara"]},
        ]
    },
    "profiles": {"small": {"servers": ["bank"]}},
}


async def ask(gateway: RunningGateway, method: str, path: str, name: str = "", **more: Any) -> Any:
    key = {"authorization": f"Bearer {KEYS.get(name, name)}"} if name else {}
    own = {**key, **more.pop("headers", {})}
    return await gateway.client.request(method, f"{gateway.origin}/me{path}", headers=own, **more)


async def test_page_of_callers_answers_each_caller_alone(tmp_path: Path) -> None:
    servers = {"bank": demo_config("bank"), "calendar": demo_config("calendar")}
    async with running_gateway(tmp_path, servers, gateway=SETTINGS) as gateway:
        bob = {"authorization": f"Bearer {KEYS['bob']}"}
        await gateway.until_listed("bank__get_bank_balance", "calendar__send_email", headers=bob)
        await gateway.call("bank__get_bank_balance", {"account_id": "secret-id"}, headers=bob)

        page = await ask(gateway, "GET", "")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert (await ask(gateway, "GET", "/page/me.js")).status_code == 200
        assert (await ask(gateway, "GET", "/page/app.js")).status_code == 404
        for name in ("", "wrong"):
            refused = await ask(gateway, "GET", "/state", name)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")

        found = (await ask(gateway, "GET", "/state", "bob")).json()
        assert {"bank__get_bank_balance", "calendar__send_email"} <= {row["name"] for row in found["tools"]}
        assert [row["wrapper"] for row in found["calls"]] == ["bank__get_bank_balance"]
        assert found["lastDay"]["calls"] == 1
        assert not {"peer", "session", "arguments", "principal"} & found["calls"][0].keys()

        found = (await ask(gateway, "GET", "/state", "ann")).json()
        assert (found["name"], found["profile"], [one["name"] for one in found["profiles"]]) == (
            "ann",
            "small",
            ["small"],
        )
        assert {row["server"] for row in found["tools"]} == {"bank"}
        assert (found["calls"], found["lastDay"]["calls"]) == ([], 0)
        assert (await ask(gateway, "GET", "/state?profile=default", "ann")).status_code == 404

        for other in ({"origin": "https://evil.test"}, {"sec-fetch-site": "cross-site"}):
            assert (await ask(gateway, "GET", "/state", "bob", headers=other)).status_code == 403
        assert (await ask(gateway, "POST", "/sign-in", "bob", json={"server": "bank"})).status_code == 404
        assert (await ask(gateway, "POST", "/sign-in", "bob", json={"srv": 1})).status_code == 400
        assert (await ask(gateway, "POST", "/sign-in", json={"server": "bank"})).status_code == 401
        assert (await ask(gateway, "GET", "/sign-in", "bob")).status_code == 405
        # The key of a caller opens nothing of the administrators.
        assert (await gateway.client.get(f"{gateway.origin}/admin/servers", headers=bob)).status_code == 401


async def test_page_of_callers_limits_searches_and_works_without_the_audit_log(tmp_path: Path) -> None:
    settings = {"auth": {"apiKeys": [{"name": "bob", "key": KEYS["bob"]}]}}
    async with running_gateway(tmp_path, {}, gateway=settings) as gateway:
        statuses: list[int] = []

        async def load() -> None:
            statuses.append((await ask(gateway, "GET", "/state", "bob", timeout=60)).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(load)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) > 16

        log = gateway.state_dir / "audit.jsonl"
        log.rename(gateway.state_dir / "moved")
        log.mkdir()
        found = (await ask(gateway, "GET", "/state", "bob")).json()
        assert (found["name"], found["calls"]) == ("bob", None)
        log.rmdir()


@asynccontextmanager
async def gateway_with_issuer(tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, FakeIssuer]]:
    """Start a gateway at whose page callers sign in with an issuer, and which has one server with accounts."""
    async with fake_issuer() as issuer:
        urls = {"jwks_uri": "jwks", "authorization_endpoint": "auth", "token_endpoint": "token"}
        issuer.documents["/.well-known/oauth-authorization-server"] = {
            **{name: f"{issuer.url}/{path}" for name, path in {**urls, "registration_endpoint": "reg"}.items()},
            "issuer": issuer.url,
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
        }
        issuer.documents |= {"/reg": {"client_id": "typegate"}, "/token": {"access_token": issuer.token()}}
        server = {"url": f"{issuer.url}/mcp", "auth": {"perUser": True, "issuer": issuer.url}}
        auth = {"apiKeys": [{"name": "bob", "key": KEYS["bob"]}], "oauth": {"issuers": [issuer.config()]}}
        async with running_gateway(tmp_path, {"shop": server}, gateway={"auth": auth}) as gateway:
            yield gateway, issuer


async def state_of_new_sign_in(gateway: RunningGateway, issuer: FakeIssuer, browser: httpx2.AsyncClient) -> str:
    """Start a sign-in in a browser, and return its state."""
    started = await browser.post(f"{gateway.origin}/me/provider", json={"issuer": issuer.url}, timeout=60)
    assert started.status_code == 200, started.text
    return parse_qs(urlsplit(started.json()["url"]).query)["state"][0]


async def test_tickets_are_not_accepted_as_the_state_of_a_sign_in(tmp_path: Path) -> None:
    async with gateway_with_issuer(tmp_path) as (gateway, issuer), httpx2.AsyncClient(timeout=30) as browser:
        callback = f"{gateway.origin}/oauth/callback?code=any&state="
        link = (await ask(gateway, "POST", "/sign-in", "bob", json={"server": "shop"})).json()["url"]
        for form in ("connect-{}", "link-{}", "{}"):
            sent = await browser.get(callback + form.format(link.partition("ticket=")[2]))
            assert (sent.status_code, "this sign-in is unknown" in sent.text) == (400, True)
        assert (await browser.get(link)).status_code == 200

        back = await browser.get(callback + await state_of_new_sign_in(gateway, issuer, browser))
        ticket = back.headers["location"].partition("#signed-in=")[2]
        access = issuer.documents["/token"]["access_token"]
        kept = [path.read_text() for path in (gateway.state_dir / "sign-ins").iterdir()]
        assert not [text for text in kept if access in text or ticket in text]
        for form in ("access-{}", "token-{}", "{}"):
            sent = await browser.get(callback + form.format(ticket))
            assert (sent.status_code, "this sign-in is unknown" in sent.text) == (400, True)
        token = await browser.post(f"{gateway.origin}/me/provider/token", json={"ticket": ticket})
        assert token.json() == {"token": access}


async def test_concurrent_sign_ins_share_one_registration(tmp_path: Path) -> None:
    async with gateway_with_issuer(tmp_path) as (gateway, issuer), httpx2.AsyncClient(timeout=30) as browser:
        for _ in range(2):
            before = issuer.count("/reg")
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(state_of_new_sign_in, gateway, issuer, browser)
            assert issuer.count("/reg") == before + 1
            # The issuer forgets the registration, and says so at its token endpoint.
            issuer.documents["/token"] = {"error": "invalid_client"}
            state = await state_of_new_sign_in(gateway, issuer, browser)
            refused = await browser.get(f"{gateway.origin}/oauth/callback?code=any&state={state}")
            assert (refused.status_code, "did not sign you in" in refused.text) == (400, True)
        assert "sign-in at the issuer failed" in gateway.logged()


async def test_stored_clients_of_another_version_are_registered_again(tmp_path: Path) -> None:
    async with gateway_with_issuer(tmp_path) as (gateway, issuer), httpx2.AsyncClient(timeout=30) as browser:
        await state_of_new_sign_in(gateway, issuer, browser)
        [path] = (gateway.state_dir / "sign-ins").glob("access-*.json")
        stored = json.loads(path.read_text())
        for other in (
            {"client": {"id": "typegate"}},
            {"client": 5},
            {"server": {"new": 1}},
            {"server": 5},
            {"scopes": 3},
        ):
            path.write_text(json.dumps({**stored, "document": {**stored["document"], **other}}))
            await state_of_new_sign_in(gateway, issuer, browser)
            assert json.loads(path.read_text())["document"]["client"]["client_id"] == "typegate"
        # A sign-in in progress fails with a reason.
        state = await state_of_new_sign_in(gateway, issuer, browser)
        for pending in (gateway.state_dir / "sign-ins").glob("pending-*.json"):
            stored = json.loads(pending.read_text())
            stored["document"]["kept"]["server"] = {"new": 1}
            pending.write_text(json.dumps(stored))
        refused = await browser.get(f"{gateway.origin}/oauth/callback?code=any&state={state}")
        assert (refused.status_code, "incompatible version" in refused.text) == (400, True)


async def test_one_address_cannot_start_sign_ins_without_limit(tmp_path: Path) -> None:
    async with gateway_with_issuer(tmp_path) as (gateway, issuer), httpx2.AsyncClient(timeout=30) as browser:
        body = {"issuer": issuer.url}
        statuses = [
            (await browser.post(f"{gateway.origin}/me/provider", json=body, timeout=60)).status_code for _ in range(201)
        ]
        assert (statuses.count(200), statuses[-1]) == (200, 409)
        other = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx2.AsyncClient(timeout=30, transport=other) as neighbour:
            await state_of_new_sign_in(gateway, issuer, neighbour)


async def test_one_caller_cannot_create_sign_in_links_without_limit(tmp_path: Path) -> None:
    servers = {"shop": {"url": "http://127.0.0.1:9/mcp", "auth": {"perUser": True}}}
    async with running_gateway(tmp_path, servers, gateway=SETTINGS) as gateway:
        body = {"server": "shop"}
        statuses = [(await ask(gateway, "POST", "/sign-in", "bob", json=body)).status_code for _ in range(201)]
        assert (statuses.count(200), statuses[-1]) == (200, 409)
        assert (await ask(gateway, "POST", "/sign-in", "cara", json=body)).status_code == 200


async def test_bodies_of_unknown_senders_are_refused_before_they_are_read(tmp_path: Path) -> None:
    async with gateway_with_issuer(tmp_path) as (gateway, _):
        for path in ("/me/provider", "/me/provider/token", "/me/sign-in", "/oauth/connect", "/healthz"):
            large = await gateway.client.post(gateway.origin + path, content=b"[" * 9_000)
            assert large.status_code == 413, path

            async def pieces() -> AsyncIterator[bytes]:
                yield b"[]"

            assert (await gateway.client.post(gateway.origin + path, content=pieces())).status_code == 411, path
