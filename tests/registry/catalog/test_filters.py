"""Which names and URIs patterns let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalog.filters import NameFilter, selects_name
from registry.catalog.uri_spellings import allows_uri, resolve_uri


def selected(pattern: str, server: str, original: str, *, shown: str | None = None) -> bool:
    return selects_name(
        pattern, server=server, original=original, shown=shown or f"{server}__{original}", prefixed=shown is None
    )


@pytest.mark.parametrize(
    ("pattern", "server", "original", "is_selected"),
    [
        ("bank__*", "bank", "read", True),
        ("bank__read", "bank", "read", True),
        ("*__read", "bank", "read", True),
        ("b*__r*", "bank", "read", True),
        ("read", "bank", "read", True),
        ("bank*", "bank", "read", True),
        ("bank__*", "rogue", "bank__read", False),
        ("bank__*", "bank2", "read", False),
        ("rogue__bank__*", "rogue", "bank__read", True),
        ("*bank__*", "rogue", "bank__read", False),
        ("__init", "bank", "__init", True),
    ],
)
def test_a_pattern_with_an_alias_matches_server_and_tool_each_on_its_own_side(
    pattern: str, server: str, original: str, is_selected: bool
) -> None:
    assert selected(pattern, server, original) is is_selected


def test_a_renamed_tool_and_one_without_prefix_are_selected_by_alias_and_either_name() -> None:
    assert selects_name("bank__balance", server="bank", original="get", shown="bank__balance", prefixed=True)
    assert selects_name("bank__get", server="bank", original="get", shown="bank__balance", prefixed=True)
    assert selects_name("bank__get", server="bank", original="get", shown="get", prefixed=False)
    assert not selects_name("bank__get", server="rogue", original="x", shown="bank__get", prefixed=False)


@given(st.text(alphabet="ab/.%25:?#\\", max_size=20))
def test_resolving_a_uri_twice_changes_nothing_more(uri: str) -> None:
    once = resolve_uri(f"x://{uri}")
    if "%" not in once:
        assert resolve_uri(once) == once


@given(st.text(alphabet="abAB/.%2F", max_size=12))
def test_what_denies_everything_under_a_path_denies_it_however_it_is_reached(rest: str) -> None:
    denied = NameFilter(deny=("x://secret/*",))
    assert denied.denies_uri(f"x://{rest}/../../../../../../../secret/1")
    assert denied.denies_uri(f"X:///secret/{rest}?y") or resolve_uri(f"x://secret/{rest}").count("secret") == 0


def test_what_is_allowed_has_to_be_so_as_it_is_resolved_too() -> None:
    assert allows_uri("x://pub/a", ["x://pub/*"])
    assert allows_uri("x://Pub/a%20b", ["x://Pub/a%20b"])
    assert not allows_uri("x://pub/../secret", ["x://pub/*"])
    assert not allows_uri("x://pub/%2e%2e/secret", ["x://pub/*"])
