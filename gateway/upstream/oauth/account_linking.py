"""Account linking: the link with which a caller of a shared gateway signs in to an upstream.

The page behind the link first identifies the user: by a sign-in at the issuer of the caller's access token, or by the
caller's API key. The sign-in to the upstream begins only if this user is the caller who received the link, and it
continues only in the browser in which it began. Without these checks, a caller could send the link to another person
and gain that person's access to the upstream.

The same issuers also sign users in to the gateway itself: the callers' page, `/me`, gets an access token this way.

Sources: MCP 2025-11-25, "Elicitation", "Phishing" and "Safe URL Handling"; OpenID Connect Core 1.0, section 3.1
"Authentication using the Authorization Code Flow"; RFC 7636; RFC 9207.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio

from gateway.access.credentials import Credentials
from gateway.access.oauth.claims import Rejected, name_in
from gateway.access.oauth.key_set import KeySet
from gateway.access.principal import LOCAL, Principal
from gateway.config.auth_config import Issuer, OAuthConfig, base_of, is_trusted_url, profile_of_audience
from gateway.config.upstream_types.sign_in_config import SignInConfig
from gateway.process.secrets import SECRETS
from gateway.upstream.oauth.authorization import (
    Addresses,
    AuthorizationResponse,
    InvalidAuthorizationResponse,
    authorization_code,
    authorization_url,
    check_issuer,
    new_state,
    new_verifier,
)
from gateway.upstream.oauth.client_registration import Client
from gateway.upstream.oauth.guarded_requests import AddressRefused
from gateway.upstream.oauth.metadata_discovery import InvalidMetadata, ServerMetadata, SignInUpstream, union
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.token_endpoint import TokenRequestFailed
from gateway.upstream.oauth.token_flow import LINK_S, StartLimit, StoredSignIn, TokenFlow, UnreadableSignIn
from gateway.upstream.oauth.token_store import (
    Conflict,
    Encryption,
    StoredDocument,
    StoreFailed,
    TokenStore,
    pending_key,
)
from gateway.upstream.upstream_credentials import SignInFailed, SignInLink

log = logging.getLogger(__name__)

_OWNER: Final = "user of a sign-in link"
_NAME: Final = "the gateway"
# Timeout for starting a login while the browser waits. Fetching the metadata, registering a client and checking the
# registration take at most ten seconds each, and seldom more than one second.
_START_S: Final = 30.0


class OpenIdClient:
    """OpenID Connect client that identifies the user at a browser, at one issuer of access tokens for the gateway."""

    def __init__(
        self, issuer: Issuer, keys: Callable[[str], KeySet | None], store: TokenStore, addresses: Addresses
    ) -> None:
        """Create the client.

        Args:
            keys: Returns the signing keys of an issuer; None if the gateway does not accept tokens of the issuer.
            store: Stores the pending login until the browser returns.
            addresses: The URLs of this gateway.
        """
        own = issuer.sign_in
        secret = own.client_secret if own is not None else None
        host = urlsplit(issuer.issuer).hostname
        config = SignInConfig(
            client_id=own.client_id if own is not None else None,
            client_secret=secret.get_secret_value() if secret is not None else None,
            issuer=issuer.issuer,
            # The operator configured this issuer, so it may have a private address.
            private_hosts=[host] if host else [],
        )
        self.issuer = issuer
        self._scopes = tuple(own.scopes if own is not None else ("openid",))
        self._keys = keys
        self._store = store
        self._addresses = addresses
        self._flow = TokenFlow(
            SignInUpstream(server=_NAME, url=issuer.issuer, config=config), store, addresses, owner=_OWNER
        )

    def close(self) -> None:
        """Close all idle connections."""
        self._flow.close()

    async def start_login(self, about: Mapping[str, Any], *, resource: str | None = None) -> str:
        """Start an identity check, or a sign-in to the gateway, and return the URL to which the browser must go.

        Args:
            about: Data that the caller of this method needs when the browser returns; stored with the pending login.
            resource: None for an identity check. For a sign-in to the gateway, the resource indicator of the access
                token, or an empty string to request the token without a resource indicator.

        Raises:
            SignInFailed: The issuer cannot be reached or cannot be used.
        """
        redirect_uri = self._addresses.redirect_uri()
        if redirect_uri is None:
            raise SignInFailed(
                "a browser cannot be redirected to this process, because it does not listen for HTTP requests"
            )
        issuer = self.issuer.issuer
        # Identity checks and sign-ins to the gateway register separate clients, because they request different scopes,
        # and a client may request only the scopes that it has registered.
        key, scopes = f"identity:{issuer}", self._scopes
        if resource is not None:
            key, scopes = f"access:{issuer}", union(self._scopes, tuple(self.issuer.required_scopes))
        state, verifier, nonce = new_state(), new_verifier(), new_state()

        def url_for(client: Client) -> str:
            return authorization_url(
                server.authorization_endpoint or "",
                client_id=client.client_id,
                redirect_uri=redirect_uri,
                state=state,
                verifier=verifier,
                resource=resource or "",
                scopes=scopes,
                nonce=nonce,
            )

        try:
            with anyio.fail_after(_START_S):
                server = await self._flow.discovery.fetch_server_metadata(issuer, interactive=True)
                client = await self._find_client(key, server, redirect_uri, scopes, url_for)
        except (InvalidMetadata, AddressRefused, SignInFailed, StoreFailed, TimeoutError) as error:
            reason = str(error) or f"no answer within {_START_S:g} s"
            raise SignInFailed(
                f"the issuer {issuer} cannot identify you: {reason}; check gateway.auth.oauth.issuers[].signIn"
            ) from None
        sign_in = StoredSignIn(issuer=issuer, resource=resource or "", server=server, client=client)
        pending = {
            "identity": issuer,
            "about": dict(about),
            "verifier": verifier,
            "nonce": nonce,
            "redirectUri": redirect_uri,
            "expires": time.time() + LINK_S,
            "kept": sign_in.document(server=_NAME, principal=""),
        }
        try:
            await self._store.sweep("pending", LINK_S)
            await self._store.save(pending_key("state", state), pending, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return url_for(client)

    async def _find_client(
        self,
        key: str,
        server: ServerMetadata,
        redirect_uri: str,
        scopes: tuple[str, ...],
        url_for: Callable[[Client], str],
    ) -> Client:
        """Return the client that the gateway uses at the issuer; concurrent logins share one registration.

        Args:
            key: The key under which the registration is stored.

        Raises:
            SignInFailed, InvalidMetadata, AddressRefused: As from `ClientRegistration.get_client`.
            StoreFailed: The store is unavailable.
        """
        registration = self._flow.registration
        rejected, _ = await self._load_client(key)
        client = registration.find_client(rejected, server, redirect_uri)
        if client is not None and await registration.is_accepted(client, url_for):
            return client
        async with self._store.lock(key):
            existing, stored = await self._load_client(key)
            client = registration.find_client(existing, server, redirect_uri)
            if client is not None and client != rejected:
                return client
            client = await registration.get_client(None, server, redirect_uri, scopes)
            document = StoredSignIn(issuer=self.issuer.issuer, server=server, client=client).document(
                server=_NAME, principal=""
            )
            with suppress(Conflict):  # the store has an unreadable document, which is not replaced
                await self._store.save(key, document, expected=stored.version if stored is not None else 0)
        return client

    async def _load_client(self, key: str) -> tuple[Client | None, StoredDocument | None]:
        """Return the registered client and the stored document that contains the client; None for what is missing."""
        stored = await self._store.load(key)
        try:
            return (StoredSignIn.from_document(stored.document).client if stored is not None else None), stored
        except UnreadableSignIn as error:
            log.warning("stored client ignored: %s", error, extra={"issuer": self.issuer.issuer})
            return None, stored

    async def finish_login(self, response: AuthorizationResponse, pending: Mapping[str, Any]) -> str:
        """Complete an identity check and return the name of the user at the browser.

        Raises:
            SignInFailed: The issuer did not identify the user, or the issuer's response is not valid.
        """
        keys = self._keys(self.issuer.issuer)
        try:
            stored, code = _check_response(response, pending)
            if stored.client is None or keys is None:
                raise InvalidAuthorizationResponse("the gateway no longer accepts tokens of this issuer")
            token = await self._flow.endpoint(stored).exchange_code_for_identity(
                code, verifier=str(pending["verifier"]), redirect_uri=str(pending["redirectUri"])
            )
            return await name_in(token, keys, client_id=stored.client.client_id, nonce=str(pending["nonce"]))
        except (InvalidAuthorizationResponse, TokenRequestFailed, Rejected) as error:
            reason = await self._note_failure(error, "identity")
            raise SignInFailed(f"{self.issuer.issuer} did not identify you: {reason}; call the tool again") from None

    async def finish_access(self, response: AuthorizationResponse, pending: Mapping[str, Any]) -> str:
        """Complete a sign-in to the gateway and return the access token, which this method does not verify.

        Raises:
            SignInFailed: The issuer returned no access token.
        """
        try:
            stored, code = _check_response(response, pending)
            tokens = await self._flow.endpoint(stored).exchange_code(
                code, verifier=str(pending["verifier"]), redirect_uri=str(pending["redirectUri"])
            )
        except (InvalidAuthorizationResponse, TokenRequestFailed) as error:
            reason = await self._note_failure(error, "access")
            raise SignInFailed(f"{self.issuer.issuer} did not sign you in: {reason}; open the page again") from None
        return tokens.access

    async def _note_failure(self, error: Exception, kind: str) -> str:
        """Log a failure and return its reason; if the issuer rejected the client, delete the client's registration."""
        reason = SECRETS.scrub(str(error))
        log.warning("sign-in at the issuer failed: %s", reason, extra={"issuer": self.issuer.issuer})
        if isinstance(error, TokenRequestFailed) and error.is_client_rejected:
            with suppress(StoreFailed):
                await self._store.remove(f"{kind}:{self.issuer.issuer}")
        return reason


def _check_response(response: AuthorizationResponse, pending: Mapping[str, Any]) -> tuple[StoredSignIn, str]:
    """Return the sign-in stored in a pending login, and the authorization code of the response.

    Raises:
        InvalidAuthorizationResponse: The response is from another issuer or reports an error, or the stored sign-in is
            unusable.
    """
    try:
        stored = StoredSignIn.from_document(pending["kept"])
    except UnreadableSignIn as error:
        raise InvalidAuthorizationResponse(str(error)) from None
    if stored.server is None:
        raise InvalidAuthorizationResponse("the issuer of this sign-in is unknown")
    check_issuer(response, issuer=stored.server.issuer, is_required=stored.server.names_issuer)
    return stored, authorization_code(response)


_RANDOM_BYTES: Final = 32
# Accepted lengths of the browser's cookie. Generated cookies have 43 characters, but a client can send any value.
_COOKIE_CHARS: Final = range(32, 65)
# Time for which a token is stored for the callers' page, which fetches it at once.
_TOKEN_S: Final = 60.0
# Limits for sign-ins to the gateway within ten minutes, the time for which a pending sign-in is stored. Anyone may
# start a sign-in; a person starts only a few.
_MAX_STARTS: Final = 600
# One network address must not use up the whole limit, but it may be the address of a proxy in front of many callers.
_MAX_STARTS_OF_ADDRESS: Final = 200
# Limits for links within ten minutes. Calls that need a sign-in also create links, so one caller may need many. The
# total bounds the size of the store.
_MAX_LINKS: Final = 10_000
_MAX_LINKS_OF_CALLER: Final = 200
# Limits for visits to links within ten minutes, each of which may start a login at the issuer. A person, a mail scanner
# and a chat preview visit a link a few times.
_MAX_VISITS: Final = 10_000
_MAX_VISITS_OF_LINK: Final = 50
_INVALID_LINK: Final = (
    "this link is unknown, was already used, or is older than ten minutes; call the tool again for a new link"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerChecks:
    """The ways to identify the user at a browser.

    Attributes:
        issuers: Returns the accepted issuers of access tokens.
        keys_of: Returns the signing keys of an issuer.
        holder_of: Returns the name of the caller with this API key, in the same form as `user_of`; None if the key is
            not valid.
        resource: Returns the configured resource URL of the gateway; None if there is none.
    """

    issuers: Callable[[], list[Issuer]] = list
    keys_of: Callable[[str], KeySet | None] = lambda issuer: None
    holder_of: Callable[[str], str | None] = lambda key: None
    resource: Callable[[], str | None] = lambda: None


def caller_checks(credentials: Credentials, oauth: Callable[[], OAuthConfig | None]) -> CallerChecks:
    """Return checks that accept the API keys and issuers that the gateway also accepts for requests."""

    def issuers() -> list[Issuer]:
        config = oauth()
        return config.issuers if config is not None else []

    def holder_of(key: str) -> str | None:
        principal = credentials.keys.find_by_text(key)
        return user_of(principal) if principal is not None else None

    def resource() -> str | None:
        config = oauth()
        return config.resource if config is not None else None

    return CallerChecks(issuers=issuers, keys_of=credentials.tokens.keys_of, holder_of=holder_of, resource=resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """The next step for a browser that has followed a link.

    Attributes:
        server: Alias of the upstream to sign in to.
        redirect_url: URL at the issuer that identifies the user; None if the page has to ask for an API key.
        cookie: Value of the cookie that the browser must send from now on.
    """

    server: str
    redirect_url: str | None
    cookie: str


class WrongCaller(SignInFailed):
    """A user has followed a link that was created for another caller.

    Attributes:
        about: The stored data of the link.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__(
            "this link was created for another caller, so nothing was signed in. "
            "If you called the tool yourself, call it again and sign in with the account that your host uses"
        )
        self.about = about


class AccountLinking:
    """Creates links for callers, and identifies the users who follow them."""

    def __init__(self, store: TokenStore, addresses: Addresses, checks: CallerChecks) -> None:
        self._store = store
        self._addresses = addresses
        self._checks = checks
        self._clients: dict[str, OpenIdClient] = {}
        self._starts = StartLimit(_MAX_STARTS, _MAX_STARTS_OF_ADDRESS)
        self._links = StartLimit(_MAX_LINKS, _MAX_LINKS_OF_CALLER)
        self._visits = StartLimit(_MAX_VISITS, _MAX_VISITS_OF_LINK)

    def close(self) -> None:
        """Close all idle connections."""
        for client in self._clients.values():
            client.close()

    async def create_link(self, sign_in: SignIn) -> SignInLink:
        """Create a link for the caller who owns the sign-in.

        Raises:
            SignInFailed: Browsers cannot reach this process, too many links were created by this caller or in total, or
                the store is unavailable.
        """
        base = self._addresses.connect_url()
        if base is None:
            raise SignInFailed(f"run `typegate login {sign_in.server} --user '{sign_in.principal}'` to sign in")
        self._links.count(sign_in.principal)
        ticket, expires_at_s = secrets.token_urlsafe(_RANDOM_BYTES), time.time() + LINK_S
        about = {"server": sign_in.server, "url": sign_in.url, "user": sign_in.principal, "expires": expires_at_s}
        try:
            await self._store.sweep("pending", LINK_S)
            await self._store.save(pending_key("link", ticket), about, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return SignInLink(url=f"{base}?{urlencode({'ticket': ticket})}", expires_at_s=expires_at_s)

    async def follow_link(self, ticket: str, cookie: str | None) -> NextStep:
        """Return the next step for a browser that has followed a link.

        The link stays valid, because mail scanners and chat previews also open links.

        Args:
            ticket: The secret in the link.
            cookie: The cookie that the browser has from an earlier link; None if it has none.

        Raises:
            SignInFailed: The link is not valid, was visited too often, or the issuer cannot be reached.
        """
        try:
            stored = await self._store.load(pending_key("link", ticket))
        except StoreFailed as error:
            raise SignInFailed(f"{error}; follow the link again") from None
        if stored is None or stored.document["expires"] < time.time():
            raise SignInFailed(_INVALID_LINK)
        cookie = cookie if cookie is not None and len(cookie) in _COOKIE_CHARS else secrets.token_urlsafe(_RANDOM_BYTES)
        user, server = str(stored.document["user"]), str(stored.document["server"])
        client = self._client_for_user(user)
        redirect_url = None
        if client is not None:
            self._visits.count(ticket)
            redirect_url = await client.start_login({"ticket": ticket, "browser": cookie_digest(cookie)})
        return NextStep(server=server, redirect_url=redirect_url, cookie=cookie)

    async def identify_by_issuer(
        self, response: AuthorizationResponse, pending: Mapping[str, Any], cookie: str | None
    ) -> Mapping[str, Any]:
        """Return the stored data of a link if the issuer identifies the user as the caller who received the link.

        The link cannot be used again, even if the user is another caller.

        Raises:
            SignInFailed: The user is another caller or has continued in another browser, the issuer has not identified
                the user, or the link is not valid.
        """
        client = self._client_for_issuer(str(pending["identity"]))
        about = pending["about"]
        if client is None:
            raise SignInFailed(_INVALID_LINK)
        check_browser(about["browser"], cookie)
        return await self._redeem(str(about["ticket"]), await client.finish_login(response, pending))

    async def identify_by_key(self, ticket: str, key: str) -> Mapping[str, Any]:
        """Return the stored data of a link if the entered API key belongs to the caller who received the link.

        Any key, right or wrong, uses up the link, so that the page cannot be used to guess keys.

        Raises:
            SignInFailed: The key or the link is not valid, or the key belongs to another caller.
        """
        return await self._redeem(ticket, self._checks.holder_of(key))

    @property
    def issuers(self) -> list[Issuer]:
        """The issuers at which users can sign in to the gateway."""
        return self._checks.issuers()

    async def start_access(self, issuer: str, cookie: str | None, address: str) -> tuple[str, str]:
        """Start a user's sign-in to the gateway itself; return the URL at the issuer, and the cookie for the browser.

        Args:
            issuer: The identifier of an accepted issuer.
            cookie: The cookie that the browser has from an earlier sign-in; None if it has none.
            address: The network address of the browser.

        Raises:
            SignInFailed: The issuer is unknown or cannot be reached, or too many sign-ins are in progress.
        """
        client = self._client_for_issuer(issuer)
        if client is None:
            raise SignInFailed("tokens of this issuer are not accepted here")
        self._starts.count(address)
        cookie = cookie if cookie is not None and len(cookie) in _COOKIE_CHARS else secrets.token_urlsafe(_RANDOM_BYTES)
        about = {"access": True, "browser": cookie_digest(cookie)}
        return await client.start_login(about, resource=resource_for(client.issuer, self._checks.resource())), cookie

    async def finish_access(
        self, response: AuthorizationResponse, pending: Mapping[str, Any], cookie: str | None
    ) -> str:
        """Complete a user's sign-in to the gateway, store the access token, and return the ticket for fetching it.

        Raises:
            SignInFailed: The user has continued in another browser, or the issuer returned no token.
        """
        client = self._client_for_issuer(str(pending["identity"]))
        if client is None:
            raise SignInFailed("tokens of this issuer are not accepted here")
        browser = pending["about"]["browser"]
        check_browser(browser, cookie)
        token = await client.finish_access(response, pending)
        ticket = secrets.token_urlsafe(_RANDOM_BYTES)
        # The ticket is the encryption key and is not stored, so the store never reveals a token that is not fetched.
        encrypted = base64.b64encode(Encryption(ticket).encrypt(token.encode(), name=browser)).decode()
        document = {"token": encrypted, "browser": browser, "expires": time.time() + _TOKEN_S}
        try:
            await self._store.save(pending_key("token", ticket), document, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return ticket

    async def redeem_access(self, ticket: str, cookie: str | None) -> str:
        """Return the access token that was stored for a browser, and delete it from the store.

        Raises:
            SignInFailed: The ticket is unknown, was used, has expired, or belongs to another browser.
        """
        try:
            stored = await self._store.pop(pending_key("token", ticket))
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        if stored is None or stored["expires"] < time.time():
            raise SignInFailed("this sign-in is unknown, already complete, or too old; sign in again")
        check_browser(stored["browser"], cookie)
        return Encryption(ticket).decrypt(base64.b64decode(stored["token"]), name=stored["browser"]).decode()

    async def _redeem(self, ticket: str, user: str | None) -> Mapping[str, Any]:
        try:
            about = await self._store.pop(pending_key("link", ticket))
        except StoreFailed as error:
            raise SignInFailed(f"{error}; follow the link again") from None
        if about is None or about["expires"] < time.time():
            raise SignInFailed(_INVALID_LINK)
        if user is None or user != about["user"]:
            log.warning("sign-in link used by another caller", extra={"server": about["server"]})
            raise WrongCaller(about)
        return about

    def _client_for_user(self, user: str) -> OpenIdClient | None:
        for issuer in self._checks.issuers():
            if user.endswith(f"@{issuer.name}"):
                return self._client_for_issuer(issuer.issuer)
        return None

    def _client_for_issuer(self, name: str) -> OpenIdClient | None:
        issuer = next((candidate for candidate in self._checks.issuers() if candidate.issuer == name), None)
        existing = self._clients.get(name)
        if existing is not None and existing.issuer == issuer:
            return existing
        if existing is not None:
            self._clients.pop(name).close()
        if issuer is None:
            return None
        client = self._clients[name] = OpenIdClient(issuer, self._checks.keys_of, self._store, self._addresses)
        return client


def user_of(principal: Principal) -> str:
    """Return the name under which the sign-in of a caller is stored.

    The name does not include the OAuth client, so that a person who changes to another host is still signed in.
    """
    # An API key may have the name that is reserved for the local user; the suffix distinguishes them.
    return f"{principal.name} (key)" if principal.name == LOCAL.name and principal is not LOCAL else principal.name


def cookie_digest(cookie: str) -> str:
    """Return the digest of a browser's cookie, which is stored instead of the cookie."""
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()


def check_browser(digest: object, cookie: str | None) -> None:
    """Check that the browser is the one in which the sign-in was started.

    Args:
        digest: Stored digest of the first browser's cookie; None if any browser may continue.
        cookie: Cookie of the present browser; None if the browser sent none.

    Raises:
        SignInFailed: The cookie does not match the digest.
    """
    if digest is not None and not hmac.compare_digest(str(digest), cookie_digest(cookie or "")):
        raise SignInFailed(
            "this sign-in was started in another browser; call the tool again, and open the link only in one browser"
        )


def resource_for(issuer: Issuer, resource: str | None) -> str:
    """Return the resource indicator (RFC 8707) of a token for the gateway; empty if no accepted audience is a URL."""
    usual = f"{base_of(resource)}/mcp" if resource is not None else None
    urls = [audience for audience in issuer.audiences if is_trusted_url(audience)]
    # Prefer the gateway's usual URL, then other URLs without a profile: a token for a profile opens only that profile.
    urls.sort(key=lambda audience: (audience != usual, profile_of_audience(audience, resource) is not None))
    return next(iter(urls), "")
