"""Selections and cuts as pure functions: bounds, suggestions, and what is lost or not lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.result_shaping import Cut, ReadJob, ShapeJob, cut, split_lines
from gateway.calls.selection import (
    INLINE_STEPS,
    SelectionRefused,
    SelectionTooCostly,
    parse_selection,
    resolve_pointer,
    select,
)

ISSUES = {"items": [{"number": n, "title": f"Issue {n}"} for n in range(50)], "total": 50}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=60,
)


def selected(value: Any, written: Any, steps: int = 1_000_000) -> Any:
    selection = parse_selection(written)
    assert selection is not None
    return select(value, selection, most_steps=steps, most_bytes=len(json.dumps(value)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("items[0].title", "Issue 0"),
        ("items[?number > `47`].number", [48, 49]),
        ("length(items)", 50),
        ("items[:2].{n: number}", [{"n": 0}, {"n": 1}]),
        (["/total", "/items/1/title"], {"/total": 50, "/items/1/title": "Issue 1"}),
        ("/total", {"/total": 50}),
    ],
)
def test_selection_returns_the_named_parts(written: Any, expected: Any) -> None:
    assert selected(ISSUES, written).value == expected


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("items[].titel", "no field 'titel' (did you mean 'title'?); the fields are: number, title"),
        ("item[].title", "no field 'item' (did you mean 'items'?)"),
        ("[].title", "the result is an object with the fields: items, total"),
        (["/items/99/title"], "there is a list of 50 items, without an item '99'"),
        (["/items/0/nr"], "at '/items/0', there is no field 'nr'"),
    ],
)
def test_unknown_fields_are_answered_with_suggestions(written: Any, hint: str) -> None:
    assert hint in "; ".join(selected(ISSUES, written).hints)


@pytest.mark.parametrize("written", ["items[", "nothing(@)", "(" * 999, 5, {}, [], [1], ["items"], "a" * 1_001])
def test_invalid_selection_is_refused_before_it_is_applied(written: Any) -> None:
    with pytest.raises(SelectionRefused):
        parse_selection(written)


@pytest.mark.parametrize(
    "written",
    [
        "|".join(["[@,@]"] * 100),
        "|".join(["[@,@][]"] * 100),
        "|".join(["[@,@][]"] * 12) + "|[].items[].items[?contains(title, 'x')]",
        "to_string(" * 80 + "@" + ")" * 80,
        "join('', [" + ",".join(["to_string(@)"] * 60) + "])",
        "items == (" * 60 + "items" + ")" * 60,
    ],
)
def test_steps_and_size_of_a_selection_are_bounded(written: str) -> None:
    try:
        found = selected(ISSUES, written, INLINE_STEPS).value
    except SelectionTooCostly:
        return
    assert len(json.dumps(found)) < 200_000


@given(value=JSON, budget=st.integers(min_value=300, max_value=3_000))
def test_cut_value_fits_and_reports_what_is_missing(value: Any, budget: int) -> None:
    cuts: list[Cut] = []
    shown = cut(value, budget, "", cuts)
    if not cuts:
        assert shown == value
    for one in cuts:
        assert 0 < one.shown <= one.of
        whole, part = resolve_pointer(value, one.pointer), resolve_pointer(shown, one.pointer)
        if one.unit == "items":
            assert len(whole) == one.of
            assert len(part) == one.shown
        elif one.unit == "lines":
            assert whole.startswith(part)


@given(text=st.text(max_size=2_000))
def test_lines_joined_are_the_text(text: str) -> None:
    assert "".join(split_lines(text)) == text


@given(value=st.lists(st.text(max_size=900) | st.integers(), min_size=1, max_size=60), limit=st.integers(2_000, 6_000))
def test_reading_on_returns_every_item_once(value: list[Any], limit: int) -> None:
    stored, read, offset = json.dumps(value).encode(), list[Any](), 0
    while offset < len(value):
        job = ReadJob(handle="h", offset=offset, max_bytes=limit)
        first, *notices = job.run(stored)
        page = json.loads(first["text"])
        read += page
        offset += len(page)
        assert bool(notices) == (offset < len(value))
    assert read == value


def test_result_within_its_limits_is_unchanged() -> None:
    result = json.dumps({"content": [{"type": "text", "text": "short"}]}).encode()
    assert ShapeJob(handle="h", name="t", max_bytes=2_000).run(result) is None
