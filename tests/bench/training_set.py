"""Requests with the tools that answer them: what the word vectors of the search are trained on.

`training/requests.txt` has seven requests for each of some 5,000 tools of packages, `training/invented.txt` for tools
that exist nowhere else. All were written for this purpose, by authors who saw no other queries: none of the servers
for which `queries.txt`, `strangers.txt` and the queries of others ask is among them.

The definitions of the packages are fetched from them by `training_listings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Any

from training_listings import training_listings

KINDS = ("plain", "plain", "chatty", "terse", "agent", "sibling", "goal")
_HERE = Path(__file__).parent / "training"
# One server in eight is left out of training, and tells what is found of tools that nobody had in mind.
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
    invented: bool = False

    @property
    def name(self) -> str:
        """The name of its wrapper."""
        return f"{self.server}__{self.tool}"

    @property
    def left_out(self) -> bool:
        """Whether its server is for measuring only."""
        return _digest(self.server) % _LEFT_OUT == 0


@cache
def training_tools() -> tuple[TrainingTool, ...]:
    """Return all tools that can be had; packages that no longer start, or have lost a tool, are passed over."""
    return (*_of_packages(), *_invented())


def tools_to_ask_for() -> list[TrainingTool]:
    """Return the tools of all packages that are left out, and as many others as make a large installation."""
    tools = sorted((tool for tool in training_tools() if not tool.invented), key=lambda tool: _digest(tool.server))
    left_out = [tool for tool in tools if tool.left_out]
    others = [tool for tool in tools if not tool.left_out]
    return [*left_out, *others[: _ASKED - len(left_out)]]


def _digest(text: str) -> int:
    return int(md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def _of_packages() -> Iterator[TrainingTool]:
    listings = training_listings([line[0].split(" ") for line in _lines("packages.txt")])
    for server, tool, *requests in _lines("requests.txt"):
        found = [definition for definition in listings.get(server, ()) if definition["name"] == tool]
        if found:
            yield TrainingTool(server, tool, found[0], tuple(requests))


def _invented() -> Iterator[TrainingTool]:
    for server, tool, description, arguments, *requests in _lines("invented.txt"):
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in arguments.split(", ") if name}}
        definition = {"name": tool, "description": description, "inputSchema": schema}
        yield TrainingTool(server, tool, definition, tuple(requests), invented=True)


def _lines(file: str) -> Iterator[list[str]]:
    for line in (_HERE / file).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split("|")
