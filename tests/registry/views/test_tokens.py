"""The estimate of tokens: right within bounds, cheap, and never in the way."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.views.tokens import estimate_tokens

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
        # What o200k makes of each.
        (json.dumps(TOOL, separators=(",", ":")), 66),
        ("Send a message to one or more recipients, now or at a given time.", 15),
        ("The quick brown fox jumps over the lazy dog, and nobody minds.", 14),
    ],
)
def test_the_estimate_is_near_what_a_tokenizer_counts(text: str, counted: int) -> None:
    assert estimate_tokens(text) == pytest.approx(counted, rel=0.15)


def test_an_empty_text_costs_nothing_and_a_word_costs_one() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("message") == 1


def test_scripts_that_cost_more_are_estimated_higher() -> None:
    assert estimate_tokens("电子邮件" * 10) > estimate_tokens("mail " * 10)
    assert estimate_tokens("🚀" * 10) > estimate_tokens("电" * 10)


def test_what_is_encoded_costs_more_than_words() -> None:
    assert estimate_tokens("qwrtzpsdfghjklyx" * 64) > 1024 / 5


@given(st.text(st.characters(codec=None), max_size=500))
def test_no_text_raises_and_none_costs_more_than_three_for_a_character(text: str) -> None:
    assert 0 <= estimate_tokens(text) <= 3 * len(text) + 1


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_texts_cost_about_what_they_cost_together(one: str, other: str) -> None:
    assert abs(estimate_tokens(one + "\n" + other) - estimate_tokens(one) - estimate_tokens(other)) <= 6


def test_a_megabyte_is_estimated_at_once() -> None:
    text = json.dumps([TOOL] * 4_000)
    started = time.process_time()
    assert estimate_tokens(text) > 100_000
    # 12 us for a KB where nothing else runs.
    assert time.process_time() - started < 0.5
