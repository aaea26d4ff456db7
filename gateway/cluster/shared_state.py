"""The state that all workers share beside the file, as one document: the first worker writes it, all others take it.

It has the text of the configuration in use, what administrators have changed over it, their notes, and the lock file. A
worker that takes a document becomes what it says, from whatever it was before; so one that missed a change, or starts
anew, needs the latest document and nothing else.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import anyio

from gateway import wire
from gateway.cluster.peers import PeerLost, Peers
from gateway.config.overlay import Change, Edit
from gateway.errors import ConfigError
from gateway.fleet import Fleet
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloadable, Reloader
from gateway.worker_thread import run_in_thread
from registry.errors import LockfileRejected
from registry.lock.lockfile import parse_lockfile

log = logging.getLogger(__name__)

TARGET: Final = "/shared/state"


class SharedState:
    """One worker's copy of the document."""

    def __init__(
        self,
        running: Reloadable,
        fleet: Fleet,
        notes: OperatorNotes,
        reloader: Reloader,
        peers: Peers,
        *,
        joined: bool,
    ) -> None:
        """Hold what this worker started with.

        Args:
            running: Its gateway.
            fleet: Its upstreams, with the lock file.
            notes: Its notes.
            reloader: Reads its configuration.
            peers: The other workers.
            joined: It started together with the others, and has nothing to ask them for.
        """
        self._running = running
        self._fleet = fleet
        self._notes = notes
        self._reloader = reloader
        self._peers = peers
        self._version = 1
        self._changing = anyio.Lock()
        self.joined = joined

    def document(self) -> dict[str, Any]:
        """The document as this worker holds it."""
        return {
            "version": self._version,
            "text": self._reloader.text,
            "stamp": self._reloader.stamp,
            "changes": [asdict(change) for change in self._reloader.overlay.changes],
            "notes": self._notes.entries(),
            "lock": self._fleet.lock.text,
        }

    async def push(self) -> None:
        """Have every other worker take this document; one that is not there asks for it at its start."""
        async with self._changing:
            # From the wall clock, so that a worker that replaces this one goes on above it.
            self._version = max(self._version + 1, time.time_ns())
            body = wire.dumps(self.document())
            async with anyio.create_task_group() as group:
                for index in self._peers.others:
                    group.start_soon(self._send, index, body)

    async def _send(self, index: int, body: bytes) -> None:
        try:
            reply = await self._peers.ask(index, "PUT", TARGET, body=body)
        except PeerLost as lost:
            log.warning("a change did not reach a worker: %s", lost)
        else:
            if reply.status >= 300:
                log.error("worker %d did not take a change: %s", index, reply.body[:500].decode(errors="replace"))

    async def pull(self) -> None:
        """Take the latest document that another worker has."""
        found: list[dict[str, Any]] = []

        async def fetch(index: int) -> None:
            try:
                reply = await self._peers.ask(index, "GET", TARGET)
            except PeerLost as lost:
                log.debug("%s", lost)
            else:
                if reply.status == 200:
                    found.append(wire.loads(reply.body))

        async with anyio.create_task_group() as group:
            for index in self._peers.others:
                group.start_soon(fetch, index)
        if found:
            await self.take(max(found, key=lambda document: document["version"]))
        self.joined = True

    async def take(self, document: dict[str, Any]) -> None:
        """Become what the document says, unless a later one was taken already."""
        async with self._changing:
            if document["version"] <= self._version:
                return
            self._version = document["version"]
            text, path = document["text"], self._running.config.path
            changes = tuple(Change(**each) for each in document["changes"])
            try:
                if (text, document["stamp"]) != (self._reloader.text, self._reloader.stamp):
                    await self._reloader.take(text, path, quiet=True, changes=changes)
                elif changes != self._reloader.overlay.changes:
                    await self._reloader.change(Edit.between(self._reloader.overlay.changes, changes))
            except ConfigError as error:
                log.error("the configuration of the other workers is not used here: %s", error)
            self._notes.replace_all(document["notes"])
            await take_lock(self._fleet, document["lock"])


async def take_lock(fleet: Fleet, text: str | None) -> None:
    """Have a lock file of this text, or none."""
    if text == fleet.lock.text:
        return
    lockfile = None
    if text is not None:
        try:
            lockfile = await run_in_thread(partial(parse_lockfile, text))
        except LockfileRejected as rejected:
            log.error("the lock file of the others is not used here: %s", rejected)
            return
        await run_in_thread(partial(fleet.lock.expect, lockfile))
    fleet.lock.lockfile = lockfile
    await fleet.relock()
