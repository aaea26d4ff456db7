"""The link of a caller: bound to it, used once, and no use in another browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from support.lying import Lying, lying_server
from support.tasks import owned_tasks

from gateway.config.issuers import Issuer
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.upstream.credentials import NotSignedIn, SignInFailed
from gateway.upstream.oauth.addresses import addresses_at
from gateway.upstream.oauth.connecting import CallerChecks
from gateway.upstream.oauth.identity_login import IdentityLogin
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.oauth.store import MemoryStore

KEYS = {"the key of ann": "ann", "the key of bob": "bob"}


@asynccontextmanager
async def sign_in_of_ann() -> AsyncIterator[tuple[Lying, SignIns, SignIn, list[tuple[str | None, str | None]]]]:
    async with lying_server() as server, owned_tasks() as tasks:
        server.tell_the_truth()
        recorded: list[tuple[str | None, str | None]] = []
        sign_ins = SignIns(
            tasks,
            MemoryStore(),
            addresses_at(lambda: None, lambda: "http://127.0.0.1:8765"),
            lambda name, principal, action, error: recorded.append((principal, error)),
            CallerChecks(holder_of=KEYS.get),
        )
        config = HttpConfig.model_validate({"url": server.url, "auth": {"perUser": True}})
        sign_in = sign_ins.of("s", config, user="ann")
        assert sign_in is not None
        await sign_in.prepare()
        with pytest.raises(NotSignedIn, match="--user 'ann'"):
            await sign_in.refused(401, "Bearer", sign_in.version)
        try:
            yield server, sign_ins, sign_in, recorded
        finally:
            sign_ins.close()


def part_of(url: str | None, name: str) -> str:
    return parse_qs(urlsplit(url or "").query)[name][0]


async def test_who_shows_that_it_is_the_caller_signs_in_in_that_browser() -> None:
    async with sign_in_of_ann() as (server, sign_ins, sign_in, recorded):
        link = (await sign_in.begin_for_caller()).url
        assert link.startswith("http://127.0.0.1:8765/oauth/connect?")
        ticket = part_of(link, "ticket")
        asked = await sign_ins.connecting.ask(ticket, None)
        assert asked.go_to is None
        # A mark of its own is kept, one that is none is not.
        assert (await sign_ins.connecting.ask(ticket, asked.mark)).mark == asked.mark
        assert (await sign_ins.connecting.ask(ticket, "short")).mark != "short"
        begun = await sign_ins.prove(ticket, "the key of ann", asked.mark)
        query = f"code=abc&state={part_of(begun.go_on_at, 'state')}"
        with pytest.raises(SignInFailed, match="another browser"):
            await sign_ins.finish(query, mark="m" * 43)
        assert "POST /token" not in server.requests
        with pytest.raises(SignInFailed, match="used already"):
            await sign_ins.connecting.ask(ticket, asked.mark)
        ticket = part_of((await sign_in.begin_for_caller()).url, "ticket")
        begun = await sign_ins.prove(ticket, "the key of ann", asked.mark)
        await sign_ins.finish(f"code=abc&state={part_of(begun.go_on_at, 'state')}", mark=asked.mark)
        assert sign_in.headers == {"authorization": "Bearer t"}
        assert recorded == [("ann", None)]
        config = HttpConfig.model_validate({"url": server.url, "auth": {"perUser": True}})
        assert [row["principal"] for row in sign_ins.user_rows("s", config)] == ["ann"]


@pytest.mark.parametrize("key", ["the key of bob", "no key at all"])
async def test_somebody_else_is_refused_and_uses_the_link_up(key: str) -> None:
    async with sign_in_of_ann() as (_, sign_ins, sign_in, recorded):
        ticket = part_of((await sign_in.begin_for_caller()).url, "ticket")
        with pytest.raises(SignInFailed, match="made for another caller"):
            await sign_ins.prove(ticket, key, "m" * 43)
        with pytest.raises(SignInFailed, match="used already"):
            await sign_ins.prove(ticket, "the key of ann", "m" * 43)
        assert not sign_in.signed_in
        assert recorded == [("ann", "somebody else came")]


async def test_of_two_who_come_first_at_the_same_time_both_are_asked_who_they_are() -> None:
    async with lying_server() as server:
        server.tell_the_truth()
        registered = anyio.Event()

        async def register(_: object) -> tuple[int, dict[str, Any]]:
            number = server.requests.count("POST /register")
            if number == 2:
                registered.set()
            await registered.wait()
            return 201, {"client_id": f"c{number}"}

        server.paths["/register"] = register
        store, asked = MemoryStore(), set()
        issuer = Issuer.model_validate({"issuer": server.origin, "audiences": ["us"]})
        addresses = addresses_at(lambda: None, lambda: "http://127.0.0.1:8765")
        # Two processes with one store.
        logins = [IdentityLogin(issuer, lambda name: None, store, addresses) for _ in range(2)]

        async def begin(login: IdentityLogin) -> None:
            url = await login.begin({"ticket": "t"})
            asked.add(part_of(url, "client_id"))
            assert await store.take(f"pending:{part_of(url, 'state')}") is not None
            login.close()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for login in logins:
                    group.start_soon(begin, login)
        assert asked == {"c1", "c2"}
