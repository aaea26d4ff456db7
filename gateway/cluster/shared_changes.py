"""What every gateway of a cluster holds alike: fields with values, of which the latest counts, wherever it was written.

Each gateway has all fields in memory and on its disk, and the store is where they meet. It may be away, or come back
empty: every gateway then brings what it has. A field that was removed is kept as such for a day, so that a gateway
which was away meanwhile does not bring it back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from gateway import wire
from gateway.cluster.sealing import NotSealed, Seal
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import SharedStore, Stamped, StoreTrouble
from gateway.files import NotOurs, read_private, write_whole

log = logging.getLogger(__name__)

FILE_NAME: Final = "cluster.json"
# A change that nobody announced, and one whose announcement was lost, are found within two of these.
POLL_S: Final = 0.5
# Until the store is asked for announcements again after it has failed.
_SUBSCRIBE_AGAIN_S: Final = 1.0
# Longer than a gateway can be cut off and still be thought of as one of the cluster.
_REMOVED_KEPT_US: Final = 86_400_000_000
# All that administrators add, and what callers are allowed, with a margin; beyond it the store is not believed.
MAX_FIELDS: Final = 50_000
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with the time at which it was written; None for a field that was removed."""

    stamp: int
    value: Any


class Part(Protocol):
    """A part of a gateway whose state is shared, as fields."""

    @property
    def prefix(self) -> str:
        """What its fields begin with."""

    def fields(self) -> dict[str, Any]:
        """What it holds now, by field without the prefix."""

    async def take(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hold what these fields say, and nothing else but what is changed here meanwhile.

        Returns:
            The fields as they are now, without what was changed meanwhile.
        """


class SharedChanges:
    """The fields as this gateway has them."""

    def __init__(
        self,
        store: SharedStore,
        seal: Seal,
        status: StoreStatus,
        parts: tuple[Part, ...],
        *,
        state_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Share these parts.

        Args:
            store: Where gateways meet.
            seal: Seals what is there.
            status: Is told how the store does.
            parts: What is shared.
            state_dir: Where the fields are kept; None for nowhere.
            clock: Seconds since 1970.
        """
        self._store = store
        self._seal = seal
        self._status = status
        self._parts = parts
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        # Written here and not known to be in the store.
        self._pending: set[str] = set()
        # Of each part, what it held when it was last looked at: what differs was changed here.
        self._seen: dict[str, dict[str, Any]] = {part.prefix: {} for part in parts}
        self._version: str | None = None
        self._syncing = anyio.Lock()
        self._wanted = anyio.Event()
        self._saved: dict[str, Entry] = {}

    @property
    def pending(self) -> int:
        """How many changes of this gateway the store does not have yet."""
        return len(self._pending)

    def wake(self) -> None:
        """Say that something has changed here."""
        self._wanted.set()

    async def begin(self) -> None:
        """Hold what was held before, and what the store has; returns soon, whether it answers or not."""
        if self._path is not None:
            self._entries = self._saved = await anyio.to_thread.run_sync(self._read, self._path)
            # What is not in the store any more is brought there.
            self._pending = set(self._entries)
        await self._hand_out()
        await self.sync()

    async def run(self) -> None:
        """Share what changes here and take what changes elsewhere, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow)
            while True:
                with anyio.move_on_after(POLL_S):
                    await self._wanted.wait()
                await self.sync()

    async def sync(self, *, always: bool = False) -> bool:
        """Bring what has changed here, and take what has changed elsewhere; returns whether the store answered.

        Args:
            always: Read the store whether it says that it has changed or not.
        """
        async with self._syncing:
            self._wanted = anyio.Event()
            self._look()
            try:
                version = await self._store.version()
                if always or version is None or version != self._version:
                    await self._merge(await self._store.read())
                    self._version = version
                if self._pending:
                    await self._bring()
                self._status.answered("changes")
            except StoreTrouble as trouble:
                self._status.failed("changes", trouble)
                return False
            finally:
                await self._save()
            return True

    async def _follow(self) -> None:
        """Take what others announce."""
        while True:
            try:
                async for _ in self._store.events():
                    self._wanted.set()
            except StoreTrouble as trouble:
                log.debug("announcements of the shared store: %s", trouble)
            # A poll finds what was announced meanwhile.
            await anyio.sleep(_SUBSCRIBE_AGAIN_S)

    def _look(self) -> None:
        """Note what has changed here."""
        latest = max((entry.stamp for entry in self._entries.values()), default=0)
        for part in self._parts:
            before, now = self._seen[part.prefix], part.fields()
            for name in {**before, **now}:
                if before.get(name) == now.get(name):
                    continue
                field = part.prefix + name
                # After all that is known here, even where another clock is ahead of ours.
                latest = max(latest + 1, int(self._clock() * 1e6))
                self._entries[field] = Entry(latest, now.get(name))
                self._pending.add(field)
            self._seen[part.prefix] = now

    async def _merge(self, stored: Mapping[str, Stamped]) -> None:
        """Take what is later in the store, and note what is missing there."""
        if len(stored) > MAX_FIELDS:
            log.error("the shared store has more than %d changes and is not read", MAX_FIELDS)
            return
        # Again, since the store was waited for: from here on nothing waits until they are handed out.
        self._look()
        touched = False
        for field, one in stored.items():
            own = self._entries.get(field)
            if own is not None and own.stamp > one.stamp:
                self._pending.add(field)
                continue
            if own is not None and own.stamp == one.stamp and field not in self._pending:
                continue
            try:
                value = self._seal.open(one.sealed, f"{field}\n{one.stamp}")
            except NotSealed as error:
                log.error("a change in the shared store is not believed: %s", error)
                continue
            self._pending.discard(field)
            if own is None or own.value != value:
                touched = True
            self._entries[field] = Entry(one.stamp, value)
        self._pending.update(field for field in self._entries if field not in stored)
        if touched:
            await self._hand_out()

    async def _hand_out(self) -> None:
        for part in self._parts:
            length = len(part.prefix)
            held = {
                field[length:]: entry.value
                for field, entry in self._entries.items()
                if entry.value is not None and field.startswith(part.prefix)
            }
            if held == self._seen[part.prefix]:
                continue
            try:
                # What the part makes of it here, so that it is not taken for a change by somebody else.
                self._seen[part.prefix] = dict(await part.take(held))
            except Exception:  # boundary: what another gateway wrote must not end this one
                log.exception("changes of other gateways are not used: %s", part.prefix)
                self._seen[part.prefix] = part.fields()

    async def _bring(self) -> None:
        now_us = int(self._clock() * 1e6)
        old = [
            field
            for field, entry in self._entries.items()
            if entry.value is None and now_us - entry.stamp > _REMOVED_KEPT_US
        ]
        for field in old:
            del self._entries[field]
            self._pending.discard(field)
        if old:
            await self._store.forget(old)
        going = {field: self._entries[field] for field in self._pending}
        if going:
            await self._store.merge(
                {
                    field: Stamped(entry.stamp, self._seal.seal(entry.value, f"{field}\n{entry.stamp}"))
                    for field, entry in going.items()
                }
            )
        self._pending.clear()

    # on disk

    async def _save(self) -> None:
        if self._path is None or self._entries == self._saved:
            return
        self._saved = dict(self._entries)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._write, self._path, self._saved)

    def _write(self, path: Path, entries: Mapping[str, Entry]) -> None:
        document = {field: [entry.stamp, entry.value] for field, entry in entries.items()}
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, wire.dumps({"sealed": self._seal.seal(document, FILE_NAME)}))
        except OSError as error:
            log.warning("the changes of administrators cannot be kept: %s", error)

    def _read(self, path: Path) -> dict[str, Entry]:
        try:
            content = read_private(path, most_bytes=_MAX_FILE_BYTES)
            document = self._seal.open(wire.loads(content)["sealed"], FILE_NAME)
            return {str(field): Entry(int(stamp), value) for field, (stamp, value) in document.items()}
        except FileNotFoundError:
            return {}
        except (NotOurs, NotSealed, OSError, ValueError, TypeError, KeyError) as error:
            log.warning("the kept changes of administrators are ignored: %s", error)
            return {}
