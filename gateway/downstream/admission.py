"""Admit requests: route them by path, authenticate their sender, and check that headers and body agree.

Several gateway processes can serve the same address. A session exists in only one of them, its owner, to which the
others forward its requests. Callers without a valid token get a challenge that names the metadata of this gateway.

Sources: RFC 9728 "OAuth 2.0 Protected Resource Metadata"; RFC 6750, section 3 "The WWW-Authenticate Response Header
Field"; MCP 2026-07-28, "Authorization", "Protected Resource Metadata Discovery Requirements".
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Container
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gateway.access.principal import Authenticator, Principal, Refusal, UnverifiedCredentials
from gateway.access.quotas import Account, Quotas
from gateway.audit.recording import Audit
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth_config import OAuthConfig, base_of
from gateway.http.http_request import Fields, RequestHead, RequestRefused
from gateway.http.origins import VARY, CrossOrigin, HostCheck
from gateway.http.responder import Responder
from gateway.http.server_connections import Handler
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import HEADER_MISMATCH, RpcError
from gateway.protocol.versions import (
    CAPABILITIES_KEY,
    MODERN_VERSIONS,
    NAMED_BY,
    VERSION_KEY,
    check_envelope,
    is_modern,
)
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
# Characters that a quoted string must not contain (RFC 6750, section 3), such as quotes and line breaks.
_NOT_QUOTABLE: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
# The maximum length of an error description in a challenge, enough for a sentence and a URL.
_MAX_DESCRIPTION_CHARS: Final = 400


class ProtectedResource:
    """Serves the gateway's OAuth metadata. Each MCP path (`/mcp` or `/mcp/PROFILE`) is a protected resource."""

    max_body_bytes: Final = 0

    def __init__(self, oauth: Callable[[], OAuthConfig | None], profiles: Callable[[], Container[str]]) -> None:
        """Initialize the metadata.

        Args:
            oauth: Returns the current OAuth configuration; None if access tokens are not accepted.
            profiles: Returns the names of all profiles.
        """
        self._oauth = oauth
        self._profiles = profiles

    # Metadata

    def admit(self, head: RequestHead, peer: str) -> None:
        """Check that the path names an existing metadata document.

        Raises:
            RequestRefused: The document does not exist, or the method is not GET.
        """
        self._document(head)
        if head.method not in (b"GET", b"HEAD"):
            raise RequestRefused(405, "expected GET", [(b"allow", b"GET, HEAD")])

    def answer(self, head: RequestHead, admission: object, body: bytes, responder: Responder, peer: str) -> None:
        """Send the metadata document; callers need no credentials for it."""
        responder.respond(200, (json_bytes.dumps(self._document(head)),))

    def _document(self, head: RequestHead) -> dict[str, Any]:
        oauth = self._oauth()
        if oauth is None:
            raise _not_found()
        base = _base(oauth, head)
        path = unquote(head.path.decode("latin-1")).removeprefix(WELL_KNOWN).rstrip("/")
        # A proxy that serves the gateway below a path may forward requests with or without that path.
        path = path.removeprefix(urlsplit(base).path)
        profile = path.removeprefix("/mcp/") if path.startswith("/mcp/") else DEFAULT_PROFILE
        if (path not in ("", "/mcp") and not path.startswith("/mcp/")) or profile not in self._profiles():
            raise _not_found()
        document = {
            "resource": base + (path or "/mcp"),
            "authorization_servers": [issuer.issuer for issuer in oauth.issuers],
            "bearer_methods_supported": ["header"],
        }
        # List only required scopes: clients request every listed scope, and issuers reject unknown scopes.
        scopes = _required_scopes(oauth)
        return {**document, "scopes_supported": scopes} if scopes else document

    # Challenge

    def refused(self, refusal: Refusal, head: RequestHead, profile: str) -> RequestRefused:
        """Return the response to rejected credentials.

        The response has a challenge that says where to get a token. If the credentials cannot be verified at present,
        it has `Retry-After` instead.
        """
        if refusal.retry_after_s:
            fields: Fields = [(b"retry-after", b"%d" % refusal.retry_after_s)]
            return RequestRefused(refusal.status, refusal.description, fields)
        parameters: list[tuple[str, str]] = []
        oauth = self._oauth()
        if refusal.error:
            parameters += [
                ("error", refusal.error),
                ("error_description", refusal.description[:_MAX_DESCRIPTION_CHARS]),
            ]
        if refusal.bearer_of_token and oauth is not None:
            base = _base(oauth, head)
            origin, prefix = base.removesuffix(urlsplit(base).path), urlsplit(base).path
            names_profile = head.path.rstrip(b"/") != b"/mcp" and profile in self._profiles()
            path = f"/mcp/{profile}" if names_profile else "/mcp"
            parameters.append(("resource_metadata", f"{origin}{WELL_KNOWN}{prefix}{path}"))
            if scopes := refusal.scopes or _required_scopes(oauth):
                parameters.append(("scope", " ".join(scopes)))
        text = ", ".join(f'{name}="{_quotable(value)}"' for name, value in parameters)
        challenge = f"Bearer {text}" if text else "Bearer"
        return RequestRefused(refusal.status, refusal.description, [(b"www-authenticate", challenge.encode("ascii"))])


def _base(oauth: OAuthConfig, head: RequestHead) -> str:
    """Return the configured base URL of the gateway; by default, plain HTTP at the host that the request names."""
    return base_of(oauth.resource) if oauth.resource is not None else f"http://{head.text(b'host').lower()}"


def _required_scopes(oauth: OAuthConfig) -> list[str]:
    """Return the required scopes of all issuers, without duplicates."""
    return list(dict.fromkeys(scope for issuer in oauth.issuers for scope in issuer.required_scopes))


def _quotable(text: str) -> str:
    return _NOT_QUOTABLE.sub("'", text)


def _not_found() -> RequestRefused:
    return RequestRefused(404, "there is nothing at this path", body=b'{"error":"there is nothing at this path"}')


log = logging.getLogger(__name__)

OwnerT = TypeVar("OwnerT")


class SessionForwarder(Protocol[OwnerT]):
    """Forwards a request to the process that has the session of the request."""

    def owner(self, session_id: str | None) -> OwnerT | None:
        """Return the other process that has the session; None if the session is local or unknown."""

    async def forward(self, owner: OwnerT, head: RequestHead, body: bytes, responder: Responder) -> None:
        """Forward the request to the process that has its session, and relay the response."""


class ForwardedRequests:
    """The requests that are being forwarded to other processes.

    Args:
        forwarder: Finds the sessions of other processes; None if there is only one process.

    Attributes:
        possible: True if there are other processes.
    """

    def __init__(self, forwarder: SessionForwarder[Any] | None) -> None:
        self._forwarder = forwarder
        self.possible = forwarder is not None
        self._requests: set[Responder] = set()
        self._streams: set[Responder] = set()

    @property
    def in_flight(self) -> int:
        """Return how many forwarded requests wait for their response, not counting session streams."""
        return len(self._requests)

    def forward(self, head: RequestHead, body: bytes, responder: Responder) -> bool:
        """Forward the request if another process has its session; return whether the request was forwarded."""
        forwarder = self._forwarder
        if forwarder is None:
            return False
        owner = forwarder.owner(head.text(b"mcp-session-id") or None)
        if owner is None:
            return False
        responder.run(self._forward(forwarder, owner, head, body, responder))
        return True

    def give_up(self) -> None:
        """End the forwarded requests that wait for a response; each caller gets an error response."""
        _end_all(self._requests)

    def close_streams(self) -> None:
        """End the forwarded session streams, so that callers reopen them through another process."""
        _end_all(self._streams)

    async def _forward(
        self, forwarder: SessionForwarder[Any], owner: Any, head: RequestHead, body: bytes, responder: Responder
    ) -> None:
        forwarded = self._requests if head.method == b"POST" else self._streams
        forwarded.add(responder)
        try:
            await forwarder.forward(owner, head, body, responder)
        except asyncio.CancelledError:
            # Cancelled by shutdown before the response arrived: the caller is still connected and needs a response.
            responder.fail()
            raise
        except Exception:  # boundary: without a response, the caller would wait forever
            log.exception("forwarding failed")
            responder.fail()
        finally:
            forwarded.discard(responder)


def _end_all(forwarded: set[Responder]) -> None:
    """End forwarded responses; callers may resume a resumable response through another process."""
    for responder in list(forwarded):
        task = responder.task
        if responder.started:
            responder.end()
        if task is not None:
            task.cancel()


_WELL_KNOWN: Final = WELL_KNOWN.encode()
# Clients look for metadata at many paths below this path, including paths that do not exist here.
_METADATA: Final = b"/.well-known/"


class PathRouter:
    """Routes `/mcp` and the paths below it to the endpoint, and other paths to the application."""

    def __init__(
        self,
        host_check: HostCheck,
        cross_origin: CrossOrigin,
        endpoint: Handler,
        protected_resource: Handler,
        application: Handler,
    ) -> None:
        self._host_check = host_check
        self._cross_origin = cross_origin
        self._endpoint = endpoint
        self._protected_resource = protected_resource
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """Return the handler of a request.

        Raises:
            RequestRefused: The request's Host or Origin is not allowed.
        """
        # Fast path: equal requests share a header block. Its handler changes only with the allowed hosts and origins.
        routed = head.routed
        if routed is not None and routed[0] is self._host_check.edition:
            answers: Handler = routed[1]
            return answers
        self._host_check.check(head)
        path = head.path
        handler = self._application
        is_endpoint, is_metadata = path == b"/mcp" or path.startswith(b"/mcp/"), path.startswith(_METADATA)
        if is_endpoint:
            handler = self._endpoint
        elif path.startswith(_WELL_KNOWN):
            handler = self._protected_resource
        if is_endpoint or is_metadata:
            # Other paths get no CORS headers, so that pages of other origins cannot read responses of /admin.
            head.cross_origin = self._cross_origin.lines(head) or (VARY if is_metadata else b"")
            if self._cross_origin.is_preflight(head):
                handler = self._cross_origin
        head.routed = self._host_check.edition, handler
        return handler


class AdminRouter:
    """Routes every request to the admin application; used if the admin page has an address of its own."""

    def __init__(self, host_check: HostCheck, application: Handler) -> None:
        self._host_check = host_check
        self._application = application

    def route(self, head: RequestHead) -> Handler:
        """Return the admin application.

        Raises:
            RequestRefused: The request's Host or Origin is not allowed.
        """
        self._host_check.check(head)
        return self._application


class AuthenticatedCaller(Struct, frozen=True, gc=False, eq=False):
    """The authenticated caller of a request.

    Attributes:
        account: The account to charge.
        profile: The profile that the path names.
        modern: False if the protocol version in the headers is absent or before MCP 2026-07-28.
    """

    account: Account
    principal: Principal
    profile: str
    modern: bool


class ParsedHeaderBlock(Struct, gc=False, eq=False, kw_only=True):
    """A parsed header block, from which the caller is authenticated. Requests with equal headers share one object.

    Attributes:
        profile: The profile that the path names, which may not exist.
        authorization: The Authorization header.
        modern: False if the protocol version in the headers is absent or before MCP 2026-07-28.
        version: The protocol version in the headers; empty if absent.
        is_supported: Whether `version` is one of the supported versions, 2026-07-28 or later.
        method: The JSON-RPC method in the headers; empty if absent.
        name: The name of the requested item in the headers; None if absent or if it cannot be decoded.
        session_id: The session id in the headers; None if absent.
        takes_json, streams: Whether the response may be JSON, and whether it may be an event stream.
        cached_caller: The caller that was last authenticated from this header block.
        profiles, dropped_accounts: The profiles, and the number of dropped accounts, when `cached_caller` was computed.
    """

    profile: str
    authorization: str | None
    modern: bool
    version: str
    is_supported: bool
    method: str
    name: str | None
    session_id: str | None
    takes_json: bool = True
    streams: bool = True
    cached_caller: AuthenticatedCaller | None = None
    profiles: object = None
    dropped_accounts: int = 0


class UnverifiedCaller(NamedTuple):
    """The sender of a request whose credentials the issuer has to verify. Until then, `account` is charged."""

    account: Account
    credentials: UnverifiedCredentials
    profile: str
    modern: bool


class Callers:
    """Authenticates callers and records rejected credentials.

    Args:
        quotas: The accounts of callers.
        resource: Creates the responses to rejected credentials.
        audit: The audit log.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        views: ProfileViews,
        quotas: Quotas,
        resource: ProtectedResource,
        audit: Audit,
    ) -> None:
        self._authenticator = authenticator
        self._views = views
        self._quotas = quotas
        self._resource = resource
        self._audit = audit

    def parse_head(self, head: RequestHead, *, modern: bool) -> ParsedHeaderBlock:
        """Parse a header block without authenticating the caller."""
        path = head.path if b"%" not in head.path else unquote(head.path.decode("latin-1")).encode("latin-1", "replace")
        authorization = None if head.raw(b"authorization") is None else head.text(b"authorization")
        version = head.text(b"mcp-protocol-version")
        return ParsedHeaderBlock(
            # Accept a trailing slash, because a redirect would make clients drop the body of their POST.
            profile=path[5:].decode("latin-1").removesuffix("/") or DEFAULT_PROFILE,
            authorization=authorization,
            modern=modern,
            version=version,
            is_supported=version in MODERN_VERSIONS,
            method=head.text(b"mcp-method"),
            name=None if head.raw(b"mcp-name") is None else _decode_name(head.text(b"mcp-name")),
            session_id=session_id_in(head),
        )

    def admit(
        self, header_block: ParsedHeaderBlock, head: RequestHead, peer: str
    ) -> AuthenticatedCaller | UnverifiedCaller:
        """Authenticate the caller of a request.

        Raises:
            RequestRefused: The credentials are invalid, or the caller may not use this profile.
        """
        quotas, profiles = self._quotas, self._views.profiles
        authenticated = self._authenticator.principal(header_block.authorization)
        cached_caller = header_block.cached_caller
        if (
            # Fast path: none of the inputs has changed (compared by identity).
            cached_caller is not None
            and cached_caller.principal is authenticated
            and header_block.profiles is profiles
            and header_block.dropped_accounts == quotas.dropped
            and cached_caller.account.groups is cached_caller.principal.groups
        ):
            return cached_caller
        profile = header_block.profile
        if isinstance(authenticated, Principal):
            if profile in profiles and authenticated.may_enter(profile):
                caller = AuthenticatedCaller(quotas.account(authenticated), authenticated, profile, header_block.modern)
                header_block.cached_caller = caller
                header_block.profiles, header_block.dropped_accounts = profiles, quotas.dropped
                return caller
            raise self._reject_profile(authenticated, head, peer, profile)
        if isinstance(authenticated, Refusal):
            raise self._reject_credentials(authenticated, head, peer, profile)
        return UnverifiedCaller(self._quotas.anonymous, authenticated, profile, header_block.modern)

    async def verify(self, unproven: UnverifiedCaller, head: RequestHead, peer: str) -> AuthenticatedCaller:
        """Verify the credentials of a request by asking their issuer.

        Raises:
            RequestRefused: The credentials are invalid, or the caller may not use this profile.
        """
        verified = await unproven.credentials.verify()
        if isinstance(verified, Refusal):
            raise self._reject_credentials(verified, head, peer, unproven.profile)
        profile = unproven.profile
        if profile in self._views.profiles and verified.may_enter(profile):
            return AuthenticatedCaller(self._quotas.account(verified), verified, profile, unproven.modern)
        raise self._reject_profile(verified, head, peer, profile)

    def _reject_profile(self, principal: Principal, head: RequestHead, peer: str, profile: str) -> RequestRefused:
        # Profiles are checked after authentication, so that unauthenticated callers cannot find out the profile names.
        if principal.issuer and not principal.may_enter(profile):
            # Report an invalid token, so that the client requests a token for this profile.
            refusal = Refusal(
                error="invalid_token",
                description="the token is for another profile of this gateway",
                bearer_of_token=True,
            )
            return self._reject_credentials(refusal, head, peer, profile, principal.name)
        return RequestRefused(404, "there is no such profile")

    def _reject_credentials(
        self, refusal: Refusal, head: RequestHead, peer: str, profile: str, name: str | None = None
    ) -> RequestRefused:
        if refusal.status != 503:
            reason = refusal.error or ("missing" if head.raw(b"authorization") is None else "not valid")
            self._audit.credentials_refused(head.path.decode("latin-1"), peer, reason, principal=name)
        return self._resource.refused(refusal, head, profile)


def session_id_in(head: RequestHead) -> str | None:
    """Return the session id in the headers; None if absent."""
    return None if head.raw(b"mcp-session-id") is None else head.text(b"mcp-session-id")


def _decode_name(value: str) -> str | None:
    if not value.startswith("=?base64?"):
        return value
    # Imported lazily: importing the SDK takes 0.1 s, and few names are encoded.
    from mcp.shared.inbound import decode_header_value

    # The SDK raises an error for non-ASCII values, which any unauthenticated peer may send.
    return decode_header_value(value) if value.isascii() else None


def check_agreement(header_block: ParsedHeaderBlock, method: str, params: dict[str, Any]) -> None:
    """Check that headers and body of a request agree (MCP 2026-07-28, Streamable HTTP, "Server Validation").

    Args:
        header_block: The parsed headers.
        method: The method in the body.
        params: The parameters in the body.

    Raises:
        RpcError: Headers and body disagree, or the required members of `_meta` are missing or invalid.
    """
    meta = params.get("_meta")
    if (
        header_block.is_supported
        and header_block.method == method
        and type(meta) is dict
        and meta.get(VERSION_KEY) == header_block.version
        and type(meta.get(CAPABILITIES_KEY)) is dict
    ):
        named_item = params.get(NAMED_BY.get(method, ""))
        if named_item is None or named_item == header_block.name:
            return
    # Slow path: find the error to report, in the order of the checks in the specification.
    claimed = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if isinstance(claimed, str) and header_block.version != claimed:
        raise RpcError(HEADER_MISMATCH, "MCP-Protocol-Version does not match the request's protocol version")
    modern = is_modern(params)  # if false, `check_envelope` below reports the missing `_meta` members
    if modern and header_block.method != method:
        raise RpcError(HEADER_MISMATCH, "Mcp-Method does not match the request's method")
    key = NAMED_BY.get(method)
    named_item = params.get(key) if key is not None and modern else None
    if named_item is not None and header_block.name != named_item:
        raise RpcError(HEADER_MISMATCH, f"Mcp-Name does not match params.{key}")
    check_envelope(params)


def check_param_headers(head: RequestHead, view: View, params: dict[str, Any]) -> None:
    """Check the headers that repeat arguments of a tool call (MCP 2026-07-28, "Tools", "x-mcp-header").

    Raises:
        RpcError: A header is missing, or differs from its argument.
    """
    name, arguments = params.get("name"), params.get("arguments")
    entry = view.entry(name) if isinstance(name, str) else None
    if entry is None or not entry.wrapper.headers:
        return
    # Imported lazily: importing the SDK takes 0.1 s, and few tools have such headers.
    from mcp.shared.inbound import validate_mcp_param_headers

    # Use the definition that the caller sees. `x-mcp-header` annotations may have been removed from it for this host.
    arguments = arguments if isinstance(arguments, dict) else {}
    rejection = validate_mcp_param_headers(entry.definition["inputSchema"], arguments, head.texts())
    if rejection is not None:
        raise RpcError(rejection.code, rejection.message, rejection.data)
