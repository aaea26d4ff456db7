"""Every tool of real servers reaches the model of every host, and a call comes back to it.

Each host is simulated according to the table of hosts; see `simulated_hosts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from corpus.samples import sample
from corpus.servers import listings
from support.dialect_rules import as_json_schema, remove_null_alternatives, violations
from support.simulated_hosts import HOSTS, servers_for, with_nulls

from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape
from registry.dialects.client_profiles import DIALECTS, name_budget, name_fits, unsupported_names
from registry.dialects.definitions import LoweredDefinition, lower_definition, map_arguments
from registry.intake.tool_intake import admit_tools
from registry.schema import schemas


def catalog_of(tools: Mapping[str, list[dict[str, Any]]], max_length: int = 48) -> Catalog:
    admitted = {
        ServerName(name): ServerListing(
            server=ServerName(name), epoch=1, tools=admit_tools(one, transport="stdio").items
        )
        for name, one in tools.items()
    }
    return build_catalog(admitted, Shape(max_length=max_length), version=1)


def lowered_tools(catalog: Catalog, dialect: str) -> dict[str, LoweredDefinition]:
    return {wrapper.name: lower_definition(wrapper.definition, dialect) for wrapper in catalog.wrappers}


# On a new machine, the installation of seventeen servers takes three minutes.
needs_real_servers = pytest.mark.heavy


def test_every_dialect_has_a_simulated_host() -> None:
    # `mcp` is the protocol itself, which changes nothing.
    assert set(HOSTS) == set(DIALECTS) - {"mcp"}


@needs_real_servers
@pytest.mark.parametrize("label", ["gw", "gateway"])
@pytest.mark.parametrize("name", HOSTS)
def test_every_tool_of_real_servers_is_offered_unchanged_and_callable(name: str, label: str) -> None:
    host, servers = HOSTS[name], servers_for(HOSTS[name])
    catalog = catalog_of(servers)
    assert len(servers) >= 10
    assert len(catalog.wrappers) == sum(map(len, servers.values())) >= 100
    lowered = lowered_tools(catalog, name)
    sent = [one.definition for one in lowered.values()]
    assert unsupported_names(lowered, DIALECTS[name], label) == {}
    seen = host.offered(sent, label)
    assert {called for called, _ in seen.values()} == set(lowered)
    for shown, (called, definition) in seen.items():
        assert definition == lowered[called].definition
        assert violations(definition, name) == []
        assert len(shown) <= host.limit
        assert catalog.resolve(called).name == called


@needs_real_servers
@pytest.mark.parametrize("name", HOSTS)
def test_ordinary_calls_to_real_tools_round_trip(name: str) -> None:
    catalog = catalog_of(listings())
    excused: list[str] = []
    for wrapper in catalog.wrappers:
        lowered = lower_definition(wrapper.definition, name)
        readable = schemas.compile_schema(as_json_schema(lowered.definition["inputSchema"]))
        for everything in (False, True):
            call = sample(wrapper.input_schema, wrapper.input_schema, everything)
            written = with_nulls(call, lowered.definition["inputSchema"]) if name == "openai-strict" else call
            if not readable.is_valid(written):
                assert lowered.narrower, wrapper.name
                excused.append(wrapper.name)
            assert map_arguments(call, lowered) is call
            back = map_arguments(written, lowered)
            # A null that the tool itself accepts is the caller's own.
            assert remove_null_alternatives(back) == remove_null_alternatives(call), wrapper.name
            assert schemas.validator(wrapper.input_schema, wrapper.schema_digest).is_valid(back), wrapper.name
    # Strict schemas have no objects with arbitrary members, which two tools of one server are about.
    assert len(set(excused)) <= (2 if name == "openai-strict" else 0), excused


HARD = {
    "root composition": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "odd key": {"type": "object", "properties": {"$top": {"type": "integer"}}},
    "items list": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "array", "items": [{"type": "string"}]}},
    },
    "reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "array"}}},
    "optional": {"type": "object", "properties": {"a": {"type": "string"}}},
    "boolean property": {"type": "object", "properties": {"a": True, "b": False}},
}


@pytest.mark.parametrize("name", HOSTS)
def test_lowered_schema_is_offered_where_the_original_is_dropped(name: str) -> None:
    host = HOSTS[name]
    good = {"name": "s__good", "description": "Good.", "inputSchema": {"type": "object"}}
    for flaw, schema in HARD.items():
        hard = {"name": "s__hard", "description": "Hard.", "inputSchema": schema}
        raw = host.offered([good, hard], "gw")
        assert (len(raw) < 2) >= (flaw in (*host.drops, *host.fails)), flaw
        lowered = host.offered([lower_definition(good, name).definition, lower_definition(hard, name).definition], "gw")
        assert len(lowered) == 2, flaw


def test_names_a_host_would_truncate_or_drop_are_reported() -> None:
    claude, qwen, codex, cursor = (DIALECTS[name] for name in ("claude-code", "qwen-code", "codex", "cursor"))
    assert name_budget(qwen, "gw") == 54
    assert name_budget(codex, "gw") == 119
    assert name_budget(DIALECTS["gemini-cli"], "gw") == 56
    assert name_budget(DIALECTS["claude-desktop"], "x" * 36) == 21
    assert name_budget(DIALECTS["mcp"], "gw") == 128
    assert name_fits("s__" + "x" * 45, claude, "gateway")
    assert not name_fits("s__" + "x" * 60, claude, "gateway")
    assert not name_fits("s__näme", claude)
    assert not name_fits("s.name", codex)
    assert name_fits("s__a-b", codex)
    assert unsupported_names(["s__a-b", "s__a_b", "s__c"], codex).keys() == {"s__a-b", "s__a_b"}
    assert unsupported_names(["s__c", "s__c"], qwen).keys() == {"s__c"}
    assert not name_fits("n" * 53, cursor, "gateway")
    assert not name_fits("1st", DIALECTS["gemini"])
    assert list(unsupported_names([f"s__t{n}" for n in range(130)], DIALECTS["openai"])) == ["s__t128", "s__t129"]


@needs_real_servers
def test_names_for_a_budget_fit_a_label_of_36_characters() -> None:
    budget = name_budget(DIALECTS["claude-desktop"], "x" * 36)
    assert budget is not None
    catalog = catalog_of(listings(), max_length=budget)
    names = [wrapper.name for wrapper in catalog.wrappers]
    assert unsupported_names(names, DIALECTS["claude-desktop"], "x" * 36) == {}
