"""`typegate admin`, `approvals`, `key`, `docs` and `completion`."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from pydantic import ValidationError

from gateway.access.credentials import key_row
from gateway.commands import output
from gateway.commands.admin_client import (
    NotReached,
    UsageError,
    ask_running_gateway,
    get_admin_rows,
    load_added_names,
    post_admin,
    request_admin,
)
from gateway.config.auth_config import KEY_PREFIX, SCOPES, ApiKey
from gateway.config.file_edits import revoke_keys
from gateway.config.load import load
from gateway.config.section import refusal, suggestion

# An installed package contains the pages; a checkout has them in deploy/guide.
_GUIDES: Final = (Path(__file__).parents[1] / "guide", Path(__file__).parents[2] / "deploy" / "guide")


def docs(args: Namespace) -> int:
    """Print a page of the manual: formatted on a terminal, as Markdown in a pipe. Without a topic, list the pages.

    Raises:
        UsageError: No page or several pages begin with the topic, or this installation has no pages.
    """
    pages = {page.stem: page for folder in _GUIDES for page in sorted(folder.glob("*.md"))}
    if not pages:
        raise UsageError(f"this installation has no manual; expected {_GUIDES[0]}")
    if args.topic is None:
        rows = [{"topic": name, "about": _title(page)} for name, page in sorted(pages.items())]
        output.print_table("manual", ("topic", "about"), rows)
        return 0
    topic = args.topic.lower().removesuffix(".md")
    matches = [topic] if topic in pages else [name for name in sorted(pages) if topic and name.startswith(topic)]
    if not matches:
        raise UsageError(f"docs {args.topic}: there is no such page; expected {suggestion(topic, [*pages])}")
    if len(matches) > 1:
        raise UsageError(f"docs {args.topic}: several pages begin like this; expected one of: {', '.join(matches)}")
    text = pages[matches[0]].read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print(text, end="")
        return 0
    from rich.console import Console  # imported lazily: not needed in a pipe
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))
    return 0


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def completion(args: Namespace) -> int:
    """Print the completion script of a shell."""
    import shtab

    print(shtab.complete(args.parser, shell=args.shell))
    return 0


def admin(args: Namespace) -> int:
    """Print a sign-in link to the admin page and, on a terminal, open it in the browser.

    Raises:
        NotReached: No gateway answers, or its admin API listens on a socket that no browser can reach.
    """

    def link(url: str, token: str) -> str:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if url.startswith("unix:"):
            raise NotReached(
                f"{url} is a socket, which browsers cannot open; expected gateway.admin.listen with a port"
            )
        created = post_admin(url, "/admin/session/links", token, {})
        return f"{parts.scheme}://{parts.netloc}{created['path']}"

    url_of_link = ask_running_gateway(args, link)
    print(url_of_link, flush=True)
    output.say("the link is valid for one sign-in within a minute")
    if not args.no_browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(url_of_link)
    return 0


_COLUMNS = ("id", "state", "principal", "wrapper", "rule", "for", "asked", "expires", "arguments")
_NARROW = ("id", "state", "principal", "wrapper", "arguments")


def list_approvals(args: Namespace) -> int:
    """Show the calls that wait for approval, and the approvals that allow more than one call."""
    rows = ask_running_gateway(args, lambda url, token: get_admin_rows(url, "/admin/approvals", token))
    if args.json:
        output.print_json(rows)
    else:
        output.print_table("approvals", _COLUMNS, rows, narrow=_NARROW)
    return 0


def allow(args: Namespace) -> int:
    """Allow a waiting call. With `--for`, also allow further calls in its session, or all calls of its tool."""
    return _decide(args, {"decision": "allow", "for": args.lasts})


def deny(args: Namespace) -> int:
    """Deny a waiting call, or withdraw an approval."""
    return _decide(args, {"decision": "deny"})


def _decide(args: Namespace, decision: dict[str, Any]) -> int:
    path = f"/admin/approvals/{quote(args.id, safe='')}"
    ask_running_gateway(args, lambda url, token: post_admin(url, path, token, decision))
    duration = f" for {decision['for']}" if decision.get("for", "once") != "once" else ""
    output.say(f"{args.id}: {'allowed' if decision['decision'] == 'allow' else 'denied'}{duration}")
    return 0


# 256 random bits, or 43 characters. Half of the bits would already rule out guessing.
_KEY_BYTES: Final = 32
_LIFE: Final = re.compile(r"([1-9]\d{0,4})([dhw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 7 * 24}


def new_key(args: Namespace) -> int:
    """Print a new API key and its configuration entry.

    Raises:
        UsageError: The name, a scope or the lifetime is invalid.
    """
    for scope in args.scope:
        if scope not in SCOPES:
            raise UsageError(f"--scope {scope}: expected {suggestion(scope, list(SCOPES))}")
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry: dict[str, Any] = {"name": args.name, "keyHash": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    restrictions = {"profiles": args.profile, "scopes": args.scope, "groups": args.group}
    entry |= {name: values for name, values in restrictions.items() if values}
    if args.expires is not None:
        entry["expires"] = _expiry(args.expires)
    try:
        ApiKey.model_validate(entry)
    except ValidationError as error:
        raise UsageError(str(refusal(error, "key new"))) from None
    if args.json:
        output.print_json({"key": key, "entry": entry})
        return 0
    output.say("the key, which is not shown again; the caller sends it as `Authorization: Bearer KEY`:")
    print(key)
    output.say("the entry for gateway.auth.apiKeys in the configuration:")
    print(f"- {json.dumps(entry, ensure_ascii=False)}")
    return 0


def list_keys(args: Namespace) -> int:
    """List the API keys in a configuration or a running gateway, without their secrets.

    Raises:
        ConfigError: The file cannot be used.
        NotReached: No gateway answers.
    """
    if args.config is not None:
        rows = [key_row(key) for key in load(args.config, added=load_added_names(args.config)).gateway.auth.api_keys]
    else:
        rows = ask_running_gateway(args, lambda url, token: get_admin_rows(url, "/admin/keys", token))
    if args.json:
        output.print_json(rows)
    else:
        output.print_table("keys", ("name", "hash", "state", "profiles", "scopes", "groups", "expires"), rows)
    return 0


def revoke_key(args: Namespace) -> int:
    """Revoke keys in a configuration file or a running gateway.

    Raises:
        ConfigError: The file cannot be used, or has no such key.
        NotReached: No gateway answers, or the gateway refuses.
    """
    if args.config is not None:
        revoked = revoke_keys(args.config, args.key, load_added_names(args.config))
        done: dict[str, Any] = {"revoked": revoked.names, "file": str(revoked.file), "kept": revoked.kept}
    else:
        path = f"/admin/keys/{quote(args.key, safe='')}"
        done = ask_running_gateway(args, lambda url, token: request_admin(url, path, token, method="DELETE"))
    if args.json:
        output.print_json(done)
        return 0
    for name in done["revoked"]:
        print(f"revoked: {name}")
    if done["file"] is None:
        output.say("all replicas reject the key now; their file cannot be written, so remove the key from it as well")
    elif done["kept"]:
        output.say(
            f"it stays in {done['file']} as expired, because it is the last key (without any key, every caller is "
            "allowed), or because a rule or hook names it"
        )
    else:
        output.say(f"removed from {done['file']}; a running gateway applies the change within seconds")
    return 0


def _expiry(text: str) -> str:
    match = _LIFE.fullmatch(text)
    if match is None:
        raise UsageError(f"--expires {text}: expected a number of hours, days or weeks: 12h, 90d or 4w")
    moment = datetime.now(UTC) + timedelta(hours=int(match[1]) * _HOURS[match[2]])
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
