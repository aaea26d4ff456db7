"""Plan which wrappers a profile lists within its budget, with a reason for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from registry.views.profile import Profile

Reason = Literal["eager", "pinned", "fits", "lazy", "over maxTools", "over maxTokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the plan depends on for one wrapper."""

    name: str
    tokens: int
    pinned: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisclosurePlan:
    """What is listed and what is left to search.

    Attributes:
        reasons: Why each wrapper is listed or not.
        listed: The names of those that are.
        defers: Whether any wrapper is left to search.
    """

    reasons: Mapping[str, Reason]
    listed: frozenset[str]
    defers: bool


def plan_disclosure(
    candidates: Sequence[Candidate],
    profile: Profile,
    *,
    always: int = 1,
    always_tokens: int = 0,
    search: int = 3,
    search_tokens: int = 0,
) -> DisclosurePlan:
    """Decide which wrappers a profile lists; the order of candidates makes no difference.

    `auto` lists everything if the whole fits the budget. Otherwise our own search tools take their share first, then
    pinned wrappers, then the others by priority and name. Pinned wrappers are listed whatever the token budget is, but
    never more than `max_tools`.

    Args:
        candidates: Every wrapper that the profile permits.
        profile: Its disclosure and its budgets.
        always: The number of our own tools that are always listed.
        always_tokens: What those cost.
        search: The number of our own tools that are listed if anything is left to search.
        search_tokens: What those cost.
    """
    names = [candidate.name for candidate in candidates]
    if profile.disclosure == "eager":
        return DisclosurePlan(reasons=dict.fromkeys(names, "eager"), listed=frozenset(names), defers=False)
    # `lazy` has no budget: what is pinned is listed, however much it is.
    if profile.disclosure == "lazy":
        reasons: dict[str, Reason] = {
            candidate.name: "pinned" if candidate.pinned else "lazy" for candidate in candidates
        }
        return _plan_from(reasons)
    total = always_tokens + sum(candidate.tokens for candidate in candidates)
    if always + len(candidates) <= profile.max_tools and total <= profile.max_tokens:
        return DisclosurePlan(reasons=dict.fromkeys(names, "fits"), listed=frozenset(names), defers=False)
    places = profile.max_tools - always - search
    tokens = profile.max_tokens - always_tokens - search_tokens
    reasons = {}
    # One that does not fit is skipped, not the end: a smaller one after it may still have room.
    for candidate in sorted(candidates, key=lambda one: (not one.pinned, -one.priority, one.name)):
        if places <= 0:
            reasons[candidate.name] = "over maxTools"
        elif candidate.tokens > tokens and not candidate.pinned:
            reasons[candidate.name] = "over maxTokens"
        else:
            reasons[candidate.name] = "pinned" if candidate.pinned else "fits"
            places -= 1
            tokens -= candidate.tokens
    return _plan_from(reasons)


def _plan_from(reasons: dict[str, Reason]) -> DisclosurePlan:
    listed = frozenset(name for name, reason in reasons.items() if reason in ("pinned", "fits"))
    return DisclosurePlan(reasons=reasons, listed=listed, defers=len(listed) < len(reasons))
