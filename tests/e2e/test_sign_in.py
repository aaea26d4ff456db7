"""Sign-in to a protected server, with a real issuer and a server of the SDK."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm
from support.gateways import RunningGateway, brief_pause, running_gateway, serving, text_of
from support.hosts_connected import http_host, stdio_host
from support.issuer import MACHINE, RunningIssuer, running_issuer
from support.pace import limit_now
from support.protected import Protected, browse, command, link_of, protected_server


@asynccontextmanager
async def protected_gateway(
    tmp_path: Path, *, access_token_s: int = 300
) -> AsyncIterator[tuple[RunningIssuer, Protected, RunningGateway]]:
    """An issuer, the server `shop` that wants its tokens, and a gateway that has neither."""
    async with (
        running_issuer(opaque=True, access_token_s=access_token_s) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url}}) as gateway,
    ):
        yield issuer, upstream, gateway


async def until_state(gateway: RunningGateway, name: str, state: str, *, within_s: float = 25) -> dict[str, Any]:
    row: dict[str, Any] = {}
    with anyio.move_on_after(within_s):
        while True:
            row = await gateway.server(name)
            if row["state"] == state:
                return row
            await brief_pause()
    raise AssertionError(f"not {state}: {row}")


async def signed_in(gateway: RunningGateway, issuer: RunningIssuer, name: str = "shop") -> dict[str, Any]:
    """Sign in to a server that waits for it."""
    await until_state(gateway, name, "signInNeeded")
    answer = await gateway.admin(f"servers/{name}/sign-in", "POST")
    assert answer.status_code == 200, answer.text
    page = await browse(answer.json()["url"], issuer)
    assert page.status_code == 200, page.text
    return await until_state(gateway, name, "ready")


@pytest.mark.heavy
async def test_protected_server_is_used_after_one_sign_in(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, upstream, gateway):
        row = await until_state(gateway, "shop", "signInNeeded")
        assert "typegate login shop" in row["lastError"]
        assert row["signIn"]["signedIn"] is False
        row = await signed_in(gateway, issuer)
        assert row["lastError"] is None
        assert row["signIn"]["issuer"] == issuer.url
        assert row["signIn"]["scopes"] == ["mcp"]
        await gateway.until_listed("shop__whoami")
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        token = next(iter(upstream.seen))
        assert token not in gateway.logged()
        for path in ("servers", "config", "failures"):
            assert token not in (await gateway.admin(path)).text
        [kept] = (gateway.state_dir / "sign-ins").glob("sign-in-*.json")
        assert kept.stat().st_mode & 0o777 == 0o600
        assert (gateway.state_dir / "sign-ins").stat().st_mode & 0o777 == 0o700
        assert token in kept.read_text()
        # Another process of the same gateway is signed in at once.
        async with serving(gateway.config, tmp_path) as again:
            await until_state(again, "shop", "ready")
            assert text_of(await again.call("shop__whoami")) == "ann with mcp"


async def refreshes(issuer: RunningIssuer) -> list[dict[str, Any]]:
    """Return the requests for refresh tokens that the issuer received."""
    return [one for one in (await issuer.configure())["grants"] if one["grant_type"] == "refresh_token"]


@pytest.mark.heavy
async def test_three_processes_with_fifty_calls_use_each_refresh_token_once(tmp_path: Path) -> None:
    async with (
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url}}) as first,
        serving(first.config, tmp_path) as second,
        serving(first.config, tmp_path) as third,
    ):
        await signed_in(first, issuer)
        for gateway in (second, third):
            await until_state(gateway, "shop", "ready")
        results: list[str] = []

        async def call(gateway: RunningGateway) -> None:
            results.append(text_of(await gateway.call("shop__whoami")))

        for round_ in range(1, 4):
            upstream.refused.update(upstream.seen)
            results.clear()
            async with anyio.create_task_group() as group:
                for number in range(51):
                    group.start_soon(call, (first, second, third)[number % 3])
            assert results == ["ann with mcp"] * 51
            renewals = await refreshes(issuer)
            assert [one["ok"] for one in renewals] == [True] * round_
            # A token that is renewed because it was refused, and refused as soon, is not renewed again and again.
            await anyio.lowlevel.checkpoint()
        metrics = (await first.client.get(f"{first.origin}/metrics")).text
        assert 'typegate_token_refreshes_total{outcome="ok",server="shop"}' in metrics or round_ == 3


@pytest.mark.heavy
async def test_workers_share_one_sign_in_and_its_refreshes(tmp_path: Path) -> None:
    servers = {"shop": {"url": ""}}
    async with running_issuer(opaque=True, access_token_s=6) as issuer, protected_server(issuer) as upstream:
        servers["shop"]["url"] = upstream.url
        async with running_gateway(tmp_path, servers, arguments=("--workers", "3")) as gateway:
            await signed_in(gateway, issuer)
            with anyio.fail_after(25):
                while len(await refreshes(issuer)) < 1:
                    await brief_pause()
            for _ in range(12):
                assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
            renewals = await refreshes(issuer)
            assert all(one["ok"] for one in renewals)
            assert len(renewals) <= 3
            answer = await gateway.admin("servers/shop/sign-in", "DELETE")
            assert answer.json() == {"signedOut": True}
            row = await until_state(gateway, "shop", "signInNeeded")
            assert row["signIn"]["signedIn"] is False
            assert "POST /token/revocation" in (await issuer.configure())["requests"]


@pytest.mark.heavy
async def test_restart_keeps_the_sign_in_and_its_expiry(tmp_path: Path) -> None:
    async with running_issuer(opaque=True, access_token_s=300) as issuer, protected_server(issuer) as upstream:
        key = {"TYPEGATE_STATE_KEY": "a key of the test with enough characters"}
        async with running_gateway(tmp_path, {"shop": {"url": upstream.url}}, environment=key) as gateway:
            before = (await signed_in(gateway, issuer))["signIn"]
        for path in (tmp_path / "state" / "sign-ins").glob("*.json"):
            assert not any(token.encode() in path.read_bytes() for token in upstream.seen)
        async with serving(gateway.config, tmp_path, environment=key) as again:
            row = await until_state(again, "shop", "ready")
            assert row["signIn"]["expires"] == before["expires"]
            assert row["signIn"]["since"] == before["since"]
            assert await refreshes(issuer) == []


@pytest.mark.heavy
async def test_workers_encrypt_sign_ins_with_a_keyring_key(tmp_path: Path) -> None:
    backend = "keyrings.alt.file.PlaintextKeyring"
    ring = {"PYTHON_KEYRING_BACKEND": backend, "XDG_DATA_HOME": str(tmp_path / "data"), "TYPEGATE_STATE_KEY": "keyring"}
    async with running_issuer(opaque=True) as issuer, protected_server(issuer) as upstream:
        servers, workers = {"shop": {"url": upstream.url}}, ("--workers", "2")
        async with running_gateway(tmp_path, servers, arguments=workers, environment=ring) as gateway:
            await signed_in(gateway, issuer)
            for _ in range(6):
                assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        for path in (tmp_path / "state" / "sign-ins").glob("*.json"):
            assert not any(token.encode() in path.read_bytes() for token in upstream.seen)
        async with serving(gateway.config, tmp_path, environment=ring) as again:
            await until_state(again, "shop", "ready")


@pytest.mark.heavy
async def test_revoked_sign_in_is_required_again_and_the_list_is_kept(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, upstream, gateway):
        await signed_in(gateway, issuer)
        await gateway.until_listed("shop__whoami")
        [kept] = (gateway.state_dir / "sign-ins").glob("sign-in-*.json")
        tokens = json.loads(kept.read_text())["document"]
        form = {"token": tokens["tokens"]["refresh"], "client_id": tokens["client"]["client_id"]}
        await issuer.client.post(f"{issuer.url}/token/revocation", data=form)
        upstream.refused.update(upstream.seen)
        began = anyio.current_time()
        result = await gateway.call("shop__whoami")
        assert anyio.current_time() - began < await limit_now(3)
        assert result["isError"]
        text = text_of(result)
        assert "requires a user to sign in" in text
        assert "try again" not in text.lower()
        assert "Nothing was sent" in text
        await until_state(gateway, "shop", "signInNeeded")
        await gateway.until_listed("shop__whoami")
        # A later call is refused at once, too.
        began = anyio.current_time()
        assert (await gateway.call("shop__whoami"))["isError"]
        assert anyio.current_time() - began < await limit_now(3)
        await signed_in(gateway, issuer)
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"


@pytest.mark.heavy
async def test_unavailable_issuer_does_not_end_a_sign_in(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, upstream, gateway):
        await signed_in(gateway, issuer)
        await issuer.configure(fail={"/token": 503})
        upstream.refused.update(upstream.seen)
        result = await gateway.call("shop__whoami")
        assert result["isError"]
        assert "token cannot be refreshed" in text_of(result)
        row = await gateway.server("shop")
        assert row["state"] != "signInNeeded"
        assert row["signIn"]["signedIn"]
        await issuer.configure(fail={})
        await until_state(gateway, "shop", "ready", within_s=20)
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        assert (await refreshes(issuer))[-1]["ok"]


@pytest.mark.heavy
async def test_token_expiring_during_a_call_does_not_end_the_call(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path, access_token_s=4) as (issuer, upstream, gateway):
        await signed_in(gateway, issuer)
        results: list[str] = []

        async def slow() -> None:
            results.append(text_of(await gateway.call("shop__slow", timeout_s=30)))

        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            with anyio.fail_after(25):
                # Refreshed while it runs, and others are not held up by it.
                while len(await refreshes(issuer)) < 2:
                    assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
            upstream.hold.set()
        assert results == ["done"]


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_call_asks_its_user_to_sign_in_and_continues(tmp_path: Path, version: str) -> None:
    async with protected_gateway(tmp_path) as (issuer, _, gateway):
        await until_state(gateway, "shop", "signInNeeded")
        elicitations: list[dict[str, Any]] = []

        async with http_host(gateway.url, version, gateway.client) as host:

            def accept(method: str, params: dict[str, Any]) -> dict[str, Any]:
                elicitations.append(params)
                # Accepted when the browser is opened: the sign-in takes its time.
                host.group.start_soon(browse, params["url"], issuer)
                return {"action": "accept"}

            host.reply = accept
            # Until the sign-in, the gateway does not know the tools of the server.
            result = await host.call("shop__whoami", {})
        assert text_of(result) == "ann with mcp"
        assert [one["mode"] for one in elicitations] == ["url"]
        assert await until_state(gateway, "shop", "ready")


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_user_without_elicitation_gets_the_link_and_may_decline(tmp_path: Path, version: str) -> None:
    async with protected_gateway(tmp_path) as (issuer, _, gateway):
        await until_state(gateway, "shop", "signInNeeded")
        async with http_host(gateway.url, version, gateway.client, declared={}) as host:
            result = await host.call("shop__whoami", {})
        assert result["isError"]
        [link] = re.findall(r"http://\S+", text_of(result))
        assert link.startswith(f"{issuer.url}/auth?")

        async with http_host(gateway.url, version, gateway.client) as host:
            host.reply = lambda method, params: {"action": "decline"}
            result = await host.call("shop__whoami", {})
        assert result["isError"]
        assert "declined to sign in" in text_of(result)
        assert (await browse(link, issuer)).status_code == 200
        await until_state(gateway, "shop", "ready")
        # One use.
        assert (await browse(link, issuer)).status_code == 400


@pytest.mark.heavy
async def test_callers_of_a_shared_gateway_do_not_get_the_link(tmp_path: Path) -> None:
    keys = {"auth": {"apiKeys": [{"name": "ann", "key": "the key of ann, long enough"}]}}
    async with (
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url}}, gateway=keys) as gateway,
    ):
        await until_state(gateway, "shop", "signInNeeded")
        head = {"authorization": "Bearer the key of ann, long enough"}
        result = await gateway.call("shop__whoami", headers=head)
        assert "typegate login shop" in text_of(result)
        assert issuer.url not in text_of(result)


@pytest.mark.heavy
async def test_login_and_logout_commands_work(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, _, gateway):
        await until_state(gateway, "shop", "signInNeeded")
        url = ("--url", gateway.origin)
        async with command(gateway, "login", "shop", "--status", *url) as process:
            assert await process.wait() == 1
        async with command(gateway, "login", "shop", "--no-browser", *url) as process:
            page = await browse(await link_of(process), issuer)
            assert page.status_code == 200
            with anyio.fail_after(25):
                assert await process.wait() == 0
        await until_state(gateway, "shop", "ready")
        async with command(gateway, "login", "shop", "--status", *url) as process:
            assert await process.wait() == 0
        async with command(gateway, "logout", "shop", *url) as process:
            assert await process.wait() == 0
        await until_state(gateway, "shop", "signInNeeded")
        assert "POST /token/revocation" in (await issuer.configure())["requests"]
        async with command(gateway, "login", "nobody", *url) as process:
            assert await process.wait() == 1


@pytest.mark.heavy
async def test_login_without_a_browser_accepts_a_pasted_url(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, _, gateway):
        # This issuer does not ask for consent: its first answer has no code.
        answer = await gateway.admin("servers/shop/sign-in", "POST")
        await issuer.client.get(await issuer.approve(answer.json()["url"]))
        async with command(gateway, "login", "shop", "--no-browser", "--url", gateway.origin) as process:
            address = await issuer.approve(await link_of(process))
            assert process.stdin is not None
            await process.stdin.send(f"hello\n{address}\n".encode())
            with anyio.fail_after(25):
                assert await process.wait() == 0
        await until_state(gateway, "shop", "ready")


@pytest.mark.heavy
async def test_stdio_gateway_is_signed_in_from_the_command_line(tmp_path: Path) -> None:
    async with protected_gateway(tmp_path) as (issuer, _, gateway):
        await until_state(gateway, "shop", "signInNeeded")
        # The command serves only this server while it waits; the store is shared.
        async with command(gateway, "login", "shop", "--no-browser", "--config", str(gateway.config)) as process:
            assert (await browse(await link_of(process), issuer)).status_code == 200
            with anyio.fail_after(25):
                assert await process.wait() == 0
        await until_state(gateway, "shop", "ready")
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"


def key_pair() -> tuple[str, dict[str, Any]]:
    """A private key in PEM, and its public half as a JWK."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    jwk: dict[str, Any] = json.loads(ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key.public_key()))
    return pem, jwk


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["client_secret_basic", "client_secret_post", "private_key_jwt"])
async def test_client_credentials_need_no_user(tmp_path: Path, how: str) -> None:
    pem, jwk = key_pair()
    secret = "the secret: of+the client/%"
    grants = {"grant_types": ["client_credentials"], "redirect_uris": [], "response_types": []}
    proof = {"jwks": {"keys": [jwk]}} if how == "private_key_jwt" else {"client_secret": secret}
    client = {"client_id": "gateway", "token_endpoint_auth_method": how, **grants, **proof}
    (tmp_path / "key.pem").write_text(pem)
    own = {"privateKey": f"${{file:{tmp_path}/key.pem}}"} if "jwks" in proof else {"clientSecret": secret}
    way = {"clientAuth": "post"} if how == "client_secret_post" else {}
    auth = {"type": "clientCredentials", "clientId": "gateway", "scopes": "mcp", **own, **way}
    async with (
        running_issuer(opaque=True, clients=[MACHINE, client], access_token_s=5) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url, "auth": auth}}) as gateway,
    ):
        row = await until_state(gateway, "shop", "ready")
        assert text_of(await gateway.call("shop__whoami")) == "None with mcp"
        first = row["signIn"]["expires"]
        # A new token is requested before this one expires.
        with anyio.fail_after(25):
            while (await gateway.server("shop"))["signIn"]["expires"] == first:
                await brief_pause()
        assert text_of(await gateway.call("shop__whoami")) == "None with mcp"
        shown = json.dumps(row) + gateway.logged() + (await gateway.admin("config")).text
        assert secret not in shown
        assert "PRIVATE KEY" not in shown


@pytest.mark.heavy
async def test_preregistered_client_signs_in_with_its_redirect_uri(tmp_path: Path) -> None:
    client = {
        "client_id": "by-hand",
        "client_secret": "the secret of the client by hand",
        "redirect_uris": ["http://127.0.0.1/oauth/callback"],
        "application_type": "native",
        "grant_types": ["authorization_code", "refresh_token"],
    }
    auth = {"clientId": "by-hand", "clientSecret": client["client_secret"], "scopes": ["mcp", "read"]}
    async with (
        running_issuer(opaque=True, clients=[MACHINE, client], registration=False) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url, "auth": auth}}) as gateway,
    ):
        await signed_in(gateway, issuer)
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp read"
        assert "POST /reg" not in (await issuer.configure())["requests"]


@pytest.mark.heavy
async def test_operator_is_told_what_to_register_without_dynamic_registration(tmp_path: Path) -> None:
    async with (
        running_issuer(opaque=True, registration=False) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url}}) as gateway,
    ):
        await until_state(gateway, "shop", "signInNeeded")
        answer = await gateway.admin("servers/shop/sign-in", "POST")
        assert answer.status_code == 409
        reason = answer.json()["error"]
        assert "clientId" in reason
        assert f"{gateway.origin}/oauth/callback" in reason


@pytest.mark.heavy
async def test_gateway_with_a_public_url_uses_a_client_metadata_document(tmp_path: Path) -> None:
    public = "https://gateway.example.test"
    own = f"{public}/.well-known/oauth-client/typegate.json"
    document = {
        "client_id": own,
        "client_name": "typegate",
        "redirect_uris": [f"{public}/oauth/callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }
    async with (
        running_issuer(opaque=True, documents={own: document}) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url}}, gateway={"publicUrl": public}) as gateway,
    ):
        served = await gateway.client.get(f"{gateway.origin}/.well-known/oauth-client/typegate.json")
        assert served.json() == document
        await until_state(gateway, "shop", "signInNeeded")
        link = (await gateway.admin("servers/shop/sign-in", "POST")).json()["url"]
        assert parse_qs(urlsplit(link).query)["client_id"] == [own]
        for _ in range(2):
            callback = await issuer.approve(link)
            assert callback.startswith(f"{public}/oauth/callback?")
            page = await gateway.client.get(callback.replace(public, gateway.origin))
            if not page.is_redirect:
                break
            link = page.headers["location"]
        assert page.status_code == 200
        await until_state(gateway, "shop", "ready")


@pytest.mark.heavy
async def test_stdio_host_is_asked_to_sign_in(tmp_path: Path) -> None:
    async with running_issuer(opaque=True) as issuer, protected_server(issuer) as upstream:
        config = tmp_path / "typegate.json"
        config.write_text(json.dumps({"mcpServers": {"shop": {"url": upstream.url}}}))
        command = ["-m", "gateway", "stdio", "--config", str(config), "--state-dir", str(tmp_path / "state")]
        environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
        entry = {"command": sys.executable, "args": command, "env": environment}
        async with stdio_host(entry, "2025-11-25", tmp_path / "log") as host:

            def accept(method: str, params: dict[str, Any]) -> dict[str, Any]:
                host.group.start_soon(browse, params["url"], issuer)
                return {"action": "accept"}

            host.reply = accept
            assert text_of(await host.call("shop__whoami", {}, within_s=20)) == "ann with mcp"
            assert host.of("notifications/elicitation/complete")


@pytest.mark.heavy
async def test_sse_server_is_signed_in_to(tmp_path: Path) -> None:
    async with (
        running_issuer(opaque=True) as issuer,
        protected_server(issuer, sse=True) as upstream,
        running_gateway(tmp_path, {"shop": {"type": "sse", "url": upstream.url}}) as gateway,
    ):
        await signed_in(gateway, issuer)
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        upstream.refused.update(upstream.seen)
        # A request that was sent with the expired token is sent again with the next one.
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        assert [one["ok"] for one in await refreshes(issuer)] == [True]


@pytest.mark.heavy
async def test_single_user_gateway_uses_that_users_sign_in(tmp_path: Path) -> None:
    async with (
        running_issuer(opaque=True) as issuer,
        protected_server(issuer) as upstream,
        running_gateway(tmp_path, {"shop": {"url": upstream.url, "auth": {"perUser": True}}}) as gateway,
    ):
        await signed_in(gateway, issuer)
        assert text_of(await gateway.call("shop__whoami")) == "ann with mcp"
        kept = [json.loads(path.read_text()) for path in (gateway.state_dir / "sign-ins").glob("sign-in-*.json")]
        assert [one["document"]["principal"] for one in kept] == ["local"]


@pytest.mark.heavy
async def test_slow_issuer_delays_only_calls_that_need_its_token(tmp_path: Path) -> None:
    bank = {"command": sys.executable, "args": ["-m", "gateway.demo.bank"]}
    async with running_issuer(opaque=True) as issuer, protected_server(issuer) as upstream:
        async with running_gateway(tmp_path, {"shop": {"url": upstream.url}, "bank": bank}) as gateway:
            await signed_in(gateway, issuer)
            await gateway.until_listed("bank__get_bank_balance")
        upstream.refused.update(upstream.seen)
        await issuer.configure(delay={"/token": 4})
        async with serving(gateway.config, tmp_path) as again:
            await until_state(again, "bank", "ready")
            began = anyio.current_time()
            assert not (await again.call("bank__get_bank_balance", {"account_id": "1"})).get("isError")
            assert anyio.current_time() - began < 2
            assert text_of(await again.call("shop__whoami")) == "ann with mcp"
            # The time that it took is not taken for the silence of an old server.
            assert (await again.server("shop"))["protocol"] == "2026-07-28"
            assert [one["ok"] for one in await refreshes(issuer)] == [True]
