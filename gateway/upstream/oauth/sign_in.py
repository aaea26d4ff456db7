"""The sign-in to one upstream, of one principal (a caller, or all callers together): its tokens and their renewal.

A sign-in is interactive if a user logs in at the authorization server in a browser. A step-up requests tokens with more
scopes, because the upstream has rejected a call for lack of scopes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio

from gateway.process.secrets import SECRETS
from gateway.process.tasks import OwnedTasks
from gateway.protocol.gateway_errors import CredentialsUnavailable, GatewayError, HttpStatusError
from gateway.upstream.oauth.authorization import Addresses
from gateway.upstream.oauth.metadata_discovery import Challenge, InvalidMetadata, SignInUpstream, token_challenge, union
from gateway.upstream.oauth.token_endpoint import DpopKey, TokenRequestFailed, Tokens
from gateway.upstream.oauth.token_flow import SignInCounts, StoredSignIn, TokenFlow, UnreadableSignIn
from gateway.upstream.oauth.token_store import Conflict, SignedInUsers, StoreFailed, TokenStore
from gateway.upstream.upstream_credentials import NotSignedIn, SignInFailed, SignInLink, SignInSource, SubjectToken

log = logging.getLogger(__name__)

# Interval for reading changes that other processes stored, so that a sign-in in one process soon works in all of them.
_LOAD_S: Final = 1.0
# Minimum time between discoveries of the authorization server, so that many concurrent 401 responses cause only one.
_DISCOVERY_INTERVAL_S: Final = 2.0
# Timeout of discovery after a 401 response. Creating a sign-in link repeats the discovery without this timeout.
_DISCOVERY_S: Final = 6.0
# Limit for step-ups without a user: "a few times" (MCP 2025-11-25, "Scope Challenge Handling") in each period of
# `_STEP_UPS_S`, because some servers require more scopes every time.
_MAX_STEP_UPS: Final = 3
_STEP_UPS_S: Final = 3_600.0
# Delay after a failed refresh. The first attempt is made with a fifth of the lifetime left, so there is time to retry.
_RETRY_S: Final = 15.0
# Timeout of a revocation, below the 30 s for which other processes wait for the store lock.
_REVOKE_S: Final = 25.0
# Longest delay after a failed refresh. `_RETRY_S` doubles with each failure up to this bound, so that a server that is
# down gets few requests.
_LONGEST_RETRY_S: Final = 120.0
# For this long after a store failure, token renewals fail at once, instead of each waiting for the store's timeout.
_STORE_AGAIN_S: Final = 2.0
# Error text if the request had no credentials and no authorization server was found.
_NO_AUTHORIZATION_SERVER: Final = (
    "the server requires credentials but names no authorization server: there is no resource metadata (RFC 9728), and "
    "no authorization server metadata at its origin. Configure `headers`, or `auth.issuer`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInPorts:
    """The callbacks of a sign-in, and the list of users that a sign-in updates.

    Attributes:
        on_needed: Called whenever a user has to sign in.
        until_listening: Waits until the gateway listens for browsers, if the gateway opens a port only on demand.
        subject: Returns the caller's own token, for token exchange.
        create_caller_link: Creates a link whose page identifies the caller before the sign-in begins; None if callers
            share the sign-in.
        users: List of signed-in users to update; None if callers share the sign-in.
    """

    on_needed: Callable[[], None]
    until_listening: Callable[[], Awaitable[None]]
    subject: SubjectToken
    create_caller_link: Callable[[SignIn], Awaitable[SignInLink]] | None = None
    users: SignedInUsers | None = None


# Polling interval while a call waits for its user to sign in, perhaps in another process.
_LOAD_WAITING_S: Final = 0.3


class SignIn:
    """The OAuth `Credentials` of one principal for one upstream.

    Attributes:
        server, url, config: The upstream and its sign-in configuration.
        principal: The caller who owns the sign-in; empty if all callers share it.
        needed: Reason why a user has to sign in; None if no sign-in is known to be required.
        version, headers, anonymous, needs_proof: As in `Credentials`.
    """

    def __init__(
        self,
        upstream: SignInUpstream,
        store: TokenStore,
        *,
        tasks: OwnedTasks,
        principal: str,
        addresses: Addresses,
        counts: SignInCounts,
        ports: SignInPorts,
    ) -> None:
        """Create the sign-in; `prepare` reads it from the store.

        Args:
            upstream: The upstream and its sign-in configuration.
            tasks: Runs changes of the sign-in, so that they finish even if the caller is cancelled.
            principal: The caller who owns the sign-in; empty if all callers share it.
            addresses: The URLs of this gateway.
        """
        server, url = upstream.server, upstream.url
        self.server = server
        self.url = url
        self.config = upstream.config
        self.principal = principal
        self.needed: str | None = None
        self.version = 0
        self.headers: Mapping[str, str] = {}
        self.anonymous = self.needs_proof = False
        self._owner = f"sign-in {server} {principal}"
        self._store = store
        self._key = f"sign-in:{server}\n{url}\n{principal}"
        self._stored = StoredSignIn()
        self._stored_version = 0
        self._stamp: object = None
        self._loaded = False
        self._changed = anyio.Event()
        # Signs a DPoP proof for each request; None for a token that is not bound to a key.
        self._prover: DpopKey | None = None
        # Error of the latest attempt to create a link.
        self._failure: str | None = None
        self.flow = TokenFlow(upstream, store, addresses, owner=self._owner, subject=ports.subject)
        self._tasks = tasks
        self._counts = counts
        self._ports = ports
        self._renewal_lock = anyio.Lock()
        # A separate lock, so that a token refresh does not wait for the creation of a link.
        self._link_lock = anyio.Lock()
        self._challenge: Challenge | None = None
        self._discovered_at_s = -math.inf
        self._forced_version = self._accepted_version = -1
        self._store_failure, self._store_failed_s = "", -math.inf

    # called by transports

    @property
    def ready(self) -> bool:
        """True if a request can be sent without calling `prepare`."""
        tokens = self._stored.tokens
        # Without tokens, send the request without credentials: the 401 response names the authorization server.
        return self._loaded and (tokens is None or not tokens.is_expired(time.time()))

    async def prepare(self) -> None:
        """Read the store, and renew tokens that have expired."""
        await self.load_changes()
        tokens = self._stored.tokens
        if tokens is None:
            # An interactive sign-in first sends a request without credentials: the 401 response names the scopes.
            if not self.config.interactive and self._stored.server is not None:
                await self._renew()
        elif tokens.is_expired(time.time()):
            await self._renew()

    async def handle_refusal(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """Handle a 401 or 403, as described in `Credentials.handle_refusal`."""
        if version != self.version:
            return True
        parsed = token_challenge(challenge)
        if self._prover is not None and parsed is not None and parsed.parameters.get("error") == "use_dpop_nonce":
            # RFC 9449, section 9: the token is valid, but the proof must contain the nonce.
            return self._prover.use_nonce(nonce)
        if status == 403:
            if parsed is None or not parsed.insufficient_scope:
                return False
            work = partial(self._step_up, parsed, version)
        else:
            work = partial(self._replace_refused, parsed, version)
        # Many concurrent requests may get the same response; the key lets them share one attempt.
        return await self._tasks.run(work, key=(self, status, challenge, version))

    async def wait_for_renewal(self) -> None:
        """Wait until no renewal is in progress."""
        async with self._renewal_lock:
            pass

    def note_accepted(self, version: int) -> None:
        """Note that the upstream has accepted the credentials of this version."""
        self._accepted_version = version

    async def renew_while_connected(self) -> None:
        """Renew tokens before they expire while the connection lasts; return once a user has to sign in again."""
        retry_at_s, pause_s = 0.0, _RETRY_S
        while True:
            event = self._changed
            with anyio.move_on_after(_LOAD_S):
                await event.wait()  # wakes up at once after a sign-out, so that the connection ends
            await self.load_changes()
            tokens = self._stored.tokens
            if tokens is None:
                return
            if tokens.is_due(time.time()) and time.monotonic() >= retry_at_s:
                if tokens.refresh is None and self.config.interactive:
                    continue
                if self.config.exchanges_callers and self._ports.subject() is None:
                    continue  # only a new request of the caller can provide another token to exchange
                try:
                    await self._renew()
                except NotSignedIn:
                    return
                except GatewayError as error:
                    # Warn only about the first of several failures in a row.
                    level = logging.WARNING if pause_s == _RETRY_S else logging.DEBUG
                    log.log(level, "token renewal failed: %s", error, extra={"server": self.server})
                    retry_at_s, pause_s = time.monotonic() + pause_s, min(2 * pause_s, _LONGEST_RETRY_S)
                else:
                    pause_s = _RETRY_S

    def proof(self, method: str, url: str) -> Mapping[str, str] | None:
        """Return the DPoP proof for a request; None for a bearer token."""
        tokens = self._stored.tokens
        if self._prover is None or tokens is None:
            return None
        return {"dpop": self._prover.proof(method, url, token=tokens.access)}

    async def wait_changed(self, version: int) -> None:
        """Wait until the version of the credentials is no longer `version`."""
        while self.version == version:
            event = self._changed
            with anyio.move_on_after(_LOAD_WAITING_S):
                await event.wait()
            await self.load_changes()

    async def has_newer_credentials(self, version: int) -> bool:
        """Return whether credentials newer than `version` exist."""
        await self.load_changes()
        return self.version != version and self._stored.tokens is not None

    async def load_changes(self) -> None:
        """Load the sign-in if another process has stored a change, or if it has not been loaded yet."""
        stamp = await self._store.stamp(self._key)
        if not self._loaded or stamp != self._stamp:
            await self._reload()

    # called for administrators and callers

    async def create_link(self, *, browser: str | None = None) -> SignInLink:
        """Return a link to sign in; a link for any browser is returned again while enough of its lifetime is left.

        Args:
            browser: Digest of a browser's cookie, if only this browser may use the link. None allows any browser; such
                a link must be shown only to a person who may sign in.

        Raises:
            SignInFailed: The upstream has no interactive sign-in, or no link can be created.
        """
        if not self.config.interactive:
            raise SignInFailed(
                f"server '{self.server}' has auth.type {self.config.type}, which needs no sign-in by a user"
            )
        await self._ports.until_listening()
        return await self._tasks.run(partial(self._create_link, browser), key=(self, "link", browser))

    async def _create_link(self, browser: str | None) -> SignInLink:
        await self.load_changes()
        async with self._link_lock:
            try:
                link = await self.flow.create_link(
                    self._stored, self._challenge, principal=self.principal, browser=browser
                )
            except SignInFailed as error:
                self._failure = SECRETS.scrub(str(error))
                raise
            self._failure = None
            return link

    async def finish(self, tokens: Tokens, stored: StoredSignIn) -> None:
        """Store the tokens of a completed sign-in.

        Raises:
            SignInFailed: Another process has held the store lock for too long.
        """
        async with self._renewal_lock, self._store_lock():
            await self._reload()
            now_s = time.time()
            step_ups = self._stored.step_ups
            await self._save(
                replace(stored, tokens=tokens, step_ups=step_ups, signed_in_at_s=now_s, refreshed_at_s=now_s)
            )
        self.flow.forget_link()
        self._discovered_at_s = -math.inf
        self._counts.sign_ins[self.server, "ok"] += 1
        log.info("signed in", extra={"server": self.server, "principal": self.principal or None})

    async def sign_out(self) -> bool:
        """Revoke and delete the tokens, and return whether there were any.

        Raises:
            SignInFailed: Another process has held the store lock for too long, or the stored tokens could not be
                deleted.
        """
        return await self._tasks.run(self._revoke_and_delete, key=(self, "sign out"))

    async def _revoke_and_delete(self) -> bool:
        async with self._renewal_lock, self._store_lock():
            await self._reload()
            stored = self._stored
            tokens, server, client = stored.tokens, stored.server, stored.client
            if tokens is not None and server is not None and client is not None:
                with anyio.move_on_after(_REVOKE_S):
                    revoked = await self.flow.endpoint(stored).revoke(tokens)
                    log.info("tokens revoked by the issuer" if revoked else "tokens deleted without revocation")
            # Register again at the next sign-in, because the server may have lost the registration.
            is_registered = client is not None and client.origin == "registered"
            if stored.issuer is not None and is_registered:
                await self.flow.registration.delete(stored.issuer)
            if tokens is None and not is_registered:
                return False
            with anyio.CancelScope(shield=True):
                failure = await self._save(stored.without_tokens(signed_out=True, client=not is_registered))
        self.flow.forget_link()
        if tokens is None:
            return False
        if failure is not None:
            raise SignInFailed(f"signed out, but the stored tokens could not be deleted: {failure}; sign out again")
        self._counts.sign_ins[self.server, "signed_out"] += 1
        self.needed = "signed out"
        return True

    async def forget_client(self) -> None:
        """Delete a client that the authorization server no longer accepts; the next link registers a new one."""
        stored = self._stored
        if stored.issuer is not None:
            await self.flow.registration.delete(stored.issuer)
        if stored.client is None or stored.client.origin != "registered":
            return
        async with self._store_lock():
            await self._reload()
            await self._save(replace(self._stored, client=None))
        self.flow.forget_link()

    @property
    def signed_in(self) -> bool:
        """True if there are tokens, even if they have expired."""
        return self._stored.tokens is not None

    @property
    def is_required(self) -> bool:
        """True if the upstream is known to require a sign-in."""
        return self._stored.issuer is not None or self.needed is not None

    def row(self) -> dict[str, Any]:
        """Return the state shown to administrators, without secrets."""
        return {**self._stored.row(self.config), "needed": self.needed, "error": self._failure}

    async def create_link_for_caller(self) -> SignInLink:
        """Return a link whose page identifies the user as the owner of this sign-in before the sign-in begins.

        Raises:
            SignInFailed: All callers share the sign-in, or no link can be created.
        """
        if self._ports.create_caller_link is None:
            raise SignInFailed(f"all callers share the sign-in to '{self.server}'")
        return await self._ports.create_caller_link(self)

    @property
    def source(self) -> SignInSource:
        """The functions that an error about a missing sign-in offers for signing in."""
        return SignInSource(
            create_link=self.create_link,
            wait_changed=self.wait_changed,
            version=self.version,
            has_newer_credentials=self.has_newer_credentials,
            owner=self.principal if self._ports.create_caller_link is not None else "",
            create_link_for_caller=self.create_link_for_caller,
        )

    async def _find_authorization_server(self) -> bool:
        """Find the authorization server, and return whether there is one; if the issuer has changed, drop the tokens.

        Raises:
            NotSignedIn: The metadata of an upstream with interactive sign-in did not arrive in time.
            HttpStatusError: The metadata is not valid, or could not be fetched.
        """
        names_metadata = self._challenge is not None and self._challenge.resource_metadata is not None
        updated: StoredSignIn | None = None
        try:
            with anyio.fail_after(_DISCOVERY_S):
                updated = await self.flow.find_authorization_server(self._challenge, self._stored)
        except TimeoutError:
            if self._stored.tokens is None and self.config.interactive and names_metadata:
                raise self._not_signed_in(f"the metadata did not arrive within {_DISCOVERY_S:g} s") from None
            return self._stored.issuer is not None
        except InvalidMetadata as error:
            raise HttpStatusError(401, f"the sign-in cannot start: {SECRETS.scrub(str(error))}") from None
        if updated is None:
            return False
        if self._stored.issuer is not None and updated.issuer != self._stored.issuer:
            log.warning("issuer of the upstream changed", extra={"server": self.server})
            async with self._store_lock(CredentialsUnavailable):
                await self._reload()
                await self._save(updated)
        elif self._stored.issuer is None:
            self._stored = updated
        return True

    async def _replace_refused(self, challenge: Challenge | None, version: int) -> bool:
        """Replace credentials that were rejected with 401, as described in `Credentials.handle_refusal`."""
        await self.load_changes()
        async with self._renewal_lock:
            if version != self.version:
                return True
            # Many concurrent requests may get a 401; one discovery is enough for them.
            if time.monotonic() - self._discovered_at_s >= _DISCOVERY_INTERVAL_S:
                self._challenge = challenge or self._challenge
                if not await self._find_authorization_server():
                    if self._stored.tokens is None:
                        raise HttpStatusError(401, _NO_AUTHORIZATION_SERVER)
                    return False
                self._discovered_at_s = time.monotonic()
            if self._stored.tokens is None and self.config.interactive:
                raise self._not_signed_in("signed out" if self._stored.signed_out else "no user has signed in yet")
            if version == self._forced_version and version != self._accepted_version:
                # This token replaced a rejected one and was never accepted either, so another renewal would not help.
                if self.config.interactive:
                    raise self._not_signed_in("the server also rejects the new token")
                return False
            forced = self._stored.tokens is not None
            await self._renew_locked(version)
            if forced:
                self._forced_version = self.version
        return True

    async def _step_up(self, challenge: Challenge, version: int) -> bool:
        scopes, now_s = challenge.scopes or (), time.time()
        async with self._renewal_lock:
            if version != self.version:
                return True
            stored = self._stored
            recent = tuple(at_s for at_s in stored.step_ups if now_s - at_s < _STEP_UPS_S)
            # Do not request the same scopes again: a scope that was not granted then would not be granted now.
            if not scopes or set(scopes) <= set(stored.scopes) or len(recent) >= _MAX_STEP_UPS:
                return False
            async with self._store_lock(CredentialsUnavailable):
                await self._reload()
                more = union(self._stored.scopes, self._stored.wanted, scopes)
                step_ups = recent if self.config.interactive else (*recent, now_s)
                await self._save(replace(self._stored, wanted=more, step_ups=step_ups))
        if self.config.interactive:
            reason = f"the upstream requires more scopes ({' '.join(scopes)})"
            raise self._not_signed_in(reason, step_up=True)
        await self._renew_once(version)
        return True

    async def _renew(self) -> None:
        """Renew the tokens in a task that concurrent callers share, and that continues if a caller is cancelled.

        Raises:
            NotSignedIn: A user has to sign in.
            CredentialsUnavailable: The token endpoint or the store is unavailable; the tokens are unchanged.
            HttpStatusError: The token endpoint rejected the request of a non-interactive sign-in.
        """
        await self._tasks.run(partial(self._renew_once, self.version), key=(self, "renew", self.version))

    async def _renew_once(self, version: int) -> None:
        async with self._renewal_lock:
            if version == self.version:
                await self._renew_locked(version)

    async def _renew_locked(self, version: int) -> None:
        if time.monotonic() - self._store_failed_s < _STORE_AGAIN_S:
            raise CredentialsUnavailable(self._store_failure)
        try:
            async with self._store.lock(self._key):
                before_reload = self._stored
                await self._reload()
                if version != self.version and self._stored.tokens is not None:
                    return
                if self._stored.issuer is None:
                    # Discovery does not store the issuer, so the loaded sign-in may lack it.
                    self._stored = before_reload
                # Sending a refresh token may invalidate it, so the response must be stored despite cancellation.
                with anyio.CancelScope(shield=self.config.interactive):
                    await self._request_tokens()
        except StoreFailed as error:
            self._store_failure, self._store_failed_s = str(error), time.monotonic()
            raise CredentialsUnavailable(str(error)) from None

    async def _request_tokens(self) -> None:
        stored = self._stored
        try:
            if self.config.interactive:
                if (
                    stored.tokens is None
                    or stored.tokens.refresh is None
                    or stored.server is None
                    or stored.client is None
                ):
                    await self._save(stored.without_tokens())
                    raise self._not_signed_in("the token has expired and cannot be refreshed")
                tokens = await self.flow.endpoint(stored).refresh_tokens(stored.tokens)
            else:
                stored, tokens = await self.flow.request_tokens(stored, self._challenge)
        except TokenRequestFailed as error:
            outcome = "failed" if error.is_temporary else "refused"
            self._counts.refreshes[self.server, outcome] += 1
            if error.is_temporary:
                raise CredentialsUnavailable(f"the token cannot be refreshed now: {error}") from None
            if not self.config.interactive:
                raise HttpStatusError(401, f"the token request failed: {SECRETS.scrub(str(error))}") from None
            if error.is_grant_invalid or error.is_client_rejected:
                forgets = (
                    error.is_client_rejected and stored.client is not None and stored.client.origin == "registered"
                )
                if forgets and stored.issuer is not None:
                    await self.flow.registration.delete(stored.issuer)
                await self._save(stored.without_tokens(client=not forgets))
            raise self._not_signed_in(SECRETS.scrub(str(error))) from None
        except (InvalidMetadata, SignInFailed) as error:
            self._counts.refreshes[self.server, "refused"] += 1
            raise HttpStatusError(401, str(error)) from None
        self._counts.refreshes[self.server, "ok"] += 1
        now_s = time.time()
        since_s = stored.signed_in_at_s or now_s
        await self._save(replace(stored, tokens=tokens, refreshed_at_s=now_s, signed_in_at_s=since_s))
        log.info("token renewed", extra={"server": self.server})

    def _not_signed_in(self, reason: str, *, step_up: bool = False) -> NotSignedIn:
        self.needed = reason
        self._ports.on_needed()
        user = f" --user '{self.principal}'" if self._ports.create_caller_link is not None else ""
        text = f"sign-in needed: {reason}; run `typegate login {self.server}{user}`"
        return NotSignedIn(text, source=self.source, step_up=step_up)

    @asynccontextmanager
    async def _store_lock(self, failure: type[GatewayError] = SignInFailed) -> AsyncIterator[None]:
        try:
            async with self._store.lock(self._key):
                yield
        except StoreFailed as error:
            raise failure(str(error)) from None

    async def _reload(self) -> None:
        # Assign the stamp only after loading the document: if this call is cancelled, the next call must load it.
        stamp, stored = await self._store.stamp(self._key), await self._store.load(self._key)
        self._stamp = stamp
        sign_in = StoredSignIn()
        if stored is not None:
            try:
                sign_in = StoredSignIn.from_document(stored.document)
            except UnreadableSignIn:
                log.warning("stored sign-in unreadable", extra={"server": self.server})
        if not sign_in.fits(self.config):
            sign_in = StoredSignIn()
        self._stored_version = stored.version if stored is not None else 0
        self._loaded = True
        self._apply(sign_in)

    def _apply(self, stored: StoredSignIn) -> None:
        before = self._stored.tokens
        self._stored = stored
        tokens = stored.tokens
        # Without tokens, send the request without credentials: the 401 response names the authorization server.
        self.anonymous = self._loaded and tokens is None
        if (tokens.access if tokens else None) == (before.access if before else None):
            return
        self.headers = {"authorization": f"{tokens.scheme} {tokens.access}"} if tokens is not None else {}
        self._prover = None
        if tokens is not None and tokens.scheme == "DPoP" and stored.proof_key is not None:
            self._prover = DpopKey(stored.proof_key)
        self.needs_proof = self._prover is not None
        if tokens is not None:
            SECRETS.hide_latest(self._owner, tokens.secrets)
            self.needed = None
        self.version += 1
        event, self._changed = self._changed, anyio.Event()
        event.set()

    async def _save(self, stored: StoredSignIn) -> StoreFailed | None:
        """Store the sign-in and apply it to this process; return the error if it could not be stored.

        If the store has a newer sign-in, apply the newer one instead. The caller must hold the store lock.
        """
        failure = None
        try:
            document = replace(stored, kind=self.config.type).document(server=self.server, principal=self.principal)
            self._stored_version = await self._store.save(self._key, document, expected=self._stored_version)
        except Conflict:
            # Another process has stored a newer sign-in without holding the lock, so use that sign-in.
            log.warning("sign-in was stored concurrently by another process", extra={"server": self.server})
            await self._reload()
            return StoreFailed("another process changed the sign-in concurrently")
        except StoreFailed as error:
            failure = error
            log.warning("sign-in not stored: %s", error, extra={"server": self.server})
        self._stamp = await self._store.stamp(self._key)
        self._apply(stored)
        if self._ports.users is not None:
            since_s = stored.signed_in_at_s if stored.tokens is not None else None
            await self._ports.users.record(self.server, self.url, self.principal, since_s)
        return failure
