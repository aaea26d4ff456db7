"""The JSON Schema of variables agrees with the server's coercion (rows G5 and G6)."""

from __future__ import annotations

import json
from typing import Any

from graphql import OperationDefinitionNode, build_schema, get_variable_values, parse
from graphql.execution.values import VariableValues
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.graphql.operations import input_schema
from registry.dialects.shaping import remove_null_alternatives
from registry.intake.tool_intake import admit_tools
from registry.schema import schemas

SCHEMA = build_schema(
    """
    "A colour." enum Color { RED GREEN BLUE }
    scalar Any
    input Deep { name: String!, deeper: Deep, all: [Deep!], color: Color = RED, n: Int! = 5 }
    input Once { when: Any, flags: [Boolean!]! = [true], id: ID }
    input Choice @oneOf { text: String, number: Float, list: [Int] }
    type Query { a: Int }
    """
)
VARIABLES = {
    "int": "Int", "int1": "Int!", "float": "Float", "text": "String!", "flag": "Boolean", "id": "ID",
    "color": "Color", "color1": "Color!", "ints": "[Int]", "ints1": "[Int!]!", "grid": "[[String!]]",
    "deep": "Deep", "deeps": "[Deep!]", "once": "Once!", "choice": "Choice", "choices": "[Choice!]",
    "default": 'String = "x"', "default1": "Int! = 7", "listed": "[Color!] = GREEN",
    "object": 'Deep = {name: "a", deeper: {name: "b", color: BLUE}}', "nothing": "Int = null",
}  # fmt: skip
QUERY = f"query ({', '.join(f'${name}: {kind}' for name, kind in VARIABLES.items())}) {{ a }}"
[OPERATION] = parse(QUERY).definitions
assert isinstance(OPERATION, OperationDefinitionNode)
NODES = OPERATION.variable_definitions or ()
WHOLE = input_schema(NODES, SCHEMA, {"int": "A number."})

# The limits that are meant: integers of 32 bits, lists as lists, IDs as text, no unknown member.
INTS = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) < 2**31 or not x.is_integer())
TEXTS = st.text(max_size=4)
COLORS = st.sampled_from(["RED", "GREEN", "BLUE"])
ANY = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXTS | COLORS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(["name", "text"]), below),
    max_leaves=5,
)
# A custom scalar accepts null; its server decides about all other values.
THINGS = ANY


def optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


def deep() -> st.SearchStrategy[dict[str, Any]]:
    def level(below: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        members = {"deeper": st.none() | below, "all": st.none() | st.lists(below, max_size=2)}
        rest = {"color": st.none() | COLORS, "n": INTS}
        return st.fixed_dictionaries({"name": TEXTS}, optional={**members, **rest})

    return level(level(st.fixed_dictionaries({"name": TEXTS})))


CHOICE = st.one_of(
    st.fixed_dictionaries({"text": TEXTS}),
    st.fixed_dictionaries({"number": FLOATS | INTS}),
    st.fixed_dictionaries({"list": st.lists(st.none() | INTS, max_size=2)}),
)
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "int": st.none() | INTS, "int1": INTS | INTS.map(float), "float": st.none() | FLOATS | INTS, "text": TEXTS,
    "flag": st.none() | st.booleans(), "id": st.none() | TEXTS, "color": st.none() | COLORS, "color1": COLORS,
    "ints": st.none() | st.lists(st.none() | INTS), "ints1": st.lists(INTS),
    "grid": st.none() | st.lists(st.none() | st.lists(TEXTS, max_size=2), max_size=2),
    "deep": st.none() | deep(), "deeps": st.none() | st.lists(deep(), max_size=2),
    "once": optional(when=THINGS, flags=st.lists(st.booleans()), id=st.none() | TEXTS),
    "choice": st.none() | CHOICE, "choices": st.none() | st.lists(CHOICE, max_size=2),
    "default": st.none() | TEXTS, "default1": INTS, "listed": st.none() | st.lists(COLORS, max_size=2),
    "object": st.none() | deep(), "nothing": st.none() | INTS,
}  # fmt: skip
NEEDED = ("int1", "text", "color1", "ints1", "once")
SOUND = st.fixed_dictionaries(
    {name: RIGHT[name] for name in NEEDED}, optional={name: one for name, one in RIGHT.items() if name not in NEEDED}
)


def coerced(values: dict[str, Any]) -> VariableValues | None:
    found = get_variable_values(SCHEMA, NODES, values)
    return found if isinstance(found, VariableValues) else None


def accepted(values: object, schema: dict[str, Any] = WHOLE) -> bool:
    return schemas.validator(schema, schemas.digest(schema)).is_valid(values)


@given(SOUND)
def test_schema_accepts_what_the_server_accepts(values: dict[str, Any]) -> None:
    assert coerced(values) is not None
    assert accepted(values)


@given(SOUND, st.sampled_from(sorted(VARIABLES)), ANY)
def test_server_accepts_what_the_schema_accepts(values: dict[str, Any], name: str, odd: Any) -> None:
    values = {**values, name: odd}
    if accepted(values):
        assert coerced(values) is not None, values


@given(SOUND, st.data())
def test_nested_error_is_rejected_by_both(values: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(values)
    broken = json.loads(text)
    holders = [broken]
    for one in holders:
        holders += [
            child for child in (one.values() if isinstance(one, dict) else one) if isinstance(child, dict | list)
        ]
    holder = data.draw(st.sampled_from([one for one in holders if one]))
    place = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[place] = data.draw(ANY)
    if accepted(broken):
        assert coerced(broken) is not None, broken


@given(SOUND)
def test_missing_required_value_is_rejected_by_both(values: dict[str, Any]) -> None:
    for name in NEEDED:
        rest = {key: value for key, value in values.items() if key != name}
        assert coerced(rest) is None
        assert not accepted(rest)
        assert not accepted({**values, name: None})
    assert not accepted({**values, "unknown": 1})


@given(SOUND)
def test_sent_default_equals_an_omitted_one(values: dict[str, Any]) -> None:
    defaults = {name: one["default"] for name, one in WHOLE["properties"].items() if "default" in one}
    assert defaults == {
        "default": "x", "default1": 7, "listed": ["GREEN"], "nothing": None,
        "object": {"name": "a", "deeper": {"name": "b", "color": "BLUE"}},
    }  # fmt: skip
    without = {name: value for name, value in values.items() if name not in defaults}
    left_out, sent = coerced(without), coerced({**without, **defaults})
    assert left_out is not None
    assert sent is not None
    assert left_out.coerced == sent.coerced
    assert accepted({**without, **defaults})


@given(SOUND)
def test_schema_without_null_accepts_the_same_calls_without_null(values: dict[str, Any]) -> None:
    plain = remove_null_alternatives({"name": "x", "inputSchema": WHOLE})["inputSchema"]
    assert '"null"' not in json.dumps(plain)
    assert remove_null_alternatives({"inputSchema": plain}) == {"inputSchema": plain}

    def pruned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: pruned(one) for key, one in value.items() if one is not None}
        return [pruned(one) for one in value if one is not None] if isinstance(value, list) else value

    whole = pruned(values)
    assert accepted(whole) == accepted(whole, plain)


def test_schema_passes_intake_unchanged() -> None:
    definition = {"name": "x", "description": "X.", "inputSchema": WHOLE}
    intake = admit_tools([definition], transport="http")
    assert intake.items == (definition,)
    assert intake.repaired == ()
    assert WHOLE["properties"]["int"] == {"type": ["integer", "null"], "description": "A number."}
    assert WHOLE["$defs"].keys() == {"Deep", "Choice"}
    assert WHOLE["properties"]["once"]["properties"]["flags"]["default"] == [True]
    assert WHOLE["required"] == list(NEEDED)
