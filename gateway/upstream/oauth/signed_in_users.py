"""Who is signed in to a server, for administrators: a list beside the sign-ins, which are found by their names only."""

from __future__ import annotations

import logging
from typing import Any, Final

from gateway.upstream.oauth.store import Conflict, Kept, Store, StoreFailed

log = logging.getLogger(__name__)

# What one document of the store has room for. Whoever was signed in before so many others still is, and is not listed.
_MAX_USERS: Final = 2_000


class SignedInUsers:
    """The users of each server, with the moment at which each has signed in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str], tuple[object, dict[str, float]]] = {}

    def known(self, server: str, url: str) -> dict[str, float]:
        """Who was signed in at the last look, by name."""
        found = self._known.get((server, url))
        return found[1] if found is not None else {}

    async def look(self, server: str, url: str) -> dict[str, float]:
        """Who is signed in, by name."""
        key = _key(server, url)
        stamp = await self._store.stamp(key)
        found = self._known.get((server, url))
        if found is None or found[0] != stamp:
            found = self._known[server, url] = (stamp, _users(await self._store.load(key)))
        return found[1]

    async def note(self, server: str, url: str, user: str, since_s: float | None) -> None:
        """Take note of a user who has signed in, or with None of one who is signed in no longer."""
        key = _key(server, url)
        if (await self.look(server, url)).get(user) == since_s:
            return
        try:
            async with self._store.lock(key):
                kept = await self._store.load(key)
                users = _users(kept)
                users.pop(user, None)
                if since_s is not None:
                    users[user] = since_s
                while len(users) > _MAX_USERS:
                    del users[next(iter(users))]
                await self._store.save(key, {"users": users}, expected=kept.version if kept is not None else 0)
            await self.look(server, url)
        except (StoreFailed, Conflict) as error:
            log.warning("who is signed in cannot be kept: %s", error, extra={"server": server})


def _key(server: str, url: str) -> str:
    return f"users:{server}\n{url}"


def _users(kept: Kept | None) -> dict[str, float]:
    found: Any = kept.document.get("users") if kept is not None else None
    return dict(found) if isinstance(found, dict) else {}
