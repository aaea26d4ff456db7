"""Paths in CONTRIBUTING exist, and its recipes work: each step is necessary, and all are sufficient."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?:python|text)\n# (\S+?)(?:, above: ([^\n]+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The time for one run of a recipe's tests; even a busy machine needs only a tenth.
TIMEOUT_S = 240


class Step(NamedTuple):
    """A new file, or lines to insert above the only line that starts with `anchor`."""

    path: str
    anchor: str
    code: str

    def apply(self, root: Path) -> None:
        place = root / self.path
        if not self.anchor:
            assert not place.exists(), self.path
            place.write_text(self.code, encoding="utf-8")
            return
        lines = place.read_text(encoding="utf-8").splitlines(keepends=True)
        [index] = [index for index, line in enumerate(lines) if line.strip().startswith(self.anchor)]
        indentation = re.match(r" *", lines[index])[0]  # type: ignore[index] # matches every text
        lines[index:index] = [
            f"{indentation}{line}" if line.strip() else line for line in self.code.splitlines(keepends=True)
        ]
        place.write_text("".join(lines), encoding="utf-8")


class Recipe(NamedTuple):
    """The steps of a section, and the tests that it names."""

    title: str
    steps: list[Step]
    tests: list[str]


def recipes() -> list[Recipe]:
    """Return the recipes that show code and name tests."""
    found = []
    for section in TEXT.split("## Recipes")[1].split("\n### ")[1:]:
        steps = [Step(*groups) for groups in _BLOCK.findall(section)]
        listed = re.search(r"^Tests: (.+)$", section, re.MULTILINE)
        if steps and listed:
            found.append(Recipe(section.partition("\n")[0], steps, re.findall(r"`([^`]+)`", listed[1])))
    return found


def copy_of_the_repository(target: Path) -> Path:
    """Copy the sources, and the tests without their large data."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "training", "screenshots")
    for folder in ("gateway", "registry", "tests", ".github", "deploy"):
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def passes(root: Path, tests: list[str]) -> bool:
    """Run the tests of a copy, writing the golden files that do not exist."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        run,
        cwd=root,
        # The copy comes first, since the repository itself is installed in the environment.
        env={**environ, "PYTHONPATH": f"{root}:{root / 'tests'}", "WRITE_GOLDEN": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout[-4000:], done.stderr[-2000:])
    return done.returncode == 0


def test_every_path_named_in_contributing_exists() -> None:
    new = {step.path for recipe in recipes() for step in recipe.steps if not step.anchor}
    named = set(re.findall(r"(?:gateway|registry|tests|\.ci)/[\w./-]*\w/?", TEXT)) - new
    assert len(named) > 25
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_recipes_have_steps_and_tests() -> None:
    titles = [recipe.title for recipe in recipes()]
    assert titles == ["A configuration key", "A type of upstream", "A built-in hook", "An admin endpoint", "A dialect"]
    for recipe in recipes():
        for step in recipe.steps:
            lines = (ROOT / step.path).read_text(encoding="utf-8").splitlines() if step.anchor else []
            found = [line for line in lines if line.strip().startswith(step.anchor)]
            assert not step.anchor or len(found) == 1, f"{step.path}: {step.anchor}"


@pytest.mark.heavy
@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title.replace(" ", "-"))
def test_recipe_works_and_fails_without_its_last_step(recipe: Recipe, tmp_path: Path) -> None:
    root = copy_of_the_repository(tmp_path / "all")
    for step in recipe.steps:
        step.apply(root)
    assert passes(root, recipe.tests)

    root = copy_of_the_repository(tmp_path / "without")
    *steps, last = recipe.steps
    for step in steps:
        step.apply(root)
    if not steps:  # The only step has a docstring, which is required.
        last._replace(code=re.sub(r'^ *"""(?:.|\n)*?"""\n', "", last.code, flags=re.MULTILINE)).apply(root)
    assert not passes(root, recipe.tests)


def test_pre_commit_downloads_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"- repo: (\S+)", text)) == {"local"}
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
