"""What holds at present beside the file, as one document: the first worker writes it, all others take it.

It has the text of the configuration in use, the servers that administrators have added, changed or
removed since, and their notes. A worker that takes a document becomes what it says, from whatever
it was before; so one that missed a change, or starts anew, needs the latest document and nothing else.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from gateway import wire
from gateway.cluster.assignment import FIRST, Assignment
from gateway.cluster.peers import PeerLost, Peers
from gateway.config.upstream_types.registration import read_server
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.reload import Reloader

log = logging.getLogger(__name__)

TARGET: Final = "/shared/present"


class Present:
    """One worker's hold on the document."""

    def __init__(self, gateway: Gateway, reloader: Reloader, peers: Peers, assignment: Assignment) -> None:
        self._gateway = gateway
        self._reloader = reloader
        self._peers = peers
        self._assignment = assignment
        self._version = 1
        self._turn = anyio.Lock()
        self.joined = not assignment.again

    def document(self) -> dict[str, Any]:
        """What holds at present."""
        configured, running = self._gateway.config.servers, self._gateway.fleet.servers
        return {
            "version": self._version,
            "text": self._reloader.text,
            "servers": {
                alias: one.model_dump(mode="json", by_alias=True, exclude_unset=True)
                for alias, one in running.items()
                if configured.get(alias) != one
            },
            "removed": [alias for alias in configured if alias not in running],
            "notes": self._gateway.notebook.entries(),
        }

    async def push(self) -> None:
        """Have every other worker take what holds here; who is not there asks for it at its start."""
        async with self._turn:
            # Of the wall clock, so that a successor of this worker goes on above it.
            self._version = max(self._version + 1, time.time_ns())
            body = wire.dumps(self.document())
            async with anyio.create_task_group() as group:
                for index in self._peers.others:
                    group.start_soon(self._hand, index, body)

    async def _hand(self, index: int, body: bytes) -> None:
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
            await self.take(max(found, key=lambda one: one["version"]))
        self.joined = True

    async def take(self, document: dict[str, Any]) -> None:
        """Become what the document says, unless a later one was taken already."""
        async with self._turn:
            if document["version"] <= self._version:
                return
            self._version = document["version"]
            text, path = document["text"], self._gateway.config.path
            if text != self._reloader.text:
                try:
                    await self._reloader.take(text, path, quiet=True)
                except ConfigError as error:
                    log.error("the configuration of the other workers is not used here: %s", error)
            self._converge(document)
            self._gateway.notebook.take(document["notes"])

    def _converge(self, document: dict[str, Any]) -> None:
        gateway, fleet = self._gateway, self._gateway.fleet
        wanted = {alias: one for alias, one in gateway.config.servers.items() if alias not in document["removed"]}
        wanted |= {alias: read_server(one) for alias, one in document["servers"].items()}
        for alias in [alias for alias, one in fleet.servers.items() if wanted.get(alias) != one]:
            fleet.remove(alias)
        for alias, one in wanted.items():
            if alias not in fleet.servers:
                try:
                    fleet.add(alias, one)
                except ConfigError as error:
                    log.error("a server of the other workers is not served here: %s", error, extra={"server": alias})

    @property
    def writes(self) -> bool:
        """Whether this is the worker whose changes all others take."""
        return self._assignment.index == FIRST
