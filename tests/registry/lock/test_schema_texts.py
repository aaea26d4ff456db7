"""The texts for models in schemas and definitions, and the digests over them."""

from __future__ import annotations

from typing import Any

import pytest

from registry.lock.lockfile import as_tool, digest_of, prose_of, strings_of_schema, tool_digests, without_prose


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        # Digests in existing lock files stay valid.
        (None, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
        ({"b": [1.0, True], "a": "é\ud800"}, "f1a7a2572c10949e620ac15370703074e339e53d8633e206ef2150084983ec5b"),
    ],
)
def test_digests_do_not_change_between_releases(value: Any, digest: str) -> None:
    assert digest_of(value) == digest


@pytest.mark.parametrize(
    ("schema", "plain", "prose"),
    [
        ({"title": "x", "type": "string"}, {"type": "string"}, {"title": ["x"]}),
        ({"default": None}, {}, {"default": [None]}),
        ({"type": "string"}, {"type": "string"}, None),
        ({}, {}, None),
        (True, True, None),
        ("title", "title", None),
        # Values are not schemas, and a property may have any name.
        ({"enum": [{"title": "x"}]}, {"enum": [{"title": "x"}]}, None),
        ({"const": {"title": "x"}}, {"const": {"title": "x"}}, None),
        ({"properties": {"title": True}}, {"properties": {"title": True}}, None),
        ({"x-note": {"title": "x"}}, {"x-note": {"title": "x"}}, None),
        ({"properties": {"a": {"title": "x"}, "b": {"type": "null"}}},
         {"properties": {"a": {}, "b": {"type": "null"}}}, {"properties": {"a": {"title": ["x"]}}}),
        ({"$defs": [{"title": "x"}]}, {"$defs": [{"title": "x"}]}, None),
        ({"items": {"title": "x", "minimum": 1}}, {"items": {"minimum": 1}}, {"items": {"title": ["x"]}}),
        ({"items": [{"minimum": 1}, {"title": "x"}]}, {"items": [{"minimum": 1}, {}]},
         {"items": [None, {"title": ["x"]}]}),
        ({"allOf": [{"minimum": 1}]}, {"allOf": [{"minimum": 1}]}, None),
        ({"allOf": {"title": "x"}}, {"allOf": {"title": "x"}}, None),
        ({"not": {"title": "x"}}, {"not": {}}, {"not": {"title": ["x"]}}),
        ({"not": [{"title": "x"}]}, {"not": [{"title": "x"}]}, None),
    ],
)  # fmt: skip
def test_prose_is_separated_from_the_rest_of_a_schema(schema: Any, plain: Any, prose: Any) -> None:
    assert without_prose(schema) == plain
    assert prose_of(schema) == prose


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"description": "x"}, {(("description",), "x")}),
        ({"description": {"a": "x", "b": [1, "y"]}},
         {(("description", "{}"), "a"), (("description", "a"), "x"),
          (("description", "{}"), "b"), (("description", "b"), "y")}),
        ("x", {((), "x")}),
        (["x"], {((), "x")}),
        (True, set()),
        ({"x": 1, "minimum": 2}, {(("keyword",), "x")}),
        ({"type": ["string", "x"]}, {(("type",), "x")}),
        ({"enum": ["x", 1]}, {(("value",), "x")}),
        ({"const": "x"}, {(("value",), "x")}),
        ({"properties": {"x": {"title": "y"}}}, {(("name",), "x"), (("properties", "x", "title"), "y")}),
        ({"properties": ["x"]}, {(("properties",), "x")}),
        ({"patternProperties": {"x": {"title": "y"}}},
         {(("patternProperties",), "x"), (("patternProperties", "x", "title"), "y")}),
        ({"dependentSchemas": {"x": {"title": "y"}}}, {(("name",), "x"), (("title",), "y")}),
        ({"dependencies": {"x": ["y"]}}, {(("name",), "x"), (("name",), "y")}),
        ({"dependencies": {"x": {"required": ["y"]}}}, {(("name",), "x"), (("name",), "y")}),
        ({"required": ["x"]}, {(("name",), "x")}),
        ({"dependentRequired": {"x": ["y"]}}, {(("name",), "x"), (("name",), "y")}),
        ({"allOf": [{"title": "x"}, {"const": "y"}]}, {(("title",), "x"), (("value",), "y")}),
        ({"allOf": {"title": "x"}}, {(("{}",), "title"), (("title",), "x")}),
        ({"not": {"title": "x"}}, {(("title",), "x")}),
        ({"items": {"title": "x"}}, {(("items", "title"), "x")}),
        ({"items": [{"title": "x"}]}, {(("items", "title"), "x")}),
        ({"prefixItems": [{"title": "x"}]}, {(("prefixItems", "title"), "x")}),
        ({"contains": {"enum": ["x"]}}, {(("contains", "value"), "x")}),
        ({"format": "x"}, {(("format",), "x")}),
        ({"x": {"y": "z"}}, {(("keyword",), "x"), (("x", "{}"), "y"), (("x", "y"), "z")}),
    ],
)  # fmt: skip
def test_texts_of_a_schema_have_the_place_of_what_they_describe(schema: Any, texts: set[Any]) -> None:
    assert set(strings_of_schema(schema)) == texts


TOOL: dict[str, Any] = {
    "name": "read",
    "inputSchema": {"type": "object", "title": "In"},
    "outputSchema": {"type": "object", "title": "Out"},
    "annotations": {"title": "Read", "readOnlyHint": True},
}


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        ({"name": "load"}, []),
        ({"title": "x"}, ["text"]),
        ({"description": "x"}, ["text"]),
        ({"annotations": {"title": "x", "readOnlyHint": True}}, ["text"]),
        ({"annotations": {"title": "Read", "readOnlyHint": False}}, ["hints"]),
        ({"annotations": None}, ["text", "hints"]),
        ({"inputSchema": {"type": "object", "title": "x"}}, ["text"]),
        ({"outputSchema": {"type": "object", "title": "x"}}, ["text"]),
        ({"inputSchema": {"type": "array", "title": "In"}}, ["input"]),
        ({"outputSchema": {"type": "array", "title": "Out"}}, ["output"]),
        ({"_meta": {"n": 1}}, ["hints"]),
    ],
)  # fmt: skip
def test_each_digest_covers_its_part_of_a_tool(edit: dict[str, Any], parts: list[str]) -> None:
    before, after = tool_digests(TOOL), tool_digests({**TOOL, **edit})
    assert [part for part in before if before[part] != after[part]] == parts


def test_prompt_becomes_a_tool_with_its_arguments_as_parameters() -> None:
    arguments = [{"name": "who", "required": True, "description": "Whom."}, {"name": "how"}, "nonsense"]
    assert as_tool("prompts", {"name": "greet", "title": "Greet", "arguments": arguments}) == {
        "name": "greet",
        "title": "Greet",
        "inputSchema": {
            "type": "object",
            "properties": {"who": {"description": "Whom."}, "how": {}},
            "required": ["who"],
            "additionalProperties": False,
        },
    }


def test_members_of_skills_and_templates_become_texts() -> None:
    skill = {"uri": "skill://a", "name": "a", "digest": "x"}
    assert as_tool("skills", skill) == {"_skill": {"name": "a", "digest": "x"}}
    template = {"uriTemplate": "x:{y}", "name": "a", "title": "A", "annotations": {"priority": 1}}
    assert as_tool("resourceTemplates", template) == {
        "name": "a", "title": "A", "_name": "a", "_annotations": {"priority": 1}
    }  # fmt: skip
