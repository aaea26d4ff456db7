"""Successors of removed and renamed tools and parameters."""

from __future__ import annotations

from typing import Any

from registry.catalog.drift import ITEMS, Drift, composed_changes, parameter_changes
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def renamed_parameters(before: Any, after: Any) -> dict[str, str]:
    changes = parameter_changes(before, after)
    return {path[0]: change.now for path, change in changes.items() if change.kind == "renamed"}


def listing(epoch: int, *tools: dict[str, Any]) -> ServerListing:
    return ServerListing(server=ServerName("s"), epoch=epoch, tools=tools)


def test_removed_parameter_is_matched_to_a_new_one_of_equal_schema() -> None:
    before = schema(to={"type": "array"}, subject={"type": "string", "description": "The subject."})
    after = schema(to={"type": "array"}, title={"type": "string", "description": "The title."})
    assert renamed_parameters(before, after) == {"subject": "title"}


def test_ambiguous_parameter_renames_are_not_guessed() -> None:
    text = {"type": "string"}
    assert renamed_parameters(schema(a=text), schema(b=text, c=text)) == {}
    assert renamed_parameters(schema(a=text, b=text), schema(c=text)) == {}
    assert renamed_parameters(schema(a=text), schema(b={"type": "integer"})) == {}
    assert renamed_parameters(None, {"properties": []}) == {}


def test_removed_wrapper_and_its_successor_are_remembered_until_it_returns() -> None:
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


def drift_over(*listed: tuple[dict[str, Any], ...]) -> tuple[Drift, Registry]:
    drift, registry = Drift(), Registry(Shape())
    registry.subscribe(drift.record)
    for epoch, tools in enumerate(listed, 1):
        registry.put(listing(epoch, *tools))
    return drift, registry


def named(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": "x", "inputSchema": schema(**properties)}


def test_chain_of_renamed_tools_leads_to_the_last() -> None:
    text = {"a": {"type": "string"}}
    drift, registry = drift_over((named("t1", **text),), (named("t2", **text),), (named("t3", **text),))
    for name in ("s__t1", "s__t2"):
        removed = drift.removed(name)
        assert removed is not None
        successor = drift.successor(removed, registry.catalog)
        assert successor is not None
        assert successor.name == "s__t3"
    registry.put(listing(4, named("t2", **text)))
    removed = drift.removed("s__t3")
    assert removed is not None
    assert drift.successor(removed, registry.catalog) is registry.catalog.resolve("s__t2")
    registry.put(listing(5))
    assert drift.successor(removed, registry.catalog) is None


def test_tools_of_equal_schema_are_matched_by_description() -> None:
    drift, registry = drift_over(
        ({**named("a"), "description": "Reads."}, named("b")), ({**named("c"), "description": "Reads."}, named("d"))
    )
    removed = drift.removed_tool("s", "a")
    assert removed is not None
    assert removed.successor == "s__c"
    drift, registry = drift_over((named("a"), named("b")), (named("c"),))
    assert (removed := drift.removed_tool("s", "a")) is not None
    assert drift.successor(removed, registry.catalog) is None


def test_tool_whose_name_went_to_a_sibling_still_has_a_successor() -> None:
    drift, registry = drift_over((named("x-y"),), (named("x-y"), named("x_y")))
    removed = drift.removed("s__x-y")
    assert removed is not None
    successor = drift.successor(removed, registry.catalog)
    assert successor is not None
    assert successor.tool == "x-y"


def test_parameter_renames_are_followed_over_several_changes() -> None:
    text, number = {"type": "string"}, {"type": "integer"}
    drift, _ = drift_over((named("t", b=text),), (named("t", a=text),), (named("t", c=text),))
    assert {path: change.now for path, change in drift.changes("s__t").items()} == {("b",): "c", ("a",): "c"}
    drift, _ = drift_over((named("t", b=text),), (named("t", a=text),), (named("t", b=text),))
    assert {path: change.now for path, change in drift.changes("s__t").items()} == {("a",): "b"}
    drift, _ = drift_over((named("t", b=text),), (named("t", a=text),), (named("t", x=number),))
    assert {path: change.kind for path, change in drift.changes("s__t").items()} == {
        ("b",): "removed", ("a",): "removed"
    }  # fmt: skip
    drift, _ = drift_over((named("t", b=text),), (named("t", b=number),), (named("t", b=text),))
    assert {path: change.now for path, change in drift.changes("s__t").items()} == {("b",): "string"}


def test_changes_inside_objects_and_arrays_are_found() -> None:
    before = schema(f=schema(old={"type": "string"}), rows={"type": "array", "items": schema(n={"type": "integer"})})
    after = schema(f=schema(new={"type": "string"}), rows={"type": "array", "items": schema(n={"type": "string"})})
    changes = parameter_changes(before, after)
    assert {path: (change.kind, change.now) for path, change in changes.items()} == {
        ("f", "old"): ("renamed", "new"), ("rows", ITEMS, "n"): ("retyped", "string")
    }  # fmt: skip
    again = composed_changes(changes, parameter_changes(after, schema()), schema())
    assert again["f",].kind == again["rows",].kind == "removed"


def test_rename_is_certain_if_only_the_name_changed() -> None:
    def certain(old: dict[str, Any], new: dict[str, Any]) -> list[bool]:
        return [change.certain for change in parameter_changes(schema(**old), schema(**new)).values()]

    text = {"type": "string"}
    assert certain({"timeZone": text}, {"time_zone": text}) == [True]
    described = {**text, "description": "The zone of the caller."}
    assert certain({"zone": described}, {"tz": described}) == [True]
    assert certain({"zone": described}, {"tz": {**text, "description": "Where."}}) == [False]
    assert certain({"limit": {"type": "integer"}}, {"offset": {"type": "integer"}}) == [False]


def test_newly_required_parameter_is_tracked_until_renamed_or_removed() -> None:
    text = {"type": "string"}

    def demanding(*required: str, **properties: Any) -> dict[str, Any]:
        return {"name": "t", "description": "x", "inputSchema": {**schema(**properties), "required": list(required)}}

    drift, _ = drift_over((demanding(a=text, b=text),), (demanding("b", "c", a=text, b=text, c={"type": "integer"}),))
    assert {path: change.kind for path, change in drift.changes("s__t").items()} == {
        ("b",): "required", ("c",): "required"
    }  # fmt: skip
    drift, _ = drift_over((demanding(a=text),), (demanding("c", c=text),))
    assert {path: change.kind for path, change in drift.changes("s__t").items()} == {("a",): "renamed"}
    drift, _ = drift_over((demanding(a=text),), (demanding("b", a=text, b=text),), (demanding("z", a=text, z=text),))
    assert {path: change.kind for path, change in drift.changes("s__t").items()} == {("b",): "renamed"}


def test_tools_without_parameters_are_matched_by_description_only() -> None:
    drift, registry = drift_over(({**named("delete_all"), "description": "Deletes."},), (named("list_users"),))
    removed = drift.removed("s__delete_all")
    assert removed is not None
    assert drift.successor(removed, registry.catalog) is None
