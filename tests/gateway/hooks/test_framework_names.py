"""Plugins may import their framework under its former name in ContextForge."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from gateway.hooks.adapters.cpex import alias_former_name


@pytest.fixture(autouse=True)
def _undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("mcpgateway"):
            del sys.modules[name]


def test_both_names_refer_to_one_framework() -> None:
    alias_former_name()
    alias_former_name()
    former = importlib.import_module("mcpgateway.plugins.framework")
    assert former is importlib.import_module("cpex.framework")
    models = importlib.import_module("mcpgateway.plugins.framework.models")
    assert models is importlib.import_module("cpex.framework.models")
    assert former.__name__ == "cpex.framework"


def test_missing_module_is_reported_under_the_requested_name() -> None:
    alias_former_name()
    for name in ("mcpgateway.services", "mcpgateway.plugins.framework.nothing"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)


def test_installed_contextforge_has_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcpgateway", sys)
    before = list(sys.meta_path)
    alias_former_name()
    assert sys.meta_path == before
