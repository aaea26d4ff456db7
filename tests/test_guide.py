"""Examples in the manual are accepted by the program."""

from __future__ import annotations

import re
import shlex
from itertools import dropwhile
from pathlib import Path

import pytest

from gateway.cli import main, parser
from gateway.config.load import parse
from gateway.config.model import json_schema, reference_page

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
INDEX = ROOT / "deploy/guide/index.md"
PAGES = sorted((ROOT / "deploy/guide").glob("*.md"))
VARIABLES = {"TYPEGATE_ADMIN_TOKEN": "c" * 20, "TYPEGATE_API_KEY": "b" * 20, "GITHUB_TOKEN": "a"}
VARIABLES |= {"HOOK_SECRET": "d" * 20, "WIKI_TOKEN": "e" * 20, "WIKI_SECRET": "f" * 20}
# Other programs that pages use, each with its argument: a file or a folder of the repository.
OTHERS = {"docker", "kubectl"}
# The order of every page: what it is for, the smallest example that works, the reference, what can go wrong.
SECTIONS = ["Example", "Reference", "Troubleshooting"]


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of all pages, each with the name of its page."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text(encoding="utf-8"))]


def lines() -> list[tuple[str, str]]:
    """Return the commands of all console blocks, each with the name of its page."""
    texts = [(page, line.strip().removeprefix("$ ")) for page, text in blocks("console") for line in text.splitlines()]
    return [(page, line) for page, line in texts if line]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, formed as GitHub forms them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("page", "text"), blocks("yaml") + blocks("json"))
def test_every_configuration_is_accepted_without_a_warning(page: str, text: str) -> None:
    config = parse(text, environ=VARIABLES)
    assert config.servers
    assert config.warnings == []
    assert config.left_out == {}


@pytest.mark.parametrize(("page", "line"), lines())
def test_every_command_and_option_exists(page: str, line: str) -> None:
    if line in README.read_text(encoding="utf-8").splitlines():
        return  # tests/test_readme.py
    # Without variables before the program, which a shell sets for it.
    program, *arguments = dropwhile(re.compile(r"[A-Z_]+=").match, shlex.split(line, comments=True))
    if program.endswith("typegate"):
        assert parser().parse_args(arguments).handler
    elif program in OTHERS:
        named = [part for part in arguments if part.startswith("deploy/")]
        assert named, f"{page}: {line} names nothing of the repository"
        assert all((ROOT / path).exists() for path in named), line
    else:
        assert line.startswith("PYTHONPATH=.:tests python -m "), f"{page}: nothing runs {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_its_sections_in_order_and_valid_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
        assert (page.parent / target).exists(), target
        if anchor:
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_readme_links_to_the_index() -> None:
    assert "(deploy/guide/index.md)" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if page != INDEX], ids=lambda page: page.name)
def test_index_links_to_every_page(page: Path) -> None:
    assert f"]({page.name})" in INDEX.read_text(encoding="utf-8")


def test_configuration_reference_is_generated_from_the_models() -> None:
    page = (ROOT / "deploy/guide/configuration.md").read_text(encoding="utf-8")
    assert page == reference_page(), "write it again: typegate check --reference > deploy/guide/configuration.md"


def test_every_configuration_key_has_a_description() -> None:
    schema = json_schema()
    sections = {"": schema, **schema["$defs"]}
    assert [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, member in section.get("properties", {}).items()
        if not member.get("description")
    ] == []


def test_docs_lists_every_page_and_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert listed == {page.stem: page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in PAGES}
    for topic in ("security", "securi", "Security.md"):
        assert main(["docs", topic]) == 0
        assert capsys.readouterr().out == (ROOT / "deploy/guide/security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("topic", "words"),
    [("scurity", "security (did you mean it?)"), ("co", "compatibility, configuration"), ("", "one of")],
)
def test_docs_suggests_pages_for_an_unknown_topic(topic: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", topic]) == 2
    assert words in capsys.readouterr().err
