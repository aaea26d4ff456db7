"""The text of a lock file: stable, readable, and rejected with a reason if unusable."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import LockfileRejected
from registry.lock.lockfile import (
    MAX_BYTES,
    Lockfile,
    Surface,
    by_name,
    configuration_in,
    digest_of,
    digests_of,
    parse_lockfile,
)
from registry.lock.review import changes_of
from registry.schema.packed_definition import PackedDefinition

TOOL: dict[str, Any] = {"name": "read", "description": "Reads.", "inputSchema": {"type": "object"}}
LOCKED = Lockfile({"fs": Surface(identity="npm:fs@1.0.0", instructions="Careful.", items={"tools": {"read": TOOL}})})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any, seed: random.Random) -> Any:
    if isinstance(value, dict):
        members = [(key, shuffled(one, seed)) for key, one in value.items()]
        seed.shuffle(members)
        return dict(members)
    return [shuffled(one, seed) for one in value] if isinstance(value, list) else value


@given(extra=VALUES, names=st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=4), seed=st.randoms())
def test_lock_file_round_trips_and_does_not_depend_on_order(extra: Any, names: list[str], seed: random.Random) -> None:
    tools = {name: {"name": name, "inputSchema": {"type": "object"}, "_meta": {"x": extra}} for name in names}
    locked = Lockfile({"one": Surface(identity="a", items={"tools": tools}), "two": Surface(identity="b")})
    other = Lockfile(
        {
            "two": Surface(identity="b"),
            "one": Surface(identity="a", items={"tools": {name: shuffled(tools[name], seed) for name in names[::-1]}}),
        }
    )
    text = locked.to_text()
    assert other.to_text() == text
    read = parse_lockfile(text)
    assert read.to_text() == text
    assert changes_of(read.servers["one"], locked.servers["one"]) == ()


PROMPT: dict[str, Any] = {"name": "greet", "arguments": [{"name": "who"}]}
TEMPLATE: dict[str, Any] = {"uriTemplate": "file:///{path}", "name": "file"}
SKILL: dict[str, Any] = {"uri": "skill://a", "name": "a"}


def test_lock_file_has_the_indented_and_sorted_json_of_its_content() -> None:
    surface = Surface(
        identity="npm:fs@1.0.0",
        instructions="Take care.\né",
        items={
            "tools": {"write": {"name": "write"}, "read": TOOL},
            "prompts": {"greet": PROMPT},
            "resourceTemplates": {"file:///{path}": TEMPLATE},
            "skills": {"skill://a": SKILL},
        },
    )
    locked = Lockfile({"fs": surface, "a": Surface(identity="b")}, configuration="é.json")
    entry = {
        "identity": "npm:fs@1.0.0",
        "instructions": {"digest": digest_of("Take care.\né"), "text": "Take care.\né"},
        "tools": {
            "read": {"definition": TOOL, "digests": digests_of("tools", TOOL)},
            "write": {"definition": {"name": "write"}, "digests": digests_of("tools", {"name": "write"})},
        },
        "prompts": {"greet": {"definition": PROMPT, "digests": digests_of("prompts", PROMPT)}},
        "resourceTemplates": {
            "file:///{path}": {"definition": TEMPLATE, "digests": digests_of("resourceTemplates", TEMPLATE)}
        },
        "skills": {"skill://a": {"definition": SKILL, "digests": digests_of("skills", SKILL)}},
    }
    document = {"configuration": "é.json", "lockVersion": 1, "servers": {"a": {"identity": "b"}, "fs": entry}}
    assert locked.to_text() == json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert parse_lockfile(locked.to_text()) == locked
    assert Lockfile().to_text() == '{\n  "lockVersion": 1,\n  "servers": {}\n}\n'
    assert parse_lockfile(Lockfile().to_text()) == Lockfile()


def test_tools_of_a_lock_file_are_stored_packed() -> None:
    [tool] = parse_lockfile(LOCKED.to_text()).servers["fs"].definitions("tools").values()
    assert isinstance(tool, PackedDefinition)


def test_entry_of_one_server_is_replaced_or_removed() -> None:
    two = Lockfile({"a": Surface(identity="1"), "b": Surface(identity="2")}, configuration="c.json")
    assert two.with_server("a", Surface(identity="3")) == Lockfile(
        {"b": Surface(identity="2"), "a": Surface(identity="3")}, configuration="c.json"
    )
    assert two.with_server("a", None) == Lockfile({"b": Surface(identity="2")}, configuration="c.json")


def test_first_of_equal_names_counts() -> None:
    definitions: list[dict[str, Any]] = [{"name": "a", "n": 1}, {"name": "a", "n": 2}, {"name": 5}, {}, {"name": "b"}]
    assert by_name(definitions, "tools") == {"a": {"name": "a", "n": 1}, "b": {"name": "b"}}
    assert by_name([SKILL], "skills") == {"skill://a": SKILL}


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        ('{"configuration": "a.json", "lock', "a.json"),
        ('\ufeff\n{\n  "configuration" : "\\u00e9\\"b",', 'é"b'),
        ('{"configuration": "\\x",', ""),
        ('{"configuration": "a.json', ""),
        ('{"lockVersion": 1, "configuration": "a.json"', ""),
        ("", ""),
    ],
)
def test_configuration_is_read_from_the_beginning_of_a_lock_file(beginning: str, name: str) -> None:
    assert configuration_in(beginning) == name


def test_lock_file_is_read_in_any_formatting() -> None:
    compact = json.dumps(json.loads(LOCKED.to_text()), separators=(",", ":"))
    assert parse_lockfile(compact).to_text() == LOCKED.to_text()


def test_invisible_characters_are_written_as_escapes() -> None:
    tool = {**TOOL, "description": "a\u202eb\u200dc \u00e9 \U000e0041\x7f"}
    text = Lockfile({"fs": Surface(items={"tools": {"read": tool}})}).to_text()
    assert "\\u202e" in text
    assert "\u202e" not in text
    assert "\u00e9" in text
    assert parse_lockfile(text).servers["fs"].definitions("tools")["read"] == tool


def test_change_of_one_tool_is_a_small_diff() -> None:
    tools = {f"t{n}": {**TOOL, "name": f"t{n}"} for n in range(50)}
    before = Lockfile({"fs": Surface(items={"tools": tools})}).to_text().splitlines()
    changed = {**tools, "t7": {**tools["t7"], "description": "Other."}}
    after = Lockfile({"fs": Surface(items={"tools": changed})}).to_text().splitlines()
    assert len([1 for one, other in zip(before, after, strict=True) if one != other]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON at line 1, column 1: Expecting value"),
        ("[]", "the file: is missing or not an object"),
        ("{}", "lockVersion: has no lockVersion; expected 1"),
        ('{"lockVersion": 2, "servers": {}}', "lockVersion: has another version; expected 1"),
        ('{"lockVersion": true, "servers": {}}', "lockVersion: has another version"),
        ('{"lockVersion": 1}', "servers: is missing"),
        ('{"lockVersion": 1, "servers": {}, "more": 1}', "more: unknown key; expected one of configuration,"),
        ('{"lockVersion": 1, "servers": {}, "configuration": 5}', "configuration: is not text"),
        ('{"lockVersion": 1, "servers": {"a": {}}}', "servers.a.identity: is missing"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": 1}}}', "servers.a.identity: is missing or not text"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "more": 1}}}', "servers.a.more: unknown key"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "instructions": "x"}}}',
         "servers.a.instructions: is missing"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "instructions": {}}}}',
         "servers.a.instructions.text: is missing"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "instructions": {"text": "x"}}}}',
         "servers.a.instructions: its digests do not match"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": ""}, "a": {"identity": ""}}}', "twice"),
        ('{"b": 1, "a": 1, "a": 1}', "the key 'a' occurs twice"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": []}}}', "servers.a: is missing"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": {"x": {}}}}}', "servers.a.tools.x.definition"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": {"x": {"definition": {"name": "y"}}}}}}',
         "servers.a.tools.x.definition: is not the definition of x"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": {"x": {"more": 1}}}}}',
         "servers.a.tools.x.more: unknown key; expected one of definition, digests"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": {"x": {"definition": {"name": "x"}}}}}}',
         "servers.a.tools.x: its digests do not match"),
        ("[" * 100_000, "nested too deeply"),
        ("1" + "0" * 5000, "numbers that are too long"),
        ("{}\n<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n", "merge conflict markers"),
        ('{"lockVersion": 1, "servers": {"a": ' + '{"a":' * 300 + "1" + "}" * 302, "nested too deeply"),
        ("[" * 201 + "]" * 201, "nested too deeply; expected at most 200 levels"),
        ("[" * 200 + "]" * 200, "the file: is missing or not an object"),
    ],
)  # fmt: skip
def test_unusable_lock_file_is_reported_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(LockfileRejected) as refused:
        parse_lockfile(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("merge conflict markers" in str(refused.value)) == ("<<<<<<<" in text)


def test_lock_file_of_exactly_the_maximum_size_is_read() -> None:
    text = LOCKED.to_text()
    largest = text + " " * (MAX_BYTES - len(text))
    assert parse_lockfile(largest) == LOCKED
    with pytest.raises(LockfileRejected, match="is too big"):
        parse_lockfile(largest + " ")


@pytest.mark.parametrize(("was", "now"), [("Reads.", "Reads and sends."), ("Careful.", "Careless.")])
def test_definition_edited_by_hand_is_rejected(was: str, now: str) -> None:
    with pytest.raises(LockfileRejected, match="its digests do not match"):
        parse_lockfile(LOCKED.to_text().replace(was, now))


@pytest.mark.heavy
def test_large_lock_file_is_written_and_compared_in_pieces() -> None:
    tools = {
        f"t{n}": {"name": f"t{n}", "description": "é" * 500, "inputSchema": {"type": "object"}} for n in range(500)
    }
    large = Lockfile({"fs": Surface(items={"tools": tools})})
    pieces = list(large.pieces())
    assert max(map(len, pieces)) < 200_000 < sum(map(len, pieces))
    assert "".join(pieces) == large.to_text()
    assert parse_lockfile(large.to_text()).digest() == large.digest() == sha256(large.to_text().encode()).digest()
    changed = Lockfile({"fs": Surface(items={"tools": {**tools, "t9": {"name": "t9"}}})})
    assert changed.digest() != large.digest()
