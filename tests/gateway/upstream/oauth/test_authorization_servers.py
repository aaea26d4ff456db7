"""Authorization servers as they are: the letter of the specifications where it protects somebody, and not beyond."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.lying import Lying, lying_server
from support.tasks import owned_tasks

from gateway.config.upstream_types.http_config import HttpConfig
from gateway.owned_tasks import OwnedTasks
from gateway.upstream.credentials import NotSignedIn, SignInFailed
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.store import MemoryStore

CALLBACK = "http://127.0.0.1:8765/oauth/callback"


def sign_ins_of(tasks: OwnedTasks) -> SignIns:
    return SignIns(tasks, MemoryStore(), Addresses(redirect_uri=lambda: CALLBACK))


@asynccontextmanager
async def lying(**auth: Any) -> AsyncIterator[tuple[Lying, SignIns, SignIn]]:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        sign_ins = sign_ins_of(tasks)
        config = HttpConfig.model_validate({"url": server.url, **({"auth": auth} if auth else {})})
        sign_in = sign_ins.of("s", config)
        assert sign_in is not None
        await sign_in.prepare()
        yield server, sign_ins, sign_in
        sign_ins.close()


def back_from(link: str) -> str:
    """The query with which a browser comes back that has followed a link."""
    return f"code=abc&state={parse_qs(urlsplit(link).query)['state'][0]}"


async def refused(sign_in: SignIn, challenge: str = 'Bearer scope="mcp"') -> bool:
    return await sign_in.refused(401, challenge, sign_in.version)


METADATA_PATH = "/.well-known/oauth-authorization-server"


async def signs_in(server: Lying, sign_ins: SignIns, sign_in: SignIn) -> dict[str, list[str]]:
    """Sign in as a person does; returns the form that the token endpoint was sent."""
    with pytest.raises(NotSignedIn):
        await refused(sign_in)
    link = (await sign_in.begin()).url
    await sign_ins.finish(back_from(link))
    assert sign_in.headers == {"authorization": "Bearer t"}
    return parse_qs(server.forms[-1])


@pytest.mark.parametrize("named", ["", "/"])
@pytest.mark.parametrize("own", ["", "/"])
@pytest.mark.parametrize("path", ["", "/tenant"])
async def test_the_issuer_of_the_entry_is_used_as_it_is_written(named: str, own: str, path: str) -> None:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth(issuer=f"{server.origin}{path}{own}")
        server.paths[f"{METADATA_PATH}{path}"] = server.paths.pop(METADATA_PATH)
        prm = server.paths["/.well-known/oauth-protected-resource/mcp"]
        prm["authorization_servers"] = [f"{server.origin}{path}{named}"]
        sign_ins = sign_ins_of(tasks)
        auth = {"issuer": f"{server.origin}{path}{own}"}
        sign_in = sign_ins.of("s", HttpConfig.model_validate({"url": server.url, "auth": auth}))
        assert sign_in is not None
        await sign_in.prepare()
        await signs_in(server, sign_ins, sign_in)
        sign_ins.close()


async def test_an_issuer_that_differs_by_a_slash_is_refused_with_what_to_write() -> None:
    async with lying() as (server, _, sign_in):
        server.tell_the_truth(issuer=f"{server.origin}/")
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        with pytest.raises(SignInFailed, match=f'write `"auth": {{"issuer": "{server.origin}/"}}`'):
            await sign_in.begin()


@pytest.mark.parametrize("place", ["/tenant/.well-known/oauth-authorization-server", METADATA_PATH])
async def test_every_well_known_place_is_tried_until_one_has_the_right_issuer(place: str) -> None:
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


async def test_metadata_of_another_resource_at_one_place_do_not_hide_the_right_ones_at_the_next() -> None:
    async with lying() as (server, sign_ins, sign_in):
        right = server.paths["/.well-known/oauth-protected-resource/mcp"]
        server.paths["/elsewhere"] = {**right, "resource": "https://evil.test/mcp"}
        with pytest.raises(NotSignedIn):
            await refused(sign_in, f'Bearer resource_metadata="{server.origin}/elsewhere"')
        await signs_in(server, sign_ins, sign_in)


@pytest.mark.parametrize("configured", [False, True])
async def test_a_resource_that_names_no_authorization_server_has_its_own_or_that_of_the_entry(configured: bool) -> None:
    async with lying_server() as server, lying_server() as other, owned_tasks() as tasks:
        server.tell_the_truth()
        other.tell_the_truth()
        del server.paths["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"]
        sign_ins = sign_ins_of(tasks)
        auth = {"auth": {"issuer": other.origin}} if configured else {}
        sign_in = sign_ins.of("s", HttpConfig.model_validate({"url": server.url, **auth}))
        assert sign_in is not None
        await sign_in.prepare()
        await signs_in(other if configured else server, sign_ins, sign_in)
        sign_ins.close()


@pytest.mark.parametrize(
    ("auth", "sent"),
    [({}, "url"), ({"resource": True}, "url"), ({"resource": False}, None), ({"resource": "api://x"}, "api://x")],
)
async def test_the_resource_indicator_is_what_the_entry_says(auth: dict[str, Any], sent: str | None) -> None:
    async with lying(**auth) as (server, sign_ins, sign_in):
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        link = (await sign_in.begin()).url
        await sign_ins.finish(back_from(link))
        await refused(sign_in)
        expected = None if sent is None else [server.url if sent == "url" else sent]
        code, refresh = (parse_qs(form) for form in server.forms[-2:])
        assert refresh["grant_type"] == ["refresh_token"]
        for found in (parse_qs(urlsplit(link).query), code, refresh):
            assert found.get("resource") == expected


@pytest.mark.parametrize("auth", [{"resource": ""}, {"resource": "a\nb"}, {"resource": 7}])
def test_a_resource_indicator_is_true_false_or_a_text(auth: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="resource"):
        HttpConfig.model_validate({"url": "https://mcp.example.test/mcp", "auth": auth})


async def test_the_token_exchange_leaves_the_resource_out_too() -> None:
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
async def test_a_client_that_the_server_has_forgotten_is_registered_again(page: Any, refresh: str | None) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        registrar.page = page
        server.paths["/token"] = {"access_token": "t", "token_type": "Bearer", "refresh_token": refresh}
        await signs_in(server, sign_ins, sign_in)
        registrar.known.clear()
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        assert "client_id=client-2" in (await sign_in.begin()).url
        # The next link is good as it is.
        assert "client_id=client-2" in (await sign_in.begin()).url


async def test_a_client_that_is_known_is_used_again() -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        await signs_in(server, sign_ins, sign_in)
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        assert "client_id=client-1" in (await sign_in.begin()).url
        assert registrar.made == 1


@pytest.mark.parametrize("signed_in", [True, False])
async def test_signing_out_forgets_a_registered_client(signed_in: bool) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        # It tells nobody: only the person at the browser sees that it has forgotten.
        registrar.page = (200, {})
        await signs_in(server, sign_ins, sign_in)
        if not signed_in:
            server.paths["/token"] = (400, {"error": "invalid_grant"})
            with pytest.raises(NotSignedIn):
                await refused(sign_in)
        assert await sign_ins.sign_out(sign_in) is signed_in
        assert "client_id=client-2" in (await sign_in.begin()).url


@pytest.mark.parametrize("way", ["code", "browser"])
async def test_a_browser_goes_on_with_a_new_client_where_the_old_one_is_refused_at_the_end(way: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        registrar = Registrar(server)
        registrar.page = (200, {})
        await signs_in(server, sign_ins, sign_in)
        server.paths["/token"] = (400, {"error": "invalid_grant"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        link = (await sign_in.begin()).url
        server.paths["/token"] = (401, {"error": "invalid_client"})
        state = parse_qs(urlsplit(link).query)["state"][0]
        back = back_from(link) if way == "code" else f"error=unauthorized_client&state={state}"
        goes_on = (await sign_ins.finish(back)).go_on_at
        assert "client_id=client-2" in str(goes_on)
        # A new client that is refused as well is a refusal, and no loop.
        with pytest.raises(SignInFailed, match=r"invalid_client|unauthorized_client"):
            await sign_ins.finish(back.replace(state, parse_qs(urlsplit(str(goes_on)).query)["state"][0]))


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"client_id": "c", "client_secret": None}),
        (202, {"client_id": "c", "client_secret": ""}),
        (201, {"client_id": 7}),
        (201, {"client_id": "c", "client_secret": "s", "client_secret_expires_at": "0"}),
    ],
)
async def test_registrations_are_taken_as_servers_answer_them(answer: Any) -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.paths["/register"] = answer
        await signs_in(server, sign_ins, sign_in)


async def test_a_token_endpoint_may_answer_with_a_form() -> None:
    async with lying() as (server, sign_ins, sign_in):
        body = b"access_token=t&scope=repo%2Cgist&token_type=bearer"
        head = b"HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n"
        server.paths["/token"] = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        await signs_in(server, sign_ins, sign_in)
