"""One bad tool costs no other tool its place, and sound ones pass as the same object."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.intake.issues import IntakeResult
from registry.intake.tools import admit_tools
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
    """Admit tools beside a sound one, which must pass untouched whatever they are."""
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
def test_intake_never_raises_and_never_touches_a_sound_tool(tools: list[Any]) -> None:
    found = admit_tools([SOUND, *tools], transport="http")
    assert found.items[0] is SOUND
    for admitted in found.items:
        assert admitted["inputSchema"]["type"] == "object"
        assert isinstance(admitted["description"], str)


def test_a_sound_definition_passes_as_the_same_object() -> None:
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
def test_an_input_schema_that_says_nothing_becomes_an_object(schema: Any) -> None:
    assert repaired(inputSchema=schema)["inputSchema"] == OBJECT


def test_an_absent_input_schema_becomes_an_object() -> None:
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
def test_a_root_without_the_type_object_gains_it_and_keeps_the_rest(schema: dict[str, Any]) -> None:
    assert repaired(inputSchema=schema)["inputSchema"] == {**schema, "type": "object"}


@pytest.mark.parametrize("properties", [None, [], ["a"], "a"])
def test_properties_that_are_no_object_are_dropped(properties: Any) -> None:
    assert repaired(inputSchema={"type": "object", "properties": properties})["inputSchema"] == OBJECT


def test_a_null_required_is_dropped() -> None:
    assert repaired(inputSchema={"type": "object", "required": None})["inputSchema"] == OBJECT


def test_a_tuple_in_items_becomes_what_the_current_dialect_calls_it() -> None:
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


def test_bounds_that_are_excluded_by_a_switch_become_bounds_of_their_own() -> None:
    bounds = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": False}
    schema = {"type": "object", "properties": {"n": bounds, "exclusiveMinimum": {"type": "boolean"}}}
    admitted = repaired(inputSchema=schema)["inputSchema"]
    assert admitted["properties"]["n"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 10}
    assert admitted["properties"]["exclusiveMinimum"] == {"type": "boolean"}
    compiled = schemas.compile_schema(admitted)
    assert [compiled.is_valid({"n": n}) for n in (0, 0.5, 10, 11)] == [False, True, True, False]
    earlier = repaired(inputSchema={"$schema": "http://json-schema.org/draft-04/schema#", **schema})["inputSchema"]
    assert earlier == {**admitted, "$schema": "http://json-schema.org/draft-07/schema#"}, "which most clients know"


def test_required_inside_a_property_is_said_by_the_object_around_it() -> None:
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


def test_boolean_property_schemas_become_objects_that_accept_the_same_at_every_depth() -> None:
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
def test_a_description_that_is_none_is_filled_from_title_or_name(value: Any) -> None:
    assert repaired(description=value)["description"] == "bad"
    assert repaired(description=value, title="A title")["description"] == "A title"


def test_wrongly_typed_annotations_are_dropped_alone() -> None:
    annotations = {"readOnlyHint": "yes", "destructiveHint": False, "title": 3, "vendor": 1}
    assert repaired(annotations=annotations)["annotations"] == {"destructiveHint": False, "vendor": 1}


def test_icon_sizes_as_text_become_a_list_and_broken_icons_go() -> None:
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
def test_an_output_schema_that_hosts_cannot_read_is_dropped(schema: Any) -> None:
    assert repaired(outputSchema=schema) == tool()


def test_an_output_schema_of_ten_thousand_levels_is_dropped() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    found = take(tool(outputSchema=schema))
    assert found.items[0] == tool()
    assert [finding.code for finding in found.repaired] == ["output_schema"]


def test_a_tool_listed_twice_is_kept_once_and_another_of_its_name_is_quarantined() -> None:
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
def test_what_cannot_be_shown_is_quarantined_alone(given_tool: object, code: str) -> None:
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
def test_a_tool_whose_schema_cannot_be_checked_stays_unless_its_server_is_strict(
    schema: Any, code: str, shown: dict[str, Any]
) -> None:
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
def test_odd_but_sound_schemas_pass_untouched(schema: dict[str, Any]) -> None:
    given_tool = tool(inputSchema=schema)
    found = take(given_tool)
    assert found.items[0] is given_tool
    assert not found.repaired


def test_a_pattern_that_nobody_here_reads_is_reported_and_left_as_it_is() -> None:
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
def test_an_invalid_header_annotation_costs_an_http_tool_its_place(schema: dict[str, Any]) -> None:
    assert quarantined(tool(inputSchema={"type": "object", **schema}), "http") == "invalid_header"


@pytest.mark.parametrize("schema", INVALID_HEADERS)
def test_an_invalid_header_annotation_is_stripped_from_a_stdio_tool(schema: dict[str, Any]) -> None:
    assert "x-mcp-header" not in repr(repaired(inputSchema={"type": "object", **schema}))


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_valid_header_annotations_pass_and_data_is_not_mistaken_for_one(transport: str) -> None:
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


def test_hidden_characters_and_escapes_leave_texts_and_are_reported() -> None:
    dirty = "a\x1b[31mb\x1b]0;title\x07c\u202ed\u200be\x00f\U000e0041g\ud800h\u2066"
    schema = {"type": "object", "properties": {"p": {"description": dirty}}, "title": "t\u202e"}
    found = repaired(description=dirty, title=dirty, annotations={"title": dirty}, inputSchema=schema)
    assert found["description"] == found["title"] == found["annotations"]["title"] == "abcdefgh"
    assert found["inputSchema"]["properties"]["p"]["description"] == "abcdefgh"
    assert found["inputSchema"]["title"] == "t"


def test_hidden_characters_leave_every_text_of_a_schema_that_is_shown_and_no_value_that_is_compared() -> None:
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
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)


def test_a_finding_shows_no_hidden_characters_of_a_hostile_name() -> None:
    found = take({"name": "x\x1b[31m\u202ey", "inputSchema": "no", "description": "d"}, strict=True)
    assert found.quarantined[0].tool == "xy"


def test_names_become_words() -> None:
    assert name_as_words("calendar_sendEMail-now.v2") == "calendar send E Mail now v2"
    assert name_as_words("HTTPServer") == "HTTP Server"


def test_three_hundred_usual_tools_are_admitted_within_a_millisecond_each() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
    tools = [tool(name=f"t{n}", inputSchema={**schema, "title": str(n)}) for n in range(300)]
    started = time.process_time()
    assert len(admit_tools(tools, transport="http").items) == 300
    assert time.process_time() - started < 0.3


def test_long_texts_of_a_tool_are_cut_with_a_note_wherever_they_are() -> None:
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
    # What an argument has to equal is data.
    assert shown["c"] == properties["c"]
    assert {one.code for one in result.repaired} == {"long_text"}
    assert not result.quarantined


def test_a_text_of_the_greatest_length_is_left_alone() -> None:
    definition = {"name": "t", "description": "x" * 16_384, "inputSchema": {"type": "object"}}
    result = admit_tools([definition], transport="http")
    assert [dict(one) for one in result.items] == [definition]
    assert not result.repaired
