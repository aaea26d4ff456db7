"""What the pages of the manual show is what the program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gateway.cli import parser
from gateway.config.load import parse

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "deploy/guide").glob("*.md"))
VARIABLES = {"TYPEGATE_ADMIN_TOKEN": "c" * 20}
# The order of every page: what it is for, the smallest example that works, the reference, what can go wrong.
SECTIONS = ["Example", "Reference", "What can go wrong"]


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of all pages, each with the name of its page."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text(encoding="utf-8"))]


def lines() -> list[tuple[str, str]]:
    """Return the commands of all console blocks, each with the name of its page."""
    texts = [(page, line.strip().removeprefix("$ ")) for page, text in blocks("console") for line in text.splitlines()]
    return [(page, line) for page, line in texts if line]


@pytest.mark.parametrize(("page", "text"), blocks("yaml") + blocks("json"))
def test_every_configuration_is_accepted_without_a_warning(page: str, text: str) -> None:
    config = parse(text, environ=VARIABLES)
    assert config.servers
    assert config.warnings == []
    assert config.left_out == {}


@pytest.mark.parametrize(("page", "line"), lines())
def test_every_command_and_option_exists(page: str, line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program.endswith("typegate"):
        assert parser().parse_args(arguments).handler
    else:
        assert program in {"PYTHONPATH=.:tests"}, f"{page}: nothing runs {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_its_sections_in_order_and_leads_to_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_readme_leads_to_every_page(page: Path) -> None:
    assert f"(deploy/guide/{page.name})" in README.read_text(encoding="utf-8")
