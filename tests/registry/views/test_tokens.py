"""The token estimate: accurate within bounds, fast, and never raising."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work

from registry.views.disclosure import estimate_tokens

TOOL = {
    "name": "send_email",
    "description": "Send a message to one or more recipients, now or at a given time.",
    "inputSchema": {
        "type": "object",
        "properties": {"to": {"type": "array", "items": {"type": "string"}}, "sendAt": {"type": "string"}},
        "required": ["to"],
    },
}


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        # The number of tokens that o200k counts for each text.
        (json.dumps(TOOL, separators=(",", ":")), 66),
        ("Send a message to one or more recipients, now or at a given time.", 15),
        ("The quick brown fox jumps over the lazy dog, and nobody minds.", 14),
    ],
)
def test_estimate_is_within_15_percent_of_a_tokenizer(text: str, counted: int) -> None:
    assert estimate_tokens(text) == pytest.approx(counted, rel=0.15)


def test_empty_text_costs_nothing_and_a_word_one_token() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("message") == 1


def test_scripts_with_more_tokens_are_estimated_higher() -> None:
    assert estimate_tokens("电子邮件" * 10) > estimate_tokens("mail " * 10)
    assert estimate_tokens("🚀" * 10) > estimate_tokens("电" * 10)


def test_encoded_data_is_estimated_higher_than_words() -> None:
    assert estimate_tokens("qwrtzpsdfghjklyx" * 64) > 1024 / 5


@given(st.text(st.characters(codec=None), max_size=500))
def test_estimate_does_not_raise_and_is_bounded_by_length(text: str) -> None:
    assert 0 <= estimate_tokens(text) <= 3 * len(text) + 1


@given(st.text(max_size=200), st.text(max_size=200))
def test_estimate_is_nearly_additive(one: str, other: str) -> None:
    assert abs(estimate_tokens(one + "\n" + other) - estimate_tokens(one) - estimate_tokens(other)) <= 6


def test_megabyte_is_estimated_quickly() -> None:
    text = json.dumps([TOOL] * 4_000)
    with limited_work(0.5):
        # It takes 12 us per KB.
        assert estimate_tokens(text) > 100_000
