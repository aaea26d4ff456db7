"""How much a check may cost where it runs: little on an event loop, much in a process that is ended at a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

# Collecting so many errors takes 0.3 s.
_MAX_WHOLE: Final = 20_000


# What passes unchecked: nothing; what no effort can check; or also texts whose patterns are costly.
Leniency = Literal["none", "uncheckable", "costly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Bounds of one check.

    Attributes:
        check_ns: The longest that a yes or no may take, by estimate; None for no bound.
        errors_ns: The same for collecting errors.
        applications: How many pairs of a schema and a value are looked at for these estimates.
        repair_cost: The cost of collecting errors for repairs, all of them together; see `Validator.repair_cost`.
        whole: Applications up to which the errors of a whole value are collected at once; of more, the parts that
            fail are looked for.
        leniency: What is left out of the check. Where it is `none`, `NotChecked` is raised for it.
    """

    check_ns: int | None
    errors_ns: int | None
    applications: int
    repair_cost: int
    whole: int = _MAX_WHOLE
    leniency: Leniency = "none"


# A loop that stands for five milliseconds delays nobody noticeably; an invalid call may take a few times that, since
# its caller has to repeat it anyway. Looking at one application takes a microsecond.
INLINE_MEMBERS: Final = 20_000  # counting them takes as long
INLINE: Final = Effort(check_ns=5_000_000, errors_ns=20_000_000, applications=5_000, repair_cost=60_000)
# Applications are still counted here: looking for patterns that cannot be run takes half a second at most.
THOROUGH: Final = Effort(check_ns=None, errors_ns=None, applications=500_000, repair_cost=6_000_000)

_current: ContextVar[Effort] = ContextVar("effort", default=INLINE)


def current_effort() -> Effort:
    """Return the bounds that hold here."""
    return _current.get()


@contextmanager
def effort_of(effort: Effort) -> Iterator[None]:
    """Check within other bounds; `THOROUGH` only where something ends what takes too long."""
    token = _current.set(effort)
    try:
        yield
    finally:
        _current.reset(token)
