"""`rate_limit`: limit the rate at which one principal may call a tool."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gateway.hooks import payloads
from gateway.hooks.hook import Before, Block, Call, Hook, Mode

# About 20 MB. There is one bucket for each principal and tool: enough for 100 API keys with 1,000 tools each.
MAX_BUCKETS: Final = 100_000
"""Maximum number of buckets. Beyond it, the principal with the most buckets loses its least recently used ones, which
are full when they are used again."""
# Buckets are removed in batches, because finding the principal with the most buckets takes a scan.
_EVICTED: Final = 1_000
# In the JSON-RPC range for server errors, and not one of the codes that MCP defines; it ends in 29 like HTTP 429.
LIMIT_CODE: Final = -32029
"""The JSON-RPC error code of this hook's blocks, used if blocks are answered as protocol errors."""
_SECONDS_PER_MINUTE: Final = 60
# A million calls per minute is more than a gateway can serve; one call in a thousand minutes amounts to a ban.
_MAX_PER_MINUTE: Final = 1_000_000
_MIN_PER_MINUTE: Final = 0.001
# Tolerance for rounding: sums of fractions may fall just short of a whole token.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A token bucket. It is immutable: every change returns a new bucket.

    Attributes:
        tokens: Number of calls that may be made at `at_s`.
        at_s: Time of the last update.
    """

    tokens: float
    at_s: float

    def refilled(self, now_s: float, *, per_s: float, burst: float) -> Bucket:
        """Return the bucket at a later time, refilled up to `burst`."""
        passed_s = max(0.0, now_s - self.at_s)
        return Bucket(tokens=min(burst, self.tokens + passed_s * per_s), at_s=max(now_s, self.at_s))

    def take_token(self) -> Bucket | None:
        """Return the bucket after one more call, or None if no token is left."""
        return Bucket(tokens=max(0.0, self.tokens - 1), at_s=self.at_s) if self.tokens >= 1 - _TOLERANCE else None

    def wait_s(self, per_s: float) -> float:
        """Return the time in seconds until a token for one call is available."""
        return max(0.0, 1 - self.tokens) / per_s


class RateLimit(Hook):
    """Limits the rate of calls. `config`: `perMinute` (60), `burst` (same), `per` ([principal, tool]).

    `per` says what each limit applies to: each principal, tool or server, or each combination. With `tool`, each tool
    has its own limit; all prompts of a server share one limit, as do all its resources and all its completions, because
    otherwise callers could avoid a limit by using other URIs. The reason of a block says when to retry.
    """

    mode: ClassVar[Mode] = "validate"

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_buckets: int = MAX_BUCKETS,
    ) -> None:
        super().__init__(config)
        self._max_buckets = max_buckets
        payloads.check_keys(config, "perMinute", "burst", "per")
        self._per_minute = payloads.read_number(config, "perMinute", 60, least=_MIN_PER_MINUTE, most=_MAX_PER_MINUTE)
        self._burst = payloads.read_number(config, "burst", max(1.0, self._per_minute), least=1, most=_MAX_PER_MINUTE)
        self._per = payloads.read_words(config, "per", ("principal", "tool"), ("principal", "tool", "server"))
        self._clock = clock
        # Grouped by principal, so that one principal's calls cannot evict another's buckets.
        self._buckets: dict[str, OrderedDict[tuple[str, ...], Bucket]] = {}
        self._count = 0

    async def before_call(self, call: Call) -> Before:
        """Use a token for the call, or block the call if no token is left."""
        meta = call.metadata
        limited = meta.wrapper if meta.kind == "tool" else f"{meta.kind}s of {meta.server}"
        parts = {"principal": meta.principal, "tool": f"{meta.kind}:{limited}", "server": meta.server}
        key = tuple(parts[part] for part in self._per)
        buckets = self._buckets.setdefault(meta.principal if "principal" in self._per else "", OrderedDict())
        per_s, now_s = self._per_minute / _SECONDS_PER_MINUTE, self._clock()
        existing = buckets.get(key)
        bucket = existing or Bucket(tokens=self._burst, at_s=now_s)
        bucket = bucket.refilled(now_s, per_s=per_s, burst=self._burst)
        reduced = bucket.take_token()
        buckets[key] = reduced or bucket
        buckets.move_to_end(key)
        if existing is None:
            self._count += 1
            self._evict()
        if reduced is not None:
            return None
        # Rounded up to a tenth, so that a call after the stated time succeeds.
        wait_s = math.ceil(bucket.wait_s(per_s) * 10) / 10
        return Block(
            reason=f"the limit of {self._per_minute:g} calls per minute for {limited} is used up",
            description=f"Try again in {wait_s:g} s.",
            code=LIMIT_CODE,
        )

    def _evict(self) -> None:
        if self._count <= self._max_buckets:
            return
        owner, largest = max(self._buckets.items(), key=lambda item: len(item[1]))
        for _ in range(min(_EVICTED, len(largest))):
            largest.popitem(last=False)
            self._count -= 1
        if not largest:
            del self._buckets[owner]

    before_prompt = before_resource = before_completion = before_call
