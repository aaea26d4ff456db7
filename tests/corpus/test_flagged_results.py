"""Hardly any honest result is flagged: documents, programs and data of packages with pinned versions."""

from __future__ import annotations

import random
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from registry.intake.issues import THRESHOLD, suspicion_of_result

ROOT = Path(__file__).parents[2]
KINDS = {".md", ".rst", ".txt", ".json", ".py", ".pyi", ".yaml", ".yml", ".html", ".csv", ".toml", ".js", ""}
# As much of a file as a host shows a model.
MOST_CHARS = 40_000
SAMPLE = 1_200
MOST = 0.01


def documents() -> list[Path]:
    """The text files of the installed packages that the constraints pin, as a tool reads files."""
    lines = (ROOT / "deploy/constraints-extras.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line and not line.startswith((" ", "#"))]
    found: list[Path] = []
    for name in names:
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:  # the package is for another system
            continue
        found += [Path(str(file.locate())) for file in files if file.suffix in KINDS and "zoneinfo" not in file.parts]
    return sorted(found)


@pytest.mark.heavy
def test_fewer_than_one_in_a_hundred_honest_results_is_flagged() -> None:
    files = documents()
    flagged: list[tuple[str, str]] = []
    signs: Counter[str] = Counter()
    number = 0
    for file in random.Random(1).sample(files, SAMPLE):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        number += 1
        found = suspicion_of_result([text[:MOST_CHARS]])
        if found.score >= THRESHOLD:
            signs[found.flags[0].code] += 1
            flagged.append((file.name, found.flags[0].quoted))
    print(f"{len(flagged)} of {number} results of {len(files)} files:", dict(signs), *flagged, sep="\n  ")
    assert number > 1_000
    assert len(flagged) < MOST * number
