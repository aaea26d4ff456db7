"""Headers, for all types of upstreams that are reached over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from gateway.config.section import Text, fault, is_http_url
from gateway.config.server import ServerConfig
from gateway.secrets import secrets_in, split_credentials


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
    # User and password as the URL had them; a text may repeat them in that form.
    _of_url: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def proxy_choice(self) -> str | Literal[False] | None:
        """See `ServerConfig.proxy_choice`."""
        return self.proxy

    @property
    def authenticated(self) -> bool:
        """See `ServerConfig.authenticated`."""
        return any(name.lower() in ("authorization", "x-api-key") for name in self.headers)

    def secrets(self) -> set[str]:
        """See `ServerConfig.secrets`."""
        return super().secrets() | self._of_url

    @model_validator(mode="wrap")
    @classmethod
    def _credentials_of_url(cls, entry: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Send user and password of a URL as Basic credentials, and keep them out of the URL, which is shown."""
        keys = [key for key in ("url", "endpoint") if isinstance(entry, dict) and isinstance(entry.get(key), str)]
        written = {key: entry[key] for key in keys if "@" in entry[key] and is_http_url(entry[key])}
        for key in written:
            entry = _with_basic(entry, key)
        config = validate(entry)
        config._of_url = frozenset(secrets_in(written))  # noqa: SLF001 - of the same class
        return config

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


def _with_basic(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an entry with the user and the password of its URL in an Authorization header."""
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
    """Raise `fault` unless this is an absolute http or https URL."""
    expected = f"an absolute URL, as {example}"
    if not url:
        raise fault("is missing or empty", expected, key=key)
    if not is_http_url(url):
        raise fault("is no absolute http or https URL", expected, key=key)
