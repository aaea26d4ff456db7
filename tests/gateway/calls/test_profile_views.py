"""Views of many tools are made beside the loop, once for all who wait, and are the ones that would be made on it."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import anyio
import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.calls.profile_views import MAX_BUILT_INLINE, ProfileViews
from gateway.fleet.discovery import ListingSource, listing_of
from gateway.upstream.session import RawListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape
from registry.policy.policy import Policy
from registry.views.profile import Profile
from registry.views.view import View, build_view

SERVER = ServerName("up")
SCHEMA = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}


def put(registry: Registry, tools: int, epoch: int = 1) -> None:
    raw = RawListing(
        tools=[{"name": f"t{number}", "inputSchema": SCHEMA} for number in range(tools)],
        prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private",
    )  # fmt: skip
    before = registry.catalog.servers.get(SERVER)
    registry.put(listing_of(raw, ListingSource(server=SERVER, epoch=epoch, transport="http"), before=before))


def views(tools: int) -> tuple[Registry, ProfileViews]:
    registry = Registry(Shape(servers={SERVER: ServerShape()}))
    put(registry, tools)
    return registry, ProfileViews(registry, {"o": Profile(name="o", dialect="openai")})


@pytest.mark.parametrize("tools", [MAX_BUILT_INLINE, MAX_BUILT_INLINE + 1])
async def test_view_of_many_tools_is_built_once_in_a_thread(tools: int) -> None:
    made: list[int] = []

    def noted(*arguments: Any, **options: Any) -> View:
        made.append(threading.get_ident())
        return build_view(*arguments, **options)

    registry = Registry(Shape(servers={SERVER: ServerShape()}))
    put(registry, tools)
    shown = ProfileViews(registry, {"o": Profile(name="o", dialect="openai")}, build=noted)
    assert shown.current("o") is None
    found: list[Any] = []

    async def look() -> None:
        found.append(await shown.prepared("o"))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(look)
    assert len(made) == 1
    assert (made[0] == threading.get_ident()) == (tools <= MAX_BUILT_INLINE)
    assert all(one is shown.current("o") is shown.view("o") for one in found)
    assert len(found[0].entries) == tools


async def test_view_built_in_a_thread_equals_one_built_directly() -> None:
    registry, shown = views(300)
    for epoch, tools in enumerate((300, 310, 200), 2):
        put(registry, tools, epoch)
        aside = await shown.prepared("o")
        _, fresh = views(tools)
        assert aside.digest == fresh.view("o").digest
        assert len(aside.entries) == tools


async def test_removed_profile_has_no_view() -> None:
    _, shown = views(300)
    for profile in ("o", "nowhere"):
        shown.replace({})
        with pytest.raises(KeyError):
            await shown.prepared(profile)
        with pytest.raises(KeyError):
            shown.current(profile)


async def test_cached_view_is_current_after_every_change() -> None:
    registry, shown = views(3)

    class ViewCaller(NamedTuple):
        principal: Principal = LOCAL
        profile: str = "o"

    looker = ViewCaller()
    for change in (
        lambda: put(registry, 4, 2),
        lambda: registry.mark_stale(SERVER, 2),
        lambda: registry.reshape(Shape(servers={SERVER: ServerShape(display_name="Other")})),
        lambda: registry.put_own(LOCAL.name, registry.catalog.servers[SERVER]),
        lambda: registry.drop_own(SERVER),
        lambda: shown.replace({"o": Profile(name="o")}),
        lambda: shown.replace({"o": Profile(name="o")}, Policy(default="deny")),
    ):
        view = await shown.prepared("o", LOCAL)
        assert shown.find_view(looker) is shown.cached_views[looker] is view
        change()
        assert looker not in shown.cached_views
    with pytest.raises(KeyError):
        shown.find_view(ViewCaller(profile="nowhere"))
    await shown.prepared("o", LOCAL)
    for number in range(5_000):
        shown.find_view(ViewCaller(Principal(name=f"{number}")))
    assert len(shown.cached_views) <= 1_024
