"""`auth` of an upstream: how the gateway signs in to it."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from gateway.config.section import Section, fault, is_http_url

SignInType = Literal["oauth", "clientCredentials", "tokenExchange", "enterprise", "jwtBearer", "none"]
ClientAuth = Literal["none", "basic", "post", "privateKeyJwt"]


def _words(value: object) -> object:
    """Read scopes as a list, or as one text with spaces, which is how servers document them."""
    return value.split() if isinstance(value, str) else value


Words = Annotated[
    list[str],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]

# What each type cannot do without, and what only it uses.
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "oauth": (),
    "none": (),
    "clientCredentials": ("client_id",),
    "tokenExchange": ("client_id",),
    "enterprise": ("client_id", "idp_token_endpoint"),
    "jwtBearer": ("assertion",),
}
_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "client_metadata_url": ("oauth",),
    "redirect_uri": ("oauth",),
    "per_user": ("oauth", "tokenExchange", "enterprise"),
    "subject_token": ("tokenExchange",),
    "subject_token_type": ("tokenExchange", "enterprise"),
    "audience": ("tokenExchange",),
    "id_token": ("enterprise",),
    "idp_token_endpoint": ("enterprise",),
    "idp_client_id": ("enterprise",),
    "idp_client_secret": ("enterprise",),
    "assertion": ("jwtBearer",),
}


_EXCHANGED: Final = ("tokenExchange", "enterprise")


class SignInConfig(Section):
    """How the gateway signs in to this server."""

    type: SignInType = "oauth"
    """oauth: somebody signs in with a browser, once. clientCredentials: the gateway itself is known there.
    tokenExchange: a token of another issuer is exchanged. enterprise: an identity assertion of the company's identity
    provider. jwtBearer: a signed assertion, as a platform gives it to its workloads. none: never."""
    client_id: str | None = Field(default=None, min_length=1)
    """What the authorization server knows the gateway by. By default it registers itself."""
    client_secret: str | None = Field(default=None, min_length=1, repr=False)
    """Secret of that client."""
    client_auth: ClientAuth | None = None
    """How the client proves itself; by default as its authorization server takes it."""
    private_key: str | None = Field(default=None, min_length=1, repr=False)
    """Private key of that client in PEM, as `${file:/path/key.pem}`, in place of a secret."""
    key_id: str | None = Field(default=None, min_length=1)
    """`kid` of the private key."""
    algorithm: str | None = Field(default=None, min_length=1)
    """What the private key signs with, as ES256; by default by its kind."""
    client_metadata_url: str | None = None
    """URL of a client id metadata document for the gateway; by default its own, where `gateway.publicUrl` is https."""
    redirect_uri: str | None = None
    """Where browsers come back to, for a client that was registered with another address than /oauth/callback here."""
    scopes: Words = Field(default_factory=list)
    """Scopes to ask for; by default those that the server names. A list, or one text with spaces."""
    issuer: str | None = None
    """The only authorization server to use; by default the one that the server names."""
    resource: bool | str = True
    """The resource indicator (RFC 8707) of what is asked for: by default what the server says of itself. `false` for
    authorization servers that refuse the parameter, as Microsoft Entra ID does beside scopes of its own; a text is sent
    as it is."""
    per_user: bool = False
    """Whether each caller signs in for itself: with gateway.auth by its key or token, else whoever is on this machine.
    Each has its own connection, and sees what the server lists to it alone. For tokenExchange and enterprise: the
    access token of each caller is exchanged, and never passed on; so it is without subjectToken or idToken."""
    private_hosts: list[str] = Field(default_factory=list)
    """Names, addresses or networks that the sign-in may reach although they are private, also by plain http."""
    subject_token: str | None = Field(default=None, min_length=1, repr=False)
    """tokenExchange: what is exchanged, as `${file:/var/run/secrets/token}`; by default the token of each caller."""
    subject_token_type: str = "access_token"
    """tokenExchange: its type: access_token, id_token, jwt, or a whole URN. enterprise: the same of a caller's."""
    audience: str | None = None
    """tokenExchange: whom the token is to be for, beside the server's URL."""
    id_token: str | None = Field(default=None, min_length=1, repr=False)
    """enterprise: the identity token, as `${file:/path}`; by default the token of each caller."""
    idp_token_endpoint: str | None = None
    """enterprise: token endpoint of the identity provider."""
    idp_client_id: str | None = None
    """enterprise: what the identity provider knows the gateway by; by default as clientId."""
    idp_client_secret: str | None = Field(default=None, min_length=1, repr=False)
    """enterprise: secret of that client."""
    assertion: str | None = Field(default=None, min_length=1, repr=False)
    """jwtBearer: the assertion, as `${file:/var/run/secrets/tokens/identity}`."""

    @field_validator("client_metadata_url", "redirect_uri", "issuer", "idp_token_endpoint")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url is not None and (not is_http_url(url) or urlsplit(url).fragment):
            raise fault("is no absolute http or https URL", "a URL as https://example.test/path")
        return url

    @field_validator("resource")
    @classmethod
    def _is_a_resource(cls, resource: bool | str) -> bool | str:
        if isinstance(resource, str) and (not resource or not resource.isascii() or not resource.isprintable()):
            raise fault("is no resource", "false, true, or a URI as https://example.test/mcp")
        return resource

    @model_validator(mode="after")
    def _fits_its_type(self) -> SignInConfig:
        for name in _NEEDED[self.type]:
            if getattr(self, name) is None:
                raise fault(f"is missing, and {self.type} needs it", "a value", key=_key(name))
        for name, types in _ONLY.items():
            if name in self.model_fields_set and self.type not in types:
                raise fault(f"means nothing for {self.type}", f"auth.type {' or '.join(types)}", key=_key(name))
        given = "subject_token" if self.type == "tokenExchange" else "id_token"
        if self.type in _EXCHANGED and self.per_user and getattr(self, given) is not None:
            raise fault("stands beside perUser", "one of the two", key=_key(given))
        if self.client_secret is not None and self.private_key is not None:
            raise fault("stands beside clientSecret", "one of the two", key="privateKey")
        if self.client_id is None and (self.client_secret is not None or self.private_key is not None):
            raise fault("is missing beside clientSecret or privateKey", "the id of that client", key="clientId")
        if self.type == "clientCredentials" and self.client_secret is None and self.private_key is None:
            raise fault("is missing, and clientCredentials needs it", "it, or privateKey", key="clientSecret")
        return self

    def secrets(self) -> set[str]:
        """The values in it that no text may repeat."""
        values = (self.client_secret, self.private_key, self.subject_token, self.id_token, self.idp_client_secret)
        return {value for value in (*values, self.assertion) if value is not None}

    @property
    def exchanges_callers(self) -> bool:
        """Whether the token of each caller is exchanged."""
        given = self.subject_token if self.type == "tokenExchange" else self.id_token
        return self.type in _EXCHANGED and given is None

    @property
    def is_per_user(self) -> bool:
        """Whether each caller has credentials of its own."""
        return self.per_user or self.exchanges_callers

    @property
    def interactive(self) -> bool:
        """Whether a person has to sign in."""
        return self.type == "oauth"


def _key(name: str) -> str:
    return str(SignInConfig.model_fields[name].alias)
