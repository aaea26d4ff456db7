"""Real authorization servers: strict where the specification protects users, lenient elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.lying import Lying, lying_server
from support.tasks import owned_tasks

from gateway.config.upstream_types.http_config import HttpConfig
from gateway.process.tasks import OwnedTasks
from gateway.upstream.oauth.authorization import Addresses
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_store import MemoryTokenStore
from gateway.upstream.upstream_credentials import NotSignedIn, SignInFailed

CALLBACK = "http://127.0.0.1:8765/oauth/callback"


def sign_ins_of(tasks: OwnedTasks) -> SignIns:
    return SignIns(tasks, MemoryTokenStore(), Addresses(redirect_uri=lambda: CALLBACK))


@asynccontextmanager
async def lying(**auth: Any) -> AsyncIterator[tuple[Lying, SignIns, SignIn]]:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        sign_ins = sign_ins_of(tasks)
        config = HttpConfig.model_validate({"url": server.url, **({"auth": auth} if auth else {})})
        sign_in = sign_ins.get("s", config)
        assert sign_in is not None
        await sign_in.prepare()
        yield server, sign_ins, sign_in
        sign_ins.close()


def back_from(link: str) -> str:
    """The query with which a browser comes back that has followed a link."""
    return f"code=abc&state={parse_qs(urlsplit(link).query)['state'][0]}"


async def refused(sign_in: SignIn, challenge: str = 'Bearer scope="mcp"') -> bool:
    return await sign_in.handle_refusal(401, challenge, sign_in.version)


METADATA_PATH = "/.well-known/oauth-authorization-server"


async def signs_in(server: Lying, sign_ins: SignIns, sign_in: SignIn) -> dict[str, list[str]]:
    """Sign in as a person does; returns the form that the token endpoint was sent."""
    with pytest.raises(NotSignedIn):
        await refused(sign_in)
    link = (await sign_in.create_link()).url
    await sign_ins.handle_callback(back_from(link))
    assert sign_in.headers == {"authorization": "Bearer t"}
    return parse_qs(server.forms[-1])


@pytest.mark.parametrize("named", ["", "/"])
@pytest.mark.parametrize("own", ["", "/"])
@pytest.mark.parametrize("path", ["", "/tenant"])
async def test_configured_issuer_is_used_as_written(named: str, own: str, path: str) -> None:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth(issuer=f"{server.origin}{path}{own}")
        server.paths[f"{METADATA_PATH}{path}"] = server.paths.pop(METADATA_PATH)
        prm = server.paths["/.well-known/oauth-protected-resource/mcp"]
        prm["authorization_servers"] = [f"{server.origin}{path}{named}"]
        sign_ins = sign_ins_of(tasks)
        auth = {"issuer": f"{server.origin}{path}{own}"}
        sign_in = sign_ins.get("s", HttpConfig.model_validate({"url": server.url, "auth": auth}))
        assert sign_in is not None
        await sign_in.prepare()
        await signs_in(server, sign_ins, sign_in)
        sign_ins.close()


async def test_issuer_differing_by_a_slash_is_refused_with_the_fix() -> None:
    async with lying() as (server, _, sign_in):
        server.tell_the_truth(issuer=f"{server.origin}/")
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        with pytest.raises(SignInFailed, match=f'add `"auth": {{"issuer": "{server.origin}/"}}`'):
            await sign_in.create_link()


@pytest.mark.parametrize("place", ["/tenant/.well-known/oauth-authorization-server", METADATA_PATH])
async def test_well_known_urls_are_tried_until_the_issuer_matches(place: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.tell_the_truth(issuer=f"{server.origin}/tenant")
        right = server.paths.pop(METADATA_PATH)
        prm = server.paths["/.well-known/oauth-protected-resource/mcp"]
        prm["authorization_servers"] = [f"{server.origin}/tenant"]
        other = {**right, "issuer": "https://other.example.test"}
        for wrong in (f"{METADATA_PATH}/tenant", "/tenant/.well-known/openid-configuration"):
            server.paths[wrong] = other
        server.paths[place] = right
        await signs_in(server, sign_ins, sign_in)


async def test_metadata_of_another_resource_does_not_hide_later_metadata() -> None:
    async with lying() as (server, sign_ins, sign_in):
        right = server.paths["/.well-known/oauth-protected-resource/mcp"]
        server.paths["/elsewhere"] = {**right, "resource": "https://evil.test/mcp"}
        with pytest.raises(NotSignedIn):
            await refused(sign_in, f'Bearer resource_metadata="{server.origin}/elsewhere"')
        await signs_in(server, sign_ins, sign_in)


@pytest.mark.parametrize("configured", [False, True])
async def test_resource_without_authorization_server_uses_its_own_or_the_configured_one(configured: bool) -> None:
    async with lying_server() as server, lying_server() as other, owned_tasks() as tasks:
        server.tell_the_truth()
        other.tell_the_truth()
        del server.paths["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"]
        sign_ins = sign_ins_of(tasks)
        auth = {"auth": {"issuer": other.origin}} if configured else {}
        sign_in = sign_ins.get("s", HttpConfig.model_validate({"url": server.url, **auth}))
        assert sign_in is not None
        await sign_in.prepare()
        await signs_in(other if configured else server, sign_ins, sign_in)
        sign_ins.close()


@pytest.mark.parametrize(
    ("auth", "sent"),
    [({}, "url"), ({"resource": True}, "url"), ({"resource": False}, None), ({"resource": "api://x"}, "api://x")],
)
async def test_resource_indicator_follows_the_configuration(auth: dict[str, Any], sent: str | None) -> None:
    async with lying(**auth) as (server, sign_ins, sign_in):
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        link = (await sign_in.create_link()).url
        await sign_ins.handle_callback(back_from(link))
        await refused(sign_in)
        expected = None if sent is None else [server.url if sent == "url" else sent]
        code, refresh = (parse_qs(form) for form in server.forms[-2:])
        assert refresh["grant_type"] == ["refresh_token"]
        for found in (parse_qs(urlsplit(link).query), code, refresh):
            assert found.get("resource") == expected


@pytest.mark.parametrize("auth", [{"resource": ""}, {"resource": "a\nb"}, {"resource": 7}])
def test_resource_setting_must_be_a_boolean_or_string(auth: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="resource"):
        HttpConfig.model_validate({"url": "https://mcp.example.test/mcp", "auth": auth})


async def test_token_exchange_can_omit_the_resource() -> None:
    auth = {
        "type": "tokenExchange", "clientId": "c", "clientSecret": "the secret of the client",
        "subjectToken": "the-token-of-the-workload", "resource": False,
    }  # fmt: skip
    async with lying(**auth) as (server, _, sign_in):
        assert await refused(sign_in)
        assert "resource" not in parse_qs(server.forms[-1])


class Registrar:
    """Clients of an authorization server that keeps them in memory."""

    def __init__(self, server: Lying) -> None:
        self.server = server
        self.known: set[str] = set()
        self.made = 0
        server.paths |= {"/register": self.register, "/authorize": self.authorize}
        self.page: Any = (400, {"error": "invalid_client"})

    async def register(self, _: object) -> Any:
        self.made += 1
        self.known.add(f"client-{self.made}")
        return (201, {"client_id": f"client-{self.made}"})

    async def authorize(self, _: object) -> Any:
        target = self.server.requests[-1].partition(" ")[2]
        return (200, {}) if parse_qs(urlsplit(target).query)["client_id"][0] in self.known else self.page


@pytest.mark.parametrize(
    "page",
    [
        (400, {"error": "invalid_client"}),
        (401, {"error": "unauthorized"}),
        (422, {}),
        (302, {}, {"location": f"{CALLBACK}?error=unauthorized_client&state=x"}),
        (302, {}, {"location": f"{CALLBACK}?error=invalid_client&state=x"}),
    ],
)
@pytest.mark.parametrize("refresh", ["r", None])
async def test_client_forgotten_by_the_server_is_registered_again(page: Any, refresh: str | None) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        registrar.page = page
        server.paths["/token"] = {"access_token": "t", "token_type": "Bearer", "refresh_token": refresh}
        await signs_in(server, sign_ins, sign_in)
        registrar.known.clear()
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        assert "client_id=client-2" in (await sign_in.create_link()).url
        # The next link works.
        assert "client_id=client-2" in (await sign_in.create_link()).url


async def test_registered_client_is_reused() -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        await signs_in(server, sign_ins, sign_in)
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        assert "client_id=client-1" in (await sign_in.create_link()).url
        assert registrar.made == 1


@pytest.mark.parametrize("signed_in", [True, False])
async def test_sign_out_forgets_a_registered_client(signed_in: bool) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        # The issuer does not tell the gateway that it has forgotten the client; only the user at the browser sees it.
        registrar.page = (200, {})
        await signs_in(server, sign_ins, sign_in)
        if not signed_in:
            server.paths["/token"] = (400, {"error": "invalid_grant"})
            with pytest.raises(NotSignedIn):
                await refused(sign_in)
        assert await sign_ins.sign_out(sign_in) is signed_in
        assert "client_id=client-2" in (await sign_in.create_link()).url


@pytest.mark.parametrize("way", ["code", "browser"])
async def test_browser_continues_with_a_new_client_after_a_refusal(way: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        registrar.page = (200, {})
        await signs_in(server, sign_ins, sign_in)
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        link = (await sign_in.create_link()).url
        server.paths["/token"] = (401, {"error": "invalid_client"})
        state = parse_qs(urlsplit(link).query)["state"][0]
        back = back_from(link) if way == "code" else f"error=unauthorized_client&state={state}"
        goes_on = (await sign_ins.handle_callback(back)).redirect_url
        assert "client_id=client-2" in str(goes_on)
        # A new client that is refused as well is a refusal, and no loop.
        with pytest.raises(SignInFailed, match=r"invalid_client|unauthorized_client"):
            await sign_ins.handle_callback(back.replace(state, parse_qs(urlsplit(str(goes_on)).query)["state"][0]))


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"client_id": "c", "client_secret": None}),
        (202, {"client_id": "c", "client_secret": ""}),
        (201, {"client_id": 7}),
        (201, {"client_id": "c", "client_secret": "s", "client_secret_expires_at": "0"}),
        (201, {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 10**400}),
    ],
)
async def test_registration_answers_of_real_servers_are_accepted(answer: Any) -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.paths["/register"] = answer
        await signs_in(server, sign_ins, sign_in)


async def test_token_endpoint_may_answer_form_encoded() -> None:
    async with lying() as (server, sign_ins, sign_in):
        body = b"access_token=t&scope=repo%2Cgist&token_type=bearer"
        head = b"HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n"
        server.paths["/token"] = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        await signs_in(server, sign_ins, sign_in)


RESOURCE_PATH = "/.well-known/oauth-protected-resource"
OPENID_PATH = "/.well-known/openid-configuration"
TOKEN = {"access_token": "t", "token_type": "Bearer", "expires_in": 300, "refresh_token": "r"}
PAGE = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>"


def written(document: Any, *, kind: str = "application/json", before: bytes = b"", status: str = "200 OK") -> bytes:
    """An answer with a document in another form."""
    body = before + json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def moved(server: Lying, before: str, after: str, *, left: Any = None) -> None:
    """Answer a document at another path, and something else at its own."""
    server.paths[after] = server.paths.pop(before)
    if left is not None:
        server.paths[before] = left


def rewritten(server: Lying, path: str, **form: Any) -> None:
    """Answer the document at a path in another form."""
    server.paths[path] = written(server.paths[path], **form)


def changed(server: Lying, path: str, **members: Any) -> None:
    """Change members of the document at a path."""
    server.paths[path] = {**server.paths[path], **members}


OWN_RESOURCE = f"{RESOURCE_PATH}/mcp"
FAILURES = {
    "a page": PAGE, "401": (401, {}), "403": (403, {}), "405": (405, {}), "400": (400, {}), "410": (410, {}),
    "a list": [], "nothing": {}, "null": (200, None), "an error": {"error": "not found"}, "204": (204, {}),
    "a redirect to a login": (302, {}, {"location": "/login"}),
}  # fmt: skip
SERVERS: dict[str, Callable[[Lying], Any]] = {
    **{f"metadata of the resource at the root, {kind} before": partial(moved, before=OWN_RESOURCE,
        after=RESOURCE_PATH, left=left)
       for kind, left in FAILURES.items()},
    **{f"OpenID, {kind} before": partial(moved, before=METADATA_PATH, after=OPENID_PATH, left=left)
       for kind, left in FAILURES.items()},
    "metadata as text": partial(rewritten, path=METADATA_PATH, kind="text/plain"),
    "metadata as a page": partial(rewritten, path=METADATA_PATH, kind="text/html; charset=utf-8"),
    "metadata with a mark": partial(rewritten, path=METADATA_PATH, before=b"\xef\xbb\xbf"),
    "metadata of the resource as text": partial(rewritten, path=OWN_RESOURCE, kind="text/plain"),
    "metadata with nulls": partial(changed, path=METADATA_PATH, scopes_supported=None, revocation_endpoint=None,
        token_endpoint_auth_methods_supported=None, grant_types_supported=None, response_types_supported=None),
    "metadata with other types": partial(changed, path=METADATA_PATH, scopes_supported="a b", jwks_uri=7,
        token_endpoint_auth_methods_supported="none", authorization_response_iss_parameter_supported="no"),
    "two challenge methods": partial(changed, path=METADATA_PATH, code_challenge_methods_supported=["plain", "S256"]),
    "a resource with a slash": lambda server: changed(server, OWN_RESOURCE, resource=f"{server.url}/"),
    "the origin as the resource": lambda server: changed(server, OWN_RESOURCE, resource=server.origin),
    "a resource with nulls": partial(changed, path=OWN_RESOURCE, scopes_supported=None, bearer_methods_supported=None),
    "a second authorization server": lambda server: changed(
        server, OWN_RESOURCE, authorization_servers=[server.origin, "https://other.example.test"]),
    "an endpoint with a query": lambda server: changed(
        server, METADATA_PATH, authorization_endpoint=f"{server.origin}/authorize?tenant=a"),
    "a registration as text": lambda server: server.paths.update(
        {"/register": written({"client_id": "c"}, kind="text/plain", status="201 Created")}),
    "a registration with more": lambda server: server.paths.update(
        {"/register": (201, {"client_id": "c", "redirect_uris": [], "grant_types": None, "x": 1})}),
    "a registration as a post": lambda server: server.paths.update(
        {"/register": (200, {"client_id": "c", "client_secret": "s",
        "token_endpoint_auth_method": "client_secret_post"})}),
    "a token as text": lambda server: server.paths.update({"/token": written(TOKEN, kind="text/plain")}),
    "a token with a mark": lambda server: server.paths.update({"/token": written(TOKEN, before=b"\xef\xbb\xbf")}),
    "a token without a type": lambda server: server.paths.update({"/token": {"access_token": "t"}}),
    "a token with nulls": lambda server: server.paths.update(
        {"/token": dict.fromkeys(("token_type", "expires_in", "refresh_token", "scope"),
        None) | {"access_token": "t"}}),
    "a token with a list of scopes": lambda server: server.paths.update({"/token": {**TOKEN, "scope": ["mcp"]}}),
    "a token of 201": lambda server: server.paths.update({"/token": (201, TOKEN)}),
    "a token with a fraction": lambda server: server.paths.update({"/token": {**TOKEN, "expires_in": 299.5}}),
    "a token in capitals": lambda server: server.paths.update({"/token": {**TOKEN, "token_type": "BEARER"}}),
    "a token with an error that is null": lambda server: server.paths.update({"/token": {**TOKEN, "error": None}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", SERVERS)
async def test_sign_in_works_with_deviating_servers(kind: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        SERVERS[kind](server)
        await signs_in(server, sign_ins, sign_in)


CHALLENGES = {
    "none": "",
    "no parameters": "Bearer",
    "small letters": 'bearer realm="x"',
    "another scheme first": 'Basic realm="x", Bearer scope="mcp"',
    "an unquoted address": "Bearer resource_metadata=@/.well-known/oauth-protected-resource/mcp",
    "a relative address": 'Bearer resource_metadata="/.well-known/oauth-protected-resource/mcp"',
    "no address": 'Bearer resource_metadata=""',
    "words as an address": 'Bearer resource_metadata="see the documentation"',
    "an address of nothing": 'Bearer resource_metadata="@/nowhere"',
    "an address of a page": 'Bearer resource_metadata="@/page"',
    "an unfinished quote": 'Bearer error="invalid_token, resource_metadata=',
    "an older parameter": 'Bearer resource="@/mcp", authorization_uri="@/authorize"',
}


@pytest.mark.parametrize("kind", CHALLENGES)
async def test_challenge_in_any_form_leads_to_a_sign_in(kind: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.paths["/page"] = PAGE
        with pytest.raises(NotSignedIn):
            await refused(sign_in, CHALLENGES[kind].replace("@", server.origin))
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        assert sign_in.headers == {"authorization": "Bearer t"}
