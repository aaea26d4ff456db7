"""Headers, for all types of upstreams that are reached over HTTP."""

from __future__ import annotations

from pydantic import Field, field_validator

from gateway.config.section import fault, is_http_url
from gateway.config.server import ServerConfig


class HeadersConfig(ServerConfig):
    """An upstream to which headers are sent."""

    # They hold credentials, of which nothing may be kept on disk: no part of the identity.
    connection = (*ServerConfig.connection, "headers")

    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """http, sse, graphql: HTTP headers sent with every request, such as Authorization."""

    @property
    def authenticated(self) -> bool:
        """See `ServerConfig.authenticated`."""
        return any(name.lower() in ("authorization", "x-api-key") for name in self.headers)

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
