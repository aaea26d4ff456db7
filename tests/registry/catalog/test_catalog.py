"""Listings become one immutable catalog, and only changed parts are rebuilt."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work

from registry.catalog.catalog import Catalog, handshake_definition
from registry.catalog.listing import ServerListing
from registry.catalog.names import BUILTIN_NAMES, ServerName, ToolName
from registry.catalog.registry import Registry, build_catalog
from registry.catalog.shape import NameFilter, ServerShape, Shape
from registry.errors import UnknownTool

MAIL, FILES = ServerName("mail"), ServerName("files")


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}, **members}


def listing(server: ServerName, *tools: dict[str, Any], epoch: int = 1, **members: Any) -> ServerListing:
    return ServerListing(server=server, epoch=epoch, tools=tools, **members)


def catalog(*listings: ServerListing, shape: Shape | None = None, previous: Catalog | None = None) -> Catalog:
    given_listings = {one.server: one for one in listings}
    return build_catalog(given_listings, shape or Shape(), version=1, previous=previous)


def test_wrapper_keeps_the_definition_except_its_name() -> None:
    given_tool = tool("send", **{"x-unknown": [None, {"a": 1}], "_meta": {"k": None}, "title": "Send"})
    wrapper = catalog(listing(MAIL, given_tool)).resolve("mail__send")
    assert wrapper.definition == {**given_tool, "name": "mail__send"}
    assert given_tool["name"] == "send"
    assert json.dumps(dict(wrapper.definition)) == json.dumps({**given_tool, "name": "mail__send"})
    assert wrapper.input_schema == given_tool["inputSchema"]


@given(st.permutations(["alpha", "x.y", "x-y", "Beta", "日本"]), st.permutations(["mail", "files", "z9"]))
def test_equal_catalogs_list_in_equal_order(tools: list[str], servers: list[str]) -> None:
    expected = catalog(*(listing(ServerName(s), *(tool(t) for t in sorted(tools))) for s in sorted(servers)))
    found = catalog(*(listing(ServerName(s), *(tool(t) for t in tools)) for s in servers))
    assert [w.definition for w in found.wrappers] == [w.definition for w in expected.wrappers]
    assert found.digest == expected.digest


def test_only_the_changed_server_is_rebuilt() -> None:
    before = catalog(listing(MAIL, tool("a")), kept := listing(FILES, tool("b")))
    after = catalog(listing(MAIL, tool("c"), epoch=2), kept, previous=before)
    assert after.resolve("files__b") is before.resolve("files__b")
    assert "mail__a" not in after.by_name
    assert after.servers[MAIL].epoch == 2


def test_find_accepts_wrapper_name_and_upstream_name() -> None:
    found = catalog(listing(MAIL, tool("x.y")), listing(FILES, tool("read")))
    wrapper = found.wrappers_of("mail")[0]
    assert found.find("mail", "x.y") is wrapper
    assert found.find("mail", wrapper.name) is wrapper
    assert found.find("files", wrapper.name) is None
    assert found.wrappers_of("nobody") == ()
    with pytest.raises(UnknownTool) as caught:
        found.resolve("nope")
    assert caught.value.name == "nope"


def test_hidden_and_filtered_tools_have_no_wrapper_and_keep_other_names() -> None:
    tools = (tool("list_items"), tool("list-items"), tool("delete_all"), tool("other"))
    everything = catalog(listing(MAIL, *tools))
    shape = ServerShape(hidden=frozenset({"list_items"}), tools=NameFilter(("list*", "delete*"), ("delete_*",)))
    found = catalog(listing(MAIL, *tools), shape=Shape(servers={MAIL: shape}))
    assert [w.tool for w in found.wrappers] == ["list-items"]
    assert found.wrappers[0].name in everything.by_name


def test_adding_a_server_keeps_the_names_of_others() -> None:
    alone = catalog(listing(MAIL, tool("x.y"), tool("x-y")))
    joined = catalog(listing(MAIL, tool("x.y"), tool("x-y")), listing(FILES, tool("x.y"), tool("x_y")))
    assert {w.name for w in alone.wrappers} <= {w.name for w in joined.wrappers}


@pytest.mark.parametrize("name", [*sorted(BUILTIN_NAMES), "Invoke-Tool", "files__read"])
def test_unprefixed_tool_does_not_take_a_builtin_or_prefixed_name(name: str) -> None:
    bare = Shape(servers={MAIL: ServerShape(prefixed=False)})
    found = catalog(listing(MAIL, tool(name), tool("ok.name")), listing(FILES, tool("read")), shape=bare)
    assert [w.name for w in found.wrappers_of("mail")] == ["ok.name"]
    assert [(s, f.tool, f.code) for s, f in found.quarantined] == [("mail", name, "name_taken")]


def test_unprefixed_rename_does_not_take_a_siblings_name() -> None:
    for names in (("old", "new"), ("new", "old")):
        shape = ServerShape(prefixed=False, renames={ToolName("old"): "new"})
        found = catalog(listing(MAIL, *map(tool, names)), shape=Shape(servers={MAIL: shape}))
        assert found.resolve("new").tool == "new"
        [renamed] = [wrapper for wrapper in found.wrappers if wrapper.tool == "old"]
        assert renamed.name.startswith("new_")
        assert renamed.name_reason == "looks the same as a sibling's name to a host"
        assert "old" not in found.by_name
        assert found.quarantined == ()


def test_first_configured_unprefixed_server_keeps_a_shared_name() -> None:
    bare = ServerShape(prefixed=False)
    for order in ((MAIL, FILES), (FILES, MAIL)):
        shape = Shape(servers=dict.fromkeys(order, bare))
        found = catalog(listing(FILES, tool("read")), listing(MAIL, tool("read")), shape=shape)
        assert found.resolve("read").server == order[0]


def test_prefixed_upstream_tool_named_like_a_builtin_is_a_plain_wrapper() -> None:
    found = catalog(listing(ServerName("invoke"), tool("tool"), tool("invoke_tool")))
    assert [w.name for w in found.wrappers] == ["invoke__invoke_tool", "invoke__tool"]


def test_header_parameters_are_recorded_by_path() -> None:
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        },
    }
    found = catalog(listing(MAIL, tool("a", inputSchema=schema), tool("b")))
    assert dict(found.resolve("mail__a").headers) == {"Region": ("region",), "N": ("deep", "n")}
    assert not found.resolve("mail__b").headers


def test_handshake_era_omits_output_schemas_that_are_not_objects() -> None:
    fine = tool("a", outputSchema={"type": "object"})
    assert handshake_definition(fine) is fine
    assert handshake_definition(tool("a", outputSchema={"type": "array"})) == tool("a")


def test_stale_listing_keeps_its_wrappers_and_definitions() -> None:
    live = listing(MAIL, tool("a"))
    before = catalog(live)
    after = catalog(replace(live, stale=True), previous=before)
    assert after.servers[MAIL].stale
    assert after.resolve("mail__a").definition is before.resolve("mail__a").definition
    assert after.digest == before.digest


def test_snapshot_of_300_tools_is_wrapped_within_30_ms() -> None:
    properties = {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(8)}
    schema = {"type": "object", "properties": properties}
    tools = [tool(f"tool_{n}", inputSchema=schema, description="d" * 300) for n in range(300)]
    # Three times, because a collection of garbage takes longer.
    with limited_work(0.090):
        for _ in range(3):
            catalog(listing(MAIL, *tools, origin="snapshot"))


def test_importing_and_building_do_not_load_the_schema_compiler() -> None:
    program = (
        "import sys; from registry.catalog.listing import ServerListing\n"
        "from registry.catalog.shape import Shape; from registry.catalog.registry import Registry\n"
        "r = Registry(Shape()); r.put(ServerListing(server='a', epoch=1, tools=({'name': 't'},)))\n"
        "import registry.arguments.problems\n"
        "print(sorted({'jsonschema', 'jsonschema_rs', 'referencing', 'mcp', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_listing_of_an_older_epoch_is_ignored() -> None:
    registry = Registry(Shape())
    registry.put(listing(MAIL, tool("new"), epoch=2))
    current = registry.catalog
    assert not registry.put(listing(MAIL, tool("old"), epoch=1))
    assert registry.catalog is current


def test_same_epoch_may_list_again() -> None:
    registry = Registry(Shape())
    registry.put(listing(MAIL, tool("a"), tool("b", description="was")))
    change = registry.put(listing(MAIL, tool("b", description="is"), tool("c")))
    assert (change.added, change.removed, change.changed) == (("mail__c",), ("mail__a",), ("mail__b",))


def test_listeners_are_called_only_for_real_changes() -> None:
    registry = Registry(Shape())
    changes: list[tuple[str, ...]] = []
    unsubscribe = registry.subscribe(lambda change: changes.append(change.added or change.removed))
    registry.put(listing(MAIL, tool("a", title="T")))
    same = {"inputSchema": {"type": "object"}, "title": "T", "description": "a", "name": "a"}
    assert not registry.put(listing(MAIL, same, epoch=2))
    registry.mark_stale(MAIL, 2)
    assert registry.catalog.servers[MAIL].stale
    registry.drop(MAIL)
    unsubscribe()
    registry.put(listing(MAIL, tool("b"), epoch=3))
    assert changes == [("mail__a",), ("mail__a",)]


def test_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(Shape())
    calls: list[bool] = []

    def fail(change: object) -> None:
        raise RuntimeError("listener")

    registry.subscribe(fail)
    registry.subscribe(lambda change: calls.append(bool(change)))
    assert registry.put(listing(MAIL, tool("a")))
    assert calls == [True]
    assert "catalog listener failed" in caplog.text


def test_disconnect_of_an_older_epoch_does_not_mark_stale() -> None:
    registry = Registry(Shape())
    registry.put(listing(MAIL, tool("a"), epoch=2))
    registry.mark_stale(MAIL, 1)
    assert not registry.catalog.servers[MAIL].stale


def test_call_keeps_the_catalog_it_started_with() -> None:
    registry = Registry(Shape())
    registry.put(listing(MAIL, tool("a")))
    pinned = registry.catalog
    registry.drop(MAIL)
    assert pinned.resolve("mail__a").tool == "a"
    assert registry.catalog.by_name.get("mail__a") is None


def test_reshaping_applies_configured_renames() -> None:
    registry = Registry(Shape())
    registry.put(listing(MAIL, tool("a")))
    change = registry.reshape(Shape(servers={MAIL: ServerShape(renames={ToolName("a"): "b"})}))
    assert (change.added, change.removed) == (("mail__b",), ("mail__a",))
