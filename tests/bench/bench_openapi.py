"""Compare the tools that the gateway and FastMCP's OpenAPI provider create from published documents. A program.

    python tests/bench/bench_openapi.py [--only WORD] [--limit 120] [--dialects]

Each document is converted in a process of its own, first by the gateway (parsed, converted and checked, as when it
lists the tools of an API), then by FastMCP. A tool has dangling references if one of them does not resolve inside the
tool. The times are those of the processor, without the start of the process. With `--dialects`, all tools are lowered
to every dialect instead, and the program prints what hosts and model APIs refuse.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.clients.installed import venv
from support.upstreams import published_apis

FASTMCP: Final = ("fastmcp==4.2.3",)
PEER: Final = Path(__file__).parent / "peers/fastmcp_openapi.py"
HEADINGS: Final = ("document", "ops", "listed", "quar.", "dangling", "s", "MB", "listed", "dangling", "s", "MB", "")
COLUMNS: Final = "{:<38} {:>6} {:>7} {:>6} {:>9} {:>7} {:>7}  {:>7} {:>9} {:>7} {:>7}  {}"


def report_of(command: list[str], limit_s: float) -> dict[str, Any]:
    """Run a program that prints a report, and return the report, or the reason for its absence."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def cells(report: dict[str, Any], *keys: str) -> list[str]:
    """Return the values of a report, with a dash for those that are missing."""
    return [
        f"{report.get(key, '–'):,}" if isinstance(report.get(key), int) else str(report.get(key, "–")) for key in keys
    ]


def report_own(path: Path) -> None:
    """Print what the gateway makes of a document, as JSON."""
    found = published_apis.listed_api(path)
    report = {
        "operations": found.operations,
        "listed": len(found.listing.tools),
        "quarantined": found.quarantined,
        "dangling": sum(any(published_apis.dangling_references(dict(tool))) for tool in found.listing.tools),
        "seconds": round(found.took_s, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
    }
    print(json.dumps(report))


def report_dialects(word: str, folder: Path) -> None:
    """Print how many tools of each document fit every dialect, and those that do not."""
    for file in (file for file in published_apis.DOCUMENTS if word in file):
        tools = published_apis.listed_api(published_apis.published(file, folder)).listing.tools
        began_s = time.process_time()
        problems = [problem for tool in tools for problem in published_apis.dialect_problems(dict(tool))]
        print(
            f"{file}: {len(tools)} tools, {len(problems)} problems, {time.process_time() - began_s:.1f} s", flush=True
        )
        print(*problems[:20], sep="\n", end="\n" if problems else "")


def main() -> None:
    """Print the table, one document per row."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="only documents whose name contains this word")
    options.add_argument("--limit", type=float, default=120, help="seconds that a document may take")
    options.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--dialects", action="store_true", help="lower all tools to every dialect")
    chosen = options.parse_args()
    if chosen.own is not None:
        report_own(chosen.own)
        return
    if chosen.dialects:
        with tempfile.TemporaryDirectory() as folder:
            report_dialects(chosen.only, Path(folder))
        return
    peer = str(venv("fastmcp-openapi", FASTMCP))
    print(COLUMNS.format("", "", "typegate", "", "", "", "", "fastmcp", "", "", "", ""))
    print(
        COLUMNS.format("document", "ops", "listed", "quar.", "dangling", "s", "MB", "listed", "dangling", "s", "MB", "")
    )
    with tempfile.TemporaryDirectory() as folder:
        for file in published_apis.DOCUMENTS:
            if chosen.only not in file:
                continue
            path = str(published_apis.published(file, Path(folder)))
            own = report_of([sys.executable, __file__, "--own", path], chosen.limit)
            other = report_of([peer, str(PEER), path], chosen.limit)
            quarantined = own.get("quarantined", {})
            reasons = ", ".join(f"{count} {code}" for code, count in quarantined.items())
            remark = "; ".join(text for text in (reasons, own.get("error", ""), other.get("error", "")) if text)
            numbers = cells(own, "operations", "listed")
            numbers += [str(sum(quarantined.values())), *cells(own, "dangling", "seconds", "peak_mb")]
            numbers += cells(other, "listed", "dangling", "seconds", "peak_mb")
            print(COLUMNS.format(file[-38:], *numbers, remark), flush=True)


if __name__ == "__main__":
    main()
