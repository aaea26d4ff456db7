"""What became of sign-ins and refreshes, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SignInCounts:
    """What became of refreshes and sign-ins, by server and outcome."""

    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    sign_ins: Counter[tuple[str, str]] = field(default_factory=Counter)
