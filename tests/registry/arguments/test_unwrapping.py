"""Wrapped parameters that an open schema accepts reach their tool, or the call is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.wrappers import wrapper_of

from registry.arguments.prepare import Prepared, prepare
from registry.arguments.problems import explain

OPEN = {"type": "object", "properties": {"state": {"type": "string"}, "limit": {"type": "integer"}}}


def prepared(arguments: Any, schema: Any = OPEN, **options: Any) -> Prepared:
    return prepare(wrapper_of("list_issues", schema), arguments, **options)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"arguments": {"state": "open"}}, {"state": "open"}),
        ({"Arguments": {"state": "open"}}, {"state": "open"}),
        ({"params": {"State": "open", "LIMIT": "5"}}, {"state": "open", "limit": 5}),
        ({"input": '{"State": "open"}'}, {"state": "open"}),
        ({"arguments": {"arguments": {"Limit": 5}}}, {"limit": 5}),
        ({"arguments": {"state": "open"}, "tool": "list_issues"}, {"state": "open"}),
        ('{"arguments": {"State": "open"}}', {"state": "open"}),
        ('{"arguments": {}}', {}),
    ],
)
def test_wrapped_parameters_are_unwrapped_in_any_spelling(sent: Any, meant: Any) -> None:
    done = prepared(sent)
    assert (done.arguments, done.problems) == (meant, ())
    assert done.repairs


@pytest.mark.parametrize(
    "sent",
    [
        {"arguments": {"state": "open"}, "limit": 3},
        {"arguments": {"state": "open", "limit": 5}, "state": "closed"},
        {"params": '{"state": "open"}', "limit": 3},
        {"Args": {"limit": 3}, "other": 1},
        '{"arguments": {"state": "open"}, "limit": 3}',
        {"arguments": {"state": "open"}, "limit": "3"},
    ],
)
def test_parameters_inside_and_beside_a_wrapping_are_refused(sent: Any) -> None:
    [problem] = prepared(sent).problems
    assert "is not a parameter but contains some; move them next to the others" in problem.message
    assert prepared(sent, level="off").arguments is sent


def test_ready_call_merges_wrapped_and_unwrapped_parameters() -> None:
    sent = {"params": {"state": "open"}, "limit": 3}
    refused = prepared(sent)
    text = explain(wrapper_of("t", OPEN), refused.problems, sent, checked=refused.checked)
    assert (
        'Keys sent: params, limit, read as: limit, state. Call it like: {"limit":"<as sent>","state":"<as sent>"}'
        in text
    )
    assert refused.checked == {"limit": 3, "state": "open"}


@pytest.mark.parametrize(
    ("sent", "schema"),
    [
        ({"arguments": {"stat": "open"}}, OPEN),
        ({"arguments": {"q": 1}, "limit": 3}, OPEN),
        ({"arguments": {}, "limit": 3}, OPEN),
        ({"arguments": {"state": "open"}, "state": "closed"}, OPEN),
        ({"arguments": {"state": "open"}, "limit": 3}, {**OPEN, "additionalProperties": {"type": "object"}}),
        ({"arguments": {"state": "open"}, "limit": 3}, {"type": "object"}),
        (
            {"arguments": {"state": "open"}, "limit": 3},
            {"properties": {**OPEN["properties"], "arguments": {"type": "object"}}},  # type: ignore[dict-item] # a schema
        ),
    ],
)
def test_call_that_is_valid_as_sent_is_not_changed(sent: Any, schema: Any) -> None:
    done = prepared(sent, schema)
    assert done.arguments is sent
    assert not done.problems
