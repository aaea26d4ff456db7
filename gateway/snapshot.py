"""Last good listings on disk, so that a start answers before any upstream is up.

The file holds what upstreams publish about their tools, and digests of how each is reached:
no header, no environment, no argument. It is written whole and swapped in; one that is damaged,
of another version or of another maker is ignored with a warning.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway import wire
from gateway.config.server import ServerConfig
from gateway.files import write_whole
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.intake.prompts_and_resources import ITEM_KEYS

log = logging.getLogger(__name__)

# Of the file's form; another one is not read.
VERSION: Final = 2
FILE_NAME: Final = "snapshot.json"
# Thousands of tools are some megabytes; a file of this size is none of ours, and reading it would delay the start.
MAX_BYTES: Final = 256 * 1024 * 1024
# Of a SHA-256 in hexadecimal: 128 bits cannot meet by accident.
_FINGERPRINT_CHARS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One listing as it was stored: how its server was reached, and when it said so."""

    fingerprint: str
    at_s: float
    listing: ServerListing


def fingerprint(config: ServerConfig) -> str:
    """A digest of what makes it this server: its program and arguments, its URL; nothing of secrets."""
    return hashlib.sha256(wire.dumps(config.identity_key())).hexdigest()[:_FINGERPRINT_CHARS]


def load(state_dir: Path) -> dict[str, Saved]:
    """The stored listings by alias; empty where there is nothing that can be trusted."""
    path = state_dir / FILE_NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        raw = path.read_bytes()
        # A crash in the middle of a write, or a disk error, must not become wrappers.
        checksum, _, body = raw.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise ValueError("its checksum is wrong")
        document = wire.loads(body)
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise ValueError("it is of another version")
        return {alias: _saved(alias, entry) for alias, entry in document["servers"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the snapshot is ignored: %s", error or type(error).__name__)
        return {}


def save(state_dir: Path, saved: Mapping[str, Saved]) -> None:
    """Store the listings; a file that cannot be written costs a warning, nothing else."""
    entries = {
        alias: {
            "fingerprint": one.fingerprint,
            "at": one.at_s,
            "tools": list(one.listing.tools),
            "prompts": list(one.listing.prompts),
            "resources": list(one.listing.resources),
            "resourceTemplates": list(one.listing.templates),
            "capabilities": one.listing.capabilities,
            "ttlMs": one.listing.ttl_ms,
            "scope": one.listing.scope,
            "transport": one.listing.transport,
        }
        for alias, one in saved.items()
    }
    try:
        body = wire.dumps({"version": VERSION, "servers": entries})
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(state_dir / FILE_NAME, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    except (OSError, ValueError) as error:
        log.warning("the snapshot cannot be written: %s", error)


def _saved(alias: str, entry: dict[str, Any]) -> Saved:
    # Only what later code relies on without looking: everything else was admitted once and is checked when compiled.
    kinds: list[tuple[str, str]] = [("tools", "name"), *ITEM_KEYS.items()]
    items = {kind: tuple(entry[kind]) for kind, _ in kinds}
    for kind, member in kinds:
        if not all(isinstance(item, dict) and isinstance(item.get(member), str) for item in items[kind]):
            raise ValueError(f"one of its {kind} is malformed")
    if not isinstance(entry["capabilities"], dict):
        raise ValueError("its capabilities are malformed")
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
    )
    return Saved(fingerprint=str(entry["fingerprint"]), at_s=float(entry["at"]), listing=listing)
