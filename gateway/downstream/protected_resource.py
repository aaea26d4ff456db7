"""Protected resource metadata (RFC 9728) and `WWW-Authenticate` challenges for callers without a valid token.

Sources: RFC 9728 "OAuth 2.0 Protected Resource Metadata"; RFC 6750, section 3 "The WWW-Authenticate Response Header
Field"; MCP 2026-07-28, "Authorization", "Protected Resource Metadata Discovery Requirements".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gateway.access.principal import Refusal
from gateway.config.auth_config import OAuthConfig, base_of
from gateway.http.http_request import Fields, RequestHead, RequestRefused
from gateway.http.responder import Responder
from gateway.protocol import json_bytes
from registry.views.profile import DEFAULT_PROFILE

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
