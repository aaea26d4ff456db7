"""Upstreams of type http: Streamable HTTP, and HTTP+SSE where a server has only that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.config.section import OptionalText, WrittenText, fault
from gateway.config.upstream_types.headers_config import HeadersConfig, check_url
from gateway.config.upstream_types.sign_in import SignInConfig
from gateway.config.upstream_types.stdio_config import command_and_url


def _by_type(value: object) -> object:
    """Read a text as the type alone, as other programs write it."""
    return {"type": value} if isinstance(value, str) else value


class UrlConfig(HeadersConfig):
    """An MCP server on the network."""

    # Not the type: http and sse are two ways to the same server, which the connector finds by itself.
    identity = ("url",)
    connection = (*HeadersConfig.connection, "auth", "headers_command", "headers_env")

    url: WrittenText = Field(default="", repr=False, json_schema_extra={"default": None})
    """http, sse: URL of the MCP endpoint."""
    auth: Annotated[SignInConfig | None, BeforeValidator(_by_type)] = None
    """http, sse: how the gateway signs in. By default, without an Authorization header, somebody signs in with a
    browser where the server asks for it."""
    headers_command: str | list[str] | None = Field(default=None, repr=False)
    """http, sse: program that prints more headers, as a JSON object or as lines of `Name: value`; it is run before the
    first request, and again when the server answers 401. Of the environment it gets what the program of a stdio server
    gets, and `headersEnv`."""
    headers_env: dict[str, OptionalText] = Field(default_factory=dict, repr=False)
    """http, sse: environment variables of the program in `headersCommand`, as `{VAULT_ADDR: "${VAULT_ADDR}"}`."""

    @property
    def authenticated(self) -> bool:
        """See `ServerConfig.authenticated`."""
        return (
            super().authenticated
            or self.headers_command is not None
            or (self.auth is not None and self.auth.type != "none")
        )

    @property
    def sign_in(self) -> SignInConfig | None:
        """How to sign in where the server asks for it; None where that is not wanted."""
        if self.auth is not None:
            return None if self.auth.type == "none" else self.auth
        named = any(name.lower() == "authorization" for name in self.headers)
        return None if named or self.headers_command is not None else SignInConfig()

    @property
    def per_user(self) -> bool:
        """See `ServerConfig.per_user`."""
        return self.sign_in is not None and self.sign_in.is_per_user

    @property
    def exchanges_callers(self) -> bool:
        """See `ServerConfig.exchanges_callers`."""
        return self.sign_in is not None and self.sign_in.exchanges_callers

    @property
    def local_keys(self) -> tuple[str, ...]:
        """See `ServerConfig.local_keys`."""
        return () if self.headers_command is None else ("headersCommand",)

    @property
    def address(self) -> str:
        """See `ServerConfig.address`."""
        return self.url

    def secrets(self) -> set[str]:
        """See `ServerConfig.secrets`."""
        # The ids of clients stand in links that people open: they are no secrets, whatever they look like.
        shown = self.model_copy(update={"auth": None})
        return super(UrlConfig, shown).secrets() | (self.auth.secrets() if self.auth is not None else set())

    def launch_identity(self, folder: Path | None) -> str:
        """See `ServerConfig.launch_identity`: another issuer gives out other identities at the same address."""
        origin = super().launch_identity(folder)
        return f"{origin} issuer:{self.auth.issuer}" if self.auth is not None and self.auth.issuer else origin

    def check_entry(self, entry: Mapping[str, Any]) -> None:
        """See `ServerConfig.check_entry`."""
        if entry.get("command") is not None:
            raise command_and_url() if self.url else fault(f"is {self.type}, which has no command", "stdio", key="type")
        check_url(self.url, "url", "https://example.test/mcp")
        if self.headers_command is not None:
            if not self.headers_command or not self.headers_command[0].strip():
                raise fault("is empty", "a program and its arguments", key="headersCommand")
            if self.auth is not None:
                raise fault("stands beside auth", "one of the two", key="headersCommand")
        if self.auth is not None and self.auth.type != "none":
            named = next((name for name in self.headers if name.lower() == "authorization"), None)
            if named is not None:
                raise fault("stands beside auth, which sends its own", "one of the two", key=f"headers.{named}")


class HttpConfig(UrlConfig):
    """An MCP server at a URL; Streamable HTTP is tried first."""

    connector = "gateway.upstream.mcp_connectors:HttpConnector"
    inferred_from = "url"
    spellings = frozenset({"streamable-http", "streamable_http", "streamablehttp"})

    type: Literal["http"] = "http"
