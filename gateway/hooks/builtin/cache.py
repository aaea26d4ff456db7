"""`cache`: results of read-only tools, kept for a while for the principal that got them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cachetools import TTLCache

from gateway import wire
from gateway.hooks.builtin import settings
from gateway.hooks.hook import After, Answer, Before, Call, Hook, Result
from registry.schema.schemas import canonical

CACHED_KEY: Final = "typegate/cachedSeconds"
"""The member of a result's `_meta` that tells how old it is."""
_KEY: Final = "key"
_MAX_SHARE: Final = 8


class Cache(Hook):
    """Answers again what was answered. `config`: `ttl` in seconds (60), `maxBytes` (16 MiB).

    Only tools that say `readOnlyHint`. A result is found again by principal, profile, wrapper, the digest of the
    tool's definition and the arguments; nothing is kept of errors, questions and tasks. Hooks with a higher number
    in `priority` do not see calls that are answered from here; what is kept is what they made of the result.
    """

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        settings.known(config, "ttl", "maxBytes")
        ttl_s = settings.number(config, "ttl", 60, least=0.1, most=86_400)
        self._max_bytes = int(settings.number(config, "maxBytes", 16 * 2**20, least=1_000, most=2**30))
        self._clock = clock
        self._kept: TTLCache[bytes, tuple[float, bytes]] = TTLCache(
            self._max_bytes, ttl_s, timer=clock, getsizeof=lambda one: len(one[1]) + 200
        )

    async def before_call(self, call: Call) -> Before:
        """Answer, if the answer is known."""
        about = call.metadata
        if not about.read_only:
            return None
        key = canonical([about.principal, about.profile, about.wrapper, about.digest, call.args])
        found = self._kept.get(key)
        if found is None:
            call.memo[_KEY] = key
            return None
        at_s, data = found
        result = wire.loads(data)
        meta = result.get("_meta")
        age_s = round(self._clock() - at_s, 3)
        return Answer(value={**result, "_meta": {**(meta if isinstance(meta, dict) else {}), CACHED_KEY: age_s}})

    async def after_call(self, call: Call, result: Result) -> After:
        """Keep a good result."""
        key = call.memo.get(_KEY)
        if key is None or result.is_error or result.value.get("resultType", "complete") != "complete":
            return None
        data = wire.dumps(result.value)
        if len(data) + 200 <= self._max_bytes // _MAX_SHARE:
            self._kept[key] = (self._clock(), data)
        return None
