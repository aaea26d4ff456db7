"""One change of an administrator, made in the overlay: built on what is there, applied, answered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from gateway import wire
from gateway.access.administrators import Administrator
from gateway.admin.documents import Refusal
from gateway.admin.routes import ADMINISTRATOR
from gateway.config.model import Config
from gateway.config.overlay import MAX_CHANGES, Edit
from gateway.errors import ConfigError
from gateway.reload import Reloader

Check = Callable[[Config], None]


def who(request: Request) -> str:
    """The name of the administrator who asks."""
    administrator: Administrator | None = request.scope.get(ADMINISTRATOR)
    return administrator.name if administrator is not None else ""


def etag_of(document: Any) -> str:
    """The entity tag of what a document says (RFC 9110, section 8.8.3 "ETag")."""
    return f'"{hashlib.sha256(wire.dumps(document)).hexdigest()[:32]}"'


def check_state(request: Request, tag: str) -> None:
    """Refuse a change that is about another state (RFC 9110, section 13.1.1 "If-Match").

    Raises:
        Refusal: It is.
    """
    wanted = request.headers.get("if-match")
    if wanted is None or wanted.strip() == "*" or tag in {each.strip() for each in wanted.split(",")}:
        return
    text = "it has changed since it was looked at; look again, and repeat the change if it is still wanted"
    raise Refusal(412, text, headers={"etag": tag})


async def change(reloader: Reloader, edit: Edit, check: Check = lambda config: None, *, status: int = 409) -> None:
    """Edit the changes that are in use.

    Args:
        reloader: Uses them.
        edit: What is added and removed.
        check: Raises `ConfigError` for a configuration that cannot be used.
        status: Of the refusal: whether what was sent is wrong, or does not go with the rest.

    Raises:
        Refusal: They cannot be used like that, or are in use and cannot be kept.
    """
    if len(edit.of(reloader.overlay.changes)) > MAX_CHANGES:
        text = f"there are {MAX_CHANGES} changes already; expected those that are to stay in the configuration file"
        raise Refusal(status, text)
    try:
        await reloader.change(edit, check)
    except ConfigError as error:
        raise Refusal(status, error.message) from None
    if reloader.overlay.unsaved:
        what = "the change is in use, and is lost when the gateway ends"
        raise Refusal(500, f"{what}: {reloader.overlay.error}; make the directory writable, and repeat the change")
