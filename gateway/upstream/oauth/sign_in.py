"""The sign-in to one upstream for one principal: its tokens, and what keeps them good."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio

from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.errors import CredentialsUnavailable, GatewayError, HttpStatusError
from gateway.owned_tasks import OwnedTasks
from gateway.secrets import SECRETS
from gateway.upstream.credentials import NotSignedIn, SignInFailed, SignInLink, SignInSource
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.challenges import Challenge, token_challenge
from gateway.upstream.oauth.counts import SignInCounts
from gateway.upstream.oauth.discovery import MetadataRefused
from gateway.upstream.oauth.kept_sign_in import KeptSignIn
from gateway.upstream.oauth.obtaining import Obtaining
from gateway.upstream.oauth.registered_clients import RegisteredClients
from gateway.upstream.oauth.scopes import union
from gateway.upstream.oauth.signed_in_users import SignedInUsers
from gateway.upstream.oauth.store import Store, StoreFailed
from gateway.upstream.oauth.stored_sign_in import StoredSignIn
from gateway.upstream.oauth.tokens import TokenRefused, Tokens
from gateway.upstream.transport.proxies import ProxyChoice

log = logging.getLogger(__name__)

# How often what other processes have kept is looked at: a sign-in in one is used in the others by the next call.
_LOOK_S: Final = 1.0
# Discovery is not repeated for each of many requests that are refused at a time.
_ASK_AGAIN_S: Final = 2.0
# Of the time in which a connection has to come about; what cannot be had within it is asked for with the link.
_ASK_S: Final = 6.0
# "A few times" (MCP 2025-11-25, "Scope Challenge Handling"), in an hour: a server that never has enough.
_MAX_STEP_UPS: Final = 3
_STEP_UPS_S: Final = 3_600.0
# After a failed refresh: often enough in the fifth of a life that is left, and no burden for a server that is down.
_RETRY_S: Final = 15.0
# The issuer has this long to revoke; below the 30 s that another process waits for the lock.
_REVOKE_S: Final = 25.0
_LONGEST_RETRY_S: Final = 120.0
# A store that was just found not to answer is not asked by the next call: each would wait for its timeout.
_STORE_AGAIN_S: Final = 2.0
# Nothing was sent that could have been refused.
_NOBODY_NAMED: Final = (
    "it wants credentials, and does not say who gives them: there are no metadata of the resource (RFC 9728), and none "
    "of an authorization server at its origin. Configure `headers`, or `auth.issuer`"
)


class SignIn(StoredSignIn):
    """See `Credentials`."""

    def __init__(
        self,
        server: str,
        url: str,
        config: SignInConfig,
        store: Store,
        *,
        tasks: OwnedTasks,
        principal: str = "",
        addresses: Addresses,
        counts: SignInCounts,
        on_needed: Callable[[], None] = lambda: None,
        connect: Callable[[SignIn], Awaitable[SignInLink]] | None = None,
        users: SignedInUsers | None = None,
        listening: Callable[[], Awaitable[None]] | None = None,
        proxy: ProxyChoice = None,
    ) -> None:
        """Know nothing yet; `prepare` reads what is kept.

        Args:
            server, url, config: The upstream, and how it is signed in to.
            store: Where the sign-in is kept.
            tasks: Runs whatever changes the sign-in, so that no caller's end interrupts it.
            principal: Whose it is; empty where all callers share it.
            addresses: Where this gateway is.
            counts: Counts what becomes of it.
            on_needed: Called whenever somebody has to sign in.
            connect: Makes a link for its principal, who is asked to show who it is; None where all callers share it.
            users: See `StoredSignIn`.
            listening: Waits until browsers can come back, where a port is opened for them only when one is wanted.
            proxy: What requests to the authorization server go through.
        """
        super().__init__(server, url, config, store, principal=principal, users=users)
        # Why there was no link the last time that somebody wanted one.
        self._failure: str | None = None
        self.obtaining = Obtaining(server, url, config, addresses, owner=self._owner, proxy=proxy)
        self._tasks = tasks
        self._counts = counts
        self._on_needed = on_needed
        self._connect = connect
        self._listening = listening
        self._renewing = anyio.Lock()
        # Apart: nobody whose token is refreshed waits for somebody else's browser.
        self._beginning = anyio.Lock()
        self._challenge: Challenge | None = None
        self._asked_at_s = -math.inf
        self._forced_version = self._accepted_version = -1
        self._store_failure, self._store_failed_s = "", -math.inf

    # what transports use

    @property
    def ready(self) -> bool:
        """See `Credentials.ready`."""
        tokens = self._kept.tokens
        # Without any the request goes as it is: what an upstream wants is in its refusal.
        return self._loaded and (tokens is None or not tokens.is_expired(time.time()))

    async def prepare(self) -> None:
        """See `Credentials.prepare`."""
        await self.look()
        tokens = self._kept.tokens
        if tokens is None:
            # Who signs in is asked for what the upstream's refusal names: it is sent a request without anything.
            if not self.config.interactive and self._kept.server is not None:
                await self._renew()
        elif tokens.is_expired(time.time()):
            await self._renew()

    async def refused(self, status: int, challenge: str, version: int, nonce: str = "") -> bool:
        """See `Credentials.refused`."""
        if version != self.version:
            return True
        found = token_challenge(challenge)
        if self._prover is not None and found is not None and found.parameters.get("error") == "use_dpop_nonce":
            # RFC 9449, section 9: the token is good, and the request is to be proved once more.
            return self._prover.take_nonce(nonce)
        if status == 403:
            if found is None or not found.insufficient_scope:
                return False
            work = partial(self._step_up, found, version)
        else:
            work = partial(self._replace_refused, found, version)
        # Many requests are refused at a time, for one reason.
        return await self._tasks.run(work, key=(self, status, challenge, version))

    async def settled(self) -> None:
        """See `Credentials.settled`."""
        async with self._renewing:
            pass

    def accepted(self, version: int) -> None:
        """See `Credentials.accepted`."""
        self._accepted_version = version

    async def keep(self) -> None:
        """See `Credentials.keep`."""
        retry_at_s, pause_s = 0.0, _RETRY_S
        while True:
            event = self._changed
            with anyio.move_on_after(_LOOK_S):
                await event.wait()  # whoever has just signed out is not answered any more
            await self.look()
            tokens = self._kept.tokens
            if tokens is None:
                return
            if tokens.is_due(time.time()) and time.monotonic() >= retry_at_s:
                if tokens.refresh is None and self.config.interactive:
                    continue
                if self.config.exchanges_callers and self.obtaining.subject() is None:
                    continue  # its caller comes back with another token, or not at all
                try:
                    await self._renew()
                except NotSignedIn:
                    return
                except GatewayError as error:
                    # Of several in a row the first.
                    level = logging.WARNING if pause_s == _RETRY_S else logging.DEBUG
                    log.log(level, "the sign-in was not refreshed: %s", error, extra={"server": self.server})
                    retry_at_s, pause_s = time.monotonic() + pause_s, min(2 * pause_s, _LONGEST_RETRY_S)
                else:
                    pause_s = _RETRY_S

    # what administrators and callers use

    async def begin(self, *, browser: str | None = None) -> SignInLink:
        """A link to sign in with; the same one for some minutes.

        Args:
            browser: The mark of the only browser that may come back from it; None where the link is given to nobody
                but who may use it.

        Raises:
            SignInFailed: There is nowhere to sign in.
        """
        if not self.config.interactive:
            raise SignInFailed(f"server '{self.server}' is of auth.type {self.config.type}: nobody signs in to it")
        if self._listening is not None:
            await self._listening()
        return await self._tasks.run(partial(self._link, browser), key=(self, "link", browser))

    async def _link(self, browser: str | None) -> SignInLink:
        await self.look()
        async with self._beginning:
            try:
                link = await self.obtaining.link(
                    self._kept, self._challenge, self._store, principal=self.principal, browser=browser
                )
            except SignInFailed as error:
                self._failure = SECRETS.scrub(str(error))
                raise
            self._failure = None
            return link

    async def finish(self, tokens: Tokens, kept: KeptSignIn) -> None:
        """Take what a sign-in has brought.

        Raises:
            SignInFailed: Another process does not let go of it.
        """
        async with self._renewing, self._locked():
            await self._reload()
            now_s = time.time()
            step_ups = self._kept.step_ups
            await self._save(
                replace(kept, tokens=tokens, step_ups=step_ups, signed_in_at_s=now_s, refreshed_at_s=now_s)
            )
        self.obtaining.forget_link()
        self._asked_at_s = -math.inf
        self._counts.sign_ins[self.server, "ok"] += 1
        log.info("signed in", extra={"server": self.server, "principal": self.principal or None})

    async def sign_out(self) -> bool:
        """Revoke and forget the tokens; whether there were any.

        Raises:
            SignInFailed: Another process does not let go of them, or what is kept of them stays.
        """
        return await self._tasks.run(self._end, key=(self, "sign out"))

    async def _end(self) -> bool:
        async with self._renewing, self._locked():
            await self._reload()
            kept = self._kept
            tokens, server, client = kept.tokens, kept.server, kept.client
            if tokens is not None and server is not None and client is not None:
                with anyio.move_on_after(_REVOKE_S):
                    taken = await self.obtaining.endpoint(kept).revoke(tokens)
                    log.info("revoked at the issuer" if taken else "not revoked at the issuer: only forgotten here")
            # A new sign-in begins anew: the server may have forgotten the client that it registered.
            is_registered = client is not None and client.origin == "registered"
            if kept.issuer is not None and is_registered:
                await RegisteredClients(self._store, self.server, self.url).forget(kept.issuer)
            if tokens is None and not is_registered:
                return False
            with anyio.CancelScope(shield=True):
                failure = await self._save(kept.without_tokens(signed_out=True, client=not is_registered))
        self.obtaining.forget_link()
        if tokens is None:
            return False
        if failure is not None:
            raise SignInFailed(f"signed out, but not for good: {failure}")
        self._counts.sign_ins[self.server, "signed_out"] += 1
        self.needed = "signed out"
        return True

    async def forget_client(self) -> None:
        """Register again with the next link: the authorization server refuses the client that it registered."""
        kept = self._kept
        if kept.issuer is not None:
            await RegisteredClients(self._store, self.server, self.url).forget(kept.issuer)
        if kept.client is None or kept.client.origin != "registered":
            return
        async with self._locked():
            await self._reload()
            await self._save(replace(self._kept, client=None))
        self.obtaining.forget_link()

    @property
    def signed_in(self) -> bool:
        """Whether there is a token."""
        return self._kept.tokens is not None

    @property
    def known(self) -> bool:
        """Whether the upstream has asked for a sign-in."""
        return self._kept.issuer is not None or self.needed is not None

    def row(self) -> dict[str, Any]:
        """What administrators are shown of it; no secret."""
        return {**self._kept.row(self.config), "needed": self.needed, "error": self._failure}

    async def begin_for_caller(self) -> SignInLink:
        """A link for the caller whose sign-in it is, good only for whoever shows that they are that caller.

        Raises:
            SignInFailed: There is no such link.
        """
        if self._connect is None:
            raise SignInFailed(f"all callers share the sign-in to '{self.server}'")
        return await self._connect(self)

    @property
    def source(self) -> SignInSource:
        """What to do where somebody has to sign in."""
        return SignInSource(
            begin=self.begin,
            changed=self.changed,
            version=self.version,
            is_over=self.is_over,
            owner=self.principal if self._connect is not None else "",
            begin_for_caller=self.begin_for_caller,
        )

    # inside

    async def _ask_issuer(self) -> bool:
        """Learn who gives tokens for the upstream; false where nothing says so. Another one than before starts anew.

        Raises:
            NotSignedIn: It cannot be learnt at present, and is where somebody signs in.
            HttpStatusError: What it says must not be relied on.
        """
        wanted = self._challenge is not None and self._challenge.resource_metadata is not None
        found: KeptSignIn | None = None
        try:
            with anyio.fail_after(_ASK_S):
                found = await self.obtaining.find_issuer(self._challenge, self._kept)
        except TimeoutError:
            if self._kept.tokens is None and self.config.interactive and wanted:
                raise self._not_signed_in(f"its metadata did not come within {_ASK_S:g} s") from None
            return self._kept.issuer is not None
        except MetadataRefused as error:
            raise HttpStatusError(401, f"a sign-in is not possible: {SECRETS.scrub(str(error))}") from None
        if found is None:
            return False
        if self._kept.issuer is not None and found.issuer != self._kept.issuer:
            log.warning("the upstream has another issuer now", extra={"server": self.server})
            async with self._store.lock(self._key):
                await self._reload()
                await self._save(found)
        elif self._kept.issuer is None:
            self._kept = found
        return True

    async def _replace_refused(self, found: Challenge | None, version: int) -> bool:
        """Replace credentials that were answered with 401; see `Credentials.refused`."""
        await self.look()
        async with self._renewing:
            if version != self.version:
                return True
            # Many requests are refused at a time, for one reason.
            if time.monotonic() - self._asked_at_s >= _ASK_AGAIN_S:
                self._challenge = found or self._challenge
                if not await self._ask_issuer():
                    if self._kept.tokens is None:
                        raise HttpStatusError(401, _NOBODY_NAMED)
                    return False
                self._asked_at_s = time.monotonic()
            if self._kept.tokens is None and self.config.interactive:
                raise self._not_signed_in("signed out" if self._kept.signed_out else "nobody has signed in yet")
            if version == self._forced_version and version != self._accepted_version:
                # Fetched because the one before was refused, and never taken: another one would not be, either.
                if self.config.interactive:
                    raise self._not_signed_in("the server refuses the token that was given for it")
                return False
            forced = self._kept.tokens is not None
            await self._renew_held(version)
            if forced:
                self._forced_version = self.version
        return True

    async def _step_up(self, challenge: Challenge, version: int) -> bool:
        wanted, now_s = challenge.scopes or (), time.time()
        async with self._renewing:
            if version != self.version:
                return True
            kept = self._kept
            recent = tuple(at_s for at_s in kept.step_ups if now_s - at_s < _STEP_UPS_S)
            # What was asked for already and not granted is not granted for being asked again.
            if not wanted or set(wanted) <= set(kept.scopes) or len(recent) >= _MAX_STEP_UPS:
                return False
            async with self._store.lock(self._key):
                await self._reload()
                more = union(self._kept.scopes, self._kept.wanted, wanted)
                step_ups = recent if self.config.interactive else (*recent, now_s)
                await self._save(replace(self._kept, wanted=more, step_ups=step_ups))
        if self.config.interactive:
            reason = f"more has to be granted than was ({' '.join(wanted)})"
            raise self._not_signed_in(reason, step_up=True)
        await self._renew_once(version)
        return True

    async def _renew(self) -> None:
        """Replace the present token, in a task that no caller's end interrupts; all who ask share one attempt.

        Raises:
            NotSignedIn: Somebody has to sign in.
            CredentialsUnavailable: The token endpoint or the store does not answer; what there is stays.
            HttpStatusError: It refuses, and nobody can sign in.
        """
        await self._tasks.run(partial(self._renew_once, self.version), key=(self, "renew", self.version))

    async def _renew_once(self, version: int) -> None:
        async with self._renewing:
            if version == self.version:
                await self._renew_held(version)

    async def _renew_held(self, version: int) -> None:
        if time.monotonic() - self._store_failed_s < _STORE_AGAIN_S:
            raise CredentialsUnavailable(self._store_failure)
        try:
            async with self._store.lock(self._key):
                learnt = self._kept
                await self._reload()
                if version != self.version and self._kept.tokens is not None:
                    return
                if self._kept.issuer is None:
                    # What was learnt and not yet kept.
                    self._kept = learnt
                # A refresh token is spent the moment it is sent: no caller's end and no shutdown interrupts this.
                with anyio.CancelScope(shield=self.config.interactive):
                    await self._fetch()
        except StoreFailed as error:
            self._store_failure, self._store_failed_s = str(error), time.monotonic()
            raise CredentialsUnavailable(str(error)) from None

    async def _fetch(self) -> None:
        kept = self._kept
        try:
            if self.config.interactive:
                if kept.tokens is None or kept.tokens.refresh is None or kept.server is None or kept.client is None:
                    await self._save(kept.without_tokens())
                    raise self._not_signed_in("its token has ended and cannot be refreshed")
                tokens = await self.obtaining.endpoint(kept).refreshed(kept.tokens)
            else:
                kept, tokens = await self.obtaining.unattended(kept, self._challenge)
        except TokenRefused as error:
            outcome = "failed" if error.passing else "refused"
            self._counts.refreshes[self.server, outcome] += 1
            if error.passing:
                raise CredentialsUnavailable(f"its sign-in cannot be refreshed: {error}") from None
            if not self.config.interactive:
                raise HttpStatusError(401, f"no token was given: {SECRETS.scrub(str(error))}") from None
            if error.spent or error.client_refused:
                forgets = error.client_refused and kept.client is not None and kept.client.origin == "registered"
                if forgets and kept.issuer is not None:
                    await RegisteredClients(self._store, self.server, self.url).forget(kept.issuer)
                await self._save(kept.without_tokens(client=not forgets))
            raise self._not_signed_in(SECRETS.scrub(str(error))) from None
        except (MetadataRefused, SignInFailed) as error:
            self._counts.refreshes[self.server, "refused"] += 1
            raise HttpStatusError(401, str(error)) from None
        self._counts.refreshes[self.server, "ok"] += 1
        now_s = time.time()
        since_s = kept.signed_in_at_s or now_s
        await self._save(replace(kept, tokens=tokens, refreshed_at_s=now_s, signed_in_at_s=since_s))
        log.info("token renewed", extra={"server": self.server})

    def _not_signed_in(self, reason: str, *, step_up: bool = False) -> NotSignedIn:
        self.needed = reason
        self._on_needed()
        user = f" --user '{self.principal}'" if self._connect is not None else ""
        text = f"sign-in needed: {reason}; `typegate login {self.server}{user}` signs in"
        return NotSignedIn(text, source=self.source, step_up=step_up)
