"""Requests with the tools that answer them: what the word vectors and the adapter of the search are trained on.

`training/requests.txt` has seven requests or fourteen for each of 5,700 tools of packages, `training/invented.txt` for
tools that exist nowhere else, and `training/corpus.txt` for those of the servers in `tests/corpus`, for which
`queries.txt`, `strangers.txt` and the queries of others ask. All were written for this purpose, by authors who saw no
other queries. What is trained without the corpus says how well tools are found that nobody had in mind.

The definitions of the packages are fetched from them by `training_listings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Any, Literal

from corpus.further import all_listings
from corpus.packages import Listings
from corpus.strangers import strangers_listings
from training_listings import training_listings

KINDS = ("plain", "plain", "chatty", "terse", "agent", "sibling", "goal")
_HERE = Path(__file__).parent / "training"
# One server in eight is excluded from training, and shows how well unknown tools are found.
_LEFT_OUT = 8
# Tools among which those that are left out have to be found.
_ASKED = 1_150


@dataclass(frozen=True, slots=True)
class TrainingTool:
    """A tool with requests for it, of each of `KINDS` by turns."""

    server: str
    tool: str
    definition: Mapping[str, Any]
    requests: tuple[str, ...]
    origin: Literal["package", "invented", "corpus"] = "package"

    @property
    def name(self) -> str:
        """The name of its wrapper."""
        return f"{self.server}__{self.tool}"

    @property
    def left_out(self) -> bool:
        """Whether the server is only used for measuring."""
        return self.origin != "corpus" and _digest(self.server) % _LEFT_OUT == 0


@cache
def training_tools(*, with_corpus: bool = True) -> tuple[TrainingTool, ...]:
    """Return all tools that can be had; packages that no longer start, or have lost a tool, are passed over."""
    corpus = _of_listings("corpus.txt", {**all_listings(), **strangers_listings()}, "corpus") if with_corpus else ()
    return (*_of_listings("requests.txt", _packages(), "package"), *_invented(), *corpus)


def tools_to_ask_for() -> list[TrainingTool]:
    """Return the tools of all packages that are left out, and as many others as make a large installation."""
    of_packages = [tool for tool in training_tools(with_corpus=False) if tool.origin == "package"]
    tools = sorted(of_packages, key=lambda tool: _digest(tool.server))
    left_out = [tool for tool in tools if tool.left_out]
    others = [tool for tool in tools if not tool.left_out]
    return [*left_out, *others[: _ASKED - len(left_out)]]


def _digest(text: str) -> int:
    return int(md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def _packages() -> Listings:
    return training_listings([line[0].split(" ") for line in _lines("packages.txt")])


def _of_listings(file: str, listings: Listings, origin: Literal["package", "corpus"]) -> Iterator[TrainingTool]:
    for server, tool, *requests in _lines(file):
        found = [definition for definition in listings.get(server, ()) if definition["name"] == tool]
        if found:
            yield TrainingTool(server, tool, found[0], tuple(requests), origin)


def _invented() -> Iterator[TrainingTool]:
    for server, tool, description, arguments, *requests in _lines("invented.txt"):
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in arguments.split(", ") if name}}
        definition = {"name": tool, "description": description, "inputSchema": schema}
        yield TrainingTool(server, tool, definition, tuple(requests), "invented")


def _lines(file: str) -> Iterator[list[str]]:
    for line in (_HERE / file).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split("|")
