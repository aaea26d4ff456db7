"""The first errors of a megabyte call are found quickly, and repairs still work."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.wrappers import wrapper_of

from registry.arguments.prepare import Prepared, prepare
from registry.arguments.problems import explain
from registry.schema import schemas
from registry.schema.check_cost import THOROUGH, use_effort

# Wanted are 50 ms; processors differ, and so does what runs beside a test.
MOST_S = 0.25

ROW = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "quantity": {"type": "number"}},
    "required": ["id", "name"],
    "additionalProperties": False,
}
ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": ROW}, "dry_run": {"type": "boolean"}},
    "required": ["rows"],
}
GOOD = {"id": 1, "name": "screw", "quantity": 1.5}
MANY = {f"p{n}": {"type": ["string", "integer", "boolean"][n % 3]} for n in range(1_000)}
TREE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}
FILTER = {
    "type": "object",
    "properties": {"where": {"$ref": "#/$defs/filter"}},
    "$defs": {
        "filter": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "and": {"type": "array", "items": {"$ref": "#/$defs/filter"}},
                "or": {"type": "array", "items": {"$ref": "#/$defs/filter"}},
                **{
                    f"field{n}": {
                        "type": "object",
                        "properties": {"eq": {"type": "string"}, "in": {"type": "array", "items": {"type": "string"}}},
                        "additionalProperties": False,
                    }
                    for n in range(20)
                },
            },
        }
    },
}


def of_values(**items: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"values": {"type": "array", "items": items}}}


def tree(levels: int) -> dict[str, Any]:
    return {"value": "x" * 10, "below": [tree(levels - 1) for _ in range(5)] if levels else []}


def prepared(schema: Any, arguments: Any) -> tuple[Prepared, str, float]:
    wrapper = wrapper_of("load", schema)
    schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
    with use_effort(THOROUGH):
        started = time.process_time()
        done = prepare(wrapper, arguments)
        text = explain(wrapper, done.problems, arguments, checked=done.checked)
        return done, text, time.process_time() - started


CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "every row": (
        ROWS,
        {"rows": [{"id": "x", "name": 5, "quantity": "many"} for _ in range(20_000)]},
        ["rows[0].id is declared as integer, you sent a string", "rows[5].name is declared as string"],
    ),
    "more rows than are repaired": (
        ROWS,
        {"rows": [{**GOOD, "id": "12"} for _ in range(20_000)]},
        ["rows[0].id is declared as integer", "There may be more"],
    ),
    "a misspelt member in each row": (
        ROWS,
        {"rows": [{**GOOD, "quantty": 2} for _ in range(20_000)]},
        ["rows[0].quantty is not a parameter; did you mean quantity?"],
    ),
    "the last row": (
        ROWS,
        {"rows": [*[GOOD] * 20_000, {"id": "x"}]},
        ["Missing: rows[20000].name", "rows[20000].id is declared as integer"],
    ),
    "all rows from the thousandth": (
        ROWS,
        {"rows": [*[GOOD] * 1_000, *[{"id": None, "name": "x"}] * 20_000]},
        ["rows[1000].id is declared as integer, you sent null"],
    ),
    "a name beside the rows": (ROWS, {"row": [GOOD] * 20_000}, ["Missing: rows", "did you mean rows?"]),
    "a thousand properties": (
        {"type": "object", "properties": MANY, "additionalProperties": False},
        {name: {"x": "y" * 980} for name in MANY},
        ["p0 is declared as string, you sent an object", "p4 is declared as integer"],
    ),
    "rows of a thousand properties": (
        {"type": "object", "properties": {"rows": {"type": "array", "items": {"properties": MANY}}}},
        {"rows": [dict.fromkeys(MANY, None) for _ in range(100)]},
        ["rows[0].p0 is declared as string, you sent null"],
    ),
    "unknown names": (
        {"type": "object", "properties": {"limit": {"type": "integer"}}, "additionalProperties": False},
        {f"k{n}": n for n in range(90_000)},
        ["k0 is not a parameter", "k7 is not a parameter"],
    ),
    "a map": (
        {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": {"type": "integer"}}}},
        {"m": {f"k{n}": "abcdef" for n in range(50_000)}},
        ["m.k0 is declared as integer, you sent a string"],
    ),
    "a map by patterns": (
        {"type": "object", "properties": {"m": {"patternProperties": {"^k": {"type": "integer"}}}}},
        {"m": {f"k{n}": "abcdef" for n in range(50_000)}},
        ["m.k0 is declared as integer, you sent a string"],
    ),
    "a tree": (TREE, {"tree": tree(6)}, ["tree.value is declared as integer", "tree.below[0].value is declared"]),
    "a filter": (
        FILTER,
        {"where": {"and": [{"or": [{"field1": {"eqq": "x"}}, {"field2": {"eq": 5}}]} for _ in range(20_000)]}},
        ["where.and[0].or[0].field1.eqq is not a parameter; did you mean eq?"],
    ),
    "a union": (
        of_values(anyOf=[{"type": "integer"}, {"type": "boolean"}]),
        {"values": ["abc"] * 150_000},
        ["values[0] is declared as integer or boolean, you sent a string"],
    ),
    "options": (of_values(enum=["red", "green"]), {"values": ["rde"] * 150_000}, ['values[0] must be one of ["red"']),
}


@pytest.mark.parametrize(("schema", "arguments", "expected_words"), CASES.values(), ids=CASES)
def test_errors_in_a_megabyte_are_reported_quickly(schema: Any, arguments: Any, expected_words: list[str]) -> None:
    done, text, took_s = prepared(schema, arguments)
    assert done.problems
    assert took_s < MOST_S
    assert len(text) <= 4_000
    for words in expected_words:
        assert words in text


@pytest.mark.parametrize(
    ("schema", "sent", "meant"),
    [
        (ROWS, {"rows": [GOOD] * 5_000, "dry_run": "true"}, {"rows": [GOOD] * 5_000, "dry_run": True}),
        (ROWS, {"rows": [{**GOOD, "id": "1"} for _ in range(3_000)]}, {"rows": [GOOD] * 3_000}),
        (ROWS, {"rows": [*[GOOD] * 3_000, {**GOOD, "id": "1"}]}, {"rows": [GOOD] * 3_001}),
        (ROWS, {"Rows": [GOOD] * 3_000}, {"rows": [GOOD] * 3_000}),
        (
            {"properties": {"rows": {"type": "array", "minItems": 50, "items": ROW}, "size": {"type": "integer"}}},
            {"rows": [GOOD] * 3_000, "size": "3000"},
            {"rows": [GOOD] * 3_000, "size": 3_000},
        ),
        (
            {"type": "object", "properties": {"m": {"additionalProperties": {"type": "integer"}}}},
            {"m": {**{f"k{n}": n for n in range(9_000)}, "last": "5"}},
            {"m": {**{f"k{n}": n for n in range(9_000)}, "last": 5}},
        ),
    ],
    ids=["beside the rows", "in each row", "in the last row", "the name", "with a least length", "in a map"],
)
def test_large_call_is_repaired_like_a_small_one(schema: Any, sent: Any, meant: Any) -> None:
    done, _, _ = prepared(schema, sent)
    assert not done.problems
    assert done.arguments == meant


def test_first_errors_are_a_subset_of_all_errors() -> None:
    schema = {
        **ROWS,
        "patternProperties": {"^x-": {"type": "string"}},
        "additionalProperties": False,
        "required": ["rows", "token"],
        "minProperties": 2,
    }
    sent = {"rows": [{**GOOD, "id": None, "extra": n} for n in range(3_000)], "x-a": 1, "other": 2}
    sent |= {f"x-{n}": n for n in range(200)}
    compiled = schemas.compile_schema(schema)
    with use_effort(THOROUGH):
        everything = compiled.errors(sent, 20_000)
        first = compiled.first_errors(sent, 200).errors

    def places(errors: Any, kind: str) -> set[tuple[Any, ...]]:
        return {
            (*error.instance_path, *getattr(error.kind, "unexpected", ()))
            for error in errors
            if error.kind.name == kind
        }

    kinds = {error.kind.name for error in everything}
    assert kinds == {error.kind.name for error in first} == {"type", "required", "additionalProperties"}
    for kind in kinds:
        assert places(first, kind) <= places(everything, kind)
    assert all(list(error.schema_path) in [list(one.schema_path) for one in everything] for error in first)


def test_parameter_declared_by_an_alternative_is_not_unknown() -> None:
    schema = {
        "allOf": [{"properties": {"rows": {"type": "array", "items": ROW}}}],
        "properties": {"dry_run": {"type": "boolean"}},
        "unevaluatedProperties": False,
    }
    done, text, _ = prepared(schema, {"rows": [{**GOOD, "id": None}] * 3_000, "dry_run": True})
    assert "rows[0].id is declared as integer" in text
    assert {problem.kind for problem in done.problems} == {"type"}
    done, text, _ = prepared(schema, {"rows": [GOOD] * 3_000, "dryrun": 5})
    assert "dryrun is not a parameter; did you mean dry_run?" in text
