"""The shared store in Valkey or Redis."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.cluster.shared_store import (
    ALIVE_S,
    BURST_US,
    HALF_USED_US,
    MOST_OWED_US,
    ReportResult,
    Spent,
    StampedValue,
    StoreTrouble,
)
from gateway.config.cluster_config import StoreConfig

# Maximum number of connections. Only a few are in use at a time, for counts of calls, sign-ins and changes.
_MOST_CONNECTIONS: Final = 16
_TOKEN_BYTES: Final = 8
# Seconds without a message after which a subscription is checked with a ping.
_PING_S: Final = 1.0

# For each field, write the value if its stamp (time) is later than the stored one, regardless of the order of writes.
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
# An account is stored as one number: the time at which the account's quota will be full again, by the store's clock.
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
        client: The client of the redis package.
        count_script: The script that `count` runs, using the clock of the store.
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
            # No retries: each caller decides how to handle a store that does not respond.
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            # With RESP3, redis-py reuses idle connections even if the server or a load balancer has closed them, and
            # the next command then fails.
            protocol=2,
            **more,
        )

    def key(self, name: str) -> str:
        """Return the name of a key, with the configured prefix."""
        return f"{self._prefix}:{name}"

    async def version(self) -> str | None:
        with translated_errors():
            return cast("str | None", await self.client.get(self.key("version")))

    async def read(self) -> dict[str, StampedValue]:
        with translated_errors():
            stored = cast("dict[str, str]", await self.client.hgetall(self.key("changes")))
        parts = {field: value.partition(":") for field, value in stored.items()}
        return {
            field: StampedValue(int(stamp), value) for field, (stamp, _, value) in parts.items() if stamp.isdecimal()
        }

    async def merge(self, fields: Mapping[str, StampedValue]) -> None:
        token = secrets.token_hex(_TOKEN_BYTES)
        flat = [part for field, value in fields.items() for part in (field, str(value.stamp), value.encrypted)]
        with translated_errors():
            keys = [self.key("changes"), self.key("version")]
            await self.client.eval(_MERGE, len(keys), *keys, self._channel, token, *flat)

    async def forget(self, fields: Iterable[str]) -> None:
        with translated_errors():
            await self.client.hdel(self.key("changes"), *fields)

    async def events(self) -> AsyncIterator[None]:
        with translated_errors():
            async with self.client.pubsub() as subscription:
                await subscription.subscribe(self._channel)
                while True:
                    message = await subscription.get_message(timeout=_PING_S)
                    if message is None:
                        await subscription.ping()
                    elif message["type"] in ("subscribe", "message"):
                        yield None

    async def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        flat = [
            str(part)
            for account, calls in spent.items()
            for part in (account, calls.calls, calls.wanted, calls.interval_us)
        ]
        bounds = [ALIVE_S, MOST_OWED_US, HALF_USED_US, BURST_US]
        with translated_errors():
            answer = await self.client.eval(
                self.count_script, 2, self.key("alive"), self.key("calls"), name, *map(str, bounds), *flat
            )
        alive, *numbers = answer
        own, used = numbers[: 2 * len(spent)], numbers[2 * len(spent) :]
        return ReportResult(
            int(alive),
            given=dict(zip(spent, map(int, own[::2]), strict=True)),
            full_us={
                **dict(zip(used[::2], map(int, used[1::2]), strict=True)),
                **dict(zip(spent, map(int, own[1::2]), strict=True)),
            },
        )

    async def claim(self, name: str, for_s: float) -> bool:
        with translated_errors():
            return bool(await self.client.set(self.key(f"claim:{name}"), "1", nx=True, ex=int(for_s)))

    async def close(self) -> None:
        await self.client.aclose()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of redis-py as `StoreTrouble`."""
    try:
        yield
    except errors.TimeoutError as error:
        raise StoreTrouble("slow", str(error)) from None
    except (errors.OutOfMemoryError, errors.ReadOnlyError) as error:
        raise StoreTrouble("full", str(error)) from None
    except errors.ResponseError as error:
        # The message of a failed script may contain the error code anywhere.
        raise StoreTrouble("full" if "OOM" in str(error) else "down", str(error)) from None
    except (errors.RedisError, OSError) as error:
        raise StoreTrouble("down", str(error)) from None
