"""Callers that rules and hooks name, against those that there can be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from gateway.config.auth import AuthConfig
from registry.catalog.unmatched import near_miss

if TYPE_CHECKING:
    from gateway.config.model import GatewayConfig

_LOCAL: Final = "local"


def unmatched_callers(
    patterns: Iterable[str], auth: AuthConfig, others: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each pattern that matches nobody who may call, and a phrase with who may be meant, or nothing.

    Keys are known by their names. Of tokens only the end of a name is known, `@ISSUER`.

    Args:
        patterns: Which callers are meant.
        auth: Who may call.
        others: Names of keys that the configuration does not have.
    """
    names = list(dict.fromkeys([_LOCAL, *(key.name for key in auth.api_keys), *others]))
    issuers = [issuer.name for issuer in auth.oauth.issuers] if auth.oauth is not None else []
    for pattern in patterns:
        if pattern == "*" or any(fnmatchcase(name, pattern) for name in names):
            continue
        if not any(_may_end_so(pattern, f"@{issuer}") for issuer in issuers):
            yield pattern, near_miss(pattern, names)


def is_named(caller: str, gateway: GatewayConfig) -> bool:
    """Return whether a rule or hook is about this caller in particular."""
    patterns = [pattern for rule in gateway.policy.rules for pattern in rule.principals or ()]
    patterns += [pattern for hook in gateway.hooks for pattern in hook.conditions.principals or ()]
    return any(pattern != "*" and fnmatchcase(caller, pattern) for pattern in patterns)


def _may_end_so(pattern: str, ending: str) -> bool:
    """Return whether a pattern can match a name with an ending, and something before it."""
    # What stands before may be whatever the first part of the pattern wants.
    starts = range(0 if pattern.startswith("*") else 1, len(pattern))
    return any(fnmatchcase(ending, pattern[start:]) for start in starts)
