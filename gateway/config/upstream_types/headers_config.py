"""Headers, for all types of upstreams that are reached over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from gateway.config.section import Text, fault, is_http_url
from gateway.config.server import ServerConfig


def _without_nulls(value: object) -> object:
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


class HeadersConfig(ServerConfig):
    """An upstream to which headers are sent."""

    # They hold credentials, of which nothing may be kept on disk: no part of the identity.
    connection = (*ServerConfig.connection, "headers", "proxy")

    headers: Annotated[dict[str, Text], BeforeValidator(_without_nulls)] = Field(default_factory=dict, repr=False)
    """http, sse, graphql: HTTP headers sent with every request, such as Authorization."""

    proxy: str | Literal[False] | None = Field(default=None, repr=False)
    """http, sse, graphql: forward proxy to reach this server through, as http://proxy.example.test:3128; `false` for
    none. By default HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY of the environment say which."""

    @property
    def proxy_choice(self) -> str | Literal[False] | None:
        """See `ServerConfig.proxy_choice`."""
        return self.proxy

    @property
    def authenticated(self) -> bool:
        """See `ServerConfig.authenticated`."""
        return any(name.lower() in ("authorization", "x-api-key") for name in self.headers)

    @field_validator("proxy", mode="before")
    @classmethod
    def _is_a_proxy(cls, proxy: object) -> object:
        if proxy is None or proxy is False:
            return proxy
        url = proxy if isinstance(proxy, str) else ""
        if not is_http_url(url if "://" in url else f"http://{url}"):
            raise fault("is no proxy that can be used", "a URL as http://proxy.example.test:3128, or false")
        return url

    @field_validator("headers")
    @classmethod
    def _headers_fit_on_a_line(cls, headers: dict[str, str]) -> dict[str, str]:
        # A line break in a value would add headers of its own to every request.
        for name, value in headers.items():
            if not name or not name.isascii() or any(c.isspace() or c in ':"(),/;<=>?@[\\]{}' for c in name):
                raise fault("is no header name", "letters, digits and -", key=name)
            if not (value.isascii() and value.isprintable()):
                raise fault("holds what no header can carry", "one line of ASCII text", key=name)
        return headers


def check_url(url: str, key: str, example: str) -> None:
    """Raise `fault` unless this is an absolute http or https URL."""
    expected = f"an absolute URL, as {example}"
    if not url:
        raise fault("is missing or empty", expected, key=key)
    if not is_http_url(url):
        raise fault("is no absolute http or https URL", expected, key=key)
