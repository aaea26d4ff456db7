"""`cache`: results of read-only tools, kept for some time for the principal that received them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cachetools import TTLCache

from gateway import wire
from gateway.hooks import settings
from gateway.hooks.hook import After, Answer, Before, Call, Hook, Result
from gateway.protocol import with_meta
from registry.schema.schemas import canonical_json

CACHED_KEY: Final = "typegate/cachedSeconds"
"""The member of a result's `_meta` that tells how old it is."""
_KEY: Final = "key"
# One result may fill an eighth of the cache: a few large ones must not push everything else out.
_MAX_SHARE: Final = 8
# What one entry takes apart from its bytes, roughly: a key, a tuple, and the links of the cache.
_OVERHEAD_BYTES: Final = 200
# A minute: long enough for one conversation to ask twice, short enough that stale data surprises nobody.
_DEFAULT_TTL_S: Final = 60
# A day: who wants results to stay longer wants a database.
_MAX_TTL_S: Final = 86_400
_DEFAULT_BYTES: Final = 16 * 2**20
# It is memory of this process.
_MAX_BYTES: Final = 2**30


class Cache(Hook):
    """Answers repeated calls. `config`: `ttl` in seconds (60), `maxBytes` (16 MiB).

    Only tools with `readOnlyHint` are cached. The key is made of principal, profile, wrapper, the digest of the tool's
    definition, the connection to its server and the arguments, and of the session where the upstream tells sessions
    apart or may ask their users; errors, questions, what was answered to them, and tasks are not kept, and what an
    upstream declares to be private only within one session. Hooks with a higher `priority` number do not see calls that
    are answered from the cache; the results in it are as those hooks left them.
    """

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        settings.check_keys(config, "ttl", "maxBytes")
        ttl_s = settings.number(config, "ttl", _DEFAULT_TTL_S, least=0.1, most=_MAX_TTL_S)
        self._max_bytes = int(settings.number(config, "maxBytes", _DEFAULT_BYTES, least=1_000, most=_MAX_BYTES))
        self._clock = clock
        self._kept: TTLCache[bytes, tuple[float, bytes]] = TTLCache(
            self._max_bytes, ttl_s, timer=clock, getsizeof=lambda entry: len(entry[1]) + _OVERHEAD_BYTES
        )

    async def before_call(self, call: Call) -> Before:
        """Answer from the cache."""
        metadata = call.metadata
        if not metadata.read_only or metadata.shared_within == "request":
            return None
        session = metadata.session if metadata.shared_within == "session" else None
        # Of another connection the answer may be another one: somebody else may have signed in.
        caller = [metadata.principal, session, metadata.profile, metadata.connection]
        key = canonical_json([*caller, metadata.wrapper, metadata.digest, call.args])
        found = self._kept.get(key)
        if found is None:
            call.memo[_KEY] = key
            return None
        at_s, data = found
        result = wire.loads(data)
        age_s = round(self._clock() - at_s, 3)
        return Answer(value=with_meta(result, CACHED_KEY, age_s))

    async def after_call(self, call: Call, result: Result) -> After:
        """Keep a good result."""
        key = call.memo.get(_KEY)
        if key is None or result.is_error or result.value.get("resultType", "complete") != "complete":
            return None
        # As bytes: smaller, of known size, and nobody can change them in place.
        data = wire.fitted(wire.dumps(result.value))
        if len(data) + _OVERHEAD_BYTES <= self._max_bytes // _MAX_SHARE:
            self._kept[key] = (self._clock(), data)
        return None
