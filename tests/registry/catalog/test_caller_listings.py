"""Listings of single callers are visible to their owner only."""

from __future__ import annotations

from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import MAX_OWNERS, Registry
from registry.catalog.shape import ServerShape, Shape

SHOP = ServerName("shop")


def listing(*tools: str, server: ServerName = SHOP) -> ServerListing:
    made = tuple({"name": tool, "inputSchema": {"type": "object"}} for tool in tools)
    return ServerListing(server=server, epoch=1, tools=made)


def names(registry: Registry, owner: str) -> list[str]:
    return [wrapper.name for wrapper in registry.catalog_of(owner).wrappers]


def shop_and_bank(max_owners: int = MAX_OWNERS) -> Registry:
    shape = Shape(servers={SHOP: ServerShape(), ServerName("bank"): ServerShape()})
    registry = Registry(shape, max_owners=max_owners)
    registry.put(listing("balance", server=ServerName("bank")))
    return registry


def test_listing_of_one_caller_is_invisible_to_others() -> None:
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


def test_equal_listings_of_several_callers_are_stored_once() -> None:
    registry = shop_and_bank()
    registry.put_own("ann", listing("whoami"))
    registry.put_own("bob", listing("whoami"))
    ann, bob = (registry.catalog_of(name).by_name.get("shop__whoami") for name in ("ann", "bob"))
    assert ann is not None
    assert bob is not None
    assert ann.definition is bob.definition


def test_number_of_owners_is_bounded() -> None:
    registry = shop_and_bank(max_owners=2)
    for name in ("ann", "bob", "ann", "eve"):
        registry.put_own(name, listing("whoami"))
    assert sorted(registry.owners) == ["ann", "eve"]
