"""Generated calls to mock servers that validate every request; run it as a program.

    python tests/bench/bench_openapi_calls.py [--calls 500] [--only WORD] [--all]

Prism (`@stoplight/prism-cli`) serves each document, and a real gateway calls it with arguments that are generated from
the schemas of the tools. The exit code is 1 if the mock server or the gateway rejects a call. With `--all`, the
documents of `bench_openapi.py` are served too; defects of Prism, which `mock_apis.py` names, reject some calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.upstreams import published_apis
from support.upstreams.mock_apis import DOCUMENTS, MockServerEnded, rejected_calls


def main() -> None:
    """Print the calls of each document, and those that were rejected."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=500, help="calls to each document")
    options.add_argument("--only", default="", help="only documents whose name contains this word")
    options.add_argument("--all", action="store_true", help="also the documents of bench_openapi.py")
    chosen = options.parse_args()
    is_clean = True
    files = dict.fromkeys([*DOCUMENTS, *(published_apis.DOCUMENTS if chosen.all else ())])
    for file in (file for file in files if chosen.only in file):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                made, rejected = anyio.run(partial(rejected_calls, file, Path(folder), chosen.calls))
            except MockServerEnded as ended:
                print(f"{file}: not served by Prism: {ended}", flush=True)
                continue
        print(f"{file}: {made} calls, {len(rejected)} rejected, {time.monotonic() - began_s:.0f} s", flush=True)
        print(*rejected[:20], sep="\n", end="\n" if rejected else "")
        is_clean = is_clean and made >= chosen.calls and not rejected
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
