"""Conditions on arguments, and how doubtful values are decided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import SchemaRejected
from registry.policy.rules import ArgumentCondition, Conditions, check_pattern

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
        ({"equals": (1,)}, [1, 1.0], [2, "2", False, "a"]),
        ({"excludes": ("root",)}, ["ann", 1], ["root"]),
        ({"pattern": "^a+$"}, ["a", "aa"], ["b", "ab"]),
        ({"above": 1000}, [1000.5, 1001, 10**400, "1001"], [1000, 999, -1]),
        ({"above": 0, "below": 10}, [5, "5"], [0, 10, 11]),
    ],
)
def test_condition_matches_only_fitting_values(tests: dict[str, Any], fitting: list[Any], other: list[Any]) -> None:
    one = condition(**tests)
    for value in fitting:
        assert one.permits({"amount": value}), value
        assert one.restricts({"amount": value}), value
    for value in other:
        assert not one.permits({"amount": value}), value
        if not ("pattern" in tests and not isinstance(value, str)):
            assert not one.restricts({"amount": value}), value


@pytest.mark.parametrize("value", ["many", "nan", None, True, {"value": 5}])
def test_value_of_another_type_counts_against_the_caller(value: object) -> None:
    assert condition(above=1000).restricts({"amount": value})
    assert not condition(above=1000).permits({"amount": value})


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (7, "7"), (7, " 7 "), (7, "7.0"), (7, "7e0"), (7, "0x7"), (7, "+7"), (7, "７"), (7.5, "7.5"), (-7, "-7"),
        (2**64 - 1, "0b" + "1" * 64), (7, " 0b111 "), (7, "0o7"),
        (True, "true"), (True, "True"), (True, " TRUE "), (True, 1), (True, 1.0), (True, "1"), (True, "yes"),
        (False, "false"), (False, 0), (False, "0"), (False, "off"), (1, True), (0, False),
        ("7", 7), ("7", 7.0), ("true", True), ("1", True), ("0", False),
    ],
)  # fmt: skip
def test_value_an_upstream_may_read_as_equal_counts_against_the_caller(wanted: object, value: object) -> None:
    for one in (condition(equals=(wanted,)), condition(equals=("other", wanted)), condition("a", equals=(wanted,))):
        for arguments in ({one.path: value}, {one.path: [value]}):
            assert one.restricts(arguments)
            if type(wanted) is not type(value) and not (isinstance(value, float) and isinstance(wanted, int)):
                assert not one.permits(arguments)
    # A value that may equal an excluded one is not permitted either.
    assert not condition(excludes=(wanted,)).permits({"amount": value})


@pytest.mark.parametrize(
    ("wanted", "value"),
    [(7, "8"), (7, "seven"), (7, None), (7, {}), (7, True), (True, "false"), (True, 2), (True, "2"), ("7", 8), ("a", 1),
     ("07", "7"), ("true", "True"), (7, "7 7"), (7, "nan"), (7, "0x" + "f" * 100), (2**65 - 1, "0b" + "1" * 65),
     (True, {}), (False, None), (1, 2.5)],
)  # fmt: skip
def test_different_value_does_not_equal(wanted: object, value: object) -> None:
    assert not condition(equals=(wanted,)).restricts({"amount": value})
    assert condition(excludes=(wanted,)).restricts({"amount": value})


def test_list_needs_one_match_to_deny_and_all_to_allow() -> None:
    one = condition("to", equals=("a@ours.test",))
    assert one.permits({"to": ["a@ours.test"]})
    assert not one.permits({"to": ["a@ours.test", "b@theirs.test"]})
    assert condition("to", pattern="theirs").restricts({"to": ["a@ours.test", "b@theirs.test"]})


def test_all_tests_of_a_condition_must_hold() -> None:
    both = {"pattern": "^a", "excludes": ("ab",)}
    assert condition("to", **both).permits({"to": "ac"})
    assert condition("to", **both).restricts({"to": "ac"})
    for value in ("ab", "b"):
        assert not condition("to", **both).permits({"to": value})
        assert not condition("to", **both).restricts({"to": value})
    two = Conditions(arguments=(ArgumentCondition(path="a", above=1), ArgumentCondition(path="b", above=1)))
    for arguments, holds in (({"a": 2, "b": 2}, True), ({"a": 2, "b": 0}, False), ({"a": 0, "b": 2}, False)):
        assert two.permits(arguments) is holds
        assert two.restricts(arguments) is holds


def test_dotted_path_reaches_members_through_lists() -> None:
    rows = {"rows": [{"to": {"country": "FR"}}, {"to": {"country": "XX"}}]}
    assert condition("rows.to.country", equals=("XX",)).restricts(rows)
    assert not condition("rows.to.country", equals=("FR",)).permits(rows)
    assert condition("a.b", equals=(1,)).permits({"a.b": 1})


@pytest.mark.parametrize(
    "arguments",
    [
        {"a.b": {"c": 1}},
        {"a": {"b.c": 1}},
        {"a.b.c": 1},
        {"a": {"b": {"c": 1}}},
        {"a.b": [{"c": [1]}]},
        {"a.b": {"c": 1}, "a": {"b": {"c": 2}}},
        {"a": {"x": 0}, "a.b": {"c": 1}},
    ],
)
def test_names_containing_dots_are_found_at_any_split(arguments: dict[str, Any]) -> None:
    assert condition("a.b.c", equals=(1,)).restricts(arguments)
    assert condition("a.b.c", present=True).restricts(arguments)
    assert not condition("a.b.c", present=False).restricts(arguments)


def test_absent_argument_matches_only_present_false() -> None:
    assert not condition(above=1).restricts({})
    assert not condition(equals=(None,)).permits({})
    assert condition(present=False).permits({})
    assert condition(present=False).restricts({})
    assert not condition(present=True).permits({})
    assert condition(present=True).permits({"amount": None})
    for value in (None, 5, "x"):
        assert condition(present=True).restricts({"amount": value})
        assert not condition(present=False).restricts({"amount": value})
        assert not condition(present=False).permits({"amount": value})
    assert not condition(present=True).restricts({})


def test_more_values_than_the_limit_count_against_the_caller() -> None:
    most, many = {"amount": [0] * 10_000}, {"amount": [0] * 10_001}
    assert not condition(above=1).restricts(most)
    assert condition(below=1).permits(most)
    assert condition(above=1).restricts(many)
    assert not condition(below=1).permits(many)


@pytest.mark.parametrize("path", ["amount", "a.b"])
@pytest.mark.parametrize("number", [1, 10_000, 10_001])
def test_argument_with_any_number_of_values_is_present(path: str, number: int) -> None:
    arguments = {"amount": [0] * number, "a": {"b": [0] * number}}
    for one in (condition(path, present=True), condition(path, present=False)):
        assert one.permits(arguments) is one.present
        assert one.restricts(arguments) is one.present
    assert not condition(path, present=True, equals=(1,)).permits(arguments)
    assert condition(path, present=True, equals=(1,)).restricts(arguments) is (number > 10_000)


@pytest.mark.parametrize("path", ["amount", "a.b"])
def test_condition_on_an_absent_argument(path: str) -> None:
    for one in (condition(path, above=1), condition(path, pattern="x"), condition(path, equals=(None,))):
        assert not one.restricts({})
        assert not one.permits({})
    # A list without items has no values.
    assert condition("amount", present=False).permits({"amount": []})
    assert not condition("amount", above=1).restricts({"amount": []})


def test_mixed_options_match_texts_and_other_values() -> None:
    mixed = condition(equals=("a", 7))
    for value in ("a", 7, 7.0):
        assert mixed.permits({"amount": value})
    for value in ("b", 8, "8"):
        assert not mixed.restricts({"amount": value})
    assert mixed.restricts({"amount": "7"})
    assert not mixed.permits({"amount": "7"})
    other = condition(excludes=("a", 7))
    assert other.permits({"amount": "b"})
    assert not other.restricts({"amount": "a"})


@pytest.mark.parametrize(
    ("hints", "expected"),
    [({"readOnlyHint": True, "openWorldHint": False}, True), ({"readOnlyHint": True, "openWorldHint": True}, False),
     ({"readOnlyHint": False, "openWorldHint": False}, False)],
)  # fmt: skip
def test_all_conditions_on_hints_must_hold(hints: dict[str, bool], expected: bool) -> None:
    assert Conditions(hints={"readOnlyHint": True, "openWorldHint": False}).match_hints(hints) is expected
    assert Conditions().match_hints(hints)


def test_pattern_match_takes_linear_time() -> None:
    assert not condition(pattern="(a*)*b").permits({"amount": "a" * 1_000_000})


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "a" * 10_000])
def test_pattern_without_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(SchemaRejected, match="look-around or back references, and very large patterns"):
        check_pattern(pattern)
    check_pattern("^a+$")


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
def test_deny_rule_applies_wherever_an_allow_rule_would(
    arguments: dict[str, Any], path: str, tests: dict[str, Any]
) -> None:
    one = condition(path, **tests)
    # A rule that refuses applies wherever the same rule as one that allows would apply.
    assert one.restricts(arguments) or not one.permits(arguments)
