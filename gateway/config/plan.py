"""What changes from one configuration to another. Pure: `gateway.reload` makes the changes."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.model import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps from one configuration to another.

    Attributes:
        add, remove: Servers that are new, and that are gone.
        replace: Servers that need a new connection; calls on the old one finish first.
        adjust: Servers of which only limits, names or descriptions change.
        hooks: Names of hooks that were added, removed or changed.
        later: Keys that take effect only at the next start.
    """

    add: tuple[str, ...]
    remove: tuple[str, ...]
    replace: tuple[str, ...]
    adjust: tuple[str, ...]
    later: tuple[str, ...]
    hooks: tuple[str, ...] = ()


def plan(before: Config, after: Config) -> Steps:
    """Return what changes between two configurations."""
    old, new = before.servers, after.servers
    # Unchanged ones appear in no step: their connections, calls and listings are not touched.
    both = [alias for alias in new if alias in old and new[alias] != old[alias]]
    # A socket is opened, and the token read, once.
    # The socket is bound and the token handed out; neither can change under clients that use them.
    later = [
        key
        for key, was, now in (
            ("gateway.listen", before.gateway.listen, after.gateway.listen),
            ("gateway.admin", before.gateway.admin.at_start, after.gateway.admin.at_start),
            ("gateway.drainDelay", before.gateway.drain_delay, after.gateway.drain_delay),
            ("gateway.cluster", before.gateway.cluster, after.gateway.cluster),
            ("gateway.telemetry", before.gateway.telemetry, after.gateway.telemetry),
        )
        if was != now
    ]
    return Steps(
        add=tuple(alias for alias in new if alias not in old),
        remove=tuple(alias for alias in old if alias not in new),
        replace=tuple(alias for alias in both if new[alias].reach_key() != old[alias].reach_key()),
        adjust=tuple(alias for alias in both if new[alias].reach_key() == old[alias].reach_key()),
        later=tuple(later),
        hooks=_hooks(before, after),
    )


def _hooks(before: Config, after: Config) -> tuple[str, ...]:
    old = {hook.name: hook for hook in before.gateway.hooks}
    new = {hook.name: hook for hook in after.gateway.hooks}
    return tuple(name for name in {**old, **new} if old.get(name) != new.get(name))
