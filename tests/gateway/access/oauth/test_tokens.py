"""What is known of tokens and of the keys of their issuers, by a clock of the test."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from support.fake_issuer import FakeIssuer, SigningKey, answer, fake_issuer, other_key, part

from gateway.access.authenticator import Refusal
from gateway.access.oauth.documents import Fetched, metadata_urls
from gateway.access.oauth.key_set import GRACE_S, REFRESH_S, UNKNOWN_KEY_S
from gateway.access.oauth.tokens import Tokens
from gateway.access.principal import Principal
from gateway.config.issuers import OAuthConfig
from gateway.errors import ConnectionLost
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.transport.issuer_fetch import IssuerFetch

START_S = 1_900_000_000.0


@dataclass
class Issuer(FakeIssuer):
    """An issuer without a socket: what it publishes is handed out."""

    url: str = "https://id.example.test"
    now_s: float = START_S
    down: bool = False
    opaque: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        path = url.removeprefix(self.url)
        self.requests.append(path)
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise ConnectionLost("it is down", sent=False)
        document = self._document(path, body)
        return Fetched(status=404 if document is None else 200, body=json.dumps(document).encode())

    def claims(self, **claims: Any) -> dict[str, Any]:
        return FakeIssuer.claims(self, **{"iat": int(self.now_s), "exp": int(self.now_s) + 300, **claims})


def config_of(issuer: FakeIssuer, **members: Any) -> OAuthConfig:
    return OAuthConfig.model_validate({"issuers": [issuer.config(**members)]})


@asynccontextmanager
async def known(issuer: Issuer, bounds: Mapping[str, Any] | None = None, **members: Any) -> AsyncIterator[Tokens]:
    """The tokens of an issuer, kept up to date within these bounds."""
    found = Tokens(config_of(issuer, **members), issuer.fetch, clock=lambda: issuer.now_s, **(bounds or {}))
    async with anyio.create_task_group() as group:
        group.start_soon(found.run)
        yield found
        group.cancel_scope.cancel()


async def look(found: Tokens, token: str) -> Principal | Refusal:
    """Who a token speaks for, by asking where that is needed."""
    seen = found.principal(token, hashlib.sha256(token.encode()).digest())
    if isinstance(seen, Principal | Refusal):
        return seen
    with anyio.fail_after(20):
        return await seen.verify()


def at_once(found: Tokens, token: str) -> Principal | Refusal | None:
    """The same without asking; None where somebody would have to be asked."""
    seen = found.principal(token, hashlib.sha256(token.encode()).digest())
    return seen if isinstance(seen, Principal | Refusal) else None


async def test_a_principal_has_issuer_client_groups_and_claims_and_our_own_scopes_only() -> None:
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


async def test_what_no_rule_could_be_written_about_in_full_is_refused_and_not_cut() -> None:
    issuer = Issuer()
    async with known(issuer) as found:
        refused = await look(found, issuer.token(groups=[f"g{number}" for number in range(1100)]))
        assert isinstance(refused, Refusal)
        assert "1024 values" in refused.description


async def test_keys_stay_good_through_an_outage_and_not_for_ever() -> None:
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


async def test_a_withdrawn_key_is_good_for_as_long_as_others_would_keep_it() -> None:
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


async def test_an_unknown_key_is_asked_for_once_a_minute_and_once_for_all_who_wait() -> None:
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


async def test_tokens_that_anybody_can_make_up_push_no_good_one_out() -> None:
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


async def test_a_refusal_is_forgotten_soon_and_a_verdict_ends_with_its_token() -> None:
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


async def test_whoever_holds_something_open_is_known_until_the_token_ends_by_the_second() -> None:
    issuer = Issuer()
    async with known(issuer, {"poll_s": 0.005}) as found:
        who = await look(found, issuer.token())
        assert isinstance(who, Principal)
        told = anyio.Event()
        found.on_change(told.set)
        assert found.knows(who)
        issuer.now_s += 301
        with anyio.fail_after(2):
            await told.wait()
        assert not found.knows(who)
        # Its next request is still granted what clocks may differ, and what it has begun ends as it began.
        assert found.may_finish(who)
        issuer.now_s += 100
        await anyio.sleep(0.02)
        assert found.may_finish(who)


async def test_what_another_configuration_would_not_give_is_taken_back() -> None:
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


async def test_an_opaque_token_is_looked_up_once_a_minute_and_ends_when_its_issuer_says_so() -> None:
    issuer = Issuer()
    async with known(issuer, {"poll_s": 0.005}, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        found.on_change(lambda: found.knows(who))  # as whoever has a stream open does
        for _ in range(10):
            assert at_once(found, "opaque") is who
        assert issuer.count("/introspect") == 1
        issuer.now_s += 55
        await anyio.sleep(0.05)
        assert issuer.count("/introspect") == 2
        assert at_once(found, "opaque") is who
        issuer.down = True
        issuer.now_s += 61
        await anyio.sleep(0.05)
        assert found.knows(who)  # nobody has said otherwise
        refused = await look(found, "opaque")
        assert isinstance(refused, Refusal)
        assert refused.status == 503
        issuer.down = False
        issuer.active["opaque"] = {"active": False}
        issuer.now_s += 61
        with anyio.fail_after(2):
            while found.may_finish(who):
                await anyio.sleep(0.01)
        refused = at_once(found, "opaque")
        assert isinstance(refused, Refusal)
        assert refused.error == "invalid_token"


async def test_a_stream_ends_soon_after_its_opaque_token_was_revoked() -> None:
    issuer = Issuer()
    async with known(issuer, {"poll_s": 0.005}, **INTROSPECTION) as found:
        issuer.active["opaque"] = {"active": True, **issuer.claims()}
        who = await look(found, "opaque")
        assert isinstance(who, Principal)
        ended = anyio.Event()

        def changed() -> None:
            if not found.knows(who):
                ended.set()

        found.on_change(changed)
        issuer.active["opaque"] = {"active": False}
        issuer.now_s += 6
        with anyio.fail_after(2):
            await ended.wait()
        assert issuer.count("/introspect") == 2


async def test_tokens_of_many_streams_are_looked_up_in_turn() -> None:
    issuer = Issuer()
    async with known(issuer, {"poll_s": 0.005}, **INTROSPECTION) as found:
        holders = []
        for number in range(100):
            issuer.active[f"opaque-{number}"] = {"active": True, **issuer.claims(sub=f"user-{number}")}
            holders.append(await look(found, f"opaque-{number}"))
        found.on_change(lambda: [found.knows(who) for who in holders if isinstance(who, Principal)])
        for rounds in (1, 2, 3):
            issuer.now_s += 6
            with anyio.fail_after(2):
                while issuer.count("/introspect") < 100 + 32 * rounds:
                    await anyio.sleep(0.005)
            await anyio.sleep(0.05)
            assert issuer.count("/introspect") == 100 + 32 * rounds


@pytest.mark.parametrize(
    "said",
    [
        {"active": False}, {"active": "true"}, {"active": 1}, {}, {"active": True, "aud": None},
        {"active": True, "aud": "https://elsewhere.example.test"}, {"active": True, "iss": "https://elsewhere.example.test"},
        {"active": True, "token_type": "refresh_token"}, {"active": True, "token_type": "DPoP"},
        {"active": True, "exp": 1}, {"active": True, "sub": None},
    ],
)  # fmt: skip
async def test_an_opaque_token_is_refused_unless_everything_is_said_of_it(said: dict[str, Any]) -> None:
    issuer = Issuer()
    async with known(issuer, **INTROSPECTION) as found:
        answered = {**issuer.claims(), **said}
        issuer.active["opaque"] = {name: value for name, value in answered.items() if value is not None}
        if "active" not in said:
            issuer.active["opaque"].pop("active", None)
        refused = await look(found, "opaque")
        assert isinstance(refused, Refusal)
        assert (refused.status, refused.error) == (401, "invalid_token")


def test_metadata_are_looked_for_in_the_order_of_the_specification() -> None:
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
async def test_an_issuer_that_misbehaves_opens_nothing_and_holds_nobody_up(name: str) -> None:
    async with fake_issuer() as issuer:
        issuer.behaviour["/jwks"] = HOSTILE[name]
        client = HttpClient()
        found = Tokens(config_of(issuer), IssuerFetch(client, within_s=0.3))
        async with anyio.create_task_group() as group:
            group.start_soon(found.run)
            with anyio.fail_after(5):
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
async def test_metadata_that_are_not_the_issuers_own_lead_to_no_key(metadata: Any) -> None:
    issuer = Issuer()
    said = json.loads(json.dumps(metadata).replace("{url}", issuer.url))
    issuer.documents = {path.removeprefix(issuer.url): said for path in metadata_urls(issuer.url)}
    async with known(issuer) as found:
        refused = await look(found, issuer.token())
        assert isinstance(refused, Refusal)
        assert refused.status == 503
        assert issuer.count("/jwks") == 0


async def test_keys_that_are_not_for_verifying_verify_nothing() -> None:
    issuer = Issuer()
    for members in ({"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "RS512"}, {"kty": "EC"}, {"d": "AQ"}):
        async with known(issuer) as found:
            issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **members}, other_key("second").public]}
            assert isinstance(await look(found, issuer.token()), Refusal), members


P256, P384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
EDWARDS, LARGE_EDWARDS = ed25519.Ed25519PrivateKey.generate(), ed448.Ed448PrivateKey.generate()


@pytest.mark.parametrize(
    ("accepted", "key", "key_says", "token_says", "is_good"),
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
async def test_an_algorithm_is_known_by_each_of_its_names_and_by_no_other(
    accepted: str, key: Any, key_says: str | None, token_says: str, is_good: bool
) -> None:
    issuer = Issuer(keys=[SigningKey("k", key)])
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, "alg": key_says}]}
    async with known(issuer, algorithms=[accepted]) as found:
        who = await look(found, issuer.token(algorithm=token_says))
        assert isinstance(who, Principal) is is_good
        forged = issuer.token(algorithm=token_says, sub="bob")
        *head, _ = forged.split(".")
        wrong = ".".join([*head, issuer.token(algorithm=token_says).split(".")[2]])
        assert isinstance(await look(found, wrong), Refusal)


async def test_no_public_key_is_a_shared_secret_whatever_a_token_says() -> None:
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
async def test_null_and_unknown_members_do_not_cost_a_key(change: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **change}]}
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Principal)
        assert isinstance(await look(found, issuer.token(header={"kid": None, "typ": None})), Principal)
        # By whatever name: it is not signed with this key.
        assert isinstance(await look(found, issuer.token(key=other_key("first"))), Refusal)
        assert isinstance(await look(found, issuer.token(key=other_key("second"))), Refusal)


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"key_ops": []}, {"d": "AQAB"}, {"alg": "RS512"}, {"kty": "EC"}],
)
async def test_a_key_that_is_for_something_else_verifies_nothing(change: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.documents["/jwks"] = {"keys": [{**issuer.keys[0].public, **change}]}
    async with known(issuer) as found:
        assert isinstance(await look(found, issuer.token()), Refusal)


async def test_no_key_costs_the_others() -> None:
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
async def test_an_audience_may_end_in_a_slash_as_the_path_of_a_profile_may(audience: str, opened: Any) -> None:
    issuer = Issuer()
    config = OAuthConfig.model_validate({"resource": "https://gateway.example.test", "issuers": [issuer.config()]})
    found = Tokens(config, issuer.fetch, clock=lambda: issuer.now_s)
    async with anyio.create_task_group() as group:
        group.start_soon(found.run)
        who = await look(found, issuer.token(aud=audience))
        group.cancel_scope.cancel()
    assert (who.profiles if isinstance(who, Principal) else ()) == opened
