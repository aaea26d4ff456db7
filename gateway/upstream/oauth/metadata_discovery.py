"""Find the authorization server of an upstream (RFC 9728, RFC 8414) and the scopes to request.

Source: MCP 2025-11-25, "Authorization", "Authorization Server Discovery", "Scope Selection Strategy" and "Scope
Challenge Handling".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gateway.config.upstream_types.sign_in_config import SignInConfig
from gateway.http.proxies import ProxyChoice
from gateway.protocol.gateway_errors import GatewayError
from gateway.upstream.oauth.guarded_requests import AddressRefused, GuardedRequests

T = TypeVar("T")

# Real challenges have a few hundred characters. The rest of a longer header is ignored.
_MAX_CHALLENGE_CHARS: Final = 8 * 1024
_SCHEME: Final = re.compile(r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?=[\s,]|\Z)")
# The grammar requires quotes around a URL, but some servers omit them.
_PARAMETER: Final = re.compile(
    r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]*))", re.DOTALL
)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One challenge of a WWW-Authenticate header.

    Attributes:
        scheme: Authentication scheme in lower case.
        parameters: Values by lower-case name; if a name is repeated, its first value.
    """

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource_metadata(self) -> str | None:
        """URL of the resource metadata (RFC 9728, section 5.1); None if the parameter is not an absolute URL."""
        url = self.parameters.get("resource_metadata", "")
        return url if _ABSOLUTE.match(url) else None

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """Scopes that the request requires; None if the challenge does not state them."""
        scope = self.parameters.get("scope")
        return tuple(scope.split()) if scope else None

    @property
    def requires_proof(self) -> bool:
        """True if each request must contain a DPoP proof in addition to the token (RFC 9449, section 7.1)."""
        return self.scheme == "dpop"

    @property
    def insufficient_scope(self) -> bool:
        """True if the token is valid but lacks a scope for this request (RFC 6750, section 3.1)."""
        return self.parameters.get("error") == "insufficient_scope"


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Parse the challenges of a WWW-Authenticate header (RFC 9110, section 11.6.1), up to the first syntax error."""
    text = header[:_MAX_CHALLENGE_CHARS]
    challenges: list[Challenge] = []
    at = 0
    while (scheme := _SCHEME.match(text, at)) is not None:
        at = scheme.end()
        parameters: dict[str, str] = {}
        while (parameter := _PARAMETER.match(text, at)) is not None:
            name, quoted, plain = parameter.groups()
            value = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            parameters.setdefault(name.lower(), value)
            at = parameter.end()
        challenges.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
    return tuple(challenges)


def token_challenge(header: str) -> Challenge | None:
    """Return the header's Bearer challenge, or else its DPoP challenge; None if there is neither."""
    by_scheme = {challenge.scheme: challenge for challenge in reversed(parse_challenges(header))}
    return by_scheme.get("bearer") or by_scheme.get("dpop")


OFFLINE: Final = "offline_access"


def union(*groups: Sequence[str] | None) -> tuple[str, ...]:
    """Return all scopes without duplicates, in the order of their first appearance."""
    return tuple(dict.fromkeys(scope for group in groups for scope in group or ()))


def scopes_to_request(
    *,
    configured: Sequence[str],
    challenged: Sequence[str] | None,
    supported: Sequence[str] | None,
    requested_before: Sequence[str] = (),
    offered_by_server: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the scopes for an authorization or token request; empty to omit the parameter.

    Args:
        configured: Scopes from the configuration, which replace `supported`.
        challenged: Scopes from the upstream's latest challenge; they replace `supported` too.
        supported: Scopes from the resource metadata.
        requested_before: Scopes of the current token, and scopes that the upstream has required since; the new token
            needs all of them, because it replaces the current token.
        offered_by_server: `scopes_supported` of the authorization server.
    """
    advertised: Sequence[str] = challenged if challenged is not None else supported or ()
    scopes = union(requested_before, configured, challenged if configured else advertised)
    # A server that supports `offline_access` returns a refresh token only if this scope is requested. Another server
    # may reject the scope as unknown.
    return union(scopes, (OFFLINE,)) if scopes and OFFLINE in offered_by_server else scopes


_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
# Limit for lists in metadata. Real servers list a dozen entries at the most.
_MAX_ENTRIES: Final = 200
_MAX_CHARS: Final = 2_048


class InvalidMetadata(ValueError):
    """Metadata of an upstream or an authorization server is not valid; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMetadata:
    """Metadata of a protected upstream (RFC 9728).

    Attributes:
        resource: Resource identifier, for which tokens are requested.
        authorization_servers: Accepted issuers, in order of preference; empty if the upstream is its own issuer.
        scopes_supported: Supported scopes; None if the metadata does not state them.
        requires_proof: Whether each request must contain a DPoP proof in addition to the token (RFC 9449, section 5.2).
    """

    resource: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...] | None
    requires_proof: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """Metadata of an authorization server (RFC 8414).

    Attributes:
        auth_methods: Authentication methods of the token endpoint; None if the metadata does not state them.
        names_issuer: Whether authorization responses name the issuer (RFC 9207).
        takes_client_documents: Whether the server accepts the URL of a client ID metadata document as a client ID.
    """

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] | None = None
    signing_algorithms: tuple[str, ...] = ()
    pkce_methods: tuple[str, ...] = ()
    names_issuer: bool = False
    takes_client_documents: bool = False


def canonical_resource(url: str) -> str:
    """Return the resource identifier for an upstream's URL.

    Scheme and host are in lower case. A default port, a slash at the end, the query and the fragment are omitted.

    Source: MCP 2025-11-25, "Authorization", "Canonical Server URI".
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(parts.scheme)
    port = f":{parts.port}" if parts.port is not None and parts.port != default else ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def origin_of(url: str) -> str:
    """Return the scheme, the host and a non-default port of a URL."""
    return canonical_resource(urlsplit(url)._replace(path="").geturl())


def resource_metadata_urls(url: str, challenge: Challenge | None) -> tuple[str, ...]:
    """Return the possible URLs of an upstream's metadata, in the order in which to try them."""
    parts = urlsplit(url)
    origin, path = origin_of(url), parts.path.rstrip("/")
    stated_url = challenge.resource_metadata if challenge is not None else None
    candidates = (stated_url, f"{origin}{_RESOURCE}{path}", f"{origin}{_RESOURCE}")
    return tuple(dict.fromkeys(candidate for candidate in candidates if candidate))


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the possible URLs of an authorization server's metadata, in the order in which to try them.

    Source: MCP 2025-11-25, "Authorization", "Authorization Server Metadata Discovery". The last three URLs are not in
    the specification, but some servers use them. Trying them is safe, because the issuer in the document must match.
    """
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return f"{origin}{_SERVER}", f"{origin}{_OPENID}"
    required = (f"{origin}{_SERVER}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}")
    return *required, f"{origin}{path}{_SERVER}", f"{origin}{_SERVER}", f"{origin}{_OPENID}"


def read_resource_metadata(document: object, url: str) -> ResourceMetadata:
    """Parse the metadata of the upstream at this URL.

    Raises:
        InvalidMetadata: The metadata is not an object, or belongs to another resource.
    """
    if not isinstance(document, dict):
        raise InvalidMetadata("the resource metadata is not a JSON object")
    resource = document.get("resource")
    if not isinstance(resource, str) or not covers(resource, url):
        description = _value_for_message(resource) if isinstance(resource, str) else "none"
        raise InvalidMetadata(f"the metadata is for another resource ({description})")
    return ResourceMetadata(
        resource=resource,
        authorization_servers=_texts(document, "authorization_servers") or (),
        scopes_supported=_texts(document, "scopes_supported"),
        requires_proof=document.get("dpop_bound_access_tokens_required") is True,
    )


def covers(resource: str, url: str) -> bool:
    """Return whether a token for the resource is valid for the URL: the URL is the resource, or a path below it."""
    try:
        if urlsplit(resource).fragment or origin_of(resource) != origin_of(url):
            return False
        above, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    except ValueError:
        return False
    return path == above or path.startswith(f"{above}/")


def read_server_metadata(document: object, issuer: str, *, interactive: bool) -> ServerMetadata:
    """Parse the metadata of an authorization server.

    Args:
        issuer: The expected issuer, compared without normalization (RFC 8414, section 3.3).
        interactive: Whether a user will sign in, which requires an authorization endpoint and PKCE.

    Raises:
        InvalidMetadata: The metadata is not an object, belongs to another issuer, or lacks an endpoint or PKCE.
    """
    if not isinstance(document, dict):
        raise InvalidMetadata("the authorization server metadata is not a JSON object")
    stated = document.get("issuer")
    if stated != issuer:
        hint = ""
        if isinstance(stated, str) and stated.rstrip("/") == issuer.rstrip("/"):
            fix = f'"auth": {{"issuer": "{_value_for_message(stated)}"}}'
            hint = f"; if that issuer is correct, add `{fix}` to the entry of the server"
        raise InvalidMetadata(
            f"the metadata of {_value_for_message(issuer)} names another issuer ({_value_for_message(stated)}){hint}"
        )
    token_endpoint = _url(document, "token_endpoint")
    if token_endpoint is None:
        raise InvalidMetadata("the authorization server metadata has no token_endpoint")
    pkce = _texts(document, "code_challenge_methods_supported") or ()
    authorization_endpoint = _url(document, "authorization_endpoint")
    if interactive:
        if authorization_endpoint is None:
            raise InvalidMetadata("the authorization server metadata has no authorization_endpoint")
        # MCP 2025-11-25, "Authorization", "Authorization Code Protection": clients MUST refuse a server without PKCE.
        if "S256" not in pkce:
            raise InvalidMetadata(
                "the authorization server does not support PKCE with S256 (code_challenge_methods_supported lacks it)"
            )
    return ServerMetadata(
        issuer=issuer,
        token_endpoint=token_endpoint,
        authorization_endpoint=authorization_endpoint,
        registration_endpoint=_url(document, "registration_endpoint"),
        revocation_endpoint=_url(document, "revocation_endpoint"),
        scopes_supported=_texts(document, "scopes_supported") or (),
        auth_methods=_texts(document, "token_endpoint_auth_methods_supported"),
        signing_algorithms=_texts(document, "token_endpoint_auth_signing_alg_values_supported") or (),
        pkce_methods=pkce,
        names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        takes_client_documents=document.get("client_id_metadata_document_supported") is True,
    )


def _url(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_CHARS or not (value.isascii() and value.isprintable()):
        raise InvalidMetadata(f"{name} in the metadata is not a URL")
    return value


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = document.get(name)
    if not isinstance(value, list):
        return None
    valid_texts = (text for text in value[:_MAX_ENTRIES] if isinstance(text, str) and text and len(text) <= _MAX_CHARS)
    return tuple(dict.fromkeys(text for text in valid_texts if text.isascii() and text.isprintable()))


def _value_for_message(value: object) -> str:
    # The value comes from another server and becomes part of an error message, so limit its length.
    return str(value)[:200] if isinstance(value, str) else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInUpstream:
    """An upstream that requires a sign-in.

    Attributes:
        proxy: Proxy for requests to the authorization server.
    """

    server: str
    url: str
    config: SignInConfig
    proxy: ProxyChoice = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredIssuer:
    """The issuer of an upstream's tokens, with what the upstream requires of the tokens.

    Attributes:
        resource: Resource indicator for which tokens are requested.
        scopes_supported: Scopes from the resource metadata; None if the metadata does not state them.
        requires_proof: Whether each request must contain a DPoP proof in addition to the token.
    """

    issuer: str
    resource: str
    scopes_supported: tuple[str, ...] | None
    requires_proof: bool


class Discovery:
    """Finds the authorization server of one upstream, and fetches the server's metadata."""

    def __init__(self, requests: GuardedRequests, upstream: SignInUpstream) -> None:
        self._requests = requests
        self._url = upstream.url
        self._config = upstream.config

    async def find_issuer(self, challenge: Challenge | None, *, current: str | None) -> DiscoveredIssuer | None:
        """Find the authorization server; return None if there is none.

        Args:
            challenge: The challenge in the latest 401 or 403 response of the upstream; None if there was none.
            current: Issuer of the current sign-in, which is preferred if the upstream still names this issuer.

        Raises:
            InvalidMetadata: The metadata is not valid, or could not be fetched.
        """
        resource = await self._fetch_resource_metadata(challenge)
        if resource is not None:
            issuer = self._choose_issuer(resource, current)
            name, supported = resource.resource, resource.scopes_supported
            if issuer is None:
                # The metadata names no issuer, so the upstream is its own issuer, as it was before RFC 9728.
                issuer = origin_of(self._url)
        elif self._config.issuer is not None:
            issuer, name, supported = self._config.issuer, canonical_resource(self._url), None
        else:
            # MCP 2025-03-26, "Authorization", "Server Metadata Discovery": the upstream is its own issuer.
            issuer, name, supported = origin_of(self._url), canonical_resource(self._url), None
            if await self._fetch_any_metadata(issuer) is None:
                return None
        requires_proof = (challenge is not None and challenge.requires_proof) or (
            resource is not None and resource.requires_proof
        )
        return DiscoveredIssuer(issuer=issuer, resource=name, scopes_supported=supported, requires_proof=requires_proof)

    async def fetch_server_metadata(self, issuer: str, *, interactive: bool) -> ServerMetadata:
        """Fetch the metadata of an authorization server.

        Raises:
            InvalidMetadata: The metadata is missing or not valid, or names an address that is not allowed.
        """
        server = await self._fetch_first(
            server_metadata_urls(issuer),
            lambda document: read_server_metadata(document, issuer, interactive=interactive),
            what="the authorization server",
        )
        if server is None:
            raise InvalidMetadata(f"the authorization server {issuer[:200]} has no metadata")
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
                    raise InvalidMetadata(str(error)) from None
        return server

    async def _fetch_any_metadata(self, issuer: str) -> Any:
        return await self._fetch_first(server_metadata_urls(issuer), lambda document: document, what="its metadata")

    async def _fetch_resource_metadata(self, challenge: Challenge | None) -> ResourceMetadata | None:
        return await self._fetch_first(
            resource_metadata_urls(self._url, challenge),
            lambda document: read_resource_metadata(document, self._url),
            what="the metadata",
        )

    async def _fetch_first(self, urls: tuple[str, ...], read: Callable[[Any], T], *, what: str) -> T | None:
        """Return the first valid document, parsed by `read`; None if none of the URLs has a document.

        Raises:
            InvalidMetadata: An address is not allowed; or no document is valid, and at least one is invalid or could
                not be fetched.
        """
        failure: GatewayError | InvalidMetadata | None = None
        for url in urls:
            try:
                response = await self._requests.get_json(url)
            except AddressRefused as error:
                raise InvalidMetadata(str(error)) from None
            except GatewayError as error:
                failure = failure or error
                continue
            if response.status == 200 and isinstance(response.document, dict):
                try:
                    return read(response.document)
                except InvalidMetadata as error:
                    # Continue: some servers answer every URL with some document, so a later URL may have the right one.
                    failure = error if not isinstance(failure, InvalidMetadata) else failure
            elif response.status >= 500:
                failure = failure or GatewayError(f"{url[:200]} answered HTTP {response.status}")
        if isinstance(failure, InvalidMetadata):
            raise failure
        if failure is not None:
            raise InvalidMetadata(f"{what} cannot be fetched: {failure}")
        return None

    def _choose_issuer(self, resource: ResourceMetadata, current: str | None) -> str | None:
        """Return the configured issuer, or else an issuer that the upstream names; None if there is neither.

        Raises:
            InvalidMetadata: The upstream names issuers, but not the configured one.
        """
        offered, configured = resource.authorization_servers, self._config.issuer
        if configured is not None:
            # Use the configured spelling: upstreams often add or omit a slash at the end.
            if not offered or any(issuer.rstrip("/") == configured.rstrip("/") for issuer in offered):
                return configured
            raise InvalidMetadata(
                f"the upstream names another authorization server than auth.issuer ({offered[0][:200]})"
            )
        if not offered:
            return None
        return current if current is not None and current in offered else offered[0]
