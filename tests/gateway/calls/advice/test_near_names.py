"""Suggestions for an unknown name ignore case and separators, and need little work among thousands of tools."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.advice.unknown_tool import near_tools, nearest
from registry.catalog.catalog import NO_APP, Catalog

NAMES = ["mail__send", "mail__env", "od-a__list_files", "od-b__list_files"]
MANY = [f"server{n % 50}__tool_{n}_{('list', 'get', 'create')[n % 3]}_files" for n in range(10_000)]


def catalog_of(names: Sequence[str]) -> Catalog:
    wrappers = [SimpleNamespace(name=name, app=NO_APP) for name in names]
    return cast(Catalog, SimpleNamespace(wrappers=wrappers))


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MAIL__SEND", "mail__send"),
        ("mail.send", "mail__send"),
        ("mail_send", "mail__send"),
        ("mail/send", "mail__send"),
        ("mcp__gateway__mail__send", "mail__send"),
        ("gateway:od-a__list_files", "od-a__list_files"),
        ("mial__send", "mail__send"),
        ("od_b__list_file", "od-b__list_files"),
    ],
)
def test_name_in_another_case_or_separator_is_suggested(name: str, meant: str) -> None:
    assert near_tools(catalog_of(NAMES), name)[0] == meant


@pytest.mark.parametrize("name", ["", "_", "zzz", "mail__send" * 1_000, "\ud800"])
def test_dissimilar_name_gets_no_suggestion(name: str) -> None:
    assert near_tools(catalog_of(NAMES), name) == []


@pytest.mark.heavy
def test_suggestion_among_thousands_is_found_quickly() -> None:
    view = catalog_of(MANY)
    assert near_tools(view, MANY[777].upper().replace("__", ".")) == [MANY[777]]
    misspelt = MANY[777].replace("tool", "tol")
    assert MANY[777] in near_tools(view, misspelt)
    assert nearest("servre7", [f"server{n}" for n in range(1_000)])[0].startswith("server")
    work = calls_of(lambda: near_tools(view, misspelt))
    everything: Any = calls_of(lambda: difflib.get_close_matches(misspelt, MANY, n=3))
    assert work < everything / 4
