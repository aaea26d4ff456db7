"""`rate_limit`: so many calls of one tool by one principal; the refusal says when to try again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cachetools import LRUCache

from gateway.hooks.builtin import settings
from gateway.hooks.hook import Before, Block, Call, Hook, Mode

MAX_BUCKETS: Final = 20_000
LIMIT_CODE: Final = -32029
"""The code of its blocks, where they are answered as protocol errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A token bucket. Every change makes a new one; time comes in as an argument.

    Attributes:
        tokens: Calls that may be made at once.
        at_s: When that was so.
    """

    tokens: float
    at_s: float

    def at(self, now_s: float, *, per_s: float, burst: float) -> Bucket:
        """The bucket later: filled by what has passed, and never over its brim."""
        passed_s = max(0.0, now_s - self.at_s)
        return Bucket(tokens=min(burst, self.tokens + passed_s * per_s), at_s=max(now_s, self.at_s))

    def taken(self) -> Bucket | None:
        """The bucket after one call; None where there is nothing for it."""
        # A little less than one is one: sums of fractions do not always reach it.
        return Bucket(tokens=max(0.0, self.tokens - 1), at_s=self.at_s) if self.tokens >= 1 - 1e-9 else None

    def wait_s(self, per_s: float) -> float:
        """How long until there is something for one call."""
        return max(0.0, 1 - self.tokens) / per_s


class RateLimit(Hook):
    """Lets so many calls through. `config`: `perMinute` (60), `burst` (as much), `per` ([principal, tool])."""

    mode: ClassVar[Mode] = "validate"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        settings.known(config, "perMinute", "burst", "per")
        self._per_minute = settings.number(config, "perMinute", 60, least=0.001, most=1_000_000)
        self._burst = settings.number(config, "burst", max(1.0, self._per_minute), least=1, most=1_000_000)
        self._per = settings.words(config, "per", ("principal", "tool"), ("principal", "tool", "server"))
        self._clock = clock
        self._buckets: LRUCache[tuple[str, ...], Bucket] = LRUCache(MAX_BUCKETS)

    async def before_call(self, call: Call) -> Before:
        """Take one, or block."""
        return self._take(call)

    async def before_prompt(self, call: Call) -> Before:
        """Take one, or block."""
        return self._take(call)

    async def before_resource(self, call: Call) -> Before:
        """Take one, or block."""
        return self._take(call)

    def _take(self, call: Call) -> Block | None:
        about = call.metadata
        parts = {"principal": about.principal, "tool": f"{about.kind}:{about.wrapper}", "server": about.server}
        key = tuple(parts[part] for part in self._per)
        per_s, now_s = self._per_minute / 60, self._clock()
        bucket = self._buckets.get(key) or Bucket(tokens=self._burst, at_s=now_s)
        bucket = bucket.at(now_s, per_s=per_s, burst=self._burst)
        taken = bucket.taken()
        self._buckets[key] = taken or bucket
        if taken is not None:
            return None
        wait_s = math.ceil(bucket.wait_s(per_s) * 10) / 10
        return Block(
            reason=f"the limit of {self._per_minute:g} calls a minute for {about.wrapper} is used up",
            description=f"Try again in {wait_s:g} s.",
            code=LIMIT_CODE,
        )
