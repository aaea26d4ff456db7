"""`cache`: store results of read-only tools for the principal that received them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cachetools import TTLCache

from gateway.hooks import payloads
from gateway.hooks.hook import After, Answer, Before, Call, Hook, Result
from gateway.protocol import json_bytes
from gateway.protocol.versions import with_meta
from registry.schema.schemas import canonical_json

CACHED_KEY: Final = "typegate/cachedSeconds"
"""The member of a result's `_meta` with the age of a cached result in seconds."""
_KEY: Final = "key"
# A result is cached if it fills at most an eighth of the cache, so that a few large results cannot evict all others.
_MAX_SHARE: Final = 8
# Approximate overhead of an entry in the cache: its key and the objects around the result.
_OVERHEAD_BYTES: Final = 200
# One minute: long enough for repeated calls in a conversation, short enough that stale data is not surprising.
_DEFAULT_TTL_S: Final = 60
# One day. Storing results for longer would need a database.
_MAX_TTL_S: Final = 86_400
_DEFAULT_BYTES: Final = 16 * 2**20
# The cache is in the memory of this process.
_MAX_BYTES: Final = 2**30


class Cache(Hook):
    """Answers repeated calls. `config`: `ttl` in seconds (60), `maxBytes` (16 MiB).

    Only results of tools with `readOnlyHint` are cached. The key consists of the principal, profile, wrapper, digest of
    the tool's definition, upstream connection and arguments. It also contains the session if the upstream distinguishes
    sessions or may ask the session's user for input during a call. Not cached are errors, tasks, requests for user
    input, and results that depend on user input. Results that the upstream declares private are cached only within a
    session. Hooks with a higher `priority` number do not see calls that are answered from the cache; cached results
    include the changes of these hooks.
    """

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        payloads.check_keys(config, "ttl", "maxBytes")
        ttl_s = payloads.read_number(config, "ttl", _DEFAULT_TTL_S, least=0.1, most=_MAX_TTL_S)
        self._max_bytes = int(payloads.read_number(config, "maxBytes", _DEFAULT_BYTES, least=1_000, most=_MAX_BYTES))
        self._clock = clock
        self._results: TTLCache[bytes, tuple[float, bytes]] = TTLCache(
            self._max_bytes, ttl_s, timer=clock, getsizeof=lambda entry: len(entry[1]) + _OVERHEAD_BYTES
        )

    async def before_call(self, call: Call) -> Before:
        """Answer the call from the cache if possible."""
        metadata = call.metadata
        if not metadata.read_only or metadata.shared_within == "request":
            return None
        session = metadata.session if metadata.shared_within == "session" else None
        # The connection is a part of the key, because another user may have signed in on another connection.
        caller = [metadata.principal, session, metadata.profile, metadata.connection]
        key = canonical_json([*caller, metadata.wrapper, metadata.digest, call.args])
        stored = self._results.get(key)
        if stored is None:
            call.memo[_KEY] = key
            return None
        at_s, data = stored
        result = json_bytes.loads(data)
        age_s = round(self._clock() - at_s, 3)
        return Answer(value=with_meta(result, CACHED_KEY, age_s))

    async def after_call(self, call: Call, result: Result) -> After:
        """Store a successful result."""
        key = call.memo.get(_KEY)
        if key is None or result.is_error or result.value.get("resultType", "complete") != "complete":
            return None
        # Stored as bytes, which are smaller, have a known size and cannot be changed in place.
        data = json_bytes.fitted(json_bytes.dumps(result.value))
        if len(data) + _OVERHEAD_BYTES <= self._max_bytes // _MAX_SHARE:
            self._results[key] = (self._clock(), data)
        return None
