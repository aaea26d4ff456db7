"""What is kept of one sign-in. Everything in it belongs to one issuer: of another nothing is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.upstream.oauth.clients import Client
from gateway.upstream.oauth.discovery import ServerMetadata
from gateway.upstream.oauth.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSignIn:
    """One sign-in; each attribute is empty where nothing is known.

    Attributes:
        issuer: The authorization server.
        resource: What tokens are asked for.
        supported: The scopes that the resource names.
        scopes: What the present tokens were asked for.
        wanted: What the next ones are to be asked for in addition.
        server: What the authorization server says of itself.
        client: How it knows us.
        tokens: What it has given.
        signed_in_at_s, refreshed_at_s: When, by the wall clock.
        step_ups: When more scopes were asked for without a person.
        signed_out: Somebody has ended it.
        kind: The `auth.type` by which it was obtained.
        proof_key: The private key, in PEM, that tokens are bound to; None where they are bearer tokens.
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

    def without_tokens(self, *, signed_out: bool = False, client: bool = True) -> KeptSignIn:
        """The same after its tokens have ended; without its client where that is unknown at the server."""
        return KeptSignIn(
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
        """Whether it was obtained as an entry says today: nothing of another issuer or client is used."""
        issuer, client_id, client = config.issuer, config.client_id, self.client
        if self.issuer is not None and issuer is not None and self.issuer.rstrip("/") != issuer.rstrip("/"):
            return False
        if client is not None and client.client_id != (client_id or client.client_id):
            return False
        # A client that the operator has taken out of the entry is not to be used any more.
        if client is not None and client.origin == "configured" and client_id is None and config.interactive:
            return False
        return self.tokens is None or self.kind == config.type

    def row(self, config: SignInConfig) -> dict[str, Any]:
        """What administrators are shown of it; no secret."""
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
        """As it is kept; names are for who looks at it."""
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
    def of_document(cls, document: Mapping[str, Any]) -> KeptSignIn:
        """Read what `document` has written.

        Raises:
            KeyError, TypeError: It was not written by this version.
        """
        server, client, tokens = document.get("server"), document.get("client"), document.get("tokens")
        supported = document.get("supported")
        return cls(
            issuer=document.get("issuer"),
            resource=document.get("resource", ""),
            supported=tuple(supported) if supported is not None else None,
            scopes=tuple(document.get("scopes") or ()),
            wanted=tuple(document.get("wanted") or ()),
            server=_server(server) if server is not None else None,
            client=Client.of_document(client) if client is not None else None,
            tokens=Tokens.of_document(tokens) if tokens is not None else None,
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
