"""Store the last good listings and the identifiers of servers, so that a starting gateway does not wait for servers.

A listing is what a server lists: its tools, prompts and resources. The file, called the snapshot, contains the listings
and digests of connection settings, but no headers, environments or arguments. The file is replaced atomically. If it
is damaged, has another version or belongs to another user, it is ignored with a warning.

An identifier of a server stays the same if its alias, address or program changes. It is derived from the first alias,
so that replicas with separate state directories use the same one. A fingerprint is a digest of the program or address.
After a configuration change, a server is recognized by its alias and fingerprint, or else by its fingerprint (if the
alias was changed), or else by its alias (if the address or program was changed).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from gateway.config.server import ServerConfig
from gateway.process.files import ForeignFile, make_private_folder, write_whole
from gateway.protocol import json_bytes
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.overrides import Hints, first_hints, hints_of
from registry.intake.item_intake import ITEM_KEYS
from registry.schema.packed_definition import PackedDefinition

# These are 48 bits. Equal digests are unlikely among thousands of servers, and `_new_id` avoids them.
_DIGEST_CHARS: Final = 12
# The limits of removed servers that are stored, and of former aliases per server. Callers may use old names for weeks,
# in which only a few servers are renamed.
_MAX_REMOVED: Final = 200
_MAX_FORMER: Final = 20


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server that an identifier stands for.

    Attributes:
        alias: The current alias, or the last alias if the server was removed.
        fingerprint: The digest that `snapshot.fingerprint` computes from the server's configuration.
        former: Earlier aliases, the latest last.
    """

    alias: str
    fingerprint: str
    former: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the identity as a JSON object for the snapshot."""
        return {"alias": self.alias, "fingerprint": self.fingerprint, "former": list(self.former)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ServerIdentity:
        """Parse the JSON object in the snapshot.

        Raises:
            KeyError, TypeError: The object is malformed.
        """
        return cls(
            str(document["alias"]), str(document["fingerprint"]), tuple(str(alias) for alias in document["former"])
        )


class ServerIds:
    """The identifier of each server.

    Attributes:
        identities: The known servers by identifier. The removed servers come first, then the configured ones.
    """

    def __init__(self) -> None:
        self.identities: dict[str, ServerIdentity] = {}
        self._by_alias: dict[str, str] = {}

    def restore(self, identities: Mapping[str, ServerIdentity]) -> None:
        """Set the identities that were read from the snapshot."""
        self.identities = dict(identities)

    def get(self, alias: str) -> str | None:
        """Return the identifier of a configured server."""
        return self._by_alias.get(alias)

    def current_alias(self, former: str) -> str | None:
        """Return the alias of the configured server that formerly had another alias."""
        current = None
        for identity in self.identities.values():
            if former in identity.former and identity.alias in self._by_alias:
                current = identity.alias
        return current

    def identify(self, fingerprints: Mapping[str, str]) -> bool:
        """Assign an identifier to each configured server, and return whether any identity has changed.

        Args:
            fingerprints: The fingerprint of each server, by alias, in the order of the configuration.
        """
        before = self.identities
        unassigned, assigned = dict(before), dict[str, str]()

        # The order matters: if an alias now belongs to another server, the fingerprint identifies the server.
        for trait in (_alias_and_fingerprint, _fingerprint_alone, _alias_alone):
            keys_by_trait = defaultdict[object, list[str]](list)
            for key, identity in unassigned.items():
                keys_by_trait[trait(identity.alias, identity.fingerprint)].append(key)
            for alias, fingerprint in fingerprints.items():
                if alias not in assigned and (keys := keys_by_trait.get(trait(alias, fingerprint))):
                    assigned[alias] = keys.pop(0)
                    del unassigned[assigned[alias]]
        for alias in fingerprints:
            if alias not in assigned:
                assigned[alias] = _new_id(alias, (*before, *assigned.values()))
        current = {
            assigned[alias]: _update_identity(before.get(assigned[alias]), alias, fingerprint)
            for alias, fingerprint in fingerprints.items()
        }
        self.identities = {**dict(list(unassigned.items())[-_MAX_REMOVED:]), **current}
        self._by_alias = assigned
        return self.identities != before


def _alias_and_fingerprint(alias: str, fingerprint: str) -> object:
    return alias, fingerprint


def _fingerprint_alone(alias: str, fingerprint: str) -> object:
    return fingerprint


def _alias_alone(alias: str, fingerprint: str) -> object:
    return alias


def _new_id(alias: str, existing: Iterable[str]) -> str:
    """Return an identifier for a server that was first seen with this alias."""
    used = set(existing)
    for attempt in count():
        # An alias contains no NUL, so the text of a later attempt never equals an alias.
        text = alias if attempt == 0 else f"{alias}\0{attempt}"
        identifier = f"srv-{sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]}"
        if identifier not in used:
            return identifier
    raise AssertionError


def _update_identity(identity: ServerIdentity | None, alias: str, fingerprint: str) -> ServerIdentity:
    if identity is None:
        return ServerIdentity(alias, fingerprint)
    former = identity.former
    if identity.alias != alias:
        former = (*(each for each in former if each not in (alias, identity.alias)), identity.alias)[-_MAX_FORMER:]
    return replace(identity, alias=alias, fingerprint=fingerprint, former=former)


log = logging.getLogger(__name__)

# The version of the file format; other versions are not read.
VERSION: Final = 2
FILE_NAME: Final = "snapshot.json"
# Larger files are ignored, because reading them would delay the start. Thousands of tools take a few megabytes.
MAX_BYTES: Final = 256 * 1024 * 1024
# The delay before a change is written, so that listings that arrive together are written once. If the process crashes
# within this time, only the stored form of the listings is lost.
_SAVE_AFTER_S: Final = 0.2
# The digest has 128 bits of SHA-256 in hexadecimal form, which is enough to exclude accidental collisions.
_FINGERPRINT_CHARS: Final = 32
# The maximum number of stored former aliases. Callers may use an old name for weeks, and few operators rename more
# servers within weeks.
_MAX_FORMER_ALIASES: Final = 200
_LISTS: Final = frozenset({"tools", *ITEM_KEYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedListing:
    """A stored listing.

    Attributes:
        fingerprint: The fingerprint of the server that sent the listing.
        at_s: When the listing was received, in seconds since 1970.
    """

    fingerprint: str
    at_s: float
    listing: ServerListing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of the file.

    Attributes:
        listings: The stored listings, by alias.
        former: The fingerprints of removed servers, by the alias that they had, in the order of removal.
        ids: The identity of each known server, by identifier.
    """

    listings: dict[str, SavedListing] = field(default_factory=dict)
    former: dict[str, str] = field(default_factory=dict)
    ids: dict[str, ServerIdentity] = field(default_factory=dict)


def fingerprint(config: ServerConfig) -> str:
    """Return a digest of the settings that identify a server: its program and arguments, or its URL, but no secrets."""
    return hashlib.sha256(json_bytes.dumps(config.identity_key())).hexdigest()[:_FINGERPRINT_CHARS]


def load(state_dir: Path) -> Snapshot:
    """Return the stored snapshot; empty if the file does not exist, is damaged or belongs to another user."""
    path = state_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
                # Another user could have inserted tools, and annotations that relax permissions.
                raise ForeignFile(f"{path} belongs to another user (id {status.st_uid})")
            if status.st_size > MAX_BYTES:
                raise ValueError("it is too large")
            raw = file.read()
        # A file damaged by an interrupted write or a disk error must not become part of the catalog.
        checksum, _, body = raw.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise ValueError("its checksum is wrong")
        document = _parse_document(body)
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise ValueError("it has another version")
        former = {str(alias): str(digest) for alias, digest in document.get("former", {}).items()}
        ids = {str(key): ServerIdentity.from_document(identity) for key, identity in document.get("ids", {}).items()}
        return Snapshot(
            {alias: _parse_entry(alias, entry) for alias, entry in document["servers"].items()}, former, ids
        )
    except FileNotFoundError:
        return Snapshot()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("snapshot ignored: %s", error or type(error).__name__)
        return Snapshot()


class _Document(msgspec.Struct):
    version: int
    servers: dict[str, dict[str, msgspec.Raw]]
    former: dict[str, str] = {}
    ids: dict[str, dict[str, Any]] = {}


def _parse_document(body: bytes) -> Any:
    """Parse a snapshot one definition at a time. Parsing all definitions at once would block other threads for long."""
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return json_bytes.loads(body)  # the text is formatted differently, or contains a lone surrogate
    servers = {
        alias: {
            name: [_pack_tool(_parse_value(each), name) for each in msgspec.json.decode(value, type=list[msgspec.Raw])]
            if name in _LISTS
            else _parse_value(value)
            for name, value in entry.items()
        }
        for alias, entry in document.servers.items()
    }
    return {"version": document.version, "servers": servers, "former": document.former, "ids": document.ids}


def _parse_value(text: msgspec.Raw) -> Any:
    return json_bytes.loads(bytes(text))


def _pack_tool(item: Any, kind: str) -> Any:
    # Pack each definition immediately after parsing it: ten thousand parsed definitions would fragment the heap.
    return PackedDefinition.pack(item) if kind == "tools" and isinstance(item, Mapping) else item


def save(state_dir: Path, snapshot: Snapshot) -> None:
    """Write a snapshot; if the file cannot be written, log a warning."""
    entries = {
        alias: {
            "fingerprint": saved.fingerprint,
            "at": saved.at_s,
            # Serialize tools one at a time, because serializing all at once would block other threads for long.
            "tools": [json_bytes.UnparsedJson(json_bytes.dumps(tool)) for tool in saved.listing.tools],
            "prompts": list(saved.listing.prompts),
            "resources": list(saved.listing.resources),
            "resourceTemplates": list(saved.listing.templates),
            "skills": list(saved.listing.skills),
            "capabilities": saved.listing.capabilities,
            "ttlMs": saved.listing.ttl_ms,
            "scope": saved.listing.scope,
            "transport": saved.listing.transport,
            "instructions": saved.listing.instructions,
            "firstHints": {tool: dict(hints) for tool, hints in saved.listing.first_hints.items()},
        }
        for alias, saved in snapshot.listings.items()
    }
    try:
        ids = {key: identity.document() for key, identity in snapshot.ids.items()}
        body = json_bytes.dumps({"version": VERSION, "servers": entries, "former": snapshot.former, "ids": ids})
        make_private_folder(state_dir)
        write_whole(state_dir / FILE_NAME, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except (OSError, ValueError) as error:
        log.warning("snapshot not written: %s", error)


def _parse_entry(alias: str, entry: dict[str, Any]) -> SavedListing:
    # Check only what later code relies on: definitions were checked before they were stored, and schemas are checked
    # when they are compiled.
    kinds: list[tuple[str, str]] = [("tools", "name"), *ITEM_KEYS.items()]
    entry = {"skills": (), **entry}  # earlier versions did not list skills
    items = {kind: tuple(_pack_tool(item, kind) for item in entry[kind]) for kind, _ in kinds}
    for kind, member in kinds:
        if not all(isinstance(item, Mapping) and isinstance(item.get(member), str) for item in items[kind]):
            raise ValueError(f"one of its {kind} is malformed")
    if not isinstance(entry["capabilities"], dict):
        raise ValueError("its capabilities are malformed")
    # First hints are the annotations that a tool had when it was first listed. Snapshots of earlier versions lack them;
    # the annotations of the stored tools are used instead.
    hints_by_tool = entry.get("firstHints", {})
    listing = ServerListing(
        server=ServerName(alias),
        epoch=0,  # older than any connection
        tools=items["tools"],
        prompts=items["prompts"],
        resources=items["resources"],
        templates=items["resourceTemplates"],
        skills=items["skills"],
        capabilities=entry["capabilities"],
        ttl_ms=entry["ttlMs"],
        scope=entry["scope"] if entry["scope"] in ("public", "unstated") else "private",
        origin="snapshot",
        stale=True,
        transport="stdio" if entry["transport"] == "stdio" else "http",
        instructions=instructions if isinstance(instructions := entry.get("instructions"), str) else None,
        first_hints=first_hints(items["tools"], {str(tool): hints_of(hints) for tool, hints in hints_by_tool.items()}),
    )
    return SavedListing(fingerprint=str(entry["fingerprint"]), at_s=float(entry["at"]), listing=listing)


class StoredListings:
    """The last good listing and the identifier of each server. Changes are written to disk after a short delay.

    Attributes:
        ids: The identifiers of the servers.
    """

    def __init__(self, state_dir: Path | None, *, recalls: bool = True, saves: bool = True) -> None:
        """Initialize without listings.

        Args:
            state_dir: The directory of the snapshot; None to store everything only in memory.
            recalls: Whether to use the listings in the snapshot. If false, new listings are added to the snapshot for a
                gateway that starts later.
            saves: Whether this process writes the snapshot. If there are several processes, only one of them does.
        """
        self._saves = saves
        self._state_dir = state_dir
        self._recalls = recalls
        self._stored: dict[str, SavedListing] = {}
        self._former: dict[str, str] = {}
        # The fingerprint of each server, and the annotations that its tools had when they were first listed, by alias.
        # Empty if the stored listings are used.
        self._hints: dict[str, tuple[str, Mapping[str, Hints]]] = {}
        self._unsaved = anyio.Event()
        self.ids = ServerIds()

    def load(self) -> None:
        """Load the snapshot."""
        if self._state_dir is None:
            return
        snapshot = load(self._state_dir)
        self.ids.restore(snapshot.ids)
        if self._recalls:
            self._stored, self._former = snapshot.listings, snapshot.former
        else:
            self._hints = {
                alias: (saved.fingerprint, saved.listing.first_hints) for alias, saved in snapshot.listings.items()
            }

    @property
    def tool_count(self) -> int:
        """Return the number of stored tools."""
        return sum(len(stored.listing.tools) for stored in self._stored.values())

    def get(self, alias: str) -> SavedListing | None:
        """Return the stored listing for an alias, even if the alias belongs to another server now."""
        return self._stored.get(alias)

    def find(self, alias: str, config: ServerConfig) -> ServerListing | None:
        """Return the last good listing of this server; None if none is stored."""
        stored = self._stored.get(alias)
        return stored.listing if stored is not None and stored.fingerprint == fingerprint(config) else None

    def first_hints(self, alias: str, config: ServerConfig) -> Mapping[str, Hints]:
        """Return the annotations that this server's tools had when they were first listed, if they are stored."""
        stored = self.find(alias, config)
        if stored is not None:
            return stored.first_hints
        stored_hints = self._hints.get(alias)
        return stored_hints[1] if stored_hints is not None and stored_hints[0] == fingerprint(config) else {}

    def put(self, alias: str, config: ServerConfig, listing: ServerListing) -> None:
        """Store a listing."""
        self._former.pop(alias, None)
        self._stored[alias] = SavedListing(fingerprint=fingerprint(config), at_s=time.time(), listing=listing)
        self._unsaved.set()

    def identify(self, servers: Mapping[str, ServerConfig]) -> None:
        """Assign an identifier to each configured server."""
        if self.ids.identify({alias: fingerprint(config) for alias, config in servers.items()}):
            self._unsaved.set()

    def forget(self, alias: str) -> None:
        """Remove the stored listing of a server."""
        self._stored.pop(alias, None)
        self._unsaved.set()

    def former_fingerprint(self, alias: str) -> str | None:
        """Return the fingerprint of the server that has this alias or had it last; None if unknown."""
        stored = self._stored.get(alias)
        return stored.fingerprint if stored is not None else self._former.get(alias)

    def retire(self, alias: str, config: ServerConfig) -> None:
        """Remove the stored listing of a server, and store only the server's fingerprint, by its alias."""
        self._former.pop(alias, None)
        self._former[alias] = fingerprint(config)
        while len(self._former) > _MAX_FORMER_ALIASES:
            del self._former[next(iter(self._former))]
        self.forget(alias)

    async def run(self) -> None:
        """Write changes until cancelled."""
        while self._saves and self._state_dir is not None:
            try:
                await self._unsaved.wait()
                await anyio.sleep(_SAVE_AFTER_S)
            finally:
                # Also write pending changes at shutdown. Shield the write from cancellation, because the next start
                # uses these changes.
                if self._unsaved.is_set():
                    self._unsaved = anyio.Event()
                    with anyio.CancelScope(shield=True):
                        snapshot = Snapshot(dict(self._stored), dict(self._former), self.ids.identities)
                        await anyio.to_thread.run_sync(self._save, snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        assert self._state_dir is not None
        if not self._recalls:
            # Keep the entries for other servers, because another process may have stored them since the load.
            stored = load(self._state_dir)
            former_of_others = {
                alias: digest for alias, digest in stored.former.items() if alias not in snapshot.listings
            }
            listings, former = {**stored.listings, **snapshot.listings}, {**former_of_others, **snapshot.former}
            snapshot = Snapshot(listings, former, snapshot.ids)
        save(self._state_dir, snapshot)
