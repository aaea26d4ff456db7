"""Links of single callers: separate, bounded in number, and closed when idle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from gateway.access.principal import Principal
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.http.http_client import HttpClient
from gateway.process.tasks import OwnedTasks
from gateway.protocol.gateway_errors import UpstreamUnavailable
from gateway.upstream import caller_links
from gateway.upstream.caller_links import NoSharedConnector, UserLinks
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.account_linking import user_of
from gateway.upstream.oauth.sign_ins import SignIns

ANN, BOB, EVE = (Principal(name=name) for name in ("ann", "bob", "eve"))


@asynccontextmanager
async def links_of_users(
    auth: Mapping[str, object] | None = None, **options: Any
) -> AsyncIterator[tuple[UserLinks, UpstreamLink]]:
    """Yield links to a server that cannot be reached."""
    config = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp", "auth": {"perUser": True, **(auth or {})}})
    shared = UpstreamLink("s", config, NoSharedConnector("s"), per_user=True, ports=caller_links.LinkPorts())
    client = HttpClient()
    async with anyio.create_task_group() as group:
        sign_ins = SignIns(OwnedTasks(group))
        yield UserLinks(group, client, sign_ins, {"s": shared}, **options), shared
        group.cancel_scope.cancel()
    sign_ins.close()
    client.close()


async def test_each_caller_has_its_own_link() -> None:
    async with links_of_users() as (links, shared):
        ann, bob = links.get_or_open(shared, ANN), links.get_or_open(shared, BOB)
        assert ann is links.get_or_open(shared, Principal(name="ann", client="another"))
        assert ann is not bob
        assert (ann.owner, bob.owner) == ("ann", "bob")
        assert links.get_open(links.key_of("s", ANN)) is ann
        assert links.open_link("s", "eve") is None
        assert links.current_link("s", "eve") is shared


async def test_absent_caller_is_not_acted_for() -> None:
    async with links_of_users() as (links, shared):
        with pytest.raises(UpstreamUnavailable, match="so only that caller can call it"):
            links.get_or_open(shared, Principal(name="ann", is_simulated=True))
        assert len(links) == 0


async def test_exchanged_tokens_are_separate_per_client_and_scope() -> None:
    exchange = {"type": "tokenExchange", "clientId": "gateway", "clientSecret": "s"}
    async with links_of_users(exchange) as (links, shared):
        first = links.get_or_open(shared, Principal(name="ann", client="a", claims=frozenset({("scope", "mcp")})))
        assert first is links.get_or_open(
            shared, Principal(name="ann", client="a", claims=frozenset({("scope", "mcp")}))
        )
        assert first is not links.get_or_open(
            shared, Principal(name="ann", client="b", claims=frozenset({("scope", "mcp")}))
        )
        assert first is not links.get_or_open(shared, Principal(name="ann", client="a"))
        assert {link.owner for link in links.links_to("s")} == {"ann"}


async def test_number_of_links_is_bounded_and_the_most_idle_is_closed() -> None:
    async with links_of_users(most=2) as (links, shared):
        ann = links.get_or_open(shared, ANN)
        links.get_or_open(shared, BOB)
        links.get_or_open(shared, ANN)
        links.get_or_open(shared, EVE)
        assert {link.owner for link in links.links_to("s")} == {"ann", "eve"}
        # A link with a watched resource is not idle.
        for link in links.links_to("s"):
            link.watch_list.add("resourceSubscriptions", "x://y")
        with pytest.raises(UpstreamUnavailable, match="2 are in use"):
            links.get_or_open(shared, BOB)
        assert links.open_link("s", "ann") is ann


async def test_idle_link_is_closed() -> None:
    async with links_of_users(idle_s=0.0, look_s=0.01) as (links, shared):
        link = links.get_or_open(shared, ANN)
        with anyio.fail_after(25):
            while len(links):
                await anyio.lowlevel.checkpoint()
        assert links.get_or_open(shared, ANN) is not link


def test_key_named_local_is_not_the_local_user() -> None:
    assert user_of(Principal(name="local")) != "local"
    assert user_of(ANN) == "ann"


def test_sign_ins_of_absent_callers_are_kept_only_in_the_store() -> None:
    sign_ins = SignIns(cast("Any", None), max_sign_ins=3)
    shared = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp"})
    own = HttpConfig.model_validate({"url": "http://127.0.0.1:9/mcp", "auth": {"perUser": True}})
    kept = sign_ins.get("all", shared)
    for number in range(10):
        sign_ins.get("s", own, user=f"user {number}")
    assert {one.principal for one in sign_ins} == {"", "user 8", "user 9"}
    assert sign_ins.get("all", shared) is kept
    sign_ins.close()
