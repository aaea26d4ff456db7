"""Owners of prompt names and resource URIs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalog.catalog import Catalog, CatalogChange
from registry.catalog.listed_items import ItemCatalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import NameFilter, ServerShape, Shape
from registry.intake.item_intake import OWN_URI_PREFIX

URIS = st.text(alphabet="abc:/?#{}%é", min_size=1, max_size=12)


def listing(server: str, **kinds: Any) -> ServerListing:
    items = {
        "prompts": tuple({"name": one} for one in kinds.get("prompts", ())),
        "resources": tuple({"uri": one, "name": one} for one in kinds.get("resources", ())),
        "templates": tuple({"uriTemplate": one, "name": one} for one in kinds.get("templates", ())),
    }
    return ServerListing(server=ServerName(server), epoch=1, tools=(), **items)


def catalog(*listings: ServerListing, bare: tuple[str, ...] = (), previous: Catalog | None = None) -> Catalog:
    servers = {one.server: ServerShape(prefixed=one.server not in bare) for one in listings}
    return build_catalog({one.server: one for one in listings}, Shape(servers=servers), version=1, previous=previous)


def test_prompts_are_named_like_wrappers_and_keep_other_members() -> None:
    prompt = {"name": "greet", "x": {"unknown": None}, "arguments": [{"name": "who"}]}
    one = ServerListing(server=ServerName("a"), epoch=1, tools=(), prompts=(prompt,))
    [offered] = catalog(one).prompts_and_resources.prompts
    assert (offered.key, offered.server, offered.original) == ("a__greet", "a", "greet")
    assert offered.definition == {**prompt, "name": "a__greet"}
    assert prompt["name"] == "greet"


def test_shared_uri_is_qualified_for_each_server() -> None:
    alone = catalog(listing("a", resources=["file:///x", "file:///a"])).prompts_and_resources
    assert [one.key for one in alone.resources] == ["file:///a", "file:///x"]
    both = catalog(
        listing("a", resources=["file:///x", "file:///a"]), listing("b", resources=["file:///x"])
    ).prompts_and_resources
    assert [one.key for one in both.resources] == [
        "file:///a", "typegate://a/file:///x", "typegate://b/file:///x",
    ]  # fmt: skip
    for one in both.resources:
        assert both.owners(one.key) == ((one.server, one.original),)
        assert one.definition["uri"] == one.key
    assert both.owners("file:///x") == (("a", "file:///x"), ("b", "file:///x"))


def test_unprefixed_server_keeps_shared_uris_and_prompt_names() -> None:
    mixed = catalog(
        listing("a", resources=["u:x"], prompts=["p"]), listing("b", resources=["u:x"], prompts=["p"]), bare=("b",)
    ).prompts_and_resources
    assert [(one.key, one.server) for one in mixed.resources] == [("typegate://a/u:x", "a"), ("u:x", "b")]
    assert [(one.key, one.server) for one in mixed.prompts] == [("a__p", "a"), ("p", "b")]


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("test://{id}/data", "test://1/data", True),
        ("test://{id}/data", "test://1/2/data", True),
        ("test://{id}/data", "test://1/dat", False),
        ("db://{t}/{id}", "db://users/7", True),
        ("db://{t}/{id}", "db:/users/7", False),
        ("plain://x", "plain://x", True),
        ("plain://x", "plain://xy", False),
        ("a{b}a", "a", False),
    ],
)
def test_server_whose_template_matches_is_asked_first(template: str, uri: str, fits: bool) -> None:
    items = catalog(listing("a", resources=["other:x"]), listing("b", templates=[template])).prompts_and_resources
    owners = [server for server, _ in items.owners(uri)]
    assert owners == (["b", "a"] if fits else ["a", "b"])


def test_template_with_more_literal_text_has_priority() -> None:
    items = catalog(
        listing("a", templates=["x://{a}"]), listing("b", templates=["x://users/{id}"])
    ).prompts_and_resources
    assert [server for server, _ in items.owners("x://users/7")] == ["b", "a"]


def test_server_without_resources_is_never_asked_to_read() -> None:
    items = catalog(listing("a", prompts=["p"]), listing("b", resources=["u:x"])).prompts_and_resources
    assert [server for server, _ in items.owners("u:unlisted")] == ["b"]


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(URIS, unique=True, max_size=4)))
def test_every_listed_resource_has_a_unique_uri_that_resolves(servers: dict[str, list[str]]) -> None:
    items = catalog(*(listing(server, resources=uris) for server, uris in servers.items())).prompts_and_resources
    pairs = {(one.server, one.original) for one in items.resources}
    assert len(items.resources) == len({one.key for one in items.resources}) == len(pairs)
    assert pairs == {(server, uri) for server, uris in servers.items() for uri in uris}
    for one in items.resources:
        assert items.owners(one.key) == ((one.server, one.original),)
        assert one.key in (one.original, f"{OWN_URI_PREFIX}{one.server}/{one.original}")


def test_change_names_the_affected_lists() -> None:
    before = catalog(listing("a", prompts=["p"], resources=["u:x"]))
    assert CatalogChange(before, catalog(listing("a", prompts=["q"], resources=["u:x"]))).kinds == {"prompts"}
    assert CatalogChange(before, catalog(listing("a", prompts=["p"], templates=["u:{x}"]))).kinds == {"resources"}
    assert not CatalogChange(before, catalog(listing("a", prompts=["p"], resources=["u:x"])))


def test_prompts_and_resources_are_rebuilt_only_after_changes() -> None:
    one = listing("a", prompts=["p"])
    before = catalog(one)
    assert catalog(one, previous=before).prompts_and_resources is before.prompts_and_resources
    assert (
        catalog(listing("a", prompts=["q"]), previous=before).prompts_and_resources is not before.prompts_and_resources
    )


def filtered(name_filter: NameFilter) -> ItemCatalog:
    one = listing("a", resources=["x://pub/1", "x://own/1"], templates=["x://pub/{id}", "x://own/{id}"])
    shape = Shape(servers={ServerName("a"): ServerShape(resources=name_filter)})
    return build_catalog({one.server: one}, shape, version=1).prompts_and_resources


def test_denied_template_denies_its_resources() -> None:
    found = filtered(NameFilter(deny=("x://own/{id}",)))
    assert [one.key for one in found.templates] == ["x://pub/{id}"]
    assert [one.key for one in found.resources] == ["x://pub/1"]
    for uri in ("x://own/1", "x://own/2", "typegate://a/x://own/2", "x://pub/../own/2", "x://%6fwn/2"):
        assert found.owners(uri) == (), uri
    assert found.owners("x://pub/2") == (("a", "x://pub/2"),)


def test_allow_list_of_resources_excludes_all_others() -> None:
    found = filtered(NameFilter(allow=("x://pub/*",)))
    assert [one.key for one in (*found.resources, *found.templates)] == ["x://pub/1", "x://pub/{id}"]
    assert found.owners("x://pub/2") == (("a", "x://pub/2"),)
    for uri in ("x://own/1", "x://own/2", "x://pub/../own/1", "x://unlisted", "typegate://a/x://own/1"):
        assert found.owners(uri) == (), uri


@pytest.mark.parametrize("uri", ["typegate://nobody/x://pub/1", "TypeGate://a/x://pub/1", "typegate:x", "typegate://a"])
def test_gateway_uri_naming_no_server_has_no_owner(uri: str) -> None:
    greedy = listing("a", templates=["{+anything}"])
    assert catalog(greedy).prompts_and_resources.owners(uri) == ()


def naming(server: str, *uris: str, **kinds: Any) -> ServerListing:
    """A listing with a tool for each URI, which names it."""
    tools = tuple({"name": f"t{at}", "_meta": {"ui": {"resourceUri": uri}}} for at, uri in enumerate(uris))
    return replace(listing(server, **kinds), tools=tools)


def test_shared_app_uri_keeps_its_scheme_in_resources_and_tools() -> None:
    built = catalog(naming("a", "ui://x/1", resources=["ui://x/1"]), naming("b", "ui://x/1"))
    items = built.prompts_and_resources
    assert [one.key for one in items.resources] == ["ui://a/x/1"]
    assert items.owners("ui://a/x/1") == (("a", "ui://x/1"),)
    assert items.owners("ui://b/x/1") == (("b", "ui://x/1"),)
    named = {one.server: one.definition["_meta"]["ui"]["resourceUri"] for one in built.wrappers}
    assert named == {"a": "ui://a/x/1", "b": "ui://b/x/1"}
    assert built.servers[ServerName("a")].tools[0]["_meta"]["ui"]["resourceUri"] == "ui://x/1"


def test_unlisted_app_is_read_from_the_server_whose_tool_names_it() -> None:
    items = catalog(listing("a", resources=["u:x"]), naming("b", "ui://b/only")).prompts_and_resources
    assert items.owners("ui://b/only") == (("b", "ui://b/only"),)
    assert items.exposed_uri("b", "ui://b/only") == "ui://b/only"


def test_uri_equal_to_a_qualified_one_is_qualified_too() -> None:
    items = catalog(
        listing("app", resources=["ui://x/1"]),
        listing("b", resources=["ui://x/1", "ui://app/x/1", "ui://b/app/x/1"]),
    ).prompts_and_resources
    pairs = {one.key: (one.server, one.original) for one in items.resources}
    assert pairs == {
        "ui://app/x/1": ("app", "ui://x/1"),
        "ui://b/x/1": ("b", "ui://x/1"),
        "ui://b/app/x/1": ("b", "ui://app/x/1"),
        "ui://b/b/app/x/1": ("b", "ui://b/app/x/1"),
    }
    for key, owner in pairs.items():
        assert items.owners(key) == (owner,)
        assert items.exposed_uri(*owner) == key


def test_uri_first_exposed_by_one_server_keeps_resolving_to_it() -> None:
    def shape_and(*listings: ServerListing, previous: Catalog | None = None) -> Catalog:
        shape = Shape(servers={ServerName(name): ServerShape() for name in ("a", "b")})
        return build_catalog({one.server: one for one in listings}, shape, version=1, previous=previous)

    kinds = {"resources": ["u:x"], "templates": ["n:{id}"]}
    a, b = listing("a", **kinds), listing("b", **kinds)
    alone = shape_and(b)
    both = shape_and(a, b, previous=alone)
    again = shape_and(listing("a", **kinds), b, previous=both)
    for items in (both.prompts_and_resources, again.prompts_and_resources):
        assert items.owners("u:x") == (("b", "u:x"),)
        template = items.template("n:{id}")
        assert template is not None
        assert (template.key, template.server) == ("typegate://b/n:{id}", "b")
    left = shape_and(listing("a", **kinds), listing("b", templates=["n:{id}"]), previous=again)
    assert left.prompts_and_resources.owners("u:x") == (("a", "u:x"),)
    unknown = shape_and(a, b).prompts_and_resources
    assert unknown.owners("u:x") == (("a", "u:x"), ("b", "u:x"))


@given(st.dictionaries(st.sampled_from(["a", "b", "x"]), st.lists(
    st.text(alphabet="abx/", max_size=5).map("ui://".__add__), unique=True, max_size=4)))  # fmt: skip
def test_every_app_has_a_unique_uri_that_resolves(servers: dict[str, list[str]]) -> None:
    items = catalog(*(listing(server, resources=uris) for server, uris in servers.items())).prompts_and_resources
    assert len({one.key for one in items.resources}) == sum(map(len, servers.values()))
    for one in items.resources:
        assert items.owners(one.key) == ((one.server, one.original),)
        assert items.exposed_uri(one.server, one.original) == one.key
        assert one.key.startswith("ui://")


@pytest.mark.parametrize(
    ("server", "uri", "exposed"),
    [
        ("a", "n://1", "n://1"),  # the server's own template is asked first
        ("b", "n://1", "typegate://b/n://1"),
        ("b", "https://example.test/n", "https://example.test/n"),  # for a browser
        ("b", "free:1", "free:1"),
        ("b", "u:a", "typegate://b/u:a"),  # another server lists it
        ("b", "ui://a/x", "ui://b/a/x"),
        ("b", "typegate://a/x", "typegate://a/x"),
    ],
)
def test_uri_in_a_result_resolves_to_its_server(server: str, uri: str, exposed: str) -> None:
    items = catalog(
        listing("a", resources=["u:a"], templates=["n://{id}", "https://{host}"]),
        listing("b", resources=["u:b"], templates=["n://{id}"]),
    ).prompts_and_resources
    assert items.exposed_uri(server, uri) == exposed
    if not uri.startswith(("https", "typegate", "free")):
        assert items.owners(exposed)[0] == (server, uri)


def test_qualified_uri_resolves_as_normalized_by_a_url_parser() -> None:
    items = catalog(listing("a", resources=["x y", "ui://x y/1"]), listing("b", resources=["ui://x y/1"]))
    found = items.prompts_and_resources
    assert found.owners("typegate://a/x%20y") == (("a", "x y"),)
    assert found.owners("ui://b/x%20y/1") == (("b", "ui://x y/1"),)


def test_templates_differing_only_in_variable_names_are_shared() -> None:
    def build(*listings: ServerListing, previous: Catalog | None = None) -> Catalog:
        shape = Shape(servers={ServerName(name): ServerShape() for name in ("a", "b")})
        return build_catalog({one.server: one for one in listings}, shape, version=1, previous=previous)

    a, b = listing("a", templates=["n://{id}"]), listing("b", templates=["n://{name}"])
    later = build(a, b, previous=build(b)).prompts_and_resources
    assert [one.key for one in later.templates] == ["typegate://a/n://{id}", "typegate://b/n://{name}"]
    assert later.owners("typegate://a/n://5") == (("a", "n://5"),)
    # A host that has expanded the template from before means the server that had it alone.
    assert later.owners("n://5")[0] == ("b", "n://5")
    assert later.exposed_uri("a", "n://5") == "typegate://a/n://5"
    assert later.exposed_uri("b", "n://5") == "n://5"
    assert build(a, b).prompts_and_resources.owners("n://5")[0] == ("a", "n://5")


def test_resource_whose_uri_is_not_a_url_is_reported() -> None:
    built = catalog(listing("a", resources=["not a url", "u:x"]))
    assert [one.key for one in built.prompts_and_resources.resources] == ["typegate://a/not a url", "u:x"]
    assert [(server, one.tool, one.code) for server, one in built.warnings] == [("a", "not a url", "not_a_url")]
