"""Every sign-in of a gateway, and what a browser brings back."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from gateway.access.principal import LOCAL
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import UrlConfig
from gateway.owned_tasks import OwnedTasks
from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.authorization import AnswerRefused, Returned, check_issuer, code_of, read_return
from gateway.upstream.oauth.clients import client_document
from gateway.upstream.oauth.connecting import CallerChecks, Connecting, WrongCaller, check_browser, digest_of
from gateway.upstream.oauth.counts import SignInCounts
from gateway.upstream.oauth.kept_sign_in import KeptSignIn
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.signed_in_users import SignedInUsers
from gateway.upstream.oauth.store import MemoryStore, Store, StoreFailed
from gateway.upstream.oauth.tokens import CLIENT_ERRORS, TokenRefused

log = logging.getLogger(__name__)


Record = Callable[[str, str | None, str, str | None], None]


# A port of this machine is opened in a millisecond, by a task that may wait for others.
_LISTEN_S: Final = 5.0
# Those of callers who are connected (`user_links`), and as many who sign in at another process.
_MOST_MADE: Final = 1_024


def _no_record(server: str, principal: str | None, action: str, error: str | None) -> None:
    """Keep no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What became of a sign-in.

    Attributes:
        server: The alias.
        go_on_at: Where the browser has to go once more; None where somebody is signed in.
    """

    server: str
    go_on_at: str | None = None


class SignIns:
    """One `SignIn` for each pair of upstream and principal, made when it is first needed.

    Attributes:
        counts: What became of them.
        addresses: Where this gateway is.
        needed: Set once somebody has had to sign in anywhere.
        users: Who is signed in to servers to which each caller signs in for itself.
        listening: Set once browsers can come back, where that takes `needed` first; None where it is so, or never will.
    """

    def __init__(
        self,
        tasks: OwnedTasks,
        store: Store | None = None,
        addresses: Addresses | None = None,
        record: Record | None = None,
        checks: CallerChecks | None = None,
    ) -> None:
        """Begin without any.

        Args:
            tasks: Runs what no caller's end may interrupt.
            store: Where they are kept; in memory by default.
            addresses: Where this gateway is.
            record: Takes what became of each: the server, for whom, what it was, and why it failed.
            checks: What tells who callers are, where each signs in for itself.
        """
        self._tasks = tasks
        self._record = record if record is not None else _no_record
        self._store = store if store is not None else MemoryStore()
        self.users = SignedInUsers(self._store)
        # As they were asked for last: a browser may come back to a process that has made nothing of its sign-in.
        self._configs: dict[str, ServerConfig] = {}
        self._made: dict[tuple[str, str], tuple[ServerConfig, SignIn]] = {}
        self.addresses = addresses if addresses is not None else Addresses()
        self.connecting = Connecting(self._store, self.addresses, checks if checks is not None else CallerChecks())
        self.counts = SignInCounts()
        self.needed = anyio.Event()
        self.listening: anyio.Event | None = None

    def of(self, server: str, config: ServerConfig, *, user: str = "") -> SignIn | None:
        """The sign-in to an upstream; None where it needs none.

        Args:
            server, config: The upstream.
            user: Whose, as `user_of` names callers, where each signs in for itself; empty for the only caller of a
                gateway that tells none apart.
        """
        if not isinstance(config, UrlConfig) or (wanted := config.sign_in) is None:
            return None
        self._configs[server] = config
        # One's own is never taken for everybody's, should the entry change.
        principal = (user or LOCAL.name) if wanted.is_per_user else ""
        made = self._made.get((server, principal))
        if made is not None:
            before = made[0]
            reach = (config.url, wanted, config.proxy)
            if isinstance(before, UrlConfig) and (before.url, before.sign_in, before.proxy) == reach:
                return made[1]
            made[1].obtaining.close()
        is_own = wanted.per_user and wanted.interactive and bool(user)
        sign_in = SignIn(
            server,
            config.url,
            wanted,
            # What a caller's token was exchanged for lasts no longer than the caller's connection.
            MemoryStore() if wanted.exchanges_callers else self._store,
            tasks=self._tasks,
            principal=principal,
            addresses=self.addresses,
            counts=self.counts,
            on_needed=self._note_needed,
            connect=self.connecting.link if is_own else None,
            users=self.users if is_own else None,
            listening=self._until_listening,
            proxy=config.proxy,
        )
        self._made[server, principal] = (config, sign_in)
        if len(self._made) > _MOST_MADE:
            self._release_oldest()
        return sign_in

    async def look_for_users(self, servers: Mapping[str, ServerConfig]) -> None:
        """Have `user_rows` tell who is signed in by now, also of other processes."""
        for server, config in servers.items():
            if config.per_user and isinstance(config, UrlConfig):
                await self.users.look(server, config.url)

    def user_rows(self, server: str, config: ServerConfig) -> list[dict[str, Any]]:
        """One row for each user who is signed in to a server, as far as is known; no secret."""
        if not isinstance(config, UrlConfig):
            return []
        rows: list[dict[str, Any]] = []
        for user, since_s in self.users.known(server, config.url).items():
            made = self._made.get((server, user))
            more = made[1].row() if made is not None else {}
            told = {key: more.get(key) for key in ("issuer", "scopes", "lastRefresh", "expires", "needed")}
            rows.append({"principal": user, "signedIn": True, "since": since_s, **told})
        return rows

    def _release_oldest(self) -> None:
        """Keep the sign-in of somebody in the store only; a connection that has it goes on with it."""
        of_callers = (
            key for key, (_, sign_in) in self._made.items() if sign_in.config.is_per_user and key[1] != LOCAL.name
        )
        if (oldest := next(of_callers, None)) is not None:
            self.release(*oldest)

    def release(self, server: str, user: str) -> None:
        """Keep the sign-in of a caller in the store only: its connection has ended."""
        made = self._made.pop((server, user), None)
        if made is not None:
            made[1].obtaining.close()

    async def _until_listening(self) -> None:
        if self.listening is not None:
            self.needed.set()
            with anyio.move_on_after(_LISTEN_S):
                await self.listening.wait()

    def _note_needed(self) -> None:
        self.needed.set()

    def __iter__(self) -> Iterator[SignIn]:
        return (sign_in for _, sign_in in self._made.values())

    def close(self) -> None:
        """Drop every idle connection."""
        self.connecting.close()
        for sign_in in self:
            sign_in.obtaining.close()

    async def prove(self, ticket: str, key: str, mark: str) -> Finished:
        """Begin the sign-in of a caller who shows by an API key that a link was made for it.

        Raises:
            SignInFailed: It was not.
        """
        return await self._begin(self.connecting.proved(ticket, key), mark)

    async def _begin(self, finding: Awaitable[Mapping[str, Any]], mark: str | None) -> Finished:
        """Begin the sign-in of a caller, once it is known to sit at this browser."""
        try:
            about = await finding
        except WrongCaller as error:
            self._record(str(error.about["server"]), str(error.about["user"]), "sign_in", "somebody else came")
            raise
        sign_in = self._of_pending(str(about["server"]), str(about["user"]), str(about["url"]))
        link = await sign_in.begin(browser=digest_of(mark or ""))
        return Finished(server=sign_in.server, go_on_at=link.url)

    async def finish(self, query: str, *, mark: str | None = None) -> Finished:
        """End the sign-in that a browser came back from.

        Args:
            query: Of the address that it came back to.
            mark: What the browser was given where it showed who sits there; None where it brings nothing.

        Raises:
            SignInFailed: Nobody is signed in by it; the text is for whoever sits there.
        """
        try:
            returned = read_return(query)
        except AnswerRefused as error:
            raise SignInFailed(f"this address ends no sign-in: {error}") from None
        # The code can be used once: a browser that closes its page must not lose what it was exchanged for.
        return await self._tasks.run(partial(self._exchange_code, returned, mark), shield=True)

    async def _exchange_code(self, returned: Returned, mark: str | None) -> Finished:
        # Whatever becomes of it, it is used by this.
        try:
            pending = await self._store.take(f"pending:{returned.state}")
        except StoreFailed as error:
            raise SignInFailed(f"{error}; load this page again") from None
        if pending is None or pending["expires"] < time.time():
            raise SignInFailed("this sign-in was not begun here, was ended already, or took more than ten minutes")
        if "identity" in pending:
            return await self._begin(self.connecting.identified(returned, pending, mark), mark)
        check_browser(pending.get("browser"), mark)
        server, principal = str(pending["server"]), str(pending["principal"])
        sign_in = self._of_pending(server, principal, str(pending["url"]))
        kept = KeptSignIn.of_document(pending["kept"])
        sign_in.obtaining.forget_link()
        issued_by = kept.server
        try:
            if issued_by is None:
                raise AnswerRefused("nothing is known of its issuer")
            check_issuer(returned, issuer=issued_by.issuer, named=issued_by.names_issuer)
            if returned.error_code == "invalid_request" and pending.get("consent"):
                sign_in.obtaining.consent = False
                again = await sign_in.begin(browser=pending.get("browser"))
                return Finished(server=server, go_on_at=again.url)
            endpoint = sign_in.obtaining.endpoint(kept)
            tokens = await endpoint.for_code(
                code_of(returned), verifier=str(pending["verifier"]), redirect_uri=str(pending["redirectUri"])
            )
        except (AnswerRefused, TokenRefused) as error:
            code = error.code if isinstance(error, TokenRefused) else returned.error_code
            if code in CLIENT_ERRORS:
                await sign_in.forget_client()
                if pending.get("reused"):
                    again = await sign_in.begin(browser=pending.get("browser"))
                    return Finished(server=server, go_on_at=again.url)
            self.counts.sign_ins[server, "failed"] += 1
            reason = SECRETS.scrub(str(error))
            self._record(server, principal or None, "sign_in", reason)
            log.warning("a sign-in failed: %s", reason, extra={"server": server})
            raise SignInFailed(f"the sign-in to '{server}' failed: {reason}") from None
        await sign_in.finish(tokens, kept)
        self._record(server, principal or None, "sign_in", None)
        return Finished(server=server)

    def _of_pending(self, server: str, principal: str, url: str) -> SignIn:
        """The sign-in that a browser comes back for, which another process may have begun.

        Raises:
            SignInFailed: It is none of today's configuration.
        """
        config = self._configs.get(server)
        if isinstance(config, UrlConfig) and config.url == url:
            sign_in = self.of(server, config, user=principal if principal != LOCAL.name else "")
            if sign_in is not None and sign_in.principal == principal:
                return sign_in
        raise SignInFailed(f"server '{server}' is no longer configured as it was")

    async def sign_out(self, sign_in: SignIn) -> bool:
        """Revoke and forget the tokens of a sign-in; whether there were any."""
        ended = await sign_in.sign_out()
        if ended:
            self._record(sign_in.server, sign_in.principal or None, "sign_out", None)
        return ended

    def document(self) -> dict[str, object] | None:
        """Our client id metadata document; None where the gateway has no public address."""
        url, redirect_uri = self.addresses.document_url(), self.addresses.redirect_uri()
        return client_document(url, redirect_uri) if url is not None and redirect_uri is not None else None
