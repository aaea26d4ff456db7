"""What holds for every test: how many examples property tests take, and that started gateways find compiled modules."""

from __future__ import annotations

import os

from hypothesis import settings

# Hundreds of gateways are started, and each would compile all of its modules again: a third of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples differ from run to run (no derandomize), and none has a deadline: a busy machine is no failure. Hypothesis
# would choose another profile by itself where CI is set; the same command must mean the same everywhere.
settings.register_profile("default", max_examples=40, deadline=None, derandomize=False)
# For `pytest -m "heavy or hypothesis" --hypothesis-profile thorough`, as `.ci/run` does.
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=250)
settings.load_profile("default")
