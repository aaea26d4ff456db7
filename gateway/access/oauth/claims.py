"""Parse signed tokens, verify their signatures, and map their claims to a principal or a refusal.

Sources: RFC 7515 and 7519; RFC 8725, "JSON Web Token Best Current Practices"; RFC 9068, section 4; OpenID Connect Core
1.0, section 3.1.3.7, "ID Token Validation".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from gateway.access.oauth.key_set import Key, KeySet, algorithms
from gateway.access.principal import Principal, Refusal
from gateway.config.auth_config import SCOPES, Issuer, base_of, profile_of_audience
from gateway.protocol import json_bytes
from gateway.protocol.json_bytes import MalformedJson, loads

if TYPE_CHECKING:
    from jwt import PyJWS

SKEW_S: Final = 60.0
"""The tolerated difference between the clocks of the issuer and the gateway."""
# The latest accepted time: the year 33658. Larger values are milliseconds or nonsense.
_LATEST_S: Final = 1e12
# OpenID Connect Core, section 2: a subject has at most 255 characters.
_MAX_NAME_CHARS: Final = 255
# A token of 16 KiB could contain thousands of values, and each takes 200 bytes in the cache. A token above this limit
# is rejected. Its values are not truncated, because truncation could drop a group that a deny rule names.
_MAX_VALUES: Final = 1024
# Claims that identify one token or sign-in. They are omitted from the principal: rules do not use them, and they would
# give each token of a caller a different principal.
_OF_ONE_TOKEN: Final = frozenset(
    {"jti", "nonce", "at_hash", "c_hash", "s_hash", "sid", "session_state", "uti", "rh", "aio", "exp", "nbf", "iat"}
    | {"auth_time", "updated_at"}
)
# OpenID Connect Core, section 5.6.2: this claim lists claims that have to be fetched from another server. The gateway
# does not fetch them, because the URL comes from the token and requires separate credentials.
_CLAIM_NAMES: Final = "_claim_names"
# Microsoft Entra ID, "Groups overage claim": some tokens, such as older tokens, mark omitted groups with this claim.
_HAS_GROUPS: Final = "hasgroups"
_ENTRA_GROUPS: Final = "groups"
# A claim such as `groups:src1` marks `groups` as omitted.
_SOURCE: Final = ":src"
# The nesting depth of claims that rules can name. The deepest claims in use are those of Keycloak, at level 3.
_MAX_DEPTH: Final = 4
# The longest integer that is converted to text: enough for ids and versions. The time to convert an integer grows with
# the square of its length.
_INTEGER_BITS: Final = 64
# Maps each read scope to the scope that includes it: `tools` includes `tools:read`.
_IMPLIED: Final = {f"{scope}:read": scope for scope in SCOPES if f"{scope}:read" in SCOPES}


class Rejected(Exception):
    """A token was rejected.

    Attributes:
        refusal: The response to the caller.
        for_good: True if the token will stay invalid, so that the refusal may be cached.
    """

    def __init__(self, refusal: Refusal, *, for_good: bool = True) -> None:
        super().__init__(refusal.description)
        self.refusal = refusal
        self.for_good = for_good


def invalid(description: str, *, for_good: bool = True) -> Rejected:
    """Return the error for an invalid token (RFC 6750, section 3.1, `invalid_token`)."""
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
    """Return the principal that a token's claims describe. This function does not verify who issued the claims.

    If `scope` contains scopes of the gateway (`tools`, `tools:read` and so on), the token permits only these scopes.
    Other scopes such as `mcp` or `openid` concern only the client and the issuer, and do not restrict the token.

    Args:
        claims: The claims of the token, or the introspection response of the issuer.
        resource: The configured URL of this gateway.
        token: The digest of the token.
        ends: Whether the token must have an expiry time.

    Raises:
        Rejected: The token is malformed, is for another service, is not valid now, or lacks a required scope.
    """
    needed = tuple(issuer.required_scopes)
    expires_s = _check_times(claims, now_s, ends=ends)
    profiles = _profiles(claims.get("aud"), issuer, resource)
    if claims.get("cnf") is not None:
        # RFC 9449, section 7.1; RFC 8705, section 3: a bound token must not be accepted without proof of possession.
        raise invalid("the token is bound to a key of its client (cnf), and the gateway does not support such tokens")
    scopes = _scopes(claims)
    missing = [scope for scope in needed if scope not in scopes and _IMPLIED.get(scope) not in scopes]
    if missing:
        raise Rejected(
            Refusal(
                status=403,
                error="insufficient_scope",
                scopes=needed,
                bearer_of_token=True,
                description=f"the token lacks the scope {' '.join(missing)}",
            )
        )
    claim_names = issuer.claims
    subject = subject_of(claims, issuer)
    client = _first_given(find_claim(claims, claim_names.client), claims.get("client_id"), "")
    left_out = _omitted_claims(claims)
    groups, knows_groups = _groups(claims, claim_names.groups, left_out)
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
        client=_name(client, claim_names.client) if client != "" else "",
        claims=values,
        unknown_claims=left_out | unreadable,
        token=token,
        expires_s=expires_s,
    )


def subject_of(claims: Mapping[str, Any], issuer: Issuer) -> str:
    """Return the subject of a token, from the claim that the issuer is configured to use.

    Raises:
        Rejected: The claim is missing or invalid.
    """
    return _name(find_claim(claims, issuer.claims.subject), issuer.claims.subject)


def _check_times(claims: Mapping[str, Any], now_s: float, *, ends: bool) -> float:
    """Check the times in a token, and return the token's expiry; infinity if `exp` is missing and `ends` is false.

    Source: RFC 7519, sections 4.1.4 to 4.1.6.
    """
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if claims.get(name) is not None}
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
            raise invalid(f"{name} of the token is not a time")
    if ends and "exp" not in times:
        raise invalid("the token has no exp, so it would never expire")
    if "exp" in times and times["exp"] + SKEW_S <= now_s:
        raise invalid("the token has expired")
    if "nbf" in times and times["nbf"] - SKEW_S > now_s:
        raise invalid("the token is not valid yet")
    if "iat" in times and times["iat"] - SKEW_S > now_s:
        raise invalid("the token was issued in the future")
    return float(times.get("exp", math.inf))


def _profiles(audience_claim: object, issuer: Issuer, resource: str | None) -> frozenset[str] | None:
    """Return the profiles that the audiences of a token permit; None for all profiles.

    A profile's URL permits the profile only if the configuration names this URL or the gateway's URL as an audience.
    """
    audiences = list(_texts(audience_claim))
    own = f"{base_of(resource)}/mcp" if resource is not None else None
    opened: set[str] = set()
    for audience in audiences:
        if own is not None and audience == f"{own}/":
            audience = own  # both URLs serve the same resource
        profile = profile_of_audience(audience, resource)
        if audience in issuer.audiences and profile is None:
            return None
        if profile is not None and (audience in issuer.audiences or (own is not None and own in issuer.audiences)):
            opened.add(profile)
    if not opened:
        problem = "has no audience" if not audiences else "is for another service"
        raise invalid(f"the token {problem}; expected aud {' or '.join(issuer.audiences)}")
    return frozenset(opened)


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    # Most issuers send `scope` as one string (RFC 9068, section 2.2.3); some send `scp` as a list.
    scopes: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        texts = value if isinstance(value, list) else [] if value is None else [value]
        for text in texts:
            if not isinstance(text, str):
                # A token without scopes of the gateway is unrestricted, so an unreadable scope must be rejected.
                raise invalid(f"{name} of the token is neither a string nor a list of strings")
            for word in text.split():
                # Some issuers separate scopes by commas: also add each part that is a scope of the gateway.
                scopes.update((word, *(part for part in word.split(",") if part in SCOPES)))
    return frozenset(scopes)


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"the token does not identify its subject: it has no {claim}")
    # Names appear in logs and rules, so they must not contain line breaks or look-alike spaces.
    if len(value) > _MAX_NAME_CHARS or not value.isprintable() or any(character.isspace() for character in value):
        raise invalid(f"{claim} of the token is too long, or contains spaces or characters that cannot be shown")
    return value


def find_claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name or dotted path; None if the claim is missing.

    Each name in the path may itself contain dots, as URLs do.
    """
    if name in claims:
        return claims[name]
    for at in range(len(name) - 1, 0, -1):
        inner = claims.get(name[:at]) if name[at] == "." else None
        if isinstance(inner, Mapping) and (claim := find_claim(inner, name[at + 1 :])) is not None:
            return claim
    return None


def _first_given(*values: object) -> object:
    return next(value for value in values if value is not None)


def _omitted_claims(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of claims that the token declares as omitted or incomplete."""
    declared = claims.get(_CLAIM_NAMES)
    # If the form of the claim is unknown, assume that it names the groups, which issuers omit most often.
    names = {_ENTRA_GROUPS} if declared is not None else set()
    if isinstance(declared, Mapping | list):
        names = {name for name in declared if isinstance(name, str)}
    names |= {name.partition(_SOURCE)[0] for name in claims if _SOURCE in name}
    if claims.get(_HAS_GROUPS) not in (None, False, "false"):
        names.add(_ENTRA_GROUPS)
    return frozenset(names)


def _groups(claims: Mapping[str, Any], name: str, left_out: frozenset[str]) -> tuple[frozenset[str], bool]:
    """Return the groups in the token, and whether these are all groups of the subject."""
    value = find_claim(claims, name)
    if isinstance(value, str) and value.startswith("["):
        # Some issuers can only send a list as a JSON string.
        with suppress(MalformedJson):
            value = loads(value.encode("utf-8", "replace"))
    groups = frozenset(_texts(value))
    sizes = len(value) if isinstance(value, list) else 0 if value is None else 1
    outer = [name[:at] for at, character in enumerate(name) if character == "."]
    complete = sizes == len(list(_texts(value))) and _is_readable(claims, name) and left_out.isdisjoint((name, *outer))
    return groups, complete


def _is_readable(claims: Mapping[str, Any], name: str) -> bool:
    """Return whether a nested claim can be read: each claim on the path to it is an object, or is missing."""
    for at in (at for at, character in enumerate(name) if character == "."):
        inner = claims.get(name[:at])
        if inner is not None and not (isinstance(inner, Mapping) and _is_readable(inner, name[at + 1 :])):
            return False
    return True


def _texts(value: object) -> Iterator[str]:
    """Yield a value, or each item of a list, as text. Skip all but strings, booleans, and integers of up to 64 bits."""
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, str):
            yield item
        elif isinstance(item, bool):
            yield str(item).lower()
        elif isinstance(item, int) and item.bit_length() <= _INTEGER_BITS:
            yield str(item)


def _values(claims: Mapping[str, Any], scopes: frozenset[str]) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return the claims as pairs of name and value, and the names of claims that were not converted completely."""
    pairs: set[tuple[str, str]] = {("scope", scope) for scope in scopes}
    unreadable: set[str] = set()
    for name, value in claims.items():
        if name in ("scope", "scp") or name in _OF_ONE_TOKEN or value is None:
            continue
        claim_pairs: set[tuple[str, str]] = set()
        complete = _flatten(name, value, claim_pairs, 1)
        if isinstance(value, Mapping) and len(pairs) + len(claim_pairs) > _MAX_VALUES:
            claim_pairs, complete = set(), False
        pairs |= claim_pairs
        if not complete:
            unreadable.add(name)
    return frozenset(pairs), frozenset(unreadable)


def _flatten(name: str, value: object, into: set[tuple[str, str]], depth: int) -> bool:
    """Add the values of a claim and its nested claims to `into`; return whether all values were added."""
    if isinstance(value, Mapping):
        if depth == _MAX_DEPTH:
            return False
        answers = [_flatten(f"{name}.{inner}", member, into, depth + 1) for inner, member in value.items()]
        return all(answers)
    texts = list(_texts(value))
    into.update((name, text) for text in texts)
    return value is None or len(texts) == (len(value) if isinstance(value, list) else 1)


MAX_TOKEN_BYTES: Final = 16 * 1024
"""The maximum size of a token: twice that of a token with hundreds of groups, and twice the header limit of proxies."""
_COMPACT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
# The `typ` of access tokens, and of tokens whose issuer does not distinguish types. Other types, such as logout tokens
# or proofs of possession, must not grant access.
_TYPES: Final = frozenset({"at+jwt", "jwt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedToken:
    """A parsed token whose signature has not been verified; nothing in it can be trusted yet."""

    text: str
    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]

    @property
    def issuer(self) -> str:
        """The claimed issuer; empty if there is none."""
        issuer = self.claims.get("iss")
        return issuer if isinstance(issuer, str) else ""


def read_signed(token: str) -> SignedToken | None:
    """Parse a token without verifying its signature; return None if the text is not a signed token (JWS).

    Raises:
        Rejected: The token is malformed or of a type that is never accepted.
    """
    # Allow only the base64url alphabet: decoders skip other characters, so one token could have many spellings.
    if not _COMPACT.fullmatch(token):
        return None
    parts = token.split(".")
    header = _decode_object(parts[0])
    if header is None or "alg" not in header:
        return None
    algorithm, key_id = header["alg"], header.get("kid")
    claims = _decode_object(parts[1])
    if claims is None or not isinstance(algorithm, str) or not (key_id is None or isinstance(key_id, str)):
        raise invalid("the token is malformed")
    if "crit" in header:
        # RFC 7515, section 4.1.11: a token with unknown critical extensions must be rejected.
        raise invalid("the token has critical header parameters, which the gateway does not support (crit)")
    kind = "jwt" if header.get("typ") is None else header["typ"]
    if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in _TYPES:
        raise invalid("the token is not an access token, according to its typ")
    return SignedToken(text=token, algorithm=algorithm, key_id=key_id, claims=claims)


def is_signed_by(token: SignedToken, key: Key) -> bool:
    """Return whether the token was signed with this key and the algorithm in its header."""
    import jwt

    try:
        _verifier().decode(token.text, key.for_algorithm(token.algorithm), algorithms=[token.algorithm])
    # The libraries raise various exceptions for malformed keys and signatures.
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


@cache
def _verifier() -> PyJWS:
    # The import is lazy, because it loads `cryptography`. The result is cached: `PyJWS()` creates every algorithm.
    from jwt import PyJWS

    verifier = PyJWS()
    for name in algorithms().keys() - verifier.get_algorithms():
        verifier.register_algorithm(name, algorithms()[name])
    return verifier


def _decode_object(part: str) -> dict[str, Any] | None:
    """Decode a part of a token; return None if the part is not a JSON object."""
    try:
        value = json_bytes.loads(base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        return None
    return value if isinstance(value, dict) else None


# The first round tries the cached keys. The second round tries the keys again after a fetch.
_ROUNDS: Final = 2


async def name_in(
    token: str, key_set: KeySet, *, client_id: str, nonce: str, clock: Callable[[], float] = time.time
) -> str:
    """Verify an OpenID Connect identity token, and return its subject as a principal name, `SUBJECT@ISSUER`.

    Args:
        token: The identity token from the token endpoint.
        key_set: The keys of the expected issuer.
        client_id: The client id of the gateway at this issuer.
        nonce: The nonce of the authorization request.

    Raises:
        Rejected: The token is invalid or has no subject.
    """
    signed = read_signed(token) if len(token) <= MAX_TOKEN_BYTES else None
    if signed is None or signed.issuer != key_set.issuer.issuer:
        raise invalid("the issuer did not return an identity token of its own")
    _check(signed, client_id=client_id, nonce=nonce, now_s=clock())
    algorithms = key_set.issuer.accepts(signed.algorithm)
    if not algorithms:
        raise invalid(f"the identity token is signed by an algorithm that is not accepted ({signed.algorithm[:20]})")
    for round_ in range(_ROUNDS):
        if any(is_signed_by(signed, key) for key in key_set.candidates(signed.key_id, algorithms)):
            return f"{subject_of(signed.claims, key_set.issuer)}@{key_set.issuer.name}"
        if round_ + 1 < _ROUNDS and key_set.may_request_fetch:
            await key_set.request_fetch()
    raise invalid("the signature of the identity token cannot be verified")


def _check(signed: SignedToken, *, client_id: str, nonce: str, now_s: float) -> None:
    claims = signed.claims
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if client_id not in audiences or claims.get("azp", client_id) != client_id:
        raise invalid("the identity token is for another client")
    token_nonce = claims.get("nonce")
    if not isinstance(token_nonce, str) or not hmac.compare_digest(token_nonce.encode(), nonce.encode()):
        raise invalid("the identity token belongs to another sign-in")
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires + SKEW_S <= now_s:
        raise invalid("the identity token has expired")
