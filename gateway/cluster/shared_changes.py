"""State that all replicas share, as named fields. If replicas write the same field, the latest value wins.

A worker is a replica too: its parent is the store, and the first worker writes the files.

Each replica has all fields in memory and in a file, and replicas exchange fields through the store. If the store has
lost its data, every replica writes its fields again. A removed field leaves a removal marker, so that a replica that
was offline does not restore the field from its file.

A replica that starts while the store is unavailable reads its file and asks the running replicas. It is *informed* once
it has read the state from its file, the store or another replica. Before that, it does not know which API keys were
revoked.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from gateway.cluster.shared_store import (
    DecryptionFailed,
    SharedStore,
    StampedValue,
    StoreStatus,
    StoreTrouble,
    ValueCipher,
)
from gateway.process.files import ForeignFile, make_private_folder, read_private, write_whole
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

FILE_NAME: Final = "cluster.json"
# Seconds between polls of the store, which find changes whose notification was lost.
POLL_S: Final = 0.5
# Seconds to wait before subscribing again after the store has failed.
_SUBSCRIBE_AGAIN_S: Final = 1.0
# Minimum seconds between questions to the other replicas, if a replica has not reached the store since its start.
_ASK_PEERS_S: Final = 2.0
_DAY_US: Final = 86_400_000_000
# Time for which removal markers are stored. The volume of a replica that was scaled down may be reused after months. A
# removal marker takes about 150 bytes.
_REMOVAL_KEPT_US: Final = 366 * _DAY_US
# The same time for fields that are not written to files. A running replica is never disconnected for that long.
_TRANSIENT_REMOVAL_KEPT_US: Final = _DAY_US
# Maximum number of removal markers of such fields. Without it, a caller that often withdraws calls which wait for
# approval would exhaust `MAX_FIELDS`. Only a replica that was disconnected during so many removals needs older markers.
MAX_TRANSIENT_REMOVALS: Final = 10_000
# Maximum number of fields in the store: more than administrators' changes and approvals need. A store with more fields
# is not read.
MAX_FIELDS: Final = 50_000
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# The stamp of a field whose time is not known. Any other value or removal of the field counts as later.
_EARLIEST: Final = 1
_PEER_PLACE: Final = "for another replica"


@dataclass(frozen=True, slots=True)
class Entry:
    """A field.

    Attributes:
        stamp: The time at which the value was written or removed, in microseconds since 1970.
        value: The value; None if the field was removed.
    """

    stamp: int
    value: Any


AskPeers = Callable[[], Awaitable[list[str]]]
"""Returns the `document` of each replica that answers."""


class SharedPart(Protocol):
    """A part of a gateway that shares its state as fields.

    Attributes:
        prefix: The prefix of the part's field names in the store.
        is_transient: True if the part's fields are short-lived and therefore not written to files.
    """

    @property
    def prefix(self) -> str: ...

    @property
    def is_transient(self) -> bool: ...

    def fields(self) -> dict[str, Any]:
        """Return the current values by field name, without the prefix."""

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the part's state by these fields, except for local changes made while this method runs.

        Returns:
            The fields after the replacement, without such local changes.
        """


class SharedChanges:
    """This replica's copy of the shared state.

    Attributes:
        informed: True once this replica has read the state from its file, the store or another replica.
    """

    def __init__(
        self,
        store: SharedStore,
        cipher: ValueCipher,
        status: StoreStatus,
        parts: tuple[SharedPart, ...],
        *,
        state_dir: Path | None = None,
        ask_peers: AskPeers | None = None,
        on_informed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty copy.

        Args:
            store: The shared store.
            cipher: Encrypts the values in the store and the local file.
            status: The status of the store.
            parts: The parts whose state is shared.
            state_dir: The directory of the local file; None for no file.
            ask_peers: Asks the other replicas for their state; None if replicas do not connect to each other.
            on_informed: Called when this replica becomes informed.
            clock: Returns seconds since 1970.
        """
        self._store = store
        self._cipher = cipher
        self._status = status
        self._parts = parts
        self._transient_prefixes = tuple(part.prefix for part in parts if part.is_transient)
        self._path = state_dir / FILE_NAME if state_dir is not None else None
        self._ask_peers = ask_peers
        self._on_informed = on_informed
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        # Fields that may be missing in the store.
        self._pending: set[str] = set()
        # The fields of each part at the last comparison. If a part now has other fields, that is a local change.
        self._seen: dict[str, dict[str, Any]] = {part.prefix: {} for part in parts}
        self._version: str | None = None
        self._syncing = anyio.Lock()
        self._sync_requested = anyio.Event()
        # The content of the file; None if it is not known.
        self._saved: tuple[bool, dict[str, Entry]] | None = None
        self._is_saving_failing = False
        self._store_was_read = False
        self._peers_asked_s = -_ASK_PEERS_S
        self.informed = False

    @property
    def pending(self) -> int:
        """Return the number of changes of this replica that are not yet in the store."""
        return len(self._pending)

    def wake(self) -> None:
        """Trigger a sync after a local change."""
        self._sync_requested.set()

    def document(self) -> str | None:
        """Return all fields, encrypted, for a starting replica; None while this replica is not informed."""
        if not self.informed:
            return None
        return self._cipher.encrypt(_as_json(self._entries), _PEER_PLACE)

    async def load(self) -> None:
        """Load the state from the file and the store. A store that does not respond delays this method only briefly."""
        async with self._syncing:
            if self._path is not None:
                self._saved = await anyio.to_thread.run_sync(self._read_file, self._path)
                if self._saved is not None:
                    is_informed, entries = self._saved
                    self._entries = dict(entries)
                    if is_informed:
                        self._note_informed()
            for part in self._parts:
                # After a crash, the files of the parts may contain changes that were never shared.
                held = self._seen[part.prefix] = part.fields()
                for name, value in held.items():
                    self._entries.setdefault(part.prefix + name, Entry(_EARLIEST, value))
            # The store may have lost fields, so every field is written again unless the store has the field.
            self._pending = set(self._entries)
            await self._apply()
        await self.sync()

    async def run(self) -> None:
        """Share local changes, and apply the changes of other replicas, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow)
            while True:
                with anyio.move_on_after(POLL_S):
                    await self._sync_requested.wait()
                await self.sync()

    async def sync(self, *, always: bool = False) -> bool:
        """Write local changes to the file and the store, and apply the changes of other replicas.

        Args:
            always: Read the store even if its version has not changed.

        Returns:
            Whether the store responded; local changes are in the file in any case.
        """
        async with self._syncing:
            if self._sync_requested.is_set():
                self._sync_requested = anyio.Event()
            self._note_local_changes()
            # Save before waiting for the store, so that a crash while waiting does not lose a local change.
            await self._save()
            try:
                version = await self._store.version()
                if always or version is None or version != self._version:
                    await self._merge(await self._store.read())
                    self._version = version
                self._store_was_read = True
                self._note_informed()
                if self._pending:
                    await self._write_pending()
                self._status.answered("changes")
            except StoreTrouble as trouble:
                self._status.failed("changes", trouble)
                await self._learn_from_peers()
                return False
            finally:
                await self._save()
            return True

    async def _follow(self) -> None:
        """Trigger a sync when another replica publishes a change."""
        while True:
            try:
                async for _ in self._store.events():
                    self._sync_requested.set()
            except StoreTrouble as trouble:
                log.debug("subscription to shared store failed", extra={"reason": str(trouble)})
            # Polling finds changes that are published while this replica is not subscribed.
            await anyio.sleep(_SUBSCRIBE_AGAIN_S)

    async def _learn_from_peers(self) -> None:
        """Ask the running replicas for their state if this replica has not read the store since its start."""
        now_s = anyio.current_time()
        if self._ask_peers is None or self._store_was_read or now_s - self._peers_asked_s < _ASK_PEERS_S:
            return
        self._peers_asked_s = now_s
        for document in await self._ask_peers():
            try:
                entries = _from_json(self._cipher.decrypt(document, _PEER_PLACE))
            except (DecryptionFailed, ValueError, TypeError, AttributeError) as error:
                log.error("state of another replica rejected", extra={"reason": str(error)})
                continue
            self._note_local_changes()
            later = {
                field: entry
                for field, entry in entries.items()
                if field not in self._entries or self._entries[field].stamp < entry.stamp
            }
            self._entries |= later
            # Write these fields to the store when it responds again, in case it has lost them.
            self._pending.update(later)
            await self._apply()
            self._note_informed()

    def _note_informed(self) -> None:
        if not self.informed:
            self.informed = True
            self._on_informed()

    def _note_local_changes(self) -> None:
        """Compare the parts with their last known fields, and stamp the differences."""
        latest = max((entry.stamp for entry in self._entries.values()), default=0)
        for part in self._parts:
            before, now = self._seen[part.prefix], part.fields()
            for name in {**before, **now}:
                if before.get(name) == now.get(name):
                    continue
                field = part.prefix + name
                # The stamp is later than that of every known value, even if the clock of another replica is ahead.
                latest = max(latest + 1, int(self._clock() * 1e6))
                self._entries[field] = Entry(latest, now.get(name))
                self._pending.add(field)
            self._seen[part.prefix] = now

    async def _merge(self, stored: Mapping[str, StampedValue]) -> None:
        """Apply values of the store that are later than the values here, and note which fields the store lacks."""
        if len(stored) > MAX_FIELDS:
            log.error("shared store not read", extra={"reason": f"it has more than {MAX_FIELDS} fields"})
            return
        # Parts may have changed while this replica waited for the store. Nothing is awaited from here until the values
        # are applied.
        self._note_local_changes()
        touched = False
        for field, stamped in stored.items():
            own = self._entries.get(field)
            if own is not None and own.stamp > stamped.stamp:
                self._pending.add(field)
                continue
            if own is not None and own.stamp == stamped.stamp and field not in self._pending:
                continue
            try:
                value = self._cipher.decrypt(stamped.encrypted, f"{field}\n{stamped.stamp}")
            except DecryptionFailed as error:
                log.error("value of shared store rejected", extra={"reason": str(error)})
                continue
            self._pending.discard(field)
            if own is None or own.value != value:
                touched = True
            self._entries[field] = Entry(stamped.stamp, value)
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
                # Store the fields that the part returns, so that they are not mistaken for a local change.
                self._seen[part.prefix] = dict(await part.apply(held))
            except Exception:  # boundary: data of another replica must not stop this replica
                log.exception("changes of other replicas not applied: %s", part.prefix)
                self._seen[part.prefix] = part.fields()

    async def _write_pending(self) -> None:
        """Write the fields that may be missing in the store, and delete old removal markers."""
        old = self._old_removals()
        for field in old:
            del self._entries[field]
            self._pending.discard(field)
        if old:
            await self._store.forget(old)
        pending = {field: self._entries[field] for field in self._pending}
        if pending:
            await self._store.merge(
                {
                    field: StampedValue(entry.stamp, self._cipher.encrypt(entry.value, f"{field}\n{entry.stamp}"))
                    for field, entry in pending.items()
                }
            )
        self._pending.clear()

    def _old_removals(self) -> list[str]:
        now_us = int(self._clock() * 1e6)
        removals = {field: entry.stamp for field, entry in self._entries.items() if entry.value is None}
        transient = [field for field in removals if field.startswith(self._transient_prefixes)]
        lasting = removals.keys() - set(transient)
        excess = heapq.nsmallest(len(transient) - MAX_TRANSIENT_REMOVALS, transient, key=removals.__getitem__)
        return [
            *(field for field in lasting if now_us - removals[field] > _REMOVAL_KEPT_US),
            *{*excess, *(field for field in transient if now_us - removals[field] > _TRANSIENT_REMOVAL_KEPT_US)},
        ]

    async def _save(self) -> None:
        if self._path is None:
            return
        lasting = {
            field: entry for field, entry in self._entries.items() if not field.startswith(self._transient_prefixes)
        }
        now = (self.informed, lasting)
        if now == self._saved:
            return
        # Shielded, because after a cancellation `_saved` might not match the contents of the file.
        with anyio.CancelScope(shield=True):
            is_saved = await anyio.to_thread.run_sync(self._write, self._path, *now)
        # None after a failure, so that the next sync writes the file again.
        self._saved = now if is_saved else None

    def _write(self, path: Path, is_informed: bool, entries: Mapping[str, Entry]) -> bool:
        document = {"informed": is_informed, "fields": _as_json(entries)}
        try:
            make_private_folder(path.parent)
            write_whole(path, json_bytes.dumps({"sealed": self._cipher.encrypt(document, FILE_NAME)}))
        except OSError as error:
            if not self._is_saving_failing:
                log.error("shared state not saved", extra={"path": str(path), "reason": str(error)})
            self._is_saving_failing = True
            return False
        self._is_saving_failing = False
        return True

    def _read_file(self, path: Path) -> tuple[bool, dict[str, Entry]] | None:
        """Read from the file whether this replica was informed, and the fields; return None without a valid file."""
        try:
            content = read_private(path, most_bytes=_MAX_FILE_BYTES)
            document = self._cipher.decrypt(json_bytes.loads(content)["sealed"], FILE_NAME)
            return bool(document["informed"]), _from_json(document["fields"])
        except FileNotFoundError:
            return None
        except (ForeignFile, DecryptionFailed, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.error("saved shared state rejected", extra={"path": str(path), "reason": str(error)})
            return None


def _as_json(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {field: [entry.stamp, entry.value] for field, entry in entries.items()}


def _from_json(document: Any) -> dict[str, Entry]:
    items: Iterable[tuple[Any, Any]] = document.items()
    return {str(field): Entry(int(stamp), value) for field, (stamp, value) in items}
