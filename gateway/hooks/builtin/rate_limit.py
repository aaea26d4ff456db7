"""`rate_limit`: limits the calls of one tool by one principal; the refusal says when to try again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from cachetools import LRUCache

from gateway.hooks import settings
from gateway.hooks.hook import Before, Block, Call, Hook, Mode

# Bounded because principals and wrappers multiply. Whoever loses a bucket starts with a full one.
MAX_BUCKETS: Final = 20_000
# In the range that JSON-RPC leaves to servers, apart from the codes that MCP defines there; ends as HTTP's 429.
LIMIT_CODE: Final = -32029
"""The code of its blocks if they are answered as protocol errors."""
_SECONDS_PER_MINUTE: Final = 60
# A million calls a minute is beyond what a gateway serves, and a call in a thousand minutes is a ban.
_MAX_PER_MINUTE: Final = 1_000_000
_MIN_PER_MINUTE: Final = 0.001
# Sums of fractions do not always reach a whole token.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A token bucket. It is immutable: every change returns a new one, and time is an argument.

    Attributes:
        tokens: The number of calls that may be made at once.
        at_s: When that was so.
    """

    tokens: float
    at_s: float

    def at(self, now_s: float, *, per_s: float, burst: float) -> Bucket:
        """The bucket at a later time: refilled, up to `burst`."""
        passed_s = max(0.0, now_s - self.at_s)
        return Bucket(tokens=min(burst, self.tokens + passed_s * per_s), at_s=max(now_s, self.at_s))

    def taken(self) -> Bucket | None:
        """The bucket after one more call; None if it has no token for it."""
        return Bucket(tokens=max(0.0, self.tokens - 1), at_s=self.at_s) if self.tokens >= 1 - _TOLERANCE else None

    def wait_s(self, per_s: float) -> float:
        """How long it takes until there is a token for one call."""
        return max(0.0, 1 - self.tokens) / per_s


class RateLimit(Hook):
    """Limits the rate of calls. `config`: `perMinute` (60), `burst` (as much), `per` ([principal, tool])."""

    mode: ClassVar[Mode] = "validate"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        settings.check_keys(config, "perMinute", "burst", "per")
        self._per_minute = settings.number(config, "perMinute", 60, least=_MIN_PER_MINUTE, most=_MAX_PER_MINUTE)
        self._burst = settings.number(config, "burst", max(1.0, self._per_minute), least=1, most=_MAX_PER_MINUTE)
        self._per = settings.words(config, "per", ("principal", "tool"), ("principal", "tool", "server"))
        self._clock = clock
        self._buckets: LRUCache[tuple[str, ...], Bucket] = LRUCache(MAX_BUCKETS)

    async def before_call(self, call: Call) -> Before:
        """Take a token, or block."""
        meta = call.metadata
        parts = {"principal": meta.principal, "tool": f"{meta.kind}:{meta.wrapper}", "server": meta.server}
        key = tuple(parts[part] for part in self._per)
        per_s, now_s = self._per_minute / _SECONDS_PER_MINUTE, self._clock()
        bucket = self._buckets.get(key) or Bucket(tokens=self._burst, at_s=now_s)
        bucket = bucket.at(now_s, per_s=per_s, burst=self._burst)
        taken = bucket.taken()
        self._buckets[key] = taken or bucket
        if taken is not None:
            return None
        # Rounded up to a tenth: who waits as long as the text says must get through.
        wait_s = math.ceil(bucket.wait_s(per_s) * 10) / 10
        return Block(
            reason=f"the limit of {self._per_minute:g} calls a minute for {meta.wrapper} is used up",
            description=f"Try again in {wait_s:g} s.",
            code=LIMIT_CODE,
        )

    before_prompt = before_resource = before_call
