"""What repeats in definitions is in memory once, and nothing is changed by that."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.intake.sharing import SharedParts

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, -0.0, 1.0])
    | st.sampled_from(["a", "1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=6))
def test_shared_values_are_written_as_before(values: list[Any]) -> None:
    shared = SharedParts()
    assert [json.dumps(shared.share(value)) for value in values] == [json.dumps(value) for value in values]


def test_equal_parts_are_one_object_and_parts_that_only_look_equal_are_not() -> None:
    shared = SharedParts()
    one, other = (shared.share({"p": {"type": "string", "enum": ["a", "b"]}, "n": number}) for number in (1, 2))
    assert one["p"] is other["p"]
    for first, second in ((1, True), ({"a": 1}, {"a": True}), ([0], [False]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})):
        kept = shared.share({"x": first}), shared.share({"x": second})
        assert json.dumps(kept[0]) != json.dumps(kept[1])
