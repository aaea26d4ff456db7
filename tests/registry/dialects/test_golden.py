"""The exact output of each dialect for a set of hard schemas. `WRITE_GOLDEN=1` writes the files again, for review."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.dialect_rules import violations

from registry.dialects.client_profiles import DIALECTS
from registry.dialects.definitions import lower_definition

HERE = Path(__file__).parent / "golden"
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))


def outcome(case: str, dialect: str) -> dict[str, Any] | str:
    definition = {"name": "demo__tool", **CASES[case]}
    lowered = lower_definition(definition, dialect)
    assert violations(lowered.definition, dialect) == [], case
    if lowered.definition is definition and not lowered.losses:
        return "as it is"
    sent = {member: value for member, value in lowered.definition.items() if value is not definition.get(member)}
    losses = [
        " ".join(
            [
                "/".join(map(str, one.path)) or "(root)",
                one.keyword,
                f"({one.how})",
                *(["NARROWER"] if one.narrower else []),
            ]
        )
        for one in lowered.losses
    ]
    return {
        "sent": sent,
        "weakened": losses,
        **({"keys": dict(lowered.original_names)} if lowered.original_names else {}),
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hard_schemas_match_the_golden_files(dialect: str) -> None:
    place = HERE / f"{dialect}.json"
    if os.environ.get("WRITE_GOLDEN"):
        text = json.dumps({case: outcome(case, dialect) for case in CASES}, indent=2, ensure_ascii=False)
        place.write_text(text + "\n", encoding="utf-8")
    expected = json.loads(place.read_text(encoding="utf-8"))
    assert list(expected) == list(CASES)
    for case in CASES:
        assert outcome(case, dialect) == expected[case], case
