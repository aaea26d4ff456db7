"""Access tokens over real connections: valid ones are accepted, others are refused with a reason."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.callers import call_of, get_stream, handshake, hello, listen_to, post_stream
from support.fake_issuer import AUDIENCE, FakeIssuer, SigningKey, fake_issuer, other_key, part
from support.gateways import RunningGateway, brief_pause, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server

RESOURCE = "https://gateway.example.test"
METADATA = f"{RESOURCE}/.well-known/oauth-protected-resource/mcp"


@asynccontextmanager
async def guarded(
    tmp_path: Path,
    issuer: FakeIssuer,
    *,
    auth: dict[str, Any] | None = None,
    arguments: tuple[str, ...] = (),
    **entry: Any,
) -> AsyncIterator[RunningGateway]:
    """A gateway with one server, which takes tokens of this issuer."""
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    server["copies"] = True  # each of several workers starts its own process
    entry = {"requiredScopes": ["mcp"], **entry}
    oauth = {"issuers": [issuer.config(**entry)], "resource": RESOURCE}
    settings = {"auth": {"oauth": oauth, **(auth or {})}, "profiles": {"sec": {}, "dev": {}}}
    async with running_gateway(tmp_path, {"up": server}, gateway=settings, arguments=arguments) as gateway:
        yield gateway


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}".strip()}


def challenge_of(response: httpx2.Response) -> dict[str, str]:
    """The parameters of a challenge."""
    header = response.headers["www-authenticate"]
    assert header.startswith("Bearer"), header
    return dict(re.findall(r'(\w+)="([^"]*)"', header))


async def opened(gateway: RunningGateway, token: str | None, path: str = "/mcp") -> httpx2.Response:
    """The answer to a handshake with a token."""
    head = {"accept": "application/json, text/event-stream", **(bearer(token) if token is not None else {})}
    return await gateway.client.post(gateway.origin + path, json=hello(), headers=head)


def bad_tokens(issuer: FakeIssuer) -> dict[str, tuple[str, str]]:
    """Every token that is not good, with a word of what is said about it."""
    now_s = int(time.time())
    public = issuer.keys[0].key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signing = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(issuer.claims())}"
    confused = f"{signing}.{part(hmac.digest(pem, signing.encode(), 'sha256'))}"
    good = issuer.token()
    head, claims, signature = good.split(".")
    return {
        "garbled": ("not a token at all", "malformed"),
        "empty": ("", "malformed"),
        "three parts of nothing": ("a.b.c", "malformed"),
        "huge": ("a" * 20_000, "too long"),
        "deep": (f"{part(b'[' * 3000)}.{part(b'[' * 3000)}.x", "malformed"),
        "deep claims": (f"{head}.{part(b'[' * 3000 + b']' * 3000)}.{signature}", "malformed"),
        "expired": (issuer.token(exp=now_s - 120), "has expired"),
        "without an end": (issuer.token(exp=None), "no exp"),
        "an end that is none": (issuer.token(exp="soon"), "exp of the token is not a time"),
        "an endless end": (f"{head}.{part(issuer.claims(exp=True))}.{signature}", "exp of the token is not a time"),
        "not yet valid": (issuer.token(nbf=now_s + 120), "not valid yet"),
        "from the future": (issuer.token(iat=now_s + 120), "in the future"),
        "foreign issuer": (issuer.token(iss="https://elsewhere.example.test"), "not accepted here"),
        "no issuer": (issuer.token(iss=None), "not accepted here"),
        "issuer with a slash": (issuer.token(iss=f"{issuer.url}/"), "not accepted here"),
        "foreign audience": (issuer.token(aud="https://elsewhere.example.test/mcp"), "another service"),
        "no audience": (issuer.token(aud=None), "no audience"),
        "almost our audience": (issuer.token(aud=f"{AUDIENCE}//"), "another service"),
        "alg none": (f"{part({'alg': 'none', 'typ': 'at+jwt'})}.{claims}.", "algorithm"),
        "alg None": (f"{part({'alg': 'None', 'typ': 'at+jwt'})}.{claims}.", "algorithm"),
        "HS256 with the public key": (confused, "algorithm"),
        "algorithm not in the list": (issuer.token(algorithm="RS512"), "algorithm"),
        "signature of somebody else": (issuer.token(key=other_key("first")), "signature"),
        "no signature": (f"{head}.{claims}.", "signature"),
        "claims of another": (f"{head}.{part(issuer.claims(sub='root'))}.{signature}", "signature"),
        "lacks the scope and the signature": (issuer.token(key=other_key("first"), scope="x"), "signature"),
        "an id token's kind": (issuer.token(header={"typ": "logout+jwt"}), "typ"),
        "critical extension": (issuer.token(header={"crit": ["exp"]}), "crit"),
        "bound to a key": (issuer.token(cnf={"jkt": "x"}), "bound"),
        "no subject": (issuer.token(sub=None), "no sub"),
        "a subject with a line break": (issuer.token(sub="ann\nroot"), "sub of the token"),
        "a long subject": (issuer.token(sub="a" * 300), "sub of the token"),
        "encrypted": (f"{good}.x.y", "malformed"),
    }  # fmt: skip


async def test_valid_token_is_accepted_and_each_invalid_one_refused_with_a_reason(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer) as gateway:
        gateway.client.headers.update(bearer(issuer.token()))
        await gateway.until_listed("up__echo")
        assert (await gateway.call("up__echo", {"text": "x"}))["content"]
        gateway.client.headers.pop("authorization")
        for name, (token, description) in bad_tokens(issuer).items():
            for _ in range(2):  # first as a new token, then from the cache
                response = await opened(gateway, token)
                assert response.status_code == 401, name
                challenge = challenge_of(response)
                assert challenge["error"] == "invalid_token", name
                assert description in challenge["error_description"], (name, challenge)
                assert (challenge["resource_metadata"], challenge["scope"]) == (METADATA, "mcp"), name
        assert (await opened(gateway, issuer.token())).status_code == 200
        # Unknown key ids cause at most one request a minute, whatever tokens name them.
        count_before = issuer.count("/jwks")
        for number in range(5):
            unknown = issuer.token(key=SigningKey(f"unknown {number}"))
            response = await opened(gateway, unknown)
            assert response.status_code == 401
            assert "does not publish" in challenge_of(response)["error_description"]
        assert issuer.count("/jwks") == count_before + 1
        assert "eyJ" not in gateway.logged()


async def test_missing_scope_or_token_is_answered_with_all_requirements(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, requiredScopes=["mcp", "tools:read"]) as gateway:
        nothing = await opened(gateway, None)
        assert nothing.status_code == 401
        assert challenge_of(nothing) == {"resource_metadata": METADATA, "scope": "mcp tools:read"}
        basic = await gateway.client.post(gateway.url, json=hello(), headers={"authorization": "Basic YTpi"})
        assert "error" not in challenge_of(basic)
        little = await opened(gateway, issuer.token(scope="mcp"))
        assert little.status_code == 403
        challenge = challenge_of(little)
        assert challenge["error"] == "insufficient_scope"
        assert (challenge["scope"], challenge["resource_metadata"]) == ("mcp tools:read", METADATA)
        # The broader scope implies the narrower.
        assert (await opened(gateway, issuer.token(scope="mcp tools"))).status_code == 200
        assert (await opened(gateway, issuer.token(scope=None, scp=["mcp", "tools:read"]))).status_code == 200


async def test_challenge_names_every_scope_of_a_long_list(tmp_path: Path) -> None:
    scopes = ["mcp", *(f"https://issuer.example.test/scopes/resource-{n:02}.read" for n in range(20))]
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, requiredScopes=scopes) as gateway:
        little = await opened(gateway, issuer.token(scope="mcp"))
        assert challenge_of(little)["scope"].split(" ") == scopes


@pytest.mark.parametrize("workers", [(), pytest.param(("--workers", "2"), marks=pytest.mark.heavy)])
async def test_each_profile_has_public_resource_metadata(tmp_path: Path, workers: tuple[str, ...]) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, arguments=workers) as gateway:
        well_known = f"{gateway.origin}/.well-known/oauth-protected-resource"
        for _ in range(4):
            for path, resource in (
                ("", "/mcp"),
                ("/mcp", "/mcp"),
                ("/mcp/sec", "/mcp/sec"),
                ("/mcp/default", "/mcp/default"),
            ):
                response = await gateway.client.get(well_known + path)
                assert response.status_code == 200, path
                assert response.headers["content-type"] == "application/json"
                assert response.json() == {
                    "resource": RESOURCE + resource,
                    "authorization_servers": [issuer.url],
                    "scopes_supported": ["mcp"],
                    "bearer_methods_supported": ["header"],
                }
        for path in ("/mcp/none", "/mcp/sec/x", "/other", "s"):
            assert (await gateway.client.get(well_known + path)).status_code == 404, path
        refused = await gateway.client.post(f"{well_known}/mcp", json={})
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        at_profile = await opened(gateway, None, "/mcp/sec")
        assert challenge_of(at_profile)["resource_metadata"] == f"{METADATA}/sec"


async def test_no_metadata_is_served_without_issuers(tmp_path: Path) -> None:
    async with running_gateway(
        tmp_path, {}, gateway={"auth": {"apiKeys": [{"name": "a", "key": "k" * 40}]}}
    ) as gateway:
        assert (
            await gateway.client.get(f"{gateway.origin}/.well-known/oauth-protected-resource/mcp")
        ).status_code == 404
        assert (await opened(gateway, None)).headers["www-authenticate"] == "Bearer"


@pytest.mark.heavy
async def test_token_for_one_profile_address_opens_no_other(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer) as gateway:
        seen: dict[tuple[str, str], int] = {}
        tokens = {
            "all": issuer.token(),
            "sec": issuer.token(aud=[f"{AUDIENCE}/sec"]),
            "both": issuer.token(aud=[f"{AUDIENCE}/sec", f"{AUDIENCE}/dev", "account"]),
        }
        for name, token in tokens.items():
            for path in ("/mcp/none", "/mcp", "/mcp/sec", "/mcp/dev"):  # every token is unknown the first time
                response = await opened(gateway, token, path)
                seen[name, path] = response.status_code
                if response.status_code == 401:
                    assert challenge_of(response)["error"] == "invalid_token"
        assert {pair for pair, status in seen.items() if status == 200} == {
            ("all", "/mcp"), ("all", "/mcp/sec"), ("all", "/mcp/dev"), ("sec", "/mcp/sec"), ("both", "/mcp/sec"),
            ("both", "/mcp/dev"),
        }  # fmt: skip
        assert seen["all", "/mcp/none"] == 404
        # A missing profile and a forbidden one get the same answer.
        assert seen["sec", "/mcp/none"] == seen["sec", "/mcp/dev"] == 401


@pytest.mark.heavy
async def test_refreshed_token_continues_its_session_and_no_other_token_does(tmp_path: Path) -> None:
    key = {"name": "ci", "key": "k" * 40}
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, auth={"apiKeys": [key]}) as gateway:
        session = await handshake(gateway, **bearer(issuer.token()))
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for same in (issuer.token(scope="mcp tools"), issuer.token(groups=["staff"])):
            session.headers.update(bearer(same))
            assert (await session.post(body)).status_code == 200
        others = [issuer.token(sub="bob"), issuer.token(client_id="another"), issuer.token(client_id=None), "k" * 40]
        for other in others:
            session.headers.update(bearer(other))
            assert (await session.post(body)).status_code == 404


@pytest.mark.heavy
async def test_keys_and_tokens_are_accepted_together(tmp_path: Path) -> None:
    auth = {"apiKeys": [{"name": "ci", "key": "k" * 40}]}
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, auth=auth) as gateway:
        for good in ("k" * 40, issuer.token()):
            assert (await opened(gateway, good)).status_code == 200
        assert (await opened(gateway, "k" * 39)).status_code == 401


async def test_ec_keys_and_tokens_without_a_key_id_are_accepted(tmp_path: Path) -> None:
    async with fake_issuer() as issuer:
        issuer.keys.append(SigningKey("curve", ec.generate_private_key(ec.SECP256R1())))
        async with guarded(tmp_path, issuer) as gateway:
            for token in (
                issuer.token(key=issuer.keys[1], algorithm="ES256"),
                issuer.token(header={"kid": None}),
                issuer.token(header={"typ": None}),
                issuer.token(header={"typ": "application/AT+JWT"}),
                issuer.token(exp=int(time.time()) - 30),  # within what clocks may differ
            ):
                response = await opened(gateway, token)
                assert response.status_code == 200, response.headers


@pytest.mark.heavy
async def test_call_is_logged_with_its_subject_and_without_the_token(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer, arguments=("--verbose",)) as gateway:
        token = issuer.token()
        gateway.client.headers.update(bearer(token))
        await gateway.until_listed("up__echo")
        assert (await gateway.post(call_of("up__echo", {"text": "x"}))).status_code == 200
        assert f"ann@{issuer.url.removeprefix('http://')}" in gateway.logged()
        assert token[:40] not in gateway.logged()
        record = (tmp_path / "up.record.jsonl").read_text()
        assert token[:20] not in record


@pytest.mark.heavy
async def test_expired_token_ends_its_streams_and_keeps_its_session(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer) as gateway:
        token = issuer.token(exp=int(time.time()) + 5)
        gateway.client.headers.update(bearer(token))
        await gateway.until_listed("up__echo")
        session = await handshake(gateway)
        async with post_stream(gateway, listen_to()) as listening, get_stream(session) as stream:
            await listening.next()
            assert await listening.rest(within_s=10) == []
            assert await stream.rest(within_s=1) == []
        gateway.client.headers.update(bearer(issuer.token()))
        assert (await session.call("up__echo", {"text": "x"}))["result"]
        async with get_stream(session):
            assert (await session.call("up__echo", {"text": "x"}))["result"]


@pytest.mark.heavy
async def test_session_rights_follow_its_latest_token_and_are_announced(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, guarded(tmp_path, issuer) as gateway:
        gateway.client.headers.update(bearer(issuer.token()))
        await gateway.until_listed("up__echo")
        session = await handshake(gateway)
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        gateway.client.headers.pop("authorization")
        session.headers.update(bearer(issuer.token()))
        assert "up__echo" in (await session.post(listing)).text
        async with get_stream(session) as stream:
            # Nothing of tools: our own words in its scope restrict it.
            session.headers.update(bearer(issuer.token(scope="mcp prompts")))
            assert "up__echo" not in (await session.post(listing)).text
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            session.headers.update(bearer(issuer.token()))
            assert "up__echo" in (await session.post(listing)).text


@pytest.mark.heavy
async def test_unavailable_issuer_keeps_known_tokens_valid_and_others_unjudged(tmp_path: Path) -> None:
    async with fake_issuer() as issuer:
        issuer.documents["/jwks"] = None
        async with guarded(tmp_path, issuer) as gateway:
            token = issuer.token()
            response = await opened(gateway, token)
            assert (response.status_code, response.headers["retry-after"]) == (503, "2")
            assert "www-authenticate" not in response.headers
            del issuer.documents["/jwks"]
            with anyio.fail_after(25):
                while (await opened(gateway, token)).status_code != 200:
                    await brief_pause()
            issuer.documents["/jwks"] = None
            for _ in range(3):
                assert (await opened(gateway, token)).status_code == 200
                assert (await opened(gateway, issuer.token(sub="bob"))).status_code == 200
        assert "cannot be fetched" in gateway.logged()
