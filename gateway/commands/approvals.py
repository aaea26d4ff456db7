"""`typegate approvals list`, `allow` and `deny`: calls that wait for a person."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from urllib.parse import quote

from gateway.commands import output
from gateway.commands.admin_client import admin_change, admin_rows
from gateway.commands.running import from_running

_COLUMNS = ("id", "state", "principal", "wrapper", "rule", "for", "asked", "expires", "arguments")
_NARROW = ("id", "state", "principal", "wrapper", "arguments")


def list_approvals(args: Namespace) -> int:
    """Show the calls that wait, and what was allowed for longer than once."""
    rows = from_running(args, lambda url, token: admin_rows(url, "/admin/approvals", token))
    if args.json:
        output.as_json(rows)
    else:
        output.table("approvals", _COLUMNS, rows, narrow=_NARROW)
    return 0


def allow(args: Namespace) -> int:
    """Allow a call, or more than that."""
    return _decide(args, {"decision": "allow", "for": args.lasts})


def deny(args: Namespace) -> int:
    """Deny a call, or take back what was allowed."""
    return _decide(args, {"decision": "deny"})


def _decide(args: Namespace, decision: dict[str, Any]) -> int:
    path = f"/admin/approvals/{quote(args.id, safe='')}"
    from_running(args, lambda url, token: admin_change(url, path, token, decision))
    told = f" for {decision['for']}" if decision.get("for", "once") != "once" else ""
    output.say(f"{args.id}: {'allowed' if decision['decision'] == 'allow' else 'denied'}{told}")
    return 0
