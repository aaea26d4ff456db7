"""The docstring of each package lists its modules and subpackages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = sorted(path.parent for package in ("gateway", "registry") for path in (ROOT / package).rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_package_docstring_names_every_file_and_subpackage(room: Path) -> None:
    map_ = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    named = set(re.findall(r"[a-z0-9_]+", map_))
    files = {path.stem for path in room.glob("*.py") if not path.stem.startswith("__")}
    inner = {path.parent.name for path in room.glob("*/__init__.py")}
    assert sorted((files | inner) - named) == []
