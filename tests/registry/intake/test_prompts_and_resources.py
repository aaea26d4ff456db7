"""Each prompt, resource and template is checked alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.intake.item_intake import ITEM_KEYS, MAX_KEY_LENGTH, admit_items

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def test_valid_item_is_returned_as_the_same_object() -> None:
    items = [{"uri": "u:1", "name": "one", "size": 3, "mimeType": "text/plain", "x": {"unknown": None}}]
    admission = admit_items(items, "resources")
    assert admission.items[0] is items[0]
    assert (admission.quarantined, admission.repaired) == ((), ())


@pytest.mark.parametrize(
    ("kind", "item", "mended"),
    [
        ("resources", {"uri": "u:1"}, {"uri": "u:1", "name": "u:1"}),
        ("resources", {"uri": "u:1", "name": "n", "size": "big"}, {"uri": "u:1", "name": "n"}),
        ("resources", {"uri": "u:1", "name": "n", "mimeType": None}, {"uri": "u:1", "name": "n"}),
        ("prompts", {"name": "p", "description": None}, {"name": "p"}),
        ("prompts", {"name": "p", "arguments": "no"}, {"name": "p"}),
        ("prompts", {"name": "p", "arguments": [{"name": "a"}, 7]}, {"name": "p", "arguments": [{"name": "a"}]}),
        (
            "prompts",
            {"name": "p", "arguments": [{"name": "a", "required": "yes", "x": 1}]},
            {"name": "p", "arguments": [{"name": "a", "x": 1}]},
        ),
    ],
)
def test_item_a_strict_client_would_refuse_is_repaired_and_reported(kind: Any, item: Any, mended: Any) -> None:
    admission = admit_items([item], kind)
    assert admission.items == (mended,)
    assert admission.repaired
    assert all(one.kind == kind for one in admission.repaired)


def test_hidden_characters_are_removed_from_prompts_and_resources() -> None:
    dirty = "x\u202e\U000e0041\ue000y"
    arguments = [{"name": "a", "description": dirty, "title": dirty, "x": [dirty]}]
    [prompt] = admit_items([{"name": "p", "title": dirty, "arguments": arguments}], "prompts").items
    assert prompt == {
        "name": "p", "title": "xy", "arguments": [{"name": "a", "description": "xy", "title": "xy", "x": ["xy"]}],
    }  # fmt: skip
    [resource] = admit_items(
        [{"uri": "u:1", "name": dirty, "description": dirty, "mimeType": dirty}], "resources"
    ).items
    assert resource == {"uri": "u:1", "name": "xy", "description": "xy", "mimeType": "xy"}
    assert admit_items([{"uri": "u:1", "name": "\u200b"}], "resources").items[0]["name"] == "u:1"


@pytest.mark.parametrize(
    ("kind", "item", "code"),
    [
        ("resources", {"uri": "u:\u202e1"}, "hidden_text"),
        ("resourceTemplates", {"uriTemplate": "u:{\u200bid}"}, "hidden_text"),
        ("prompts", {"name": "p", "arguments": [{"name": "a\u200b"}]}, "hidden_text"),
        ("resources", {"uri": "typegate://bank/u:1"}, "reserved_uri"),
        ("resources", {"uri": "TypeGate:x"}, "reserved_uri"),
        ("resourceTemplates", {"uriTemplate": "typegate://{+uri}"}, "reserved_uri"),
    ],
)
def test_item_that_imitates_another_is_quarantined(kind: Any, item: Any, code: str) -> None:
    admission = admit_items([item], kind)
    assert admission.items == ()
    assert [one.code for one in admission.quarantined] == [code]


@pytest.mark.parametrize(
    "item",
    [None, 7, {}, {"name": "p"}, {"uri": ""}, {"uri": 7}, {"uri": "x" * (MAX_KEY_LENGTH + 1)}, {"uri": "\ud800"}],
)
def test_item_without_a_usable_name_is_quarantined_alone(item: object) -> None:
    admission = admit_items([item, {"uri": "u:1", "name": "n"}], "resources")
    assert [one["uri"] for one in admission.items] == ["u:1"]
    assert [one.kind for one in admission.quarantined] == ["resources"]


def test_first_resource_of_a_duplicate_uri_is_kept() -> None:
    admission = admit_items([{"uri": "u:1", "name": "a"}, {"uri": "u:1", "name": "b"}], "resources")
    assert [one["name"] for one in admission.items] == ["a"]
    assert [one.code for one in admission.quarantined] == ["duplicate_name"]


def test_item_too_deep_or_too_large_is_quarantined() -> None:
    items = [{"uri": "u:1", "_meta": nested(10_000)}, {"uri": "u:2", "_meta": {"x": "x" * 2_000_000}}, {"uri": "u:3"}]
    assert [one["uri"] for one in admit_items(items, "resources").items] == ["u:3"]


# Entries of skills are never changed, because hosts compare them with the files.
@pytest.mark.parametrize("kind", sorted(ITEM_KEYS.keys() - {"skills"}))
def test_long_description_is_truncated_and_reported(kind: Any) -> None:
    item = {ITEM_KEYS[kind]: "u:1", "name": "n", "description": "x" * 2_000_000, "title": "y" * 16_384}
    admission = admit_items([item], kind)
    (admitted,) = admission.items
    assert admitted == {**item, "description": "x" * 16_383 + "…"}
    assert [(one.code, one.detail) for one in admission.repaired] == [
        ("long_text", "a description was cut: the first 16384 of its 2000000 characters are shown")
    ]


def test_long_argument_description_is_truncated() -> None:
    arguments = [{"name": "a", "description": "x" * 20_000}, {"name": "b", "description": "short"}]
    (admitted,) = admit_items([{"name": "p", "arguments": arguments}], "prompts").items
    assert [len(one["description"]) for one in admitted["arguments"]] == [16_384, 5]


@given(st.lists(JSON, max_size=4), st.sampled_from(sorted(ITEM_KEYS)))
def test_admit_items_accepts_any_json_value(items: list[Any], kind: Any) -> None:
    admission = admit_items(items, kind)
    assert len(admission.items) + len(admission.quarantined) == len(items)


def test_unknown_annotation_members_are_kept_beside_repaired_ones() -> None:
    annotations = {"x": {"deep": None}, "audience": ["user", "ops"], "priority": 1, "lastModified": "2026-01-02"}
    [item] = admit_items([{"uri": "u:1", "name": "n", "annotations": annotations}], "resources").items
    wanted = {"x": {"deep": None}, "audience": ["user"], "priority": 1, "lastModified": "2026-01-02T00:00:00Z"}
    assert item["annotations"] == wanted
    assert annotations["audience"] == ["user", "ops"]


def test_lone_surrogate_does_not_break_the_list() -> None:
    [item] = admit_items([{"uri": "u:1", "name": "n", "_meta": {"a": ["x\ud800"], "n": 2**70}}], "resources").items
    assert item["_meta"] == {"a": ["x"], "n": 2**70}
