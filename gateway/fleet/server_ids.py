"""Identifiers of servers that stay the same if the alias, address or program of the server changes.

An identifier is derived from the first alias of its server, so that replicas with separate state directories use the
same one. The snapshot stores the identifiers. A fingerprint is a digest of the server's program or address. After a
configuration change, a server is recognized by its alias and fingerprint, or else by its fingerprint (if the alias was
changed), or else by its alias (if the address or program was changed).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from typing import Any, Final

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
