"""Callers are answered in the names shown to them, and may use them in any repairable form."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.calls.advice import error_hints
from registry.arguments.coercion import report_repairs
from registry.arguments.invoke_tool import resolve_invoke_tool
from registry.arguments.prepare import prepare
from registry.arguments.problems import as_advertised, explain
from registry.catalog.catalog import ToolWrapper
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import Shape
from registry.dialects.definitions import LoweredDefinition, lower_definition

ODD = ["order by", "$top", "naïve", "a/b", "x" * 70, "from:", "日付"]
NAMES = st.sampled_from([*ODD, "plain", "size"])
LEAVES = st.sampled_from(
    [({"type": "string"}, "x"), ({"type": "integer"}, 5), ({"type": "boolean"}, True), ({"type": "number"}, 1.5)]
)


@st.composite
def fitting(draw: st.DrawFn, depth: int = 0) -> tuple[dict[str, Any], Any]:
    """A schema with names that an API refuses, and a value that fits it."""
    kind = draw(st.sampled_from(["leaf", "list", "object"])) if 0 < depth < 3 else "object" * (depth < 3)
    if kind == "object":
        parts = {name: draw(fitting(depth + 1)) for name in draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))}
        schema = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
            "required": list(parts),
            "additionalProperties": False,
        }
        return schema, {name: part[1] for name, part in parts.items()}
    if kind == "list":
        schema, value = draw(fitting(depth + 1))
        return {"type": "array", "items": schema}, [value, value]
    return draw(LEAVES)


def tool_of(schema: dict[str, Any]) -> tuple[ToolWrapper, LoweredDefinition]:
    """A tool with this schema, and how `anthropic` shows it."""
    server = ServerName("up")
    definition = {"name": "ask", "description": "Asks.", "inputSchema": schema}
    listing = ServerListing(server=server, epoch=1, tools=(definition,))
    wrapper = build_catalog({server: listing}, Shape(), version=1).resolve("up__ask")
    return wrapper, lower_definition(wrapper.definition, "anthropic")


def as_written(value: Any, names: dict[str, str]) -> Any:
    """A value with the names that were shown."""
    if isinstance(value, dict):
        return {names.get(key, key): as_written(child, names) for key, child in value.items()}
    return [as_written(child, names) for child in value] if isinstance(value, list) else value


def texts_within(value: Any) -> Any:
    """The same with every object or list inside written as text."""
    return {key: json.dumps(one) if isinstance(one, dict | list) else one for key, one in value.items()}


def strange_in(text: str, names: dict[str, str]) -> list[str]:
    """Return the original names in a text, except where the shown schema mentions them."""
    rest = re.sub(r"originally named [^\"();]*", "", text)
    return [name for name in names if name in rest]


WRITINGS = {
    "as it is": lambda sent: sent,
    "as text": json.dumps,
    "as text of text": lambda sent: json.dumps(json.dumps(sent)),
    "wrapped": lambda sent: {"arguments": sent},
    "wrapped as text": lambda sent: {"params": json.dumps(sent)},
    "wrapped twice": lambda sent: {"input": {"arguments": sent}},
    "inner values as text": texts_within,
    "inner values as text, wrapped": lambda sent: {"args": texts_within(sent)},
}


@settings(max_examples=150, deadline=None)
@given(fitting(), st.sampled_from(sorted(WRITINGS)))
def test_call_in_shown_names_reaches_the_tool_in_original_names(drawn: tuple[dict[str, Any], Any], how: str) -> None:
    schema, value = drawn
    wrapper, lowered = tool_of(schema)
    sent = WRITINGS[how](as_written(value, dict(lowered.shown_names)))
    prepared = prepare(wrapper, sent, lowered=lowered)
    assert prepared.problems == ()
    assert prepared.arguments == value


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(fitting(), st.sampled_from(sorted(WRITINGS)), st.data())
def test_refusal_uses_only_names_shown_to_the_caller(
    drawn: tuple[dict[str, Any], Any], how: str, data: st.DataObject
) -> None:
    schema, value = drawn
    wrapper, lowered = tool_of(schema)
    names = dict(lowered.shown_names)
    left_out = data.draw(st.sampled_from(sorted(value)))
    sent = as_written({key: one for key, one in value.items() if key != left_out}, names)
    spoilt = data.draw(st.sampled_from(sorted(sent) or [""]))
    also_spoilt = bool(spoilt) and data.draw(st.booleans())
    if also_spoilt:
        sent[spoilt] = [[["neither this nor that"]]]
    wrapped = WRITINGS[how](sent)
    prepared = prepare(wrapper, wrapped, lowered=lowered)
    assert prepared.problems
    for via in ("wrapper", "invoke_tool"):
        text = explain(
            wrapper,
            prepared.problems,
            wrapped,
            via=via,
            checked=prepared.checked,
            lowered=lowered,
        )
        if not also_spoilt:
            assert f"Missing: {names.get(left_out, left_out)}" in text
        assert not strange_in(text, names)
        assert "neither this nor that" not in text


ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order by": {"type": "object", "properties": {"$top": {"type": "integer"}}, "required": ["$top"]},
        "all of them": {"type": "array", "items": {"type": "object", "properties": {"$top": {"type": "integer"}}}},
        "how/why": {"enum": ["up", "down"]},
    },
    "required": ["order by"],
    "additionalProperties": False,
    "dependentRequired": {"how/why": ["all of them"]},
}


@pytest.fixture
def ordering() -> tuple[ToolWrapper, LoweredDefinition, dict[str, str]]:
    wrapper, lowered = tool_of(ORDER)
    return wrapper, lowered, dict(lowered.shown_names)


def test_every_problem_and_hint_uses_the_shown_names(
    ordering: tuple[ToolWrapper, LoweredDefinition, dict[str, str]],
) -> None:
    wrapper, lowered, shown = ordering
    by, top, every, how = (shown[name] for name in ("order by", "$top", "all of them", "how/why"))
    for sent, words in (
        ({by: {}}, f"Missing: {by}.{top}."),
        ({by: {top: "x"}}, f"{by}.{top} is declared as integer, you sent a string"),
        ({by: {top: 1}, how: "sideways", every: []}, f'{how} must be one of ["up","down"]'),
        ({by: {top: 1}, how[:-2]: "up"}, f"{how[:-2]} is not a parameter; did you mean {how}?"),
        ({by: {top: 1}, every: [{top: 1}, {top: []}]}, f"{every}[1].{top} is declared as integer"),
        ({by: {top: 1}, how: "up"}, every),
        ({by[:-2]: {top: 1}}, f"{by[:-2]} is not a parameter; did you mean {by}?"),
    ):
        prepared = prepare(wrapper, sent, lowered=lowered)
        text = explain(wrapper, prepared.problems, sent, checked=prepared.checked, lowered=lowered)
        assert words in text
        call = json.loads(text.partition("Call it like: ")[2].partition(" Schema: ")[0])
        assert call[by] in ({top: "<integer>"}, "<as sent>")
        assert set(call) <= set(shown.values())
        assert not strange_in(text, shown)


def test_repair_is_reported_in_shown_names(
    ordering: tuple[ToolWrapper, LoweredDefinition, dict[str, str]],
) -> None:
    wrapper, lowered, shown = ordering
    by, top = shown["order by"], shown["$top"]
    prepared = prepare(wrapper, {by: {top: "5"}}, lowered=lowered)
    assert prepared.arguments == {"order by": {"$top": 5}}
    assert report_repairs(prepared.repairs, lowered.shown_names)["repairs"] == [
        {"repair": "converted", "path": f"{by}.{top}"}
    ]
    found = resolve_invoke_tool(
        {"server": "up", "tool": "ask", "arguments": {by: {top: 5}}, "x": 1}, _catalog(wrapper), ["up"]
    )
    assert found.wrapper is not None
    assert by in str(as_advertised(found.wrapper, lowered).input_schema)


def _catalog(wrapper: ToolWrapper) -> Any:
    listing = ServerListing(server=wrapper.server, epoch=1, tools=({"name": "ask", "inputSchema": ORDER},))
    return build_catalog({wrapper.server: listing}, Shape(), version=1)


def test_hint_beside_an_upstream_error_uses_the_shown_names(
    ordering: tuple[ToolWrapper, LoweredDefinition, dict[str, str]],
) -> None:
    wrapper, lowered, shown = ordering
    upstream_result = {"isError": True, "content": [{"type": "text", "text": "'order by' was not provided"}]}
    result = error_hints.with_hint(upstream_result, wrapper, {"how/why": "up"}, lowered=lowered)
    first, added = (item["text"] for item in result["content"])
    assert first == "'order by' was not provided"
    assert f"Missing: {shown['order by']}." in added
    assert f"Keys sent: {shown['how/why']}." in added
    assert not strange_in(added, shown)
