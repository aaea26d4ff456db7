"""A catalog built ahead is used only if it is still the next one."""

from dataclasses import replace
from typing import Any

from registry.catalog.catalog import CatalogChange
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape

MAIL, FILES = ServerName("mail"), ServerName("files")


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}, **members}


def listing(server: ServerName, *tools: dict[str, Any], epoch: int = 1) -> ServerListing:
    return ServerListing(server=server, epoch=epoch, tools=tools)


def names(registry: Registry) -> list[str]:
    return [one.name for one in registry.catalog.wrappers]


def test_catalog_built_ahead_is_not_visible_before_put() -> None:
    registry, changes = Registry(Shape()), list[CatalogChange]()
    registry.subscribe(changes.append)
    before = registry.catalog
    new = listing(MAIL, tool("a"))
    assert registry.build_ahead(put=[new]) is before
    assert registry.catalog is before
    assert not changes
    registry.put(new)
    assert names(registry) == ["mail__a"]
    assert [change.added for change in changes] == [("mail__a",)]


def test_put_uses_the_catalog_built_ahead() -> None:
    registry = Registry(Shape())
    new = listing(MAIL, tool("a"))
    registry.build_ahead(put=[new])
    built = registry._ahead[1].after if registry._ahead is not None else None
    registry.put(replace(new))
    assert registry.catalog is built


def test_catalog_built_before_another_change_is_rebuilt() -> None:
    registry = Registry(Shape())
    registry.build_ahead(put=[new := listing(MAIL, tool("a"))])
    registry.put(listing(FILES, tool("read")))
    registry.put(new)
    assert names(registry) == ["files__read", "mail__a"]


def test_catalog_built_ahead_is_ignored_for_another_listing_or_shape() -> None:
    registry = Registry(Shape())
    registry.build_ahead(put=[listing(MAIL, tool("a"))])
    registry.put(listing(MAIL, tool("b")))
    assert names(registry) == ["mail__b"]
    hiding = Shape(servers={MAIL: ServerShape(hidden=frozenset({"b"}))})
    registry.build_ahead(shape=hiding)
    registry.reshape(Shape(servers={MAIL: ServerShape(tags=("t",))}))
    assert names(registry) == ["mail__b"]
    registry.build_ahead(shape=hiding, put=[listing(FILES, tool("read"))])
    registry.reshape(hiding, put=[listing(FILES, tool("read"))])
    assert names(registry) == ["files__read"]


def test_wrapper_objects_are_reused_for_unchanged_tools_and_after_disconnects() -> None:
    registry = Registry(Shape())
    kept, was = tool("kept"), tool("changes")
    registry.put(listing(MAIL, kept, was))
    before = registry.catalog
    registry.put(listing(MAIL, kept, tool("changes", title="T"), epoch=2))
    assert registry.catalog.resolve("mail__kept") is before.resolve("mail__kept")
    assert registry.catalog.resolve("mail__changes") is not before.resolve("mail__changes")
    connected = registry.catalog
    registry.mark_stale(MAIL, 2)
    assert registry.catalog.wrappers is connected.wrappers
    assert registry.catalog.servers[MAIL].stale
