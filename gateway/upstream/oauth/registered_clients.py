"""The client that an authorization server has registered for us, shared by all who sign in there for themselves."""

from __future__ import annotations

import logging

from gateway.secrets import SECRETS
from gateway.upstream.oauth.clients import Client
from gateway.upstream.oauth.store import Conflict, Store, StoreFailed

log = logging.getLogger(__name__)


class RegisteredClients:
    """Registrations at the authorization servers of one upstream: one for each of these, not for each user."""

    def __init__(self, store: Store, server: str, url: str) -> None:
        self._store = store
        self._server = server
        self._url = url

    async def known(self, issuer: str) -> Client | None:
        """What an issuer has registered; None where nothing is kept."""
        kept = await self._store.load(self._key(issuer))
        if kept is None:
            return None
        try:
            client = Client.of_document(kept.document)
        except TypeError:
            return None
        SECRETS.hide_latest(f"client of {self._server}", [client.secret] if client.secret else [])
        return client

    async def keep(self, issuer: str, client: Client) -> None:
        """Keep what an issuer has registered."""
        key = self._key(issuer)
        kept = await self._store.load(key)
        try:
            await self._store.save(key, client.document(), expected=kept.version if kept is not None else 0)
        except (Conflict, StoreFailed):
            log.debug("a registration was not kept", extra={"server": self._server})

    async def forget(self, issuer: str) -> None:
        """Register anew next time: the issuer does not know it any more."""
        try:
            await self._store.remove(self._key(issuer))
        except StoreFailed:
            log.debug("a registration was not forgotten", extra={"server": self._server})

    def _key(self, issuer: str) -> str:
        return f"client:{self._server}\n{self._url}\n{issuer}"
