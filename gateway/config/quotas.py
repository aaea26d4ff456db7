"""What one caller may use at a time, so that nobody else feels it."""

from __future__ import annotations

from pydantic import Field

from gateway.config.section import Count, Section


class QuotaLimits(Section):
    """The limits of one caller. What goes beyond them is refused with words, and nothing else is touched."""

    # No bound by itself: agents come in bursts, and what a call costs is known to the operator alone.
    calls_per_minute: Count | None = Field(default=None, ge=1)
    """Calls of tools, prompts, resources and completions in any minute; absent means no limit."""
    # Four upstreams full of calls.
    in_flight: Count | None = Field(default=256, ge=1)
    """Requests that may run at the same time; null means no limit."""
    # A team that shares one key, with a few windows each. An idle session takes some KiB.
    sessions: Count = Field(default=1_000, ge=1, le=10_000)
    """Sessions of the handshake era; beyond them the one that was idle longest ends."""
    # Each holds a connection; a host opens one for each of its windows.
    streams: Count = Field(default=64, ge=1, le=4_096)
    """Streams of notifications that may be open."""
    # Most of them are processes of their own.
    private_connections: Count = Field(default=32, ge=1, le=1_000)
    """Connections to upstreams that belong to one session, as servers with `elicitation: true` need."""
    # The densest JSON takes 45 times its length in memory; a whole file as text takes five times.
    held_mebibytes: Count = Field(default=96, ge=1, le=1_024)
    """Memory that its requests may take while they arrive and run, estimated from their text."""


class QuotasConfig(Section):
    """What each caller may use."""

    default: QuotaLimits | None = None
    """The limits of every caller that has none of its own. Without API keys all callers are one, which has few limits
    unless they are given here."""
