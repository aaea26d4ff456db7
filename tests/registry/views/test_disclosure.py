"""Places of a list that is too short for all tools."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from registry.views.disclosure import Candidate, plan_disclosure
from registry.views.profile import Profile

AUTO = Profile(disclosure="auto", max_tools=24, max_tokens=100_000)


def candidates(server: str, count: int, *, tokens: int = 10, pinned: bool = False) -> list[Candidate]:
    return [
        Candidate(name=f"{server}__t{number:03}", server=server, tokens=tokens, pinned=pinned)
        for number in range(count)
    ]


def test_servers_share_places_regardless_of_name_order() -> None:
    plan = plan_disclosure([*candidates("a", 100), *candidates("b", 3), *candidates("z", 100)], AUTO)
    assert Counter(name[0] for name in plan.listed) == {"a": 6, "z": 6, "b": 3}
    assert {"a__t000", "b__t002", "z__t005"} <= plan.listed
    assert plan.found_places == 5
    favoured = [replace(one, priority=1) for one in candidates("z", 100)]
    plan = plan_disclosure([*candidates("a", 100), *favoured], AUTO)
    assert {name[0] for name in plan.listed} == {"z"}


def test_servers_share_tokens() -> None:
    profile = replace(AUTO, max_tools=100, max_tokens=1_000)
    plan = plan_disclosure([*candidates("a", 50, tokens=100), *candidates("b", 50, tokens=100)], profile)
    assert Counter(name[0] for name in plan.listed) == {"a": 5, "b": 4}
    assert plan.found_tokens == 100


def test_pinned_tools_over_the_budget_are_reported() -> None:
    plan = plan_disclosure(candidates("a", 30, pinned=True), AUTO)
    assert len(plan.listed) == 20
    names = ", ".join(f"a__t{number:03}" for number in range(20, 25))
    assert plan.warnings == (f"pinned: {names} and 5 more not listed, over maxTools (24)",)
    plan = plan_disclosure(
        [*candidates("a", 3, tokens=600, pinned=True), *candidates("b", 1)], replace(AUTO, max_tokens=1_000)
    )
    assert len(plan.listed) == 3
    assert plan.warnings == ("pinned: the pinned wrappers exceed maxTokens (1000)",)


def test_lazy_disclosure_respects_max_tools() -> None:
    lazy = replace(AUTO, disclosure="lazy", max_tools=10)
    plan = plan_disclosure([*candidates("a", 30, pinned=True), *candidates("b", 5)], lazy)
    assert len(plan.listed) == 6
    assert plan.reasons["b__t000"] == "lazy"
    assert plan.reasons["a__t029"] == "over maxTools"
    assert plan.found_places == 0
    few = plan_disclosure(candidates("a", 8, pinned=True), lazy)
    assert (len(few.listed), few.defers) == (8, False)
