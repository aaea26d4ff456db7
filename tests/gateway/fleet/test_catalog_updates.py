"""Catalogs of many tools are built in a thread, in the order of their listings, and applied at once."""

from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel

from gateway.fleet.listings import CatalogUpdates
from registry.catalog.catalog import Catalog, CatalogChange
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape

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


async def test_small_listing_is_applied_immediately() -> None:
    registry = Registry(Shape())
    await CatalogUpdates(registry).put(few := listing("a", 3), lambda: few)
    assert sizes(registry.catalog) == {"a": 3}


async def test_servers_listing_concurrently_are_built_together() -> None:
    registry, changes = Registry(Shape()), list[CatalogChange]()
    registry.subscribe(changes.append)
    await put_all(CatalogUpdates(registry), [listing(f"s{n}") for n in range(12)])
    assert sizes(registry.catalog) == {f"s{n}": MANY for n in range(12)}
    assert len(changes) <= 3


async def test_change_during_a_build_is_not_lost() -> None:
    registry = Registry(Shape())
    updates = CatalogUpdates(registry)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: put_all(updates, [listing("a")]))
        await anyio.lowlevel.checkpoint()
        registry.put(listing("b", 1))
        registry.mark_stale(ServerName("b"), 1)
    assert sizes(registry.catalog) == {"b": 1, "a": MANY}
    assert registry.catalog.servers[ServerName("b")].stale


async def test_outdated_listing_is_not_applied() -> None:
    registry = Registry(Shape())
    await CatalogUpdates(registry).put(listing("a"), lambda: None)
    assert not registry.catalog.servers


async def test_cancelled_listing_does_not_block_the_others() -> None:
    registry = Registry(Shape())
    updates = CatalogUpdates(registry)
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(lambda: put_all(updates, [listing("b")]))
            scope.cancel()
            await updates.put(gone := listing("a"), lambda: gone)
    assert sizes(registry.catalog)["b"] == MANY


async def test_prepared_configuration_is_applied_immediately() -> None:
    registry = Registry(Shape())
    registry.put(listing("a"))
    hiding = Shape(servers={ServerName("a"): ServerShape(hidden=frozenset({"t1"}))})
    await CatalogUpdates(registry).prepare(lambda: (hiding, (), ()))
    assert sizes(registry.catalog) == {"a": MANY}
    registry.reshape(hiding)
    assert sizes(registry.catalog) == {"a": MANY - 1}
