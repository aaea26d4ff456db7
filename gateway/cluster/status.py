"""How the shared store does, for logs, administrators and metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Final, Literal

from gateway.cluster.store import StoreTrouble, Trouble

log = logging.getLogger(__name__)

Use = Literal["changes", "limits", "approvals", "sign-ins"]
_MESSAGE_CHARS: Final = 200
_WORDS: Final = {
    "down": "the shared store cannot be reached",
    "slow": "the shared store is too slow",
    "full": "the shared store has no room",
}


class StoreStatus:
    """What the last answers were.

    Attributes:
        troubles: How often it has not done what was asked, by kind.
    """

    def __init__(self) -> None:
        self.troubles: Counter[Trouble] = Counter()
        self._failing: dict[Use, StoreTrouble] = {}
        self._since_s = time.time()
        self._answered = False

    @property
    def state(self) -> str:
        """`up`, or what is wrong; `starting` before the first answer."""
        if self._failing:
            return next(iter(self._failing.values())).kind
        return "up" if self._answered else "starting"

    def answered(self, use: Use) -> None:
        """Note that it has done what was asked."""
        self._answered = True
        if self._failing.pop(use, None) is not None and not self._failing:
            log.warning("the shared store answers again, after %.1f s", time.time() - self._since_s)
            self._since_s = time.time()

    def failed(self, use: Use, trouble: StoreTrouble) -> None:
        """Note that it has not."""
        self.troubles[trouble.kind] += 1
        before = self._failing.get(use)
        if not self._failing:
            self._since_s = time.time()
        self._failing[use] = trouble
        if before is None or before.kind != trouble.kind:
            log.warning(
                "%s (%s): calls go on, limits are those of each gateway, and changes here wait [%s]",
                _WORDS[trouble.kind], str(trouble)[:_MESSAGE_CHARS], use,
            )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """As administrators see it."""
        return {
            "state": self.state,
            "since": round(self._since_s, 3),
            "lastError": next((str(one)[:_MESSAGE_CHARS] for one in self._failing.values()), None),
            "failing": sorted(self._failing),
        }
