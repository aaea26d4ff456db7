"""How many small errors in security-relevant code the tests notice: `python tests/bench/mutants.py --sample 40 policy`.

Each mutant is one change to one expression or statement, in a copy of the repository. It is killed if a test of its
area fails or does not end. Survivors are printed with their line. The sample depends on the seed alone.
`--quick` leaves out the tests that start gateways: its survivors are those that tests of single parts do not notice.
`--at registry/lock/review.py:283` examines all mutants of a line, for example of survivors.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
# The source files and the tests of each area, the tests that find most mutants first.
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "policy": (
        ("registry/policy/*.py",),
        (
            "tests/registry/policy",
            "tests/registry/catalog/test_unmatched.py",
            "tests/gateway/config/test_policy.py",
            "tests/gateway/calls/test_profile_views.py",
            "tests/registry/views/test_narrowing.py",
            "tests/gateway/admin/test_policy_explained.py",
            "tests/gateway/access/oauth/test_omitted_claims.py",
            "tests/e2e/test_inapplicable_rules.py",
            "tests/e2e/test_policy.py",
        ),
    ),
    "lock": (
        ("registry/lock/*.py", "gateway/fleet/lock_file.py"),
        (
            "tests/registry/lock",
            "tests/gateway/fleet/test_lock_files.py",
            "tests/gateway/fleet/test_change_rows.py",
            "tests/gateway/fleet/test_decisions.py",
            "tests/e2e/test_lock.py",
            "tests/e2e/test_lock_versions.py",
        ),
    ),
    "access": (
        ("gateway/access/*.py", "gateway/access/oauth/*.py"),
        (
            "tests/gateway/access",
            "tests/gateway/downstream/test_callers.py",
            "tests/gateway/fleet/test_reload.py",
            "tests/e2e/test_keys.py",
            "tests/e2e/test_identity.py",
            "tests/e2e/test_tokens.py",
        ),
    ),
    "audit": (
        ("gateway/audit/*.py",),
        (
            "tests/gateway/audit",
            "tests/gateway/calls/test_pipeline.py",
            "tests/gateway/admin/test_merging.py",
            "tests/e2e/test_audit.py",
        ),
    ),
    "http": (
        ("gateway/http/*.py",),
        (
            "tests/gateway/http",
            "tests/gateway/downstream/test_framing.py",
            "tests/gateway/downstream/test_endpoint.py",
            "tests/gateway/upstream/transport/test_streamable_http.py",
            "tests/gateway/upstream/transport/test_cookies.py",
            "tests/fuzz",
        ),
    ),
    "approvals": (
        ("gateway/calls/approval_*.py",),
        (
            "tests/gateway/calls/test_approval_store.py",
            "tests/gateway/calls/test_approval_requests.py",
            "tests/gateway/process/test_owned_tasks.py",
            "tests/gateway/cluster/test_parent_store.py",
            "tests/e2e/test_approvals.py",
        ),
    ),
    "sandbox": (
        ("gateway/process/confine.py", "gateway/upstream/sandbox*.py"),
        (
            "tests/gateway/upstream/test_sandbox_rules.py",
            "tests/gateway/upstream/test_sandbox.py",
            "tests/gateway/process/test_confine.py",
            "tests/e2e/test_server_sandbox.py",
            "tests/e2e/test_sandboxes.py",
            "tests/e2e/test_sandbox_limits.py",
        ),
    ),
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# Few tests compare logs, and a mutation would change only their words.
_LOGGING = ("_log.", "log.", "logger.", "logging.")
# A mutant is killed if its tests take this many times as long as without a mutant, and at least so many seconds.
_PATIENCE = 5
_LEAST_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the text between two offsets of a file is replaced."""

    path: Path
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self) -> str:
        """Return where the change is, and what it is."""
        before = (ROOT / self.path).read_bytes()[self.start : self.end].decode()
        return f"{self.path}:{self.line}: {' '.join(before.split())[:90]} → {' '.join(self.text.split())[:90]}"


def mutants_of(path: Path) -> list[Mutant]:
    """Return every mutant of a file, in the order of its lines."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, changed in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = "pass" if changed is None else f"({ast.unparse(changed)})" if isinstance(node, ast.expr) else ""
        found.append(Mutant(path, node.lineno, begin, end, text or ast.unparse(changed or node)))
    return found


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt | None]]:
    """Yield a node and what replaces it; None stands for `pass`. Only bodies of functions are changed."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _changes_within(statement)


def _changes_within(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt | None]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise | ast.Assert | ast.JoinedStr):
        return
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith(_LOGGING):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            yield node, None
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, ast.Compare(node.left, [_OPPOSITE[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED and not isinstance(node.left, ast.Constant):
        yield node, ast.BinOp(node.left, _SWAPPED[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none_or_bool(node.value):
        yield node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue | ast.Break):
        yield node, ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    for child in ast.iter_child_nodes(node):
        # Annotations say nothing at run time.
        if not (isinstance(node, ast.AnnAssign) and child is node.annotation):
            yield from _changes_within(child)


def _is_none_or_bool(node: ast.expr) -> bool:
    """Return whether `None` in the place of a value says the same (for `False`), or the value is changed elsewhere."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def fails(copy: Path, tests: tuple[str, ...], patience_s: float | None = None) -> str:
    """Return the end of what the first failing test printed; empty if all of them pass within their time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", "not exhaustive", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=patience_s)
    except subprocess.TimeoutExpired:
        return "the tests did not end"
    return done.stdout[-2000:] if done.returncode else ""


def kills(mutant: Mutant, copy: Path, tests: tuple[str, ...], patience_s: float) -> bool:
    """Return whether a test fails on a mutant in this copy of the repository."""
    target = copy / mutant.path
    original = target.read_bytes()
    target.write_bytes(mutant.apply(original))
    try:
        return bool(fails(copy, tests, patience_s))
    finally:
        target.write_bytes(original)


def examine(
    area: str, count: int, seed: int, copies: SimpleQueue[Path], *, quick: bool, lines: list[str]
) -> tuple[int, list[Mutant]]:
    """Return the number of mutants examined in an area, and those that survived; only those of `lines` if given."""
    patterns, tests = AREAS[area]
    if quick:
        tests = tuple(path for path in tests if not path.startswith("tests/e2e"))
    paths = sorted({path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)})
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    if lines:
        chosen = [mutant for mutant in mutants if f"{mutant.path}:{mutant.line}" in lines]
    else:
        chosen = random.Random(seed).sample(mutants, min(count, len(mutants)))
    if not chosen:
        raise SystemExit(f"{area}: no mutant is on these lines")
    copy = copies.get()
    began_s = time.monotonic()
    if without_mutant := fails(copy, tests):
        raise SystemExit(f"{area}: the tests fail without a mutant\n{without_mutant}")
    patience_s = max(_LEAST_PATIENCE_S, _PATIENCE * (time.monotonic() - began_s))
    copies.put(copy)
    print(f"{area}: {len(mutants)} mutants in {len(paths)} files, {len(chosen)} of them run", flush=True)

    def survives(mutant: Mutant) -> bool:
        copy = copies.get()
        try:
            began_s = time.monotonic()
            killed = kills(mutant, copy, tests, patience_s)
        finally:
            copies.put(copy)
        if not killed:
            print(f"  survived ({time.monotonic() - began_s:.0f} s): {mutant.describe()}", flush=True)
        return not killed

    with ThreadPoolExecutor(copies.qsize()) as pool:
        outcomes = list(pool.map(survives, chosen))
    return len(chosen), [mutant for mutant, survived in zip(chosen, outcomes, strict=True) if survived]


def main() -> None:
    """Examine the named areas, and print the share of killed mutants of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)}; all of them by default")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at", action="append", default=[], metavar="FILE:LINE", help="examine this line; repeatable")
    parser.add_argument("--quick", action="store_true", help="without the tests that start gateways")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            copy = Path(folder) / str(job)
            left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", "node_modules")
            shutil.copytree(ROOT, copy, ignore=left_out)
            copies.put(copy)
        for area in options.areas or AREAS:
            number, survivors = examine(
                area, options.sample, options.seed, copies, quick=options.quick, lines=options.at
            )
            print(f"{area}: {1 - len(survivors) / number:.0%} of {number} killed", flush=True)


if __name__ == "__main__":
    main()
