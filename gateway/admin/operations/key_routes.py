"""`/admin/keys`: the API keys of callers: new ones, and their end."""

from __future__ import annotations

import hashlib
import logging
import secrets
from pathlib import Path
from typing import Final

import anyio.to_thread
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.api_keys import ApiKeys, key_row
from gateway.admin.changing import change, who
from gateway.admin.documents import JsonDocument, Refusal, read_body
from gateway.admin.routes import Merge, route
from gateway.config.auth import KEY_PREFIX, ApiKey
from gateway.config.edit_keys import NoSuchKey, chosen_keys, hash_of, revoke_keys
from gateway.config.named_callers import is_named
from gateway.config.overlay import Change, Edit, added_names, check_keys
from gateway.config.section import Section, suggestion
from gateway.config.wording import refusal
from gateway.errors import ConfigError
from gateway.reload import Reloader
from registry.schema.display_text import excerpt
from registry.views.profile import DEFAULT_PROFILE

log = logging.getLogger(__name__)

# Of a text that repeats what was asked for.
_MESSAGE_CHARS: Final = 300
# Twice what can never be found by trying; 43 characters.
_KEY_BYTES: Final = 32
_ROW: Final = {
    "name": "ci", "hash": "0123456789ab", "state": "good", "profiles": "all", "scopes": "tools:read", "groups": "",
    "expires": "2099-01-31", "origin": "overlay",
}  # fmt: skip


class KeyRequest(Section):
    """The body of `POST /admin/keys`."""

    name: str = Field(min_length=1, max_length=256, examples=["ci"])
    """Name of the caller, in logs and quotas."""
    profiles: list[str] | None = None
    """Names of the profiles that it opens; absent means all."""
    scopes: list[str] = Field(default_factory=list, examples=[["tools:read"]])
    """What the key may be used for; empty means everything."""
    groups: list[str] = Field(default_factory=list)
    """Groups that its caller belongs to."""
    expires: str | None = Field(default=None, examples=["2099-01-31"])
    """Until when it is good: a date, to its end in UTC, or a time."""


class KeyRoutes:
    """Shows keys, makes new ones in the overlay, and revokes them there or in the configuration file."""

    def __init__(self, reloader: Reloader, shared: ApiKeys | None = None) -> None:
        """Answer about these.

        Args:
            reloader: Reloads the file.
            shared: Where keys are revoked for other gateways too, each of which has a file of its own.
        """
        self._reloader = reloader
        self._shared = shared

    @route(
        "GET", "/admin/keys", merge=Merge.SAME, rows="keys", filters=("status", "q"),
        example={"keys": [_ROW]},
    )  # fmt: skip
    async def keys(self, request: Request) -> Response:
        """The API keys of callers, without the keys.

        Returns:
            `keys`: name, hash (its beginning), state, profiles, scopes, groups, expires and origin (file or overlay) of
            each.
        """
        added = {hash_of(key) for key in self._added()}
        rows = [
            {**key_row(key), "origin": "overlay" if hash_of(key) in added else "file"}
            for key in self._reloader.config.gateway.auth.api_keys
        ]
        return JsonDocument({"keys": rows})

    @route(
        "POST", "/admin/keys", merge=Merge.CHANGE, status=201, role="admin", body=KeyRequest,
        example={**_ROW, "key": "tg_…"},
    )  # fmt: skip
    async def make_key(self, request: Request) -> Response:
        """Make a key. It is kept in the overlay as its hash, and there after a restart.

        Returns:
            `key`, which is shown this once; `name`, `hash` (its beginning) and what else it is good for.

        Errors:
            400: Its name, a scope, a profile or a time is wrong.
        """
        wanted = await read_body(request, KeyRequest)
        try:
            key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
            entry = {
                **wanted.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True),
                "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}",
            }
            made = ApiKey.model_validate(entry)
        except ValidationError as error:
            raise Refusal(400, str(refusal(error, "request"))) from None
        known = sorted({DEFAULT_PROFILE, *self._reloader.config.gateway.profiles})
        if unknown := [name for name in made.profiles or () if name not in known]:
            what = f"names no profile ({excerpt(unknown[0], _MESSAGE_CHARS)}); expected {suggestion(unknown[0], known)}"
            raise Refusal(400, f"request: profiles: {what}")
        added = Change(kind="key_added", target=made.name, entry=entry, by=who(request))
        await change(self._reloader, Edit(add=(added,)), check_keys, status=400)
        log.warning("a key was made: %s", made.name)
        # The one place that shows it; known secrets are taken out of every other answer.
        return JsonDocument({**key_row(made), "key": key, "origin": "overlay"}, 201)

    @route(
        "DELETE", "/admin/keys/{key}", merge=Merge.CHANGE, role="admin", examples={"key": "ci"},
        example={"revoked": ["ci"], "file": "/etc/typegate/typegate.yaml", "kept": False},
    )  # fmt: skip
    async def revoke_key(self, request: Request) -> Response:
        """Revoke the keys of a name, or the one whose hash begins so: at once, and over restarts.

        They are taken out of the configuration file, or kept in the overlay as revoked where that cannot be changed.

        Returns:
            `revoked`: their names; `file`, or null where it is not changed; `kept`: whether they stay as expired.

        Errors:
            404: There is no such key.
            409: It cannot be revoked, or the file is not used as it is.
        """
        which = request.path_params["key"]
        keys = self._reloader.config.gateway.auth.api_keys
        try:
            chosen = [keys[at] for at in chosen_keys(keys, which, "request")]
        except NoSuchKey as error:
            raise Refusal(404, excerpt(error.message, _MESSAGE_CHARS)) from None
        added = {hash_of(key) for key in self._added()}
        path, file = self._reloader.path, None
        of_file = [key for key in chosen if hash_of(key) not in added]
        if of_file and path is not None:
            try:
                revoked = await anyio.to_thread.run_sync(
                    revoke_keys, path, which, added_names(self._reloader.overlay.changes)
                )
                file = revoked.file
            except (ConfigError, OSError) as error:
                # Read-only, or written in a form that cannot be changed without loss: the overlay has it.
                log.info("%s was not changed: %s", path, error)
            else:
                await self._reloader.reload(path)
                if self._reloader.error is not None:
                    raise Refusal(409, self._reloader.error)
                if len(of_file) == len(chosen):
                    return self._revoked(chosen, file, kept=revoked.kept)
                of_file = []
        # Those that the overlay has added go; without any key left everybody could call, so the last ones stay, and so
        # do those that rules are about: a rule about nobody may be a slip, for which the next start would be refused.
        config = self._reloader.config.gateway
        last = len(chosen) == len(keys) and config.auth.oauth is None
        staying = {hash_of(key) for key in chosen if last or is_named(key.name, config)} & added
        gone = {hash_of(key) for key in chosen} & added - staying
        ended = [*of_file, *(key for key in chosen if hash_of(key) in staying)]
        edit = Edit(
            add=tuple(
                Change(kind="key_revoked", target=key.name, entry={"hash": hash_of(key)}, by=who(request))
                for key in ended
            ),
            remove=frozenset(each.id for each in self._reloader.overlay.changes if _is_of(each, gone)),
        )
        await change(self._reloader, edit)
        return self._revoked(chosen, file, kept=bool(ended))

    def _revoked(self, keys: list[ApiKey], file: Path | None, *, kept: bool) -> Response:
        names = [key.name for key in keys]
        if self._shared is not None:
            self._shared.revoke(hash_of(key) for key in keys)
        log.warning("keys revoked: %s", ", ".join(names))
        return JsonDocument({"revoked": names, "file": None if file is None else str(file), "kept": kept})

    def _added(self) -> list[ApiKey]:
        found = (each for each in self._reloader.overlay.changes if each.kind == "key_added")
        return [ApiKey.model_validate(each.entry) for each in found]


def _is_of(change: Change, hashes: set[str]) -> bool:
    """Whether a change has added one of these keys."""
    return change.kind == "key_added" and str(change.entry.get("keyHash", "")).removeprefix("sha256:") in hashes
