"""The shared store in the parent process of workers.

The parent holds the state of the store in memory, and serves it over a Unix socket in the private directory. Each
request and each response is one line of JSON. A connection with the request `events` receives one line for each change.
The parent counts calls in the same way as the scripts of `redis_store`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from gateway.cluster.roles import WorkerConfig
from gateway.cluster.shared_store import (
    ALIVE_S,
    BURST_US,
    HALF_USED_US,
    MOST_OWED_US,
    ReportResult,
    Running,
    Spent,
    StampedValue,
    StoreTrouble,
)
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

# Time limit for a response: the same as the default for a shared store. The parent responds at once, unless it is
# suspended or has ended.
_TIMEOUT_S: Final = 0.5
# Time limit for requests that transfer fields, which may contain a large lock file. A sync requests `version` first, so
# it waits no longer than `_TIMEOUT_S` for a parent that does not respond.
_TRANSFER_S: Final = 5.0
# Maximum size of a request or response: 64 MiB of configuration and lock file, encrypted and in base64, with a margin.
# A report of ten thousand accounts takes a megabyte.
_MAX_LINE_BYTES: Final = 128 * 1024 * 1024
_US: Final = 1e6
# Tolerance for rounding errors in sums of intervals, expressed as a number of calls.
_ROUNDING: Final = 1e-3


class CallCounts:
    """Counts the calls of all workers. For each account, it stores the time at which the quota will be full again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive_us: dict[str, float] = {}
        self._full_us: dict[str, float] = {}

    def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        """Count calls as `CallStore.count` does."""
        now_us = self._clock() * _US
        self._alive_us[name] = now_us
        oldest_us = now_us - ALIVE_S * _US
        self._alive_us = {each: seen_us for each, seen_us in self._alive_us.items() if seen_us > oldest_us}
        self._full_us = {account: full_us for account, full_us in self._full_us.items() if full_us > now_us}
        permitted: dict[str, int] = {}
        for account, report in spent.items():
            full_us = max(now_us, self._full_us.get(account, 0.0)) + report.calls * report.interval_us
            full_us = min(full_us, now_us + MOST_OWED_US)
            calls_left = max(0, math.floor((BURST_US - (full_us - now_us)) / report.interval_us + _ROUNDING))
            permitted[account] = min(report.wanted, calls_left)
            self._full_us[account] = full_us + permitted[account] * report.interval_us
        half_used = {account for account, full_us in self._full_us.items() if full_us >= now_us + HALF_USED_US}
        return ReportResult(
            alive=len(self._alive_us),
            given=permitted,
            full_us={account: math.floor(self._full_us[account] - now_us) for account in half_used.union(spent)},
        )


class RunningCounts:
    """Counts the requests in flight of all workers, by account and by the worker's connection.

    A worker runs a number of requests without permission. Only its requests beyond this number are counted.
    """

    def __init__(self) -> None:
        self._running: dict[str, dict[object, int]] = {}

    def hold(self, connection: object, rows: Mapping[str, Running]) -> dict[str, int]:
        """Record the running requests of a worker.

        Returns:
            The number of wanted requests that may run, by account.
        """
        permitted: dict[str, int] = {}
        for account, row in rows.items():
            held = self._running.setdefault(account, {})
            elsewhere = sum(count for each, count in held.items() if each is not connection)
            permitted[account] = min(row.wanted, max(0, row.most - elsewhere - row.running))
            held[connection] = max(0, row.running + permitted[account] - row.local_allowance)
            if not any(held.values()):
                del self._running[account]
        return permitted

    def forget(self, connection: object) -> None:
        """Drop the counts of a worker whose connection was closed."""
        for account, held in list(self._running.items()):
            held.pop(connection, None)
            if not any(held.values()):
                del self._running[account]


class StoredFields:
    """The fields of the store, the claimed names, and the connections that receive events."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The stamp and the encrypted value of each field.
        self._fields: dict[str, tuple[int, str]] = {}
        self._version = 0
        self._claimed_until_s: dict[str, float] = {}
        self._subscribers: set[asyncio.StreamWriter] = set()

    @property
    def version(self) -> str | None:
        """Return a token that changes with every write, or None if nothing was ever written."""
        return str(self._version) if self._version else None

    def read(self) -> dict[str, tuple[int, str]]:
        """Return all fields."""
        return self._fields

    def merge(self, fields: Mapping[str, tuple[int, str]]) -> None:
        """Write each field whose stamp is later than the stored one, and notify the subscribers of a change."""
        later = {
            field: (int(stamp), str(encrypted))
            for field, (stamp, encrypted) in fields.items()
            if field not in self._fields or stamp > self._fields[field][0]
        }
        if later:
            self._fields |= later
            self._version += 1
            for subscriber in self._subscribers:
                _send_event(subscriber)

    def forget(self, fields: Iterable[str]) -> None:
        """Delete fields."""
        for field in fields:
            self._fields.pop(field, None)

    def claim(self, name: str, for_s: float) -> bool:
        """Claim a name for a number of seconds; return false if the name is already claimed."""
        now_s = self._clock()
        self._claimed_until_s = {each: until_s for each, until_s in self._claimed_until_s.items() if until_s > now_s}
        if name in self._claimed_until_s:
            return False
        self._claimed_until_s[name] = now_s + for_s
        return True

    def subscribe(self, connection: asyncio.StreamWriter) -> None:
        """Send an event to this connection now, and after each change."""
        self._subscribers.add(connection)
        _send_event(connection)

    def unsubscribe(self, connection: asyncio.StreamWriter) -> None:
        """Send no more events to this connection."""
        self._subscribers.discard(connection)


def _send_event(connection: asyncio.StreamWriter) -> None:
    # An unread event tells a worker enough, and the events for a suspended worker must not fill the memory.
    if not connection.transport.get_write_buffer_size():
        connection.write(b"{}\n")


class ParentState:
    """The state of the store, in the memory of the parent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = CallCounts(clock)
        self._running = RunningCounts()
        self._fields = StoredFields(clock)

    def answer(self, request: Mapping[str, Any], connection: asyncio.StreamWriter) -> dict[str, Any] | None:
        """Carry out a request of a worker, and return the response; None if events are the response.

        Raises:
            ValueError, TypeError, KeyError: The request is malformed.
        """
        match request["do"]:
            case "count":
                spent = {account: Spent(*numbers) for account, numbers in request["spent"].items()}
                counted = self._counts.count(request["name"], spent)
                return {"alive": counted.alive, "given": counted.given, "full": counted.full_us}
            case "hold":
                rows = {account: Running(*numbers) for account, numbers in request["running"].items()}
                return {"given": self._running.hold(connection, rows)}
            case "version":
                return {"version": self._fields.version}
            case "read":
                return {"fields": self._fields.read()}
            case "merge":
                self._fields.merge(request["fields"])
            case "forget":
                self._fields.forget(request["fields"])
            case "claim":
                return {"claimed": self._fields.claim(request["name"], request["for_s"])}
            case "events":
                self._fields.subscribe(connection)
                return None
            case unknown:
                raise ValueError(f"unknown request {unknown}")
        return {}

    def drop(self, connection: asyncio.StreamWriter) -> None:
        """Forget a connection that was closed."""
        self._running.forget(connection)
        self._fields.unsubscribe(connection)


@asynccontextmanager
async def serving_store(worker_config: WorkerConfig, state: ParentState | None = None) -> AsyncIterator[None]:
    """Serve the store to all workers for the duration of the context."""
    held = state or ParentState()
    path = worker_config.parent_socket
    connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = asyncio.current_task()
        try:
            while line := await reader.readline():
                request = json_bytes.loads(line)
                if not hmac.compare_digest(str(request["secret"]), worker_config.secret):
                    return
                response = held.answer(request, writer)
                if response is not None:
                    writer.write(json_bytes.dumps(response) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.debug("connection of a worker failed", extra={"reason": str(error)})
        finally:
            held.drop(writer)
            writer.close()
            del connections[writer]

    server = await asyncio.start_unix_server(answer, str(path), limit=_MAX_LINE_BYTES)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        # End the tasks, which asyncio would otherwise report as cancelled.
        tasks = [task for task in connections.values() if task is not None]
        for connection in connections:
            connection.transport.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=_TIMEOUT_S)


class ParentStore:
    """A worker's connection to the store in the parent, for one request at a time (implements `SharedStore`)."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self._worker_config = worker_config
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._requesting = anyio.Lock()

    async def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        rows = {account: [calls.calls, calls.wanted, calls.interval_us] for account, calls in spent.items()}
        answer = await self._request("count", name=name, spent=rows)
        return ReportResult(answer["alive"], given=answer["given"], full_us=answer["full"])

    async def hold(self, rows: Mapping[str, Running]) -> dict[str, int]:
        """Report the running requests of this worker to the parent.

        Returns:
            The number of wanted requests that may run, by account.

        Raises:
            StoreTrouble: The parent does not respond.
        """
        numbers = {account: [row.running, row.wanted, row.most, row.local_allowance] for account, row in rows.items()}
        answer = await self._request("hold", running=numbers)
        return {account: int(permitted) for account, permitted in answer["given"].items()}

    async def version(self) -> str | None:
        answer = await self._request("version")
        return None if answer["version"] is None else str(answer["version"])

    async def read(self) -> dict[str, StampedValue]:
        answer = await self._request("read", within_s=_TRANSFER_S)
        return {field: StampedValue(stamp, encrypted) for field, (stamp, encrypted) in answer["fields"].items()}

    async def merge(self, fields: Mapping[str, StampedValue]) -> None:
        rows = {field: [value.stamp, value.encrypted] for field, value in fields.items()}
        await self._request("merge", within_s=_TRANSFER_S, fields=rows)

    async def forget(self, fields: Iterable[str]) -> None:
        await self._request("forget", fields=list(fields))

    async def claim(self, name: str, for_s: float) -> bool:
        answer = await self._request("claim", name=name, for_s=for_s)
        return bool(answer["claimed"])

    async def events(self) -> AsyncIterator[None]:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._open()
            writer.write(self._line("events"))
            while await reader.readline():
                yield None
            raise ConnectionResetError("the parent has closed the connection")
        except (OSError, ValueError) as error:
            raise _down(error) from None
        finally:
            if writer is not None:
                writer.close()

    async def close(self) -> None:
        self._disconnect()

    async def _request(self, do: str, *, within_s: float = _TIMEOUT_S, **about: Any) -> Any:
        line = self._line(do, **about)
        try:
            with anyio.fail_after(within_s):
                async with self._requesting:
                    return await self._exchange(line)
        except TimeoutError:
            raise StoreTrouble("slow", "the parent of the workers does not answer") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _down(error) from None

    def _line(self, do: str, **about: Any) -> bytes:
        return json_bytes.dumps({"secret": self._worker_config.secret, "do": do, **about}) + b"\n"

    def _disconnect(self) -> None:
        """Close the connection; the next request opens another one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self._worker_config.parent_socket), limit=_MAX_LINE_BYTES)

    async def _exchange(self, line: bytes) -> Any:
        try:
            if self._streams is None:
                self._streams = await self._open()
            reader, writer = self._streams
            writer.write(line)
            await writer.drain()
            answered = await reader.readline()
            if not answered:
                raise ConnectionResetError("the parent has closed the connection")
            return json_bytes.loads(answered)
        except BaseException:
            # Close the connection; otherwise the next request would read the response to this request.
            self._disconnect()
            raise


def _down(error: Exception) -> StoreTrouble:
    return StoreTrouble("down", f"the parent of the workers does not answer ({error})")
