"""A packed definition behaves like the listed one."""

import json
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.schema import packed_definition
from registry.schema.packed_definition import PackedDefinition, unpacked
from registry.schema.schemas import canonical_json, compact_json

# Halves of surrogate pairs, and numbers beyond what other languages hold, too.
TEXTS = st.text(st.characters(), max_size=5) | st.sampled_from(["\ud800", 'a"b', "back\\slash", "é", "\n"])
NUMBERS = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
DEFINITIONS = st.dictionaries(TEXTS | st.sampled_from(["name", "annotations"]), JSON, max_size=4)


def written(value: Any) -> str:
    return json.dumps(value)


@given(DEFINITIONS)
def test_packed_definition_reads_as_the_original(definition: dict[str, Any]) -> None:
    packed = PackedDefinition.pack(definition)
    assert written(packed.read()) == written(dict(packed)) == written(json.loads(packed.text)) == written(definition)
    assert packed == definition
    assert len(packed) == len(definition)
    for member in [*definition, "missing"]:
        assert written(packed.get(member)) == written(definition.get(member))
        assert (member in packed) == (member in definition)
        if member.isascii() and member.isidentifier() and member in definition:
            assert packed.may_have(member)


@given(DEFINITIONS, TEXTS, st.sampled_from(["first", "last", "absent"]))
def test_renamed_definition_replaces_the_listed_name(definition: dict[str, Any], name: str, place: str) -> None:
    definition.pop("name", None)
    if place == "first":
        definition = {"name": "listed", **definition}
    elif place == "last":
        definition = {**definition, "name": 'lis"ted'}
    packed = PackedDefinition.pack(definition).renamed(name)
    wanted = {**definition, "name": name}
    assert packed.name == packed["name"] == packed.get("name") == name
    assert written(packed.read()) == written(json.loads(packed.text)) == written(wanted)
    assert PackedDefinition.pack(definition).read() == definition


def test_renamed_definitions_share_one_text() -> None:
    packed = PackedDefinition.pack({"name": "long", "description": "x" * 100_000})
    others = [packed.renamed(f"other{number}") for number in range(10)]
    assert sum(map(sys.getsizeof, others)) < 10_000
    assert all(other.read()["description"] == packed["description"] for other in others)
    assert PackedDefinition.pack(packed) is packed


def test_definitions_of_different_text_are_not_equal() -> None:
    one, other = (PackedDefinition.pack({"name": "a", "default": value}) for value in (1, True))
    assert one != other
    assert (
        one
        == PackedDefinition.pack({"name": "a", "default": 1})
        == PackedDefinition.pack({"name": "b", "default": 1}).renamed("a")
    )
    assert one != one.renamed("b")


def test_encoders_write_the_complete_definition() -> None:
    definition = {"name": "a", "big": 2**70, "b": [1.0, None]}
    packed = PackedDefinition.pack(definition)
    assert canonical_json(packed) == canonical_json(definition)
    assert compact_json({"of": packed}) == compact_json({"of": definition})
    assert canonical_json({"of": [packed.renamed("z")]}) == canonical_json({"of": [{**definition, "name": "z"}]})
    with pytest.raises(TypeError):
        orjson.dumps(object(), default=unpacked)


def test_number_of_parsed_definitions_is_bounded() -> None:
    most = packed_definition._MAX_PARSED
    packed = [PackedDefinition.pack({"name": f"t{number}", "x": {}}) for number in range(most + 2)]
    first = packed[0]["x"]
    assert packed[0]["x"] is first, "it is not read at each look"
    for one in packed[:most]:
        assert one["x"] == {}
    assert packed[0]["x"] is first, "as many as fit are kept"
    for one in packed[most:]:
        assert one["x"] == {}
    assert packed[0]["x"] is not first
    assert len(packed_definition._parsed) == most
    held = packed[-1]["x"]
    assert packed[1].read()["x"] is not packed[1].read()["x"]
    assert packed[-1]["x"] is held, "what is read in passing takes nobody's place"
