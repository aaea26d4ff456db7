"""Measure the check of a valid call, over the schemas of real servers; run it as a program.

    python tests/bench/bench_checking.py [--rounds 2000] [--strict]

For every tool of the corpus two valid calls are made up: with what is required, and with everything that is
declared. Each is prepared as the pipeline does it (find the compiled validator, look, hand the same object on),
once compiled, and the median of the rounds is that call's cost. `--strict` exits 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from corpus.cases import catalog_of
from corpus.samples import sample
from corpus.servers import listings

from registry.arguments import problems
from registry.arguments.prepare import prepare
from registry.catalog.catalog import ToolWrapper
from registry.schema import schemas

MEDIAN_US = 5.0
P99_US = 20.0
_BATCH = 20


def cost_us(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of one piece of work, in microseconds."""
    taken: list[float] = []
    for _ in range(max(rounds // _BATCH, 1)):
        started = time.perf_counter()
        for _ in range(_BATCH):
            work()
        taken.append((time.perf_counter() - started) / _BATCH * 1e6)
    return statistics.median(taken)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which this share of them lies."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def prepared(wrapper: ToolWrapper, arguments: Any) -> Callable[[], object]:
    """Return the work that checking adds to a valid call."""
    return lambda: prepare(wrapper, arguments)


def refused(wrapper: ToolWrapper) -> Callable[[], object]:
    """Return the work of refusing a call without arguments, with its explanation."""

    def work() -> object:
        outcome = prepare(wrapper, {})
        return problems.explain(wrapper, outcome.problems, {}, checked=outcome.checked)

    return work


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--strict", action="store_true", help="exit 1 where a figure is missed")
    options = parser.parse_args()
    catalog = catalog_of(listings())
    columns: dict[str, list[float]] = {"required": [], "everything": [], "refused": []}
    slowest = ("", 0.0)
    for wrapper in catalog.wrappers:
        schema = wrapper.input_schema
        validator = schemas.validator(schema, wrapper.schema_digest)
        for column, everything in (("required", False), ("everything", True)):
            arguments = sample(schema, schema, everything)
            if not validator.is_valid(arguments):
                continue
            spent = cost_us(prepared(wrapper, arguments), options.rounds)
            columns[column].append(spent)
            slowest = max(slowest, (wrapper.name, spent), key=lambda pair: pair[1])
        if schema.get("required"):
            columns["refused"].append(cost_us(refused(wrapper), min(options.rounds, 200)))
    print(f"{len(catalog.wrappers)} schemas of {len(catalog.servers)} servers; microseconds for one call")
    print(f"{'call with':14}{'calls':>8}{'median':>10}{'p90':>10}{'p99':>10}{'worst':>10}")
    for column, values in columns.items():
        figures = [statistics.median(values), quantile(values, 0.9), quantile(values, 0.99), max(values)]
        name = "(refused)" if column == "refused" else column
        print(f"{name:14}{len(values):>8}" + "".join(f"{figure:>10.2f}" for figure in figures))
    print(f"the slowest valid call: {slowest[0]}, {slowest[1]:.2f} us")
    valid = columns["required"] + columns["everything"]
    met = statistics.median(valid) <= MEDIAN_US and quantile(valid, 0.99) <= P99_US
    print(f"median under {MEDIAN_US:g} us and p99 under {P99_US:g} us: {'yes' if met else 'NO'}")
    return 1 if options.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main())
