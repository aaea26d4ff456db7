"""A view depends only on catalog, configuration and profile."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.overrides import Note
from registry.catalog.registry import build_catalog
from registry.catalog.shape import ServerShape, Shape
from registry.schema.schemas import digest
from registry.views.profile import Profile, Selection
from registry.views.view import View, build_view

OURS: tuple[dict[str, Any], ...] = ({"name": "invoke_tool", "description": "Ours.", "inputSchema": {"type": "object"}},)
FINDER: tuple[dict[str, Any], ...] = (
    {"name": "find_tools", "description": "Ours.", "inputSchema": {"type": "object"}},
)
SERVERS = ("a", "b", "c")
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"x": {"type": "string"}}},
    {"type": "object", "properties": {"odd key": {"$ref": "#/$defs/k"}}, "$defs": {"k": {"type": "integer"}}},
    {"type": "object", "anyOf": [{"required": ["x"]}, {"required": ["y"]}], "properties": {"x": {}, "y": {}}},
]
TOOLS = st.sampled_from(
    [
        (("read", "Does.", 0), ("write", "Does.", 1)),
        (("read", "Acts.", 2),),
        (("find", "Does.", 1), ("read", "Does.", 0), ("write", "Acts.", 2)),
    ]
)
LISTINGS = st.dictionaries(st.sampled_from(SERVERS), st.tuples(TOOLS, st.booleans()), max_size=3)
SHAPES = st.fixed_dictionaries(
    {},
    optional={
        "supplement": st.sampled_from(["More.", "Less."]),
        "tags": st.sampled_from([("t",), ()]),
        "siblings": st.sampled_from([("b",), ("a", "c")]),
        "pinned": st.just(frozenset({"read"})),
        "priority": st.integers(0, 2),
    },
).map(lambda shape: ServerShape(**shape))
PROFILES = st.builds(
    Profile,
    selection=st.sampled_from([Selection(), Selection(tags=("t",)), Selection(tools=("*read",))]),
    disclosure=st.sampled_from(["eager", "auto", "lazy"]),
    max_tools=st.sampled_from([5, 100]),
    dialect=st.sampled_from(["mcp", "anthropic", "openai-strict"]),
    supplements=st.sampled_from([{}, {"a__read": "Here."}]),
    guidance=st.sampled_from([{}, {"t": "Cite."}]),
)
SAID = st.tuples(st.fixed_dictionaries({ServerName(name): SHAPES for name in SERVERS}), st.booleans())


@functools.cache
def listing_of(server: ServerName, tools: tuple[tuple[str, str, int], ...]) -> ServerListing:
    """The same object for the same listing, as a catalog that is built again has it."""
    definitions = (
        {"name": tool, "description": description, "inputSchema": SCHEMAS[at]} for tool, description, at in tools
    )
    return ServerListing(server=server, epoch=1, tools=tuple(definitions))


def catalog_of(listings: Any, configuration: Any, previous: Catalog | None) -> tuple[Catalog, Shape]:
    shapes, noted = configuration
    read: dict[str, Any] = {"name": "read", "description": "Does.", "inputSchema": SCHEMAS[0]}
    notes = {("a", "read"): (Note(id="1", text="Slow.", digest=digest(read)),)} if noted else {}
    shape = Shape(servers={name: replace(one, notes=_notes(name, notes)) for name, one in shapes.items()})
    listed = {
        ServerName(name): replace(listing_of(ServerName(name), tuple(tools)), stale=stale)
        for name, (tools, stale) in listings.items()
    }
    return build_catalog(listed, shape, version=1, previous=previous), shape


def _notes(server: str, notes: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return {tool: some for (one, tool), some in notes.items() if one == server}


def visible_state(view: View) -> Any:
    shown = [(one.name, one.definition, one.listed, one.reason, one.tokens, one.digest) for one in view.entries]
    losses = [(one.lowered.losses, dict(one.lowered.original_names)) for one in view.entries]
    return (
        shown,
        losses,
        view.builtin_tools,
        view.servers,
        view.defers,
        view.warnings,
        view.unsupported_names,
        view.digest,
    )


@pytest.mark.heavy
@settings(max_examples=200, deadline=None)
@given(st.lists(LISTINGS, min_size=2, max_size=4), SAID, SAID, PROFILES, PROFILES)
def test_view_does_not_depend_on_earlier_views(
    moments: list[Any], configuration: Any, later: Any, first: Profile, then: Profile
) -> None:
    catalog: Catalog | None = None
    view: View | None = None
    last = moments[-1]
    changes = [
        *((first, configuration, one) for one in moments),
        (first, later, last),
        (then, later, last),
        (then, configuration, last),
    ]
    for profile, configured, listings in changes:
        catalog, shape = catalog_of(listings, configured, catalog)
        view = build_view(catalog, shape, profile, always_listed=OURS, search_tools=FINDER, previous=view)
        fresh, _ = catalog_of(listings, configured, None)
        assert visible_state(view) == visible_state(
            build_view(fresh, shape, profile, always_listed=OURS, search_tools=FINDER)
        )


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the calls of Python functions by name: what work costs on any machine, however busy it is."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.heavy
def test_only_tools_of_changed_servers_are_described_again() -> None:
    tools = [{"name": f"t{n}", "description": f"Does {n}.", "inputSchema": SCHEMAS[n % 3]} for n in range(100)]
    names = [ServerName(f"s{n}") for n in range(50)]
    shape = Shape(servers={name: ServerShape() for name in names})
    listings = {name: ServerListing(server=name, epoch=1, tools=tuple(tools)) for name in names}
    before = build_catalog(listings, shape, version=1)
    profile = Profile(dialect="openai-strict")
    with counted_calls() as whole:
        view = build_view(before, shape, profile)
    changed = {**listings, names[0]: ServerListing(server=names[0], epoch=2, tools=tuple(tools[1:]))}
    after = build_catalog(changed, shape, version=2, previous=before)
    with counted_calls() as changes:
        again = build_view(after, shape, profile, previous=view)
    assert len(again.entries) == 4_999
    assert changes.total() < whole.total() / 3
    kept = {one.name: one.lowered for one in view.entries}
    assert sum(one.lowered is kept[one.name] for one in again.entries) == 4_999
