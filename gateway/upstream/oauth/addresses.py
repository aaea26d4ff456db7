"""Where this gateway is for browsers and authorization servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.config.model import GatewayConfig
from gateway.upstream.oauth.clients import CALLBACK_PATH, DOCUMENT_PATH
from gateway.upstream.oauth.discovery import origin_of

CONNECT_PATH: Final = "/oauth/connect"
"""Where callers show who they are before they sign in to a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where this gateway is for browsers and authorization servers.

    Attributes:
        redirect_uri: Where browsers come back to; None where nobody listens.
        document_url: Of our client id metadata document; None where the gateway has no public address.
        connect_url: Of the page that asks callers who they are; None where nobody listens.
    """

    redirect_uri: Callable[[], str | None] = lambda: None
    document_url: Callable[[], str | None] = lambda: None
    connect_url: Callable[[], str | None] = lambda: None


def public_url_of(settings: GatewayConfig) -> str | None:
    """Where everybody reaches the gateway; None where that is not configured."""
    if settings.public_url is None and settings.auth.oauth is not None and settings.auth.oauth.resource is not None:
        # Where callers come to get in, browsers do too.
        return origin_of(settings.auth.oauth.resource)
    return settings.public_url


def addresses_at(public_url: Callable[[], str | None], origin: Callable[[], str | None]) -> Addresses:
    """The addresses of a gateway.

    Args:
        public_url: Where everybody reaches it, as configured.
        origin: Where it listens.
    """

    def at(path: str) -> str | None:
        base = public_url() or origin()
        return f"{base.rstrip('/')}{path}" if base is not None else None

    def document_url() -> str | None:
        public = public_url()
        # What is fetched by an authorization server: it has to be reachable, and what it says to be believed.
        return f"{public.rstrip('/')}{DOCUMENT_PATH}" if public is not None and public.startswith("https:") else None

    return Addresses(
        redirect_uri=lambda: at(CALLBACK_PATH), document_url=document_url, connect_url=lambda: at(CONNECT_PATH)
    )
