"""Sign-in to upstreams that are dishonest, slow or unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from support.lying import Lying, lying_server
from support.tasks import owned_tasks

from gateway.config.upstream_types.http_config import HttpConfig
from gateway.process.tasks import OwnedTasks
from gateway.protocol.gateway_errors import ConnectionLost, CredentialsUnavailable, HttpStatusError
from gateway.upstream.oauth.authorization import Addresses
from gateway.upstream.oauth.client_registration import Client
from gateway.upstream.oauth.guarded_requests import AddressGuard, GuardedRequests
from gateway.upstream.oauth.metadata_discovery import ServerMetadata
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_endpoint import Tokens
from gateway.upstream.oauth.token_flow import StoredSignIn
from gateway.upstream.oauth.token_store import (
    FOLDER,
    Encryption,
    FileTokenStore,
    LockTimeout,
    MemoryTokenStore,
    TokenStore,
)
from gateway.upstream.upstream_credentials import NotSignedIn, SignInFailed

CALLBACK = "http://127.0.0.1:8765/oauth/callback"
METADATA = "http://169.254.169.254/latest/meta-data"


def sign_ins_of(tasks: OwnedTasks, store: TokenStore | None = None) -> SignIns:
    return SignIns(tasks, store or MemoryTokenStore(), Addresses(redirect_uri=lambda: CALLBACK))


@asynccontextmanager
async def lying(**auth: Any) -> AsyncIterator[tuple[Lying, SignIns, SignIn]]:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        sign_ins = sign_ins_of(tasks)
        config = HttpConfig.model_validate({"url": server.url, **({"auth": auth} if auth else {})})
        sign_in = sign_ins.get("s", config)
        assert sign_in is not None
        await sign_in.prepare()
        try:
            yield server, sign_ins, sign_in
        finally:
            sign_ins.close()


@asynccontextmanager
async def two_processes(
    stores: tuple[TokenStore, TokenStore],
) -> AsyncIterator[tuple[Lying, list[SignIns], list[SignIn]]]:
    """Two that share what is kept, the first of which was refused by the server."""
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        gateways = [sign_ins_of(tasks, store) for store in stores]
        config = HttpConfig.model_validate({"url": server.url})
        found = [sign_in for gateway in gateways if (sign_in := gateway.get("s", config)) is not None]
        for one in found:
            await one.prepare()
        with pytest.raises(NotSignedIn):
            await refused(found[0])
        try:
            yield server, gateways, found
        finally:
            for gateway in gateways:
                gateway.close()


def back_from(link: str) -> str:
    """The query with which a browser comes back that has followed a link."""
    return f"code=abc&state={parse_qs(urlsplit(link).query)['state'][0]}"


async def refused(sign_in: SignIn, challenge: str = 'Bearer scope="mcp"') -> bool:
    return await sign_in.handle_refusal(401, challenge, sign_in.version)


async def test_sign_in_yields_a_token_and_each_link_works_once() -> None:
    async with lying() as (server, sign_ins, sign_in):
        with pytest.raises(NotSignedIn, match="typegate login s"):
            await refused(sign_in)
        link = (await sign_in.create_link()).url
        assert (await sign_in.create_link()).url == link
        query = parse_qs(urlsplit(link).query)
        assert query["resource"] == [server.url]
        back = f"code=abc&state={query['state'][0]}"
        assert (await sign_ins.handle_callback(back)).server == "s"
        assert sign_in.headers == {"authorization": "Bearer t"}
        form = parse_qs(server.forms[-1])
        assert (form["resource"], form["redirect_uri"]) == ([server.url], [CALLBACK])
        with pytest.raises(SignInFailed, match="unknown, already complete"):
            await sign_ins.handle_callback(back)


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/.well-known/oauth-protected-resource/mcp", {"resource": "https://evil.test/mcp"}, "another resource"),
        ("/.well-known/oauth-protected-resource/mcp", (302, {}, {"location": METADATA}), "not use https"),
        ("/.well-known/oauth-protected-resource/mcp", (302, {}, {"location": "https://10.0.0.1/"}), "not public"),
        (
            "/.well-known/oauth-protected-resource/mcp",
            (302, {}, {"location": "file:///etc/passwd"}),
            "not a valid https URL",
        ),
    ],
)
async def test_invalid_resource_metadata_does_not_start_a_sign_in(path: str, answer: Any, reason: str) -> None:
    async with lying() as (server, _, sign_in):
        server.paths[path] = answer
        with pytest.raises(HttpStatusError, match=reason) as error:
            await refused(sign_in)
        assert not isinstance(error.value, NotSignedIn)


@pytest.mark.parametrize(
    "url", [METADATA, "https://169.254.169.254/x", "file:///etc/passwd", "https://[::ffff:10.0.0.1]/x"]
)
async def test_challenge_naming_an_internal_address_is_refused(url: str) -> None:
    async with lying() as (server, _, sign_in):
        with pytest.raises(HttpStatusError, match="cannot start"):
            await refused(sign_in, f'Bearer resource_metadata="{url}"')
        assert server.requests == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"issuer": "https://evil.test"}, "another issuer"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"token_endpoint": METADATA}, "not use https"),
        ({"token_endpoint": "https://192.168.0.1/token"}, "not public"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "not a valid https URL"),
        ({"authorization_endpoint": "file:///etc/passwd"}, "not a valid https URL"),
        ({"authorization_endpoint": "https://169.254.169.254/x"}, "not public"),
        ({"registration_endpoint": METADATA}, "not use https"),
        ({"revocation_endpoint": METADATA}, "not use https"),
        ({"registration_endpoint": None}, "clientId"),
    ],
)
async def test_authorization_server_with_invalid_metadata_is_refused(changed: dict[str, Any], reason: str) -> None:
    async with lying() as (server, _, sign_in):
        server.tell_the_truth(**changed)
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        with pytest.raises(SignInFailed, match=reason):
            await sign_in.create_link()
        assert not any(request.startswith("POST") for request in server.requests)


@pytest.mark.parametrize(
    "back",
    [
        "code=abc&iss=https://evil.test",
        "code=abc",
        "error=access_denied&iss=ISSUER",
        "iss=ISSUER",
        "code=abc&iss=ISSUER/",
    ],
)
async def test_response_of_another_issuer_sends_no_code_to_the_token_endpoint(back: str) -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.tell_the_truth(authorization_response_iss_parameter_supported=True)
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        state = parse_qs(urlsplit((await sign_in.create_link()).url).query)["state"][0]
        with pytest.raises(SignInFailed):
            await sign_ins.handle_callback(f"{back.replace('ISSUER', server.origin)}&state={state}")
        assert "POST /token" not in server.requests
        assert not sign_in.signed_in


async def test_endless_and_silent_responses_fail() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{")
        while True:
            writer.write(b" " * 65_536)
            await writer.drain()

    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with lying() as (server, _, sign_in):
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        server.paths |= {"/.well-known/oauth-authorization-server": endless, "/silent": silent}
        with anyio.fail_after(25):
            with pytest.raises(SignInFailed, match="larger than"):
                await sign_in.create_link()
            requests = GuardedRequests(AddressGuard(loopback=True), timeout_s=0.1)
            with pytest.raises(ConnectionLost, match=r"no response within 0\.1 s"):
                await requests.get_json(f"{server.origin}/silent")
            requests.close()


async def test_redirect_of_the_token_endpoint_is_not_followed() -> None:
    async with lying() as (server, sign_ins, sign_in):
        server.paths["/token"] = (307, {}, {"location": f"{server.origin}/elsewhere"})
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        with pytest.raises(SignInFailed, match="HTTP 307"):
            await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        assert "POST /elsewhere" not in server.requests


async def test_refusal_without_metadata_does_not_start_a_sign_in() -> None:
    async with lying() as (server, _, sign_in):
        server.paths.clear()
        with pytest.raises(HttpStatusError, match="names no authorization server") as error:
            await refused(sign_in, "Bearer")
        assert not isinstance(error.value, NotSignedIn)


async def test_credentials_of_one_issuer_are_not_used_at_another() -> None:
    async with lying() as (server, sign_ins, sign_in), lying_server() as other:
        other.tell_the_truth()
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        server.paths["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"] = [other.origin]
        sign_in._discovered_at_s = -1e9
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        assert not sign_in.signed_in
        assert server.requests.count("POST /token") == 1
        await sign_in.create_link()
        assert "POST /register" in other.requests


async def test_configured_issuer_is_the_only_one_accepted() -> None:
    async with lying(type="oauth", issuer="https://auth.example.test") as (_, _, sign_in):
        with pytest.raises(HttpStatusError, match=r"auth\.issuer"):
            await refused(sign_in)


async def test_additional_scopes_are_requested_once() -> None:
    async with lying() as (_, sign_ins, sign_in):
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        challenge = 'Bearer error="insufficient_scope", scope="write"'
        with pytest.raises(NotSignedIn) as error:
            await sign_in.handle_refusal(403, challenge, sign_in.version)
        assert error.value.step_up
        assert sign_in.signed_in
        query = parse_qs(urlsplit((await sign_in.create_link()).url).query)
        assert query["scope"] == ["mcp write"]
        await sign_ins.handle_callback(f"code=abc&state={query['state'][0]}")
        # The scope was requested already, so another request would not help.
        assert await sign_in.handle_refusal(403, challenge, sign_in.version) is False
        assert await sign_in.handle_refusal(403, "Bearer", sign_in.version) is False


class UnavailableLocks(MemoryTokenStore):
    """A store whose locks another process never releases, from some time on."""

    unavailable = False

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        if self.unavailable:
            raise LockTimeout("the store is away")
        async with super().lock(key):
            yield


async def test_store_that_is_away_is_reported_wherever_a_sign_in_needs_it() -> None:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        store = UnavailableLocks()
        sign_ins = sign_ins_of(tasks, store)
        sign_in = sign_ins.get("s", HttpConfig.model_validate({"url": server.url}))
        assert sign_in is not None
        await sign_in.prepare()
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        store.unavailable = True
        challenge = 'Bearer error="insufficient_scope", scope="write"'
        with pytest.raises(CredentialsUnavailable, match="the store is away"):
            await sign_in.handle_refusal(403, challenge, sign_in.version)
        with pytest.raises(CredentialsUnavailable):
            await refused(sign_in)
        with pytest.raises(SignInFailed, match="the store is away"):
            await sign_ins.sign_out(sign_in)
        sign_ins.close()


async def test_user_with_an_unusable_client_key_can_sign_out() -> None:
    client = Client(client_id="us", origin="configured", method="private_key_jwt", private_key="not a key")
    async with lying() as (server, _, sign_in):
        metadata = ServerMetadata(
            issuer=server.origin, token_endpoint=f"{server.origin}/token", revocation_endpoint=f"{server.origin}/revoke"
        )
        endpoint = sign_in.flow.endpoint(StoredSignIn(server=metadata, client=client))
        assert await endpoint.revoke(Tokens(access="t1", refresh="r1", obtained_at_s=0.0)) is False


async def test_client_credentials_requests_are_bounded() -> None:
    auth = {"type": "clientCredentials", "clientId": "c", "clientSecret": "the secret of the client"}
    async with lying(**auth) as (server, _, sign_in):
        assert await refused(sign_in) is True
        assert sign_in.headers == {"authorization": "Bearer t"}
        outcomes = []
        for number in range(6):
            server.paths["/token"] = {"access_token": f"t{number}", "token_type": "Bearer"}
            challenge = f'Bearer error="insufficient_scope", scope="s{number}"'
            outcomes.append(await sign_in.handle_refusal(403, challenge, sign_in.version))
        assert outcomes == [True, True, True, False, False, False]
        assert parse_qs(server.forms[-1])["scope"] == ["mcp s0 s1 s2"]


async def test_token_is_refreshed_once_for_all_waiting_processes() -> None:
    store = MemoryTokenStore()
    async with two_processes((store, store)) as (server, gateways, (first, second)):
        await gateways[0].handle_callback(back_from((await first.create_link()).url))
        await second.load_changes()
        assert second.headers == first.headers
        server.paths["/token"] = {"access_token": "t2", "token_type": "Bearer", "refresh_token": "r2"}
        versions = {first: first.version, second: second.version}
        again: list[bool] = []

        async def refuse(sign_in: SignIn) -> None:
            again.append(await sign_in.handle_refusal(401, "Bearer", versions[sign_in]))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(refuse, (first, second)[number % 2])
        assert again == [True] * 20
        assert [form.count("grant_type=refresh_token") for form in server.forms].count(1) == 1
        assert first.headers == second.headers == {"authorization": "Bearer t2"}


async def test_obsolete_link_is_not_issued_again(tmp_path: Path) -> None:
    stores = (FileTokenStore(tmp_path, Encryption(None)), FileTokenStore(tmp_path, Encryption(None)))
    async with two_processes(stores) as (_, gateways, (first, second)):
        link = (await first.create_link()).url
        assert (await first.create_link()).url == link
        # The browser comes back to the other process, and the sign-in ends there.
        await gateways[1].handle_callback(back_from(link))
        assert await gateways[1].sign_out(second)
        again = (await first.create_link()).url
        assert again != link
        await gateways[1].handle_callback(back_from(again))


async def test_sign_out_that_cannot_be_stored_is_reported_as_failed(tmp_path: Path) -> None:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth(revocation_endpoint=f"{server.origin}/revoke")
        sign_ins = sign_ins_of(tasks, FileTokenStore(tmp_path, Encryption(None)))
        sign_in = sign_ins.get("s", HttpConfig.model_validate({"url": server.url}))
        assert sign_in is not None
        await sign_in.prepare()
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))

        async def meanwhile(_: object) -> dict[str, Any]:
            (tmp_path / FOLDER).rename(tmp_path / "elsewhere")
            (tmp_path / FOLDER).write_text("no folder")
            return {}

        server.paths["/revoke"] = meanwhile
        with pytest.raises(SignInFailed, match="could not be deleted: the state directory cannot be written"):
            await sign_ins.sign_out(sign_in)
        assert not sign_in.signed_in
        sign_ins.close()


@pytest.mark.parametrize(
    ("answer", "needed"),
    [
        ((503, {}), False),
        ((400, {"error": "invalid_grant"}), True),
        ((400, {"error": "temporarily_unavailable"}), False),
    ],
)
async def test_only_an_invalid_grant_requires_a_new_sign_in(answer: Any, needed: bool) -> None:
    async with lying() as (server, sign_ins, sign_in):
        with pytest.raises(NotSignedIn):
            await refused(sign_in)
        await sign_ins.handle_callback(back_from((await sign_in.create_link()).url))
        server.paths["/token"] = answer
        with pytest.raises(Exception) as error:
            await refused(sign_in)
        assert isinstance(error.value, NotSignedIn) is needed
        assert sign_in.signed_in is not needed


async def test_subject_token_of_another_issuer_is_exchanged() -> None:
    auth = {
        "type": "tokenExchange",
        "clientId": "c",
        "clientSecret": "the secret of the client",
        "subjectToken": "the-token-of-the-workload",
        "subjectTokenType": "jwt",
        "audience": "shop",
        "scopes": "mcp",
    }
    async with lying(**auth) as (server, _, sign_in):
        assert await refused(sign_in)
        form = parse_qs(server.forms[-1])
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:token-exchange"]
        assert form["subject_token"] == ["the-token-of-the-workload"]
        assert form["subject_token_type"] == ["urn:ietf:params:oauth:token-type:jwt"]
        assert form["requested_token_type"] == ["urn:ietf:params:oauth:token-type:access_token"]
        assert (form["audience"], form["resource"], form["scope"]) == (["shop"], [server.url], ["mcp"])


async def test_enterprise_identity_becomes_a_grant_and_then_a_token() -> None:
    async with lying_server() as company:
        company.paths["/idp"] = {"access_token": "id-jag", "token_type": "N_A", "issued_token_type": "urn:x"}
        auth = {
            "type": "enterprise",
            "clientId": "c",
            "clientSecret": "the secret of the client",
            "idToken": "the-identity-token",
            "idpTokenEndpoint": f"{company.origin}/idp",
            "idpClientId": "gateway-at-the-idp",
        }
        async with lying(**auth) as (server, _, sign_in):
            assert await refused(sign_in)
            first, second = parse_qs(company.forms[-1]), parse_qs(server.forms[-1])
            assert first["requested_token_type"] == ["urn:ietf:params:oauth:token-type:id-jag"]
            assert (first["audience"], first["resource"]) == ([server.origin], [server.url])
            assert first["client_id"] == ["gateway-at-the-idp"]
            assert second["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
            assert second["assertion"] == ["id-jag"]
            assert sign_in.headers == {"authorization": "Bearer t"}


async def test_workload_presents_its_platform_assertion() -> None:
    async with lying(type="jwtBearer", clientId="w", assertion="a.b.c") as (server, _, sign_in):
        assert await refused(sign_in)
        form = parse_qs(server.forms[-1])
        assert (form["assertion"], form["client_id"]) == (["a.b.c"], ["w"])


async def test_token_obtained_with_other_settings_is_not_used() -> None:
    store = MemoryTokenStore()
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        sign_ins = sign_ins_of(tasks, store)

        async def of(auth: dict[str, Any]) -> SignIn:
            found = sign_ins.get("s", HttpConfig.model_validate({"url": server.url, "auth": auth}))
            assert found is not None
            await found.prepare()
            return found

        mine = {"type": "clientCredentials", "clientId": "c", "clientSecret": "the secret of the client"}
        assert await refused(await of(mine))
        assert (await of({**mine, "scopes": "more"})).signed_in
        assert not (await of({**mine, "clientId": "another"})).signed_in
        assert not (await of({"type": "oauth"})).signed_in
        assert not (await of({**mine, "issuer": "https://auth.example.test"})).signed_in
        sign_ins.close()
