"""Where the metadata of a protected upstream is, and what of it is believed. Pure.

Sources: RFC 9728, RFC 8414; MCP 2025-11-25, "Authorization", "Authorization Server Discovery".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.upstream.oauth.challenges import Challenge

_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_SERVER: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
# Entries of one list in metadata that are looked at; servers in use name a dozen at most.
_MAX_ENTRIES: Final = 200
_MAX_CHARS: Final = 2_048


class MetadataRefused(ValueError):
    """What an upstream or an authorization server says of itself must not be relied on; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMetadata:
    """What a protected upstream says of itself.

    Attributes:
        resource: What tokens are to be for.
        authorization_servers: The issuers that it takes tokens of, the first being its choice; empty where it names
            none, as servers do that have their own.
        scopes_supported: None where it does not say.
        wants_proof: It takes only tokens that are presented with a proof of possession (RFC 9449, section 5.2).
    """

    resource: str
    authorization_servers: tuple[str, ...]
    scopes_supported: tuple[str, ...] | None
    wants_proof: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """What an authorization server says of itself.

    Attributes:
        auth_methods: How clients may prove themselves at the token endpoint; None where it does not say.
        names_issuer: Its answers to the browser name the issuer (RFC 9207).
        takes_client_documents: The URL of a document may be the id of a client.
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
    """The URL of an upstream as the name of a resource: without query and fragment, scheme and host in lower case.

    Source: MCP 2025-11-25, "Authorization", "Canonical Server URI".
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}.get(parts.scheme)
    port = f":{parts.port}" if parts.port is not None and parts.port != default else ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL."""
    return canonical_resource(urlsplit(url)._replace(path="").geturl())


def resource_metadata_urls(url: str, challenge: Challenge | None) -> tuple[str, ...]:
    """Where the metadata of an upstream may be, in the order in which it is looked for."""
    parts = urlsplit(url)
    origin, path = origin_of(url), parts.path.rstrip("/")
    named = challenge.resource_metadata if challenge is not None else None
    candidates = (named, f"{origin}{_RESOURCE}{path}", f"{origin}{_RESOURCE}")
    return tuple(dict.fromkeys(one for one in candidates if one))


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where the metadata of an authorization server may be, in the order in which it is looked for.

    Source: MCP 2025-11-25, "Authorization", "Authorization Server Metadata Discovery". The last three are where servers
    in use have them beside that; the issuer in the document has to be the one that was asked for, wherever it is.
    """
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return f"{origin}{_SERVER}", f"{origin}{_OPENID}"
    required = (f"{origin}{_SERVER}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}")
    return *required, f"{origin}{path}{_SERVER}", f"{origin}{_SERVER}", f"{origin}{_OPENID}"


def read_resource_metadata(document: object, url: str) -> ResourceMetadata:
    """Read the metadata of the upstream at this URL.

    Raises:
        MetadataRefused: It is for another resource.
    """
    if not isinstance(document, dict):
        raise MetadataRefused("the metadata of the resource is no object")
    resource = document.get("resource")
    if not isinstance(resource, str) or not covers(resource, url):
        named = _shown(resource) if isinstance(resource, str) else "none"
        raise MetadataRefused(f"its metadata is for another resource ({named})")
    return ResourceMetadata(
        resource=resource,
        authorization_servers=_texts(document, "authorization_servers") or (),
        scopes_supported=_texts(document, "scopes_supported"),
        wants_proof=document.get("dpop_bound_access_tokens_required") is True,
    )


def covers(resource: str, url: str) -> bool:
    """Whether a token for this resource is one for this URL: the same, or a path above it, on the same origin."""
    try:
        if urlsplit(resource).fragment or origin_of(resource) != origin_of(url):
            return False
        above, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    except ValueError:
        return False
    return path == above or path.startswith(f"{above}/")


def read_server_metadata(document: object, issuer: str, *, interactive: bool) -> ServerMetadata:
    """Read the metadata of the authorization server that was asked for by this issuer.

    Args:
        document: What was found.
        issuer: Compared without normalising (RFC 8414, section 3.3).
        interactive: Somebody is to sign in there, for which it needs more than a token endpoint.

    Raises:
        MetadataRefused: It is another server's, or lacks what a sign-in needs.
    """
    if not isinstance(document, dict):
        raise MetadataRefused("the metadata of the authorization server is no object")
    named = document.get("issuer")
    if named != issuer:
        hint = ""
        if isinstance(named, str) and named.rstrip("/") == issuer.rstrip("/"):
            hint = f'; if it is meant, write `"auth": {{"issuer": "{_shown(named)}"}}` into the entry of the server'
        raise MetadataRefused(
            f"the metadata found for {_shown(issuer)} is that of another issuer ({_shown(named)}){hint}"
        )
    token_endpoint = _url(document, "token_endpoint")
    if token_endpoint is None:
        raise MetadataRefused("the authorization server names no token endpoint")
    pkce = _texts(document, "code_challenge_methods_supported") or ()
    authorization_endpoint = _url(document, "authorization_endpoint")
    if interactive:
        if authorization_endpoint is None:
            raise MetadataRefused("the authorization server names no authorization endpoint")
        # MCP 2025-11-25, "Authorization", "Authorization Code Protection": without it clients MUST refuse.
        if "S256" not in pkce:
            raise MetadataRefused("the authorization server does not say that it supports PKCE with S256")
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
        raise MetadataRefused(f"its {name} is no URL")
    return value


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = document.get(name)
    if not isinstance(value, list):
        return None
    sound = (one for one in value[:_MAX_ENTRIES] if isinstance(one, str) and one and len(one) <= _MAX_CHARS)
    return tuple(dict.fromkeys(one for one in sound if one.isascii() and one.isprintable()))


def _shown(value: object) -> str:
    # It is somebody else's text in our message.
    return str(value)[:200] if isinstance(value, str) else "none"
