"""`typegate key new` and `list`: keys for callers, and which of them are still good."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.commands import output
from gateway.commands.locations import UsageError
from gateway.config.auth import SCOPES, ApiKey
from gateway.config.load import load
from gateway.config.section import suggestion

# Twice what can never be found by trying; 43 characters.
_KEY_BYTES: Final = 32
# So that scanners of repositories and logs find one that was left behind.
_PREFIX: Final = "tg_"
_LIFE: Final = re.compile(r"([1-9]\d{0,4})([dhw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}


def new_key(args: Namespace) -> int:
    """Print a new key, and the entry that makes it good.

    Raises:
        UsageError: A scope or a time is not in its form.
    """
    for scope in args.scope:
        if scope not in SCOPES:
            raise UsageError(f"--scope {scope}: expected {suggestion(scope, list(SCOPES))}")
    if any(scope != "metrics" for scope in args.scope):
        output.say("warning: scopes of tools, prompts and resources are not applied yet; --profile restricts a key")
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry: dict[str, Any] = {"name": args.name, "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    given = {"profiles": args.profile, "scopes": args.scope, "groups": args.group}
    entry |= {name: values for name, values in given.items() if values}
    if args.expires is not None:
        entry["expires"] = _expiry(args.expires)
    if args.json:
        output.as_json({"key": key, "entry": entry})
        return 0
    output.say("the key, which is shown this once; its caller sends it as `Authorization: Bearer KEY`:")
    print(key)
    output.say("the entry for gateway.auth.apiKeys in the configuration:")
    print(f"- {json.dumps(entry, ensure_ascii=False)}")
    return 0


def list_keys(args: Namespace) -> int:
    """List the keys of a configuration, without the keys.

    Raises:
        ConfigError: The file cannot be used.
    """
    rows = [_row(key) for key in load(args.config).gateway.auth.api_keys]
    if args.json:
        output.as_json(rows)
    else:
        output.table("keys", ("name", "state", "profiles", "scopes", "groups", "expires"), rows)
    return 0


def _row(key: ApiKey) -> dict[str, Any]:
    expired = key.expires is not None and key.expires <= datetime.now(UTC)
    return {
        "name": key.name,
        "state": "expired" if expired else "good",
        "profiles": "all" if key.profiles is None else ", ".join(key.profiles) or "none",
        "scopes": ", ".join(key.scopes) or "all",
        "groups": ", ".join(key.groups),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
    }


def _expiry(text: str) -> str:
    match = _LIFE.fullmatch(text)
    if match is None:
        raise UsageError(f"--expires {text}: expected a number of hours, days or weeks, as 12h, 90d or 4w")
    moment = datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
