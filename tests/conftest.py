"""Settings of every test: the number of examples of property tests, and what the test process prepares."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import TypeGuard

import pytest
from hypothesis import settings

from gateway.process.secrets import SECRETS

# Hundreds of gateways are started, and each would compile all of its modules again: a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Keep the state of commands apart from that of the user of this machine.
_STATE = tempfile.TemporaryDirectory(prefix="typegate-tests-")
os.environ["TYPEGATE_STATE_DIR"] = _STATE.name

# Every run uses the same examples, so that only a change of the code can cause a failure. A busy machine is not a
# failure, so there are no deadlines. Hypothesis would choose another profile where CI is set, but the same command must
# mean the same everywhere.
settings.register_profile("default", max_examples=20, deadline=None, derandomize=True)
# For `pytest -m "heavy or hypothesis" --hypothesis-profile thorough`, as `.ci/run` does.
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=50)
# Other examples each time, to look for what is not known yet: `pytest -m hypothesis --hypothesis-profile explore`.
settings.register_profile("explore", parent=settings.get_profile("default"), max_examples=1_000, derandomize=False)
settings.load_profile("default")


# The files that took longest, longest first. Started last, each of them leaves the other process idle for its time.
_SLOW_FILES = (
    "differential/test_differential.py",
    "registry/schema/test_failing_parts.py",
    "corpus/test_flagged.py",
    "conformance/test_signing_in.py",
    "page/test_tasks.py",
    "deploy/test_constraints.py",
    "e2e/test_process_starts.py",
    "e2e/test_lock.py",
    "gateway/upstream/test_watching.py",
    "cluster/test_shared_limits.py",
    "e2e/test_required_tasks.py",
    "e2e/test_overlay.py",
    "e2e/test_large_results.py",
    "gateway/upstream/test_retries.py",
    "e2e/test_start_errors.py",
    "e2e/test_first_lists.py",
    "e2e/test_loops.py",
    "e2e/test_server_sandbox.py",
    "corpus/test_schemas.py",
    "e2e/test_inapplicable_rules.py",
    "gateway/downstream/test_callers.py",
    "e2e/test_command_snapshots.py",
    "e2e/test_subscriptions.py",
    "faults/test_unbounded_listings.py",
    "cluster/test_change_persistence.py",
    "e2e/test_scorecard.py",
    "deploy/test_monitoring.py",
)


# Folders whose tests start programs, which takes about a second each.
_SLOW_FOLDERS = ("cluster", "deploy", "e2e", "faults")
_SLOW_UNIT_FOLDERS = ("admin", "demo", "downstream", "fleet", "serving", "telemetry", "upstream")
# Files of tests that start a program for each rare input, or for rules that unit tests cover too. Their tests are
# heavy, so that the default run takes minutes.
_RARE_INPUTS = (
    "differential/test_differential.py",
    "e2e/test_argument_bounds.py",
    "e2e/test_argument_documentation.py",
    "e2e/test_descriptions.py",
    "e2e/test_dialects.py",
    "e2e/test_disclosure_limits.py",
    "e2e/test_filters.py",
    "e2e/test_hostile_hooks.py",
    "e2e/test_shared_uris.py",
    "e2e/test_sign_in_interrupted.py",
    "e2e/test_standard_input.py",
    "e2e/test_wrapper_names.py",
    "faults/test_large_parts.py",
    "faults/test_long_errors.py",
    "faults/test_long_identifiers.py",
    "gateway/telemetry/test_otel_environment.py",
)
# Parameters that choose the protocol era.
_ERAS = {"era", "modern", "version"}
# A slow test runs at most this often by default, a few of its other variants are heavy tests, the rest are exhaustive.
_MOST_VARIANTS = 1
_MOST_HEAVY_VARIANTS = 1
# The folders in which a test that is heavy itself runs at most this often; its other variants are exhaustive.
_HEAVY_FOLDERS = {"page": 1, "e2e": 1, "faults": 1, "cluster": 1}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most variants of slow tests as heavy or exhaustive, and start slow files first."""
    _mark_variants(items)
    if settings.default is settings.get_profile("thorough"):
        # With its own number of examples, a test would only repeat what it does by default.
        items[:] = [item for item in items if item.get_closest_marker("heavy") or not _has_own_number(item)]
    rare = {Path(__file__).parent / name for name in _RARE_INPUTS}
    for item in items:
        if item.path in rare and item.get_closest_marker("exhaustive") is None:
            item.add_marker(pytest.mark.heavy)
    _sort_files(items)


def _mark_variants(items: list[pytest.Item]) -> None:
    """Mark all but a few variants of each slow test as heavy or exhaustive, so that the default run takes minutes.

    One era of each case remains, and one case. Which ones is derived from the name of the test, so that both eras are
    covered by about the same number of tests, and every run chooses the same.
    """
    tests = Path(__file__).parent
    slow = [tests / name for name in _SLOW_FOLDERS] + [tests / "gateway" / name for name in _SLOW_UNIT_FOLDERS]
    families: dict[tuple[Path, str], dict[str, list[pytest.Function]]] = {}
    for item in items:
        if _is_slow(item) and any(item.path.is_relative_to(folder) for folder in slow):
            case = repr({name: value for name, value in item.callspec.params.items() if name not in _ERAS})
            families.setdefault((item.path, item.originalname), {}).setdefault(case, []).append(item)
    for (_, name), cases in families.items():
        chosen = zlib.crc32(name.encode())
        kept = [eras[chosen % len(eras)] for eras in cases.values()]
        first = chosen % max(1, len(kept) - _MOST_VARIANTS + 1)
        kept = kept[first : first + _MOST_VARIANTS]
        others = [item for eras in cases.values() for item in eras if item not in kept]
        first = chosen % max(1, len(others) - _MOST_HEAVY_VARIANTS + 1)
        for at, item in enumerate(others):
            is_heavy = first <= at < first + _MOST_HEAVY_VARIANTS
            item.add_marker(pytest.mark.heavy if is_heavy else pytest.mark.exhaustive)
    for (path, name), variants in _heavy_variants(items).items():
        most = _HEAVY_FOLDERS[path.relative_to(tests).parts[0]]
        first = zlib.crc32(name.encode()) % max(1, len(variants) - most + 1)
        for item in (*variants[:first], *variants[first + most :]):
            item.add_marker(pytest.mark.exhaustive)


def _heavy_variants(items: list[pytest.Item]) -> dict[tuple[Path, str], list[pytest.Function]]:
    """Return the variants of each test that is marked as heavy, by file and name."""
    found: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        is_variant = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if is_variant and folder in _HEAVY_FOLDERS and item.get_closest_marker("heavy"):
            found.setdefault((item.path, item.originalname), []).append(item)
    return found


def _has_own_number(item: pytest.Item) -> bool:
    """Return whether a property test sets its number of examples itself."""
    own = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
    return own is not None and own.max_examples != settings.get_profile("thorough").max_examples


def _is_slow(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Return whether the test is a variant that may wait for a program. Heavy tests are not run by default anyway."""
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and inspect.iscoroutinefunction(item.function)
        and item.get_closest_marker("heavy") is None
    )


def _sort_files(items: list[pytest.Item]) -> None:
    """Start slow files first, then files with many tests; the tests of a file stay together and in order."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(_SLOW_FILES)}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -counts[item.path]))


def pytest_collection_finish() -> None:
    """Exclude the objects that exist now from garbage collection.

    Traversing the objects of all tests takes a third of a second, and would delay a random test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that is run in the test's process sets levels and handlers; the next test begins with its own."""
    loggers = [logging.getLogger(name) for name in (None, "gateway", "gateway.calls", "gateway.fleet")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(autouse=True)
def secrets_as_before() -> Iterator[None]:
    """Forget what a test hides: the process of a user has one configuration, that of the tests has hundreds."""
    before = {
        name: copy(getattr(SECRETS, name)) for name in ("_forms", "_forms_by_owner", "_longest_first", "_by_start")
    }
    yield
    for name, value in before.items():
        setattr(SECRETS, name, value)
