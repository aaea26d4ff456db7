"""Calls that wait until a person allows them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.section import Count, Seconds, Section

Approver = Literal["host", "administrator"]


class ApprovalsConfig(Section):
    """How calls wait for a person, where a rule of the policy asks for one."""

    by: Approver | None = None
    """Who decides. `host`: the caller's host asks its user. A host answers for whatever program it runs, so this
    protects a person from a model, and nobody from the caller. `administrator`: the call waits for the admin page or
    `typegate approvals`. Absent means `administrator` for callers with an API key, or with a token that a client got
    for itself, and `host` for all others. An answer of a host counts for one call; a rule may say otherwise by its
    `ask.by`."""
    # A person who sits there needs less, one who is called needs about this; hosts give up sooner or later.
    timeout: Seconds = 300.0
    """Seconds after which a call that nobody has decided about is refused."""
    # A day at work: whoever comes back tomorrow is asked again.
    expires: Seconds = 86_400.0
    """Seconds after which what was allowed for a session or a tool has to be allowed again."""
    # Nobody looks through more; an agent that calls in a loop must not bury what others wait for.
    waiting: Count = Field(default=16, ge=1, le=1_000)
    """Calls of one caller that may wait at the same time; further ones are refused."""
