"""The links of single callers: each its own, bounded in number, closed when they are idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from gateway.access.principal import Principal
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.errors import UpstreamUnavailable
from gateway.owned_tasks import OwnedTasks
from gateway.upstream import user_links
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth import sign_ins as all_sign_ins
from gateway.upstream.oauth.connecting import user_of
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.transport.http_client import HttpClient
from gateway.upstream.user_links import NobodysConnector, UserLinks

ANN, BOB, EVE = (Principal(name=name) for name in ("ann", "bob", "eve"))


@asynccontextmanager
async def links_of_users(
    auth: Mapping[str, object] | None = None, **options: Any
) -> AsyncIterator[tuple[UserLinks, UpstreamLink]]:
    """Links to a server that nobody reaches."""
    config = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp", "auth": {"perUser": True, **(auth or {})}})
    shared = UpstreamLink("s", config, NobodysConnector("s"), per_user=True, ports=user_links.LinkPorts())
    client = HttpClient()
    async with anyio.create_task_group() as group:
        sign_ins = SignIns(OwnedTasks(group))
        yield UserLinks(group, client, sign_ins, {"s": shared}, **options), shared
        group.cancel_scope.cancel()
    sign_ins.close()
    client.close()


async def test_each_caller_has_one_link_and_nobody_elses() -> None:
    async with links_of_users() as (links, shared):
        ann, bob = links.own(shared, ANN), links.own(shared, BOB)
        assert ann is links.own(shared, Principal(name="ann", client="another"))
        assert ann is not bob
        assert (ann.owner, bob.owner) == ("ann", "bob")
        assert links.at(links.key_of("s", ANN)) is ann
        assert links.opened("s", "eve") is None
        assert links.present("s", "eve") is shared


async def test_nobody_is_acted_for_who_is_not_there() -> None:
    async with links_of_users() as (links, shared):
        with pytest.raises(UpstreamUnavailable, match="nobody else acts as them"):
            links.own(shared, Principal(name="ann", assumed=True))
        assert len(links) == 0


async def test_exchanged_tokens_are_apart_for_each_client_and_scope_of_a_person() -> None:
    exchange = {"type": "tokenExchange", "clientId": "gateway", "clientSecret": "s"}
    async with links_of_users(exchange) as (links, shared):
        first = links.own(shared, Principal(name="ann", client="a", claims=frozenset({("scope", "mcp")})))
        assert first is links.own(shared, Principal(name="ann", client="a", claims=frozenset({("scope", "mcp")})))
        assert first is not links.own(shared, Principal(name="ann", client="b", claims=frozenset({("scope", "mcp")})))
        assert first is not links.own(shared, Principal(name="ann", client="a"))
        assert {link.owner for link in links.of_server("s")} == {"ann"}


async def test_links_are_bounded_and_the_idlest_gives_way() -> None:
    async with links_of_users(most=2) as (links, shared):
        ann = links.own(shared, ANN)
        links.own(shared, BOB)
        links.own(shared, ANN)
        links.own(shared, EVE)
        assert {link.owner for link in links.of_server("s")} == {"ann", "eve"}
        # What somebody watches is not idle.
        for link in links.of_server("s"):
            link.watch_list.add("resourceSubscriptions", "x://y")
        with pytest.raises(UpstreamUnavailable, match="2 are in use"):
            links.own(shared, BOB)
        assert links.opened("s", "ann") is ann


async def test_an_idle_link_is_closed() -> None:
    async with links_of_users(idle_s=0.0, look_s=0.01) as (links, shared):
        link = links.own(shared, ANN)
        with anyio.fail_after(5):
            while len(links):
                await anyio.lowlevel.checkpoint()
        assert links.own(shared, ANN) is not link


def test_a_key_that_is_named_as_whoever_is_on_this_machine_is_somebody_else() -> None:
    assert user_of(Principal(name="local")) != "local"
    assert user_of(ANN) == "ann"


def test_sign_ins_of_callers_who_are_gone_are_kept_in_the_store_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_sign_ins, "_MOST_MADE", 3)
    sign_ins = SignIns(cast("Any", None))
    shared = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp"})
    own = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp", "auth": {"perUser": True}})
    kept = sign_ins.of("all", shared)
    for number in range(10):
        sign_ins.of("s", own, user=f"user {number}")
    assert {one.principal for one in sign_ins} == {"", "user 8", "user 9"}
    assert sign_ins.of("all", shared) is kept
    sign_ins.close()
