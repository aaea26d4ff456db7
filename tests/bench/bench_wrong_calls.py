"""Measure the explanation of errors in a megabyte of arguments; run it as a program.

    python tests/bench/bench_wrong_calls.py [--rounds 5] [--bytes 1000000] [--strict] [--only WORD]

Each case is a schema, of up to 1,000 properties or recursive, with a megabyte of arguments that do not fit it. They are
prepared and explained as in the process that checks large calls, and the least processor time of the rounds is that
case's cost. `--strict` exits 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.wrappers import wrapper_of

from registry.arguments.prepare import prepare
from registry.arguments.problems import explain
from registry.schema import schemas
from registry.schema.check_cost import THOROUGH, use_effort

MOST_MS: Final = 50.0
OPTIONS: Final = ["red", "green", "blue"]
KINDS: Final = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"enum": OPTIONS},
]
MANY: Final = {f"p{n}": KINDS[n % len(KINDS)] for n in range(1_000)}


def filled(most: int, one: Callable[[int], Any]) -> list[Any]:
    """Return as many values as make up a size."""
    made: list[Any] = []
    size = 0
    while size < most:
        made.append(one(len(made)))
        size += len(json.dumps(made[-1], separators=(",", ":"))) + 1
    return made


def rows(item: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    """Return the schema of a list of rows."""
    table = {"type": "object", "properties": {"rows": {"type": "array", "items": item}}, "required": ["rows"]}
    return {**table, "$defs": definitions} if definitions else table


def wide(**more: Any) -> dict[str, Any]:
    """Return a schema of 1,000 properties."""
    return {"type": "object", "properties": MANY, **more}


def right(n: int) -> dict[str, Any]:
    """Return a row of 1,000 right members."""
    values: list[Any] = [f"text {n}", n, True, ["a"], "red"]
    return {f"p{index}": values[index % len(values)] for index in range(1_000)}


def wrong(_n: int) -> dict[str, Any]:
    """Return a row of 1,000 wrong members."""
    return dict.fromkeys(MANY, None)


def field_filter(fields: int, **more: Any) -> dict[str, Any]:
    """Return the schema of a recursive filter."""
    field = {
        "type": "object",
        "properties": {"eq": {"type": "string"}, "in": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": False,
    }
    below = {"type": "array", "items": {"$ref": "#/$defs/filter"}}
    node = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "and": below, "or": below, "not": {"$ref": "#/$defs/filter"},
            **{f"field{n}": {"$ref": "#/$defs/field"} for n in range(fields)},
        },
        **more,
    }  # fmt: skip
    return {
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/filter"}},
        "$defs": {"filter": node, "field": field},
    }


def blocks(word: str, *, marked: bool, kinds: int = 10, **more: Any) -> dict[str, Any]:
    """Return the schema of a tree in which each node is one of some types."""

    def block(n: int) -> dict[str, Any]:
        mark = {"type": {"const": f"k{n}"}} if marked else {}
        return {
            "type": "object",
            "properties": {
                **mark, f"text{n}": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/block"}},
            },
            "required": [*mark, f"text{n}"],
            **more,
        }  # fmt: skip

    return {
        "type": "object",
        "properties": {"blocks": {"type": "array", "items": {"$ref": "#/$defs/block"}}},
        "$defs": {"block": {word: [{"$ref": f"#/$defs/b{n}"} for n in range(kinds)]}}
        | {f"b{n}": block(n) for n in range(kinds)},
    }


def forest(
    most: int, leaf: Callable[[int], Any], node: Callable[[list[Any]], Any], width: int, levels: int
) -> list[Any]:
    """Return trees of nodes with leaves that make up a size."""

    def tree(n: int, depth: int) -> Any:
        return leaf(n) if depth == 0 else node([tree(n, depth - 1) for _ in range(width)])

    return filled(most, lambda n: tree(n, levels))


def branch(children: list[Any]) -> dict[str, Any]:
    """Return a marked node."""
    return {"type": "k1", "text1": "x", "children": children}


def plain_branch(children: list[Any]) -> dict[str, Any]:
    """Return a node without a mark."""
    return {"text1": "x", "children": children}


def conjunction(children: list[Any]) -> dict[str, Any]:
    """Return a node of a filter."""
    return {"and": [{"or": children}]}


SHAPE: Final = {
    "oneOf": [
        {"properties": {"kind": {"const": f"k{n}"}, **{f"f{n}_{m}": {"type": "integer"} for m in range(50)}},
         "required": ["kind"], "additionalProperties": False}
        for n in range(20)
    ]
}  # fmt: skip
NESTED: Final = {
    "anyOf": [{"oneOf": [{"type": "object", "properties": {f"a{n}{m}": {"type": "integer"}},
                          "required": [f"a{n}{m}"], "additionalProperties": False} for m in range(8)]}
              for n in range(8)]
}  # fmt: skip


def cases(size: int) -> dict[str, tuple[Any, Any]]:
    """Return schemas and arguments of a size, by what is wrong."""
    many, trees = partial(filled, size), partial(forest, size)
    chain: Any = {"field1": {"eq": 5}}
    for _ in range(60):
        chain = {"and": [chain]}
    return {
        "wide: wrong type": (rows(wide()), {"rows": many(wrong)}),
        "wide: text for all": (rows(wide()), {"rows": many(lambda n: {name: {"x": n} for name in MANY})}),
        "wide: one wrong in each": (rows(wide()), {"rows": many(lambda n: {**right(n), "p500": 5})}),
        "wide: one wrong in the last": (rows(wide()), {"rows": [*many(right), {"p500": 5}]}),
        "wide: options": (rows(wide()), {"rows": many(lambda n: {f"p{m}": "rde" for m in range(4, 1_000, 5)})}),
        "wide: all required, none sent": (rows(wide(required=[*MANY])), {"rows": many(lambda n: {})}),
        "wide: all required, half sent": (
            rows(wide(required=[*MANY])),
            {"rows": many(lambda n: {name: value for name, value in right(n).items() if name.endswith("1")})},
        ),
        "wide: unknown": (
            rows(wide(additionalProperties=False)),
            {"rows": many(lambda n: {f"q{m}": m for m in range(1_000)})},
        ),
        "wide: one unknown in each": (
            rows(wide(additionalProperties=False)),
            {"rows": many(lambda n: {**right(n), "p_500": 1})},
        ),
        "wide: typed others": (
            rows(wide(additionalProperties={"type": "integer"})),
            {"rows": many(lambda n: {f"q{m}": "x" for m in range(1_000)})},
        ),
        "wide: unevaluated": (
            rows({"allOf": [wide()], "unevaluatedProperties": False}),
            {"rows": many(lambda n: {**right(n), "other": 1})},
        ),
        "wide: long texts": (
            rows(wide()), {"rows": many(lambda n: {f"p{m}": "x" * 220 for m in range(1, 1_000, 5)})}),
        "wide: long texts that could be": (
            rows(wide()), {"rows": many(lambda n: {f"p{m}": "4" * 220 for m in range(1, 1_000, 5)})}),
        "wide: by reference": (rows({"$ref": "#/$defs/row"}, row=wide()), {"rows": many(wrong)}),
        "wide: all of": (rows({"allOf": [wide(), {"required": ["id"]}]}), {"rows": many(wrong)}),
        "wide: options that are null": (
            rows({"type": "object", "properties": {
                name: {"anyOf": [kind, {"type": "null"}]} for name, kind in MANY.items()}}),
            {"rows": many(lambda n: {name: {"x": n} for name in MANY})},
        ),
        "wide: marked": (rows(SHAPE), {"rows": many(lambda n: {"kind": "k7", "f7_1": "x", "f7_2": 1.5})}),
        "wide: mark unknown": (rows(SHAPE), {"rows": many(lambda n: {"kind": "q", "f7_1": "x", "f7_2": 1.5})}),
        "wide: mark missing": (rows(SHAPE), {"rows": many(lambda n: {"f7_1": 5, "f7_2": 1})}),
        "wide: nested alternatives": (rows(NESTED), {"rows": many(lambda n: {"a11": "x"})}),
        "wide: nested, unknown": (rows(NESTED), {"rows": many(lambda n: {"b": n})}),
        "filter: wrong type": (
            field_filter(20), {"where": {"and": trees(lambda n: {"field1": {"eq": 5}}, conjunction, 2, 2)}}),
        "filter: wrong name": (
            field_filter(20), {"where": {"and": trees(lambda n: {"field1": {"eqq": "x"}}, conjunction, 2, 2)}}),
        "filter: wrong field": (
            field_filter(20), {"where": {"and": trees(lambda n: {"feild1": {"eq": "x"}}, conjunction, 2, 2)}}),
        "filter: 1,000 fields, wrong type": (
            field_filter(1_000), {"where": {"and": trees(lambda n: {"field1": {"eq": 5}}, conjunction, 2, 2)}}),
        "filter: 1,000 fields, wrong name": (
            field_filter(1_000), {"where": {"and": trees(lambda n: {"field1": {"eqq": "x"}}, conjunction, 2, 2)}}),
        "filter: 1,000 fields sent": (
            field_filter(1_000),
            {"where": {"and": many(lambda n: {f"field{m}": {"eq": m} for m in range(1_000)})}},
        ),
        "filter: one wrong": (
            field_filter(1_000),
            {"where": {"and": [*trees(lambda n: {"field1": {"eq": "x"}}, conjunction, 2, 2), {"field1": {"eq": 5}}]}},
        ),
        "filter: required": (
            field_filter(20, required=["field1"]),
            {"where": {"and": trees(lambda n: {"field2": {"eq": "x"}}, conjunction, 2, 2)}}),
        "filter: deep": (field_filter(20), {"where": {"and": many(lambda n: chain)}}),
        "filter: not": (
            field_filter(20),
            {"where": {"and": many(lambda n: {"not": {"not": {"not": {"field1": {"in": [1, 2, 3]}}}}})}}),
        **{
            f"tree: {word}, {'marked' if marked else 'not marked'}, {name}": (
                blocks(word, marked=marked), {"blocks": trees(leaf, branch if marked else plain_branch, width, levels)}
            )
            for word in ("anyOf", "oneOf")
            for marked in (True, False)
            for name, leaf, width, levels in [
                ("wrong type", lambda n: {"type": "k3", "text3": 5}, 3, 3),
                ("missing", lambda n: {"type": "k3", "children": []}, 3, 3),
                ("unknown mark", lambda n: {"type": "q", "text3": "x"}, 3, 3),
                ("deep", lambda n: {"type": "k3", "text3": 5}, 1, 12),
                ("flat", lambda n: {"type": "k3", "text3": 5}, 1, 0),
                ("no object", lambda n: "text", 3, 3),
            ]
        },
        "tree: closed": (
            blocks("oneOf", marked=True, additionalProperties=False),
            {"blocks": trees(lambda n: {"type": "k3", "text3": "x", "extra": 1}, branch, 3, 3)}),
        "tree: closed, not marked": (
            blocks("anyOf", marked=False, additionalProperties=False),
            {"blocks": trees(lambda n: {"text3": "x", "extra": 1}, plain_branch, 3, 3)}),
        "tree: one wrong": (
            blocks("oneOf", marked=True),
            {"blocks": [*trees(lambda n: {"type": "k3", "text3": "x"}, branch, 3, 3), branch([{"type": "k3"}])]}),
        "tree: 100 types": (
            blocks("oneOf", marked=True, kinds=100),
            {"blocks": trees(lambda n: {"type": "k3", "text3": 5}, branch, 3, 3)}),
    }  # fmt: skip


def cost_ms(schema: Any, arguments: Any, rounds: int) -> tuple[float, str]:
    """Return the least processor time of explaining what is wrong, and the text."""
    wrapper = wrapper_of("load", schema)
    # As a parser makes them: close together in memory, and no part twice.
    arguments = json.loads(json.dumps(arguments))
    taken: list[float] = []
    text = ""
    for _ in range(rounds):
        schemas.validator(wrapper.checked_schema, wrapper.schema_digest)
        with use_effort(THOROUGH):
            started = time.process_time()
            done = prepare(wrapper, arguments)
            text = explain(wrapper, done.problems, arguments, checked=done.checked)
            taken.append((time.process_time() - started) * 1e3)
    return min(taken), text


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strict", action="store_true", help="exit 1 where a figure is missed")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--texts", action="store_true", help="print what is told, too")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="the size of the arguments, about")
    options = parser.parse_args()
    gc.disable()  # as in the process that checks
    worst = 0.0
    for name, (schema, arguments) in cases(options.bytes).items():
        if options.only not in name:
            continue
        spent, text = cost_ms(schema, arguments, options.rounds)
        worst = max(worst, spent)
        print(f"{name:45}{spent:>8.1f} ms{'' if spent <= MOST_MS else '  !'}", flush=True)
        if options.texts:
            print("   ", text[:600])
    print(f"the worst {worst:.1f} ms; within {MOST_MS:g} ms: {'yes' if worst <= MOST_MS else 'NO'}")
    return 1 if options.strict and worst > MOST_MS else 0


if __name__ == "__main__":
    sys.exit(main())
