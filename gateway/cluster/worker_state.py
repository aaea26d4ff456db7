"""State shared by workers: counters in their parent, and a document of changes.

Counters: a worker sends each report as one line of JSON over a Unix socket in the private directory, and the parent
responds with one line. The parent counts in the same way as the scripts of `redis_store`.

Document: it contains the text of the configuration in use, the changes of administrators, the notes, the lock file
(approved tool definitions), and the decisions about changed definitions. A document replaces the whole state of a
worker, so a worker that has missed a change or was restarted needs only the latest document.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import anyio

from gateway.cluster.roles import PeerLost, Peers, WorkerConfig
from gateway.cluster.shared_store import (
    ALIVE_S,
    BURST_US,
    HALF_USED_US,
    MOST_OWED_US,
    ReportResult,
    Running,
    Spent,
    StoreTrouble,
)
from gateway.config.overlay import Change, Edit
from gateway.fleet.fleet import Fleet
from gateway.fleet.operator_notes import OperatorNotes
from gateway.fleet.reload import Reloader
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import ConfigError
from registry.errors import LockfileRejected
from registry.lock.lockfile import parse_lockfile

log = logging.getLogger(__name__)

# Time limit for a response: the same as the default for a shared store. The parent responds at once, unless it is
# suspended or has ended.
_TIMEOUT_S: Final = 0.5
# Maximum size of a report. A worker has at most ten thousand accounts, whose report takes a megabyte.
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
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


@asynccontextmanager
async def counting_for_workers(worker_config: WorkerConfig, counts: CallCounts | None = None) -> AsyncIterator[None]:
    """Count the calls of all workers in their parent for the duration of the context."""
    counts, running = counts or CallCounts(), RunningCounts()
    path = worker_config.parent_socket

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                request = json_bytes.loads(line)
                if not hmac.compare_digest(str(request["secret"]), worker_config.secret):
                    return
                writer.write(json_bytes.dumps(_answer(request, counts, running, writer)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.debug("connection of a worker failed", extra={"reason": str(error)})
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
    """A worker's connection to the counters in the parent, for one request at a time (implements `CallStore`)."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        self._worker_config = worker_config
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def count(self, name: str, spent: Mapping[str, Spent]) -> ReportResult:
        rows = {account: [calls.calls, calls.wanted, calls.interval_us] for account, calls in spent.items()}
        answer = await self._request({"name": name, "spent": rows})
        return ReportResult(answer["alive"], given=answer["given"], full_us=answer["full"])

    async def hold(self, rows: Mapping[str, Running]) -> dict[str, int]:
        """Report the running requests of this worker to the parent.

        Returns:
            The number of wanted requests that may run, by account.

        Raises:
            StoreTrouble: The parent does not respond.
        """
        numbers = {account: [row.running, row.wanted, row.most, row.local_allowance] for account, row in rows.items()}
        answer = await self._request({"running": numbers})
        return {account: int(permitted) for account, permitted in answer["given"].items()}

    async def _request(self, request: dict[str, Any]) -> Any:
        line = json_bytes.dumps({"secret": self._worker_config.secret, **request}) + b"\n"
        try:
            with anyio.fail_after(_TIMEOUT_S):
                return await self._exchange(line)
        except TimeoutError:
            self.close()
            raise StoreTrouble("slow", "the parent of the workers does not answer") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.close()
            raise StoreTrouble("down", f"the parent of the workers does not answer ({error})") from None
        except BaseException:
            # Close the connection; otherwise the next request would read the response to this request.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def _exchange(self, line: bytes) -> Any:
        if self._streams is None:
            path = str(self._worker_config.parent_socket)
            self._streams = await asyncio.open_unix_connection(path, limit=_MAX_LINE_BYTES)
        reader, writer = self._streams
        writer.write(line)
        await writer.drain()
        answered = await reader.readline()
        if not answered:
            raise ConnectionResetError("the parent has closed the connection")
        return json_bytes.loads(answered)


TARGET: Final = "/shared/state"


class SharedState:
    """This worker's copy of the shared document."""

    def __init__(
        self,
        fleet: Fleet,
        notes: OperatorNotes,
        reloader: Reloader,
        peers: Peers,
        *,
        joined: bool,
    ) -> None:
        """Create a copy from the state with which this worker has started.

        Args:
            fleet: The upstreams and the lock file.
            notes: The notes about tools.
            reloader: The configuration with changes of administrators.
            peers: The other workers.
            joined: True if the worker has started together with the others, so that it has the current state.
        """
        self._fleet = fleet
        self._notes = notes
        self._reloader = reloader
        self._peers = peers
        self._version = 1
        self._changing = anyio.Lock()
        self.joined = joined

    def document(self) -> dict[str, Any]:
        """Return the state of this worker as a document."""
        return {
            "version": self._version,
            "text": self._reloader.text,
            "stamp": self._reloader.stamp,
            "changes": [asdict(change) for change in self._reloader.overlay.changes],
            "notes": self._notes.entries(),
            "lock": self._fleet.lock.text,
            "decisions": self._fleet.lock.decisions.entries(),
        }

    async def push(self) -> None:
        """Send the document to every other worker; a worker that is not running asks for the document at its start."""
        async with self._changing:
            # Versions are at least the current time, so that a restarted first worker continues with higher versions.
            self._version = max(self._version + 1, time.time_ns())
            body = json_bytes.dumps(self.document())
            async with anyio.create_task_group() as group:
                for index in self._peers.other_workers:
                    group.start_soon(self._send, index, body)

    async def _send(self, index: int, body: bytes) -> None:
        try:
            reply = await self._peers.request(index, "PUT", TARGET, body=body)
        except PeerLost as error:
            log.warning("change not sent to worker %d", index, extra={"reason": str(error)})
        else:
            if reply.status >= 300:
                reason = reply.body[:500].decode(errors="replace")
                log.error("change refused by worker %d", index, extra={"reason": reason})

    async def pull(self) -> None:
        """Fetch the documents of the other workers, and apply the latest."""
        documents: list[dict[str, Any]] = []

        async def fetch(index: int) -> None:
            try:
                reply = await self._peers.request(index, "GET", TARGET)
            except PeerLost as error:
                log.debug("%s", error)
            else:
                if reply.status == 200:
                    documents.append(json_bytes.loads(reply.body))

        async with anyio.create_task_group() as group:
            for index in self._peers.other_workers:
                group.start_soon(fetch, index)
        if documents:
            await self.apply_document(max(documents, key=lambda document: document["version"]))
        self.joined = True

    async def apply_document(self, document: dict[str, Any]) -> None:
        """Replace this worker's state by a document, unless the same or a later document was already applied."""
        async with self._changing:
            if document["version"] <= self._version:
                return
            self._version = document["version"]
            text, path = document["text"], self._reloader.path
            changes = tuple(Change(**each) for each in document["changes"])
            try:
                if (text, document["stamp"]) != (self._reloader.text, self._reloader.stamp):
                    await self._reloader.apply_text(text, path, quiet=True, changes=changes)
                elif changes != self._reloader.overlay.changes:
                    await self._reloader.change(Edit.from_difference(self._reloader.overlay.changes, changes))
            except ConfigError as error:
                log.error("configuration of the other workers rejected", extra={"reason": str(error)})
            self._notes.replace_all(document["notes"])
            self._fleet.lock.decisions.replace_all(document["decisions"])
            await apply_lock(self._fleet, document["lock"])


async def apply_lock(fleet: Fleet, text: str | None) -> None:
    """Use a lock file with this text from now on, or no lock file if the text is None. An invalid text is logged."""
    if text == fleet.lock.text:
        return
    lockfile = None
    if text is not None:
        try:
            lockfile = await run_in_thread(partial(parse_lockfile, text))
        except LockfileRejected as rejected:
            log.error("lock file of another process rejected", extra={"reason": str(rejected)})
            return
        await run_in_thread(partial(fleet.lock.expect, lockfile))
    await fleet.relock(lockfile)
