"""What one caller may use at a time, so that nobody else feels it."""

from __future__ import annotations

from pydantic import Field, field_validator

from gateway.config.section import Count, Section, fault


class QuotaLimits(Section):
    """The limits of one caller. What goes beyond them is refused with words, and nothing else is touched."""

    takes_null = True
    # No bound by itself: agents come in bursts, and what a call costs is known to the operator alone.
    calls_per_minute: Count | None = Field(default=None, ge=1)
    """Calls of tools, prompts, resources and completions in any minute, with looks at tasks and new subscriptions; null
    means no limit."""
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

    @field_validator("sessions", "streams", "private_connections", "held_mebibytes", mode="before")
    @classmethod
    def _has_a_limit(cls, value: object) -> object:
        if value is None:
            raise fault("is null, but cannot be without a limit", "a number")
        return value


class QuotasConfig(Section):
    """What each caller may use."""

    default: QuotaLimits | None = None
    """The limits of every caller that has none of its own. Without API keys all callers are one, which has few limits
    unless they are given here."""
    groups: dict[str, QuotaLimits] = Field(default_factory=dict)
    """Limits of the callers of a group, by its name. They take the place of default; what is not given here is as
    there, and of several groups the largest limit counts."""
