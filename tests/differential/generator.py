"""Generate values from JSON Schemas with hypothesis-jsonschema; reads and prints JSON.

It runs in a virtual environment of its own, because the generator does not run with the version of Hypothesis that the
tests use. Input: `{"count": N, "schemas": [...]}`; output: for each schema a list of values, the same in each run.
The list is empty where the generator cannot read the schema.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import from_schema

# Larger schemas take the generator many seconds.
_LARGEST_BYTES = 60_000


def generated(schema: dict[str, Any], count: int) -> list[Any]:
    """Return values that fit a schema."""
    if len(json.dumps(schema)) > _LARGEST_BYTES:
        return []
    found: list[Any] = []
    phases = [Phase.generate]
    relaxed = settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=phases,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:

        @relaxed
        @given(from_schema(schema))
        def collect(value: Any) -> None:
            found.append(value)

        collect()
    except Exception:  # noqa: BLE001 - what the generator cannot read is sampled by hand
        return found
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    plan = json.load(sys.stdin)
    json.dump([generated(schema, plan["count"]) for schema in plan["schemas"]], sys.stdout)
