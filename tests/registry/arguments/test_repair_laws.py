"""Properties of repair for any schema and call: valid results, idempotence, bounded time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.arguments.coercion import ToolAddress, is_single_item, may_be_wrapped
from registry.arguments.repair import Repaired, RepairTarget, ValidationRepair, repair
from registry.catalog.shape import RepairLevel
from registry.errors import NotChecked, SchemaRejected
from registry.schema import schemas
from registry.schema.check_cost import THOROUGH, use_effort
from registry.schema.json_values import deep_copy
from registry.schema.validators import Validator

ADDRESS = ToolAddress(server="calendar-mcp", tool="send_email", name="calendar-mcp__send_email")
DIALECTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)


# Schemas and arguments that have much to do with each other, so that repairs happen.
NAMES = st.sampled_from(["a", "b", "accountId", "account_id", "A", "arguments", "params", "to"])
SCALARS = st.sampled_from(
    [None, True, False, 0, 5, 5.0, 1.5, "5", "5.0", "true", "null", "x", "X", "", "a, b", "[1]", '{"a": 5}', "\ud800"]
)
TEXTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
VALUES = TEXTS | TEXTS.map(json.dumps) | TEXTS.map(json.dumps).map(json.dumps)
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]


def target_of(schema: Any, validator: Validator) -> RepairTarget:
    return RepairTarget(schema=schema, validator=validator, address=ADDRESS)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=4)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
        },
    )


SUBSCHEMAS = st.recursive(
    st.booleans()
    | st.sampled_from(KINDS).map(lambda kind: {"type": kind})
    | st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True).map(lambda kinds: {"type": kinds})
    | st.sampled_from(
        [{"enum": ["x", "y", 5]}, {"enum": ["X", "x"]}, {"const": "x"}, {"type": "integer", "minimum": 3}]
    )
    | st.sampled_from([{"$ref": "#"}, {"$ref": "#/properties"}, {"$dynamicRef": "#"}, {"pattern": "^(a+)+$"}]),
    lambda inner: (
        _object(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"oneOf": branches})
        | st.lists(inner, min_size=1, max_size=2).map(lambda branches: {"allOf": branches})
        | inner.map(lambda wrong: {"not": wrong})
    ),
    max_leaves=8,
)
SCHEMAS = (_object(SUBSCHEMAS) | SUBSCHEMAS).flatmap(
    lambda schema: st.sampled_from(
        [schema, *({"$schema": one, **schema} for one in DIALECTS if isinstance(schema, dict))]
    )
)
LEVELS = st.sampled_from(["safe", "full"])


@pytest.mark.heavy
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(SCHEMAS, VALUES, LEVELS)
def test_repair_keeps_valid_calls_yields_valid_ones_and_is_idempotent(schema: Any, arguments: Any, level: Any) -> None:
    try:
        schemas.check_bounds(schema)
        validator = schemas.compile_schema(schema)
    except SchemaRejected:
        return
    before = deep_copy(arguments)
    valid = isinstance(arguments, dict) and validator.is_valid(arguments)
    once = repair(target_of(schema, validator), arguments, level)
    assert arguments == before
    # In a valid call, only the wrapper object of an open schema may be changed.
    if valid and level == "safe" and not (isinstance(arguments, dict) and may_be_wrapped(arguments)):
        assert once.arguments is arguments
        assert once.repairs == ()
    if once.repairs:
        assert once.valid
        assert once.arguments != arguments or json.dumps(once.arguments) != json.dumps(arguments)
    if once.valid:
        assert validator.is_valid(once.arguments)
    else:
        assert once.arguments is arguments
    again = repair(target_of(schema, validator), once.arguments, level)
    if once.valid:
        assert json.dumps(again.arguments) == json.dumps(once.arguments)
        assert again.repairs == ()
    else:
        assert again == once
    off = repair(target_of(schema, validator), arguments, "off")
    assert off.arguments is arguments
    assert off.repairs == ()


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(2**70), 2**70),
    "number": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "string": st.text(st.characters(exclude_characters='[{",;\n', exclude_categories=["Cs", "Zs", "Cc"]), min_size=1),
}


@st.composite
def distorted(draw: st.DrawFn, depth: int = 0, in_list: bool = False) -> tuple[Any, Any, Any]:
    """A schema, a value that fits, and the same value as a careless caller might write it."""
    kinds = [
        "integer",
        "number",
        "boolean",
        "null",
        "string",
        "enum",
        *(["array", "list", "object"] if depth < 3 else []),
    ]
    kind = "object" if depth == 0 else draw(st.sampled_from(kinds))
    careless = draw(st.booleans())
    if kind == "enum":
        value = draw(st.sampled_from(["Open", "closed", "ALL"]))
        return {"enum": ["Open", "closed", "ALL"]}, value, value.swapcase() if careless else value
    if kind == "object":
        names = draw(st.lists(st.sampled_from(["accountId", "start_date", "Zone", "to"]), unique=True))
        parts = {name: draw(distorted(depth + 1)) for name in names}
        schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}
        schema |= {"required": draw(st.lists(st.sampled_from(names), unique=True))} if names else {}
        schema["additionalProperties"] = False
        spelt = {
            name: draw(st.sampled_from([name, name.upper(), name.replace("_", "-"), f"_{name}"])) for name in names
        }
        wrong: Any = {spelt[name]: part[2] for name, part in parts.items()}
        value = {name: part[1] for name, part in parts.items()}
    elif kind == "array":
        items = [draw(distorted(depth + 1, True)) for _ in range(draw(st.integers(0, 1)))]
        schema = {"type": "array", **({"items": items[0][0]} if items else {})}
        value, wrong = [item[1] for item in items], [item[2] for item in items]
    elif kind == "list":
        scalar = draw(st.sampled_from(["integer", "boolean", "string"]))
        value = draw(st.lists(PLAIN[scalar], min_size=1, max_size=2))
        schema = {"type": "array", "items": {"type": scalar}}
        # An item of a list is never put into another list, and neither is a word for nothing.
        alone = len(value) == 1 and careless and not in_list and is_single_item(value[0])
        wrong = value[0] if alone else value
        return schema, value, json.dumps(wrong) if isinstance(wrong, list) and careless else wrong
    else:
        value = draw(PLAIN[kind])
        return {"type": kind}, value, json.dumps(value) if careless and kind != "string" else value
    times = draw(st.integers(0, 2)) if careless else 0
    for _ in range(times):
        wrong = json.dumps(wrong)
    return schema, value, wrong


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(distorted(), st.sampled_from([None, "arguments", "params", "args", "input"]), LEVELS)
@pytest.mark.heavy
def test_careless_call_is_repaired_to_the_intended_call(
    call: tuple[Any, Any, Any], wrapping: str | None, level: Any
) -> None:
    schema, meant, sent = call
    validator = schemas.compile_schema(schema)
    assert validator.is_valid(meant)
    sent = sent if wrapping is None else {wrapping: sent}
    outcome = repair(target_of(schema, validator), sent, level)
    assert outcome.valid
    # The types count, not only what Python calls equal.
    assert json.dumps(outcome.arguments, sort_keys=True) == json.dumps(meant, sort_keys=True)


def deep(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"type": "object", "properties": {"a": leaf}, "required": ["a"]}
    return leaf


def nested(levels: int, leaf: Any, key: str = "a") -> Any:
    for _ in range(levels):
        leaf = {key: leaf}
    return leaf


@pytest.mark.parametrize("slip", [{"count": "5"}, {"Count": 5}, {"count": [5]}])
def test_arguments_too_deep_for_a_repair_stay_as_sent(slip: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}, "deep": {}}, "required": ["count"]}
    sent = {**slip, "deep": nested(300, "x")}
    attempt = ValidationRepair(schema, schemas.compile_schema(schema), sent, full=True, map_back=lambda value: value)
    assert attempt.run() is sent
    assert {**sent, "deep": None} == {**slip, "deep": None}
    assert attempt.repairs == []


MANY = {f"parameterNumber{n}": {"type": "integer"} for n in range(5_000)}
RECURSIVE = {
    "type": "object",
    "anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"title": "t", "properties": {"a": {"$ref": "#"}}}],
}
BRANCHES = [{"type": "object", "properties": {f"b{n}": {"const": n}}, "required": [f"b{n}"]} for n in range(999)]
# The time that the loop is blocked on a slow machine; most cases take a hundredth of it.
MOST_S = 0.5
HOSTILE: dict[str, tuple[Any, Any]] = {
    "5,000 properties, one slip": ({"type": "object", "properties": MANY}, {"parameter_number_7": "x", "y": []}),
    "5,000 properties, all slips": (
        {"type": "object", "properties": MANY, "required": list(MANY), "additionalProperties": False},
        {f"parameter_number_{n}": str(n) for n in range(5_000)},
    ),
    "5,000 unknown names": (
        {"type": "object", "properties": MANY, "additionalProperties": False},
        {f"other{n}": n for n in range(5_000)},
    ),
    "95 levels": (deep(95, {"type": "integer"}), nested(95, "5")),
    "95 levels of slips": (deep(95, {"type": "integer"}), nested(95, "5", "A")),
    "10,000 levels": ({"type": "object", "additionalProperties": False}, nested(10_000, 1)),
    "a text of 100,000 levels": (
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"a": "[" * 100_000 + "]" * 100_000},
    ),
    "a text of 150 levels in a recursive schema": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
        {"a": json.dumps(nested(150, {"b": 1}))},
    ),
    "a catastrophic pattern": (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)(a+)+$"}}, "required": ["a"]},
        {"A": "a" * 4_000 + "!"},
    ),
    "doubling references": (RECURSIVE, nested(40, 5)),
    "999 alternatives": ({"type": "object", "properties": {"a": {"anyOf": BRANCHES}}}, {"a": {"B5": "5"}}),
    "an array of wrong alternatives": (
        {"type": "object", "properties": {"a": {"items": {"anyOf": BRANCHES[:9]}}}},
        {"a": [{"B5": "6"}] * 300},
    ),
    "a big enum": (
        {"type": "object", "properties": {"a": {"items": {"enum": [f"o{n}" for n in range(9_000)]}}}},
        {"a": [f"O{n}" for n in range(200)]},
    ),
    "9,000 members beside 400 missing ones": (
        {"type": "object", "required": [f"r{n}" for n in range(400)]},
        {f"member{n}" * 6: n for n in range(9_000)},
    ),
    "an enormous enum": (
        {"type": "object", "properties": {"a": {"items": {"enum": [f"o{n}" for n in range(70_000)]}}}},
        {"a": ["O5"] * 200},
    ),
    "100,000 wrong items": (
        {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}},
        {"a": ["5"] * 100_000},
    ),
    "10,000 wrong items": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {f"k{n}": "5" for n in range(10_000)},
    ),
    "a number of a million digits": (
        {"type": "object", "properties": {"a": {"type": "number"}}},
        {"a": "9" * 1_000_000},
    ),
    "numbers of a million digits in a text": (
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"a": f"[{'9' * 1_000_000}, 0.{'9' * 1_000_000}, 1e-99999999999999999999, 1e{'9' * 30}]"},
    ),
    "two megabytes of quotes": ({"type": "object", "properties": {"a": {"type": "object"}}}, {"a": '"' * 2_000_000}),
    "a schema that allows nothing": (False, {"a": 1}),
    "a schema that allows anything": (True, "x"),
    "a wrapping of wrappings": ({"type": "object", "required": ["to"]}, nested(150, {"to": 1}, "arguments")),
}


def _timed(schema: Any, validator: Validator, sent: Any, level: RepairLevel) -> tuple[Repaired | None, float]:
    began_s = time.process_time()
    try:
        outcome = repair(target_of(schema, validator), sent, level)
    except NotChecked:
        outcome = None  # left to a separate process
    return outcome, time.process_time() - began_s


@pytest.mark.parametrize("level", ["safe", "full"])
@pytest.mark.parametrize("name", HOSTILE)
def test_repair_of_a_hostile_schema_and_call_is_bounded(name: str, level: RepairLevel) -> None:
    schema, sent = HOSTILE[name]
    validator = schemas.compile_schema(schema)
    outcome, took_s = _timed(schema, validator, sent, level)
    # A second time where the collector, say, has had its turn in the first: what stalls does so each time.
    if took_s >= MOST_S:
        outcome, took_s = _timed(schema, validator, sent, level)
    assert took_s < MOST_S
    assert outcome is None or outcome.valid == (
        bool(outcome.repairs) or (isinstance(sent, dict) and validator.is_valid(sent))
    )


def test_repair_time_is_linear_in_the_size_of_the_call() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    validator = schemas.compile_schema(schema)

    def took_s(size: int) -> float:
        sent = {f"k{n}": "5" for n in range(size)}
        best = 1.0
        for _ in range(9):
            started = time.process_time()
            with use_effort(THOROUGH):
                repair(RepairTarget(schema=schema, validator=validator), sent)
            best = min(best, time.process_time() - started)
        return best

    # Eight times as many members would take 64 times as long if each were compared with each.
    assert took_s(1_600) < 40 * took_s(200)


@pytest.mark.parametrize("arguments", [None, {}, {"to": 5}])
@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]},
        {"$schema": DIALECTS[3], "anyOf": [{"$dynamicRef": "#"}, {"type": "string"}]},
        {"properties": {"to": {"anyOf": [{"$ref": "#/properties/to"}, {"type": "string"}]}}},
    ],
)
def test_self_referencing_union_is_tried_once(schema: Any, arguments: Any) -> None:
    repaired = repair(target_of(schema, schemas.compile_schema(schema)), arguments, "full")
    assert not repaired.repairs or repaired.valid


@pytest.mark.parametrize("levels", [1, 5, 40])
def test_nested_unions_are_tried_within_bounds(levels: int) -> None:
    schema: Any = {"type": "integer"}
    sent: Any = "5"
    meant: Any = 5
    for _ in range(levels):
        schema = {"anyOf": [{"type": "object", "properties": {"a": schema}, "required": ["a"]}, {"type": "boolean"}]}
        sent, meant = {"a": sent}, {"a": meant}
    repaired = repair(target_of(schema, schemas.compile_schema(schema)), sent, "safe")
    assert repaired.arguments == (meant if levels < 10 else sent)
