"""Names are distinct, stable and valid in every host."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.catalog.names import (
    BUILTIN_NAMES,
    MIN_NAME_LENGTH,
    ServerName,
    ToolName,
    check_aliases,
    compile_names,
    normalized_name,
)
from registry.errors import AliasError, RegistryError

SHAPE = re.compile(r"^[A-Za-z][A-Za-z0-9_-]*$")
ALIASES = st.from_regex(r"[A-Za-z0-9]{1,5}([-_][A-Za-z0-9]{1,5}){0,7}", fullmatch=True)
NAMES = st.one_of(
    st.text(max_size=90),
    st.text(alphabet="aAbB_-.x", max_size=6),
    st.from_regex(r"[a-z_]{0,4}_[0-9a-f]{8}", fullmatch=True),
)


def names(server: str, *tools: str, **options: Any) -> list[str]:
    compiled = compile_names(ServerName(server), [ToolName(t) for t in tools], **options)
    return [compiled[ToolName(tool)].name for tool in tools]


@given(st.sets(NAMES, max_size=12), ALIASES, st.integers(MIN_NAME_LENGTH, 64))
@example({"日本", "中国", "", "_", "-"}, "a", 48)
def test_names_match_the_grammar_and_stay_unique_when_folded(tools: set[str], alias: str, limit: int) -> None:
    found = names(alias, *tools, max_length=limit)
    assert all(SHAPE.match(name) and len(name) <= limit for name in found)
    assert len({normalized_name(name) for name in found}) == len(tools)


@given(st.lists(NAMES, max_size=12, unique=True), st.randoms())
def test_names_do_not_depend_on_the_order_of_tools(tools: list[str], random: Random) -> None:
    mixed = list(tools)
    random.shuffle(mixed)
    assert dict(zip(mixed, names("srv", *mixed), strict=True)) == dict(zip(tools, names("srv", *tools), strict=True))


@given(st.lists(ALIASES, min_size=2, max_size=4, unique=True), st.lists(NAMES, max_size=6, unique=True))
def test_two_servers_never_share_a_name(aliases: list[str], tools: list[str]) -> None:
    try:
        check_aliases(aliases)
    except AliasError:
        return
    everything = [normalized_name(name) for alias in aliases for name in names(alias, *tools)]
    assert len(set(everything)) == len(everything)


@given(ALIASES, NAMES)
def test_first_double_underscore_ends_the_alias(alias: str, tool: str) -> None:
    (name,) = names(alias, tool)
    part = name.partition("__")[0]
    expected = alias if alias[0].isalpha() else "s" + alias
    assert part == expected or (len(expected) > 28 and re.fullmatch(r".+-[0-9a-f]{8}", part))


@given(st.lists(NAMES, max_size=8, unique=True))
def test_unprefixed_names_are_distinct_and_valid_ones_unchanged(tools: list[str]) -> None:
    found = names("srv", *tools, prefixed=False)
    assert len(set(found)) == len(tools)
    for tool, name in zip(tools, found, strict=True):
        if re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", tool):
            assert name == tool
        else:
            assert SHAPE.match(name)


@pytest.mark.parametrize("alias", ["a__b", "a_", "-a", "", "a b", "é", "a-_b", "x" * 65, "a\n"])
def test_malformed_alias_is_named_in_the_error(alias: str) -> None:
    with pytest.raises(AliasError) as caught:
        check_aliases(["good", alias])
    assert caught.value.aliases == (alias,)
    assert repr(alias) in str(caught.value)


@pytest.mark.parametrize("pair", [("od-a", "od_a"), ("Mail", "mail"), ("1a", "s1a")])
def test_colliding_aliases_are_both_named_in_the_error(pair: tuple[str, str]) -> None:
    with pytest.raises(AliasError) as caught:
        check_aliases(["other", *pair])
    assert caught.value.aliases == pair


def test_plain_name_joins_alias_and_tool_without_a_reason() -> None:
    compiled = compile_names(ServerName("calendar-mcp"), [ToolName("send_email")])
    assert compiled[ToolName("send_email")].name == "calendar-mcp__send_email"
    assert compiled[ToolName("send_email")].reason is None


def test_long_tool_name_becomes_head_tail_and_eight_hex_digits() -> None:
    (name,) = names("srv", "a" * 40 + "z" * 40)
    assert re.fullmatch(r"srv__a+_z+_[0-9a-f]{8}", name)
    assert len(name) == 48


def test_dashed_name_stays_plain_beside_a_dotted_one() -> None:
    dotted, dashed = names("srv", "x.y", "x-y")
    assert dashed == "srv__x-y"
    assert re.fullmatch(r"srv__x_y_[0-9a-f]{8}", dotted)
    assert names("srv", "x.y") == [dotted]


def test_folded_name_stays_plain_among_similar_names() -> None:
    folded, dashed, upper = names("srv", "list_items", "list-items", "List_Items")
    assert folded == "srv__list_items"
    assert len({normalized_name(folded), normalized_name(dashed), normalized_name(upper)}) == 3


def test_tool_imitating_a_shortened_name_does_not_take_it() -> None:
    (victim,) = names("srv", "x.y")
    imitation = victim.removeprefix("srv__")
    assert names("srv", "x.y", imitation)[0] == victim


def test_rename_replaces_the_tool_part_and_gives_the_reason() -> None:
    compiled = compile_names(ServerName("s"), [ToolName("old")], renames={ToolName("old"): "new"})
    assert compiled[ToolName("old")].name == "s__new"
    assert compiled[ToolName("old")].reason == "renamed by configuration"


@pytest.mark.parametrize("tools", [["old", "new"], ["new", "old"]])
def test_rename_to_a_siblings_name_leaves_the_sibling_plain(tools: list[str]) -> None:
    found = compile_names(ServerName("s"), [ToolName(t) for t in tools], renames={ToolName("old"): "new"})
    assert found[ToolName("new")].name == "s__new"
    assert found[ToolName("old")].name != "s__new"


def test_prefixed_name_never_equals_a_builtin() -> None:
    assert names("invoke", "tool") == ["invoke__tool"]
    assert not set(names("a", *BUILTIN_NAMES)) & BUILTIN_NAMES


def test_limit_too_small_for_distinct_names_is_refused() -> None:
    with pytest.raises(RegistryError):
        names("srv", "x", max_length=MIN_NAME_LENGTH - 1)
