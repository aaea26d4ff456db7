"""The call suggested by a refusal is valid and keeps the correct values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.arguments.prepare import prepare
from registry.arguments.problems import explain
from registry.schema import schemas

NAMES = ["a", "b", "c", "limit"]
SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"enum": ["red", "green"]},
        {"const": 7},
        {"type": "integer", "minimum": 3, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "minLength": 12, "maxLength": 14},
        {"type": "string", "format": "date"},
        {"$ref": "#/$defs/count", "minimum": 10},
        {"$ref": "#/$defs/named"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"anyOf": [{"const": "km"}, {"const": "mile"}]},
        {"type": "integer", "default": 5},
    ]
)
DEFINITIONS = {"count": {"type": "integer"}, "named": {"type": "object", "properties": {"a": {"type": "string"}},
               "required": ["a"], "additionalProperties": False}}  # fmt: skip


def marked(kind: str, below: Any) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, f"of_{kind}": below}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@st.composite
def objects(draw: Any, below: Any) -> dict[str, Any]:
    properties = draw(st.dictionaries(st.sampled_from(NAMES), below, min_size=1))
    node: dict[str, Any] = {"type": "object", "properties": properties}
    node["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    match draw(st.sampled_from(["open", "closed", "map", "unevaluated", "dependent", "either"])):
        case "closed":
            node["additionalProperties"] = False
        case "map":
            node["additionalProperties"] = {"type": "integer"}
        case "unevaluated":
            node = {"allOf": [node], "unevaluatedProperties": False}
        case "dependent":
            first, last = min(properties), max(properties)
            node["dependentRequired"] = {first: [last]}
        case "either":
            node["anyOf"] = [{"required": [name]} for name in properties]
    return node


VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        objects(below),
        st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, below, st.integers(0, 3)),
        st.builds(lambda one, other: {"oneOf": [marked("x", one), marked("y", other)]}, below, below),
        st.builds(lambda one: {"type": "array", "prefixItems": [one, {"type": "string"}], "minItems": 2}, below),
        st.just({"type": "array", "items": {"type": "integer", "minimum": 2}, "minItems": 3, "uniqueItems": True}),
        st.just({"type": "array", "items": {"type": "string"}, "contains": {"const": "x"}}),
    ),
    max_leaves=5,
)
SENT = st.recursive(
    st.sampled_from([None, True, 5, 10, 0.5, 7, "red", "5", "x", "km", "2030-01-31", "y", "null", "[1]", ""]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*NAMES, "kind", "of_x", "A", "lim_it"]), inner, max_size=4),
    ),
    max_leaves=8,
)
OBJECTS_SENT = st.dictionaries(st.sampled_from([*NAMES, "A", "LIMIT", "other"]), SENT, max_size=5)
STANDING_FOR = {"<string>": "text", "<integer>": 12, "<number>": 0.25, "<boolean>": True, "<any>": "x", "<object>": {}}


def filled(example: Any, sent: Any) -> Any:
    """Return an example with what its placeholders stand for, and what was sent where it says so."""
    if isinstance(example, dict):
        inner = sent if isinstance(sent, dict) else {}
        return {name: filled(below, inner.get(name)) for name, below in example.items()}
    if isinstance(example, list):
        return [filled(item, None) for item in example]
    if example == "<as sent>":
        return sent
    if isinstance(example, str) and (options := re.fullmatch(r"<([^<> ]+\|[^<> ]+)>", example)):
        return options[1].split("|")[0]
    return STANDING_FOR.get(example, example) if isinstance(example, str) else example


def shown_call(text: str) -> Any:
    start = text.index("Call it like: ") + len("Call it like: ")
    example, _ = json.JSONDecoder().raw_decode(text[start:])
    return example


@pytest.mark.heavy
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None, max_examples=150)
@given(objects(VALUES), OBJECTS_SENT)
def test_suggested_call_is_valid(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    schema = {**schema, "$defs": DEFINITIONS}
    wrapper = wrapper_of("load", schema)
    done = prepare(wrapper, sent)
    assume(done.problems)
    text = explain(wrapper, done.problems, sent, checked=done.checked)
    assume("…" not in text)
    call = filled(shown_call(text), done.checked)
    assert schemas.validator(wrapper.checked_schema, wrapper.schema_digest).is_valid(call), text


def differences(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return where two values differ, and each member that is only in one."""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [(*path, name) for name in before.keys() ^ after.keys()]
        return gone + [one for name in before.keys() & after.keys() for one in
                       differences(before[name], after[name], (*path, name))]  # fmt: skip
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [one for n, pair in enumerate(zip(before, after, strict=True)) for one in differences(*pair, (*path, n))]
    return [] if (type(before), before) == (type(after), after) else [path]


@pytest.mark.heavy
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
@given(objects(VALUES), OBJECTS_SENT, st.sampled_from(["safe", "full"]))
def test_every_changed_value_is_reported_and_no_other(schema: Any, sent: Any, level: Any) -> None:
    wrapper = wrapper_of("load", {**schema, "$defs": DEFINITIONS})
    before = json.dumps(sent)
    done = prepare(wrapper, sent, level=level)
    assert json.dumps(sent) == before
    named = [repair.path for repair in done.repairs]
    # A renamed member changes two paths: that of the old name, and that of the new name, which is reported.
    named += [(*repair.path[:-1], repair.was) for repair in done.repairs if repair.was is not None]
    for path in [] if done.problems else differences(sent, done.arguments):
        assert any(path[: len(place)] == place for place in named), (path, done.repairs)
