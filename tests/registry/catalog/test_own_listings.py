"""Listings of single callers: in the catalog of their owner, and in nobody else's."""

from __future__ import annotations

import pytest

from registry.catalog import store
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.store import Registry

SHOP = ServerName("shop")


def listing(*tools: str, server: ServerName = SHOP) -> ServerListing:
    made = tuple({"name": tool, "inputSchema": {"type": "object"}} for tool in tools)
    return ServerListing(server=server, epoch=1, tools=made)


def names(registry: Registry, owner: str) -> list[str]:
    return [wrapper.name for wrapper in registry.catalog_of(owner).wrappers]


def shop_and_bank() -> Registry:
    registry = Registry(Shape(servers={SHOP: ServerShape(), ServerName("bank"): ServerShape()}))
    registry.put(listing("balance", server=ServerName("bank")))
    return registry


def test_what_one_caller_is_listed_nobody_else_is() -> None:
    registry = shop_and_bank()
    changes: list[None] = []
    registry.subscribe_own(lambda: changes.append(None))
    registry.put_own("ann", listing("whoami", "of_ann"))
    registry.put_own("bob", listing("whoami", "of_bob"))
    assert len(changes) == 2
    assert names(registry, "ann") == ["bank__balance", "shop__of_ann", "shop__whoami"]
    assert names(registry, "bob") == ["bank__balance", "shop__of_bob", "shop__whoami"]
    assert names(registry, "eve") == ["bank__balance"]
    assert registry.catalog_of("eve") is registry.catalog
    # Built once, until something in it changes.
    assert registry.catalog_of("ann") is registry.catalog_of("ann")
    registry.put(listing("balance", "pay", server=ServerName("bank")))
    assert "bank__pay" in names(registry, "ann")
    registry.drop_own(SHOP)
    assert names(registry, "ann") == ["bank__balance", "bank__pay"]
    assert not registry.owners


def test_equal_lists_of_many_callers_are_kept_once() -> None:
    registry = shop_and_bank()
    registry.put_own("ann", listing("whoami"))
    registry.put_own("bob", listing("whoami"))
    ann, bob = (registry.catalog_of(name).get("shop__whoami") for name in ("ann", "bob"))
    assert ann is not None
    assert bob is not None
    assert ann.definition is bob.definition


def test_owners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_OWNERS", 2)
    registry = shop_and_bank()
    for name in ("ann", "bob", "ann", "eve"):
        registry.put_own(name, listing("whoami"))
    assert sorted(registry.owners) == ["ann", "eve"]
