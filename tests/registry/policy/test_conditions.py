"""Conditions on arguments: what fits, what does not, and on which side a doubt falls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import SchemaRejected
from registry.policy.conditions import ArgumentCondition, check_pattern

Json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab1.", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=2),
    max_leaves=8,
)


def condition(path: str = "amount", **tests: Any) -> ArgumentCondition:
    return ArgumentCondition(path=path, **tests)


@pytest.mark.parametrize(
    ("tests", "fitting", "other"),
    [
        ({"equals": ("FR", "DE")}, ["FR", "DE"], ["fr", 1, None]),
        ({"equals": (1,)}, [1, 1.0], [True, "1", 2]),
        ({"excludes": ("root",)}, ["ann", 1], ["root"]),
        ({"pattern": "^a+$"}, ["a", "aa"], ["b", "ab"]),
        ({"above": 1000}, [1000.5, 1001, 10**400, "1001"], [1000, 999, -1]),
        ({"above": 0, "below": 10}, [5, "5"], [0, 10, 11]),
    ],
)
def test_a_value_fits_or_does_not(tests: dict[str, Any], fitting: list[Any], other: list[Any]) -> None:
    one = condition(**tests)
    for value in fitting:
        assert one.permits({"amount": value}), value
        assert one.restricts({"amount": value}), value
    for value in other:
        assert not one.permits({"amount": value}), value
        if not ("pattern" in tests and not isinstance(value, str)):
            assert not one.restricts({"amount": value}), value


@pytest.mark.parametrize("value", ["many", None, True, {"value": 5}])
def test_a_value_of_another_kind_than_the_condition_counts_against_the_caller(value: object) -> None:
    assert condition(above=1000).restricts({"amount": value})
    assert not condition(above=1000).permits({"amount": value})


def test_of_a_list_one_item_is_enough_to_refuse_and_all_are_needed_to_allow() -> None:
    one = condition("to", equals=("a@ours.test",))
    assert one.permits({"to": ["a@ours.test"]})
    assert not one.permits({"to": ["a@ours.test", "b@theirs.test"]})
    assert condition("to", pattern="theirs").restricts({"to": ["a@ours.test", "b@theirs.test"]})


def test_members_inside_an_argument_are_reached_by_dots_also_through_lists() -> None:
    rows = {"rows": [{"to": {"country": "FR"}}, {"to": {"country": "XX"}}]}
    assert condition("rows.to.country", equals=("XX",)).restricts(rows)
    assert not condition("rows.to.country", equals=("FR",)).permits(rows)
    assert condition("a.b", equals=(1,)).permits({"a.b": 1})


def test_an_absent_argument_fits_nothing_but_its_absence() -> None:
    assert not condition(above=1).restricts({})
    assert not condition(equals=(None,)).permits({})
    assert condition(present=False).permits({})
    assert condition(present=False).restricts({})
    assert not condition(present=True).permits({})
    assert condition(present=True).permits({"amount": None})


def test_more_values_than_are_looked_at_count_against_the_caller() -> None:
    many = {"amount": [0] * 10_001}
    assert condition(above=1).restricts(many)
    assert not condition(below=1).permits(many)


def test_a_long_text_is_matched_in_linear_time() -> None:
    assert not condition(pattern="(a*)*b").permits({"amount": "a" * 1_000_000})


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "a" * 10_000])
def test_a_pattern_that_cannot_be_run_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(SchemaRejected):
        check_pattern(pattern)


@given(
    arguments=st.dictionaries(st.sampled_from(["a", "b"]), Json, max_size=2),
    path=st.sampled_from(["a", "b", "a.b", "a.a"]),
    tests=st.fixed_dictionaries(
        {},
        optional={
            "equals": st.just((1, "a")), "excludes": st.just(("b",)), "pattern": st.just("^a"),
            "present": st.booleans(), "above": st.integers(-3, 3), "below": st.integers(-3, 3),
        },
    ),
)  # fmt: skip
def test_a_rule_that_refuses_applies_wherever_one_that_allows_would(
    arguments: dict[str, Any], path: str, tests: dict[str, Any]
) -> None:
    one = condition(path, **tests)
    # A rule that refuses applies wherever the same rule as one that allows would apply.
    assert one.restricts(arguments) or not one.permits(arguments)
