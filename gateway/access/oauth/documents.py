"""What an issuer publishes, fetched within bounds: its metadata, and any JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gateway import wire
from gateway.config.issuers import is_trusted_url
from gateway.errors import GatewayError

FETCH_S: Final = 5.0
"""How long a fetch may take: an answer from across the world takes less than one, and whoever calls waits for it."""
# The largest metadata and key sets in use have some tens of kilobytes.
MAX_DOCUMENT_BYTES: Final = 256 * 1024


class Unobtainable(Exception):
    """An issuer did not answer as it has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One answer."""

    status: int
    body: bytes


class Fetch(Protocol):
    """Makes one HTTP request within a time of its own. Nothing is followed to another origin."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
    ) -> Fetched:
        """The answer.

        Raises:
            GatewayError: There is none, or a larger one.
            TimeoutError: There is none soon enough.
        """


async def fetch_object(
    fetch: Fetch, url: str, *, headers: Mapping[str, str] | None = None, form: bytes | None = None
) -> dict[str, Any]:
    """A JSON object by GET, or by POST of a form.

    Raises:
        Unobtainable: There is none at this URL, or not soon enough.
    """
    head = {"accept": "application/json", **(headers or {})}
    if form is not None:
        head["content-type"] = "application/x-www-form-urlencoded"
    try:
        answer = await fetch("GET" if form is None else "POST", url, head, form or b"", limit_bytes=MAX_DOCUMENT_BYTES)
    except (GatewayError, TimeoutError, ValueError) as error:
        raise Unobtainable(f"{url}: {error}") from None
    if answer.status != 200:
        raise Unobtainable(f"{url}: HTTP {answer.status}")
    try:
        value = wire.loads(answer.body)
    except wire.MalformedJson:
        raise Unobtainable(f"{url}: the answer is not JSON") from None
    if not isinstance(value, dict):
        raise Unobtainable(f"{url}: the answer is no JSON object")
    return value


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where the metadata of an issuer may be, in the order in which to look.

    Source: MCP 2026-07-28, "Authorization", "Authorization Server Metadata Discovery"; RFC 8414, section 3.
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    names = ("oauth-authorization-server", "openid-configuration")
    inserted = [f"{origin}/.well-known/{name}{path}" for name in names]
    return (*inserted, f"{origin}{path}/.well-known/{names[1]}") if path else tuple(inserted)


async def find_jwks_uri(fetch: Fetch, issuer: str) -> str:
    """Where the keys of an issuer are, as its metadata say.

    Raises:
        Unobtainable: There are no metadata, or none that are its own.
    """
    problems: list[str] = []
    for url in metadata_urls(issuer):
        try:
            metadata = await fetch_object(fetch, url)
        except Unobtainable as error:
            problems.append(str(error))
            continue
        # RFC 8414, section 3.3: identical, or somebody else's metadata are taken for its own.
        if metadata.get("issuer") != issuer:
            problems.append(f"{url}: it is about another issuer")
            continue
        found = metadata.get("jwks_uri")
        # Over http it could be anybody's, unless issuer and keys are on this machine.
        if isinstance(found, str) and is_trusted_url(found) and (_secure(found) or not _secure(issuer)):
            return found
        problems.append(f"{url}: jwks_uri is no https URL")
    raise Unobtainable("; ".join(problems))


def _secure(url: str) -> bool:
    return urlsplit(url).scheme == "https"
