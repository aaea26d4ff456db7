"""Malformed calls to the tools of real servers come out as their labels say."""

from __future__ import annotations

import json

from corpus.cases import Case, Outcome, as_labelled, cases, catalog_of, expected, outcome_of, table, wrongly_touched
from corpus.servers import listings


def judged() -> list[tuple[Case, Outcome]]:
    catalog = catalog_of(listings())
    return [(case, outcome_of(case, catalog)) for case in cases()]


def told(judgements: list[tuple[Case, Outcome]]) -> str:
    return "\n".join(
        f"{case.where} {case.tool or ''} {case.sent!r}\n  wanted {case.kind} {expected(case)}"
        f"\n  got    {outcome.did} {outcome.said} {' '.join(outcome.repairs)}"
        for case, outcome in judgements
    )


def test_the_corpus_has_enough_calls_to_enough_tools() -> None:
    every = list(cases())
    assert len(every) >= 300
    assert len({(case.server, case.tool) for case in every}) >= 40
    assert len({(case.server, case.level, case.tool, json.dumps(case.sent)) for case in every}) == len(every)


def test_calls_are_repaired_refused_or_passed_on_as_labelled_and_none_is_wrongly_touched() -> None:
    outcomes = judged()
    print("\n" + table(outcomes))
    touched = [one for one in outcomes if wrongly_touched(*one)]
    assert not touched, told(touched)
    for kind in ("repair", "refuse", "pass"):
        labelled = [one for one in outcomes if one[0].kind == kind]
        wrong = [one for one in labelled if not as_labelled(*one)]
        allowed = 0 if kind == "pass" else len(labelled) // 20
        assert len(wrong) <= allowed, told(wrong)
