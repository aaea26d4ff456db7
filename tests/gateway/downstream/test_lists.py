"""Serialized lists: the cache never affects the next list."""

from functools import partial
from typing import Any

import orjson
import pytest

from gateway.calls.builtin_tools import BUILTIN_TOOLS, SEARCH_TOOLS
from gateway.downstream.messages import ListResults
from gateway.fleet.discovery import ListingSource, listing_of
from gateway.upstream.session import RawListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape
from registry.views.profile import Profile
from registry.views.view import View, build_view

SERVERS = [ServerName(f"s{number}") for number in range(3)]


def tool(name: str, words: str) -> dict[str, Any]:
    output = {"type": "array"} if name == "t1" else {"type": "object"}
    return {"name": name, "description": words, "inputSchema": {"type": "object"}, "outputSchema": output}


@pytest.mark.parametrize("modern", [True, False])
async def test_list_after_any_change_equals_a_fresh_one(modern: bool) -> None:
    registry = Registry(Shape(servers={server: ServerShape() for server in SERVERS}))
    kept, previous = ListResults(), None

    def put(server: ServerName, epoch: int, *words: str) -> None:
        tools = [tool(f"t{number}", one) for number, one in enumerate(words)]
        raw = RawListing(
            tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private"
        )
        before = registry.catalog.servers.get(server)
        registry.put(listing_of(raw, ListingSource(server=server, epoch=epoch, transport="http"), before=before))

    async def listed(lists: ListResults, view: View, found: tuple[str, ...] = ()) -> bytes:
        return b"".join(await lists.render_result(view, "tools", modern=modern, shared=True, found_names=found))

    changes = [("a", "b"), ("a", "c"), ("c",), ("a", "c", "d"), ("a", "b")]
    for epoch, words in enumerate(changes, 1):
        for server in SERVERS[: epoch % 3 + 1]:
            put(server, epoch, *words)
        for profile in (Profile(), Profile(name="lazy", disclosure="lazy")):
            catalog, shape = registry.catalog, registry.shape
            build = partial(build_view, catalog, shape, profile, always_listed=BUILTIN_TOOLS, search_tools=SEARCH_TOOLS)
            view, fresh = build(previous=previous), build()
            found = ("s0__t0",)
            assert await listed(kept, view, found) == await listed(ListResults(), fresh, found)
            assert await listed(kept, view) == await listed(ListResults(), fresh)
            names = [one["name"] for one in orjson.loads(await listed(kept, view))["tools"]]
            assert len(names) == len(set(names))
            previous = view if profile.disclosure == "eager" else previous


@pytest.mark.parametrize("output", ["object", "array"])
async def test_list_is_stored_once_if_both_eras_see_the_same(output: str) -> None:
    registry, lists = Registry(Shape(servers={SERVERS[0]: ServerShape()})), ListResults()
    tools = [{**tool("t", "words"), "outputSchema": {"type": output}}]
    raw = RawListing(tools=tools, prompts_and_resources={}, capabilities={"tools": {}}, ttl_ms=None, scope="private")
    registry.put(listing_of(raw, ListingSource(server=SERVERS[0], epoch=1, transport="http"), before=None))
    view = build_view(registry.catalog, registry.shape, Profile())
    modern, older = [await lists.render_result(view, "tools", modern=era, shared=False) for era in (True, False)]
    assert (modern[0] is older[0]) == (output == "object")
    shown, seen = (orjson.loads(b"".join(one)) for one in (modern, older))
    assert shown["tools"] == [{**tools[0], "name": "s0__t"}]
    assert shown["cacheScope"] == "private"
    assert seen.keys() == {"tools"}
    assert ("outputSchema" in seen["tools"][0]) == (output == "object")
    again = await lists.render_result(view, "tools", modern=False, shared=False)
    assert again[0] is older[0]
