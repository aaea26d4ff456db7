"""All sign-ins of a gateway, one for each pair of an upstream and a principal.

A principal is the caller who owns the sign-in; its name is empty if all callers share one sign-in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.access.principal import LOCAL
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import CredentialsConfig
from gateway.process.secrets import SECRETS
from gateway.process.tasks import OwnedTasks
from gateway.upstream.oauth.account_linking import (
    AccountLinking,
    CallerChecks,
    WrongCaller,
    check_browser,
    cookie_digest,
)
from gateway.upstream.oauth.authorization import (
    Addresses,
    AuthorizationResponse,
    BrowserOrigin,
    InvalidAuthorizationResponse,
    authorization_code,
    check_issuer,
    parse_authorization_response,
)
from gateway.upstream.oauth.client_registration import CLIENT_ERRORS, client_document
from gateway.upstream.oauth.metadata_discovery import SignInUpstream
from gateway.upstream.oauth.sign_in import SignIn, SignInPorts
from gateway.upstream.oauth.token_endpoint import TokenRequestFailed
from gateway.upstream.oauth.token_flow import SignInCounts, StoredSignIn, UnreadableSignIn
from gateway.upstream.oauth.token_store import (
    MemoryTokenStore,
    SignedInUsers,
    StoreFailed,
    TokenStore,
    pending_key,
)
from gateway.upstream.upstream_credentials import SignInFailed, SubjectToken

log = logging.getLogger(__name__)


Record = Callable[[str, str | None, str, str | None], None]


# Bounds memory: one sign-in for each connection that belongs to a caller (`MAX_USER_LINKS`), and as many sign-ins of
# callers without a connection in this process.
_MAX_SIGN_INS: Final = 1_024


def _no_record(server: str, principal: str | None, action: str, error: str | None) -> None:
    """Ignore the audit entry; used without an audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackResult:
    """Result of a redirect from an authorization server.

    Attributes:
        server: Alias of the upstream.
        redirect_url: URL at which the browser has to continue; None if the sign-in is complete.
        access_ticket: Ticket with which the callers' page, `/me`, fetches the access token after a sign-in to the
            gateway itself; None for other sign-ins.
    """

    server: str = ""
    redirect_url: str | None = None
    access_ticket: str | None = None


class SignIns:
    """Creates one `SignIn` for each pair of upstream and principal when it is first needed.

    Attributes:
        addresses: The URLs of this gateway.
        users: The signed-in users of each upstream to which every caller signs in separately.
    """

    def __init__(
        self,
        tasks: OwnedTasks,
        store: TokenStore | None = None,
        addresses: Addresses | None = None,
        record: Record | None = None,
        checks: CallerChecks | None = None,
        origin: BrowserOrigin | None = None,
        *,
        max_sign_ins: int = _MAX_SIGN_INS,
    ) -> None:
        """Create the collection without any sign-in.

        Args:
            tasks: Runs work that must finish even if its caller is cancelled.
            store: Store of all sign-ins; None to store the sign-ins in memory.
            addresses: The URLs of this gateway.
            record: Writes an audit entry: server, principal, action, and error if it failed.
            checks: The ways to identify the user at a browser.
            origin: The origin at which browsers reach this gateway.
            max_sign_ins: The number above which the oldest sign-ins of callers are dropped from memory.
        """
        self._max_sign_ins = max_sign_ins
        self._tasks = tasks
        self._record = record if record is not None else _no_record
        self._store = store if store is not None else MemoryTokenStore()
        self.users = SignedInUsers(self._store)
        # Latest configuration of each server. A browser may return to a process that has not created the `SignIn` yet.
        self._configs: dict[str, ServerConfig] = {}
        # Callables that return the access token of a connected caller, for token exchange; by server and principal.
        self._subjects: dict[tuple[str, str], SubjectToken] = {}
        self._sign_ins: dict[tuple[str, str], tuple[ServerConfig, SignIn]] = {}
        self.addresses = addresses if addresses is not None else Addresses()
        self.linking = AccountLinking(self._store, self.addresses, checks if checks is not None else CallerChecks())
        self.counts = SignInCounts()
        self._origin = origin if origin is not None else BrowserOrigin()

    def get(
        self, server: str, config: ServerConfig, *, user: str = "", subject: SubjectToken | None = None
    ) -> SignIn | None:
        """Return the sign-in to an upstream; None if the upstream needs none.

        Args:
            user: Name of the caller, as returned by `user_of`, if callers sign in separately; empty if the gateway does
                not distinguish callers.
            subject: Returns the caller's own access token, for upstreams that exchange it for their own token; None to
                use the callable from an earlier call of this method.
        """
        if not isinstance(config, CredentialsConfig) or (sign_in_config := config.sign_in) is None:
            return None
        self._configs[server] = config
        # A separate sign-in always has a principal: after a configuration change, it must not become the shared one.
        principal = (user or LOCAL.name) if sign_in_config.is_per_user else ""
        if subject is not None:
            self._subjects[server, principal] = subject
        existing = self._sign_ins.get((server, principal))
        if existing is not None:
            before = existing[0]
            reach = (config.address, sign_in_config, config.proxy)
            if isinstance(before, CredentialsConfig) and (before.address, before.sign_in, before.proxy) == reach:
                return existing[1]
            existing[1].flow.close()
        is_own = sign_in_config.per_user and sign_in_config.interactive and bool(user)
        sign_in = SignIn(
            SignInUpstream(server=server, url=config.address or "", config=sign_in_config, proxy=config.proxy),
            # Exchanged tokens depend on the caller's own token, so they must not outlast the caller's connection.
            MemoryTokenStore() if sign_in_config.exchanges_callers else self._store,
            tasks=self._tasks,
            principal=principal,
            addresses=self.addresses,
            counts=self.counts,
            ports=SignInPorts(
                on_needed=self._origin.needed.set,
                until_listening=self._origin.until_open,
                subject=partial(self._subject, server, principal),
                create_caller_link=self.linking.create_link if is_own else None,
                users=self.users if is_own else None,
            ),
        )
        self._sign_ins[server, principal] = (config, sign_in)
        if len(self._sign_ins) > self._max_sign_ins:
            self._release_oldest()
        return sign_in

    async def load_users(self, servers: Mapping[str, ServerConfig]) -> None:
        """Load the users whom `user_rows` returns, including users who signed in through another process."""
        for server, config in servers.items():
            if config.per_user and isinstance(config, CredentialsConfig):
                await self.users.load(server, config.address or "")

    def user_rows(self, server: str, config: ServerConfig) -> list[dict[str, Any]]:
        """Return one row for each known user of a server, without secrets."""
        if not isinstance(config, CredentialsConfig):
            return []
        rows: list[dict[str, Any]] = []
        for user, since_s in self.users.cached_users(server, config.address or "").items():
            existing = self._sign_ins.get((server, user))
            more = existing[1].row() if existing is not None else {}
            details = {key: more.get(key) for key in ("issuer", "scopes", "lastRefresh", "expires", "needed")}
            rows.append({"principal": user, "signedIn": True, "since": since_s, **details})
        return rows

    def _release_oldest(self) -> None:
        """Drop the oldest sign-in of a caller from memory; it stays in the store and in connections that use it."""
        of_callers = (
            key for key, (_, sign_in) in self._sign_ins.items() if sign_in.config.is_per_user and key[1] != LOCAL.name
        )
        if (oldest := next(of_callers, None)) is not None:
            self._drop(oldest)

    def release(self, server: str, user: str) -> None:
        """After a caller's connection has ended, drop the sign-in from memory; it stays in the store."""
        self._subjects.pop((server, user), None)
        self._drop((server, user))

    def _drop(self, key: tuple[str, str]) -> None:
        removed = self._sign_ins.pop(key, None)
        if removed is not None:
            removed[1].flow.close()

    def _subject(self, server: str, principal: str) -> str | None:
        subject = self._subjects.get((server, principal))
        return subject() if subject is not None else None

    def __iter__(self) -> Iterator[SignIn]:
        return (sign_in for _, sign_in in self._sign_ins.values())

    def close(self) -> None:
        """Close all idle connections."""
        self.linking.close()
        for sign_in in self:
            sign_in.flow.close()

    async def start_with_key(self, ticket: str, key: str, cookie: str) -> CallbackResult:
        """Begin the sign-in of a caller who has followed a link and entered an API key on its page.

        Raises:
            SignInFailed: The key or the link is not valid, the link was created for another caller, or the sign-in
                cannot begin.
        """
        return await self._start(self.linking.identify_by_key(ticket, key), cookie)

    async def _start(self, identification: Awaitable[Mapping[str, Any]], cookie: str | None) -> CallbackResult:
        """Wait until the user at the browser is identified, and begin the sign-in."""
        try:
            about = await identification
        except WrongCaller as error:
            self._record(
                str(error.about["server"]), str(error.about["user"]), "sign_in", "the link was used by another caller"
            )
            raise
        sign_in = self._pending_sign_in(str(about["server"]), str(about["user"]), str(about["url"]))
        link = await sign_in.create_link(browser=cookie_digest(cookie or ""))
        return CallbackResult(server=sign_in.server, redirect_url=link.url)

    async def handle_callback(self, query: str, *, cookie: str | None = None) -> CallbackResult:
        """Complete a sign-in, or the identification of a user, after a redirect from an authorization server.

        Args:
            query: Query string of the redirect.
            cookie: Cookie of the browser; None if the browser sent none.

        Raises:
            SignInFailed: The sign-in failed; the message is shown to the user.
        """
        try:
            response = parse_authorization_response(query)
        except InvalidAuthorizationResponse as error:
            raise SignInFailed(f"this address does not complete a sign-in: {error}") from None
        # The authorization code can be used only once, so the exchange must finish even if the user closes the page.
        return await self._tasks.run(partial(self._exchange_code, response, cookie), shield=True)

    async def _exchange_code(self, response: AuthorizationResponse, cookie: str | None) -> CallbackResult:
        # Remove the pending sign-in first, so that each `state` can be used only once, even if the sign-in fails.
        try:
            pending = await self._store.pop(pending_key("state", response.state))
        except StoreFailed as error:
            raise SignInFailed(f"{error}; load this page again") from None
        if pending is None or pending["expires"] < time.time():
            raise SignInFailed(
                "this sign-in is unknown, already complete, or older than ten minutes; start the sign-in again"
            )
        if "identity" in pending and "access" in pending["about"]:
            return CallbackResult(access_ticket=await self.linking.finish_access(response, pending, cookie))
        if "identity" in pending:
            return await self._start(self.linking.identify_by_issuer(response, pending, cookie), cookie)
        check_browser(pending.get("browser"), cookie)
        server, principal = str(pending["server"]), str(pending["principal"])
        sign_in = self._pending_sign_in(server, principal, str(pending["url"]))
        try:
            stored = StoredSignIn.from_document(pending["kept"])
        except UnreadableSignIn as error:
            raise SignInFailed(f"the sign-in to '{server}' failed: {error}; start the sign-in again") from None
        sign_in.flow.forget_link()
        issued_by = stored.server
        try:
            if issued_by is None:
                raise InvalidAuthorizationResponse("the issuer of this sign-in is unknown")
            check_issuer(response, issuer=issued_by.issuer, is_required=issued_by.names_issuer)
            if response.error_code == "invalid_request" and pending.get("consent"):
                sign_in.flow.request_without_consent()
                again = await sign_in.create_link(browser=pending.get("browser"))
                return CallbackResult(server=server, redirect_url=again.url)
            endpoint = sign_in.flow.endpoint(stored)
            tokens = await endpoint.exchange_code(
                authorization_code(response),
                verifier=str(pending["verifier"]),
                redirect_uri=str(pending["redirectUri"]),
            )
        except (InvalidAuthorizationResponse, TokenRequestFailed) as error:
            code = error.code if isinstance(error, TokenRequestFailed) else response.error_code
            if code in CLIENT_ERRORS:
                await sign_in.forget_client()
                if pending.get("reused"):
                    again = await sign_in.create_link(browser=pending.get("browser"))
                    return CallbackResult(server=server, redirect_url=again.url)
            self.counts.sign_ins[server, "failed"] += 1
            reason = SECRETS.scrub(str(error))
            self._record(server, principal or None, "sign_in", reason)
            log.warning("sign-in failed: %s", reason, extra={"server": server})
            raise SignInFailed(f"the sign-in to '{server}' failed: {reason}") from None
        await sign_in.finish(tokens, stored)
        self._record(server, principal or None, "sign_in", None)
        return CallbackResult(server=server)

    def _pending_sign_in(self, server: str, principal: str, url: str) -> SignIn:
        """Return the sign-in that a redirect belongs to; another process may have started the sign-in.

        Raises:
            SignInFailed: The configuration of the upstream has changed.
        """
        config = self._configs.get(server)
        if isinstance(config, CredentialsConfig) and config.address == url:
            sign_in = self.get(server, config, user=principal if principal != LOCAL.name else "")
            if sign_in is not None and sign_in.principal == principal:
                return sign_in
        raise SignInFailed(f"the configuration of server '{server}' has changed; start the sign-in again")

    async def sign_out(self, sign_in: SignIn) -> bool:
        """Revoke and delete the tokens of a sign-in, and return whether there were any."""
        ended = await sign_in.sign_out()
        if ended:
            self._record(sign_in.server, sign_in.principal or None, "sign_out", None)
        return ended

    def client_document(self) -> dict[str, object] | None:
        """Return the gateway's client ID metadata document; None without a public HTTPS URL."""
        url, redirect_uri = self.addresses.document_url(), self.addresses.redirect_uri()
        return client_document(url, redirect_uri) if url is not None and redirect_uri is not None else None
