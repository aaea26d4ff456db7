"""A plugin that replaces a result replaces the whole result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.hooks.adapters.cpex import to_result

SECRET = "ann@example.test"
BEFORE: dict[str, Any] = {
    "content": [{"type": "text", "text": json.dumps({"email": SECRET})}],
    "structuredContent": {"email": SECRET},
    "_meta": {"row": SECRET},
    "isError": False,
    "resultType": "complete",
}


@pytest.mark.parametrize(
    ("returned", "texts"),
    [
        ("[masked]", ["[masked]"]),
        (None, []),
        ("", [""]),
        (["[masked]", "twice"], ["[masked]", "twice"]),
        ([{"type": "text", "text": "[masked]"}], ["[masked]"]),
        ({"email": "[masked]"}, ['{"email":"[masked]"}']),
        ({"content": "[masked]"}, ["[masked]"]),
        ({"content": ["[masked]"]}, ["[masked]"]),
        ({"content": [{"type": "text", "text": "[masked]"}]}, ["[masked]"]),
        (7, ["7"]),
        (1.5, ["1.5"]),
        ([], []),
        (("[masked]",), ['["[masked]"]']),
        ({}, ["{}"]),
        ({"content": []}, []),
        ({"content": None}, ['{"content":null}']),
        ({"content": {"type": "text", "text": "[masked]"}}, ['{"content":{"type":"text","text":"[masked]"}}']),
        ({"type": "text", "text": "[masked]"}, ["[masked]"]),
        ({"result": "[masked]"}, ['{"result":"[masked]"}']),
        ({"isError": True}, ['{"isError":true}']),
        (True, ["true"]),
        # Only the text form was masked: the structured form would tell the rest.
        ({**BEFORE, "content": [{"type": "text", "text": "[masked]"}], "_meta": {}}, ["[masked]"]),
        ({**BEFORE, "content": [], "_meta": {}}, []),
    ],
)
def test_replaced_result_leaks_nothing_of_the_original(returned: Any, texts: list[str]) -> None:
    made = to_result(BEFORE, returned)
    assert SECRET not in json.dumps(made)
    assert [item["text"] for item in made["content"]] == texts
    assert "structuredContent" not in made


def test_structured_content_set_by_a_plugin_is_kept() -> None:
    made = to_result(BEFORE, {"content": [], "structuredContent": {"email": "[masked]"}})
    assert made == {"content": [], "structuredContent": {"email": "[masked]"}}
    assert to_result(BEFORE, {"structuredContent": {"a": 1}}) == {"structuredContent": {"a": 1}}


def test_text_form_follows_structured_content_changed_by_a_plugin() -> None:
    apart = {"type": "text", "text": "one row"}
    before = {**BEFORE, "content": [*BEFORE["content"], apart], "_meta": {}}
    made = to_result(before, {**before, "structuredContent": {"email": "[masked]"}})
    assert made["structuredContent"] == {"email": "[masked]"}
    assert made["content"] == [{"type": "text", "text": '{"email":"[masked]"}'}, apart]
    only_text = {name: value for name, value in before.items() if name != "structuredContent"}
    assert to_result(before, only_text) == only_text


def test_plugin_that_only_adds_content_loses_nothing() -> None:
    longer = {**BEFORE, "content": [*BEFORE["content"], {"type": "text", "text": "checked"}]}
    assert to_result(BEFORE, longer) == longer
    # In this result the text is not a form of the structured content, so both may change independently.
    apart = {"content": [{"type": "text", "text": "two rows"}], "structuredContent": {"rows": 2}}
    worded = {**apart, "content": [{"type": "text", "text": "2 rows"}]}
    assert to_result(apart, worded) == worded


def test_error_rewritten_by_a_plugin_stays_an_error() -> None:
    failed = {"content": [{"type": "text", "text": SECRET}], "isError": True, "resultType": "complete"}
    made = to_result(failed, "[masked]")
    assert made == {"isError": True, "resultType": "complete", "content": [{"type": "text", "text": "[masked]"}]}
