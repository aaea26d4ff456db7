"""Prose stays plain: at most 2 of 100 lines of docstrings, comments and Markdown use a marked turn of phrase.

The phrases are those that this project used instead of a subject, a verb and an object. A match is not always an error,
which is why the test bounds a rate, and text without a match is not always easy to read.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# anyio, httpx, Starlette, pydantic and the MCP SDK have 0.3 to 1.5.
LIMIT = 2.0

# Pronouns and relative clauses in place of a noun.
PRONOUNS = (
    "whoever", "whom", "nobody", "somebody", "everybody", "anybody", "that one", "the one that", "one is",
    "of our own", "of its own", "of ours", "of theirs", "of others", "the very",
)  # fmt: skip
# Rare or archaic words where a standard term exists.
WORDS = (
    "anew", "told", "heard", "nor", "meanwhile", "nevertheless", "all the same", "in vain", "apart from", "in place of",
    "be it", "by then", "so many", "to be had", "at hand", "dear", "dearer", "hear of", "hears of",
)  # fmt: skip
# Verbs that hide what happens.
VERBS = (
    "is of", "are of", "was of", "goes on", "go on", "went on", "leads to", "lead to", "leads back", "knows of",
    "know of", "takes no", "take no", "lies in", "lies on", "stands in", "stands for a", "stands beside",
    "stands before", "as it came", "as they came", "is there", "are there",
)  # fmt: skip
PATTERNS = (
    *(rf"\b(?i:{phrase})\b" for phrase in (*PRONOUNS, *WORDS, *VERBS)),
    r"\b(?:is|are) no (?!longer\b|more than\b)[a-z]",  # "is not a ...", not "is no ..."
    r"\b(?:at most|as it is|has none|has no)(?=[.,;:]|$)",
    r"\bsome (?:ten|fifty|dozens?|hundreds?|thousands?|seconds|minutes)\b",
    # A sentence that begins with a genitive or with a relative clause.
    r"^(?:Of|From|By|For|With|To) (?:the|an?|what|which|whom|all|each|every|those|these|its|one|this|that)\b[^.]*[,:]",
    r"^(?:What|Whether|Who|Whose|How far|How often) [a-z][^.?]*\.?$",
)
MARKED = re.compile("|".join(PATTERNS))
# Shorter lines are brackets, rulers and single words.
MIN_LENGTH = 4


class Line(NamedTuple):
    """One line of prose, and where it is."""

    path: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.number}: {self.text}"


def python_lines(path: Path, source: str) -> Iterator[Line]:
    """Yield the lines of docstrings, attribute docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for index, text in enumerate(node.value.value.splitlines()):
                yield Line(path, node.lineno + index, text.strip())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:type:|noqa|fmt:|!)", token.string):
            yield Line(path, token.start[0], token.string.lstrip("#: "))


def markdown_lines(path: Path, source: str) -> Iterator[Line]:
    """Yield the lines outside code blocks, without headings, which are often questions."""
    fenced = False
    for number, text in enumerate(source.splitlines(), 1):
        if text.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not text.startswith("#"):
            yield Line(path, number, text.strip(" |-*>"))


def parts() -> dict[str, list[Path]]:
    """Return the files of each part: a folder of the packages, or the Markdown of a top-level folder."""
    found: dict[str, list[Path]] = {}
    for package in ("gateway", "registry"):
        for path in sorted((ROOT / package).rglob("*.py")):
            inner = path.relative_to(ROOT).parts
            found.setdefault("/".join(inner[:2]) if len(inner) > 2 else package, []).append(path)
    for name in ("README.md", "CHANGELOG.md"):
        found[name] = [ROOT / name]
    for folder in (".github", "deploy", "tests"):
        pages = [path for path in sorted((ROOT / folder).rglob("*.md")) if "node_modules" not in path.parts]
        found[f"{folder}/*.md"] = pages
    return found


PARTS = parts()


def prose(path: Path) -> list[Line]:
    read = python_lines if path.suffix == ".py" else markdown_lines
    return [line for line in read(path, path.read_text(encoding="utf-8")) if len(line.text) >= MIN_LENGTH]


@pytest.mark.parametrize("part", PARTS)
def test_few_lines_of_prose_are_marked(part: str) -> None:
    lines = [line for path in PARTS[part] for line in prose(path)]
    marked = [line for line in lines if MARKED.search(line.text)]
    rate = 100 * len(marked) / max(1, len(lines))
    assert rate <= LIMIT, f"{rate:.2f} of 100 lines, more than {LIMIT}:\n" + "\n".join(map(str, marked))


@pytest.mark.parametrize(
    "text",
    [
        "Of a derived key: the secret itself is for the gateways alone.",
        "Whoever balances has to learn of it first.",
        "SourceRefused: Name or version is no name.",
        "What is gone is forgotten.",
    ],
)
def test_marked_phrases_are_detected(text: str) -> None:
    assert MARKED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "Derived from the peer secret, so that the id does not expose it.",
        "Reject unauthenticated admin requests before buffering their body.",
        "Removing a deadline does not reset the timer; `_ring` skips removed deadlines.",
    ],
)
def test_plain_english_is_not_marked(text: str) -> None:
    assert not MARKED.search(text)
