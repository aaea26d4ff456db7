"""`typegate key new`, `list` and `revoke`: keys for callers, and which of them are still good."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from gateway.access.api_keys import key_row
from gateway.commands import output
from gateway.commands.admin_client import admin_document, admin_rows
from gateway.commands.locations import UsageError, added_over
from gateway.commands.running import from_running
from gateway.config.auth import KEY_PREFIX, SCOPES, ApiKey
from gateway.config.edit_keys import revoke_keys
from gateway.config.load import load
from gateway.config.section import suggestion
from gateway.config.wording import refusal

# Twice what can never be found by trying; 43 characters.
_KEY_BYTES: Final = 32
_LIFE: Final = re.compile(r"([1-9]\d{0,4})([dhw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}


def new_key(args: Namespace) -> int:
    """Print a new key, and the entry that makes it good.

    Raises:
        UsageError: The name, a scope or a time is not in its form.
    """
    for scope in args.scope:
        if scope not in SCOPES:
            raise UsageError(f"--scope {scope}: expected {suggestion(scope, list(SCOPES))}")
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry: dict[str, Any] = {"name": args.name, "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    given = {"profiles": args.profile, "scopes": args.scope, "groups": args.group}
    entry |= {name: values for name, values in given.items() if values}
    if args.expires is not None:
        entry["expires"] = _expiry(args.expires)
    try:
        ApiKey.model_validate(entry)
    except ValidationError as error:
        raise UsageError(str(refusal(error, "key new"))) from None
    if args.json:
        output.as_json({"key": key, "entry": entry})
        return 0
    output.say("the key, which is shown this once; its caller sends it as `Authorization: Bearer KEY`:")
    print(key)
    output.say("the entry for gateway.auth.apiKeys in the configuration:")
    print(f"- {json.dumps(entry, ensure_ascii=False)}")
    return 0


def list_keys(args: Namespace) -> int:
    """List the keys of a configuration, or of a running gateway, without the keys.

    Raises:
        ConfigError: The file cannot be used.
        NotReached: No gateway answers.
    """
    if args.config is not None:
        rows = [key_row(key) for key in load(args.config, added=added_over(args.config)).gateway.auth.api_keys]
    else:
        rows = from_running(args, lambda url, token: admin_rows(url, "/admin/keys", token))
    if args.json:
        output.as_json(rows)
    else:
        output.table("keys", ("name", "hash", "state", "profiles", "scopes", "groups", "expires"), rows)
    return 0


def revoke_key(args: Namespace) -> int:
    """Take keys out of a configuration file, or have a running gateway do so.

    Raises:
        ConfigError: The file cannot be used, or has no such key.
        NotReached: No gateway answers, or it refuses.
    """
    if args.config is not None:
        revoked = revoke_keys(args.config, args.key, added_over(args.config))
        done: dict[str, Any] = {"revoked": revoked.names, "file": str(revoked.file), "kept": revoked.kept}
    else:
        path = f"/admin/keys/{quote(args.key, safe='')}"
        done = from_running(args, lambda url, token: admin_document(url, path, token, method="DELETE"))
    if args.json:
        output.as_json(done)
        return 0
    for name in done["revoked"]:
        print(f"revoked: {name}")
    if done["file"] is None:
        output.say("the gateways of the cluster refuse it; their file cannot be written, and should lose it too")
    elif done["kept"]:
        output.say(f"it was the last key: it stays in {done['file']}, expired, so that not everybody may call")
    else:
        output.say(f"taken out of {done['file']}; a gateway that runs by it follows within seconds")
    return 0


def _expiry(text: str) -> str:
    match = _LIFE.fullmatch(text)
    if match is None:
        raise UsageError(f"--expires {text}: expected a number of hours, days or weeks, as 12h, 90d or 4w")
    moment = datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
