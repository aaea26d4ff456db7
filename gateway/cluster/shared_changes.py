"""State that all replicas of a cluster hold alike, as fields: of two values of a field the later one counts.

Each replica has all fields in memory and in a file, and the store is where replicas meet. The store may be away or come
back empty: every replica then writes what it has. A field that was removed leaves a removal behind, so that a replica
which was away, with the field in its file, does not bring it back.

A replica that starts while the store is away learns from its file and from the replicas that run. Until it has heard
from one of these it does not know what was revoked (`informed`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from gateway import wire
from gateway.cluster.sealing import NotSealed, Seal
from gateway.cluster.status import StoreStatus
from gateway.cluster.store import SharedStore, Stamped, StoreTrouble
from gateway.files import NotOurs, make_private_folder, read_private, write_whole

log = logging.getLogger(__name__)

FILE_NAME: Final = "cluster.json"
# A change whose announcement was lost is found within two of these.
POLL_S: Final = 0.5
# How long to wait before subscribing again after the store has failed.
_SUBSCRIBE_AGAIN_S: Final = 1.0
# How often other replicas are asked by one that has not reached the store since its start.
_ASK_PEERS_S: Final = 2.0
_DAY_US: Final = 86_400_000_000
# A volume of a replica that was scaled away may come back after months. A removal takes some 150 bytes.
_REMOVAL_KEPT_US: Final = 366 * _DAY_US
# Fields that are not in files are only in replicas that run: longer than one can be cut off and go on.
_PASSING_REMOVAL_KEPT_US: Final = _DAY_US
# All that administrators add, and what callers are allowed, with a margin; a larger store is not read.
MAX_FIELDS: Final = 50_000
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# For a field of which it is not known when it was written: any other value is later, and so is a removal.
_EARLIEST: Final = 1
_PEER_PLACE: Final = "for another replica"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with the time at which it was written, in microseconds since 1970; None for a removed field."""

    stamp: int
    value: Any


AskPeers = Callable[[], Awaitable[list[str]]]
"""Returns what the `document` of each replica that answers has."""


class Part(Protocol):
    """A part of a gateway whose state is shared, as fields.

    Attributes:
        prefix: What the names of its fields begin with.
        passing: Whether its fields are only of use for a while, and are not written to files.
    """

    @property
    def prefix(self) -> str: ...

    @property
    def passing(self) -> bool: ...

    def fields(self) -> dict[str, Any]:
        """Return what it holds now, by field without the prefix."""

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hold these fields, and nothing else but what is changed here meanwhile.

        Returns:
            The fields as they are now, without what was changed meanwhile.
        """


class SharedChanges:
    """The fields as this replica has them.

    Attributes:
        informed: Whether this replica has heard from its file, the store or another replica since its start.
    """

    def __init__(
        self,
        store: SharedStore,
        seal: Seal,
        status: StoreStatus,
        parts: tuple[Part, ...],
        *,
        state_dir: Path | None = None,
        ask_peers: AskPeers | None = None,
        on_informed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Share these parts.

        Args:
            store: Where replicas meet.
            seal: Encrypts what is stored.
            status: Is told how the store does.
            parts: What is shared.
            state_dir: Where the fields are kept; None for nowhere.
            ask_peers: Asks the other replicas; None where they cannot be asked.
            on_informed: Called once this replica is informed.
            clock: Seconds since 1970.
        """
        self._store = store
        self._seal = seal
        self._status = status
        self._parts = parts
        self._passing = tuple(part.prefix for part in parts if part.passing)
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._ask_peers = ask_peers
        self._on_informed = on_informed
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        # Written here and not known to be in the store.
        self._pending: set[str] = set()
        # What each part held when it was last looked at: what differs was changed here.
        self._seen: dict[str, dict[str, Any]] = {part.prefix: {} for part in parts}
        self._version: str | None = None
        self._syncing = anyio.Lock()
        self._wanted = anyio.Event()
        # What the file has; None where that is not known.
        self._saved: tuple[bool, dict[str, Entry]] | None = None
        self._is_saving_failing = False
        self._store_was_read = False
        self._peers_asked_s = -_ASK_PEERS_S
        self.informed = False

    @property
    def pending(self) -> int:
        """The number of changes of this replica that the store does not have yet."""
        return len(self._pending)

    def wake(self) -> None:
        """Note that something has changed here."""
        self._wanted.set()

    def document(self) -> str | None:
        """Return all fields, encrypted, for a replica that starts; None while this one is not informed itself."""
        if not self.informed:
            return None
        return self._seal.seal(_as_json(self._entries), _PEER_PLACE)

    async def begin(self) -> None:
        """Hold what was held before the restart, and what the store has; returns soon, whether it answers or not."""
        async with self._syncing:
            if self._path is not None:
                self._saved = await anyio.to_thread.run_sync(self._read, self._path)
                if self._saved is not None:
                    is_informed, found = self._saved
                    self._entries = dict(found)
                    if is_informed:
                        self._note_informed()
            for part in self._parts:
                # Parts have files of their own, in which a replica that has crashed may have what was never shared.
                held = self._seen[part.prefix] = part.fields()
                for name, value in held.items():
                    self._entries.setdefault(part.prefix + name, Entry(_EARLIEST, value))
            # Fields that are not in the store any more are written there.
            self._pending = set(self._entries)
            await self._apply()
        await self.sync()

    async def run(self) -> None:
        """Share what changes here and apply what changes elsewhere, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow)
            while True:
                with anyio.move_on_after(POLL_S):
                    await self._wanted.wait()
                await self.sync()

    async def sync(self, *, always: bool = False) -> bool:
        """Write what has changed here, and apply what has changed elsewhere; returns whether the store answered.

        What has changed here is in the file afterwards, even where the store does not answer.

        Args:
            always: Read the store whether it says that it has changed or not.
        """
        async with self._syncing:
            if self._wanted.is_set():
                self._wanted = anyio.Event()
            self._look()
            # Before the store is asked, which may take its time: a replica that crashes then has it in its file.
            await self._save()
            try:
                version = await self._store.version()
                if always or version is None or version != self._version:
                    await self._merge(await self._store.read())
                    self._version = version
                self._store_was_read = True
                self._note_informed()
                if self._pending:
                    await self._bring()
                self._status.answered("changes")
            except StoreTrouble as trouble:
                self._status.failed("changes", trouble)
                await self._learn_from_peers()
                return False
            finally:
                await self._save()
            return True

    async def _follow(self) -> None:
        """Wake up when another replica announces a change."""
        while True:
            try:
                async for _ in self._store.events():
                    self._wanted.set()
            except StoreTrouble as trouble:
                log.debug("subscription to the shared store failed: %s", trouble)
            # A poll finds what was announced meanwhile.
            await anyio.sleep(_SUBSCRIBE_AGAIN_S)

    async def _learn_from_peers(self) -> None:
        """Ask the replicas that run, as long as this one has not read the store since its start."""
        now_s = anyio.current_time()
        if self._ask_peers is None or self._store_was_read or now_s - self._peers_asked_s < _ASK_PEERS_S:
            return
        self._peers_asked_s = now_s
        for document in await self._ask_peers():
            try:
                entries = _from_json(self._seal.open(document, _PEER_PLACE))
            except (NotSealed, ValueError, TypeError, AttributeError) as error:
                log.error("the answer of another replica is not used: %s", error)
                continue
            self._look()
            later = {
                field: entry
                for field, entry in entries.items()
                if field not in self._entries or self._entries[field].stamp < entry.stamp
            }
            self._entries |= later
            # The store may come back without them, and so may the other replica.
            self._pending.update(later)
            await self._apply()
            self._note_informed()

    def _note_informed(self) -> None:
        if not self.informed:
            self.informed = True
            self._on_informed()

    def _look(self) -> None:
        """Note what has changed here."""
        latest = max((entry.stamp for entry in self._entries.values()), default=0)
        for part in self._parts:
            before, now = self._seen[part.prefix], part.fields()
            for name in {**before, **now}:
                if before.get(name) == now.get(name):
                    continue
                field = part.prefix + name
                # Later than all that is known here, even where another clock is ahead of ours.
                latest = max(latest + 1, int(self._clock() * 1e6))
                self._entries[field] = Entry(latest, now.get(name))
                self._pending.add(field)
            self._seen[part.prefix] = now

    async def _merge(self, stored: Mapping[str, Stamped]) -> None:
        """Apply what is later in the store, and note what is missing there."""
        if len(stored) > MAX_FIELDS:
            log.error("the shared store has more than %d changes and is not read", MAX_FIELDS)
            return
        # Again, because this replica has waited for the store: from here on it does not wait until all is applied.
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
                log.error("a change in the shared store is not used: %s", error)
                continue
            self._pending.discard(field)
            if own is None or own.value != value:
                touched = True
            self._entries[field] = Entry(one.stamp, value)
        self._pending.update(field for field in self._entries if field not in stored)
        if touched:
            await self._apply()

    async def _apply(self) -> None:
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
                # As the part holds it, so that it is not mistaken for a change by somebody else.
                self._seen[part.prefix] = dict(await part.apply(held))
            except Exception:  # boundary: what another replica wrote must not end this one
                log.exception("changes of other replicas are not used: %s", part.prefix)
                self._seen[part.prefix] = part.fields()

    async def _bring(self) -> None:
        """Write what the store lacks."""
        now_us = int(self._clock() * 1e6)
        old = [
            field
            for field, entry in self._entries.items()
            if entry.value is None
            and now_us - entry.stamp
            > (_PASSING_REMOVAL_KEPT_US if field.startswith(self._passing) else _REMOVAL_KEPT_US)
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
        if self._path is None:
            return
        kept = {field: entry for field, entry in self._entries.items() if not field.startswith(self._passing)}
        now = (self.informed, kept)
        if now == self._saved:
            return
        # Shielded: what is in the file must be known.
        with anyio.CancelScope(shield=True):
            written = await anyio.to_thread.run_sync(self._write, self._path, *now)
        # Tried again at the next look where it failed.
        self._saved = now if written else None

    def _write(self, path: Path, is_informed: bool, entries: Mapping[str, Entry]) -> bool:
        document = {"informed": is_informed, "fields": _as_json(entries)}
        try:
            make_private_folder(path.parent)
            write_whole(path, wire.dumps({"sealed": self._seal.seal(document, FILE_NAME)}))
        except OSError as error:
            if not self._is_saving_failing:
                log.error("changes of administrators cannot be kept: %s cannot be written (%s)", path, error)
            self._is_saving_failing = True
            return False
        self._is_saving_failing = False
        return True

    def _read(self, path: Path) -> tuple[bool, dict[str, Entry]] | None:
        """Return whether this replica was informed, and the fields; None if there is no file that can be used."""
        try:
            content = read_private(path, most_bytes=_MAX_FILE_BYTES)
            document = self._seal.open(wire.loads(content)["sealed"], FILE_NAME)
            return bool(document["informed"]), _from_json(document["fields"])
        except FileNotFoundError:
            return None
        except (NotOurs, NotSealed, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.error("the kept changes of administrators are not used: %s", error)
            return None


def _as_json(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {field: [entry.stamp, entry.value] for field, entry in entries.items()}


def _from_json(document: Any) -> dict[str, Entry]:
    items: Iterable[tuple[Any, Any]] = document.items()
    return {str(field): Entry(int(stamp), value) for field, (stamp, value) in items}
