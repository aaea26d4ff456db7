"""Malformed calls to tools of real servers have the labeled outcomes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from corpus.cases import Case, Outcome, as_labelled, cases, catalog_of, expected, outcome_of, table, wrongly_touched
from corpus.samples import distortions, sample
from corpus.servers import listings

from registry.arguments.coercion import may_be_wrapped
from registry.arguments.prepare import prepare
from registry.schema import schemas

# On a new machine, the installation of seventeen servers takes three minutes.
needs_real_servers = pytest.mark.heavy


def judged() -> list[tuple[Case, Outcome]]:
    catalog = catalog_of(listings())
    return [(case, outcome_of(case, catalog)) for case in cases()]


def describe_judgements(judgements: list[tuple[Case, Outcome]]) -> str:
    return "\n".join(
        f"{case.where} {case.tool or ''} {case.sent!r}\n  wanted {case.kind} {expected(case)}"
        f"\n  got    {outcome.did} {outcome.detail} {' '.join(outcome.repairs)}"
        for case, outcome in judgements
    )


def test_corpus_has_enough_calls_to_enough_tools() -> None:
    every = list(cases())
    assert len(every) >= 300
    assert len({(case.server, case.tool) for case in every}) >= 40
    assert len({(case.server, case.level, case.tool, json.dumps(case.sent)) for case in every}) == len(every)


@needs_real_servers
def test_calls_are_repaired_refused_or_forwarded_as_labeled() -> None:
    outcomes = judged()
    print("\n" + table(outcomes))
    touched = [one for one in outcomes if wrongly_touched(*one)]
    assert not touched, describe_judgements(touched)
    for kind in ("repair", "refuse", "pass"):
        labelled = [one for one in outcomes if one[0].kind == kind]
        wrong = [one for one in labelled if not as_labelled(*one)]
        assert not wrong, describe_judgements(wrong)


@needs_real_servers
def test_valid_calls_are_recovered_from_careless_variants() -> None:
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
                    # An open schema that requires nothing accepts a wrapper object; only its content is unwrapped.
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
    # Two calls of 4,000 are ambiguous.
    assert total["refused"] <= 2, (total, counts)
