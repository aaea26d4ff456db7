"""`auth` of an upstream: how the gateway signs in to it."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from gateway.config.section import Section, fault, is_http_url

SignInType = Literal["oauth", "clientCredentials", "tokenExchange", "enterprise", "jwtBearer", "none"]
ClientAuth = Literal["none", "basic", "post", "privateKeyJwt"]


def _words(value: object) -> object:
    """Split a string at spaces, which is how servers document scopes."""
    return value.split() if isinstance(value, str) else value


Words = Annotated[
    list[str],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]

# `_NEEDED`: the fields that each type requires. `_ONLY`: the types for which a field has an effect.
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
    """How the gateway signs in to a server."""

    type: SignInType = "oauth"
    """Grant to use. oauth: a user signs in once with a browser (authorization code). clientCredentials: the gateway
    signs in as itself. tokenExchange: a token of another issuer is exchanged (RFC 8693). enterprise: an identity
    assertion of the company's identity provider is used. jwtBearer: a signed assertion is used, such as one that a
    platform issues to its workloads (RFC 7523). none: the gateway never signs in."""
    client_id: str | None = Field(default=None, min_length=1)
    """Client id at the authorization server. By default the gateway registers itself."""
    client_secret: str | None = Field(default=None, min_length=1, repr=False)
    """Client secret at the authorization server."""
    client_auth: ClientAuth | None = None
    """Client authentication at the token endpoint: none, basic, post or privateKeyJwt. By default a method that the
    authorization server supports."""
    private_key: str | None = Field(default=None, min_length=1, repr=False)
    """Private key of the client in PEM format, such as `${file:/path/key.pem}`, instead of a client secret."""
    key_id: str | None = Field(default=None, min_length=1)
    """`kid` of the private key."""
    algorithm: str | None = Field(default=None, min_length=1)
    """Signature algorithm of the private key, such as ES256. By default it depends on the type of the key."""
    client_metadata_url: str | None = None
    """URL of a client id metadata document to use as the client id. By default the gateway serves its own, if
    `gateway.publicUrl` is an https URL."""
    redirect_uri: str | None = None
    """Redirect URI, for a client that is registered with a URI other than /oauth/callback of the gateway."""
    scopes: Words = Field(default_factory=list)
    """Scopes to request, as a list or as one string with spaces. By default the scopes that the server names."""
    issuer: str | None = None
    """Issuer identifier of the only authorization server to use. By default the server names it."""
    resource: bool | str = True
    """Resource indicator (RFC 8707) to send. true: the resource that the server's metadata names. false: none, for
    authorization servers that reject the parameter, as Microsoft Entra ID does in combination with its own scopes. A
    string is sent unchanged."""
    per_user: bool = False
    """Whether each caller signs in separately. Callers are distinguished by their key or token (`gateway.auth`);
    without authentication, all callers count as the user of this machine. Each caller has a separate connection and
    sees only what the server lists for this caller. With tokenExchange and enterprise, the access token of each caller
    is exchanged and never forwarded; `perUser` is implied if `subjectToken` or `idToken` is not given."""
    private_hosts: list[str] = Field(default_factory=list)
    """Private host names, addresses or networks that the sign-in may contact, also over plain http."""
    subject_token: str | None = Field(default=None, min_length=1, repr=False)
    """tokenExchange: token to exchange, such as `${file:/var/run/secrets/token}`. By default the token of each
    caller."""
    subject_token_type: str = "access_token"
    """tokenExchange: type of the subject token: access_token, id_token, jwt, or a full URN. enterprise: type of the
    caller's token."""
    audience: str | None = None
    """tokenExchange: audience to request in addition to the server's URL."""
    id_token: str | None = Field(default=None, min_length=1, repr=False)
    """enterprise: identity token, such as `${file:/path}`. By default the token of each caller."""
    idp_token_endpoint: str | None = None
    """enterprise: token endpoint of the identity provider."""
    idp_client_id: str | None = None
    """enterprise: client id at the identity provider. By default `clientId`."""
    idp_client_secret: str | None = Field(default=None, min_length=1, repr=False)
    """enterprise: client secret at the identity provider."""
    assertion: str | None = Field(default=None, min_length=1, repr=False)
    """jwtBearer: assertion, such as `${file:/var/run/secrets/tokens/identity}`."""

    @field_validator("client_metadata_url", "redirect_uri", "issuer", "idp_token_endpoint")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url is not None and (not is_http_url(url) or urlsplit(url).fragment):
            raise fault("is not an absolute http or https URL", "a URL such as https://example.test/path")
        return url

    @field_validator("resource")
    @classmethod
    def _is_a_resource(cls, resource: bool | str) -> bool | str:
        if isinstance(resource, str) and (not resource or not resource.isascii() or not resource.isprintable()):
            raise fault("is not a valid resource", "false, true, or a URI such as https://example.test/mcp")
        return resource

    @model_validator(mode="after")
    def _matches_type(self) -> SignInConfig:
        for name in _NEEDED[self.type]:
            if getattr(self, name) is None:
                raise fault(f"is missing, and {self.type} needs it", "a value", key=_key(name))
        for name, types in _ONLY.items():
            if name in self.model_fields_set and self.type not in types:
                raise fault(f"has no effect for {self.type}", f"auth.type {' or '.join(types)}", key=_key(name))
        token_field = "subject_token" if self.type == "tokenExchange" else "id_token"
        if self.type in _EXCHANGED and self.per_user and getattr(self, token_field) is not None:
            raise fault("cannot be combined with perUser", "one of the two", key=_key(token_field))
        if self.client_secret is not None and self.private_key is not None:
            raise fault("cannot be combined with clientSecret", "one of the two", key="privateKey")
        if self.client_id is None and (self.client_secret is not None or self.private_key is not None):
            raise fault("is missing, but clientSecret or privateKey is given", "the client id", key="clientId")
        if self.type == "clientCredentials" and self.client_secret is None and self.private_key is None:
            raise fault("is missing, and clientCredentials needs it", "clientSecret or privateKey", key="clientSecret")
        return self

    def secrets(self) -> set[str]:
        """Return the values that must not appear in any output."""
        values = (self.client_secret, self.private_key, self.subject_token, self.id_token, self.idp_client_secret)
        return {value for value in (*values, self.assertion) if value is not None}

    @property
    def exchanges_callers(self) -> bool:
        """True if the gateway exchanges the token of each caller."""
        fixed_token = self.subject_token if self.type == "tokenExchange" else self.id_token
        return self.type in _EXCHANGED and fixed_token is None

    @property
    def is_per_user(self) -> bool:
        """True if each caller has separate credentials."""
        return self.per_user or self.exchanges_callers

    @property
    def interactive(self) -> bool:
        """True if a person has to sign in."""
        return self.type == "oauth"


def _key(name: str) -> str:
    return str(SignInConfig.model_fields[name].alias)
