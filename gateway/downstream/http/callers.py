"""Who sends a request, and which profile it is for: judged by its head, before anybody's body is read."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from msgspec import Struct

from gateway.access.authenticator import Authenticator, Refusal, Unverified
from gateway.access.principal import Principal
from gateway.access.quotas import Account, Quotas
from gateway.audit.record import Audit
from gateway.calls.profile_views import ProfileViews
from gateway.downstream.http.protected_resource import ProtectedResource
from gateway.downstream.http.request import RequestHead, RequestRefused
from gateway.protocol import MODERN_VERSIONS
from registry.views.profile import DEFAULT_PROFILE


class Admitted(Struct, frozen=True, gc=False, eq=False):
    """What the head of a request says of its caller.

    Attributes:
        account: What the caller uses.
        principal: The caller.
        profile: The profile that it addresses.
        modern: Its version is none with a handshake.
    """

    account: Account
    principal: Principal
    profile: str
    modern: bool


class Addressed(Struct, gc=False, eq=False, kw_only=True):
    """What the head of a request says of its caller before anybody is asked; it holds for every request with this head.

    Attributes:
        profile: The profile that its path names; there may be none.
        authorization: The field of this name.
        modern: Its version is none with a handshake.
        version: The protocol version that it names; empty for none.
        spoken: Whether that is one without a handshake, which we speak.
        method: The JSON-RPC method that it names; empty for none.
        name: What the method is about; None where nothing is named, or in no form that can be read.
        session_id: The session that it names; None for none.
        streams: Whether its answer may be an event stream.
        admitted: Whom it was found to be of the last time.
        profiles, dropped: What that depends on beside the credentials: the profiles, and how often accounts were
            dropped.
    """

    profile: str
    authorization: str | None
    modern: bool
    version: str
    spoken: bool
    method: str
    name: str | None
    session_id: str | None
    streams: bool = True
    admitted: Admitted | None = None
    profiles: object = None
    dropped: int = 0


class Unproven(NamedTuple):
    """The same while others have to be asked whom its credentials speak for."""

    account: Account
    credentials: Unverified
    profile: str
    modern: bool


class Callers:
    """Lets callers in.

    Args:
        authenticator: Knows who may call.
        views: The profiles.
        quotas: What each caller may use.
        resource: Tells callers where they get a token.
        audit: The record of refused credentials.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        views: ProfileViews,
        quotas: Quotas,
        resource: ProtectedResource,
        audit: Audit,
    ) -> None:
        self._authenticator = authenticator
        self._views = views
        self._quotas = quotas
        self._resource = resource
        self._audit = audit

    def addressed(self, head: RequestHead, *, modern: bool) -> Addressed:
        """Read what a head says of its caller; `modern` is passed on, for who answers it."""
        path = head.path if b"%" not in head.path else unquote(head.path.decode("latin-1")).encode("latin-1", "replace")
        authorization = None if head.raw(b"authorization") is None else head.text(b"authorization")
        version = head.text(b"mcp-protocol-version")
        return Addressed(
            # With or without a slash at the end: a redirect would cost clients the body of their POST.
            profile=path[5:].decode("latin-1").removesuffix("/") or DEFAULT_PROFILE,
            authorization=authorization,
            modern=modern,
            version=version,
            spoken=version in MODERN_VERSIONS,
            method=head.text(b"mcp-method"),
            name=None if head.raw(b"mcp-name") is None else _decoded(head.text(b"mcp-name")),
            session_id=session_id_in(head),
        )

    def admit(self, addressed: Addressed, head: RequestHead, peer: str) -> Admitted | Unproven:
        """Judge a request.

        Raises:
            RequestRefused: Its credentials open nothing, or not this profile.
        """
        quotas, profiles = self._quotas, self._views.profiles
        found = self._authenticator.principal(addressed.authorization)
        known = addressed.admitted
        if (
            # The very objects of the time before, as nearly always.
            known is not None
            and known.principal is found
            and addressed.profiles is profiles
            and addressed.dropped == quotas.dropped
            and known.account.groups is known.principal.groups
        ):
            return known
        profile = addressed.profile
        if isinstance(found, Principal):
            if profile in profiles and found.may_enter(profile):
                addressed.admitted = Admitted(quotas.account(found), found, profile, addressed.modern)
                addressed.profiles, addressed.dropped = profiles, quotas.dropped
                return addressed.admitted
            raise self._kept_out(found, head, peer, profile)
        if isinstance(found, Refusal):
            raise self._refused(found, head, peer, profile)
        return Unproven(self._quotas.nobody, found, profile, addressed.modern)

    async def verify(self, unproven: Unproven, head: RequestHead, peer: str) -> Admitted:
        """Find out who sends a request.

        Raises:
            RequestRefused: As with `admit`.
        """
        found = await unproven.credentials.verify()
        if isinstance(found, Refusal):
            raise self._refused(found, head, peer, unproven.profile)
        profile = unproven.profile
        if profile in self._views.profiles and found.may_enter(profile):
            return Admitted(self._quotas.account(found), found, profile, unproven.modern)
        raise self._kept_out(found, head, peer, profile)

    def _kept_out(self, principal: Principal, head: RequestHead, peer: str, profile: str) -> RequestRefused:
        # After the key: names of profiles are not for everybody.
        if principal.issuer and not principal.may_enter(profile):
            # To its client a token for another resource is a wrong one, and it can get the right one.
            refusal = Refusal(
                error="invalid_token",
                description="the token is for another profile of this gateway",
                bearer_of_token=True,
            )
            return self._refused(refusal, head, peer, profile, principal.name)
        return RequestRefused(404, "there is no such profile")

    def _refused(
        self, refusal: Refusal, head: RequestHead, peer: str, profile: str, name: str | None = None
    ) -> RequestRefused:
        if refusal.status != 503:
            reason = refusal.error or ("missing" if head.raw(b"authorization") is None else "not valid")
            self._audit.credentials_refused(head.path.decode("latin-1"), peer, reason, principal=name)
        return self._resource.refused(refusal, head, profile)


def session_id_in(head: RequestHead) -> str | None:
    """The session that a head names; None for none."""
    return None if head.raw(b"mcp-session-id") is None else head.text(b"mcp-session-id")


def _decoded(value: str) -> str | None:
    if not value.startswith("=?base64?"):
        return value
    # Late: the SDK is a tenth of a second to import, and few names need it.
    from mcp.shared.inbound import decode_header_value

    # It is an error to it that this is not ASCII, which any peer may send: nobody has been let in yet.
    return decode_header_value(value) if value.isascii() else None
