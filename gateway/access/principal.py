"""The caller, as everything behind the door sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request comes from.

    Attributes:
        name: The name of the API key, or `local` where none is asked for.
        scopes: What the key may do; empty means everything.
        groups: Which groups it belongs to.
        profiles: The profiles that it may enter; None means all.
    """

    name: str
    scopes: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    profiles: frozenset[str] | None = None

    def may_enter(self, profile: str) -> bool:
        """Whether it may use a profile."""
        return self.profiles is None or profile in self.profiles


LOCAL: Final = Principal(name="local")
