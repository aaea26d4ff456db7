"""What a profile lists, from its budget: a deterministic plan with a reason for each wrapper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from registry.views.profile import Profile

Reason = Literal["eager", "pinned", "fits", "lazy", "over maxTools", "over maxTokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One wrapper as the planner sees it."""

    name: str
    tokens: int
    pinned: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is listed and what is left to search.

    Attributes:
        reasons: Why each wrapper is listed, or is not.
        listed: The names that are.
        defers: Whether anything is left to search.
    """

    reasons: Mapping[str, Reason]
    listed: frozenset[str]
    defers: bool


def plan(
    candidates: Sequence[Candidate],
    profile: Profile,
    *,
    always: int = 1,
    always_tokens: int = 0,
    finders: int = 3,
    finders_tokens: int = 0,
) -> Plan:
    """Decide what a profile lists; depends on nothing but what is given, in no order.

    `auto` lists everything that fits the budget together; where it does not, our own tools for finding the
    rest take their share first, then pinned wrappers, then the others by priority and name. A pinned wrapper is
    listed whatever the token budget says, but never more than `max_tools`.

    Args:
        candidates: Every wrapper that the profile permits.
        profile: Its disclosure and its budgets.
        always: How many tools of our own are always listed.
        always_tokens: What those cost.
        finders: How many more are listed where something is left to search.
        finders_tokens: What those cost.
    """
    names = [one.name for one in candidates]
    if profile.disclosure == "eager":
        return Plan(reasons=dict.fromkeys(names, "eager"), listed=frozenset(names), defers=False)
    if profile.disclosure == "lazy":
        reasons: dict[str, Reason] = {one.name: "pinned" if one.pinned else "lazy" for one in candidates}
        return _plan(reasons)
    total = always_tokens + sum(one.tokens for one in candidates)
    if always + len(candidates) <= profile.max_tools and total <= profile.max_tokens:
        return Plan(reasons=dict.fromkeys(names, "fits"), listed=frozenset(names), defers=False)
    places = profile.max_tools - always - finders
    tokens = profile.max_tokens - always_tokens - finders_tokens
    reasons = {}
    for one in sorted(candidates, key=lambda one: (not one.pinned, -one.priority, one.name)):
        if places <= 0:
            reasons[one.name] = "over maxTools"
        elif one.tokens > tokens and not one.pinned:
            reasons[one.name] = "over maxTokens"
        else:
            reasons[one.name] = "pinned" if one.pinned else "fits"
            places -= 1
            tokens -= one.tokens
    return _plan(reasons)


def _plan(reasons: dict[str, Reason]) -> Plan:
    listed = frozenset(name for name, reason in reasons.items() if reason in ("pinned", "fits"))
    return Plan(reasons=reasons, listed=listed, defers=len(listed) < len(reasons))
