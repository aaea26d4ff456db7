"""The version and the changelog agree, and each release stays readable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli import main

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASES = re.findall(r"^## \[([^]]+)\](?: - (\S+))?\n(.*?)(?=^## |\Z)", CHANGELOG, re.MULTILINE | re.DOTALL)


def test_version_is_the_newest_release_in_the_changelog(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for name, _, _ in RELEASES][:2] == ["Unreleased", __version__]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"typegate {__version__}\n"


@pytest.mark.parametrize(("name", "date", "text"), RELEASES[1:], ids=[name for name, _, _ in RELEASES[1:]])
def test_release_has_a_date_and_at_most_80_lines(name: str, date: str, text: str) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date), name
    assert text.count("\n") < 80


def test_manifests_use_the_image_of_this_version() -> None:
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "deploy").rglob("*.md"), ROOT / "README.md"]
    pattern = re.compile(r"(?:typegate:|newTag: \"?)(\d+\.\d+\.\d+)")
    versions = {version for path in files for version in pattern.findall(path.read_text(encoding="utf-8"))}
    assert versions == {__version__}
