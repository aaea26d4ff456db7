"""`typegate audit` and `audit verify`."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from gateway.audit.log_reader import Filter, Verdict, parse_since, read, verify
from gateway.audit.log_writer import NotWritten
from gateway.commands import output
from gateway.commands.admin_client import (
    NotReached,
    UsageError,
    ask_running_gateway,
    demo_dir,
    load_added_names,
    request_admin,
    state_dir,
)
from gateway.process.files import expand_home

_COLUMNS = ("time", "event", "principal", "what", "outcome", "rule", "ms", "transport", "peer")
_NARROW = ("time", "event", "principal", "what", "outcome", "ms")
# The maximum number of entries in one response of the admin API.
_PAGE: Final = 1_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DEFAULT_NAME: Final = "audit.jsonl"


def audit(args: Namespace) -> int:
    """Show entries of the audit log, the earliest first, or verify the log.

    Raises:
        UsageError: The audit log does not exist, or `--since` is malformed.
        NotReached: The gateway at `--url` does not answer.
    """
    if args.action == "verify":
        if args.url is not None:
            raise UsageError("verify reads files; run it on the machine of the gateway, without --url")
        return _verify(_location(args), _anchors(args.anchor), copied=args.file is not None)
    if args.anchor:
        raise UsageError("--anchor is for `typegate audit verify`")
    try:
        since = parse_since(args.since) if args.since else ""
    except ValueError as error:
        raise UsageError(f"--since {error}") from None
    if args.url is not None:
        rows = ask_running_gateway(args, lambda url, token: _from_gateway(args, url, token))
    else:
        path = _location(args)
        if not path.exists():
            raise UsageError(_missing_log_text(path))
        look_for = Filter(principal=args.principal, tool=args.tool, event=args.event, since=since)
        rows = read(path, look_for, limit=args.limit, most_bytes=None).rows
    rows = rows[::-1]
    if args.json:
        output.print_json(rows)
    else:
        output.print_table("audit log", _COLUMNS, [_table_row(row) for row in rows], narrow=_NARROW)
    return 0


def _anchors(texts: list[str]) -> dict[int, str]:
    anchors = {}
    for text in texts:
        number, _, digest = text.partition(":")
        if not (number.isascii() and number.isdigit() and _DIGEST.fullmatch(digest)):
            raise UsageError(f"--anchor {text} is not an anchor; expected LINE:DIGEST from the gateway's log")
        anchors[int(number)] = digest
    return anchors


def _verify(path: Path, anchors: dict[int, str], *, copied: bool) -> int:
    from gateway.audit.log_writer import Limits, LogFile

    try:
        verdict = verify(LogFile(path, Limits(days=1, total_bytes=1)), anchors)
    except FileNotFoundError:
        raise UsageError(_missing_log_text(path)) from None
    except NotWritten as error:
        raise NotReached(str(error)) from None
    if not verdict.head:
        _report_missing_head(verdict, path, copied=copied)
    for fault in verdict.faults:
        output.say(fault)
    counted = f"{verdict.lines} entries in {verdict.files} file{'' if verdict.files == 1 else 's'}"
    print(f"{path}: {'NOT intact' if verdict.faults else 'intact'}, {counted}")
    return int(bool(verdict.faults))


def _report_missing_head(verdict: Verdict, path: Path, *, copied: bool) -> None:
    text = f"{path}.head is missing or damaged: entries may be missing at the end"
    if copied:
        output.say(f"warning: {text}")
    else:
        verdict.add(text)


def _location(args: Namespace) -> Path:
    if args.file is not None:
        return Path(args.file)
    name = _DEFAULT_NAME
    if args.config is not None:
        from gateway.config.load import load

        name = load(args.config, added=load_added_names(args.config, state_dir(args))).gateway.audit.file
    path = state_dir(args) / expand_home(name)
    demo_path = demo_dir(args) / name
    if args.config is None and not path.exists() and demo_path.exists():
        return demo_path
    return path


def _missing_log_text(path: Path) -> str:
    return (
        f"there is no audit log at {path}; expected the --state-dir of the gateway, its --config FILE if that sets "
        "gateway.audit.file, or the --url of a running gateway"
    )


def _from_gateway(args: Namespace, url: str, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    query = {name: value for name in ("principal", "tool", "event", "since") if (value := getattr(args, name))}
    while len(rows) < args.limit:
        page_query = {**query, "limit": str(min(_PAGE, args.limit - len(rows)))}
        page = request_admin(url, "/admin/audit", token, page_query)
        rows += page["audit"]
        if page["next"] is None:
            break
        query["before"] = str(page["next"])
    return rows


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an audit entry as a table row."""
    about = ("wrapper", "name", "action", "where", "server")
    outcome = row.get("outcome")
    reached = outcome if isinstance(outcome, dict) else {}
    # The first level (transport, JSON-RPC or tool) at which the call failed. A call that was not sent has no outcome.
    failed = next((f"{level} {end}" for level, end in reached.items() if end not in (None, "ok")), None)
    ended = failed or ("ok" if any(reached.values()) else None)
    return {
        **row,
        "what": next((row[name] for name in about if row.get(name) is not None), None),
        "outcome": row.get("reason") or row.get("decision") or ended or row.get("status"),
        "rule": row.get("rule") or row.get("hook"),
    }
