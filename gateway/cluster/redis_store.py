"""The shared store in Valkey or Redis, over redis-py; imported only where one is configured."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.cluster.store import (
    ALIVE_S,
    BURST_US,
    HALF_USED_US,
    MOST_OWED_US,
    Counted,
    Spent,
    Stamped,
    StoreTrouble,
)
from gateway.config.cluster import StoreConfig

# A call a minute each, and what administrators do: a few are in use at a time.
_MOST_CONNECTIONS: Final = 16
_TOKEN_BYTES: Final = 8
# How often a silent subscription is looked after: the answer to a ping shows that it lives.
_PING_S: Final = 1.0

# Later values win, whichever gateway writes them and in whatever order they come.
_MERGE: Final = """
local changed = false
for i = 3, #ARGV, 3 do
  local have = redis.call('HGET', KEYS[1], ARGV[i])
  local stamp = have and tonumber(string.match(have, '^(%d+):')) or -1
  if tonumber(ARGV[i + 1]) > stamp then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. ':' .. ARGV[i + 2])
    changed = true
  end
end
if changed then
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('PUBLISH', ARGV[1], ARGV[2])
end
return 1
"""
# Each account is one number, as in each gateway: the time at which it will be full again, by the store's own clock.
_COUNT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2] * 1000000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local answer = {redis.call('ZCARD', KEYS[1])}
for i = 6, #ARGV, 4 do
  local calls, wanted, interval = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local full = math.max(now, tonumber(redis.call('ZSCORE', KEYS[2], ARGV[i]) or 0)) + calls * interval
  full = math.min(full, now + ARGV[3])
  local left = math.max(0, math.floor((ARGV[5] - (full - now)) / interval + 0.001))
  local given = math.min(wanted, left)
  full = full + given * interval
  redis.call('ZADD', KEYS[2], string.format('%.0f', full), ARGV[i])
  answer[#answer + 1] = given
  answer[#answer + 1] = math.floor(full - now)
end
local used = redis.call('ZRANGEBYSCORE', KEYS[2], now + ARGV[4], '+inf', 'WITHSCORES')
for i = 1, #used, 2 do
  answer[#answer + 1] = used[i]
  answer[#answer + 1] = math.floor(used[i + 1] - now)
end
return answer
"""


class RedisStore:
    """A `SharedStore` in Valkey or Redis.

    Attributes:
        count_script: The script that `count` runs; the clock that it reads is that of the store.
    """

    count_script: str = _COUNT

    def __init__(self, config: StoreConfig) -> None:
        password = config.password.get_secret_value() if config.password is not None else None
        more: dict[str, Any] = {"ssl_ca_certs": config.ca_file} if config.ca_file is not None else {}
        self._timeout_s = config.timeout
        self._prefix = config.prefix
        self._channel = f"{config.prefix}:changed"
        self.client: Redis = Redis.from_url(
            config.url,
            username=config.username,
            password=password,
            socket_timeout=config.timeout,
            socket_connect_timeout=config.timeout,
            max_connections=_MOST_CONNECTIONS,
            # Who waits for an answer decides what follows from there being none.
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            # With the newer one, and so with notifications of maintenance, redis-py gives out connections that the
            # server or a balancer has closed while they were idle: each would fail one command.
            protocol=2,
            **more,
        )

    def key(self, name: str) -> str:
        """The name of a key."""
        return f"{self._prefix}:{name}"

    async def version(self) -> str | None:
        """See `SharedStore.version`."""
        with trouble():
            return cast("str | None", await self.client.get(self.key("version")))

    async def read(self) -> dict[str, Stamped]:
        """See `SharedStore.read`."""
        with trouble():
            found = cast("dict[str, str]", await self.client.hgetall(self.key("changes")))
        parts = {field: value.partition(":") for field, value in found.items()}
        return {field: Stamped(int(stamp), sealed) for field, (stamp, _, sealed) in parts.items() if stamp.isdecimal()}

    async def merge(self, fields: Mapping[str, Stamped]) -> None:
        """See `SharedStore.merge`."""
        token = secrets.token_hex(_TOKEN_BYTES)
        flat = [part for field, one in fields.items() for part in (field, str(one.stamp), one.sealed)]
        with trouble():
            keys = [self.key("changes"), self.key("version")]
            await self.client.eval(_MERGE, len(keys), *keys, self._channel, token, *flat)

    async def forget(self, fields: Iterable[str]) -> None:
        """See `SharedStore.forget`."""
        with trouble():
            await self.client.hdel(self.key("changes"), *fields)

    async def events(self) -> AsyncIterator[None]:
        """See `SharedStore.events`."""
        with trouble():
            async with self.client.pubsub() as subscription:
                await subscription.subscribe(self._channel)
                while True:
                    message = await subscription.get_message(timeout=_PING_S)
                    if message is None:
                        await subscription.ping()
                    elif message["type"] in ("subscribe", "message"):
                        yield None

    async def count(self, name: str, spent: Mapping[str, Spent]) -> Counted:
        """See `CallStore.count`."""
        flat = [
            str(part) for account, one in spent.items() for part in (account, one.calls, one.wanted, one.interval_us)
        ]
        bounds = [ALIVE_S, MOST_OWED_US, HALF_USED_US, BURST_US]
        with trouble():
            answer = await self.client.eval(
                self.count_script, 2, self.key("alive"), self.key("calls"), name, *map(str, bounds), *flat
            )
        alive, *rest = answer
        own, used = rest[: 2 * len(spent)], rest[2 * len(spent) :]
        return Counted(
            int(alive),
            given=dict(zip(spent, map(int, own[::2]), strict=True)),
            full_us={
                **dict(zip(used[::2], map(int, used[1::2]), strict=True)),
                **dict(zip(spent, map(int, own[1::2]), strict=True)),
            },
        )

    async def claim(self, name: str, for_s: float) -> bool:
        """See `SharedStore.claim`."""
        with trouble():
            return bool(await self.client.set(self.key(f"claim:{name}"), "1", nx=True, ex=int(for_s)))

    async def close(self) -> None:
        """See `SharedStore.close`."""
        await self.client.aclose()


@contextmanager
def trouble() -> Iterator[None]:
    """Say in our words what redis-py raises."""
    try:
        yield
    except errors.TimeoutError as error:
        raise StoreTrouble("slow", str(error)) from None
    except (errors.OutOfMemoryError, errors.ReadOnlyError) as error:
        raise StoreTrouble("full", str(error)) from None
    except errors.ResponseError as error:
        # Of a script the code stands within the text.
        raise StoreTrouble("full" if "OOM" in str(error) else "down", str(error)) from None
    except (errors.RedisError, OSError) as error:
        raise StoreTrouble("down", str(error)) from None
