"""What a token says of itself becomes a principal, or a refusal that says why not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.access.authenticator import Refusal
from gateway.access.principal import Principal
from gateway.config.auth import SCOPES
from gateway.config.issuers import Issuer, base_of, profile_of_audience

SKEW_S: Final = 60.0
"""How far the clocks of issuer and gateway may be apart."""
# The year 33658. Beyond it they are milliseconds, or numbers that no clock can be compared with.
_LATEST_S: Final = 1e12
# OpenID Connect Core, section 2: a subject has at most 255 characters.
_MAX_NAME_CHARS: Final = 255
# A token of 16 KiB could hold thousands, and each that is remembered takes 200 bytes. Cutting the list would drop a
# group to which something is denied.
_MAX_VALUES: Final = 1024
# They identify one token or one sign-in: nobody writes a rule about them, and each token would be a caller of its own.
_OF_ONE_TOKEN: Final = frozenset(
    {"jti", "nonce", "at_hash", "c_hash", "s_hash", "sid", "session_state", "uti", "rh", "aio"}
)
_IMPLIED: Final = {f"{scope}:read": scope for scope in SCOPES if f"{scope}:read" in SCOPES}


class Rejected(Exception):
    """A token is not accepted.

    Attributes:
        refusal: What to answer.
        for_good: Nothing that may happen soon would change it.
    """

    def __init__(self, refusal: Refusal, *, for_good: bool = True) -> None:
        super().__init__(refusal.description)
        self.refusal = refusal
        self.for_good = for_good


def invalid(description: str, *, for_good: bool = True) -> Rejected:
    """A token that is not good (RFC 6750, section 3.1, `invalid_token`)."""
    refusal = Refusal(error="invalid_token", description=description, bearer_of_token=True)
    return Rejected(refusal, for_good=for_good)


def principal_of(
    claims: Mapping[str, Any],
    issuer: Issuer,
    *,
    resource: str | None,
    now_s: float,
    token: bytes = b"",
    ends: bool = True,
) -> Principal:
    """Who a token speaks for, once it is certain that its issuer made it.

    Its `scope` restricts it where one of our own words is in it (`tools`, `tools:read` and so on): then it may do what
    these words say and no more. Others, as `mcp` or `openid`, are between client and issuer, and restrict nothing.

    Args:
        claims: What it says, or what its issuer says of it.
        issuer: Its issuer.
        resource: The address of this gateway, as configured.
        now_s: The time.
        token: The digest of the token.
        ends: Whether it has to say when it ends.

    Raises:
        Rejected: It is not for us, not now, or does not permit enough.
    """
    needed = tuple(issuer.required_scopes)
    expires_s = _check_times(claims, now_s, ends=ends)
    profiles = _profiles(claims.get("aud"), issuer, resource)
    if "cnf" in claims:
        # RFC 9449, section 7.1; RFC 8705, section 3: stolen, it must be of no use without the key.
        raise invalid("the token is bound to a key of its client, which cannot be proved here")
    scopes = _scopes(claims)
    missing = [scope for scope in needed if scope not in scopes and _IMPLIED.get(scope) not in scopes]
    if missing:
        raise Rejected(
            Refusal(
                status=403, error="insufficient_scope", scopes=needed, bearer_of_token=True,
                description=f"the token lacks the scope {' '.join(missing)}",
            )
        )  # fmt: skip
    named = issuer.claims
    subject = subject_of(claims, issuer)
    client = claims.get(named.client, claims.get("client_id", ""))
    groups = frozenset(_texts(_found(claims, named.groups)))
    values = frozenset(_pairs(claims, scopes))
    if len(groups) > _MAX_VALUES or len(values) > _MAX_VALUES:
        raise invalid(f"the token has more than {_MAX_VALUES} values")
    return Principal(
        name=f"{subject}@{issuer.name}",
        scopes=scopes.intersection(SCOPES),
        groups=groups,
        profiles=profiles,
        issuer=issuer.issuer,
        client=_name(client, named.client) if client != "" else "",
        claims=values,
        token=token,
        expires_s=expires_s,
    )


def subject_of(claims: Mapping[str, Any], issuer: Issuer) -> str:
    """Whom a token of this issuer is about, by the claim that names callers.

    Raises:
        Rejected: Nobody.
    """
    return _name(claims.get(issuer.claims.subject), issuer.claims.subject)


def _check_times(claims: Mapping[str, Any], now_s: float, *, ends: bool) -> float:
    """When the token ends; infinity where it does not say so and need not.

    Source: RFC 7519, sections 4.1.4 to 4.1.6.
    """
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if claims.get(name) is not None}
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
            raise invalid(f"{name} of the token is no time")
    if ends and "exp" not in times:
        raise invalid("the token never ends: it has no exp")
    if "exp" in times and times["exp"] + SKEW_S <= now_s:
        raise invalid("the token has expired")
    if "nbf" in times and times["nbf"] - SKEW_S > now_s:
        raise invalid("the token is not valid yet")
    if "iat" in times and times["iat"] - SKEW_S > now_s:
        raise invalid("the token was issued in the future")
    return float(times.get("exp", math.inf))


def _profiles(given: object, issuer: Issuer, resource: str | None) -> frozenset[str] | None:
    """The profiles that an audience opens; None for all.

    The address of a profile is one only if it is configured, or lies below the address of this gateway that is.
    """
    audiences = list(_texts(given))
    own = f"{base_of(resource)}/mcp" if resource is not None else None
    opened: set[str] = set()
    for audience in audiences:
        profile = profile_of_audience(audience, resource)
        if audience in issuer.audiences and profile is None:
            return None
        if profile is not None and (audience in issuer.audiences or (own is not None and own in issuer.audiences)):
            opened.add(profile)
    if not opened:
        said = "has no audience" if not audiences else "is for another service"
        raise invalid(f"the token {said}; expected aud {' or '.join(issuer.audiences)}")
    return frozenset(opened)


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    # Most say `scope`, in one text (RFC 9068, section 2.2.3); some say `scp`, in a list.
    return frozenset(
        word for name in ("scope", "scp") for text in _texts(claims.get(name)) for word in text.split(" ") if word
    )


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"the token does not say who it is for: it has no {claim}")
    # It stands in logs and in rules: neither a line break nor a space that looks like another.
    if len(value) > _MAX_NAME_CHARS or not value.isprintable() or any(character.isspace() for character in value):
        raise invalid(f"{claim} of the token is too long, or holds spaces or characters that cannot be shown")
    return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


def _found(claims: Mapping[str, Any], name: str) -> object:
    """A claim by its name, or by the names of the objects that it is in."""
    if name in claims or "." not in name:
        return claims.get(name)
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _pairs(claims: Mapping[str, Any], scopes: frozenset[str]) -> Iterator[tuple[str, str]]:
    for name, value in claims.items():
        if name in ("scope", "scp") or name in _OF_ONE_TOKEN:
            continue
        for text in _texts(value):
            yield name, text
    for scope in scopes:
        yield "scope", scope
