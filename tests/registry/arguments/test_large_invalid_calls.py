"""Errors in large arguments are explained with bounded work, for any schema and size."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import pytest
from bench.bench_wrong_calls import cases
from support.wrappers import wrapper_of

from registry.arguments.prepare import prepare
from registry.arguments.problems import explain
from registry.schema import schemas
from registry.schema.check_cost import THOROUGH, use_effort

# Calls of functions, which say the same on every machine: some 40 ms.
MOST_CALLS = 400_000

QUICK = [
    "wide: all required, half sent",
    "wide: options that are null",
    "wide: nested, unknown",
    "filter: deep",
    "tree: oneOf, marked, missing",
    "tree: anyOf, not marked, missing",
]
TOLD = {
    "wide: wrong type": "rows[0].p0 is declared as string, you sent null",
    "wide: options": 'rows[0].p4 must be one of ["red","green","blue"]; did you mean red?',
    "wide: all required, half sent": "Missing: rows[0].p0, rows[0].p2,",
    "wide: one unknown in each": "rows[0].p_500 is not a parameter; did you mean p500?",
    "wide: unevaluated": "rows[0].other is not a parameter",
    "wide: options that are null": "rows[0].p0 is declared as string or null, you sent an object",
    "wide: marked": "rows[0].f7_1 is declared as integer, you sent a string",
    "wide: mark unknown": 'rows[0].kind must be one of ["k0","k1",',
    "wide: mark missing": "Missing: rows[0].kind",
    "wide: nested alternatives": "rows[0].a11 is declared as integer, you sent a string",
    "wide: nested, unknown": "rows[0] fits none of the alternatives",
    "filter: wrong name": "field1.eqq is not a parameter; did you mean eq?",
    "filter: required": "Missing: where.field1, where.and[0].field1",
    "filter: deep": ".field1.eq is declared as string, you sent an integer",
    "tree: oneOf, marked, missing": "Missing: blocks[0].children[0].children[0].children[0].text3",
    "tree: oneOf, marked, unknown mark": 'children[0].type must be one of ["k0","k1",',
    "tree: oneOf, marked, no object": "children[0] is declared as object, you sent a string",
    "tree: anyOf, not marked, missing": "children[0] fits none of the alternatives",
    "tree: closed": "blocks[0].children[0].children[0].children[0].extra is not a parameter",
    "tree: one wrong": ".children[0].text3. Keys sent: blocks",
}


def explained(schema: Any, arguments: Any) -> tuple[str, int]:
    """Return the text about arguments, and the number of calls that it took."""
    wrapper = wrapper_of("load", schema)
    arguments = json.loads(json.dumps(arguments))
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    def work() -> str:
        with use_effort(THOROUGH):
            done = prepare(wrapper, arguments)
            return explain(wrapper, done.problems, arguments, checked=done.checked)

    work()  # compile the schema first, which is not measured
    schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
    sys.setprofile(counted)
    try:
        text = work()
    finally:
        sys.setprofile(None)
    return text, count


known_cases = functools.cache(cases)


def check(name: str, size: int) -> None:
    schema, arguments = known_cases(size)[name]
    text, count = explained(schema, arguments)
    assert count < MOST_CALLS
    assert TOLD.get(name, "Call it like") in text
    assert "nested too deeply or hold broken characters" not in text


@pytest.mark.parametrize("name", QUICK)
def test_large_invalid_arguments_are_explained_within_the_work_limit(name: str) -> None:
    check(name, 40_000)


@pytest.mark.heavy
@pytest.mark.parametrize("size", [1_000_000, 100_000, 15_000, 5_000])
@pytest.mark.parametrize("name", [name for name in cases(1) if "not marked, unknown mark" not in name])
def test_invalid_arguments_of_any_size_are_explained_within_the_work_limit(name: str, size: int) -> None:
    check(name, size)
