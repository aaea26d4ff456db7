"""`typegate check`, `servers`, `tools` and `hooks`: show a running gateway, or what a configuration would register."""

from __future__ import annotations

import json
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from gateway.commands import output
from gateway.commands.admin_client import DEFAULT_URL, REQUEST_S, admin_document, admin_rows, request
from gateway.commands.locations import NotReached, UsageError, added_over, state_dir
from gateway.commands.lock import changes_of, drift
from gateway.commands.running import from_running
from registry.catalog.overrides import usage_text
from registry.catalog.unmatched import HIDES_NOTHING
from registry.views.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from gateway.app import Gateway

_SERVER_COLUMNS = (
    "name",
    "type",
    "state",
    "protocol",
    "tools",
    "quarantined",
    "repaired",
    "auth",
    "lastError",
)
_WRAPPER_COLUMNS = ("name", "server", "tool", "status", "tokens", "reason")
_WHERE_GIVEN = ("held", "signedIn")
# What fits 80 columns, with names of 48 characters.
_SERVERS_NARROW = ("name", "type", "state", "tools", "lastError")
_WRAPPERS_NARROW = ("name", "status", "tokens", "reason")
_QUARANTINE_COLUMNS = ("server", "kind", "tool", "status", "code", "detail")
_ARGUMENTS_NARROW = ("wrapper", "argument", "type", "required")
_ARGUMENT_COLUMNS = ("wrapper", "argument", "type", "required", "source", "description")
_HOOKED_COLUMNS = ("name", "kind", "before", "after")
_HOOK_COLUMNS = ("name", "mode", "phases", "priority", "onError", "breaker", "runs", "blocked", "failed", "ignored")
_CHANGE_COLUMNS = ("wrapper", "kind", "classes", "state")
# Exit code of `check --frozen`.
_DRIFTED: Final = 3
# These findings make `check` exit with 1: a tool that cannot be shown, or an entry of the file without effect.
_FAULTS: Final = ("quarantined", "overlay_rejected", HIDES_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a configuration registers, as rows of tables."""

    servers: list[dict[str, Any]] = field(default_factory=list)
    wrappers: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    definitions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hooked: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)


def check(args: Namespace) -> int:
    """Connect to every upstream once and show the result; 0 if all is well, 1 if something failed, 2 for a fault in
    the file, 3 if something has changed since it was approved and nothing may have.

    Raises:
        ConfigError: The configuration cannot be used at all.
    """
    if args.schema:
        from gateway.config.model import json_schema

        # Before anything is read: editors ask for the schema without having a file.
        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.config is None:
        raise UsageError("check needs a file; expected --config FILE (or --schema)")
    inspection = _inspect_config(args, progress=not args.json)
    locked = inspection.changes["file"] is not None
    if args.frozen and not locked:
        raise UsageError("--frozen needs a lock file; `typegate lock --config FILE` writes one")
    failed = [row for row in inspection.servers if row.get("lastError") and row["state"] not in ("disabled", "faulty")]
    if args.json:
        output.as_json(
            {
                "servers": inspection.servers,
                "wrappers": inspection.wrappers,
                "quarantine": inspection.quarantine,
                "warnings": inspection.warnings,
                "changes": inspection.changes["changes"],
            }
        )
    else:
        _show_servers(inspection.servers)
        output.table("wrappers", _WRAPPER_COLUMNS, inspection.wrappers, narrow=_WRAPPERS_NARROW)
        if inspection.quarantine:
            output.table(
                "quarantined, repaired, flagged or configured in vain", _QUARANTINE_COLUMNS, inspection.quarantine
            )
        if inspection.changes["changes"]:
            output.table("changed since they were approved", _CHANGE_COLUMNS, _change_rows(inspection))
        output.warn(inspection.warnings)
        if not inspection.servers:
            output.say(f"{args.config}: there are no servers in it; `typegate add WHAT` adds one")
    # Repaired tools work: they are shown, and are no fault.
    faults = [row for row in inspection.quarantine if row["status"] in _FAULTS or row["code"] in _FAULTS]
    for row in faults:
        output.say(f"{row['server']}: {row['tool']}: {row['status']}: {row['detail']}")
    left_out = [row for row in inspection.servers if row["state"] in ("disabled", "faulty")]
    # Last, where people look: what has to be done.
    for row in (*left_out, *failed):
        output.say(f"{row['name']}: {row['lastError']}")
    if any(row["state"] == "faulty" for row in left_out):
        return 2
    if args.frozen and (drifted := drift(inspection.changes)):
        for text in drifted:
            output.say(text)
        return _DRIFTED
    return int(bool(failed or faults))


def _change_rows(inspection: Inspection) -> list[dict[str, Any]]:
    return [{**row, "classes": ", ".join(row["classes"])} for row in inspection.changes["changes"]]


def servers(args: Namespace) -> int:
    """The upstreams of a running gateway, or of a configuration."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        rows = inspection.servers
    else:
        rows = from_running(args, lambda url, token: admin_rows(url, "/admin/servers", token))
    rows = _filtered(rows, args.filter)
    if args.json:
        output.as_json(rows)
    else:
        rows = [{**row, **_progress(row), "signedIn": _signed_in(row)} for row in rows]
        _show_servers(rows, header=args.header)
    return 0


def _show_servers(rows: list[dict[str, Any]], *, header: bool = True) -> None:
    # Columns of their own where they say anything: scripts count on the others.
    more = tuple(key for key in _WHERE_GIVEN if any(row.get(key) for row in rows))
    narrow = (*_SERVERS_NARROW[:-1], *(key for key in more if key == "held"), _SERVERS_NARROW[-1])
    output.table("servers", (*_SERVER_COLUMNS, *more), rows, narrow=narrow, header=header)


def _progress(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a server is that is starting, for people."""
    if row.get("state") != "starting" or not isinstance(row.get("startingSeconds"), int | float):
        return {}
    return {
        "state": f"starting ({row['startingSeconds']:.0f} s)",
        "lastError": row.get("lastLine") or row.get("lastError"),
    }


def _signed_in(row: Mapping[str, Any]) -> str | None:
    """Since when somebody is signed in to a server, and until when its token is good; None where nobody has to be."""
    found = row.get("signIn")
    if not isinstance(found, dict):
        return None
    if found.get("perUser"):
        return f"{len(found['users'])} callers" if found.get("users") else "by each caller"
    if not found.get("signedIn"):
        return "needed"
    moments = [
        f"{word} {datetime.fromtimestamp(at_s).astimezone().isoformat(' ', 'minutes')[:16]}"
        for word, at_s in (("since", found.get("since")), ("token until", found.get("expires")))
        if isinstance(at_s, int | float)
    ]
    return ", ".join(moments) or "yes"


def tools(args: Namespace) -> int:
    """The wrappers of a running gateway, or of a configuration."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        rows, definitions = inspection.wrappers, inspection.definitions
    elif args.format == "prompt":
        rows, definitions = [], _listed_tools(args)
    else:
        query = {"profile": args.profile} if args.profile is not None else None
        rows = from_running(args, lambda url, token: admin_rows(url, "/admin/wrappers", token, query))
        definitions = []
    rows, definitions = _filtered(rows, args.filter), _filtered(definitions, args.filter)
    if args.format == "json":
        output.as_json(rows)
    elif args.format == "prompt":
        output.text("\n\n".join(usage_text(definition) for definition in definitions))
    else:
        if args.explain:
            output.table("disclosure", ("name", "listed", "disclosure", "tokens"), rows, header=args.header)
            return 0
        output.table("wrappers", _WRAPPER_COLUMNS, rows, narrow=_WRAPPERS_NARROW, header=args.header)
        arguments = [
            {"wrapper": row["name"], "argument": argument["name"], **argument}
            for row in rows
            for argument in row.get("arguments", ())
        ]
        if arguments:
            output.table("arguments", _ARGUMENT_COLUMNS, arguments, narrow=_ARGUMENTS_NARROW, header=args.header)
    return 0


def _filtered(rows: list[dict[str, Any]], wanted: str | None) -> list[dict[str, Any]]:
    """The rows whose name holds this text, or matches it where it is a pattern."""
    if wanted is None:
        return rows
    pattern = wanted.casefold() if any(sign in wanted for sign in "*?[") else f"*{wanted.casefold()}*"
    return [row for row in rows if fnmatchcase(str(row.get("name", "")).casefold(), pattern)]


def hooks(args: Namespace) -> int:
    """Which hooks run on which wrapper, in order, and the state of every hook."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        found: Any = {"wrappers": inspection.hooked, "hooks": inspection.hooks}
    else:
        found = from_running(args, lambda url, token: admin_document(url, "/admin/hooks", token))
        if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in ("wrappers", "hooks")):
            raise NotReached("the gateway answered with no hooks; is that a typegate gateway?")
        output.warn(found.get("warnings", []))
    if args.json:
        output.as_json(found)
        return 0
    joined = ("before", "after", "phases")
    for title, columns in (("wrappers", _HOOKED_COLUMNS), ("hooks", _HOOK_COLUMNS)):
        # Nested members become cells, and empty lists dashes.
        rows = [{**row, **row.get("counts", {})} for row in found[title]]
        shown = [{**row, **{key: ", ".join(row[key]) for key in joined if row.get(key)}} for row in rows]
        output.table(title, columns, [{key: row[key] for key in row if row[key] != []} for row in shown])
    return 0


def _inspect_config(args: Namespace, *, progress: bool = False) -> Inspection:
    """Start the gateway of a configuration without serving it, and wait until every upstream was listed or failed."""
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    config = load(args.config, strict=getattr(args, "strict", False), added=added_over(args.config))
    # What becomes of each server is told by us, once; a fault of ours must be seen all the same.
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)
    if progress:  # and of each tool
        logging.getLogger("gateway.discovery").setLevel(logging.CRITICAL)

    async def connected() -> Inspection:
        from gateway.admin import rows
        from gateway.admin.policy_explained import vain_rules
        from gateway.app import open_gateway
        from gateway.commands.first_contact import until_settled

        # No state of before: a check must not show a saved listing instead of the upstream. What is listed now is
        # there for the first start; and who is signed in to an upstream is signed in to it here, too.
        folder = state_dir(args)
        async with open_gateway(config, state_dir=None, sign_in_dir=folder, leaves_snapshot_in=folder) as gateway:
            await until_settled(gateway, say=output.say if progress else lambda text: None)
            profile = getattr(args, "profile", None) or DEFAULT_PROFILE
            if profile not in gateway.views.profiles:
                known = ", ".join(gateway.views.profiles)
                raise UsageError(f"--profile {profile}: there is no such profile; expected one of: {known}")
            view = gateway.views.view(profile)
            views = ((name, gateway.views.view(name)) for name in gateway.views.profiles)
            vain = [
                *vain_rules(gateway.views, gateway.registry),
                *(f"profile {name}: {text}" for name, each in views for text in each.warnings),
                *gateway.hooks.warnings(),
                *_trusted_hints(gateway),
            ]
            return Inspection(
                servers=rows.server_rows(gateway.fleet, gateway.registry.catalog),
                wrappers=rows.wrapper_rows(view),
                quarantine=[
                    *rows.quarantine_rows(gateway.registry.catalog),
                    *rows.flagged_rows(gateway.registry.catalog),
                ],
                definitions=[dict(entry.definition) for entry in view.entries],
                warnings=[*config.warnings, *gateway.lock.notes, *vain],
                hooked=gateway.hooks.wrapper_rows(),
                hooks=gateway.hooks.rows(),
                changes=changes_of(
                    gateway, [alias for alias in gateway.fleet.servers if gateway.lock.listing_of(alias) is None]
                ),
            )

    return anyio.run(connected, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})


def _trusted_hints(gateway: Gateway) -> list[str]:
    """What rights go by that depend on hints, where no lock file says which were approved."""
    config = gateway.config.gateway
    conditions = [when for rule in config.policy.rules for when in (rule.when, rule.ask.when if rule.ask else None)]
    by_rules = any(
        hint is not None
        for when in conditions
        if when is not None
        for hint in (when.read_only, when.destructive, when.idempotent, when.open_world)
    )
    if gateway.lock.lockfile is not None or not (
        by_rules or any("tools:read" in key.scopes for key in config.auth.api_keys)
    ):
        return []
    return [
        "there is no lock file: rules on hints and the scope tools:read go by the `annotations` of the configuration, "
        "then by what each tool declared when it was first listed"
    ]


def _listed_tools(args: Namespace) -> list[dict[str, Any]]:
    url: str = args.url or DEFAULT_URL
    if args.profile is not None:
        url = f"{url.rstrip('/')}/{args.profile}"
    response = request(url, "tools/list", {}, api_key=os.environ.get("TYPEGATE_API_KEY"), timeout_s=REQUEST_S)
    if "error" in response:
        raise NotReached(f"{url} refuses to list its tools: {response['error'].get('message')}")
    listed = response["result"].get("tools", [])
    return [tool for tool in listed if isinstance(tool, dict)]
