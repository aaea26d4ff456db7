"""Repair, then defaults, then validation; a valid call is unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wrappers import wrapper_of

from registry.arguments.prepare import fill_defaults, prepare
from registry.catalog.catalog import ToolWrapper

EVENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "timeZone": {"type": "string"},
        "startDate": {"type": "string"},
        "endDate": {"type": "string"},
        "limit": {"type": "integer"},
    },
    "required": ["timeZone", "startDate"],
}
ZONE = {"timeZone": "Europe/Paris", "to": ["a@b"]}


def wrapper(schema: Any = EVENTS) -> ToolWrapper:
    return wrapper_of("get_calendar_events", schema)


@pytest.mark.parametrize("defaults", [{}, {"endDate": "x"}])
def test_valid_call_is_returned_unchanged(defaults: dict[str, Any]) -> None:
    sent = {"timeZone": "UTC", "startDate": "d", "endDate": "e", "other": 1}
    prepared = prepare(wrapper(), sent, defaults=defaults)
    assert prepared.arguments is sent
    assert (prepared.repairs, prepared.filled, prepared.problems) == ((), (), ())


def test_defaults_fill_absent_declared_parameters_before_the_required_check() -> None:
    prepared = prepare(wrapper(), {"startDate": "d"}, defaults=ZONE)
    assert prepared.arguments == {"startDate": "d", "timeZone": "Europe/Paris"}
    assert (prepared.filled, prepared.problems) == (("timeZone",), ())


def test_default_does_not_replace_a_misspelled_argument() -> None:
    prepared = prepare(wrapper(), {"startDate": "d", "time_zone": "UTC"}, defaults=ZONE)
    assert prepared.arguments == {"startDate": "d", "timeZone": "UTC"}
    assert [one.name for one in prepared.repairs] == ["renamed"]
    assert prepared.filled == ()


def test_parameters_missing_after_defaults_are_named() -> None:
    prepared = prepare(wrapper(), {}, defaults=ZONE)
    assert [problem.path for problem in prepared.problems] == [("startDate",)]
    assert prepared.arguments == {}


def test_default_of_the_wrong_type_is_not_filled() -> None:
    sent = {"timeZone": "UTC", "startDate": "d"}
    prepared = prepare(wrapper(), sent, defaults={"limit": "many"})
    assert prepared.arguments is sent
    assert prepared.filled == ()


def test_null_means_empty_arguments() -> None:
    optional = {"type": "object", "properties": {"limit": {"type": "integer"}}}
    for level in ("off", "safe", "full"):
        assert prepare(wrapper(optional), None, level=level).arguments == {}
        assert [problem.kind for problem in prepare(wrapper(), None, level=level).problems] == ["missing"] * 2


def test_problems_refer_to_the_unwrapped_arguments() -> None:
    prepared = prepare(wrapper(), {"params": {"startDate": 5}})
    assert [(problem.kind, problem.path) for problem in prepared.problems] == [
        ("missing", ("timeZone",)),
        ("type", ("startDate",)),
    ]
    assert prepared.checked == {"startDate": 5}
    assert prepared.arguments == {"params": {"startDate": 5}}


def test_repairs_off_still_fills_defaults() -> None:
    wrapped = {"arguments": {"startDate": "d", "timeZone": "UTC"}}
    assert prepare(wrapper(), wrapped, level="off").problems
    assert prepare(wrapper(), {"startDate": "d"}, level="off", defaults=ZONE).arguments["timeZone"] == "Europe/Paris"


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "https://nowhere.example/x", "properties": {"a": {}}}])
def test_schema_that_does_not_compile_leaves_the_check_to_the_upstream(schema: Any) -> None:
    sent = {"A": "1"}
    assert prepare(wrapper(schema), sent).arguments is sent
    assert prepare(wrapper(schema), "text").problems


def test_default_is_filled_through_allof_and_ref() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/zoned"}], "$defs": {"zoned": {"properties": {"timeZone": {}}}}}
    assert fill_defaults(schema, {}, ZONE) == {"timeZone": "Europe/Paris"}


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
MEMBERS = st.dictionaries(st.sampled_from(["timeZone", "startDate", "limit", "to", "x"]), JSON, max_size=4)


@given(MEMBERS, MEMBERS)
def test_filling_adds_only_declared_parameters_and_keeps_existing_values(
    sent: dict[str, Any], defaults: dict[str, Any]
) -> None:
    filled = fill_defaults(EVENTS, sent, defaults)
    assert {key: filled[key] for key in sent} == sent
    assert set(filled) - set(sent) == {key for key in defaults if key in EVENTS["properties"] and key not in sent}
    assert fill_defaults(EVENTS, filled, defaults) is filled
