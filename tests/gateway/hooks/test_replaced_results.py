"""A plugin that replaces a result replaces all of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.hooks.carriers.cpex import replaced_result

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
        (True, ["true"]),
        # Only the text form was masked: the structured form would tell the rest.
        ({**BEFORE, "content": [{"type": "text", "text": "[masked]"}], "_meta": {}}, ["[masked]"]),
        ({**BEFORE, "content": [], "_meta": {}}, []),
    ],
)
def test_nothing_of_a_replaced_result_reaches_the_caller(returned: Any, texts: list[str]) -> None:
    made = replaced_result(BEFORE, returned)
    assert SECRET not in json.dumps(made)
    assert [item["text"] for item in made["content"]] == texts
    assert "structuredContent" not in made


def test_structured_content_that_a_plugin_has_made_stays() -> None:
    made = replaced_result(BEFORE, {"content": [], "structuredContent": {"email": "[masked]"}})
    assert made == {"content": [], "structuredContent": {"email": "[masked]"}}
    assert replaced_result(BEFORE, {"structuredContent": {"a": 1}}) == {"structuredContent": {"a": 1}}


def test_a_plugin_that_only_adds_something_loses_nothing() -> None:
    longer = {**BEFORE, "content": [*BEFORE["content"], {"type": "text", "text": "checked"}]}
    assert replaced_result(BEFORE, longer) == longer
    # Here the text is no form of the structured content, and may change apart from it.
    apart = {"content": [{"type": "text", "text": "two rows"}], "structuredContent": {"rows": 2}}
    worded = {**apart, "content": [{"type": "text", "text": "2 rows"}]}
    assert replaced_result(apart, worded) == worded


def test_an_error_that_a_plugin_has_worded_stays_an_error() -> None:
    failed = {"content": [{"type": "text", "text": SECRET}], "isError": True, "resultType": "complete"}
    made = replaced_result(failed, "[masked]")
    assert made == {"isError": True, "resultType": "complete", "content": [{"type": "text", "text": "[masked]"}]}
