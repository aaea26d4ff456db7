"""What callers of yesterday are told."""

from __future__ import annotations

from typing import Any

from registry.catalog.drift import Drift, renamed_parameters
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import Shape
from registry.catalog.store import Registry


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def listing(epoch: int, *tools: dict[str, Any]) -> ServerListing:
    return ServerListing(server=ServerName("s"), epoch=epoch, tools=tools)


def test_a_parameter_of_the_same_shape_replaces_the_one_that_went() -> None:
    before = schema(to={"type": "array"}, subject={"type": "string", "description": "The subject."})
    after = schema(to={"type": "array"}, title={"type": "string", "description": "The title."})
    assert renamed_parameters(before, after) == {"subject": "title"}


def test_where_two_could_be_meant_nothing_is_guessed() -> None:
    text = {"type": "string"}
    assert renamed_parameters(schema(a=text), schema(b=text, c=text)) == {}
    assert renamed_parameters(schema(a=text, b=text), schema(c=text)) == {}
    assert renamed_parameters(schema(a=text), schema(b={"type": "integer"})) == {}
    assert renamed_parameters(None, {"properties": []}) == {}


def test_a_removed_wrapper_is_remembered_with_its_heir_until_it_is_back() -> None:
    drift, registry = Drift(), Registry(Shape())
    registry.subscribe(drift.record)
    one = {"name": "one", "description": "x", "inputSchema": schema(a={"type": "string"})}
    registry.put(listing(1, one))
    registry.put(listing(2, {**one, "name": "uno"}))
    removed = drift.removed("s__one")
    assert removed is not None
    assert removed.successor == "s__uno"
    registry.put(listing(3, one))
    assert drift.removed("s__one") is None
