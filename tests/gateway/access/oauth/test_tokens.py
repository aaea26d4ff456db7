"""Cached tokens and issuer keys, with a clock controlled by the test."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from support.fake_issuer import SigningKey, answer, fake_issuer, other_key, part
from support.offline_issuer import START_S, Issuer, at_once, config_of, known, look

from gateway.access.oauth.access_tokens import Tokens
from gateway.access.oauth.key_set import GRACE_S, REFRESH_S, UNKNOWN_KEY_S, metadata_urls
from gateway.access.principal import Principal, Refusal
from gateway.config.auth_config import OAuthConfig
from gateway.http.http_client import HttpClient
from gateway.upstream.oauth.guarded_requests import IssuerFetch


async def test_principal_has_issuer_client_groups_claims_and_gateway_scopes() -> None:
    issuer = Issuer()
    claims = {
        "groups": ["a", "b", 7],
        "realm": {"roles": ["x"]},
        "email": "ann@example.test",
        "scope": "mcp tools:read",
    }
    async with known(issuer) as found:
        who = await look(found, issuer.token(**claims))
        assert isinstance(who, Principal)
        assert (who.name, who.issuer, who.client) == ("ann@id.example.test", issuer.url, "host")
        assert who.scopes == {"tools:read"}
        assert who.groups == {"a", "b", "7"}
        assert {("email", "ann@example.test"), ("groups", "a"), ("scope", "mcp"), ("scope", "tools:read")} <= who.claims
        assert not any(name in ("jti", "exp") for name, _ in who.claims)
        again = await look(found, issuer.token(**claims, jti="another"))
        assert again == who
        assert again is not who
        plain = await look(found, issuer.token(scope="mcp openid"))
        assert isinstance(plain, Principal)
        assert plain.scopes == frozenset()
        assert plain.identity == who.identity
    async with known(issuer, claims={"subject": "email", "groups": "realm.roles", "client": "azp"}) as found:
        who = await look(found, issuer.token(**claims, azp="other"))
        assert isinstance(who, Principal)
        assert (who.name, who.client, who.groups) == ("ann@example.test@id.example.test", "other", {"x"})


async def test_token_with_too_many_values_is_refused() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        refused = await look(found, issuer.token(groups=[f"g{number}" for number in range(1100)]))
        assert isinstance(refused, Refusal)
        assert "1024 values" in refused.description


async def test_keys_stay_valid_during_an_outage_for_a_limited_time() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Principal)
        issuer.down = True
        issuer.now_s += GRACE_S - 60
        assert isinstance(await look(found, issuer.token()), Principal)
        issuer.now_s += 120
        refused = await look(found, issuer.token())
        assert isinstance(refused, Refusal)
        assert (refused.status, refused.retry_after_s) == (503, 2)
        issuer.down = False
        issuer.now_s += 10
        assert isinstance(await look(found, issuer.token()), Principal)


async def test_withdrawn_key_stays_valid_for_its_cache_lifetime() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        old = issuer.keys[0]
        before = issuer.token(key=old)
        assert isinstance(await look(found, before), Principal)
        issuer.keys = [other_key("second")]
        assert isinstance(await look(found, issuer.token()), Principal)
        assert isinstance(at_once(found, before), Principal)
        assert isinstance(at_once(found, issuer.token(key=old, sub="bob")), Principal)
        issuer.now_s += REFRESH_S + 1
        refused = await look(found, issuer.token(key=old))
        assert isinstance(refused, Refusal)
        assert "does not publish" in refused.description


async def test_unknown_key_is_requested_once_a_minute_for_all_waiting_callers() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Principal)
        assert issuer.count("/jwks") == 1
        for number in range(50):
            assert isinstance(await look(found, issuer.token(key=other_key(f"made up {number}"))), Refusal)
        assert issuer.count("/jwks") == 2
        issuer.now_s += UNKNOWN_KEY_S + 1
        issuer.keys = [other_key("second")]
        outcomes: list[Principal | Refusal] = []

        async def come(subject: str) -> None:
            outcomes.append(await look(found, issuer.token(sub=subject)))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(come, f"s{number}")
        assert all(isinstance(one, Principal) for one in outcomes)
        assert issuer.count("/jwks") == 3


async def test_made_up_tokens_do_not_evict_valid_ones() -> None:
    issuer = Issuer()
    async with known(issuer, {"most_bad": 10, "most_good": 3}) as found:
        good = issuer.token()
        assert isinstance(await look(found, good), Principal)
        for number in range(100):
            assert isinstance(at_once(found, f"garbage {number}"), Refusal)
            forged = issuer.token(key=other_key("first"), sub=f"s{number}")
            assert isinstance(at_once(found, forged), Refusal)
        assert len(found._bad) == 10
        issuer.down = True
        assert isinstance(at_once(found, good), Principal)
        for number in range(5):
            assert isinstance(at_once(found, issuer.token(sub=f"s{number}")), Principal)
        assert len(found._good) == 3


async def test_refusals_are_cached_briefly_and_acceptances_until_the_token_expires() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        early = issuer.token(nbf=int(START_S) + 80)
        good = issuer.token()
        assert isinstance(await look(found, good), Principal)
        assert isinstance(at_once(found, early), Refusal)
        issuer.now_s += 31
        assert isinstance(at_once(found, early), Principal)
        issuer.now_s = START_S + 359
        assert isinstance(at_once(found, good), Principal)
        issuer.now_s = START_S + 361
        refused = at_once(found, good)
        assert isinstance(refused, Refusal)
        assert "expired" in refused.description


async def test_principal_is_revoked_if_a_new_configuration_would_refuse_it() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        kept, lost = await look(found, issuer.token(scope="mcp new")), await look(found, issuer.token())
        assert isinstance(kept, Principal)
        assert isinstance(lost, Principal)
        fetched = issuer.count("/jwks")
        found.replace(config_of(issuer, requiredScopes=["new"]))
        assert found.knows(kept)
        assert not found.may_finish(lost)
        refused = await look(found, issuer.token())
        assert isinstance(refused, Refusal)
        assert refused.status == 403
        await anyio.lowlevel.checkpoint()
        assert issuer.count("/jwks") <= fetched + 1
        found.replace(None)
        assert not found.accepted
        assert not found.may_finish(kept)


INTROSPECTION = {
    "introspection": {
        "endpoint": "https://id.example.test/introspect", "clientId": "gateway", "clientSecret": "a secret",
    }
}  # fmt: skip


@pytest.mark.parametrize(
    "changed_claims",
    [
        {"active": False}, {"active": "true"}, {"active": 1}, {}, {"active": True, "aud": None},
        {"active": True, "aud": "https://elsewhere.example.test"}, {"active": True, "iss": "https://elsewhere.example.test"},
        {"active": True, "token_type": "refresh_token"}, {"active": True, "token_type": "DPoP"},
        {"active": True, "exp": 1}, {"active": True, "sub": None},
    ],
)  # fmt: skip
async def test_opaque_token_is_refused_if_introspection_is_incomplete(changed_claims: dict[str, Any]) -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        answered = {**issuer.claims(), **changed_claims}
        issuer.active["opaque"] = {name: value for name, value in answered.items() if value is not None}
        if "active" not in changed_claims:
            issuer.active["opaque"].pop("active", None)
        refused = await look(found, "opaque")
        assert isinstance(refused, Refusal)
        assert (refused.status, refused.error) == (401, "invalid_token")


def test_metadata_urls_follow_the_order_of_the_specification() -> None:
    assert metadata_urls("https://id.test") == (
        "https://id.test/.well-known/oauth-authorization-server",
        "https://id.test/.well-known/openid-configuration",
    )
    assert metadata_urls("https://id.test/realms/a/") == (
        "https://id.test/.well-known/oauth-authorization-server/realms/a",
        "https://id.test/.well-known/openid-configuration/realms/a",
        "https://id.test/realms/a/.well-known/openid-configuration",
    )


async def unanswered(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def drops(writer: asyncio.StreamWriter) -> None:
    for _ in range(100):
        writer.write(b"HTTP/1.1 200 OK\r\nx: " if _ == 0 else b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


def responds(data: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return respond


HOSTILE = {
    "no answer": unanswered,
    "endless": endless,
    "drop by drop": drops,
    "an error": responds(answer({"keys": []}, "500 Oops")),
    "no JSON": responds(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n<p>"),
    "deep JSON": responds(answer(json.loads("[" * 900 + "]" * 900))),
    "a list": responds(answer([])),
    "no keys": responds(answer({"keys": []})),
    "keys that are none": responds(answer({"keys": [1, "x", None, {}, {"kty": "oct", "k": "AA", "kid": "first"}]})),
    "too many keys": responds(answer({"keys": [{"kty": "RSA", "kid": f"k{number}"} for number in range(200)]})),
    "malformed keys": responds(answer({"keys": [{"kty": "RSA", "kid": "first", "n": "!", "e": 5}]})),
    "a tiny key": responds(answer({"keys": [{"kty": "RSA", "kid": "first", "n": part(b"\xff" * 64), "e": "AQAB"}]})),
    "a huge key": responds(answer({"keys": [{"kty": "RSA", "kid": "first", "n": part(b"\xff" * 8000), "e": "AQAB"}]})),
    "elsewhere": responds(answer({}, "307 Moved", "location: http://192.0.2.1/jwks")),
    "in circles": responds(answer({}, "307 Moved", "location: /jwks")),
    "moved": responds(answer({}, "302 Found", "location: /other")),
    "compressed": responds(answer({"keys": []}, "200 OK", "content-encoding: gzip")),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_misbehaving_issuer_is_refused_without_delaying_others(name: str) -> None:
    async with fake_issuer() as issuer:
        issuer.behaviour["/jwks"] = HOSTILE[name]
        client = HttpClient()
        found = Tokens(config_of(issuer), IssuerFetch(client, within_s=0.3))
        async with anyio.create_task_group() as group:
            group.start_soon(found.run)
            with anyio.fail_after(25):
                refused = await look(found, issuer.token())
            assert isinstance(refused, Refusal), name
            assert refused.status in (401, 503)
            group.cancel_scope.cancel()
        client.close()


@pytest.mark.parametrize(
    "metadata",
    [
        None, [], {"jwks_uri": "{url}/jwks"}, {"issuer": "{url}/", "jwks_uri": "{url}/jwks"}, {"issuer": "{url}"},
        {"issuer": "{url}", "jwks_uri": "http://192.0.2.1/jwks"}, {"issuer": "{url}", "jwks_uri": "file:///etc/passwd"},
        {"issuer": "{url}", "jwks_uri": 7},
    ],
)  # fmt: skip
async def test_metadata_of_another_issuer_provides_no_keys(metadata: Any) -> None:
    issuer = Issuer()
    document = json.loads(json.dumps(metadata).replace("{url}", issuer.url))
    issuer.documents = {path.removeprefix(issuer.url): document for path in metadata_urls(issuer.url)}
    async with known(issuer) as found:
        refused = await look(found, issuer.token())
        assert isinstance(refused, Refusal)
        assert refused.status == 503
        assert issuer.count("/jwks") == 0


async def test_keys_not_meant_for_verification_are_ignored() -> None:
    issuer = Issuer()
    for members in ({"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "RS512"}, {"kty": "EC"}, {"d": "AQ"}):
        async with known(issuer) as found:
            issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **members}, other_key("second").public]}
            assert isinstance(await look(found, issuer.token()), Refusal), members


P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
EDWARDS, LARGE_EDWARDS = ed25519.Ed25519PrivateKey.generate(), ed448.Ed448PrivateKey.generate()


@pytest.mark.parametrize(
    ("accepted", "key", "key_says", "token_says", "is_usable"),
    [
        *(("EdDSA", EDWARDS, key_says, token_says, True)
          for key_says in (None, "EdDSA", "Ed25519") for token_says in ("EdDSA", "Ed25519")),
        *(("Ed25519", EDWARDS, key_says, token_says, True)
          for key_says in (None, "EdDSA", "Ed25519") for token_says in ("EdDSA", "Ed25519")),
        ("EdDSA", LARGE_EDWARDS, None, "Ed448", True),
        ("EdDSA", LARGE_EDWARDS, "Ed448", "EdDSA", True),
        ("Ed448", LARGE_EDWARDS, "EdDSA", "Ed448", True),
        ("ES256", P256, "ESP256", "ES256", True),
        ("ES256", P256, None, "ESP256", True),
        ("ESP256", P256, "ES256", "ES256", True),
        ("ESP384", P384, "ESP384", "ESP384", True),
        # Another curve, another hash, another family: not what the name says.
        ("Ed25519", LARGE_EDWARDS, None, "EdDSA", False),
        ("Ed25519", LARGE_EDWARDS, None, "Ed25519", False),
        ("Ed25519", LARGE_EDWARDS, None, "Ed448", False),
        ("Ed448", EDWARDS, None, "EdDSA", False),
        ("EdDSA", EDWARDS, None, "Ed448", False),
        ("EdDSA", LARGE_EDWARDS, None, "Ed25519", False),
        ("EdDSA", EDWARDS, "Ed448", "Ed25519", False),
        ("EdDSA", EDWARDS, "ES256", "EdDSA", False),
        ("EdDSA", EDWARDS, "unheard-of", "EdDSA", False),
        ("ES256", EDWARDS, None, "Ed25519", False),
        ("ES256", P384, None, "ESP256", False),
        ("ES384", P256, None, "ESP256", False),
        ("ESP256", P384, "ESP384", "ESP384", False),
        ("EdDSA", P256, None, "ES256", False),
        ("RS256", P256, None, "ESP256", False),
    ],
)  # fmt: skip
async def test_algorithm_is_recognized_by_each_of_its_names(
    accepted: str, key: Any, key_says: str | None, token_says: str, is_usable: bool
) -> None:
    issuer = Issuer(keys=[SigningKey("k", key)])
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, "alg": key_says}]}
    async with known(issuer, algorithms=[accepted]) as found:
        who = await look(found, issuer.token(algorithm=token_says))
        assert isinstance(who, Principal) is is_usable
        forged = issuer.token(algorithm=token_says, sub="bob")
        *head, _ = forged.split(".")
        wrong = ".".join([*head, issuer.token(algorithm=token_says).split(".")[2]])
        assert isinstance(await look(found, wrong), Refusal)


async def test_public_key_is_never_used_as_a_shared_secret() -> None:
    issuer = Issuer()
    async with known(issuer, algorithms=["RS256", "EdDSA", "Ed25519", "ESP256"]) as found:
        for name in ("none", "HS256", "HS512", "eddsa", "ed25519", "ES256K", "ES521", "RS512", ""):
            head, claims, signature = issuer.token().split(".")
            header = {**json.loads(base64.urlsafe_b64decode(head + "==")), "alg": name}
            for end in (signature, ""):
                token = f"{part(header)}.{claims}.{end}"
                assert isinstance(await look(found, token), Refusal), name
        assert isinstance(await look(found, issuer.token()), Principal)


@pytest.mark.parametrize(
    "change",
    [
        dict.fromkeys(("alg", "use", "key_ops", "x5c", "x5t", "x5u", "d", "p", "q", "oth", "exp", "unheard-of")),
        {"kid": None},
        {"x5t#S256": 5, "https://vendor.example/x": {"deep": [None, 1e300]}, "nbf": "soon", "revoked": None},
        {"key_ops": ["verify"]},
        {"key_ops": "verify"},
    ],
)
async def test_null_and_unknown_members_do_not_invalidate_a_key(change: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **change}]}
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Principal)
        assert isinstance(await look(found, issuer.token(header={"kid": None, "typ": None})), Principal)
        # The token is not signed with this key, whatever the name of the key.
        assert isinstance(await look(found, issuer.token(key=other_key("first"))), Refusal)
        assert isinstance(await look(found, issuer.token(key=other_key("second"))), Refusal)


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"key_ops": []}, {"d": "AQAB"}, {"alg": "RS512"}, {"kty": "EC"}],
)
async def test_key_for_another_purpose_does_not_verify(change: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **change}]}
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Refusal)


async def test_invalid_key_does_not_affect_the_others() -> None:
    issuer = Issuer()
    own = issuer.keys[0].public
    bad: list[Any] = [
        None,
        5,
        "key",
        [],
        {},
        {"kty": None},
        {"kty": ["RSA"]},
        {"kty": "oct", "k": "AQAB"},
        {"kty": "AKP", "alg": "ML-DSA-44"},
        {**own, "n": None},
        {**own, "n": 5},
        {**own, "n": "!"},
        {**own, "e": ""},
        {**own, "e": "AA"},
        {**own, "n": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB", "kid": "first"},
        {"kty": "EC", "crv": {}, "kid": "first"},
        {"kty": "OKP", "crv": "X25519", "x": "AQAB", "kid": "first"},
        {"kty": "OKP", "crv": "Ed25519", "kid": "first"},
        {**own, "alg": ["RS256"]},
        {**own, "use": ["sig"]},
        {**own, "kid": {"a": 1}, "n": []},
        {**own, "key_ops": {"a": 1}},
    ]
    issuer.documents["/jwks"] = {"keys": [*bad, *[{"kty": "oct"}] * 200, own]}
    async with known(issuer, algorithms=["RS256", "ES256", "EdDSA"]) as found:
        assert isinstance(await look(found, issuer.token(header={"kid": None})), Principal)
        assert isinstance(await look(found, issuer.token()), Principal)


@pytest.mark.parametrize(
    ("audience", "opened"),
    [
        ("https://gateway.example.test/mcp", None),
        ("https://gateway.example.test/mcp/", None),
        ("https://gateway.example.test/mcp/work", {"work"}),
        ("https://gateway.example.test/mcp/work/", {"work"}),
        ("https://gateway.example.test/mcp//", ()),
        ("https://gateway.example.test/mcp/work//", ()),
        ("https://gateway.example.test/", ()),
    ],
)
async def test_audience_may_end_with_a_slash(audience: str, opened: Any) -> None:
    issuer = Issuer()
    config = OAuthConfig.model_validate({"resource": "https://gateway.example.test", "issuers": [issuer.config()]})
    found = Tokens(config, issuer.fetch, clock=lambda: issuer.now_s)
    async with anyio.create_task_group() as group:
        group.start_soon(found.run)
        who = await look(found, issuer.token(aud=audience))
        group.cancel_scope.cancel()
    assert (who.profiles if isinstance(who, Principal) else ()) == opened
