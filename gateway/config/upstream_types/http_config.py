"""Upstreams of the types http and sse, and the headers and credentials that other HTTP upstreams share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from gateway.config.section import OptionalText, Text, WrittenText, fault, is_http_url
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.sign_in_config import SignInConfig
from gateway.config.upstream_types.stdio_config import command_and_url
from gateway.process.secrets import secrets_in, split_credentials


def _without_nulls(value: object) -> object:
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class HeadersConfig(ServerConfig):
    """An upstream over HTTP, with configured headers and a forward proxy."""

    # These keys are not part of the identity, which is stored on disk, because they may contain credentials.
    connection = (*ServerConfig.connection, "headers", "proxy")

    headers: Annotated[dict[str, Text], BeforeValidator(_without_nulls)] = Field(default_factory=dict, repr=False)
    """http, sse, graphql, openapi: HTTP headers to send with every request, as in
    `{Authorization: "Bearer ${TOKEN}"}`."""

    proxy: str | Literal[False] | None = Field(default=None, repr=False)
    """http, sse, graphql, openapi: forward proxy for this server, such as http://proxy.example.test:3128; `false` for
    none. By default HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY of the environment apply."""
    # The user and password in the percent-encoded form of the URL, so that this form is redacted from messages, too.
    _url_secrets: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def proxy_choice(self) -> str | Literal[False] | None:
        return self.proxy

    @property
    def authenticated(self) -> bool:
        return any(name.lower() in ("authorization", "x-api-key") for name in self.headers)

    def secrets(self) -> set[str]:
        return super().secrets() | self._url_secrets

    @model_validator(mode="wrap")
    @classmethod
    def _move_credentials_of_url(cls, entry: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Move the user and password of a URL to an Authorization header, since messages show the URL."""
        keys = [
            key for key in ("url", "endpoint", "baseUrl") if isinstance(entry, dict) and isinstance(entry.get(key), str)
        ]
        urls = {key: entry[key] for key in keys if "@" in entry[key] and is_http_url(entry[key])}
        for key in urls:
            entry = _with_basic(entry, key)
        config = validate(entry)
        config._url_secrets = frozenset(secrets_in(urls))  # noqa: SLF001 - an instance of this class
        return config

    @field_validator("proxy", mode="before")
    @classmethod
    def _is_a_proxy(cls, proxy: object) -> object:
        if proxy is None or proxy is False:
            return proxy
        url = proxy if isinstance(proxy, str) else ""
        if not is_http_url(url if "://" in url else f"http://{url}"):
            raise fault("is not a valid proxy", "a URL such as http://proxy.example.test:3128, or false")
        return url

    @field_validator("headers")
    @classmethod
    def _headers_fit_on_a_line(cls, headers: dict[str, str]) -> dict[str, str]:
        # A line break in a value would inject further headers into every request.
        for name, value in headers.items():
            if not name or not name.isascii() or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name):
                raise fault("is not a valid header name", "letters, digits and -", key=name)
            if not (value.isascii() and value.isprintable()):
                raise fault("has characters that a header cannot contain", "one line of ASCII text", key=name)
        return headers


def _with_basic(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the entry with the user and password of its URL moved to an Authorization header.

    User and password are dropped if the entry has an Authorization header or another way to sign in.
    """
    url, authorization = split_credentials(entry[key])
    entry = {**entry, key: url}
    headers, auth = entry.get("headers") or {}, entry.get("auth")
    signs_in = entry.get("headersCommand") is not None or (auth is not None and auth not in ("none", {"type": "none"}))
    if authorization is None or signs_in or not isinstance(headers, dict):
        return entry
    if not any(str(name).lower() == "authorization" for name in headers):
        entry["headers"] = {**headers, "Authorization": authorization}
    return entry


def check_url(url: str, key: str, example: str) -> None:
    """Raise an error from `fault` if `url` is not an absolute http or https URL."""
    expected = f"an absolute URL such as {example}"
    if not url:
        raise fault("is missing or empty", expected, key=key)
    if not is_http_url(url):
        raise fault("is not an absolute http or https URL", expected, key=key)


def _type_as_object(value: object) -> object:
    """Read a string as the `type` of the sign-in, which is how other programs write it."""
    return {"type": value} if isinstance(value, str) else value


class CredentialsConfig(HeadersConfig):
    """An upstream over HTTP to which the gateway can sign in, or for which a program prints headers."""

    connection = (*HeadersConfig.connection, "auth", "headers_command", "headers_env")

    auth: Annotated[SignInConfig | None, BeforeValidator(_type_as_object)] = None
    """http, sse, openapi: how the gateway signs in to the server. By default, a user signs in with a browser if an MCP
    server requires a sign-in and no Authorization header is configured. For openapi, the default is no sign-in."""
    headers_command: str | list[str] | None = Field(default=None, repr=False)
    """http, sse, openapi: program that prints additional headers, as a JSON object or as lines of `Name: value`. It
    runs before the first request, and again when the server answers 401. It inherits the same environment variables as
    the program of a stdio server, plus `headersEnv`."""
    headers_env: dict[str, OptionalText] = Field(default_factory=dict, repr=False)
    """http, sse, openapi: environment variables for `headersCommand`, as in `{VAULT_ADDR: "${VAULT_ADDR}"}`."""

    @property
    def authenticated(self) -> bool:
        return (
            super().authenticated
            or self.headers_command is not None
            or (self.auth is not None and self.auth.type != "none")
        )

    @property
    def sign_in(self) -> SignInConfig | None:
        """How to sign in if the server requires it; None if the gateway must not sign in."""
        if self.auth is not None:
            return None if self.auth.type == "none" else self.auth
        has_header = any(name.lower() == "authorization" for name in self.headers)
        return None if has_header or self.headers_command is not None else SignInConfig()

    @property
    def per_user(self) -> bool:
        return self.sign_in is not None and self.sign_in.is_per_user

    @property
    def exchanges_callers(self) -> bool:
        return self.sign_in is not None and self.sign_in.exchanges_callers

    @property
    def local_keys(self) -> tuple[str, ...]:
        return () if self.headers_command is None else ("headersCommand",)

    def secrets(self) -> set[str]:
        # Client ids appear in links that people open, so they are not secret, even if they look random.
        without_auth = self.model_copy(update={"auth": None})
        return super(CredentialsConfig, without_auth).secrets() | (
            self.auth.secrets() if self.auth is not None else set()
        )

    def launch_identity(self, folder: Path | None) -> str:
        # The issuer is included, because another issuer at the same address means other user accounts.
        origin = super().launch_identity(folder)
        return f"{origin} issuer:{self.auth.issuer}" if self.auth is not None and self.auth.issuer else origin

    def check_credentials(self) -> None:
        """Raise an error from `fault` if two sources of credentials contradict each other."""
        if self.headers_command is not None:
            if not self.headers_command or not self.headers_command[0].strip():
                raise fault("is empty", "a program and its arguments", key="headersCommand")
            if self.auth is not None:
                raise fault("cannot be combined with auth", "one of the two", key="headersCommand")
        if self.auth is not None and self.auth.type != "none":
            header = next((name for name in self.headers if name.lower() == "authorization"), None)
            if header is not None:
                raise fault("conflicts with auth, which sets this header", "one of the two", key=f"headers.{header}")


class UrlConfig(CredentialsConfig):
    """An MCP server on the network."""

    # The identity does not include the type: the connector chooses http or sse as the transport to the same server.
    identity = ("url",)

    url: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """http, sse: URL of the MCP endpoint."""

    @property
    def address(self) -> str:
        return self.url

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        if entry.get("command") is not None:
            raise command_and_url() if self.url else fault(f"is {self.type}, which has no command", "stdio", key="type")
        check_url(self.url, "url", "https://example.test/mcp")
        self.check_credentials()


class HttpConfig(UrlConfig):
    """An MCP server at a URL, over Streamable HTTP with a fallback to SSE."""

    connector = "gateway.upstream.mcp_connectors:HttpConnector"
    inferred_from = "url"
    spellings = frozenset({"streamable-http", "streamable_http", "streamablehttp"})

    type: Literal["http"] = "http"


class SseConfig(UrlConfig):
    """An MCP server at a URL, over the SSE transport of protocol version 2024-11-05."""

    connector = "gateway.upstream.mcp_connectors:SseConnector"

    type: Literal["sse"] = "sse"
