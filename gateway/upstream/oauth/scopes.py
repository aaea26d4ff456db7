"""Which scopes to ask for. Pure.

Source: MCP 2025-11-25, "Authorization", "Scope Selection Strategy" and "Scope Challenge Handling".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OFFLINE: Final = "offline_access"


def union(*groups: Sequence[str] | None) -> tuple[str, ...]:
    """Every scope once, in the order of its first appearance."""
    return tuple(dict.fromkeys(scope for group in groups for scope in group or ()))


def scopes_to_request(
    *,
    configured: Sequence[str],
    challenged: Sequence[str] | None,
    supported: Sequence[str] | None,
    requested_before: Sequence[str] = (),
    offered_by_server: Sequence[str] = (),
) -> tuple[str, ...]:
    """The scopes of an authorization request; none means that the parameter is left out.

    Args:
        configured: The operator's; they take the place of what was found.
        challenged: Of the upstream's latest challenge.
        supported: Of the resource's metadata.
        requested_before: What the present token was asked for: a broader one takes its place.
        offered_by_server: `scopes_supported` of the authorization server.
    """
    found: Sequence[str] = challenged if challenged is not None else supported or ()
    wanted = union(requested_before, configured, challenged if configured else found)
    # A refresh token has to be asked for where the server says so, and must not be where it does not.
    return union(wanted, (OFFLINE,)) if wanted and OFFLINE in offered_by_server else wanted
