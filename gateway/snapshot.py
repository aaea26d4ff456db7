"""Last good listings on disk, so that a start answers before any upstream is up.

The file holds what upstreams publish about their tools, and digests of how each is reached:
no header, no environment, no argument. It is written whole and swapped in; one that is damaged,
of another version or of another maker is ignored with a warning.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from gateway import wire
from gateway.config.server import ServerConfig
from gateway.files import NotOurs, make_private_folder, write_whole
from registry.catalog.hints import Hints, first_hints, hints_of
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.intake.prompts_and_resources import ITEM_KEYS
from registry.schema.packed_definition import PackedDefinition

log = logging.getLogger(__name__)

# Of the file's form; another one is not read.
VERSION: Final = 2
FILE_NAME: Final = "snapshot.json"
# Thousands of tools are some megabytes; a file of this size is none of ours, and reading it would delay the start.
MAX_BYTES: Final = 256 * 1024 * 1024
# Several upstreams that list together are one write; a crash this soon after a listing loses only the snapshot of it.
_SAVE_AFTER_S: Final = 0.2
# Of a SHA-256 in hexadecimal: 128 bits cannot meet by accident.
_FINGERPRINT_CHARS: Final = 32
# Callers remember names for weeks, and a configuration has had no more aliases than this in that time.
_MAX_FORMER: Final = 200
_LISTS: Final = frozenset({"tools", *ITEM_KEYS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One listing as it was stored: how its server was reached, and when it said so."""

    fingerprint: str
    at_s: float
    listing: ServerListing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is on disk.

    Attributes:
        listings: By alias.
        former: The fingerprints of servers that were removed, by the alias that each had; the latest removed is last.
    """

    listings: dict[str, Saved] = field(default_factory=dict)
    former: dict[str, str] = field(default_factory=dict)


def fingerprint(config: ServerConfig) -> str:
    """A digest of what makes it this server: its program and arguments, its URL; nothing of secrets."""
    return hashlib.sha256(wire.dumps(config.identity_key())).hexdigest()[:_FINGERPRINT_CHARS]


def load(state_dir: Path) -> Snapshot:
    """What is stored; empty where there is nothing that can be trusted."""
    path = state_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0):
                # What it says is listed, and what was seen first in it gives rights.
                raise NotOurs(f"{path} belongs to another user (id {found.st_uid})")
            if found.st_size > MAX_BYTES:
                raise ValueError("it is too large")
            raw = file.read()
        # A crash in the middle of a write, or a disk error, must not become wrappers.
        checksum, _, body = raw.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise ValueError("its checksum is wrong")
        document = _document(body)
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise ValueError("it is of another version")
        former = {str(alias): str(digest) for alias, digest in document.get("former", {}).items()}
        return Snapshot({alias: _saved(alias, entry) for alias, entry in document["servers"].items()}, former)
    except FileNotFoundError:
        return Snapshot()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the snapshot is ignored: %s", error or type(error).__name__)
        return Snapshot()


class _Document(msgspec.Struct):
    version: int
    servers: dict[str, dict[str, msgspec.Raw]]
    former: dict[str, str] = {}


def _document(body: bytes) -> Any:
    """Parse a snapshot, each definition alone: other threads wait while one is parsed."""
    try:
        found = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return wire.loads(body)  # of another form, or with a surrogate that stands alone
    servers = {
        alias: {
            name: [_packed(_value(each), name) for each in msgspec.json.decode(value, type=list[msgspec.Raw])]
            if name in _LISTS
            else _value(value)
            for name, value in entry.items()
        }
        for alias, entry in found.servers.items()
    }
    return {"version": found.version, "servers": servers, "former": found.former}


def _value(text: msgspec.Raw) -> Any:
    return wire.loads(bytes(text))


def _packed(item: Any, kind: str) -> Any:
    # One after the other: ten thousand definitions at once would leave holes between what stays.
    return PackedDefinition.of(item) if kind == "tools" and isinstance(item, Mapping) else item


def save(state_dir: Path, saved: Snapshot) -> None:
    """Store a snapshot; a file that cannot be written costs a warning, nothing else."""
    entries = {
        alias: {
            "fingerprint": one.fingerprint,
            "at": one.at_s,
            # Each alone: other threads wait while one is written.
            "tools": [wire.Unparsed(wire.dumps(tool)) for tool in one.listing.tools],
            "prompts": list(one.listing.prompts),
            "resources": list(one.listing.resources),
            "resourceTemplates": list(one.listing.templates),
            "capabilities": one.listing.capabilities,
            "ttlMs": one.listing.ttl_ms,
            "scope": one.listing.scope,
            "transport": one.listing.transport,
            "instructions": one.listing.instructions,
            "firstHints": {tool: dict(hints) for tool, hints in one.listing.first_hints.items()},
        }
        for alias, one in saved.listings.items()
    }
    try:
        body = wire.dumps({"version": VERSION, "servers": entries, "former": saved.former})
        make_private_folder(state_dir)
        write_whole(state_dir / FILE_NAME, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except (OSError, ValueError) as error:
        log.warning("the snapshot cannot be written: %s", error)


def _saved(alias: str, entry: dict[str, Any]) -> Saved:
    # Only what later code relies on without looking: everything else was admitted once and is checked when compiled.
    kinds: list[tuple[str, str]] = [("tools", "name"), *ITEM_KEYS.items()]
    items = {kind: tuple(_packed(item, kind) for item in entry[kind]) for kind, _ in kinds}
    for kind, member in kinds:
        if not all(isinstance(item, Mapping) and isinstance(item.get(member), str) for item in items[kind]):
            raise ValueError(f"one of its {kind} is malformed")
    if not isinstance(entry["capabilities"], dict):
        raise ValueError("its capabilities are malformed")
    # A snapshot of an older version has none: what it lists is what was seen first.
    known = entry.get("firstHints", {})
    listing = ServerListing(
        server=ServerName(alias),
        epoch=0,  # any connection is newer
        tools=items["tools"],
        prompts=items["prompts"],
        resources=items["resources"],
        templates=items["resourceTemplates"],
        capabilities=entry["capabilities"],
        ttl_ms=entry["ttlMs"],
        scope=entry["scope"] if entry["scope"] in ("public", "unstated") else "private",
        origin="snapshot",
        stale=True,
        transport="stdio" if entry["transport"] == "stdio" else "http",
        instructions=said if isinstance(said := entry.get("instructions"), str) else None,
        first_hints=first_hints(items["tools"], {str(tool): hints_of(hints) for tool, hints in known.items()}),
    )
    return Saved(fingerprint=str(entry["fingerprint"]), at_s=float(entry["at"]), listing=listing)


class KeptListings:
    """The last good listing of each server, written to disk soon after it has changed."""

    def __init__(self, state_dir: Path | None, *, recalls: bool = True) -> None:
        """Know nothing yet.

        Args:
            state_dir: Where the snapshot is; without a directory nothing is read or written.
            recalls: Whether listings of before are used. Otherwise only what is listed now is added to the snapshot,
                for a gateway that is started later.
        """
        self._state_dir = state_dir
        self._recalls = recalls
        self._kept: dict[str, Saved] = {}
        self._former: dict[str, str] = {}
        # What tools were first listed with, where listings of before are not used.
        self._hints: dict[str, tuple[str, Mapping[str, Hints]]] = {}
        self._unsaved = anyio.Event()

    def load(self) -> None:
        """Read what is on disk."""
        if self._state_dir is None:
            return
        found = load(self._state_dir)
        if self._recalls:
            self._kept, self._former = found.listings, found.former
        else:
            self._hints = {alias: (one.fingerprint, one.listing.first_hints) for alias, one in found.listings.items()}

    @property
    def tools(self) -> int:
        """How many tools are kept."""
        return sum(len(kept.listing.tools) for kept in self._kept.values())

    def get(self, alias: str) -> Saved | None:
        """What was kept of a server, however it was reached."""
        return self._kept.get(alias)

    def of(self, alias: str, config: ServerConfig) -> ServerListing | None:
        """The last good listing of this very server."""
        kept = self._kept.get(alias)
        return kept.listing if kept is not None and kept.fingerprint == fingerprint(config) else None

    def first_hints(self, alias: str, config: ServerConfig) -> Mapping[str, Hints]:
        """What the tools of this very server were first listed with, as far as that is on disk."""
        kept = self.of(alias, config)
        if kept is not None:
            return kept.first_hints
        known = self._hints.get(alias)
        return known[1] if known is not None and known[0] == fingerprint(config) else {}

    def put(self, alias: str, config: ServerConfig, listing: ServerListing) -> None:
        """Keep a listing."""
        self._former.pop(alias, None)
        self._kept[alias] = Saved(fingerprint=fingerprint(config), at_s=time.time(), listing=listing)
        self._unsaved.set()

    def forget(self, alias: str) -> None:
        """Keep nothing of a server."""
        self._kept.pop(alias, None)
        self._unsaved.set()

    def former(self, alias: str) -> str | None:
        """The fingerprint of the server that has or had this alias; None where none is known."""
        kept = self._kept.get(alias)
        return kept.fingerprint if kept is not None else self._former.get(alias)

    def retire(self, alias: str, config: ServerConfig) -> None:
        """Keep of a server only that there was one of this alias."""
        self._former.pop(alias, None)
        self._former[alias] = fingerprint(config)
        while len(self._former) > _MAX_FORMER:
            del self._former[next(iter(self._former))]
        self.forget(alias)

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        while self._state_dir is not None:
            try:
                await self._unsaved.wait()
                await anyio.sleep(_SAVE_AFTER_S)
            finally:
                # At the end too, and whole: what was listed a moment ago is what the next start serves from.
                if self._unsaved.is_set():
                    self._unsaved = anyio.Event()
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(self._save, dict(self._kept), dict(self._former))

    def _save(self, kept: dict[str, Saved], former: dict[str, str]) -> None:
        assert self._state_dir is not None
        if not self._recalls:
            # What another process has stored meanwhile stays, where it is not about the same server.
            stored = load(self._state_dir)
            left = {alias: digest for alias, digest in stored.former.items() if alias not in kept}
            kept, former = {**stored.listings, **kept}, {**left, **former}
        save(self._state_dir, Snapshot(kept, former))
