"""What CONTRIBUTING says exists: every file and folder that it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_path_that_contributing_names_exists() -> None:
    named = set(re.findall(r"(?:gateway|registry|tests|\.ci)/[\w./-]*\w/?", TEXT))
    assert len(named) > 25
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_pre_commit_fetches_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"- repo: (\S+)", text)) == {"local"}
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
