"""What holds for every test: how many examples property tests take, and what the process of the tests keeps ready."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Hundreds of gateways are started, and each would compile all of its modules again: a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What commands keep must not end up with what the user of this machine keeps.
_STATE = tempfile.TemporaryDirectory(prefix="typegate-tests-")
os.environ["TYPEGATE_STATE_DIR"] = _STATE.name

# The same examples in every run, so that a change is judged by itself; none has a deadline: a busy machine is no
# failure. Hypothesis would choose another profile by itself where CI is set; the same command must mean the same
# everywhere.
settings.register_profile("default", max_examples=40, deadline=None, derandomize=True)
# For `pytest -m "heavy or hypothesis" --hypothesis-profile thorough`, as `.ci/run` does.
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=250)
# Other examples each time, to look for what is not known yet: `pytest -m hypothesis --hypothesis-profile explore`.
settings.register_profile("explore", parent=settings.get_profile("default"), max_examples=1_000, derandomize=False)
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """Leave what is there by now to itself.

    To look through all tests takes the garbage collector a third of a second, in whichever test it has its turn.
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
