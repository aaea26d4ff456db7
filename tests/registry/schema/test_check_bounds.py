"""The cost of a check is known in advance; too expensive or unrunnable checks are skipped."""

from __future__ import annotations

import gc
import pickle
import random
import weakref
from dataclasses import replace
from typing import Any

import pytest
from support.pace import limited_work

from registry.errors import NotChecked
from registry.schema import schemas
from registry.schema.check_cost import INLINE, MAX_INSTANCE_DEPTH, THOROUGH, use_effort
from registry.schema.patterns import runnable_pattern

# More than an estimate may be wrong by: processors differ, and so does what runs beside a test.
SLACK = 5


def of(**properties: Any) -> Any:
    return {"type": "object", "properties": properties}


def doubt(schema: Any, value: Any) -> NotChecked:
    with pytest.raises(NotChecked) as raised:
        schemas.compile_schema(schema).is_valid(value)
    return raised.value


def test_long_text_is_refused_by_the_cost_of_its_pattern() -> None:
    heavy, light = "(?:a|b)*a(?:a|b){900}c", r"^\w+$"
    found = doubt(of(a={"pattern": heavy}), {"a": "ab" * 5_000})
    assert (found.path, found.final) == (("a",), False)
    assert found.reason == f"10000 characters are too many for its pattern {heavy}"
    assert schemas.compile_schema(of(a={"pattern": light})).is_valid({"a": "ab" * 100_000})
    # Only texts that the pattern applies to count.
    assert schemas.compile_schema(of(a={"pattern": heavy})).is_valid({"b": "ab" * 100_000})


@pytest.mark.parametrize(
    "schema",
    [
        of(a={"items": {"$ref": "#/$defs/code"}}) | {"$defs": {"code": {"pattern": "("}}},
        of(a={"items": {"anyOf": [{"type": "integer"}, {"pattern": "("}]}}),
        of(a={"contains": {"not": {"pattern": "("}}}),
        of(a={"prefixItems": [{"if": {"pattern": "("}, "then": {"minLength": 1}}]}),
    ],
)
def test_unrunnable_pattern_is_found_wherever_it_applies(schema: Any) -> None:
    found = doubt(schema, {"a": ["x"]})
    assert found.final
    assert found.path == ("a", 0)
    assert schemas.compile_schema(schema).is_valid({"b": ["x"]})


@pytest.mark.parametrize("keyword", ["patternProperties", "propertyNames"])
def test_property_names_are_limited_like_texts(keyword: str) -> None:
    rule = {"(": {"type": "integer"}} if keyword == "patternProperties" else {"pattern": "("}
    schema = of(a={keyword: rule})
    assert doubt(schema, {"a": {"key": 1}}).path == ("a", "key")
    assert schemas.compile_schema(schema).is_valid({"a": {}})


def test_abandoned_match_under_not_is_undecided() -> None:
    schema = of(a={"not": {"pattern": "^(a|b|ab)*(?=c)x"}})
    found = doubt(schema, {"a": "ab" * 50})
    assert "takes more than 10000 steps" in found.reason
    with use_effort(replace(INLINE, leniency="uncheckable")):
        assert schemas.compile_schema(schema).is_valid({"a": "ab" * 50})


def test_many_short_texts_cost_as_much_as_one_long_text() -> None:
    schema = of(a={"items": {"pattern": "(?=(a+)+b)x"}})
    with limited_work(0.2):
        found = doubt(schema, {"a": ["a" * 500] * 2_000})
    assert (found.path, found.final) == (("a",), False)


@pytest.mark.parametrize("word", ["not", "if", "oneOf"])
def test_skipping_a_pattern_does_not_narrow_a_schema(word: str) -> None:
    rule: Any = {"pattern": "("}
    node = {word: [rule, {"type": "string"}]} if word == "oneOf" else {word: rule, "then": False}
    with use_effort(replace(INLINE, leniency="uncheckable")):
        assert schemas.compile_schema(of(a=node)).is_valid({"a": "x"})


def test_members_matching_a_skipped_pattern_are_not_undeclared() -> None:
    schema = {"type": "object", "patternProperties": {"(": {}}, "additionalProperties": False}
    with use_effort(replace(INLINE, leniency="uncheckable")):
        assert schemas.compile_schema(schema).is_valid({"a": 1})


def test_too_many_values_are_refused_naming_the_argument() -> None:
    schema = of(a={"items": {"enum": ["x", "y"]}}, b={"type": "string"})
    found = doubt(schema, {"b": "x", "a": ["x"] * 200_000})
    assert found.path == ("a",)
    assert found.reason == "more than 20000 values are too many for its schema"


def test_recursive_schema_with_multiplying_alternatives_is_refused() -> None:
    branch = {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]}
    schema = {**of(v={"$ref": "#/$defs/n"}), "$defs": {"n": {"anyOf": [branch, dict(branch), {"type": "integer"}]}}}
    shallow: Any = 5
    for _ in range(4):
        shallow = {"x": shallow}
    assert schemas.compile_schema(schema).is_valid({"v": shallow})
    deep: Any = "wrong"
    for _ in range(40):
        deep = {"x": deep}
    doubt(schema, {"v": deep})


def test_nested_filters_of_usual_size_are_checked_quickly() -> None:
    text = {"type": "object", "properties": {"equals": {"type": "string"}}, "additionalProperties": False}
    number = {"type": "object", "properties": {"gt": {"type": "number"}}, "additionalProperties": False}
    several = {"type": "array", "items": {"$ref": "#/$defs/f"}}
    properties = {**{f"p{n}": {"anyOf": [text, number]} for n in range(5)}, "and": several, "or": several}
    filters = {"type": "object", "properties": properties, "additionalProperties": False}
    compiled = schemas.compile_schema({**of(filter={"$ref": "#/$defs/f"}), "$defs": {"f": filters}})
    wrong = {"filter": {"and": [{"p0": {"equals": "a"}}, {"or": [{"p1": {"gt": 3}}, {"and": [{"p2": {"gt": "x"}}]}]}]}}
    assert not compiled.is_valid(wrong)
    [error] = compiled.errors(wrong, 20)
    assert list(error.instance_path) == ["filter", "and", 1, "or", 1, "and", 0, "p2"]


BLOCKS = {
    **of(page={"$ref": "#/$defs/block"}),
    "$defs": {
        "block": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": f"kind {n}"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/block"}},
                        "text": {"type": "string"},
                    },
                    "required": ["type"],
                }
                for n in range(8)
            ]
        }
    },
}


def page(levels: int, leaf: Any) -> Any:
    block: Any = {"type": "kind 1", "text": leaf}
    for _ in range(levels):
        block = {"type": "kind 2", "children": [{"type": "kind 0", "text": "a"}, block]}
    return {"page": block}


def test_error_in_nested_alternatives_is_reported_for_the_intended_one() -> None:
    compiled = schemas.compile_schema(BLOCKS)
    with use_effort(THOROUGH):
        assert compiled.is_valid(page(40, "text"))
        with limited_work(1):
            [error] = compiled.errors(page(40, 5), 20)
        assert list(error.instance_path) == ["page", *["children", 1] * 40, "text"]
        assert error.kind.name == "type"
        unknown = page(40, "a")
        unknown["page"]["children"][1]["children"][1]["type"] = "no kind"
        [error] = compiled.errors(unknown, 20)
        assert list(error.instance_path) == ["page", "children", 1, "children", 1, "type"]


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        (
            of(rows={"items": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["id"]}}),
            {"rows": [{"id": n, "n": n} for n in range(199)] + [{"id": 1, "n": "x"}]},
            ["rows", 199, "n"],
        ),
        (
            of(**{f"section{s}": of(**{f"field{f}": {"type": "integer"} for f in range(50)}) for s in range(20)}),
            {f"section{s}": {f"field{f}": "x" if (s, f) == (19, 3) else 1 for f in range(4)} for s in range(20)},
            ["section19", "field3"],
        ),
    ],
)
def test_errors_of_usual_calls_are_found_quickly(schema: Any, value: Any, path: list[Any]) -> None:
    [error] = schemas.compile_schema(schema).errors(value, 20)
    assert list(error.instance_path) == path


@pytest.mark.heavy
@pytest.mark.parametrize(
    "pattern",
    [
        "(?:a|b)*a(?:a|b){900}c",
        "^(?:a|b)*a(?:a|b){100}c$",
        r"(?:\p{L}|b)*a(?:\p{L}|b){20}c",
        ".*a.{200}c",
        r"(?:\w|b)*a(?:\w|b){200}c",
        "(?=(a+)+b)x",
        r"^(?=.*a)(?!.*\.\.)\w*c$",
    ],
)
def test_match_time_stays_near_its_estimate(pattern: str) -> None:
    runnable = runnable_pattern(pattern)
    assert runnable is not None
    drawn = random.Random(1)
    length = min(runnable.affordable_length(50_000_000), 200_000)
    compiled = schemas.compile_schema({"pattern": pattern})
    with use_effort(replace(INLINE, check_ns=1 << 60)):
        for alphabet in ("ab", "a", "abé中"):
            text = "".join(drawn.choice(alphabet) for _ in range(length)) + "c!"
            with limited_work(SLACK * max(runnable.cost_ns(length), 5_000_000) / 1e9):
                compiled.is_valid(text)


@pytest.mark.parametrize(("schema", "most"), [({}, MAX_INSTANCE_DEPTH), ({"anyOf": [{"items": {"$ref": "#"}}]}, 2)])
def test_quick_check_rejects_values_above_the_free_depth(schema: Any, most: int) -> None:
    compiled = schemas.compile_schema(schema)
    for levels in (1, most, most + 1, 2 * most):
        nested: list[Any] = []
        for _ in range(levels - 1):
            nested = [nested]
        # Brackets are counted only in long texts.
        for value in (nested, [*nested, "x" * 1_000]):
            assert compiled.passes(value) is (levels <= most)


class Rows(list[Any]):
    """A list that it can be seen of whether it is still held."""


def test_unchecked_arguments_are_freed_without_the_collector() -> None:
    rows = Rows({"id": number} for number in range(40_000))
    compiled, held = schemas.compile_schema(of(rows={"items": {"type": "object"}})), weakref.ref(rows)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(NotChecked) as raised:
            compiled.passes({"rows": rows})
        assert raised.value.unlocated
        assert pickle.loads(pickle.dumps(raised.value)).unlocated
        del rows, raised
        assert held() is None
    finally:
        gc.enable()
