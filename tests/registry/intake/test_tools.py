"""A bad tool affects no other tool, and valid ones are returned as the same object."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import limited_work

from registry.intake.issues import IntakeResult
from registry.intake.tool_intake import admit_tools
from registry.schema import schemas
from registry.schema.display_text import clean, name_as_words

OBJECT = {"type": "object"}
SOUND = {"name": "sound", "description": "A sound tool.", "inputSchema": OBJECT}
MEMBERS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta", "icons")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "$ref", "required", "items", "x-mcp-header", "a"]), inner
        )
    ),
    max_leaves=15,
)


def tool(**members: Any) -> dict[str, Any]:
    return {"name": "bad", "description": "A tool.", "inputSchema": OBJECT, **members}


def take(*tools: object, transport: Any = "stdio", strict: bool = False) -> IntakeResult:
    """Admit tools next to a valid one, which must remain unchanged."""
    started = time.process_time()
    found = admit_tools([*tools, SOUND], transport=transport, strict=strict)
    assert time.process_time() - started < 0.5
    assert found.items[-1] is SOUND
    return found


def repaired(**members: Any) -> dict[str, Any]:
    """Admit one tool that needs a repair, which must be reported and change nothing in place."""
    given_tool = tool(**members)
    before = repr(given_tool)
    found = take(given_tool)
    assert repr(given_tool) == before
    assert not found.quarantined
    assert {finding.tool for finding in found.repaired} == {"bad"}
    return found.items[0]


def quarantined(given_tool: object, transport: str = "stdio", *, strict: bool = False) -> str:
    found = take(given_tool, transport=transport, strict=strict)
    assert len(found.items) == 1
    (finding,) = found.quarantined
    assert finding.detail
    return finding.code


@given(st.lists(JSON | st.dictionaries(st.sampled_from(MEMBERS), JSON), max_size=5))
@pytest.mark.heavy
def test_intake_does_not_raise_and_keeps_valid_tools(tools: list[Any]) -> None:
    found = admit_tools([SOUND, *tools], transport="http")
    assert found.items[0] is SOUND
    for admitted in found.items:
        assert admitted["inputSchema"]["type"] == "object"
        assert isinstance(admitted["description"], str)


def test_valid_definition_is_returned_as_the_same_object() -> None:
    rich = tool(
        **{"x-vendor": {"deep": [None]}, "_meta": {"k": None}, "title": "Tïtle 👩‍👩‍👧 می‌خواهم"},
        annotations={"readOnlyHint": True, "vendor": [1]},
        icons=[{"src": "https://x.example/i.png", "sizes": ["48x48"], "odd": 1}],
        description="Line\r\nline\ttab",
        inputSchema={"type": "object", "properties": {"type": {"type": "string", "default": None}}},
        outputSchema={"type": "array", "items": {"type": "string"}},
    )
    found = take(rich)
    assert found.items[0] is rich
    assert (found.quarantined, found.repaired) == ((), ())


@pytest.mark.parametrize("schema", [None, True, {}, [], False, "object", 7])
def test_empty_input_schema_becomes_an_object_schema(schema: Any) -> None:
    assert repaired(inputSchema=schema)["inputSchema"] == OBJECT


def test_absent_input_schema_becomes_an_object_schema() -> None:
    found = take({"name": "bad", "description": "A tool."})
    assert found.items[0]["inputSchema"] == OBJECT


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string"}}},
        {"type": ["object", "null"], "properties": {"a": {}}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"required": ["a"]}]},
        {"allOf": [{"required": ["a"]}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"type": None, "properties": {}},
    ],
)
def test_root_without_type_gets_type_object_and_keeps_the_rest(schema: dict[str, Any]) -> None:
    assert repaired(inputSchema=schema)["inputSchema"] == {**schema, "type": "object"}


@pytest.mark.parametrize("properties", [None, [], ["a"], "a"])
def test_properties_that_are_not_an_object_are_dropped(properties: Any) -> None:
    assert repaired(inputSchema={"type": "object", "properties": properties})["inputSchema"] == OBJECT


def test_null_in_required_is_dropped() -> None:
    assert repaired(inputSchema={"type": "object", "required": None})["inputSchema"] == OBJECT


def test_draft_7_tuple_in_items_becomes_prefix_items() -> None:
    pair = [{"type": "number"}, {"type": "string"}]
    schema = {"type": "object", "properties": {"at": {"type": "array", "items": pair, "additionalItems": False}}}
    admitted = repaired(inputSchema=schema)["inputSchema"]
    assert admitted["properties"]["at"] == {"type": "array", "prefixItems": pair, "items": False}
    compiled = schemas.compile_schema(admitted)
    assert compiled.is_valid({"at": [1.5, "x"]})
    assert not compiled.is_valid({"at": ["x", 1.5]})
    assert not compiled.is_valid({"at": [1.5, "x", 2]})
    earlier = tool(inputSchema={"$schema": "http://json-schema.org/draft-07/schema#", **schema})
    assert take(earlier).items[0] is earlier, "there it is right as it stands"


def test_boolean_exclusive_bounds_become_numeric_bounds() -> None:
    bounds = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": False}
    schema = {"type": "object", "properties": {"n": bounds, "exclusiveMinimum": {"type": "boolean"}}}
    admitted = repaired(inputSchema=schema)["inputSchema"]
    assert admitted["properties"]["n"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 10}
    assert admitted["properties"]["exclusiveMinimum"] == {"type": "boolean"}
    compiled = schemas.compile_schema(admitted)
    assert [compiled.is_valid({"n": n}) for n in (0, 0.5, 10, 11)] == [False, True, True, False]
    earlier = repaired(inputSchema={"$schema": "http://json-schema.org/draft-04/schema#", **schema})["inputSchema"]
    assert earlier == {**admitted, "$schema": "http://json-schema.org/draft-07/schema#"}, "which most clients know"


def test_boolean_required_in_a_property_moves_to_the_parent_object() -> None:
    inner = {"type": "object", "properties": {"c": {"type": "string", "required": True}}, "required": False}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "required": True}, "b": inner, "required": {"type": "boolean"}},
        "required": ["b"],
    }
    assert repaired(inputSchema=schema)["inputSchema"] == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "object", "properties": {"c": {"type": "string"}}, "required": ["c"]},
            "required": {"type": "boolean"},
        },
        "required": ["b", "a"],
    }


def test_boolean_property_schemas_become_equivalent_objects() -> None:
    inner = {"type": "object", "properties": {"yes": True, "no": False}}
    schema = {
        "type": "object",
        "properties": {"in": inner, "properties": True},
        "additionalProperties": False,
    }
    assert repaired(inputSchema=schema)["inputSchema"] == {
        "type": "object",
        "properties": {
            "in": {"type": "object", "properties": {"yes": {}, "no": {"not": {}}}},
            "properties": {},
        },
        "additionalProperties": False,
    }


@pytest.mark.parametrize("member", ["title", "annotations", "_meta", "icons", "execution"])
@pytest.mark.parametrize("value", [None, 5])
def test_null_and_wrongly_typed_members_are_dropped(member: str, value: Any) -> None:
    assert repaired(**{member: value}) == tool()


@pytest.mark.parametrize("value", [None, 5, "", "  "])
def test_invalid_description_is_replaced_by_title_or_name(value: Any) -> None:
    assert repaired(description=value)["description"] == "bad"
    assert repaired(description=value, title="A title")["description"] == "A title"


def test_only_wrongly_typed_annotations_are_dropped() -> None:
    annotations = {"readOnlyHint": "yes", "destructiveHint": False, "title": 3, "vendor": 1}
    assert repaired(annotations=annotations)["annotations"] == {"destructiveHint": False, "vendor": 1}


def test_icon_sizes_in_a_string_become_a_list_and_invalid_icons_are_dropped() -> None:
    icons = [{"src": "a", "sizes": "48x48 any"}, {"src": "b", "sizes": 5, "theme": "blue"}, {"nosrc": 1}, "x"]
    assert repaired(icons=icons)["icons"] == [{"src": "a", "sizes": ["48x48", "any"]}, {"src": "b"}]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        [],
        7,
        {"description": "x" * 2_000_000},
    ],
)
def test_output_schema_that_hosts_cannot_read_is_dropped(schema: Any) -> None:
    assert repaired(outputSchema=schema) == tool()


def test_output_schema_of_ten_thousand_levels_is_dropped() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    found = take(tool(outputSchema=schema))
    assert found.items[0] == tool()
    assert [finding.code for finding in found.repaired] == ["output_schema"]


def test_duplicate_tool_is_kept_once_and_conflicting_one_quarantined() -> None:
    first = tool(inputSchema={"type": "object", "title": "first"})
    again = dict(reversed(first.items()))
    other = tool(inputSchema={"type": "object", "title": "other"})
    found = take(first, again, other)
    assert found.items[0] is first
    assert [f.code for f in found.repaired] == ["duplicate"]
    assert [f.code for f in found.quarantined] == ["duplicate_name"]


@pytest.mark.parametrize(
    ("given_tool", "code"),
    [
        (None, "not_an_object"),
        ("tool", "not_an_object"),
        ([], "not_an_object"),
        ({"description": "no name"}, "no_name"),
        (tool(name=None), "no_name"),
        (tool(name=7), "no_name"),
        (tool(name="n" * 1_025), "name_too_long"),
        (tool(extra="x" * 5_000_000), "too_large"),
        (tool(extra="\ud800"), "not_unicode"),
    ],
)
def test_tool_that_cannot_be_listed_is_quarantined_alone(given_tool: object, code: str) -> None:
    assert quarantined(given_tool) == code


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


DOUBLING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(30)}


@pytest.mark.parametrize(
    ("schema", "code", "shown"),
    [
        ("object", "schema_not_an_object", OBJECT),
        (False, "schema_not_an_object", OBJECT),
        ({"type": "string"}, "root_type", OBJECT),
        ({"type": ["array", "string"]}, "root_type", OBJECT),
        ({"type": "object", "$ref": "https://nowhere.example/x"}, "remote_ref", OBJECT),
        (
            {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd", "title": "A"}}},
            "remote_ref",
            {"type": "object", "properties": {"a": {"title": "A"}}},
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
            "broken_ref",
            {"type": "object", "properties": {"a": {}}},
        ),
        (
            {
                "type": "object",
                "description": "x" * 5_000_000,
                "properties": {"a": {"type": "string"}},
                "required": ["a"],
            },
            "too_large",
            {
                "type": "object",
                "description": "x" * 1_000,
                "properties": {"a": {"type": "string"}},
                "required": ["a"],
            },
        ),
        (nested(10_000), "too_deep", {"type": "object", "properties": {"a": {"type": "object"}}}),
        ({"type": "object", "$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d30": {}}}, "too_complex", OBJECT),
        ({"type": "object", "minimum": float("nan")}, "not_json", OBJECT),
    ],
)
def test_tool_with_uncheckable_schema_is_kept_unless_strict(schema: Any, code: str, shown: dict[str, Any]) -> None:
    assert quarantined(tool(inputSchema=schema), strict=True) == code
    found = take(tool(inputSchema=schema))
    assert found.items[0]["inputSchema"] == shown
    assert found.repaired


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"type": "object", "$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)(a+)+$"}}},
        {"type": "object", "properties": {"a": {"maximum": 2**70}}},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_unusual_valid_schemas_are_not_changed(schema: dict[str, Any]) -> None:
    given_tool = tool(inputSchema=schema)
    found = take(given_tool)
    assert found.items[0] is given_tool
    assert not found.repaired


def test_pattern_no_engine_accepts_is_reported_and_kept() -> None:
    given_tool = tool(inputSchema={"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}})
    found = take(given_tool)
    assert found.items[0] is given_tool
    assert [finding.code for finding in found.repaired] == ["pattern_unchecked"]


INVALID_HEADERS = [
    {"properties": {"a": {"type": "string", "x-mcp-header": "has space"}}},
    {"properties": {"a": {"type": "string", "x-mcp-header": ""}}},
    {"properties": {"a": {"type": "string", "x-mcp-header": 5}}},
    {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
    {"properties": {"a": {"type": ["string"], "x-mcp-header": "A"}}},
    {"properties": {"a": {"x-mcp-header": "A"}}},
    {"x-mcp-header": "Root"},
    {"properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}},
    {"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]},
    {
        "properties": {
            "a": {"type": "string", "x-mcp-header": "Same"},
            "b": {"type": "object", "properties": {"c": {"type": "string", "x-mcp-header": "sAME"}}},
        }
    },
]


@pytest.mark.parametrize("schema", INVALID_HEADERS)
def test_invalid_header_annotation_quarantines_an_http_tool(schema: dict[str, Any]) -> None:
    assert quarantined(tool(inputSchema={"type": "object", **schema}), "http") == "invalid_header"


@pytest.mark.parametrize("schema", INVALID_HEADERS)
def test_invalid_header_annotation_is_removed_from_a_stdio_tool(schema: dict[str, Any]) -> None:
    assert "x-mcp-header" not in repr(repaired(inputSchema={"type": "object", **schema}))


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_valid_header_annotation_is_kept_and_default_data_ignored(transport: str) -> None:
    given_tool = tool(
        inputSchema={
            "type": "object",
            "properties": {
                "a": {"type": "string", "x-mcp-header": "Region", "default": {"x-mcp-header": 5}},
                "x-mcp-header": {"type": "string"},
            },
        }
    )
    found = take(given_tool, transport=transport)
    assert found.items[0] is given_tool
    assert not found.repaired


def test_hidden_characters_and_escapes_are_removed_and_reported() -> None:
    dirty = "a\x1b[31mb\x1b]0;title\x07c\u202ed\u200be\x00f\U000e0041g\ud800h\u2066"
    schema = {"type": "object", "properties": {"p": {"description": dirty}}, "title": "t\u202e"}
    found = repaired(description=dirty, title=dirty, annotations={"title": dirty}, inputSchema=schema)
    assert found["description"] == found["title"] == found["annotations"]["title"] == "abcdefgh"
    assert found["inputSchema"]["properties"]["p"]["description"] == "abcdefgh"
    assert found["inputSchema"]["title"] == "t"


def test_hidden_characters_are_removed_from_shown_text_but_not_compared_values() -> None:
    dirty = "x\u202e\U000e0041\ue000y"
    shown = {"$comment": dirty, "default": {"k": [dirty]}, "examples": [dirty], "x-about": dirty, "errorMessage": dirty}
    compared = {"const": dirty, "enum": [dirty], "pattern": dirty}
    found = repaired(inputSchema={"type": "object", "properties": {"p": {**shown, **compared}}})
    schema = found["inputSchema"]["properties"]["p"]
    assert {key: schema[key] for key in shown} == {
        "$comment": "xy", "default": {"k": ["xy"]}, "examples": ["xy"], "x-about": "xy", "errorMessage": "xy",
    }  # fmt: skip
    assert {key: schema[key] for key in compared} == compared


@given(st.text(st.characters()))
def test_cleaning_is_idempotent(text: str) -> None:
    assert clean(clean(text)) == clean(text)


def test_finding_shows_a_hostile_name_without_hidden_characters() -> None:
    found = take({"name": "x\x1b[31m\u202ey", "inputSchema": "no", "description": "d"}, strict=True)
    assert found.quarantined[0].tool == "xy"


def test_names_are_split_into_words() -> None:
    assert name_as_words("calendar_sendEMail-now.v2") == "calendar send E Mail now v2"
    assert name_as_words("HTTPServer") == "HTTP Server"


def test_admitting_300_tools_takes_under_a_millisecond_each() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
    tools = [tool(name=f"t{n}", inputSchema={**schema, "title": str(n)}) for n in range(300)]
    with limited_work(0.3):
        assert len(admit_tools(tools, transport="http").items) == 300


def test_long_texts_are_truncated_with_a_note_at_every_depth() -> None:
    long, cut = "x" * 20_000, "x" * 16_383 + "…"
    properties = {
        "a": {"type": "string", "description": long, "title": long},
        "b": {"type": "array", "items": {"type": "string", "description": long}},
        "description": {"type": "string"},
        "c": {"const": {"description": long}},
    }
    definition = {
        "name": "t",
        "description": "x" * 5_000_000,
        "annotations": {"title": long},
        "inputSchema": {"type": "object", "properties": properties},
    }
    result = admit_tools([definition], transport="http")
    (admitted,) = result.items
    assert admitted["description"] == cut
    assert admitted["annotations"] == {"title": cut}
    shown = admitted["inputSchema"]["properties"]
    assert (shown["a"]["description"], shown["a"]["title"]) == (cut, cut)
    assert shown["b"]["items"]["description"] == cut
    # The value of `const` is data, and not a schema.
    assert shown["c"] == properties["c"]
    assert {one.code for one in result.repaired} == {"long_text"}
    assert not result.quarantined


def test_text_of_maximum_length_is_kept() -> None:
    definition = {"name": "t", "description": "x" * 16_384, "inputSchema": {"type": "object"}}
    result = admit_tools([definition], transport="http")
    assert [dict(one) for one in result.items] == [definition]
    assert not result.repaired


def test_tools_with_equal_schemas_are_treated_alike_and_each_is_reported() -> None:
    sound = {"type": "object", "properties": {"a": {"type": "string"}}}
    hidden = {"type": "object", "properties": {"a": {"description": "x\u200by"}}}
    unknown = {"type": "object", "properties": {"a": {"$ref": "#/$defs/None"}}}
    every = [
        tool(name=f"{name}{number}", inputSchema=deepcopy(schema), outputSchema=deepcopy(schema))
        for number in range(3)
        for name, schema in (("sound", sound), ("hidden", hidden), ("unknown", unknown))
    ]
    found = take(*every)
    assert not found.quarantined
    for number in range(3):
        one = {name: found.items[3 * number + at] for at, name in enumerate(("sound", "hidden", "unknown"))}
        assert one["sound"] is every[3 * number]
        assert one["hidden"]["inputSchema"]["properties"]["a"]["description"] == "xy"
        assert one["unknown"]["inputSchema"]["properties"]["a"] == {}
    reported = {finding.tool for finding in found.repaired}
    assert reported == {f"{name}{number}" for name in ("hidden", "unknown") for number in range(3)}


def test_valid_input_schema_is_still_checked_as_an_output_schema() -> None:
    # Clients follow this reference without end, so that it is removed from output schemas only.
    loop = {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    found = take(tool(name="one", inputSchema=loop), tool(name="two", inputSchema=loop, outputSchema=loop))
    assert found.items[0]["inputSchema"] == loop
    assert found.items[1]["outputSchema"] != loop


def test_schema_is_bounded_together_with_the_other_members() -> None:
    schema = {"type": "object", "properties": {"a": {"const": "x" * (schemas.MAX_SCHEMA_BYTES - 1_000)}}}
    assert take(tool(inputSchema=schema)).items[0]["inputSchema"] is schema
    assert quarantined(tool(inputSchema=schema, annotations={"x": "y" * 2_000})) == "too_large"
