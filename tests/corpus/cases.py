"""The labelled calls of this directory: the arguments that were sent, and the expected outcome.

Each line of `calls/*.txt` is one call:

    read_file {"Path": "/x"} => {"path": "/x"}          repaired to exactly this
    read_file {"head": 3} => refuse missing path        refused, and exactly these problems named
    read_file {"path": "/x", "x": 1} => pass            valid: sent on as it came

under a heading with the server and, if it is not `safe`, the level of repair: `[slack full]`. Under
`[invoke_tool]` a line has no tool: what was sent is the argument object of `invoke_tool` itself, and a repair
names `server/tool` before the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.arguments.invoke_tool import UnresolvedCall, resolve_invoke_tool
from registry.arguments.prepare import prepare
from registry.catalog.catalog import Catalog
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import build_catalog
from registry.catalog.shape import RepairLevel, Shape
from registry.intake.tool_intake import admit_tools
from registry.schema.json_paths import format_path

GENERIC = "invoke_tool"
_CALLS = Path(__file__).parent / "calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One labelled call."""

    where: str
    server: str
    level: RepairLevel
    tool: str | None
    sent: Any
    verdict: str

    @property
    def kind(self) -> str:
        """The expected outcome: `repair`, `refuse` or `pass`."""
        word = self.verdict.partition(" ")[0]
        return word if word in ("refuse", "pass") else "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a call."""

    did: str
    detail: str
    repairs: tuple[str, ...] = ()


def cases() -> Iterator[Case]:
    """Yield every labelled call."""
    decoder = json.JSONDecoder()
    for file in sorted(_CALLS.glob("*.txt")):
        server, level = "", "safe"
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            if " => " not in line:
                server, _, level = line.strip("[]").partition(" ")
                continue
            tool, rest = (None, line) if server == GENERIC else line.split(" ", 1)
            sent, end = decoder.raw_decode(rest)
            verdict = rest[end:].removeprefix(" => ").strip()
            assert verdict, f"{file.name}:{number}"
            chosen: Any = level or "safe"
            yield Case(
                where=f"{file.name}:{number}", server=server, level=chosen, tool=tool, sent=sent, verdict=verdict
            )


def catalog_of(listings: dict[str, list[dict[str, Any]]]) -> Catalog:
    """Return the catalog that a gateway has of these servers."""
    admitted = {
        server: ServerListing(server=server, epoch=1, tools=admit_tools(tools, transport="stdio").items)
        for server, tools in ((ServerName(name), tools) for name, tools in listings.items())
    }
    return build_catalog(admitted, Shape(max_length=64), version=1)


def outcome_of(case: Case, catalog: Catalog) -> Outcome:
    """Do with a call what the gateway does with it."""
    arguments, repairs, prefix = case.sent, [], ""
    if case.server == GENERIC:
        found = resolve_invoke_tool(case.sent, catalog, catalog.servers)
        if isinstance(found, UnresolvedCall):
            return Outcome(did="refuse", detail="; ".join(found.faults))
        wrapper, arguments = found.wrapper, found.arguments
        repairs += [repair.name for repair in found.repairs]
        prefix = f"{wrapper.server}/{wrapper.tool} "
    else:
        exact = catalog.by_tool.get((case.server, case.tool or ""))
        assert exact is not None, f"{case.where}: no such tool"
        wrapper = exact
    prepared = prepare(wrapper, arguments, level=case.level)
    if prepared.problems:
        named = {f"{problem.kind} {format_path(problem.path)}" for problem in prepared.problems}
        return Outcome(did="refuse", detail="; ".join(sorted(named)))
    repairs += [repair.name for repair in prepared.repairs]
    sent_on = f"{prefix}{_text(prepared.arguments)}"
    untouched = prepared.arguments == (arguments if arguments is not None else {}) and not repairs
    return Outcome(did="pass" if untouched else "repair", detail=sent_on, repairs=tuple(repairs))


def expected(case: Case) -> str:
    """Return what the outcome must say, in the form of `Outcome.detail`; empty where nothing is to be said."""
    if case.kind == "pass":
        return ""
    if case.kind == "refuse":
        return "; ".join(sorted(case.verdict.removeprefix("refuse ").split("; ")))
    place, brace, rest = case.verdict.partition("{")
    return f"{place}{_text(json.loads(brace + rest))}"


def as_labelled(case: Case, outcome: Outcome) -> bool:
    """Tell whether a call came out exactly as its label says."""
    if outcome.did != case.kind:
        return False
    message = "; ".join(sorted(outcome.detail.split("; "))) if outcome.did == "refuse" else outcome.detail
    return case.kind == "pass" or message == expected(case)


def wrongly_touched(case: Case, outcome: Outcome) -> bool:
    """Tell whether arguments were sent on in another form than they may be."""
    if outcome.did != "repair":
        return False
    return case.kind != "repair" or outcome.detail != expected(case)


def table(judged: Iterable[tuple[Case, Outcome]]) -> str:
    """Return the score of each file: how many of each label came out as it says."""
    rows: dict[str, list[int]] = {}
    for case, outcome in judged:
        for name in (case.where.partition(".")[0], "all"):
            row = rows.setdefault(name, [0] * 7)
            place = ("repair", "refuse", "pass").index(case.kind) * 2
            row[place] += as_labelled(case, outcome)
            row[place + 1] += 1
            row[6] += wrongly_touched(case, outcome)
    total = rows.pop("all")
    lines = [f"{'calls':12}{'repaired':>12}{'refused well':>16}{'passed':>12}{'wrongly touched':>18}"]
    for name, row in [*sorted(rows.items()), ("all", total)]:
        shares = [f"{row[place]}/{row[place + 1]}" for place in (0, 2, 4)]
        lines.append(f"{name:12}{shares[0]:>12}{shares[1]:>16}{shares[2]:>12}{row[6]:>18}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    # Types matter: `1`, `1.0` and `true` are different things to an upstream, the order of keys is not.
    return json.dumps(value, sort_keys=True)
