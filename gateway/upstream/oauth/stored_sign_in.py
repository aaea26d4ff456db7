"""A sign-in as it is kept: read again when another process has written it, and written whole."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio

from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.kept_sign_in import KeptSignIn
from gateway.upstream.oauth.proof import ProofKey
from gateway.upstream.oauth.signed_in_users import SignedInUsers
from gateway.upstream.oauth.store import Conflict, LockTimeout, Store, StoreFailed

log = logging.getLogger(__name__)

# While nobody is signed in: whoever has just done it expects the next call to work.
_LOOK_WAITING_S: Final = 0.3


class StoredSignIn:
    """One sign-in in the store, and the headers that it gives.

    Attributes:
        server, url, config: The upstream, and how it is signed in to.
        principal: Whose it is; empty where all callers share it.
        needed: Why somebody has to sign in; None as far as is known.
        version, headers, anonymous, proves: See `Credentials`.
    """

    def __init__(
        self,
        server: str,
        url: str,
        config: SignInConfig,
        store: Store,
        *,
        principal: str,
        users: SignedInUsers | None = None,
    ) -> None:
        """Know nothing yet.

        Args:
            server, url, config: The upstream, and how it is signed in to.
            store: Where the sign-in is kept.
            principal: Whose it is.
            users: Where its users are listed; None for a sign-in that all callers share.
        """
        self.server = server
        self.config = config
        self.principal = principal
        self.needed: str | None = None
        self.version = 0
        self.headers: Mapping[str, str] = {}
        self.anonymous = self.proves = False
        self._owner = f"sign-in {server} {principal}"
        self.url = url
        self._store = store
        self._users = users
        self._key = f"sign-in:{server}\n{url}\n{principal}"
        self._kept = KeptSignIn()
        self._kept_version = 0
        self._stamp: object = None
        self._loaded = False
        self._changed = anyio.Event()
        # Of a token that is bound to a key.
        self._prover: ProofKey | None = None

    def proof(self, method: str, url: str) -> Mapping[str, str] | None:
        """See `Credentials.proof`."""
        tokens = self._kept.tokens
        if self._prover is None or tokens is None:
            return None
        return {"dpop": self._prover.proof(method, url, token=tokens.access)}

    async def changed(self, version: int) -> None:
        """Return once there are other credentials than those of this version."""
        while self.version == version:
            event = self._changed
            with anyio.move_on_after(_LOOK_WAITING_S):
                await event.wait()
            await self.look()

    async def is_over(self, version: int) -> bool:
        """Whether there are other credentials than those of this version by now."""
        await self.look()
        return self.version != version and self._kept.tokens is not None

    async def look(self) -> None:
        """Take what another process has kept since."""
        stamp = await self._store.stamp(self._key)
        if not self._loaded or stamp != self._stamp:
            await self._reload()

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        try:
            async with self._store.lock(self._key):
                yield
        except LockTimeout as error:
            raise SignInFailed(str(error)) from None

    async def _reload(self) -> None:
        # Set only once both are known: an interrupted look must not pass for one that has read the document.
        stamp, kept = await self._store.stamp(self._key), await self._store.load(self._key)
        self._stamp = stamp
        found = KeptSignIn()
        if kept is not None:
            try:
                found = KeptSignIn.of_document(kept.document)
            except (KeyError, TypeError, ValueError):
                log.warning("a kept sign-in cannot be read", extra={"server": self.server})
        if not found.fits(self.config):
            found = KeptSignIn()
        self._kept_version = kept.version if kept is not None else 0
        self._loaded = True
        self._take(found)

    def _take(self, kept: KeptSignIn) -> None:
        before = self._kept.tokens
        self._kept = kept
        tokens = kept.tokens
        # Without any token the request goes as it is: what an upstream wants is in its refusal.
        self.anonymous = self._loaded and tokens is None
        if (tokens.access if tokens else None) == (before.access if before else None):
            return
        self.headers = {"authorization": f"{tokens.scheme} {tokens.access}"} if tokens is not None else {}
        self._prover = None
        if tokens is not None and tokens.scheme == "DPoP" and kept.proof_key is not None:
            self._prover = ProofKey(kept.proof_key)
        self.proves = self._prover is not None
        if tokens is not None:
            SECRETS.hide_latest(self._owner, tokens.secrets)
            self.needed = None
        self.version += 1
        event, self._changed = self._changed, anyio.Event()
        event.set()

    async def _save(self, kept: KeptSignIn) -> StoreFailed | None:
        """Keep it; the lock of the store is held. Returns why the store has not kept it, where it has not."""
        failure = None
        try:
            document = replace(kept, kind=self.config.type).document(server=self.server, principal=self.principal)
            self._kept_version = await self._store.save(self._key, document, expected=self._kept_version)
        except Conflict:
            # Written without the lock: whatever it is, it is newer than what was read here.
            log.warning("a sign-in was kept twice at a time", extra={"server": self.server})
            await self._reload()
            return StoreFailed("something else was kept at the same time")
        except StoreFailed as error:
            failure = error
            log.warning("the sign-in cannot be kept: %s", error, extra={"server": self.server})
        self._stamp = await self._store.stamp(self._key)
        self._take(kept)
        if self._users is not None:
            since_s = kept.signed_in_at_s if kept.tokens is not None else None
            await self._users.note(self.server, self.url, self.principal, since_s)
        return failure
