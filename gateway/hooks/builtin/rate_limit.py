"""`rate_limit`: limits the calls of one tool, or of one kind of request, by one principal."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gateway.hooks import settings
from gateway.hooks.hook import Before, Block, Call, Hook, Mode

# Some 20 MB. Principals and tools multiply, so both a hundred keys of a thousand tools and the reverse have room.
MAX_BUCKETS: Final = 100_000
"""All buckets. Beyond it the principal that has most loses those that it used least; they are full ones again."""
# So many at once, for the principal that has most has to be looked for.
_EVICTED: Final = 1_000
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
    """Limits the rate of calls. `config`: `perMinute` (60), `burst` (as much), `per` ([principal, tool]).

    With `tool`, each tool has a limit of its own, and prompts, resources and completions of a server have one for each
    kind: callers choose URIs, and a fresh one must not come with a fresh limit. The refusal says when to try again.
    """

    mode: ClassVar[Mode] = "validate"

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        settings.check_keys(config, "perMinute", "burst", "per")
        self._per_minute = settings.number(config, "perMinute", 60, least=_MIN_PER_MINUTE, most=_MAX_PER_MINUTE)
        self._burst = settings.number(config, "burst", max(1.0, self._per_minute), least=1, most=_MAX_PER_MINUTE)
        self._per = settings.words(config, "per", ("principal", "tool"), ("principal", "tool", "server"))
        self._clock = clock
        # By principal first, so that nobody's calls push another's buckets out.
        self._buckets: dict[str, OrderedDict[tuple[str, ...], Bucket]] = {}
        self._count = 0

    async def before_call(self, call: Call) -> Before:
        """Take a token, or block."""
        meta = call.metadata
        limited = meta.wrapper if meta.kind == "tool" else f"{meta.kind}s of {meta.server}"
        parts = {"principal": meta.principal, "tool": f"{meta.kind}:{limited}", "server": meta.server}
        key = tuple(parts[part] for part in self._per)
        buckets = self._buckets.setdefault(meta.principal if "principal" in self._per else "", OrderedDict())
        per_s, now_s = self._per_minute / _SECONDS_PER_MINUTE, self._clock()
        known = buckets.get(key)
        bucket = known or Bucket(tokens=self._burst, at_s=now_s)
        bucket = bucket.at(now_s, per_s=per_s, burst=self._burst)
        taken = bucket.taken()
        buckets[key] = taken or bucket
        buckets.move_to_end(key)
        if known is None:
            self._count += 1
            self._keep_bounded()
        if taken is not None:
            return None
        # Rounded up to a tenth: who waits as long as the text says must get through.
        wait_s = math.ceil(bucket.wait_s(per_s) * 10) / 10
        return Block(
            reason=f"the limit of {self._per_minute:g} calls a minute for {limited} is used up",
            description=f"Try again in {wait_s:g} s.",
            code=LIMIT_CODE,
        )

    def _keep_bounded(self) -> None:
        if self._count <= MAX_BUCKETS:
            return
        owner, largest = max(self._buckets.items(), key=lambda one: len(one[1]))
        for _ in range(min(_EVICTED, len(largest))):
            largest.popitem(last=False)
            self._count -= 1
        if not largest:
            del self._buckets[owner]

    before_prompt = before_resource = before_completion = before_call
