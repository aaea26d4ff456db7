"""Compare all published servers and print the report of the guide's page on compatibility.

Run `PYTHONPATH=.:tests python -m differential [ALIAS ...]` in a checkout; it takes about a quarter of an hour.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anyio
from differential.comparison import Reports, compare
from differential.packages import SERVERS
from differential.surveys import CLIENTS, Tally


def report_text(reports: Reports) -> str:
    """Return the report as Markdown: a row for each server, the sum, then each difference."""
    lines = [
        "| server | package | calls made on | tools | calls | too slow | adapted | differences |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    whole = Tally()
    for alias, report in reports.items():
        tally = Tally()
        for one in report.tallies.values():
            tally.add(one)
        whole.add(tally)
        made_on = "the server" if report.real_calls else "its definitions"
        lines.append(f"| {alias} | `{report.package}` | {made_on} | {_figures(tally)} |")
    lines.append(f"| {len(reports)} servers | | | {_figures(whole)} |")
    return "\n".join([*lines, "", *(f"- {one}" for one in [*whole.differences, *whole.adapted])])


def _figures(tally: Tally) -> str:
    tools = tally.tools // len(CLIENTS)  # each client lists the same tools
    return f"{tools} | {tally.calls} | {tally.late} | {len(tally.adapted)} | {len(tally.differences)}"


async def _main(aliases: list[str]) -> None:
    servers = [one for one in SERVERS if not aliases or one.alias in aliases]
    with tempfile.TemporaryDirectory() as folder:
        print(report_text(await compare(servers, Path(folder))))


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1:])
