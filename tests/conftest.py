"""How many examples property tests take: few by default, many where there is time for them."""

from __future__ import annotations

from hypothesis import settings

# Examples differ from run to run (no derandomize), and none has a deadline: a busy machine is no failure. Hypothesis
# would choose another profile by itself where CI is set; the same command must mean the same everywhere.
settings.register_profile("default", max_examples=40, deadline=None, derandomize=False)
# For `pytest -m "heavy or hypothesis" --hypothesis-profile thorough`, as `.ci/run` does.
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=250)
settings.load_profile("default")
