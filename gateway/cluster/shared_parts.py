"""The parts of a gateway that all gateways of a cluster hold alike, each as fields."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from gateway.access.administrators import EndedSessions
from gateway.access.api_keys import ApiKeys
from gateway.calls.approval_book import ApprovalBook
from gateway.cluster.shared_state import take_lock
from gateway.config.overlay import Change, Edit
from gateway.fleet import Fleet
from gateway.operator_notes import OperatorNotes
from gateway.reload import Reloader


class SharedOverlay:
    """What administrators have changed over the configuration, of which each gateway has a file of its own."""

    prefix: Final = "change:"
    passing: Final = False

    def __init__(self, reloader: Reloader) -> None:
        self._reloader = reloader
        self._of: tuple[Change, ...] = ()
        self._fields: dict[str, Any] = {}

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        # It is replaced, never changed, and asked for twice a second.
        if (changes := self._reloader.overlay.changes) is not self._of:
            self._of, self._fields = changes, {each.id: asdict(each) for each in changes}
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        # From what the others were told: what was changed here since then is none of theirs to take back.
        await self._reloader.change(Edit.between(self._of, (Change(**each) for each in fields.values())))
        return fields


class SharedNotes:
    """Notes about tools."""

    prefix: Final = "note:"
    passing: Final = False

    def __init__(self, notes: OperatorNotes) -> None:
        self._notes = notes

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        return {str(entry["id"]): entry for entry in self._notes.entries()}

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        self._notes.replace_all(list(fields.values()))
        return self.fields()


class SharedLock:
    """What was approved of servers since the start, for gateways that started with the same lock file."""

    prefix: Final = "lock:"
    passing: Final = False

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._first = fleet.lock.text
        # A gateway with another file was given it later, or earlier, and does not go by this one's.
        self._told = fleet.lock.lockfile
        self._fields: dict[str, Any] = {}
        self._name = hashlib.sha256((self._first or "").encode()).hexdigest()

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        # It is replaced, never changed; its text may be long, and is asked for twice a second.
        if self._fleet.lock.lockfile is not self._told:
            self._told, text = self._fleet.lock.lockfile, self._fleet.lock.text
            self._fields = {} if text == self._first else {self._name: text}
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        await take_lock(self._fleet, fields.get(self._name, self._first))
        return self.fields()


class SharedRevocations:
    """Keys that were revoked, by their digests; what was revoked once stays so."""

    prefix: Final = "revoked:"
    passing: Final = False

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        return dict.fromkeys(self._keys.revoked, True)

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        self._keys.revoke(fields)
        return self.fields()


class SharedEndedSessions:
    """Sessions of administrators that were ended, and links that were used."""

    prefix: Final = "ended:"
    # Each is forgotten after eight hours.
    passing: Final = True

    def __init__(self, ended: EndedSessions) -> None:
        self._ended = ended

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        return self._ended.fields()

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        self._ended.apply(fields)
        return self.fields()


class SharedApprovals:
    """Calls that wait for a person, and what persons have allowed."""

    prefix: Final = "approval:"
    # Nothing is lost without them but the answer to a question, which is then asked again.
    passing: Final = True

    def __init__(self, book: ApprovalBook) -> None:
        self._book = book
        self._fields: dict[str, Any] | None = None

    def changed(self) -> None:
        """Have the book looked at again."""
        self._fields = None

    def fields(self) -> dict[str, Any]:
        """See `Part.fields`."""
        # Ten thousand grants are not made fields of twice a second.
        if self._fields is None:
            self._fields = self._book.fields()
        return self._fields

    async def apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Part.apply`."""
        self._book.take(fields)
        self._fields = None
        return self.fields()
