"""Obtain tokens: find the authorization server, register a client and request the tokens.

A sign-in is interactive if a user logs in at the authorization server in a browser. The other sign-ins request tokens
with a grant that needs no user, such as client credentials or token exchange.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.config.upstream_types.sign_in_config import SignInConfig
from gateway.process.secrets import SECRETS
from gateway.upstream.oauth.authorization import Addresses, authorization_url, new_state, new_verifier
from gateway.upstream.oauth.client_registration import (
    Client,
    ClientRegistration,
    configured_client,
    method_for,
    with_secret,
)
from gateway.upstream.oauth.guarded_requests import AddressRefused, GuardedRequests, create_guard
from gateway.upstream.oauth.metadata_discovery import (
    OFFLINE,
    Challenge,
    Discovery,
    InvalidMetadata,
    ServerMetadata,
    SignInUpstream,
    scopes_to_request,
    union,
)
from gateway.upstream.oauth.token_endpoint import TokenEndpoint, Tokens, new_dpop_key
from gateway.upstream.oauth.token_store import StoreFailed, TokenStore, pending_key
from gateway.upstream.upstream_credentials import SignInFailed, SignInLink, SubjectToken

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SignInCounts:
    """Counts of token renewals and sign-ins, by server and outcome."""

    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    sign_ins: Counter[tuple[str, str]] = field(default_factory=Counter)


class UnreadableSignIn(ValueError):
    """A stored sign-in was written by an incompatible version of the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSignIn:
    """The data of one sign-in; an attribute has its default until its value is known.

    Attributes:
        issuer: Issuer of the authorization server.
        resource: Resource indicator for which tokens are requested.
        supported: Scopes from the resource metadata; None if the metadata does not state them.
        scopes: Scopes that were requested for the current tokens.
        wanted: Scopes that the next token request has to include, because the upstream has rejected calls without them.
        server: Metadata of the authorization server.
        client: The OAuth client as which the gateway is known to the authorization server.
        signed_in_at_s, refreshed_at_s: Times of the sign-in and of the latest renewal, in seconds since 1970.
        step_ups: Times at which the gateway requested more scopes without a user, in seconds since 1970.
        signed_out: Whether a user has signed out.
        kind: `auth.type` of the configuration with which the sign-in was stored.
        proof_key: The private key, in PEM, to which tokens are bound; None for bearer tokens.
    """

    issuer: str | None = None
    resource: str = ""
    supported: tuple[str, ...] | None = None
    scopes: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    server: ServerMetadata | None = None
    client: Client | None = None
    tokens: Tokens | None = None
    signed_in_at_s: float | None = None
    refreshed_at_s: float | None = None
    step_ups: tuple[float, ...] = ()
    signed_out: bool = False
    kind: str = ""
    proof_key: str | None = field(default=None, repr=False)

    def without_tokens(self, *, signed_out: bool = False, client: bool = True) -> StoredSignIn:
        """Return a copy without the tokens, their scopes and times, and the metadata of the authorization server.

        Args:
            signed_out: Whether the tokens are removed because a user has signed out, which also resets `wanted`.
            client: Whether the copy includes the client; without it, the gateway registers again.
        """
        return StoredSignIn(
            issuer=self.issuer,
            resource=self.resource,
            supported=self.supported,
            wanted=() if signed_out else self.wanted,
            client=self.client if client else None,
            step_ups=self.step_ups,
            signed_out=signed_out,
            proof_key=self.proof_key,
        )

    def fits(self, config: SignInConfig) -> bool:
        """Return whether the stored issuer, client and `auth.type` match the current configuration."""
        issuer, client_id, client = config.issuer, config.client_id, self.client
        if self.issuer is not None and issuer is not None and self.issuer.rstrip("/") != issuer.rstrip("/"):
            return False
        if client is not None and client.client_id != (client_id or client.client_id):
            return False
        # The operator has removed this client from the configuration.
        if client is not None and client.origin == "configured" and client_id is None and config.interactive:
            return False
        return self.tokens is None or self.kind == config.type

    def row(self, config: SignInConfig) -> dict[str, Any]:
        """Return the state shown to administrators, without secrets."""
        tokens = self.tokens
        return {
            "type": config.type,
            "signedIn": tokens is not None,
            "issuer": self.issuer,
            "clientId": self.client.client_id if self.client is not None else config.client_id,
            "scopes": list(tokens.scopes if tokens is not None and tokens.scopes is not None else self.scopes),
            "neededScopes": list(self.wanted),
            "since": self.signed_in_at_s,
            "lastRefresh": self.refreshed_at_s,
            "expires": tokens.expires_at_s if tokens is not None else None,
            "refreshable": tokens is not None and (tokens.refresh is not None or not config.interactive),
        }

    def document(self, *, server: str, principal: str) -> dict[str, Any]:
        """Return the sign-in as a JSON object for the store.

        `name` and `principal` are not read back; they help people who inspect the file.
        """
        return {
            "name": server,
            "principal": principal,
            "issuer": self.issuer,
            "resource": self.resource,
            "supported": self.supported,
            "scopes": self.scopes,
            "wanted": self.wanted,
            "server": asdict(self.server) if self.server is not None else None,
            "client": self.client.document() if self.client is not None else None,
            "tokens": self.tokens.document() if self.tokens is not None else None,
            "signedInAt": self.signed_in_at_s,
            "refreshedAt": self.refreshed_at_s,
            "stepUps": self.step_ups,
            "signedOut": self.signed_out,
            "kind": self.kind,
            "proofKey": self.proof_key,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> StoredSignIn:
        """Restore a sign-in from the JSON object that `document` returned.

        Raises:
            UnreadableSignIn: The JSON object comes from an incompatible version.
        """
        try:
            return cls._from_document(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableSignIn(f"a stored sign-in comes from an incompatible version: {error!r:.200}") from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> StoredSignIn:
        server, client, tokens = document.get("server"), document.get("client"), document.get("tokens")
        supported = document.get("supported")
        return cls(
            issuer=document.get("issuer"),
            resource=document.get("resource", ""),
            supported=tuple(supported) if supported is not None else None,
            scopes=tuple(document.get("scopes") or ()),
            wanted=tuple(document.get("wanted") or ()),
            server=_server(server) if server is not None else None,
            client=Client.from_document(client) if client is not None else None,
            tokens=Tokens.from_document(tokens) if tokens is not None else None,
            signed_in_at_s=document.get("signedInAt"),
            refreshed_at_s=document.get("refreshedAt"),
            step_ups=tuple(document.get("stepUps") or ()),
            signed_out=bool(document.get("signedOut")),
            kind=str(document.get("kind", "")),
            proof_key=document.get("proofKey"),
        )


def _server(document: Mapping[str, Any]) -> ServerMetadata:
    lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
    return ServerMetadata(**{**document, **lists})


LINK_S: Final = 600.0
"""Lifetime of a sign-in link: enough time to find a password, and too short for someone who finds the link later."""
# The same link is returned again only while at least this much of its lifetime is left.
_LEFT_S: Final = 300.0
_TOO_MANY: Final = "too many sign-ins are in progress; try again in a few minutes"


class StartLimit:
    """Limits how often something starts within ten minutes (`LINK_S`), in total and for each source.

    It limits sign-ins by network address, new links by caller, and the browsers that open a link by link.
    """

    def __init__(self, most: int, most_of_source: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_of_source = most_of_source
        self._clock = clock
        self._starts: deque[tuple[float, str]] = deque()
        self._by_source: Counter[str] = Counter()

    def count(self, source: str) -> None:
        """Count one start.

        Raises:
            SignInFailed: The limit is reached.
        """
        now_s = self._clock()
        while self._starts and now_s - self._starts[0][0] >= LINK_S:
            _, oldest = self._starts.popleft()
            self._by_source[oldest] -= 1
            if not self._by_source[oldest]:
                del self._by_source[oldest]
        if len(self._starts) >= self._most or self._by_source[source] >= self._most_of_source:
            raise SignInFailed(_TOO_MANY)
        self._starts.append((now_s, source))
        self._by_source[source] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latest:
    """The most recent sign-in link.

    Attributes:
        reuse_key: Values from which the link was built; the link is reused only if all of them are unchanged.
        key: Store key of the pending sign-in.
    """

    reuse_key: tuple[object, ...]
    key: str
    link: SignInLink


class TokenFlow:
    """Obtains the tokens for one upstream, by a user's sign-in or by a grant that needs no user.

    Attributes:
        discovery: Finds the authorization server.
        registration: Registers the gateway as a client of the authorization server.
    """

    def __init__(
        self,
        upstream: SignInUpstream,
        store: TokenStore,
        addresses: Addresses,
        *,
        owner: str,
        subject: SubjectToken = lambda: None,
    ) -> None:
        """Create the flow without sending a request.

        Args:
            store: Stores pending sign-ins and registered clients.
            addresses: The URLs of this gateway.
            owner: Key under which tokens are registered as secrets, so that logs and error texts omit them.
            subject: Returns the access token of the current caller, for token exchange.
        """
        config = upstream.config
        self._server = upstream.server
        self._url = upstream.url
        self._owner = owner
        self._config = config
        self._addresses = addresses
        self._store = store
        self._subject = subject
        # The operator configured these hosts, so they may be private. The guard restricts only hosts that servers name.
        own = (urlsplit(url).hostname for url in (config.issuer, config.idp_token_endpoint) if url is not None)
        guard = create_guard(upstream.url, [*config.private_hosts, *(host for host in own if host)])
        self._requests = GuardedRequests(guard, upstream.proxy)
        self.discovery = Discovery(self._requests, upstream)
        self.registration = ClientRegistration(self._requests, store, upstream, addresses, owner=owner)
        # False once the server has rejected `prompt=consent`, which other servers require for a refresh token.
        self._requests_consent = True
        self._latest: _Latest | None = None

    def request_without_consent(self) -> None:
        """Omit `prompt=consent`, which the server has rejected, from later authorization requests."""
        self._requests_consent = False

    def close(self) -> None:
        """Close all idle connections."""
        self._requests.close()

    async def find_authorization_server(self, challenge: Challenge | None, stored: StoredSignIn) -> StoredSignIn | None:
        """Find the upstream's authorization server, and return the sign-in with its issuer; None if there is no server.

        Args:
            challenge: The challenge in the latest 401 or 403 response of the upstream; None if there was none.
            stored: The current sign-in, which is updated if it has the same issuer, and otherwise replaced.

        Raises:
            InvalidMetadata: The metadata is not valid, or could not be fetched.
        """
        discovered = await self.discovery.find_issuer(challenge, current=stored.issuer)
        if discovered is None:
            return None
        if stored.issuer != discovered.issuer:
            stored = StoredSignIn(issuer=discovered.issuer)
        proof_key = (stored.proof_key or new_dpop_key()) if discovered.requires_proof else stored.proof_key
        return replace(stored, resource=discovered.resource, supported=discovered.scopes_supported, proof_key=proof_key)

    def endpoint(self, stored: StoredSignIn) -> TokenEndpoint:
        """Return the token endpoint for a sign-in.

        Raises:
            SignInFailed: The authorization server or the client is not known.
        """
        if stored.server is None or stored.client is None:
            raise SignInFailed("the authorization server of this sign-in is unknown")
        client = with_secret(stored.client, self._config)
        return TokenEndpoint(
            self._requests,
            stored.server,
            client,
            resource=self._indicator(stored),
            owner=self._owner,
            proof_key=stored.proof_key,
        )

    def _indicator(self, stored: StoredSignIn) -> str:
        """Return the resource indicator for requests (RFC 8707); empty to send none."""
        resource = self._config.resource
        return resource if isinstance(resource, str) else stored.resource if resource else ""

    async def create_link(
        self,
        stored: StoredSignIn,
        challenge: Challenge | None,
        *,
        principal: str,
        browser: str | None = None,
    ) -> SignInLink:
        """Create a sign-in link.

        Args:
            stored: The current sign-in.
            challenge: The challenge in the latest 401 or 403 response of the upstream; None if there was none.
            principal: The caller who owns the sign-in; empty if all callers share it.
            browser: As in `SignIn.create_link`.

        Raises:
            SignInFailed: No link can be created; the message gives the reason and the next step.
        """
        redirect_uri = self._config.redirect_uri or self._addresses.redirect_uri()
        if redirect_uri is None:
            raise SignInFailed(
                f"a browser cannot be redirected to this process; run `typegate login {self._server} --config FILE`"
            )
        reuse_key = (redirect_uri, stored.wanted, stored.issuer)
        if browser is None and (link := await self._reuse_link(reuse_key)) is not None:
            return link
        try:
            sign_in = await self.find_authorization_server(challenge, stored)
            if sign_in is None or sign_in.issuer is None:
                raise SignInFailed(f"server '{self._server}' does not name an authorization server; set auth.issuer")
            server = await self.discovery.fetch_server_metadata(sign_in.issuer, interactive=True)
            endpoint = server.authorization_endpoint or ""
            self._requests.guard.check_url(endpoint)
            scopes = self.scopes(sign_in, challenge, server)
            if principal and sign_in.client is None:
                sign_in = replace(sign_in, client=await self.registration.load(sign_in.issuer or ""))
            client = await self.registration.get_client(sign_in.client, server, redirect_uri, scopes)
        except (InvalidMetadata, AddressRefused, StoreFailed) as error:
            raise SignInFailed(str(error)) from None
        state, verifier, expires_at_s = new_state(), new_verifier(), time.time() + LINK_S
        SECRETS.hide_latest(f"{self._owner}: code", [verifier])

        def url_for(client: Client) -> str:
            return authorization_url(
                endpoint,
                client_id=client.client_id,
                redirect_uri=redirect_uri,
                state=state,
                verifier=verifier,
                resource=self._indicator(sign_in),
                scopes=scopes,
                consent=self._requests_consent,
            )

        try:
            if client == sign_in.client:
                client = await self.registration.check_client(client, server, redirect_uri, scopes, url_for)
            if principal and client.origin == "registered" and client != sign_in.client:
                await self.registration.store(server.issuer, client)
        except (InvalidMetadata, AddressRefused, StoreFailed) as error:
            raise SignInFailed(str(error)) from None
        pending_sign_in = StoredSignIn(
            issuer=sign_in.issuer,
            resource=sign_in.resource,
            supported=sign_in.supported,
            scopes=scopes,
            server=server,
            client=client,
            proof_key=sign_in.proof_key,
        )
        pending = {
            "server": self._server,
            "url": self._url,
            "principal": principal,
            "verifier": verifier,
            "redirectUri": redirect_uri,
            "expires": expires_at_s,
            "consent": self._requests_consent and OFFLINE in scopes,
            "reused": client.origin == "registered" and client == sign_in.client,
            "browser": browser,
            "kept": pending_sign_in.document(server=self._server, principal=principal),
        }
        key = pending_key("state", state)
        try:
            await self._store.sweep("pending", LINK_S)
            await self._store.save(key, pending, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        new_link = SignInLink(url=url_for(client), expires_at_s=expires_at_s)
        if browser is None:
            self._latest = _Latest(reuse_key=reuse_key, key=key, link=new_link)
        return new_link

    async def _reuse_link(self, reuse_key: tuple[object, ...]) -> SignInLink | None:
        """Return the most recent link; None if the link is not valid any more or expires soon."""
        latest = self._latest
        if latest is None or latest.reuse_key != reuse_key or latest.link.expires_at_s - time.time() < _LEFT_S:
            return None
        try:
            # The link may have been used in another process, or the store may have lost the pending sign-in.
            pending = await self._store.load(latest.key)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return latest.link if pending is not None else None

    def forget_link(self) -> None:
        """Stop reusing the most recent link, because it was used or may be out of date."""
        self._latest = None

    async def request_tokens(self, stored: StoredSignIn, challenge: Challenge | None) -> tuple[StoredSignIn, Tokens]:
        """Request tokens with a grant that needs no user, and return them with the updated sign-in.

        Raises:
            TokenRequestFailed: The server returned no usable token.
            InvalidMetadata: The metadata of the authorization server is missing or not valid.
            SignInFailed: The authorization server is unknown, the caller has no token to exchange, or the configured
                `auth.type` requires a user.
        """
        config = self._config
        sign_in: StoredSignIn | None = stored
        if stored.issuer is None:
            sign_in = await self.find_authorization_server(challenge, stored)
        if sign_in is None or sign_in.issuer is None:
            raise SignInFailed(f"server '{self._server}' does not name an authorization server; set auth.issuer")
        server = sign_in.server or await self.discovery.fetch_server_metadata(sign_in.issuer, interactive=False)
        scopes = union(sign_in.wanted, self.scopes(sign_in, challenge, None))
        sign_in = replace(sign_in, server=server, client=configured_client(config, server), scopes=scopes)
        endpoint = self.endpoint(sign_in)
        match config.type:
            case "clientCredentials":
                return sign_in, await endpoint.request_for_client(sign_in.scopes)
            case "tokenExchange":
                tokens = await endpoint.exchange_token(
                    config.subject_token or self._subject_token(),
                    subject_type=config.subject_token_type,
                    requested_type="access_token",
                    audience=config.audience,
                    scopes=sign_in.scopes,
                )
                return sign_in, tokens
            case "jwtBearer":
                return sign_in, await endpoint.exchange_assertion(config.assertion or "", sign_in.scopes)
            case "enterprise":
                provider = ServerMetadata(issuer="", token_endpoint=config.idp_token_endpoint or "")
                known_as = Client(
                    client_id=config.idp_client_id or config.client_id or "",
                    origin="configured",
                    method=method_for(None, secret=config.idp_client_secret is not None, private_key=False),
                    secret=config.idp_client_secret,
                )
                owner = f"{self._owner}: identity"
                indicator = self._indicator(sign_in)
                identity = TokenEndpoint(self._requests, provider, known_as, resource=indicator, owner=owner)
                grant = await identity.exchange_token(
                    config.id_token or self._subject_token(),
                    subject_type="id_token" if config.id_token else config.subject_token_type,
                    requested_type="id-jag",
                    audience=sign_in.issuer,
                    scopes=sign_in.scopes,
                )
                return sign_in, await endpoint.exchange_assertion(grant.access, sign_in.scopes)
        raise SignInFailed(f"auth.type {config.type} requires a user to sign in")

    def _subject_token(self) -> str:
        token = self._subject()
        if token is None:
            raise SignInFailed(
                "the server accepts only callers who send an access token, and this request has none; "
                "send one, or set auth.subjectToken"
            )
        return token

    def scopes(
        self, stored: StoredSignIn, challenge: Challenge | None, server: ServerMetadata | None
    ) -> tuple[str, ...]:
        """Return the scopes to request; see `scopes_to_request`."""
        return scopes_to_request(
            configured=self._config.scopes,
            challenged=challenge.scopes if challenge is not None else None,
            supported=stored.supported,
            requested_before=stored.wanted,
            offered_by_server=server.scopes_supported if server is not None else (),
        )
