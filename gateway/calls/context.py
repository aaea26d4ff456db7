"""What one call knows about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gateway.access.principal import Principal

Via = Literal["wrapper", "invoke_tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The side that calls us.

    Attributes:
        principal: Who it is.
        modern: It speaks 2026-07-28; otherwise a handshake-era version.
        on_progress: Takes progress params, when the caller asked for progress.
    """

    principal: Principal
    modern: bool
    on_progress: Callable[[dict[str, Any]], None] | None = None
