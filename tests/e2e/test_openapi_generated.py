"""Generated calls to a mock server that is made from the document and validates requests (row F4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.upstreams.mock_apis import DOCUMENTS, rejected_calls

# `python tests/bench/bench_openapi_calls.py` makes 500 calls to each.
pytestmark = pytest.mark.heavy
CALLS = 60


@pytest.mark.parametrize("file", DOCUMENTS)
async def test_f4_generated_calls_are_not_rejected_by_a_server_made_from_the_document(
    tmp_path: Path, file: str
) -> None:
    made, rejected = await rejected_calls(file, tmp_path, CALLS)
    assert rejected == []
    assert made == CALLS
