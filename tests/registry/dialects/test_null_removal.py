"""Removal of null from schemas that are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.dialects.shaping import remove_null_alternatives

KEYS = st.sampled_from(["type", "anyOf", "enum", "properties", "items", "default", "$ref", "description", "x"])
LEAVES = st.sampled_from([None, "null", "string", ["string", "null"], ["null"], True, 5, {"type": "null"}])
SCHEMAS = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(KEYS, below, max_size=4)
        # Keywords that the rules look for, twice and also in wrong places.
        | st.builds(dict, **{key: st.lists(LEAVES | below, max_size=3) for key in ("type", "enum", "anyOf")})
    ),
    max_leaves=12,
)


def plain(schema: Any) -> Any:
    return remove_null_alternatives({"inputSchema": schema})["inputSchema"]


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": ["integer", "null"]}, {"type": "integer"}),
        ({"type": ["integer", "string", "null"]}, {"type": ["integer", "string"]}),
        ({"type": ["string", "null"], "enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
        ({"type": ["string", "null"], "enum": [None, None]}, {"type": "string", "enum": [None, None]}),
        ({"type": ["string", "null"], "default": None}, {"type": "string"}),
        (
            {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "description": "d"},
            {"$ref": "#/$defs/A", "description": "d"},
        ),
        ({"anyOf": [{"a": 1}, {"b": 2}, {"type": "null"}]}, {"anyOf": [{"a": 1}, {"b": 2}]}),
        ({"properties": {"type": {"type": ["string", "null"]}}}, {"properties": {"type": {"type": "string"}}}),
        ({"$defs": {"A": {"items": {"type": ["null", "string"]}}}}, {"$defs": {"A": {"items": {"type": "string"}}}}),
    ],
)
def test_null_beside_other_types_is_removed(schema: Any, shown: Any) -> None:
    before = json.dumps(schema)
    assert plain(schema) == shown
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "null"}, {"type": ["null"]}, {"enum": [None]}, {"anyOf": [{"type": "null"}]}, {"const": None},
        {"default": {"type": ["string", "null"]}}, {"enum": ["a", None]}, {}, {"type": ["null", "null"]},
        {"anyOf": [{"type": "null"}, {"type": "null"}]}, {"type": ["null", ["string", "null"]]},
    ],
)  # fmt: skip
def test_null_as_the_only_type_is_kept(schema: Any) -> None:
    assert plain(schema) is schema


@given(SCHEMAS)
def test_removal_does_not_raise_and_is_idempotent(schema: Any) -> None:
    once = plain(schema)
    assert plain(once) == once
