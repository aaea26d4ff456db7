"""A repair is the only reading of a wrong call; whatever is in doubt stays as it was sent."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import schemas
from registry.envelope import Address, report
from registry.errors import SchemaRejected
from registry.places import copied
from registry.repair import Level, Repaired, repair

ADDRESS = Address(server="calendar-mcp", tool="send_email", name="calendar-mcp__send_email")
EMAIL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "to": {"type": "array", "items": {"type": "string"}},
        "subject": {"type": "string"},
        "body": {"type": "string"},
        "accountId": {"type": "string"},
        "copies": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "at": {"type": ["integer", "null"]},
        "attachments": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "priority": {"enum": ["low", "high"]},
    },
    "required": ["to", "subject", "body"],
    "additionalProperties": False,
}
MAIL = {"to": ["a@b"], "subject": "s", "body": "b"}


def repaired(arguments: Any, schema: Any = EMAIL, level: Level = "safe", **options: Any) -> Repaired:
    return repair(schema, schemas.compile_schema(schema), arguments, level, address=ADDRESS, **options)


def names(outcome: Repaired) -> list[tuple[str, str]]:
    return [(one["repair"], one["path"]) for one in (repair.as_data() for repair in outcome.repairs)]


@pytest.mark.parametrize(
    ("sent", "meant", "named"),
    [
        (json.dumps(MAIL), MAIL, [("json_text", "arguments")]),
        (json.dumps(json.dumps(MAIL)), MAIL, [("json_text", "arguments")]),
        ({"arguments": MAIL}, MAIL, [("unwrapped", "arguments")]),
        ({"arguments": {"arguments": MAIL}}, MAIL, [("unwrapped", "arguments")] * 2),
        ({"params": json.dumps(MAIL)}, MAIL, [("unwrapped", "arguments"), ("json_text", "arguments")]),
        ({"tool": "send_email", "input": MAIL}, MAIL, [("unwrapped", "arguments")]),
        ({**MAIL, "to": "a@b"}, MAIL, [("listed", "to")]),
        ({**MAIL, "to": '["a@b"]'}, MAIL, [("json_text", "to")]),
        ({**MAIL, "accountID": "x"}, {**MAIL, "accountId": "x"}, [("renamed", "accountId")]),
        ({**MAIL, "account_id": "x"}, {**MAIL, "accountId": "x"}, [("renamed", "accountId")]),
        ({**MAIL, "copies": "5"}, {**MAIL, "copies": 5}, [("converted", "copies")]),
        ({**MAIL, "urgent": "true"}, {**MAIL, "urgent": True}, [("converted", "urgent")]),
        ({**MAIL, "at": "null"}, {**MAIL, "at": None}, [("converted", "at")]),
        ({**MAIL, "priority": "High"}, {**MAIL, "priority": "high"}, [("letter_case", "priority")]),
    ],
)
def test_each_repair_is_made_and_named(sent: Any, meant: Any, named: list[tuple[str, str]]) -> None:
    outcome = repaired(sent)
    assert (outcome.arguments, names(outcome), outcome.valid) == (meant, named, True)
    untouched = repaired(sent, level="off")
    assert (untouched.arguments, untouched.repairs, untouched.valid) == (sent, (), False)


@pytest.mark.parametrize(
    "sent",
    [
        {**MAIL, "attachments": "a@b"},
        {**MAIL, "attachments": {"name": "x"}},
        {**MAIL, "copies": "5.0"},
        {**MAIL, "copies": "five"},
        {**MAIL, "urgent": "yes"},
        {**MAIL, "urgent": 1},
        {**MAIL, "to": "a@b, c@d"},
        {**MAIL, "to": "[a@b"},
        {**MAIL, "accountID": "x", "account_id": "y"},
        {**MAIL, "accountId": "x", "account_id": "y"},
        {**MAIL, "subject": 5},
        {**MAIL, "accountId": None},
        {"arguments": MAIL, "subject": "other"},
        {"arguments": MAIL, "params": MAIL},
        {"tool": "another", "arguments": MAIL},
        {},
        None,
        [],
        [MAIL],
        5,
        "mail it",
        '{"to": [',
    ],
)
def test_what_is_in_doubt_stays_as_it_was_sent(sent: Any) -> None:
    before = json.dumps(sent)
    outcome = repaired(sent)
    assert (outcome.arguments, outcome.repairs, outcome.valid) == (sent, (), False)
    assert json.dumps(sent) == before


def test_an_old_name_is_told_with_a_repaired_one() -> None:
    assert repaired({**MAIL, "account_id": "x"}).repairs[0].as_data() == {
        "repair": "renamed",
        "path": "accountId",
        "was": "account_id",
    }


def test_of_many_repairs_a_few_are_reported_and_all_are_counted() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    outcome = repaired({f"k{n}" * 100: "5" for n in range(300)}, schema)
    told = report(outcome.repairs)
    assert (told["count"], len(told["repairs"])) == (300, 20)
    assert len(json.dumps(told)) < 4_000


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({**MAIL, "accountId": None}, MAIL),
        ({**MAIL, "subject": 5}, {**MAIL, "subject": "5"}),
        ({**MAIL, "subject": ["s"]}, MAIL),
        ({**MAIL, "copies": "5.0"}, {**MAIL, "copies": 5}),
        ({**MAIL, "attachments": {"name": "x"}}, {**MAIL, "attachments": [{"name": "x"}]}),
    ],
)
def test_readings_by_convention_need_the_full_level(sent: Any, meant: Any) -> None:
    assert not repaired(sent).valid
    assert repaired(sent, level="full").arguments == meant


@pytest.mark.parametrize(
    "sent", [{**MAIL, "subject": None}, {**MAIL, "subject": None, "Subject": "s"}, {**MAIL, "attachments": {"x": 1}}]
)
def test_the_full_level_invents_nothing_either(sent: Any) -> None:
    assert not repaired(sent, level="full").valid


def test_a_wrapping_that_validates_is_left_alone_unless_the_level_is_full() -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "integer"}}}
    wrapped = {"arguments": {"limit": 5}}
    assert repaired(wrapped, schema).arguments is wrapped
    assert repaired(wrapped, schema, "full").arguments == {"limit": 5}
    for other in ({"arguments": {"size": 5}}, {"arguments": {"limit": "x"}}, {"arguments": {}}):
        assert repaired(other, schema, "full").arguments is other
    assert repaired(wrapped, {"type": "object"}, "full").arguments is wrapped


def test_a_declared_parameter_wraps_nothing() -> None:
    schema = {"type": "object", "properties": {"input": {"type": "object"}, "a": {}}, "required": ["a"]}
    assert not repaired({"input": {"a": 1}}, schema).valid
    assert repaired({"arguments": {"input": {"a": 1}, "a": 2}}, schema).arguments == {"input": {"a": 1}, "a": 2}


def test_names_of_an_object_are_spelt_only_as_that_object_declares_them() -> None:
    name = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "userId": name,
            "name": name,
            "inner": {"type": "object", "properties": {"name": {"$ref": "#/properties/name"}}, "required": ["name"]},
        },
        "required": ["name"],
    }
    sent = {"Name": "n", "inner": {"name": "m", "user_id": "x"}}
    assert repaired(sent, schema).arguments == {"name": "n", "inner": {"name": "m", "user_id": "x"}}
    assert not repaired({"name": "n", "inner": {"name": 5, "user_id": "x"}}, schema).valid


@pytest.mark.parametrize(
    "free", [{"additionalProperties": {"type": "string"}}, {"patternProperties": {"^[A-Z]": {"type": "string"}}}]
)
def test_in_a_map_no_name_is_a_slip_of_another(free: dict[str, Any]) -> None:
    labels = {"type": "object", "properties": {"default": {"type": "string"}, "size": {"type": "integer"}}, **free}
    schema = {"type": "object", "properties": {"labels": labels, "n": {"type": "integer"}}, "required": ["n"]}
    sent = {"labels": {"Default": "x", "size": "5"}, "N": 1}
    assert repaired(sent, schema).arguments == {"labels": {"Default": "x", "size": 5}, "n": 1}
    assert not repaired({"Default": "x"}, {**labels, "required": ["default"]}).valid


def test_no_name_is_taken_from_a_parameter_that_is_declared_itself() -> None:
    schema = {"type": "object", "properties": {"Path": {}, "path": {}}, "required": ["path"]}
    assert not repaired({"Path": "x"}, schema).valid
    branches = {
        "type": "object",
        "properties": {"B": {}, "a": {}},
        "anyOf": [{"required": ["b"]}, {"required": ["c"]}],
    }
    assert not repaired({"B": 1}, branches).valid


def test_two_alternatives_that_could_both_be_meant_leave_the_value_alone() -> None:
    either = {"type": "object", "properties": {"a": {"anyOf": [{"const": "X"}, {"const": "x"}, {"type": "null"}]}}}
    schema = {**either, "properties": {"a": {"anyOf": [{"enum": ["on"]}, {"enum": ["ON"]}]}}}
    assert not repaired({"a": "On"}, schema).valid
    assert repaired({"a": "null"}, either).arguments == {"a": None}
    numbers = {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert repaired({"a": "5"}, numbers).arguments == {"a": 5}


def test_each_item_of_an_array_is_repaired_for_its_own_alternative() -> None:
    line = {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}
    file = {"type": "object", "properties": {"file": {"type": "boolean"}}, "required": ["file"]}
    group = {"type": "object", "properties": {"of": {"oneOf": [line, file]}}, "required": ["of"]}
    for choice in (line, file, group):
        choice["additionalProperties"] = False
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "notes": {"type": "array", "items": {"anyOf": [line, file, group]}},
        },
        "required": ["title", "notes"],
    }
    sent = {
        "notes": [{"line": "5"}, {"File": "true"}, {"of": {"Line": "7"}}, {"of": '{"file": false}'}] * 5,
        "title": "t",
    }
    meant = [{"line": 5}, {"file": True}, {"of": {"line": 7}}, {"of": {"file": False}}] * 5
    outcome = repaired(sent, schema)
    assert outcome.arguments == {"notes": meant, "title": "t"}
    assert ("converted", "notes[16].line") in names(outcome)
    assert not repaired({"notes": [*sent["notes"], {"line": "x"}], "title": "t"}, schema).valid
    assert not repaired({"notes": sent["notes"]}, schema).valid


def test_a_place_in_an_array_that_has_its_own_alternatives_keeps_it() -> None:
    pair = {"prefixItems": [{"type": "string"}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}]}
    schema = {"type": "object", "properties": {"pair": {"type": "array", **pair}}}
    assert repaired({"pair": ["5", "5"]}, schema).arguments == {"pair": ["5", 5]}
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    schema = {**draft, "properties": {"pair": {"type": "array", "items": pair["prefixItems"]}}}
    assert repaired({"pair": ["5", "5"]}, schema).arguments == {"pair": ["5", 5]}


def test_a_default_counts_when_a_repair_is_judged() -> None:
    def fill(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"subject": "none", **arguments}

    outcome = repaired({"To": "a@b", "body": "b"}, fill=fill)
    assert (outcome.arguments, outcome.valid) == ({"to": ["a@b"], "body": "b"}, True)
    assert repaired({"to": ["a@b"], "Subject": "s", "body": "b"}, fill=fill).arguments == MAIL
    assert not repaired({"to": ["a@b"], "Subject": 5, "body": "b"}, fill=fill).valid


DIALECTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_repaired_alike(dialect: str) -> None:
    word = "definitions" if "draft-0" in dialect else "$defs"
    schema = {
        "$schema": dialect,
        "type": "object",
        word: {
            "node": {"type": "object", "properties": {"next": {"$ref": f"#/{word}/node"}, "n": {"type": "integer"}}}
        },
        "properties": {"node": {"$ref": f"#/{word}/node"}},
    }
    sent = {"node": '{"next": {"next": {"n": "5"}}}'}
    assert repaired(sent, schema).arguments == {"node": {"next": {"next": {"n": 5}}}}


def test_a_dynamic_reference_is_followed_by_the_validator() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$dynamicRef": "#node"}},
        "$defs": {
            "node": {
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {
                    "size": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$dynamicRef": "#node"}},
                },
                "additionalProperties": False,
            }
        },
    }
    sent = {"tree": {"Size": "1", "kids": '[{"size": "2"}]'}}
    assert repaired(sent, schema).arguments == {"tree": {"size": 1, "kids": [{"size": 2}]}}


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


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(SCHEMAS, VALUES, LEVELS)
def test_a_valid_call_is_the_same_object_a_repaired_one_validates_and_repairing_again_changes_nothing(
    schema: Any, arguments: Any, level: Any
) -> None:
    try:
        schemas.check_bounds(schema)
        validator = schemas.compile_schema(schema)
    except SchemaRejected:
        return
    before = copied(arguments)
    valid = isinstance(arguments, dict) and validator.is_valid(arguments)
    once = repair(schema, validator, arguments, level, address=ADDRESS)
    assert arguments == before
    if valid and level == "safe":
        assert once.arguments is arguments
        assert once.repairs == ()
    if once.repairs:
        assert once.valid
        assert once.arguments != arguments or json.dumps(once.arguments) != json.dumps(arguments)
    if once.valid:
        assert validator.is_valid(once.arguments)
    else:
        assert once.arguments is arguments
    again = repair(schema, validator, once.arguments, level, address=ADDRESS)
    if once.valid:
        assert json.dumps(again.arguments) == json.dumps(once.arguments)
        assert again.repairs == ()
    else:
        assert again == once
    off = repair(schema, validator, arguments, "off", address=ADDRESS)
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
def distorted(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any, Any]:
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
        items = [draw(distorted(depth + 1)) for _ in range(draw(st.integers(0, 1)))]
        schema = {"type": "array", **({"items": items[0][0]} if items else {})}
        value, wrong = [item[1] for item in items], [item[2] for item in items]
    elif kind == "list":
        scalar = draw(st.sampled_from(["integer", "boolean", "string"]))
        value = draw(st.lists(PLAIN[scalar], min_size=1, max_size=2))
        schema = {"type": "array", "items": {"type": scalar}}
        wrong = value[0] if len(value) == 1 and careless else value
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
def test_a_call_written_carelessly_becomes_the_call_that_was_meant(
    call: tuple[Any, Any, Any], wrapping: str | None, level: Any
) -> None:
    schema, meant, sent = call
    validator = schemas.compile_schema(schema)
    assert validator.is_valid(meant)
    sent = sent if wrapping is None else {wrapping: sent}
    outcome = repair(schema, validator, sent, level, address=ADDRESS)
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


MANY = {f"parameterNumber{n}": {"type": "integer"} for n in range(5_000)}
RECURSIVE = {
    "type": "object",
    "anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"title": "t", "properties": {"a": {"$ref": "#"}}}],
}
BRANCHES = [{"type": "object", "properties": {f"b{n}": {"const": n}}, "required": [f"b{n}"]} for n in range(999)]
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
    "a wrapping of wrappings": (EMAIL, nested(150, MAIL, "arguments")),
}


@pytest.mark.parametrize("level", ["safe", "full"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_and_call_together_raise_or_stall_a_repair(name: str, level: Level) -> None:
    schema, sent = HOSTILE[name]
    validator = schemas.compile_schema(schema)
    started = time.perf_counter()
    outcome = repair(schema, validator, sent, level, address=ADDRESS)
    took_s = time.perf_counter() - started
    assert took_s < 0.5
    assert outcome.valid == (bool(outcome.repairs) or (isinstance(sent, dict) and validator.is_valid(sent)))


def test_the_time_of_a_repair_grows_no_faster_than_the_call() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    validator = schemas.compile_schema(schema)

    def took_s(size: int) -> float:
        sent = {f"k{n}": "5" for n in range(size)}
        best = 1.0
        for _ in range(9):
            started = time.process_time()
            repair(schema, validator, sent)
            best = min(best, time.process_time() - started)
        return best

    # Eight times as many members would take 64 times as long if each were compared with each.
    assert took_s(1_600) < 40 * took_s(200)
