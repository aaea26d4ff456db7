"""An account link is bound to its caller, works once, and not in another browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from support.lying import Lying, lying_server
from support.tasks import owned_tasks

from gateway.config.auth_config import Issuer
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.upstream.oauth.account_linking import CallerChecks, OpenIdClient
from gateway.upstream.oauth.authorization import addresses_at
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.token_store import MemoryTokenStore, pending_key
from gateway.upstream.upstream_credentials import NotSignedIn, SignInFailed

KEYS = {"the key of ann": "ann", "the key of bob": "bob"}


@asynccontextmanager
async def sign_in_of_ann() -> AsyncIterator[tuple[Lying, SignIns, SignIn, list[tuple[str | None, str | None]]]]:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        recorded: list[tuple[str | None, str | None]] = []
        sign_ins = SignIns(
            tasks,
            MemoryTokenStore(),
            addresses_at(lambda: None, lambda: "http://127.0.0.1:8765"),
            lambda name, principal, action, error: recorded.append((principal, error)),
            CallerChecks(holder_of=KEYS.get),
        )
        config = HttpConfig.model_validate({"url": server.url, "auth": {"perUser": True}})
        sign_in = sign_ins.get("s", config, user="ann")
        assert sign_in is not None
        await sign_in.prepare()
        with pytest.raises(NotSignedIn, match="--user 'ann'"):
            await sign_in.handle_refusal(401, "Bearer", sign_in.version)
        try:
            yield server, sign_ins, sign_in, recorded
        finally:
            sign_ins.close()


def part_of(url: str | None, name: str) -> str:
    return parse_qs(urlsplit(url or "").query)[name][0]


async def test_caller_proves_its_identity_and_signs_in_in_that_browser() -> None:
    async with sign_in_of_ann() as (server, sign_ins, sign_in, recorded):
        link = (await sign_in.create_link_for_caller()).url
        assert link.startswith("http://127.0.0.1:8765/oauth/connect?")
        ticket = part_of(link, "ticket")
        visit = await sign_ins.linking.follow_link(ticket, None)
        assert visit.redirect_url is None
        # A valid cookie of the gateway is kept, and any other is replaced.
        assert (await sign_ins.linking.follow_link(ticket, visit.cookie)).cookie == visit.cookie
        assert (await sign_ins.linking.follow_link(ticket, "short")).cookie != "short"
        begun = await sign_ins.start_with_key(ticket, "the key of ann", visit.cookie)
        query = f"code=abc&state={part_of(begun.redirect_url, 'state')}"
        with pytest.raises(SignInFailed, match="another browser"):
            await sign_ins.handle_callback(query, cookie="m" * 43)
        assert "POST /token" not in server.requests
        with pytest.raises(SignInFailed, match="already used"):
            await sign_ins.linking.follow_link(ticket, visit.cookie)
        ticket = part_of((await sign_in.create_link_for_caller()).url, "ticket")
        begun = await sign_ins.start_with_key(ticket, "the key of ann", visit.cookie)
        await sign_ins.handle_callback(f"code=abc&state={part_of(begun.redirect_url, 'state')}", cookie=visit.cookie)
        assert sign_in.headers == {"authorization": "Bearer t"}
        assert recorded == [("ann", None)]
        config = HttpConfig.model_validate({"url": server.url, "auth": {"perUser": True}})
        assert [row["principal"] for row in sign_ins.user_rows("s", config)] == ["ann"]


@pytest.mark.parametrize("key", ["the key of bob", "no key at all"])
async def test_another_caller_is_refused_and_invalidates_the_link(key: str) -> None:
    async with sign_in_of_ann() as (_, sign_ins, sign_in, recorded):
        ticket = part_of((await sign_in.create_link_for_caller()).url, "ticket")
        with pytest.raises(SignInFailed, match="created for another caller"):
            await sign_ins.start_with_key(ticket, key, "m" * 43)
        with pytest.raises(SignInFailed, match="already used"):
            await sign_ins.start_with_key(ticket, "the key of ann", "m" * 43)
        assert not sign_in.signed_in
        assert recorded == [("ann", "the link was used by another caller")]


async def test_concurrent_first_visitors_are_both_asked_to_identify_after_one_registration() -> None:
    async with lying_server() as server:
        server.tell_the_truth()
        both_begun = anyio.Event()
        begun: list[OpenIdClient] = []

        async def register(_: object) -> tuple[int, dict[str, Any]]:
            await both_begun.wait()
            return 201, {"client_id": f"c{server.requests.count('POST /register')}"}

        server.paths["/register"] = register
        store, client_ids = MemoryTokenStore(), set()
        issuer = Issuer.model_validate({"issuer": server.origin, "audiences": ["us"]})
        addresses = addresses_at(lambda: None, lambda: "http://127.0.0.1:8765")
        # Two processes with one store.
        logins = [OpenIdClient(issuer, lambda name: None, store, addresses) for _ in range(2)]

        async def begin(login: OpenIdClient) -> None:
            begun.append(login)
            if begun == logins:
                both_begun.set()
            url = await login.start_login({"ticket": "t"})
            client_ids.add(part_of(url, "client_id"))
            assert await store.pop(pending_key("state", part_of(url, "state"))) is not None
            login.close()

        with anyio.fail_after(25):
            async with anyio.create_task_group() as group:
                for login in logins:
                    group.start_soon(begin, login)
        assert (client_ids, server.requests.count("POST /register")) == ({"c1"}, 1)
