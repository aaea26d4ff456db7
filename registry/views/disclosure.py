"""Decide which wrappers a profile lists within its token budget, with a reason for each wrapper.

A *deferred* wrapper is not listed. Models find it with the gateway's search tools and can then call it.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from registry.views.profile import Profile

_LOWER, _UPPER, _DIGITS = (text.encode() for text in (string.ascii_lowercase, string.ascii_uppercase, string.digits))
_BREAKS: Final = b"\t\n\r"


def _classes(*, lower: str, upper: str, digit: str, space: str, line: str, mark: str) -> bytes:
    """Return a table for `bytes.translate` that maps each byte to the letter of its class.

    The classes `2` to `4` are the first bytes of UTF-8 sequences of that length; `c` is for continuation bytes.
    """
    table = bytearray(ord(mark) for _ in range(0x80))
    for members, letter in ((_LOWER, lower), (_UPPER, upper), (_DIGITS, digit), (b" ", space), (_BREAKS, line)):
        for byte in members:
            table[byte] = ord(letter)
    return bytes(table) + b"c" * 0x40 + b"2" * 0x20 + b"3" * 0x10 + b"4" * 0x10


_KINDS: Final = _classes(lower="a", upper="A", digit="0", space=" ", line="n", mark=".")
_WORDS: Final = _classes(lower="a", upper="a", digit="0", space=" ", line=" ", mark=" ")
_MARKS: Final = _classes(lower=" ", upper=" ", digit=" ", space=" ", line=" ", mark=".")
# Sixteen lower-case letters in a row are probably encoded data, which has more tokens than words of the same length.
_ENCODED: Final = b"a" * 16


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text.

    The weights were fitted to the mean of four tokenizers, on half of 721 definitions from 38 servers, as compact
    JSON. Errors on the other half, as measured by `tests/bench/bench_tokens.py`:

    ============ ======= ======= ========
    tokenizer    mean    p5      p95
    ============ ======= ======= ========
    o200k        +2.0 %  -3.5 %  +7.9 %
    cl100k       +4.3 %  -2.3 %  +10.0 %
    Claude       -1.4 %  -6.6 %  +2.8 %
    Gemini       -2.2 %  -7.5 %  +1.8 %
    ============ ======= ======= ========

    Estimates for non-Latin scripts are rough, because the tokenizers themselves differ by up to 50 % for these scripts.
    """
    octets = text.encode("utf-8", "replace")
    # `translate` and `count` run in C, and are several times as fast as a regular expression.
    kinds = octets.translate(_KINDS)
    # The summands are the tokens for: words, capital letters inside words, eight lower-case letters in a row, encoded
    # data, punctuation marks, runs of punctuation marks, digits, and line breaks. The leading spaces ensure that
    # the first word and the first mark are counted.
    tokens = (
        1.05 * (b" " + octets.translate(_WORDS)).count(b" a")
        + 0.90 * kinds.count(b"aA")
        + 0.08 * kinds.count(b"aaaaaaaa")
        + 4.00 * kinds.count(_ENCODED)
        + 0.10 * kinds.count(b".")
        + 0.79 * (b" " + octets.translate(_MARKS)).count(b" .")
        + 0.66 * kinds.count(b"0")
        + 1.32 * kinds.count(b"n")
    )
    if len(octets) != len(text):
        tokens += 0.45 * kinds.count(b"2") + 0.80 * kinds.count(b"3") + 2.79 * kinds.count(b"4")
    return round(tokens)


Reason = Literal["eager", "pinned", "fits", "lazy", "over maxTools", "over maxTokens", "for apps"]


# Places in the list of a session that are reserved for tools that the session finds by searching: the default number of
# search results, but at most a quarter of all places.
_FOUND_PLACES: Final = 5
_FOUND_PLACES_SHARE: Final = 4
# One tenth of the tokens is reserved for the found tools. A tenth of 20,000 tokens is enough for five typical tools.
_FOUND_TOKENS_SHARE: Final = 10
# Maximum number of wrappers that a warning names. `DisclosurePlan.reasons` contains all of them.
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The properties of one wrapper that determine whether it is listed.

    Attributes:
        tokens: The estimated tokens of the definition.
        pinned: Whether the configuration pins the wrapper to the list.
        priority: The configured priority. Higher priorities are listed first.
    """

    name: str
    server: str
    tokens: int
    pinned: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisclosurePlan:
    """The decision which wrappers are listed, and which are deferred.

    Attributes:
        reasons: The reason why each wrapper is listed or deferred, by name.
        listed: The names of the listed wrappers.
        defers: Whether wrappers are deferred, now or when servers connect later.
        found_places: Maximum number of found wrappers to add to the list of a session; None without a limit.
        found_tokens: Maximum number of tokens of the found wrappers in the list of a session; None without a limit.
        warnings: Texts about pinned wrappers that are not listed, or that exceed the token budget.
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
    """Decide which wrappers a profile lists. The order of the candidates has no influence.

    The disclosure `eager` lists all wrappers, and `lazy` only pinned wrappers. The disclosure `auto` lists all
    wrappers if they fit the budget. Otherwise the search tools of the gateway are listed first, then pinned
    wrappers, then other wrappers by priority. At equal priority, one wrapper of each server is listed in turn, so that
    a server with many tools does not displace other servers. A small part of the budget is reserved for tools that
    sessions find.

    Pinned wrappers may exceed the token budget, but except for `eager`, there are never more than `max_tools` tools.

    Args:
        candidates: Every wrapper that the profile permits.
        profile: The profile with its disclosure and budgets.
        always: The number of the gateway's own tools that are always listed.
        always_tokens: The tokens of these tools.
        search: The number of the gateway's search tools, which are listed if wrappers are deferred.
        search_tokens: The tokens of the search tools.
    """
    names = [candidate.name for candidate in candidates]
    if profile.disclosure == "eager":
        return DisclosurePlan(reasons=dict.fromkeys(names, "eager"), listed=frozenset(names), defers=False)
    lazy = profile.disclosure == "lazy"
    total = always_tokens + sum(candidate.tokens for candidate in candidates)
    # Without candidates, `lazy` also lists the search tools, because servers may connect later.
    all_pinned = bool(names) and all(candidate.pinned for candidate in candidates)
    lists_all = all_pinned if lazy else total <= profile.max_tokens
    if lists_all and always + len(candidates) <= profile.max_tools:
        common_reason: Reason = "pinned" if lazy else "fits"
        return DisclosurePlan(reasons=dict.fromkeys(names, common_reason), listed=frozenset(names), defers=False)
    places = profile.max_tools - always - search
    tokens = profile.max_tokens - always_tokens - search_tokens
    reserved_places = min(_FOUND_PLACES, places // _FOUND_PLACES_SHARE)
    reserved_tokens = max(tokens, 0) // _FOUND_TOKENS_SHARE
    reasons: dict[str, Reason] = {}
    # A candidate that does not fit is skipped, because a smaller candidate may still fit.
    for candidate in _in_order(candidates):
        if lazy and not candidate.pinned:
            reasons[candidate.name] = "lazy"
        elif places <= (0 if candidate.pinned else reserved_places):
            reasons[candidate.name] = "over maxTools"
        elif candidate.tokens > tokens - reserved_tokens and not candidate.pinned:
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


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in the order in which places in the list are assigned to them."""
    turns: Counter[tuple[bool, int, str]] = Counter()
    ordered: list[tuple[bool, int, int, str, Candidate]] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.name):
        group = (not candidate.pinned, -candidate.priority, candidate.server)
        ordered.append((group[0], group[1], turns[group], candidate.name, candidate))
        turns[group] += 1
    return [candidate for *_, candidate in sorted(ordered, key=lambda entry: entry[:-1])]


def _warnings(
    candidates: Sequence[Candidate], listed: frozenset[str], profile: Profile, *, over_tokens: bool
) -> Iterable[str]:
    pinned = sorted(candidate.name for candidate in candidates if candidate.pinned)
    left_out = [name for name in pinned if name not in listed]
    if left_out:
        first_names = ", ".join(left_out[:_MAX_NAMED])
        more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
        yield f"pinned: {first_names}{more} not listed, over maxTools ({profile.max_tools})"
    if over_tokens and pinned:
        yield f"pinned: the pinned wrappers exceed maxTokens ({profile.max_tokens})"
