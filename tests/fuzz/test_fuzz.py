"""Mutated input of every kind: hundreds of inputs by default, thousands in the heavy tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.__main__ import feed
from tests.fuzz.targets import TARGETS, Target

INPUTS, HEAVY_INPUTS = 300, 5_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
async def test_mutated_inputs_break_no_parser(target: Target) -> None:
    assert await feed(target, INPUTS, seed=1) is None


@pytest.mark.heavy
@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
async def test_thousands_of_mutated_inputs_break_no_parser(target: Target) -> None:
    assert await feed(target, HEAVY_INPUTS, seed=2) is None
