"""Feed every parser with mutated input: `python -m tests.fuzz --inputs 1000000`.

The inputs depend on the seed alone. The first fault of each target ends it, with the bytes and the number to see it
again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import resource
import sys
import time
import traceback

from tests.fuzz.targets import TARGETS, Target

MAX_SECONDS = 5.0
"""One input: more is a stall. A check that is bounded takes milliseconds."""
MAX_GROWTH_KIB = 200 * 1024
"""The bound for the growth of peak memory after a tenth of the run; all caches are bounded and full by then."""


async def feed(target: Target, inputs: int, seed: int, first: int = 0) -> str | None:
    """Feed one target; returns what is wrong, if anything is.

    Args:
        target: The target.
        inputs: The number of inputs.
        seed: The seed of the random inputs.
        first: The number of the first one.
    """
    warm_kib = 0
    for number in range(first, first + inputs):
        rng = random.Random(f"{seed}/{number}")
        data = target.input(rng)
        began_s = time.perf_counter()
        try:
            await target.run(data, rng)
        except Exception:  # noqa: BLE001 - boundary: whatever a parser raises is what is looked for
            return f"input {number} of seed {seed}: {data!r}\n{traceback.format_exc()}"
        if (took_s := time.perf_counter() - began_s) > MAX_SECONDS:
            return f"input {number} of seed {seed} took {took_s:.1f} s: {data!r}"
        if number == first + inputs // 10:
            warm_kib = _peak_kib()
    grown_kib = _peak_kib() - warm_kib
    if inputs > 10_000 and grown_kib > MAX_GROWTH_KIB:
        return f"memory grew by {grown_kib} KiB"
    return None


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Run from the command line; 1 where something is wrong."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=20_000, help="of each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what the inputs are made from (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to see one again")
    names = [target.name for target in TARGETS]
    parser.add_argument("--target", choices=names, action="append", help="which parser; all when absent")
    options = parser.parse_args()
    wrong = 0
    for target in TARGETS:
        if options.target and target.name not in options.target:
            continue
        began_s = time.perf_counter()
        fault = asyncio.run(feed(target, options.inputs, options.seed, options.first))
        took_s = time.perf_counter() - began_s
        print(f"{target.name:15} {'FAULT' if fault else 'ok':5} {took_s:6.1f} s", flush=True)
        if fault:
            wrong += 1
            print(fault, file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
