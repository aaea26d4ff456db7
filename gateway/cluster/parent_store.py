"""Counts of all workers of one machine, held by their parent: the second implementation of `CallStore`.

A worker sends one line of JSON for each report over a Unix socket in the private directory, and the parent answers it
with one. The counts are those of `redis_store`, and so is the arithmetic.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from gateway import wire
from gateway.cluster.assignment import Assignment
from gateway.cluster.store import ALIVE_S, BURST_US, HALF_USED_US, MOST_OWED_US, Counted, Running, Spent, StoreTrouble

log = logging.getLogger(__name__)

# The parent only adds numbers up: a longer wait means that it is stopped or gone. As the default of a shared store.
_TIMEOUT_S: Final = 0.5
# Ten thousand accounts, which is as many as a worker keeps, take a megabyte.
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_US: Final = 1e6
# Sums of intervals do not always reach a whole call.
_ROUNDING: Final = 1e-3


class CallCounts:
    """The accounts of all callers, each of them one number: the time at which it will be full again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive_us: dict[str, float] = {}
        self._full_us: dict[str, float] = {}

    def count(self, name: str, spent: Mapping[str, Spent]) -> Counted:
        """See `CallStore.count`."""
        now_us = self._clock() * _US
        self._alive_us[name] = now_us
        oldest_us = now_us - ALIVE_S * _US
        self._alive_us = {each: seen_us for each, seen_us in self._alive_us.items() if seen_us > oldest_us}
        self._full_us = {account: full_us for account, full_us in self._full_us.items() if full_us > now_us}
        given: dict[str, int] = {}
        for account, one in spent.items():
            full_us = max(now_us, self._full_us.get(account, 0.0)) + one.calls * one.interval_us
            full_us = min(full_us, now_us + MOST_OWED_US)
            left = max(0, math.floor((BURST_US - (full_us - now_us)) / one.interval_us + _ROUNDING))
            given[account] = min(one.wanted, left)
            self._full_us[account] = full_us + given[account] * one.interval_us
        shown = {account for account, full_us in self._full_us.items() if full_us >= now_us + HALF_USED_US}
        return Counted(
            alive=len(self._alive_us),
            given=given,
            full_us={account: math.floor(self._full_us[account] - now_us) for account in shown.union(spent)},
        )


class RunningCounts:
    """The requests that run at each worker beyond those for which no worker asks, by account and connection."""

    def __init__(self) -> None:
        self._running: dict[str, dict[object, int]] = {}

    def hold(self, connection: object, rows: Mapping[str, Running]) -> dict[str, int]:
        """Note what runs at a worker; return how many of the wanted requests may run, by account."""
        given: dict[str, int] = {}
        for account, one in rows.items():
            held = self._running.setdefault(account, {})
            others = sum(count for each, count in held.items() if each is not connection)
            given[account] = min(one.wanted, max(0, one.most - others - one.running))
            held[connection] = max(0, one.running + given[account] - one.unasked)
            if not any(held.values()):
                del self._running[account]
        return given

    def forget(self, connection: object) -> None:
        """Forget a worker that has ended."""
        for account, held in list(self._running.items()):
            held.pop(connection, None)
            if not any(held.values()):
                del self._running[account]


@asynccontextmanager
async def counting_for_workers(assignment: Assignment, counts: CallCounts | None = None) -> AsyncIterator[None]:
    """Count the calls of all workers, at the parent, until left."""
    counts, running = counts or CallCounts(), RunningCounts()
    path = assignment.parent_socket

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                request = wire.loads(line)
                if not hmac.compare_digest(str(request["secret"]), assignment.secret):
                    return
                writer.write(wire.dumps(_answer(request, counts, running, writer)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.debug("a worker's connection failed: %s", error)
        finally:
            running.forget(writer)
            writer.close()

    server = await asyncio.start_unix_server(answer, str(path), limit=_MAX_LINE_BYTES)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _answer(request: Any, counts: CallCounts, running: RunningCounts, connection: object) -> dict[str, Any]:
    if "running" in request:
        rows = {account: Running(*numbers) for account, numbers in request["running"].items()}
        return {"given": running.hold(connection, rows)}
    spent = {account: Spent(*numbers) for account, numbers in request["spent"].items()}
    counted = counts.count(request["name"], spent)
    return {"alive": counted.alive, "given": counted.given, "full": counted.full_us}


class ParentStore:
    """Asks the parent (implements `CallStore`); one request at a time."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def count(self, name: str, spent: Mapping[str, Spent]) -> Counted:
        """See `CallStore.count`."""
        rows = {account: [one.calls, one.wanted, one.interval_us] for account, one in spent.items()}
        answer = await self._asked({"name": name, "spent": rows})
        return Counted(answer["alive"], given=answer["given"], full_us=answer["full"])

    async def hold(self, rows: Mapping[str, Running]) -> dict[str, int]:
        """Report what runs here; return how many of the wanted requests may run, by account.

        Raises:
            StoreTrouble: The parent does not answer.
        """
        numbers = {account: [one.running, one.wanted, one.most, one.unasked] for account, one in rows.items()}
        answer = await self._asked({"running": numbers})
        return {account: int(given) for account, given in answer["given"].items()}

    async def _asked(self, request: dict[str, Any]) -> Any:
        line = wire.dumps({"secret": self._assignment.secret, **request}) + b"\n"
        try:
            with anyio.fail_after(_TIMEOUT_S):
                return await self._ask(line)
        except TimeoutError:
            self.close()
            raise StoreTrouble("slow", "the parent of the workers does not answer") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.close()
            raise StoreTrouble("down", f"the parent of the workers does not answer ({error})") from None
        except BaseException:
            # The next request would read the answer to this one.
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection; the next request makes another one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def _ask(self, line: bytes) -> Any:
        if self._streams is None:
            path = str(self._assignment.parent_socket)
            self._streams = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
        reader, writer = self._streams
        writer.write(line)
        await writer.drain()
        answered = await reader.readline()
        if not answered:
            raise ConnectionResetError("the connection has ended")
        return wire.loads(answered)
