"""Plan which wrappers a profile lists within its budget, with a reason for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from registry.views.profile import Profile

Reason = Literal["eager", "pinned", "fits", "lazy", "over maxTools", "over maxTokens"]


# Kept free for what a session finds: as many tools as one search shows by default, in a short list a quarter of it.
_FOUND_PLACES: Final = 5
_FOUND_PLACES_SHARE: Final = 4
# And a tenth of the tokens, which in a list of 20,000 is room for five tools of the usual size.
_FOUND_TOKENS_SHARE: Final = 10
# Wrappers that a warning names; `reasons` has all.
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the plan depends on for one wrapper."""

    name: str
    server: str
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
        found_places: How many more may be listed for a session that has found them; None for any number.
        found_tokens: How many tokens those may cost; None for any number.
        warnings: What is pinned in vain, or beyond the budget.
    """

    reasons: Mapping[str, Reason]
    listed: frozenset[str]
    defers: bool
    found_places: int | None = None
    found_tokens: int | None = None
    warnings: tuple[str, ...] = ()


def plan_disclosure(
    candidates: Sequence[Candidate],
    profile: Profile,
    *,
    always: int = 2,
    always_tokens: int = 0,
    search: int = 2,
    search_tokens: int = 0,
) -> DisclosurePlan:
    """Decide which wrappers a profile lists; the order of candidates makes no difference.

    `auto` lists everything if the whole fits the budget. Otherwise our own search tools take their share first, then
    pinned wrappers, then the others by priority, and at equal priority one of each server in turn, by name: a server
    of many tools must not leave others without any. A little is kept free for what sessions find. `lazy` lists what is
    pinned. Pinned wrappers are listed whatever the token budget is, but there are never more than `max_tools`.

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
    lazy = profile.disclosure == "lazy"
    total = always_tokens + sum(candidate.tokens for candidate in candidates)
    # A lazy list that is empty yet offers the search, as it will once servers are connected.
    all_pinned = bool(names) and all(candidate.pinned for candidate in candidates)
    wanted = all_pinned if lazy else total <= profile.max_tokens
    if wanted and always + len(candidates) <= profile.max_tools:
        whole: Reason = "pinned" if lazy else "fits"
        return DisclosurePlan(reasons=dict.fromkeys(names, whole), listed=frozenset(names), defers=False)
    places = profile.max_tools - always - search
    tokens = profile.max_tokens - always_tokens - search_tokens
    kept_places = min(_FOUND_PLACES, places // _FOUND_PLACES_SHARE)
    kept_tokens = max(tokens, 0) // _FOUND_TOKENS_SHARE
    reasons: dict[str, Reason] = {}
    # One that does not fit is skipped, not the end: a smaller one after it may still have room.
    for candidate in _in_turn(candidates):
        if lazy and not candidate.pinned:
            reasons[candidate.name] = "lazy"
        elif places <= (0 if candidate.pinned else kept_places):
            reasons[candidate.name] = "over maxTools"
        elif candidate.tokens > tokens - kept_tokens and not candidate.pinned:
            reasons[candidate.name] = "over maxTokens"
        else:
            reasons[candidate.name] = "pinned" if candidate.pinned else "fits"
            places -= 1
            tokens -= candidate.tokens
    listed = frozenset(name for name, reason in reasons.items() if reason in ("pinned", "fits"))
    return DisclosurePlan(
        reasons=reasons,
        listed=listed,
        defers=True,
        found_places=places,
        found_tokens=None if lazy else max(tokens, 0),
        warnings=tuple(_warnings(candidates, listed, profile, over_tokens=not lazy and tokens < 0)),
    )


def _in_turn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in the order in which they get their places."""
    turns: Counter[tuple[bool, int, str]] = Counter()
    ordered: list[tuple[bool, int, int, str, Candidate]] = []
    for candidate in sorted(candidates, key=lambda one: one.name):
        group = (not candidate.pinned, -candidate.priority, candidate.server)
        ordered.append((group[0], group[1], turns[group], candidate.name, candidate))
        turns[group] += 1
    return [candidate for *_, candidate in sorted(ordered, key=lambda one: one[:-1])]


def _warnings(
    candidates: Sequence[Candidate], listed: frozenset[str], profile: Profile, *, over_tokens: bool
) -> Iterable[str]:
    pinned = sorted(candidate.name for candidate in candidates if candidate.pinned)
    left_out = [name for name in pinned if name not in listed]
    if left_out:
        named = ", ".join(left_out[:_MAX_NAMED])
        more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
        yield f"pinned: {named}{more} not listed, over maxTools ({profile.max_tools})"
    if over_tokens and pinned:
        yield f"pinned: what is pinned takes the list over maxTokens ({profile.max_tokens})"
