"""Catalogs of many tools are built beside the loop, in the order of their listings, and taken over whole."""

from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel

from gateway.catalog_updates import CatalogUpdates
from registry.catalog.catalog import Catalog, CatalogChange
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.store import Registry

MANY = 400


def tools(count: int) -> tuple[dict[str, Any], ...]:
    return tuple({"name": f"t{n}", "description": "d", "inputSchema": {"type": "object"}} for n in range(count))


def listing(server: str, count: int = MANY, epoch: int = 1) -> ServerListing:
    return ServerListing(server=ServerName(server), epoch=epoch, tools=tools(count))


def sizes(catalog: Catalog) -> dict[str, int]:
    return {server: len(catalog.wrappers_of(server)) for server in catalog.servers}


async def put_all(updates: CatalogUpdates, listings: Iterable[ServerListing]) -> None:
    async with anyio.create_task_group() as group:
        for one in listings:
            group.start_soon(lambda one=one: updates.put(one, lambda: one))  # type: ignore[misc] # of a lambda with a default


async def test_few_tools_are_there_at_once() -> None:
    registry = Registry(Shape())
    await CatalogUpdates(registry).put(few := listing("a", 3), lambda: few)
    assert sizes(registry.catalog) == {"a": 3}


async def test_servers_that_list_at_once_are_built_together() -> None:
    registry, heard = Registry(Shape()), list[CatalogChange]()
    registry.subscribe(heard.append)
    await put_all(CatalogUpdates(registry), [listing(f"s{n}") for n in range(12)])
    assert sizes(registry.catalog) == {f"s{n}": MANY for n in range(12)}
    assert len(heard) <= 3


async def test_a_change_while_a_catalog_is_built_is_not_lost() -> None:
    registry = Registry(Shape())
    updates = CatalogUpdates(registry)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: put_all(updates, [listing("a")]))
        await anyio.lowlevel.checkpoint()
        registry.put(listing("b", 1))
        registry.mark_stale(ServerName("b"), 1)
    assert sizes(registry.catalog) == {"b": 1, "a": MANY}
    assert registry.catalog.servers[ServerName("b")].stale


async def test_what_is_out_of_date_when_it_is_built_is_not_put() -> None:
    registry = Registry(Shape())
    await CatalogUpdates(registry).put(listing("a"), lambda: None)
    assert not registry.catalog.servers


async def test_a_listing_that_was_given_up_leaves_the_others_to_be_built() -> None:
    registry = Registry(Shape())
    updates = CatalogUpdates(registry)
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(lambda: put_all(updates, [listing("b")]))
            scope.cancel()
            await updates.put(gone := listing("a"), lambda: gone)
    assert sizes(registry.catalog)["b"] == MANY


async def test_a_configuration_that_was_prepared_is_taken_over_at_once() -> None:
    registry = Registry(Shape())
    registry.put(listing("a"))
    hiding = Shape(servers={ServerName("a"): ServerShape(hidden=frozenset({"t1"}))})
    await CatalogUpdates(registry).prepare(lambda: (hiding, (), ()))
    assert sizes(registry.catalog) == {"a": MANY}
    registry.reshape(hiding)
    assert sizes(registry.catalog) == {"a": MANY - 1}
