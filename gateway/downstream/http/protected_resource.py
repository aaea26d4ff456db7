"""What tells a caller where to get a token: the metadata of each profile's path, and the challenge that leads there.

Sources: RFC 9728 "OAuth 2.0 Protected Resource Metadata"; RFC 6750, section 3 "The WWW-Authenticate Response Header
Field"; MCP 2026-07-28, "Authorization", "Protected Resource Metadata Discovery Requirements".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gateway import wire
from gateway.access.authenticator import Refusal
from gateway.config.issuers import OAuthConfig, base_of
from gateway.downstream.http.request import Fields, RequestHead, RequestRefused
from gateway.downstream.http.responder import Responder
from registry.views.profile import DEFAULT_PROFILE

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
# What a quoted string may hold there (RFC 6750, section 3): neither a quote nor anything that ends the header.
_NOT_QUOTABLE: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
# A sentence and an address; audiences that are configured may be many.
_MAX_DESCRIPTION_CHARS: Final = 400


class ProtectedResource:
    """This gateway as what tokens are for: one resource for each path of MCP."""

    max_body_bytes: Final = 0

    def __init__(self, oauth: Callable[[], OAuthConfig | None], profiles: Callable[[], Container[str]]) -> None:
        """Describe what is configured.

        Args:
            oauth: What is configured at present; None where no tokens are accepted.
            profiles: The names of all profiles.
        """
        self._oauth = oauth
        self._profiles = profiles

    # the metadata

    def admit(self, head: RequestHead, peer: str) -> None:
        """Refuse what is not asked for as a document.

        Raises:
            RequestRefused: There is no such document, or it is not asked for by GET.
        """
        self._document(head)
        if head.method not in (b"GET", b"HEAD"):
            raise RequestRefused(405, "expected GET", [(b"allow", b"GET, HEAD")])

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        """Send the metadata; nobody has to say who it is."""
        responder.respond(200, (wire.dumps(self._document(head)),))

    def _document(self, head: RequestHead) -> dict[str, Any]:
        oauth = self._oauth()
        if oauth is None:
            raise _nothing_here()
        base = _base(oauth, head)
        path = unquote(head.path.decode("latin-1")).removeprefix(WELL_KNOWN).rstrip("/")
        # A proxy that serves us below a path of its own passes it on, or takes it away.
        path = path.removeprefix(urlsplit(base).path)
        profile = path.removeprefix("/mcp/") if path.startswith("/mcp/") else DEFAULT_PROFILE
        if (path not in ("", "/mcp") and not path.startswith("/mcp/")) or profile not in self._profiles():
            raise _nothing_here()
        document = {
            "resource": base + (path or "/mcp"),
            "authorization_servers": [issuer.issuer for issuer in oauth.issuers],
            "bearer_methods_supported": ["header"],
        }
        # Clients ask for all that stand here: scopes that an issuer does not know would make it refuse them.
        scopes = _required_scopes(oauth)
        return {**document, "scopes_supported": scopes} if scopes else document

    # the challenge

    def refused(self, refusal: Refusal, head: RequestHead, profile: str) -> RequestRefused:
        """The response to credentials that open nothing, with where to get better ones."""
        if refusal.retry_after_s:
            fields: Fields = [(b"retry-after", b"%d" % refusal.retry_after_s)]
            return RequestRefused(refusal.status, refusal.description, fields)
        parameters: list[tuple[str, str]] = []
        oauth = self._oauth()
        if refusal.error:
            parameters += [("error", refusal.error), ("error_description", refusal.description)]
        if refusal.bearer_of_token and oauth is not None:
            base = _base(oauth, head)
            origin, prefix = base.removesuffix(urlsplit(base).path), urlsplit(base).path
            named = head.path.rstrip(b"/") != b"/mcp" and profile in self._profiles()
            path = f"/mcp/{profile}" if named else "/mcp"
            parameters.append(("resource_metadata", f"{origin}{WELL_KNOWN}{prefix}{path}"))
            if scopes := refusal.scopes or _required_scopes(oauth):
                parameters.append(("scope", " ".join(scopes)))
        text = ", ".join(f'{name}="{_quotable(value)}"' for name, value in parameters)
        challenge = f"Bearer {text}" if text else "Bearer"
        return RequestRefused(refusal.status, refusal.description, [(b"www-authenticate", challenge.encode("ascii"))])


def _base(oauth: OAuthConfig, head: RequestHead) -> str:
    """The address of this gateway as the caller sees it; without a configured one it is of this machine."""
    return base_of(oauth.resource) if oauth.resource is not None else f"http://{head.text(b'host').lower()}"


def _required_scopes(oauth: OAuthConfig) -> list[str]:
    """What tokens must have, of whichever issuer."""
    return list(dict.fromkeys(scope for issuer in oauth.issuers for scope in issuer.required_scopes))


def _quotable(text: str) -> str:
    return _NOT_QUOTABLE.sub("'", text)[:_MAX_DESCRIPTION_CHARS]


def _nothing_here() -> RequestRefused:
    return RequestRefused(404, "there is nothing here", body=b'{"error":"there is nothing here"}')
