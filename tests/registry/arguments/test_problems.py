"""Problems in arguments, as data and as text for a model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work
from support.wrappers import wrapper_of

from registry.arguments.diagnosis import ArgumentProblem
from registry.arguments.problems import check, explain, unchecked_problem
from registry.catalog.catalog import ToolWrapper
from registry.errors import NotChecked

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
EMAIL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "to": {"type": "array", "items": {"type": "string"}},
        "subject": {"type": "string"},
        "body": {"type": "string"},
        "priority": {"enum": ["low", "high"]},
        "at": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["to", "subject", "body"],
    "additionalProperties": False,
}


def wrapper(schema: Any = EMAIL) -> ToolWrapper:
    return wrapper_of("send_email", schema)


def explanation_of(arguments: object, schema: Any = EMAIL) -> str:
    tool = wrapper(schema)
    return explain(tool, check(tool, arguments), arguments)


def test_valid_arguments_have_no_problem() -> None:
    assert check(wrapper(), {"to": ["a"], "subject": "s", "body": "b"}) == ()


def test_empty_call_names_missing_parameters_and_shows_a_ready_call() -> None:
    text = explanation_of({})
    assert text.startswith("Not called: calendar-mcp__send_email. Nothing was sent to its server.")
    assert "Missing: to, subject, body. Keys sent: (none)." in text
    assert '{"to":["<string>"],"subject":"<string>","body":"<string>"}' in text
    assert '"additionalProperties":false' in text


def test_each_kind_of_problem_has_its_path() -> None:
    found = check(wrapper(), {"to": "a@b", "body": "b", "subjct": "s", "priority": "mid", "at": "x"})
    assert {(problem.path, problem.kind) for problem in found} == {
        (("subject",), "missing"),
        (("to",), "type"),
        (("subjct",), "unknown"),
        (("priority",), "value"),
        (("at",), "type"),
    }
    messages = " ".join(problem.message for problem in found)
    assert "to is declared as array, you sent a string" in messages
    assert "at is declared as integer or null, you sent a string" in messages
    assert "did you mean subject?" in messages
    assert '["low","high"]' in messages


@pytest.mark.parametrize("arguments", [None, [], "x", 5, 1.5, True])
def test_arguments_that_are_not_an_object_are_a_type_problem(arguments: object) -> None:
    (problem,) = check(wrapper(), arguments)
    assert (problem.path, problem.kind) == ((), "type")


def test_explanation_does_not_repeat_values() -> None:
    secret = "hunter2-secret"
    arguments = {"to": secret, "subject": {"password": secret}, "body": [secret], "priority": secret}
    schema = {**EMAIL, "propertyNames": {"maxLength": 3}, "properties": {**EMAIL["properties"]}}
    assert secret not in explanation_of(arguments, schema)
    assert secret not in explanation_of(
        {"a": secret},
        {"type": "object", "properties": {"a": {"const": "x", "pattern": "^b", "maxLength": 2, "not": {}}}},
    )


KINDS = st.sampled_from(["string", "integer", "array", "object", "null"])
PARTS = st.one_of(
    KINDS.map(lambda kind: {"type": kind}),
    st.just({"enum": ["x", "y"]}),
    st.just({"const": 5}),
    st.just({"pattern": "^$", "maxLength": 2}),
    st.just({"anyOf": [{"type": "integer"}, {"enum": ["low"]}]}),
    st.just({"type": "object", "propertyNames": {"maxLength": 1}, "required": ["z"], "additionalProperties": False}),
)
SECRETS = st.sampled_from(["hunter2", ["hunter2"], {"b": "hunter2"}, {"bb": {"c": "hunter2"}}, '{"a": "hunter2"}', 5])


@given(st.dictionaries(st.sampled_from(["a", "b", "to"]), PARTS), st.dictionaries(st.text("abto", max_size=3), SECRETS))
def test_explanation_does_not_repeat_values_for_any_schema(
    properties: dict[str, Any], arguments: dict[str, Any]
) -> None:
    tool = wrapper({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False})
    for via in ("wrapper", "invoke_tool"):
        text = explain(tool, check(tool, arguments), arguments, via=via)
        assert "hunter2" not in text
        assert len(text) <= 4_000


@given(JSON, JSON)
def test_checking_and_explaining_do_not_raise_and_stay_short(arguments: Any, odd: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"default": odd}}, "required": ["a"], "x-odd": odd}
    tool = wrapper(schema if isinstance(odd, dict | str) else EMAIL)
    problems = check(tool, arguments)
    assert len(problems) <= 20
    assert len(explain(tool, problems, arguments)) <= 4_000


def test_huge_schema_and_many_wrong_keys_are_explained_within_bounds() -> None:
    properties = {f"p{n}": {"type": "string", "description": "x" * 100} for n in range(500)}
    schema = {"type": "object", "properties": properties, "required": ["p1"], "additionalProperties": False}
    arguments = {f"k{n}" * 50: n for n in range(1_000)}
    with limited_work(0.5):
        text = explanation_of(arguments, schema)
    assert len(text) <= 4_000
    assert "and 980 more" in text
    assert "Missing: p1." in text


def test_long_schema_is_reduced_to_required_parameters() -> None:
    properties = {f"p{n}": {"type": "string", "description": "x" * 100} for n in range(100)}
    text = explanation_of({}, {"type": "object", "properties": properties, "required": ["p1"]})
    assert '"required":["p1"]' in text
    assert text.endswith("(optional parameters left out)")


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "https://nowhere.example/x"}, "no schema"])
def test_schema_that_does_not_compile_yields_no_problem(schema: Any) -> None:
    assert check(wrapper(schema), {"anything": 1}) == ()


def test_ten_thousand_levels_of_arguments_are_not_walked() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(10_000):
        arguments = {"a": arguments}
    with pytest.raises(NotChecked) as doubt:
        check(wrapper({"type": "object"}), arguments)
    problem = unchecked_problem(doubt.value)
    assert len(explain(wrapper({"type": "object"}), (problem,), arguments)) < 1_000


def test_placeholders_follow_references_and_stop_at_recursion() -> None:
    schema = {
        "type": "object",
        "required": ["node", "when", "mode"],
        "properties": {
            "node": {"$ref": "#/$defs/node"},
            "when": {"type": ["null", "integer"]},
            "mode": {"enum": ["fast", "slow"]},
        },
        "$defs": {"node": {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    text = explanation_of({}, schema)
    assert '"when":"<integer>","mode":"<fast|slow>"' in text
    assert '"node":{"next":' in text


def test_explanation_via_invoke_tool_shows_both_forms() -> None:
    tool = wrapper()
    text = explain(tool, check(tool, {}), {}, via="invoke_tool")
    call = '{"to":["<string>"],"subject":"<string>","body":"<string>"}'
    assert f"calendar-mcp__send_email {call}" in text
    assert f'invoke_tool {{"server":"calendar-mcp","tool":"send_email","arguments":{call}}}' in text


def test_explanation_shows_sent_keys_and_unwrapped_keys() -> None:
    tool = wrapper()
    inner = {"to": ["a"], "subject": "s"}
    text = explain(tool, check(tool, inner), {"params": inner}, checked=inner)
    assert "Missing: body. Keys sent: params, read as: to, subject." in text


def test_value_of_the_wrong_type_is_not_also_checked_against_options() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}}}
    (problem,) = check(wrapper(schema), {"a": 5})
    assert problem.message == "a is declared as string, you sent an integer"


@pytest.mark.parametrize(
    ("sent", "kind", "path", "words"),
    [
        ({"id": 7}, "missing", ("at", "kind"), "at.kind is required"),
        ({"kind": "circle"}, "missing", ("at", "radius"), "at.radius is required"),
        ({"kind": "circle", "radius": "5"}, "type", ("at", "radius"), "declared as number"),
        ({"kind": "line"}, "value", ("at", "kind"), 'at.kind must be one of ["circle",'),
        ([], "type", ("at",), "at is declared as object or string, you sent an array"),
    ],
)
def test_explanation_covers_the_alternative_that_was_meant(
    sent: Any, kind: str, path: tuple[str, ...], words: str
) -> None:
    circle = {
        "type": "object",
        "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
        "required": ["kind", "radius"],
    }
    square = {
        "type": "object",
        "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
        "required": ["kind", "side"],
    }
    named = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["kind", "id"]}
    shapes = [{"oneOf": [circle, square]} if "kind" in sent else named, {"type": "string"}]
    found = check(wrapper({"type": "object", "properties": {"at": {"anyOf": shapes}}}), {"at": sent})
    assert [(problem.kind, problem.path) for problem in found] == [(kind, path)]
    assert words in found[0].message


def test_closest_option_is_suggested_without_the_sent_value() -> None:
    schema = {"type": "object", "properties": {"state": {"enum": ["open", "closed"]}, "v": {"const": 2}}}
    (problem,) = check(wrapper(schema), {"state": "closedd"})
    assert problem.message == 'state must be one of ["open","closed"]; did you mean closed?'
    (problem,) = check(wrapper(schema), {"v": 3})
    assert problem.message == "v must be 2"


def test_misspelled_name_in_an_open_schema_is_reported() -> None:
    schema = {"type": "object", "properties": {"startDate": {"type": "string"}}, "required": ["startDate"]}
    text = explanation_of({"startDte": "x"}, schema)
    assert "Keys sent: startDte. startDte is not a parameter; did you mean startDate?" in text


def test_big_schema_is_reduced_to_the_parts_of_this_call() -> None:
    properties: dict[str, Any] = {f"p{n}": {"type": "string", "description": "x" * 100} for n in range(100)}
    properties["late"] = {"$ref": "#/$defs/late"}
    schema = {"type": "object", "properties": properties, "required": ["p1"], "$defs": {"late": {"type": "integer"}}}
    text = explanation_of({"late": "soon"}, schema)
    assert '"late":{"$ref":"#/$defs/late"}' in text
    assert '"$defs":{"late":{"type":"integer"}}' in text
    assert text.endswith("(optional parameters left out)")


def test_problems_compare_by_value() -> None:
    one = ArgumentProblem(path=("a",), kind="missing", message="a is required")
    assert one == ArgumentProblem(path=("a",), kind="missing", message="a is required")


def test_const_alternatives_are_explained_as_options() -> None:
    schema = {"type": "object", "properties": {"unit": {"anyOf": [{"const": "km"}, {"const": "mile"}, {"const": 1}]}}}
    (problem,) = check(wrapper(schema), {"unit": "mil"})
    assert problem.message == 'unit must be one of ["km","mile",1]; did you mean mile?'


def test_long_path_is_shortened_in_the_middle() -> None:
    node: Any = {"type": "object", "properties": {"below": {"$ref": "#"}, "size": {"type": "integer"}}}
    sent: Any = {"size": "large"}
    for _ in range(40):
        sent = {"below": sent}
    (problem,) = check(wrapper(node), sent)
    assert problem.message.startswith("below.below.below.")
    assert problem.message.endswith("….below.below.below.below.size is declared as integer, you sent a string")


MARKED = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, size: {"type": "number"}},
            "required": ["kind", size],
            "additionalProperties": False,
        }
        for kind, size in (("circle", "radius"), ("square", "side"))
    ]
}
NEEDING = {
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
}


@pytest.mark.parametrize(
    ("properties", "more", "sent", "messages", "call"),
    [
        ({"at": MARKED}, {}, {"at": {}}, ["at.kind is required"], '{"at":{"kind":"circle","radius":"<number>"}}'),
        ({}, NEEDING, {}, ["id or name is required"], '{"id":"<integer>"}'),
        ({"by": NEEDING}, {}, {"by": {}}, ["by needs id or name"], '{"by":{"id":"<integer>"}}'),
        (
            {"l": {"type": "array", "contains": {"const": "x"}}},
            {},
            {"l": []},
            ['l has to contain "x"'],
            '{"l":["x"]}',
        ),
        (
            {"no": {"enum": []}, "n": {"type": "integer"}},
            {},
            {"no": 1, "n": 2},
            ["no is not allowed here"],
            '{"n":"<as sent>"}',
        ),
        (
            {"n": {"$ref": "#/$defs/n", "minimum": 10}},
            {"$defs": {"n": {"type": "integer"}}},
            {"n": "many"},
            ["n is declared as integer, you sent a string"],
            '{"n":10}',
        ),
        (
            {"b": {"type": "string"}},
            {"allOf": [{"properties": {"a": {"type": "integer"}}}], "unevaluatedProperties": False},
            {"a": "x", "b": "y"},
            ["a is declared as integer, you sent a string"],
            '{"b":"<as sent>","a":"<integer>"}',
        ),
        (
            {"l": {"type": "array", "items": {"minimum": 4, "type": "integer"}, "minItems": 3, "uniqueItems": True}},
            {},
            {"l": [4, 4, 4]},
            ["l: the value has non-unique elements"],
            '{"l":[4,5,6]}',
        ),
        (
            {},
            {"additionalProperties": {"type": "integer"}},
            {"a": "x", "b": 2},
            ["a is declared as integer, you sent a string"],
            '{"a":"<integer>","b":"<as sent>"}',
        ),
        (
            {"n": {"type": "integer"}},
            {"additionalProperties": False},
            {"n": 1, "N": 2},
            ["N is not a parameter; did you mean n?"],
            '{"n":"<as sent>"}',
        ),
        (
            {"at": {"properties": {"x": {"type": "integer"}}, "additionalProperties": False}},
            {},
            {"at": {"x": 1, "z": 2}},
            ["at.z is not a parameter"],
            '{"at":{"x":"<as sent>"}}',
        ),
    ],
)
def test_explanation_is_short_and_its_example_call_is_valid(
    properties: Any, more: Any, sent: Any, messages: list[str], call: str
) -> None:
    tool = wrapper({"type": "object", "properties": properties, **more})
    found = check(tool, sent)
    assert [problem.message for problem in found] == messages
    assert (
        json.loads(call) == json.JSONDecoder().raw_decode(explain(tool, found, sent).partition("Call it like: ")[2])[0]
    )
