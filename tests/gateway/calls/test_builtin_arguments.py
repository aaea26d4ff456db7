"""Our own search tools understand other words for their parameters, and wrapped calls, as any tool does."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.calls.builtin_tools import repair_builtin


@pytest.mark.parametrize(
    ("name", "sent", "meant", "named"),
    [
        ("find_tools", {"query": "mail", "limit": "3"}, {"query": "mail", "limit": 3}, ["converted"]),
        ("find_tools", {"q": "mail", "top_k": 3}, {"query": "mail", "limit": 3}, ["renamed", "renamed"]),
        ("find_tools", {"Query": "mail"}, {"query": "mail"}, ["renamed"]),
        ("find_tools", {"arguments": {"query": "mail"}}, {"query": "mail"}, ["unwrapped"]),
        ("find_tools", '{"query": "mail"}', {"query": "mail"}, ["json_text"]),
        ("find_tools", {"query": "mail", "limit": None}, {"query": "mail"}, ["null_dropped"]),
        ("find_tools", {"query": ["mail"]}, {"query": "mail"}, ["item_taken"]),
        ("get_server_details", {"serverName": "od-a"}, {"server": "od-a"}, ["renamed"]),
        ("get_server_details", {"name": "od-a"}, {"server": "od-a"}, ["renamed"]),
        ("get_server_details", {"servers": ["od-a"]}, {"server": "od-a"}, ["renamed", "item_taken"]),
    ],
)
def test_alternative_parameter_names_are_repaired_and_reported(
    name: str, sent: Any, meant: Any, named: list[str]
) -> None:
    arguments, repairs = repair_builtin(name, sent)
    assert arguments == meant
    assert [repair.name for repair in repairs] == named
    assert repair_builtin(name, arguments) == (arguments, ())


@pytest.mark.parametrize(
    "sent", [{"query": "mail", "q": "x"}, {"query": "a"}, {"limit": 5}, [], 5, {"query": "a", "x": 1}]
)
def test_correct_or_ambiguous_arguments_are_unchanged(sent: Any) -> None:
    assert repair_builtin("find_tools", sent) == (sent, ())
