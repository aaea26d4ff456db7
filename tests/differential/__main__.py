"""Compare all published servers and print the report of the guide's page on compatibility.

Run `PYTHONPATH=.:tests python -m differential [ALIAS ...]` in a checkout; it takes about a quarter of an hour.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anyio
from differential.comparison import compare, report_text
from differential.packages import SERVERS


async def _main(aliases: list[str]) -> None:
    servers = [one for one in SERVERS if not aliases or one.alias in aliases]
    with tempfile.TemporaryDirectory() as folder:
        print(report_text(await compare(servers, Path(folder))))


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1:])
