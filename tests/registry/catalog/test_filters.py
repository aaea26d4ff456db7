"""Names and URIs that patterns select."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalog.shape import NameFilter, selects_name
from registry.catalog.uris import allows_uri, resolve_uri


def selected(pattern: str, server: str, original: str, *, shown: str | None = None) -> bool:
    return selects_name(
        pattern, server=server, original=original, exposed=shown or f"{server}__{original}", prefixed=shown is None
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
def test_pattern_with_an_alias_matches_server_and_tool_separately(
    pattern: str, server: str, original: str, is_selected: bool
) -> None:
    assert selected(pattern, server, original) is is_selected


def test_alias_pattern_selects_renamed_and_unprefixed_tools_by_either_name() -> None:
    assert selects_name("bank__balance", server="bank", original="get", exposed="bank__balance", prefixed=True)
    assert selects_name("bank__get", server="bank", original="get", exposed="bank__balance", prefixed=True)
    assert selects_name("bank__get", server="bank", original="get", exposed="get", prefixed=False)
    assert not selects_name("bank__get", server="rogue", original="x", exposed="bank__get", prefixed=False)


@given(st.text(alphabet="ab/.%25:?#\\", max_size=20))
def test_resolving_a_uri_is_idempotent(uri: str) -> None:
    once = resolve_uri(f"x://{uri}")
    if "%" not in once:
        assert resolve_uri(once) == once


@given(st.text(alphabet="abAB/.%2F", max_size=12))
def test_path_denial_applies_to_every_spelling_of_the_path(rest: str) -> None:
    denied = NameFilter(deny=("x://secret/*",))
    assert denied.denies_uri(f"x://{rest}/../../../../../../../secret/1")
    assert denied.denies_uri(f"X:///secret/{rest}?y") or resolve_uri(f"x://secret/{rest}").count("secret") == 0


def test_allowed_uri_must_be_allowed_after_resolving_too() -> None:
    assert allows_uri("x://pub/a", ["x://pub/*"])
    assert allows_uri("x://Pub/a%20b", ["x://Pub/a%20b"])
    assert not allows_uri("x://pub/../secret", ["x://pub/*"])
    assert not allows_uri("x://pub/%2e%2e/secret", ["x://pub/*"])
