"""What a refusal says: the challenges in a WWW-Authenticate header. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# A challenge in use has some hundred characters; whatever comes after this is not looked at.
_MAX_CHARS: Final = 8 * 1024
_SCHEME: Final = re.compile(r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?=[\s,]|\Z)")
# Unquoted values are tokens by the grammar; servers write URLs so, too.
_PARAMETER: Final = re.compile(
    r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*=[ \t]*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]*))", re.DOTALL
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One challenge.

    Attributes:
        scheme: In lower case.
        parameters: By name, in lower case; of a name that comes twice the first counts.
    """

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource_metadata(self) -> str | None:
        """Where the metadata of the resource is (RFC 9728, section 5.1)."""
        return self.parameters.get("resource_metadata") or None

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """What the request needs; None where it does not say."""
        given = self.parameters.get("scope")
        return tuple(given.split()) if given else None

    @property
    def wants_proof(self) -> bool:
        """Whether tokens are to be presented with a proof of possession (RFC 9449, section 7.1)."""
        return self.scheme == "dpop"

    @property
    def insufficient_scope(self) -> bool:
        """Whether the token is good, and not for this (RFC 6750, section 3.1)."""
        return self.parameters.get("error") == "insufficient_scope"


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """Every challenge of a header, in its order; what cannot be read ends the list.

    Source: RFC 9110, section 11.6.1 "WWW-Authenticate".
    """
    text = header[:_MAX_CHARS]
    found: list[Challenge] = []
    at = 0
    while (scheme := _SCHEME.match(text, at)) is not None:
        at = scheme.end()
        parameters: dict[str, str] = {}
        while (parameter := _PARAMETER.match(text, at)) is not None:
            name, quoted, plain = parameter.groups()
            value = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            parameters.setdefault(name.lower(), value)
            at = parameter.end()
        found.append(Challenge(scheme=scheme[1].lower(), parameters=parameters))
    return tuple(found)


def token_challenge(header: str) -> Challenge | None:
    """The challenge that wants a token, a bearer token rather than one with a proof; None where there is none."""
    found = {one.scheme: one for one in reversed(parse_challenges(header))}
    return found.get("bearer") or found.get("dpop")
