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
from registry.lock.lockfile import Lockfile, Surface, parse_lockfile
from registry.lock.review import changes_of

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


def test_lock_file_is_indented_for_review() -> None:
    lines = Lockfile(LOCKED.servers, configuration="typegate.json").to_text().splitlines()
    assert lines[:5] == [
        "{", '  "configuration": "typegate.json",', '  "lockVersion": 1,', '  "servers": {', '    "fs": {'
    ]  # fmt: skip
    assert lines[-1] == "}"


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
        ("", "is not JSON at line 1"),
        ("[]", "not an object"),
        ("{}", "lockVersion"),
        ('{"lockVersion": 2, "servers": {}}', "another version"),
        ('{"lockVersion": 1}', "servers"),
        ('{"lockVersion": 1, "servers": {}, "more": 1}', "more: unknown key"),
        ('{"lockVersion": 1, "servers": {"a": {}}}', "servers.a.identity"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": ""}, "a": {"identity": ""}}}', "twice"),
        ('{"lockVersion": 1, "servers": {"a": {"identity": "", "tools": {"x": {}}}}}', "servers.a.tools.x.definition"),
        ("[" * 100_000, "nested too deeply"),
        ("<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n", "merge conflict markers"),
        ('{"lockVersion": 1, "servers": {"a": ' + '{"a":' * 300 + "1" + "}" * 302, "nested too deeply"),
    ],
)  # fmt: skip
def test_unusable_lock_file_is_reported_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(LockfileRejected) as refused:
        parse_lockfile(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


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
