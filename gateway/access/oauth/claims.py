"""What a token says of itself becomes a principal, or a refusal that says why not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from gateway.access.authenticator import Refusal
from gateway.access.principal import Principal
from gateway.config.auth import SCOPES
from gateway.config.issuers import Issuer, base_of, profile_of_audience
from gateway.wire import MalformedJson, loads

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
    {"jti", "nonce", "at_hash", "c_hash", "s_hash", "sid", "session_state", "uti", "rh", "aio", "exp", "nbf", "iat"}
    | {"auth_time", "updated_at"}
)
# OpenID Connect Core, section 5.6.2: claims that are to be fetched elsewhere, by name. They are not fetched: their
# address comes with the token, and asks for credentials of its own.
_CLAIM_NAMES: Final = "_claim_names"
# Microsoft Entra ID, "Groups overage claim": in tokens that are passed through a browser, and in older ones.
_HAS_GROUPS: Final = "hasgroups"
_ENTRA_GROUPS: Final = "groups"
_SOURCE: Final = ":src"
# Claims inside claims that rules can name; the deepest in use, of Keycloak, are at level 3.
_MAX_DEPTH: Final = 4
# Ids and versions; the text of a number of any length takes time with the square of it.
_INTEGER_BITS: Final = 64
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
    if claims.get("cnf") is not None:
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
    client = _first_given(find_claim(claims, named.client), claims.get("client_id"), "")
    left_out = _left_out(claims)
    groups, knows_groups = _groups(claims, named.groups, left_out)
    values, unreadable = _values(claims, scopes)
    if len(groups) > _MAX_VALUES or len(values) > _MAX_VALUES:
        raise invalid(f"the token has more than {_MAX_VALUES} values")
    return Principal(
        name=f"{subject}@{issuer.name}",
        scopes=scopes.intersection(SCOPES),
        groups=groups,
        knows_groups=knows_groups,
        profiles=profiles,
        issuer=issuer.issuer,
        client=_name(client, named.client) if client != "" else "",
        claims=values,
        unknown_claims=left_out | unreadable,
        token=token,
        expires_s=expires_s,
    )


def subject_of(claims: Mapping[str, Any], issuer: Issuer) -> str:
    """Whom a token of this issuer is about, by the claim that names callers.

    Raises:
        Rejected: Nobody.
    """
    return _name(find_claim(claims, issuer.claims.subject), issuer.claims.subject)


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
        if own is not None and audience == f"{own}/":
            audience = own  # the same path is served under both
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
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        texts = value if isinstance(value, list) else [] if value is None else [value]
        for text in texts:
            if not isinstance(text, str):
                # A token without our words may do everything: one whose words cannot be read must not.
                raise invalid(f"{name} of the token is neither a text nor a list of texts")
            for word in text.split():
                # The word itself, and its parts: some issuers put commas between scopes. More words restrict.
                found.update((word, *(part for part in word.split(",") if part in SCOPES)))
    return frozenset(found)


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"the token does not say who it is for: it has no {claim}")
    # It stands in logs and in rules: neither a line break nor a space that looks like another.
    if len(value) > _MAX_NAME_CHARS or not value.isprintable() or any(character.isspace() for character in value):
        raise invalid(f"{claim} of the token is too long, or holds spaces or characters that cannot be shown")
    return value


def find_claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, or by the names of the objects that it is in, joined by dots; None if there is none.

    Each of these names may have dots itself, as those that are URLs.
    """
    if name in claims:
        return claims[name]
    for at in range(len(name) - 1, 0, -1):
        inner = claims.get(name[:at]) if name[at] == "." else None
        if isinstance(inner, Mapping) and (found := find_claim(inner, name[at + 1 :])) is not None:
            return found
    return None


def _first_given(*values: object) -> object:
    return next(value for value in values if value is not None)


def _left_out(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of claims that the token leaves out, or has in part only, as it says itself."""
    named = claims.get(_CLAIM_NAMES)
    # In another form it may mean any claim; groups are what issuers leave out.
    names = {_ENTRA_GROUPS} if named is not None else set()
    if isinstance(named, Mapping | list):
        names = {name for name in named if isinstance(name, str)}
    names |= {name.partition(_SOURCE)[0] for name in claims if _SOURCE in name}
    if claims.get(_HAS_GROUPS) not in (None, False, "false"):
        names.add(_ENTRA_GROUPS)
    return frozenset(names)


def _groups(claims: Mapping[str, Any], name: str, left_out: frozenset[str]) -> tuple[frozenset[str], bool]:
    """Return the groups that the token names, and whether these are all groups of the caller."""
    value = find_claim(claims, name)
    if isinstance(value, str) and value.startswith("["):
        # Some issuers can map lists to texts only.
        with suppress(MalformedJson):
            value = loads(value.encode("utf-8", "replace"))
    groups = frozenset(_texts(value))
    sizes = len(value) if isinstance(value, list) else 0 if value is None else 1
    outer = [name[:at] for at, character in enumerate(name) if character == "."]
    complete = sizes == len(list(_texts(value))) and _is_readable(claims, name) and left_out.isdisjoint((name, *outer))
    return groups, complete


def _is_readable(claims: Mapping[str, Any], name: str) -> bool:
    """Return whether each claim around the named one is an object: another form says what is not understood here."""
    for at in (at for at, character in enumerate(name) if character == "."):
        inner = claims.get(name[:at])
        if inner is not None and not (isinstance(inner, Mapping) and _is_readable(inner, name[at + 1 :])):
            return False
    return True


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of a value or a list; numbers and booleans as JSON writes them."""
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, str):
            yield item
        elif isinstance(item, bool):
            yield str(item).lower()
        elif isinstance(item, int) and item.bit_length() <= _INTEGER_BITS:
            yield str(item)


def _values(claims: Mapping[str, Any], scopes: frozenset[str]) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return pairs of the name of a claim and its value, and the names of claims of which not all is in them."""
    pairs: set[tuple[str, str]] = {("scope", scope) for scope in scopes}
    unreadable: set[str] = set()
    for name, value in claims.items():
        if name in ("scope", "scp") or name in _OF_ONE_TOKEN or value is None:
            continue
        found: set[tuple[str, str]] = set()
        complete = _flatten(name, value, found, 1)
        if isinstance(value, Mapping) and len(pairs) + len(found) > _MAX_VALUES:
            found, complete = set(), False
        pairs |= found
        if not complete:
            unreadable.add(name)
    return frozenset(pairs), frozenset(unreadable)


def _flatten(name: str, value: object, into: set[tuple[str, str]], depth: int) -> bool:
    """Add the values of a claim and of the claims inside it; return whether all could be added."""
    if isinstance(value, Mapping):
        if depth == _MAX_DEPTH:
            return False
        answers = [_flatten(f"{name}.{inner}", one, into, depth + 1) for inner, one in value.items()]
        return all(answers)
    texts = list(_texts(value))
    into.update((name, text) for text in texts)
    return value is None or len(texts) == (len(value) if isinstance(value, list) else 1)
