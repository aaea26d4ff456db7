"""`typegate audit` and `audit verify`: read the record of calls, and say whether it is whole."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from gateway.audit.reading import Filter, read, since
from gateway.audit.verification import Verdict, verify
from gateway.audit.writing import NotWritten
from gateway.commands import output
from gateway.commands.admin_client import admin_document
from gateway.commands.locations import NotReached, UsageError, added_over, state_dir
from gateway.commands.running import demo_dir, from_running
from gateway.files import expand_home

_COLUMNS = ("time", "event", "principal", "what", "outcome", "rule", "ms", "transport", "peer")
_NARROW = ("time", "event", "principal", "what", "outcome", "ms")
# The most that the admin API gives at once.
_PAGE: Final = 1_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DEFAULT_NAME: Final = "audit.jsonl"


def audit(args: Namespace) -> int:
    """Show lines of the record, the earliest first; or verify it.

    Raises:
        UsageError: There is no record, or a time is in no form that is known.
        NotReached: The gateway that was named does not answer.
    """
    if args.action == "verify":
        if args.url is not None:
            raise UsageError("verify reads files; expected it on the machine of the gateway, without --url")
        return _verify(_location(args), _anchors(args.anchor), copied=args.file is not None)
    if args.anchor:
        raise UsageError("--anchor is for `typegate audit verify`")
    try:
        wanted = since(args.since) if args.since else ""
    except ValueError as error:
        raise UsageError(f"--since {error}") from None
    if args.url is not None:
        rows = from_running(args, lambda url, token: _from_gateway(args, url, token))
    else:
        path = _location(args)
        if not path.exists():
            raise UsageError(_nowhere(path))
        look_for = Filter(principal=args.principal, tool=args.tool, event=args.event, since=wanted)
        rows = read(path, look_for, limit=args.limit, most_bytes=None).rows
    rows = rows[::-1]
    if args.json:
        output.as_json(rows)
    else:
        output.table("record", _COLUMNS, [_shown(row) for row in rows], narrow=_NARROW)
    return 0


def _anchors(texts: list[str]) -> dict[int, str]:
    anchors = {}
    for text in texts:
        number, _, digest = text.partition(":")
        if not (number.isascii() and number.isdigit() and _DIGEST.fullmatch(digest)):
            raise UsageError(f"--anchor {text} is not an anchor; expected LINE:DIGEST, as the gateway's log has it")
        anchors[int(number)] = digest
    return anchors


def _verify(path: Path, anchors: dict[int, str], *, copied: bool) -> int:
    from gateway.audit.writing import Limits, RecordFile

    try:
        verdict = verify(RecordFile(path, Limits(days=1, total_bytes=1)), anchors)
    except FileNotFoundError:
        raise UsageError(_nowhere(path)) from None
    except NotWritten as error:
        raise NotReached(str(error)) from None
    if not verdict.head:
        _tell_of_no_head(verdict, path, copied=copied)
    for fault in verdict.faults:
        output.say(fault)
    counted = f"{verdict.lines} lines in {verdict.files} file{'' if verdict.files == 1 else 's'}"
    print(f"{path}: {'NOT whole' if verdict.faults else 'whole'}, {counted}")
    return int(bool(verdict.faults))


def _tell_of_no_head(verdict: Verdict, path: Path, *, copied: bool) -> None:
    text = f"{path}.head is not there or damaged: lines may be missing at the end"
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

        name = load(args.config, added=added_over(args.config, state_dir(args))).gateway.audit.file
    path = state_dir(args) / expand_home(name)
    of_demo = demo_dir(args) / name
    if args.config is None and not path.exists() and of_demo.exists():
        return of_demo
    return path


def _nowhere(path: Path) -> str:
    return (
        f"there is no record at {path}; expected the --state-dir of the gateway, its --config FILE if that has "
        "gateway.audit.file, or --url of one that runs"
    )


def _from_gateway(args: Namespace, url: str, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    query = {name: value for name in ("principal", "tool", "event", "since") if (value := getattr(args, name))}
    while len(rows) < args.limit:
        asked = {**query, "limit": str(min(_PAGE, args.limit - len(rows)))}
        found = admin_document(url, "/admin/audit", token, asked)
        rows += found["audit"]
        if found["next"] is None:
            break
        query["before"] = str(found["next"])
    return rows


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A line as a row of the table."""
    about = ("wrapper", "name", "action", "where", "server")
    outcome = row.get("outcome")
    reached = outcome if isinstance(outcome, dict) else {}
    # The first level that was not passed; without any, nothing was sent.
    failed = next((f"{level} {end}" for level, end in reached.items() if end not in (None, "ok")), None)
    ended = failed or ("ok" if any(reached.values()) else None)
    return {
        **row,
        "what": next((row[name] for name in about if row.get(name) is not None), None),
        "outcome": row.get("reason") or row.get("decision") or ended or row.get("status"),
        "rule": row.get("rule") or row.get("hook"),
    }
