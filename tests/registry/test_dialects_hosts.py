"""Every tool of real servers reaches the model of every host, and a call comes back to it.

Each host is simulated by what the table of hosts says of it, written down here apart from the rules under
test: how it writes names, what it truncates, confuses, drops, and what makes it lose the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from corpus.samples import sample
from corpus.servers import listings
from dialect_rules import as_json_schema, nodes, offences, without_nulls

from registry import schemas
from registry.catalog import Catalog, ServerListing, build
from registry.dialects import Lowered, lower, restore
from registry.hosts import DIALECTS, misfits, name_budget, name_fits
from registry.intake import admit
from registry.names import ServerName
from registry.shape import Shape

KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host as it was seen to behave.

    Attributes:
        form: How it writes a name.
        kept: The characters that it does not replace by `_`.
        limit: Characters of the whole name; longer ones are cut.
        namesakes: What becomes of two names that are one.
        drops: What in a schema loses the tool.
        fails: What in a schema loses the whole list.
        description: Characters of a description that it shows.
        most: How many tools it takes; our lists have one page.
    """

    form: str = "{tool}"
    kept: str = "A-Za-z0-9_-"
    limit: int = 10_000
    namesakes: str = "last"
    description: int = 10_000_000
    most: int = 10_000
    drops: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()

    def offered(self, tools: list[dict[str, Any]], label: str) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return what the model sees, by the name that it sees: the name to call, and the definition."""
        seen: dict[str, tuple[str, dict[str, Any]]] = {}
        for tool in tools[: self.most]:
            flaws = set(flaws_of(tool["inputSchema"]))
            if flaws & set(self.fails):
                return {}
            if flaws & set(self.drops):
                continue
            label_kept, tool_kept = (re.sub(f"[^{self.kept}]", "_", part) for part in (label, tool["name"]))
            shown = self.form.format(label=label_kept, tool=tool_kept)[: self.limit]
            if shown in seen:
                if self.namesakes == "lost":
                    return {}
                if self.namesakes == "first":
                    continue
            seen[shown] = (tool["name"], {**tool, "description": tool["description"][: self.description]})
        return seen


def flaws_of(schema: Any) -> list[str]:
    found = ["root composition"] if schema.keys() & {"anyOf", "oneOf", "allOf"} else []
    found += ["root type"] if schema.get("type") != "object" else []
    for node in nodes(schema):
        properties = node.get("properties", {})
        found += ["boolean property"] if any(isinstance(one, bool) for one in properties.values()) else []
        found += ["items list"] if isinstance(node.get("items"), list) else []
        found += ["odd key"] if not all(KEY.fullmatch(name) for name in properties) else []
        found += ["reference"] if "$ref" in node else []
        found += ["unknown to gemini"] if node.keys() & {"$defs", "$schema", "additionalProperties"} else []
        found += ["no items"] if node.get("type") == "array" and "items" not in node else []
        found += ["open"] if node.get("type") == "object" and node.get("additionalProperties") is not False else []
        found += ["optional"] if set(properties) - set(node.get("required", ())) else []
    return found


ALL = ("root type", "boolean property")
HOSTS: Mapping[str, Host] = {
    "claude-code": Host(
        form="mcp__{label}__{tool}",
        limit=64,
        namesakes="first",
        description=2_048,
        drops=("root composition",),
        fails=(*ALL, "odd key"),
    ),
    "claude-desktop": Host(
        form="mcp__{label}__{tool}", limit=64, fails=(*ALL, "root composition", "odd key"), description=2_048
    ),
    "codex": Host(
        form="mcp__{label}__{tool}", kept="A-Za-z0-9_", limit=128, namesakes="lost", drops=("items list",), fails=ALL
    ),
    "gemini-cli": Host(form="mcp_{label}_{tool}", kept="A-Za-z0-9_.:-", limit=63, fails=ALL),
    "qwen-code": Host(form="mcp__{label}__{tool}", kept="A-Za-z0-9_.-", limit=63, namesakes="lost", fails=ALL),
    "opencode": Host(form="{label}_{tool}", fails=ALL),
    "cursor": Host(form="{label}{tool}", limit=59, fails=ALL),
    "vscode": Host(form="mcp_{label}_{tool}", limit=64, most=128, fails=ALL),
    "anthropic": Host(limit=64, fails=(*ALL, "root composition", "odd key")),
    "openai": Host(limit=64, most=128, description=1_024, fails=ALL),
    "openai-strict": Host(limit=64, most=128, description=1_024, fails=(*ALL, "root composition", "open", "optional")),
    "gemini": Host(
        limit=64, kept="A-Za-z0-9_.:-", fails=(*ALL, "reference", "unknown to gemini", "no items", "items list")
    ),
}


def catalog_of(tools: Mapping[str, list[dict[str, Any]]], max_length: int = 48) -> Catalog:
    admitted = {
        ServerName(name): ServerListing(server=ServerName(name), epoch=1, tools=admit(one, transport="stdio").tools)
        for name, one in tools.items()
    }
    return build(admitted, Shape(max_length=max_length), version=1)


def lowered_tools(catalog: Catalog, dialect: str) -> dict[str, Lowered]:
    return {wrapper.name: lower(wrapper.definition, dialect) for wrapper in catalog.wrappers}


def servers_for(host: Host) -> dict[str, list[dict[str, Any]]]:
    """As many servers as a host has places for tools."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    for server, tools in sorted(listings().items(), key=lambda item: len(item[1])):
        if sum(map(len, chosen.values())) + len(tools) <= host.most:
            chosen[server] = tools
    return chosen


@pytest.mark.parametrize("label", ["gw", "gateway"])
@pytest.mark.parametrize("name", HOSTS)
def test_every_tool_of_real_servers_is_offered_uncut_and_callable_back(name: str, label: str) -> None:
    host, servers = HOSTS[name], servers_for(HOSTS[name])
    catalog = catalog_of(servers)
    assert len(servers) >= 10
    assert len(catalog.wrappers) == sum(map(len, servers.values())) >= 100
    lowered = lowered_tools(catalog, name)
    sent = [one.definition for one in lowered.values()]
    assert misfits(lowered, DIALECTS[name], label) == {}
    seen = host.offered(sent, label)
    assert {called for called, _ in seen.values()} == set(lowered)
    for shown, (called, definition) in seen.items():
        assert definition == lowered[called].definition
        assert offences(definition, name) == []
        assert len(shown) <= host.limit
        assert catalog.resolve(called).name == called


@pytest.mark.parametrize("name", HOSTS)
def test_ordinary_calls_to_real_tools_fit_what_is_shown_and_come_back_as_they_were(name: str) -> None:
    catalog = catalog_of(listings())
    for wrapper in catalog.wrappers:
        lowered = lower(wrapper.definition, name)
        readable = schemas.compile_schema(as_json_schema(lowered.definition["inputSchema"]))
        for everything in (False, True):
            call = sample(wrapper.input_schema, wrapper.input_schema, everything)
            written = with_nulls(call, lowered.definition["inputSchema"]) if name == "openai-strict" else call
            assert readable.is_valid(written) or lowered.narrower, wrapper.name
            assert restore(call, lowered) is call
            back = restore(written, lowered)
            # A null that the tool itself accepts is the caller's own.
            assert without_nulls(back) == without_nulls(call), wrapper.name
            assert schemas.validator(wrapper.input_schema, wrapper.schema_digest).is_valid(back), wrapper.name


def with_nulls(value: Any, schema: dict[str, Any]) -> Any:
    """What a model writes that has to give every parameter there is."""
    schema = schema.get("anyOf", [schema])[0]
    if isinstance(value, list) and "items" in schema:
        return [with_nulls(one, schema["items"]) for one in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    return {name: with_nulls(value.get(name), below) for name, below in schema["properties"].items()}


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
def test_what_a_host_would_drop_or_fail_on_is_offered_once_it_is_lowered(name: str) -> None:
    host = HOSTS[name]
    good = {"name": "s__good", "description": "Good.", "inputSchema": {"type": "object"}}
    for flaw, schema in HARD.items():
        hard = {"name": "s__hard", "description": "Hard.", "inputSchema": schema}
        raw = host.offered([good, hard], "gw")
        assert (len(raw) < 2) >= (flaw in (*host.drops, *host.fails)), flaw
        lowered = host.offered([lower(good, name).definition, lower(hard, name).definition], "gw")
        assert len(lowered) == 2, flaw


def test_names_that_a_host_would_cut_confuse_or_leave_out_are_reported() -> None:
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
    assert misfits(["s__a-b", "s__a_b", "s__c"], codex).keys() == {"s__a-b", "s__a_b"}
    assert misfits(["s__c", "s__c"], qwen).keys() == {"s__c"}
    assert not name_fits("n" * 53, cursor, "gateway")
    assert not name_fits("1st", DIALECTS["gemini"])
    assert list(misfits([f"s__t{n}" for n in range(130)], DIALECTS["openai"])) == ["s__t128", "s__t129"]


def test_names_compiled_for_a_budget_fit_the_label_of_36_characters() -> None:
    budget = name_budget(DIALECTS["claude-desktop"], "x" * 36)
    assert budget is not None
    catalog = catalog_of(listings(), max_length=budget)
    names = [wrapper.name for wrapper in catalog.wrappers]
    assert misfits(names, DIALECTS["claude-desktop"], "x" * 36) == {}
