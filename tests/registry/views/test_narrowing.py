"""A narrowed catalog contains exactly what profile and rules permit."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import ServerShape, Shape
from registry.policy.policy import CallRules, Grant
from registry.policy.rules import KINDS, ArgumentCondition, Conditions, ItemPatterns, Rule
from registry.views.profile import Profile, Selection, narrow_catalog

READ = {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
WRITE = {"name": "write", "inputSchema": {"type": "object"}}
SHAPE = Shape(
    servers={
        ServerName("a"): ServerShape(tags=("t",)),
        ServerName("b"): ServerShape(),
        ServerName("c"): ServerShape(),  # has listed nothing yet
    }
)
PATTERNS = st.sampled_from([None, ("*",), ("a__*",), ("*__read",), ("b__write",), ("mem://a/*",), ("*hello",), ()])
RULES = st.builds(
    Rule,
    name=st.just("r"),
    effect=st.sampled_from(["allow", "deny", "ask"]),
    what=st.builds(
        ItemPatterns,
        kinds=st.sampled_from(
            [frozenset(KINDS), frozenset({"tools"}), frozenset({"prompts"}), frozenset({"resources"})]
        ),
        servers=st.sampled_from([None, None, ("a",), ("?",)]),
        tags=st.sampled_from([None, None, ("t",)]),
        patterns=PATTERNS,
    ),
    conditions=st.builds(
        Conditions,
        hints=st.sampled_from([{}, {"readOnlyHint": True}]),
        arguments=st.sampled_from([(), (ArgumentCondition(path="n", above=1),)]),
    ),
)
SCOPES = st.sampled_from([frozenset(), {"tools"}, {"tools:read"}, {"prompts"}, {"resources:read"}, {"metrics"}])
GRANTS = st.builds(
    lambda rules, closed, scopes: Grant(rules, closed=closed, scopes=frozenset(scopes)),
    st.lists(RULES, max_size=3), st.booleans(), SCOPES,
)  # fmt: skip
PROFILES = st.builds(
    Profile,
    selection=st.builds(Selection, servers=st.sampled_from([None, ("a",)]), tools=PATTERNS, prompts=PATTERNS),
)


def catalog() -> Catalog:
    def listing(alias: str) -> ServerListing:
        return ServerListing(
            server=ServerName(alias), epoch=1, tools=(READ, WRITE),
            prompts=({"name": "hello"},),
            resources=({"uri": f"mem://{alias}/one", "name": "one"},),
        )  # fmt: skip

    return build_catalog({ServerName(alias): listing(alias) for alias in ("a", "b")}, SHAPE, version=1)


WHOLE = catalog()


@given(profile=PROFILES, grant=GRANTS)
def test_narrowed_catalog_contains_exactly_the_permitted_items(profile: Profile, grant: Grant) -> None:
    left, call_rules, servers = narrow_catalog(WHOLE, SHAPE, profile, grant)
    rules: dict[str, Any] = {}
    for wrapper in WHOLE.wrappers:
        own = SHAPE.for_server(wrapper.server)
        decided = grant.tool(wrapper, own, grant.rules_for_server(wrapper.server, own))
        by_arguments = isinstance(decided, CallRules)
        permitted = profile.permits(wrapper, own) and (by_arguments or decided.effect != "deny")
        assert (wrapper.name in left.by_name) == permitted, wrapper.name
        if permitted and by_arguments:
            rules[wrapper.name] = decided
    assert dict(call_rules) == rules
    items = WHOLE.prompts_and_resources
    prompts = [
        prompt.key
        for prompt in items.prompts
        if profile.permits_prompt(prompt, SHAPE.for_server(prompt.server))
        and grant.prompt(prompt, SHAPE.for_server(prompt.server)).effect != "deny"
    ]
    assert [prompt.key for prompt in left.prompts_and_resources.prompts] == prompts
    uris = [
        item.original
        for item in items.resources
        if profile.permits_uri(item.server, item.original, SHAPE.for_server(item.server))
        and grant.uri(item.server, item.original, SHAPE.for_server(item.server)).effect != "deny"
    ]
    assert [item.original for item in left.prompts_and_resources.resources] == uris
    for alias in SHAPE.servers:
        own = SHAPE.for_server(alias)
        may_have = profile.permits_server(alias, own) and grant.permits_server(alias, own)
        # A server without items for this caller is named only to callers without rules.
        empty = alias in WHOLE.servers and not left.has_items_of(alias) and not grant.is_open
        assert (alias in servers) == (may_have and not empty), alias
        if alias in WHOLE.servers:
            assert (alias in left.servers) == (may_have and not empty), alias


def test_grant_is_open_only_without_rules_scopes_and_closed_default() -> None:
    rule = Rule(name="r", effect="deny", what=ItemPatterns(patterns=("x",)))
    assert Grant().is_open
    assert not Grant([rule]).is_open
    assert not Grant(closed=True).is_open
    assert not Grant(scopes=frozenset({"tools"})).is_open
