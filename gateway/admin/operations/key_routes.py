"""`/admin/keys`, `/admin/approvals` and sign-ins to upstreams.

The overlay stores the changes that administrators make on top of the configuration file.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import anyio.to_thread
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.access.credentials import ApiKeys, key_row
from gateway.admin.operations.config_routes import administrator_name, apply_edit
from gateway.admin.routes import JsonDocument, Merge, Refusal, missing, read_body, route
from gateway.calls.approval_store import ApprovalStore, Lasts
from gateway.config.auth_config import KEY_PREFIX, ApiKey
from gateway.config.file_edits import NoSuchKey, chosen_keys, hash_of, revoke_keys
from gateway.config.overlay import Change, Edit, added_names, check_keys
from gateway.config.section import Section, refusal, suggestion
from gateway.config.unmatched_names import is_named
from gateway.fleet.fleet import Fleet
from gateway.fleet.reload import Reloader
from gateway.protocol.gateway_errors import ConfigError
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.upstream_credentials import SignInFailed
from registry.schema.display_text import excerpt
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

# Maximum length of an error message that repeats a name from the request.
_MESSAGE_CHARS: Final = 300
# 256 bits, which no brute-force attack can guess. The key has 43 characters.
_KEY_BYTES: Final = 32
_ROW: Final = {
    "name": "ci",
    "hash": "0123456789ab",
    "state": "good",
    "profiles": "all",
    "scopes": "tools:read",
    "groups": "",
    "expires": "2099-01-31",
    "origin": "overlay",
}


class KeyRequest(Section):
    """The body of `POST /admin/keys`."""

    name: str = Field(min_length=1, max_length=256, examples=["ci"])
    """Name of the caller, in logs and quotas."""
    profiles: list[str] | None = None
    """Names of the profiles that the key gives access to; absent means all."""
    scopes: list[str] = Field(default_factory=list, examples=[["tools:read"]])
    """The scopes that restrict the key; an unrestricted key has no scopes."""
    groups: list[str] = Field(default_factory=list)
    """Groups of the caller."""
    expires: str | None = Field(default=None, examples=["2099-01-31"])
    """When the key expires: at the end of a date in UTC, or at a time."""


class KeyRoutes:
    """Shows keys, creates keys in the overlay, and revokes keys in the overlay or in the configuration file."""

    def __init__(self, reloader: Reloader, shared: ApiKeys | None = None) -> None:
        """Create the handlers.

        Args:
            reloader: Applies changes and reloads the configuration file.
            shared: Also revokes keys for the other replicas, each of which has its own configuration file; None without
                other replicas.
        """
        self._reloader = reloader
        self._shared = shared

    @route(
        "GET",
        "/admin/keys",
        merge=Merge.SAME,
        rows="keys",
        filters=("status", "q"),
        example={"keys": [_ROW]},
    )
    async def keys(self, request: Request) -> Response:
        """Return the API keys of callers, without the secret.

        Returns:
            `keys`: name, hash (its first characters), state, profiles, scopes, groups, expires and origin (file or
            overlay) of each.
        """
        added = {hash_of(key) for key in self._issued_keys()}
        rows = [
            {**key_row(key), "origin": "overlay" if hash_of(key) in added else "file"}
            for key in self._reloader.config.gateway.auth.api_keys
        ]
        return JsonDocument({"keys": rows})

    @route(
        "POST",
        "/admin/keys",
        merge=Merge.CHANGE,
        status=201,
        role="admin",
        body=KeyRequest,
        example={**_ROW, "key": "tg_…"},
    )
    async def make_key(self, request: Request) -> Response:
        """Create a key. Its hash is stored in the overlay and survives a restart.

        Returns:
            `key`, which is shown only once; `name`, `hash` (its first characters), and the other members of the row.

        Errors:
            400: The name, a scope, a profile or a time is wrong.
        """
        requested = await read_body(request, KeyRequest)
        try:
            key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
            entry = {
                **requested.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True),
                "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
            }
            api_key = ApiKey.model_validate(entry)
        except ValidationError as error:
            raise Refusal(400, str(refusal(error, "request"))) from None
        profile_names = sorted({DEFAULT_PROFILE, *self._reloader.config.gateway.profiles})
        if unknown := [name for name in api_key.profiles or () if name not in profile_names]:
            name = excerpt(unknown[0], _MESSAGE_CHARS)
            raise Refusal(
                400, f"request: profiles: unknown profile {name}; expected {suggestion(unknown[0], profile_names)}"
            )
        added = Change(kind="key_added", target=api_key.name, entry=entry, by=administrator_name(request))
        await apply_edit(self._reloader, Edit(add=(added,)), check_keys, status=400)
        log.warning("API key created", extra={"principal": api_key.name})
        # This is the only response that contains the key: known secrets are removed from all other responses.
        return JsonDocument({**key_row(api_key), "key": key, "origin": "overlay"}, 201)

    @route(
        "DELETE",
        "/admin/keys/{key}",
        merge=Merge.CHANGE,
        role="admin",
        examples={"key": "ci"},
        example={"revoked": ["ci"], "file": "/etc/typegate/typegate.yaml", "kept": False},
    )
    async def revoke_key(self, request: Request) -> Response:
        """Revoke the keys with a name, or the key whose hash begins with the given text, at once and permanently.

        The keys are removed from the configuration file or, if the file cannot be changed, revoked in the overlay.

        Returns:
            `revoked`: the names; `file`: the changed file, or null; `kept`: whether keys remain listed as expired.

        Errors:
            404: The key does not exist.
            409: The key cannot be revoked, or the configuration file has an error.
        """
        which = request.path_params["key"]
        keys = self._reloader.config.gateway.auth.api_keys
        try:
            chosen = [keys[at] for at in chosen_keys(keys, which, "request")]
        except NoSuchKey as error:
            raise Refusal(404, excerpt(error.message, _MESSAGE_CHARS)) from None
        added = {hash_of(key) for key in self._issued_keys()}
        path, file = self._reloader.path, None
        of_file = [key for key in chosen if hash_of(key) not in added]
        if of_file and path is not None:
            try:
                revoked = await anyio.to_thread.run_sync(
                    revoke_keys, path, which, added_names(self._reloader.overlay.changes)
                )
                file = revoked.file
            except (ConfigError, OSError) as error:
                # The file is read-only, or cannot be edited without loss: revoke the keys in the overlay instead.
                log.info("configuration file not changed", extra={"path": str(path), "reason": str(error)})
            else:
                await self._reloader.reload(path)
                if self._reloader.error is not None:
                    raise Refusal(409, self._reloader.error)
                if len(of_file) == len(chosen):
                    return self._finish_revocation(chosen, file, is_kept=revoked.kept)
                of_file = []
        # Remove keys of the overlay, but keep two kinds of keys as expired keys: the last keys, because without any key
        # every caller would be accepted, and keys that rules name, because a rule with an unknown name would make the
        # next start fail.
        config = self._reloader.config.gateway
        last = len(chosen) == len(keys) and config.auth.oauth is None
        staying = {hash_of(key) for key in chosen if last or is_named(key.name, config)} & added
        removed_hashes = {hash_of(key) for key in chosen} & added - staying
        ended = [*of_file, *(key for key in chosen if hash_of(key) in staying)]
        edit = Edit(
            add=tuple(
                Change(
                    kind="key_revoked", target=key.name, entry={"hash": hash_of(key)}, by=administrator_name(request)
                )
                for key in ended
            ),
            remove=frozenset(each.id for each in self._reloader.overlay.changes if _has_added(each, removed_hashes)),
        )
        await apply_edit(self._reloader, edit)
        return self._finish_revocation(chosen, file, is_kept=bool(ended))

    def _finish_revocation(self, keys: list[ApiKey], file: Path | None, *, is_kept: bool) -> Response:
        names = [key.name for key in keys]
        if self._shared is not None:
            self._shared.revoke(hash_of(key) for key in keys)
        log.warning("API keys revoked", extra={"principal": ", ".join(names)})
        return JsonDocument({"revoked": names, "file": None if file is None else str(file), "kept": is_kept})

    def _issued_keys(self) -> list[ApiKey]:
        additions = (each for each in self._reloader.overlay.changes if each.kind == "key_added")
        return [ApiKey.model_validate(each.entry) for each in additions]


def _has_added(change: Change, hashes: set[str]) -> bool:
    """Return whether a change has added one of the keys with these hashes."""
    return change.kind == "key_added" and str(change.entry.get("keyHash", "")).removeprefix("sha256:") in hashes


_NAMED = {"name": "calendar"}
# The maximum length of a caller's name: longer than SUBJECT@ISSUER for any accepted token.
_USER_LENGTH: Final = 1_024


class SignInRoutes:
    """Starts sign-ins to upstreams, and signs out."""

    def __init__(self, fleet: Fleet, sign_ins: SignIns) -> None:
        self._fleet = fleet
        self._sign_ins = sign_ins

    @route(
        "POST",
        "/admin/servers/{name}/sign-in",
        merge=Merge.SAME,
        examples=_NAMED,
        example={"url": "https://issuer.example.test/authorize?client_id=…", "expires": "2027-01-31T08:10:00Z"},
    )
    async def sign_in(self, request: Request) -> Response:
        """Start a sign-in to an upstream. Any person who opens the link signs in for the given caller.

        Returns:
            `url`, to be opened in a browser, and `expires`: when the URL expires.

        Query:
            principal: The caller, if each caller signs in separately: the name of a key, or SUBJECT@ISSUER.

        Errors:
            404: The server does not exist.
            409: The server needs no sign-in, or no authorization server was found; the reason is in `error`.
        """
        try:
            link = await self._requested_sign_in(request).create_link()
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None
        expires = datetime.fromtimestamp(link.expires_at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        # Do not use `JsonDocument`: it could mistake the client id in the URL for a secret, and remove the id.
        return JSONResponse({"url": link.url, "expires": expires}, headers={"cache-control": "no-store"})

    @route("DELETE", "/admin/servers/{name}/sign-in", merge=Merge.SAME, examples=_NAMED, example={"signedOut": True})
    async def sign_out(self, request: Request) -> Response:
        """Revoke the sign-in to an upstream, and delete its tokens.

        Returns:
            `signedOut`: whether a sign-in existed.

        Query:
            principal: The caller, if each caller signs in separately.

        Errors:
            404: The server does not exist.
            409: The server needs no sign-in, or another process is using its tokens.
        """
        try:
            return JsonDocument({"signedOut": await self._sign_ins.sign_out(self._requested_sign_in(request))})
        except SignInFailed as error:
            raise Refusal(409, str(error)) from None

    def _requested_sign_in(self, request: Request) -> SignIn:
        """Return the sign-in to the server in the path.

        Raises:
            Refusal: The server does not exist, the server needs no sign-in, or `principal` is wrong.
        """
        name = request.path_params["name"]
        config = self._fleet.servers.get(name)
        if config is None:
            raise missing("server", name)
        user = request.query_params.get("principal", "")
        per_user = self._fleet.links[name].per_user
        if per_user and not user:
            raise Refusal(409, f"each caller signs in to {name!r} separately: add --user NAME, or ?principal=NAME")
        if user and not per_user:
            raise Refusal(409, f"all callers share the sign-in to {name!r}: omit principal")
        if len(user) > _USER_LENGTH or not user.isprintable():
            raise Refusal(409, "principal is not a valid name of a caller")
        sign_in = self._sign_ins.get(name, config, user=user)
        if sign_in is None:
            raise Refusal(409, f"server {name!r} needs no sign-in: it has credentials of its own")
        return sign_in


# Maximum length of an id that an error message repeats.
_ID_CHARS: Final = 40
_APPROVAL: Final = {
    "id": "3f2a9c01b4d7",
    "state": "waiting",
    "principal": "ci",
    "wrapper": "bank__wire",
    "server": "bank",
    "rule": "transfers ask",
    "arguments": "amount: 5",
    "by": "administrator",
    "for": None,
    "asked": "2027-01-31T08:00:00.000Z",
    "expires": "2027-01-31T08:05:00.000Z",
}


class DecisionRequest(Section):
    """The body of `POST /admin/approvals/{id}`."""

    decision: Literal["allow", "deny"] = Field(examples=["allow"])
    """Whether the call may be made. To deny an approved call revokes the approval."""
    lasts: Lasts = Field(default="once", alias="for", examples=["once"])
    """Scope of the decision: this call, or the caller's later calls of the tool, in this session or in any session."""


class ApprovalRoutes:
    """Shows and decides pending approvals. With several processes, the first process stores all approvals."""

    def __init__(self, approval_store: ApprovalStore) -> None:
        self._approval_store = approval_store

    @route(
        "GET",
        "/admin/approvals",
        merge=Merge.SAME,
        rows="approvals",
        filters=("server", "status", "q"),
        example={"approvals": [_APPROVAL]},
    )
    async def approvals(self, request: Request) -> Response:
        """Return the calls that wait for approval, and the approvals that are valid for a session or a tool.

        Returns:
            `approvals`: id, state (waiting or allowed), principal, wrapper, server, rule, arguments, by (whether the
            host or an administrator decides), for, asked and expires of each.
        """
        return JsonDocument({"approvals": self._approval_store.rows()})

    @route(
        "POST",
        "/admin/approvals/{id}",
        merge=Merge.SAME,
        body=DecisionRequest,
        examples={"id": "3f2a9c01b4d7"},
        example={"id": "3f2a9c01b4d7", "decision": "allow", "for": "once"},
    )
    async def decide(self, request: Request) -> Response:
        """Allow or deny a call, or revoke an approval.

        Returns:
            `id`, `decision` and `for`.

        Errors:
            400: The decision is invalid.
            404: No call with this id is waiting.
        """
        requested = await read_body(request, DecisionRequest)
        question_id = request.path_params["id"]
        allow = requested.decision == "allow"
        if not await self._approval_store.decide(question_id, allow=allow, lasts=requested.lasts, by="administrator"):
            raise Refusal(404, f"no call with the id {excerpt(question_id, _ID_CHARS)} is waiting")
        return JsonDocument({"id": question_id, "decision": requested.decision, "for": requested.lasts})
