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
    """

    name: str
    scopes: frozenset[str] = frozenset()


LOCAL: Final = Principal(name="local")
