"""Malformed calls to the tools of real servers come out as their labels say."""

from __future__ import annotations

import json
from collections import Counter

from corpus.cases import Case, Outcome, as_labelled, cases, catalog_of, expected, outcome_of, table, wrongly_touched
from corpus.samples import distortions, sample
from corpus.servers import listings

from registry.arguments.prepare import prepare
from registry.arguments.unwrapping import may_be_wrapped
from registry.schema import schemas


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
        assert not wrong, told(wrong)


def test_right_calls_to_every_tool_are_found_again_in_what_careless_callers_make_of_them() -> None:
    counts: dict[str, Counter[str]] = {}
    for wrapper in catalog_of(listings()).wrappers:
        schema = wrapper.input_schema
        validator = schemas.validator(schema, wrapper.schema_digest)
        for everything in (False, True):
            call = sample(schema, schema, everything)
            assert validator.is_valid(call), wrapper.name
            if not call:
                continue
            for kind, sent in distortions(call, validator.is_valid):
                prepared = prepare(wrapper, sent)
                plain = json.loads(sent) if kind == "all of it" else sent
                if isinstance(plain, dict) and validator.is_valid(plain):
                    # An open schema that requires nothing takes it: only what is wrapped in it is taken out.
                    unwrapped = may_be_wrapped(plain)
                    assert prepared.arguments in ((plain, call) if unwrapped else (plain,)), (wrapper.name, kind)
                    outcome = "repaired" if prepared.repairs else "valid"
                elif prepared.problems:
                    outcome = "refused"
                else:
                    assert json.dumps(prepared.arguments, sort_keys=True) == json.dumps(call, sort_keys=True), (
                        wrapper.name,
                        kind,
                        sent,
                    )
                    outcome = "repaired"
                counts.setdefault(kind, Counter())[outcome] += 1
    print(f"\n{'right calls, distorted':32}{'repaired':>10}{'refused':>10}{'valid as they are':>20}")
    for kind, count in counts.items():
        print(f"{kind:32}{count['repaired']:>10}{count['refused']:>10}{count['valid']:>20}")
    total = sum(counts.values(), Counter())
    # Two of 4,000: what was meant cannot be told from what was written.
    assert total["refused"] <= 2, (total, counts)
