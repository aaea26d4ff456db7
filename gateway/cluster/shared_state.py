"""The state that all workers share beside the file, as one document: the first worker writes it, all others take it.

It has the text of the configuration in use, the servers that administrators have added, changed or
removed since, and their notes. A worker that takes a document becomes what it says, from whatever
it was before; so one that missed a change, or starts anew, needs the latest document and nothing else.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import anyio

from gateway import wire
from gateway.cluster.peers import PeerLost, Peers
from gateway.config.plan import Steps
from gateway.config.upstream_types.registration import read_server
from gateway.errors import ConfigError
from gateway.fleet import Fleet
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloadable, Reloader

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
            fleet: Its upstreams.
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
        configured, running = self._running.config.servers, self._fleet.servers
        return {
            "version": self._version,
            "text": self._reloader.text,
            "stamp": self._reloader.stamp,
            "servers": {
                alias: one.model_dump(mode="json", by_alias=True, exclude_unset=True)
                for alias, one in running.items()
                if configured.get(alias) != one
            },
            "removed": [alias for alias in configured if alias not in running],
            "notes": self._notes.entries(),
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
            if (text, document["stamp"]) != (self._reloader.text, self._reloader.stamp):
                try:
                    await self._reloader.take(text, path, quiet=True)
                except ConfigError as error:
                    log.error("the configuration of the other workers is not used here: %s", error)
            self._converge(document)
            self._notes.replace_all(document["notes"])

    def _converge(self, document: dict[str, Any]) -> None:
        """Serve the servers that the document names, and no others."""
        names, running = self._running.config.gateway.names, self._fleet.servers
        configured = self._running.config.servers
        wanted = {alias: config for alias, config in configured.items() if alias not in document["removed"]}
        wanted |= {alias: read_server(config) for alias, config in document["servers"].items()}
        changed = [alias for alias, config in running.items() if wanted.get(alias) != config]
        steps = Steps(
            add=tuple(alias for alias in wanted if alias not in running),
            remove=tuple(alias for alias in changed if alias not in wanted),
            replace=tuple(alias for alias in changed if alias in wanted),
            adjust=(),
            later=(),
        )
        if steps.add or changed:
            self._fleet.apply(wanted, steps, prefix=names.prefix, max_length=names.max_length)
