"""From a refusal to a token: who gives tokens for an upstream, how we are known there, and which grant is used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.errors import GatewayError
from gateway.secrets import SECRETS
from gateway.upstream.credentials import SignInFailed, SignInLink
from gateway.upstream.oauth.address_guard import AddressRefused, guard_of
from gateway.upstream.oauth.addresses import Addresses
from gateway.upstream.oauth.authorization import authorization_url, new_state, new_verifier
from gateway.upstream.oauth.challenges import Challenge
from gateway.upstream.oauth.clients import (
    Client,
    client_metadata,
    configured_client,
    is_document_url,
    method_for,
    read_registration,
    registration_method,
    with_secret,
)
from gateway.upstream.oauth.discovery import (
    MetadataRefused,
    ResourceMetadata,
    ServerMetadata,
    canonical_resource,
    origin_of,
    read_resource_metadata,
    read_server_metadata,
    resource_metadata_urls,
    server_metadata_urls,
)
from gateway.upstream.oauth.grants import TokenEndpoint
from gateway.upstream.oauth.guarded_requests import GuardedRequests
from gateway.upstream.oauth.kept_sign_in import KeptSignIn
from gateway.upstream.oauth.proof import new_key
from gateway.upstream.oauth.registered_clients import RegisteredClients
from gateway.upstream.oauth.scopes import OFFLINE, scopes_to_request, union
from gateway.upstream.oauth.store import Store, StoreFailed
from gateway.upstream.oauth.tokens import Tokens
from gateway.upstream.transport.proxies import ProxyChoice

log = logging.getLogger(__name__)

T = TypeVar("T")

LINK_S: Final = 600.0
"""How long a link to sign in is good: time to find one's password, and little for somebody who finds the link."""
# The same link is given out again while there is this much time left to use it.
_LEFT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latest:
    """The link that was given out last.

    Attributes:
        known: What it was made of.
        key: Of what is kept for when the browser comes back.
    """

    known: tuple[object, ...]
    key: str
    link: SignInLink


class Obtaining:
    """Obtains what one upstream wants, by its configuration."""

    def __init__(
        self,
        server: str,
        url: str,
        config: SignInConfig,
        addresses: Addresses,
        *,
        owner: str,
        proxy: ProxyChoice = None,
    ) -> None:
        self._server = server
        self._owner = owner
        self._url = url
        self._config = config
        self._addresses = addresses
        # What the operator wrote may be reached wherever it is; only what others name is guarded.
        own = (urlsplit(one).hostname for one in (config.issuer, config.idp_token_endpoint) if one is not None)
        guard = guard_of(url, [*config.private_hosts, *(host for host in own if host)])
        self._requests = GuardedRequests(guard, proxy)
        # Of the caller whose token is exchanged.
        self.subject: Callable[[], str | None] = lambda: None
        # Servers differ in what they want for refresh tokens: one that refuses the prompt is asked without.
        self.consent = True
        self._latest: _Latest | None = None

    def close(self) -> None:
        """Drop every idle connection."""
        self._requests.close()

    async def find_issuer(self, challenge: Challenge | None, kept: KeptSignIn) -> KeptSignIn | None:
        """Learn who gives tokens for the upstream; None where nothing says so.

        Args:
            challenge: Of its latest refusal.
            kept: What is known; it is what is returned where the issuer is the same.

        Raises:
            MetadataRefused: What is said must not be relied on, or cannot be had.
        """
        resource = await self._resource_metadata(challenge)
        if resource is not None:
            issuer = self._chosen(resource, kept)
            name, supported = resource.resource, resource.scopes_supported
            if issuer is None:
                # It has metadata of its own, and names no other server: as before they were invented.
                issuer = origin_of(self._url)
        elif self._config.issuer is not None:
            issuer, name, supported = self._config.issuer, canonical_resource(self._url), None
        else:
            # Source: MCP 2025-03-26, "Authorization", "Server Metadata Discovery": the server is its own issuer.
            issuer, name, supported = origin_of(self._url), canonical_resource(self._url), None
            if await self._server_document(issuer) is None:
                return None
        wants_proof = (challenge is not None and challenge.wants_proof) or (
            resource is not None and resource.wants_proof
        )
        if kept.issuer != issuer:
            kept = KeptSignIn(issuer=issuer)
        proof_key = (kept.proof_key or new_key()) if wants_proof else kept.proof_key
        return replace(kept, resource=name, supported=supported, proof_key=proof_key)

    def endpoint(self, kept: KeptSignIn) -> TokenEndpoint:
        """The token endpoint that a sign-in uses.

        Raises:
            SignInFailed: It is not known, or we are not known there.
        """
        if kept.server is None or kept.client is None:
            raise SignInFailed("nothing is known of its authorization server")
        client = with_secret(kept.client, self._config)
        return TokenEndpoint(
            self._requests,
            kept.server,
            client,
            resource=self._indicator(kept),
            owner=self._owner,
            proof_key=kept.proof_key,
        )

    def _indicator(self, kept: KeptSignIn) -> str:
        """The resource indicator (RFC 8707) of requests; empty where none is to be sent."""
        wanted = self._config.resource
        return wanted if isinstance(wanted, str) else kept.resource if wanted else ""

    async def link(
        self, kept: KeptSignIn, challenge: Challenge | None, store: Store, *, principal: str, browser: str | None = None
    ) -> SignInLink:
        """A link to sign in with.

        Args:
            kept: What is known.
            challenge: Of the latest refusal.
            store: Keeps what is needed when the browser comes back.
            principal: Who signs in.
            browser: See `SignIn.begin`.

        Raises:
            SignInFailed: There is nowhere to sign in; the text says why, and what to do.
        """
        redirect_uri = self._config.redirect_uri or self._addresses.redirect_uri()
        if redirect_uri is None:
            raise SignInFailed(
                f"no browser can come back to this process; `typegate login {self._server} --config FILE` signs in"
            )
        known = (redirect_uri, kept.wanted, kept.issuer)
        if browser is None and (link := await self._link_again(known, store)) is not None:
            return link
        try:
            found = await self.find_issuer(challenge, kept)
            if found is None or found.issuer is None:
                raise SignInFailed(f"server '{self._server}' names nobody to sign in to")
            server = await self.server_metadata(found.issuer, interactive=True)
            endpoint = server.authorization_endpoint or ""
            self._requests.guard.check_url(endpoint)
            scopes = self.scopes(found, challenge, server)
            shared = RegisteredClients(store, self._server, self._url)
            if principal and found.client is None:
                found = replace(found, client=await shared.known(found.issuer or ""))
            client = await self.client_at(found, server, redirect_uri, scopes)
        except (MetadataRefused, AddressRefused) as error:
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
                resource=self._indicator(found),
                scopes=scopes,
                consent=self.consent,
            )

        if client == found.client:
            client = await self.known_client(client, server, redirect_uri, scopes, url_for)
        if principal and client.origin == "registered" and client != found.client:
            await shared.keep(server.issuer, client)
        begun = KeptSignIn(
            issuer=found.issuer,
            resource=found.resource,
            supported=found.supported,
            scopes=scopes,
            server=server,
            client=client,
            proof_key=found.proof_key,
        )
        pending = {
            "server": self._server,
            "url": self._url,
            "principal": principal,
            "verifier": verifier,
            "redirectUri": redirect_uri,
            "expires": expires_at_s,
            "consent": self.consent and OFFLINE in scopes,
            "reused": client.origin == "registered" and client == found.client,
            "browser": browser,
            "kept": begun.document(server=self._server, principal=principal),
        }
        key = f"pending:{state}"
        try:
            await store.sweep("pending", LINK_S)
            await store.save(key, pending, expected=0)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        made = SignInLink(url=url_for(client), expires_at_s=expires_at_s)
        if browser is None:
            self._latest = _Latest(known=known, key=key, link=made)
        return made

    async def _link_again(self, known: tuple[object, ...], store: Store) -> SignInLink | None:
        """The link that was given out last; None where there is none that still leads anywhere."""
        latest = self._latest
        if latest is None or latest.known != known or latest.link.expires_at_s - time.time() < _LEFT_S:
            return None
        try:
            # Used at another process, or lost with what the store has lost.
            found = await store.load(latest.key)
        except StoreFailed as error:
            raise SignInFailed(str(error)) from None
        return latest.link if found is not None else None

    def forget_link(self) -> None:
        """Give out another link next time: the last one was used."""
        self._latest = None

    async def unattended(self, kept: KeptSignIn, challenge: Challenge | None) -> tuple[KeptSignIn, Tokens]:
        """Tokens that nobody has to sign in for, and what is known then.

        Raises:
            TokenRefused: There are none.
            MetadataRefused, SignInFailed: There is nobody to ask.
        """
        config = self._config
        found: KeptSignIn | None = kept
        if kept.issuer is None:
            found = await self.find_issuer(challenge, kept)
        if found is None or found.issuer is None:
            raise SignInFailed(f"server '{self._server}' names no authorization server (auth.issuer)")
        server = found.server or await self.server_metadata(found.issuer, interactive=False)
        scopes = union(found.wanted, self.scopes(found, challenge, None))
        found = replace(found, server=server, client=configured_client(config, server), scopes=scopes)
        endpoint = self.endpoint(found)
        match config.type:
            case "clientCredentials":
                return found, await endpoint.for_client(found.scopes)
            case "tokenExchange":
                tokens = await endpoint.exchanged(
                    config.subject_token or self._subject(),
                    subject_type=config.subject_token_type,
                    requested_type="access_token",
                    audience=config.audience,
                    scopes=found.scopes,
                )
                return found, tokens
            case "jwtBearer":
                return found, await endpoint.for_assertion(config.assertion or "", found.scopes)
            case "enterprise":
                provider = ServerMetadata(issuer="", token_endpoint=config.idp_token_endpoint or "")
                known_as = Client(
                    client_id=config.idp_client_id or config.client_id or "",
                    origin="configured",
                    method=method_for(None, secret=config.idp_client_secret is not None, private_key=False),
                    secret=config.idp_client_secret,
                )
                owner = f"{self._owner}: identity"
                indicator = self._indicator(found)
                identity = TokenEndpoint(self._requests, provider, known_as, resource=indicator, owner=owner)
                grant = await identity.exchanged(
                    config.id_token or self._subject(),
                    subject_type="id_token" if config.id_token else config.subject_token_type,
                    requested_type="id-jag",
                    audience=found.issuer,
                    scopes=found.scopes,
                )
                return found, await endpoint.for_assertion(grant.access, found.scopes)
        raise SignInFailed(f"auth.type {config.type} needs somebody who signs in")

    def _subject(self) -> str:
        token = self.subject()
        if token is None:
            raise SignInFailed("it takes callers by the access token that they come with, and this one has none")
        return token

    def scopes(self, kept: KeptSignIn, challenge: Challenge | None, server: ServerMetadata | None) -> tuple[str, ...]:
        """What to ask for."""
        return scopes_to_request(
            configured=self._config.scopes,
            challenged=challenge.scopes if challenge is not None else None,
            supported=kept.supported,
            requested_before=kept.wanted,
            offered_by_server=server.scopes_supported if server is not None else (),
        )

    async def server_metadata(self, issuer: str, *, interactive: bool) -> ServerMetadata:
        """What the authorization server says of itself.

        Raises:
            MetadataRefused: Nothing, or what must not be relied on.
        """
        server = await self._first(
            server_metadata_urls(issuer),
            lambda document: read_server_metadata(document, issuer, interactive=interactive),
            what="the authorization server",
        )
        if server is None:
            raise MetadataRefused(f"the authorization server {issuer[:200]} has no metadata")
        for url in (
            server.token_endpoint,
            server.authorization_endpoint if interactive else None,
            server.registration_endpoint,
            server.revocation_endpoint,
        ):
            if url is not None:
                try:
                    self._requests.guard.check_url(url)
                except AddressRefused as error:
                    raise MetadataRefused(str(error)) from None
        return server

    async def _server_document(self, issuer: str) -> Any:
        return await self._first(server_metadata_urls(issuer), lambda document: document, what="its metadata")

    async def _resource_metadata(self, challenge: Challenge | None) -> ResourceMetadata | None:
        return await self._first(
            resource_metadata_urls(self._url, challenge),
            lambda document: read_resource_metadata(document, self._url),
            what="the metadata",
        )

    async def _first(self, urls: tuple[str, ...], read: Callable[[Any], T], *, what: str) -> T | None:
        """Return the first document that can be used, as `read` reads it; None where there is none at all.

        Raises:
            MetadataRefused: There are documents, and `read` refuses all of them; or they cannot be fetched.
        """
        failure: GatewayError | MetadataRefused | None = None
        for url in urls:
            try:
                answer = await self._requests.get_json(url)
            except AddressRefused as error:
                raise MetadataRefused(str(error)) from None
            except GatewayError as error:
                failure = failure or error
                continue
            if answer.status == 200 and isinstance(answer.document, dict):
                try:
                    return read(answer.document)
                except MetadataRefused as error:
                    # Another place may have those that are meant: some servers answer everywhere.
                    failure = error if not isinstance(failure, MetadataRefused) else failure
            elif answer.status >= 500:
                failure = failure or GatewayError(f"{url[:200]} answered HTTP {answer.status}")
        if isinstance(failure, MetadataRefused):
            raise failure
        if failure is not None:
            raise MetadataRefused(f"{what} cannot be fetched: {failure}")
        return None

    def _chosen(self, resource: ResourceMetadata, kept: KeptSignIn) -> str | None:
        """Return the issuer to use; None where neither the upstream nor the configuration names one."""
        named, wanted = resource.authorization_servers, self._config.issuer
        if wanted is not None:
            # The operator knows how the issuer writes its own name; upstreams often differ by a slash at the end.
            if not named or any(one.rstrip("/") == wanted.rstrip("/") for one in named):
                return wanted
            raise MetadataRefused(f"it names another authorization server than auth.issuer ({named[0][:200]})")
        if not named:
            return None
        return kept.issuer if kept.issuer in named and kept.issuer is not None else named[0]

    async def known_client(
        self,
        client: Client,
        server: ServerMetadata,
        redirect_uri: str,
        scopes: tuple[str, ...],
        url_for: Callable[[Client], str],
    ) -> Client:
        """Return a client that was registered before, or a new one where the authorization server has forgotten it.

        Servers that keep clients in memory forget them at each restart, and tell the browser only (RFC 6749, section
        4.1.2.1), so that the sign-in would fail there again and again.

        Args:
            client: The client.
            server, redirect_uri, scopes: See `client_at`.
            url_for: Makes the link with a client.

        Raises:
            SignInFailed, AddressRefused: See `client_at`.
        """
        if client.origin != "registered" or await self._requests.leads_on(url_for(client)):
            return client
        log.info("the authorization server has forgotten the client: registering again", extra={"server": self._server})
        return await self.client_at(KeptSignIn(issuer=server.issuer), server, redirect_uri, scopes)

    async def client_at(
        self, kept: KeptSignIn, server: ServerMetadata, redirect_uri: str, scopes: tuple[str, ...]
    ) -> Client:
        """What an authorization server knows us by; registers us there if need be.

        Raises:
            SignInFailed: It does not take us; the text says what to do.
            AddressRefused: It is to be asked at an address that is not to be requested.
        """
        config = self._config
        if config.client_id is not None:
            return configured_client(config, server)
        document_url = config.client_metadata_url or self._addresses.document_url()
        if server.takes_client_documents and document_url is not None and is_document_url(document_url):
            return Client(client_id=document_url, origin="document", method="none")
        if kept.client is not None and kept.client.is_good(redirect_uri=redirect_uri, now_s=time.time()):
            return kept.client
        if server.registration_endpoint is None:
            raise SignInFailed(
                f"{server.issuer[:200]} registers no clients by itself; register one there with the redirect URI "
                f"{redirect_uri}, and write its clientId into auth of server '{self._server}'"
            )
        method = registration_method(server.auth_methods)
        body = client_metadata([redirect_uri], method=method, scopes=scopes)
        try:
            answer = await self._requests.post_json(server.registration_endpoint, body)
        except AddressRefused:
            raise
        except GatewayError as error:
            raise SignInFailed(f"the registration endpoint cannot be reached ({error})") from None
        if not 200 <= answer.status < 300:
            said = answer.document.get("error_description") if isinstance(answer.document, dict) else None
            reason = f": {str(said)[:200]}" if isinstance(said, str) else ""
            raise SignInFailed(
                f"the registration was refused (HTTP {answer.status}{reason}); register a client there with the "
                f"redirect URI {redirect_uri}, and write its clientId into auth of server '{self._server}'"
            )
        client = read_registration(answer.document, asked=method, redirect_uri=redirect_uri)
        SECRETS.hide_latest(f"{self._owner}: client", [client.secret] if client.secret else [])
        return client
