"""`typegate check`, `servers`, `tools` and `hooks`."""

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
from gateway.commands.admin_client import (
    DEFAULT_URL,
    REQUEST_S,
    McpAddress,
    NotReached,
    UsageError,
    ask_running_gateway,
    get_admin_rows,
    load_added_names,
    request,
    request_admin,
    state_dir,
)
from gateway.commands.lock import collect_changes, describe_drift
from registry.catalog.catalog import app_use
from registry.catalog.listing import HIDES_NOTHING
from registry.catalog.overrides import usage_text
from registry.views.profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from gateway.serving.app import Gateway

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
_OPTIONAL_COLUMNS = ("held", "signedIn")
# These columns fit on a terminal of 80 characters if no name is longer than 48.
_SERVERS_NARROW = ("name", "type", "state", "tools", "lastError")
_WRAPPERS_NARROW = ("name", "status", "tokens", "reason")
_QUARANTINE_COLUMNS = ("server", "kind", "tool", "status", "code", "detail")
_ARGUMENTS_NARROW = ("wrapper", "argument", "type", "required")
_ARGUMENT_COLUMNS = ("wrapper", "argument", "type", "required", "source", "description")
_HOOKED_COLUMNS = ("name", "kind", "before", "after")
_HOOK_COLUMNS = ("name", "mode", "phases", "priority", "onError", "breaker", "runs", "blocked", "failed", "ignored")
_CHANGE_COLUMNS = ("wrapper", "kind", "classes", "state")
# Exit code of `check --frozen` if definitions have changed.
_DRIFTED: Final = 3
# Findings for which `check` exits with 1: a tool that cannot be shown, or a configuration entry without effect.
_FAULTS: Final = ("quarantined", "overlay_rejected", HIDES_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of connecting to the servers of a configuration, as table rows."""

    servers: list[dict[str, Any]] = field(default_factory=list)
    wrappers: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    definitions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hooked: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)


def check(args: Namespace) -> int:
    """Connect to every upstream once and show the result.

    Returns:
        0 for success, 1 if a server or tool failed, 2 if the file has an error, 3 with `--frozen` if a definition has
        changed since it was approved.

    Raises:
        ConfigError: The configuration cannot be used at all.
    """
    if args.schema:
        from gateway.config.model import json_schema

        # Editors request the schema without having a configuration.
        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.reference:
        from gateway.config.model import reference_page

        print(reference_page(), end="")
        return 0
    if args.config is None:
        raise UsageError("check needs a configuration; expected --config FILE (or --schema)")
    inspection = _inspect_config(args, progress=not args.json)
    locked = inspection.changes["file"] is not None
    if args.frozen and not locked:
        raise UsageError("--frozen needs a lock file; `typegate lock --config FILE` writes one")
    failed = [row for row in inspection.servers if row.get("lastError") and row["state"] not in ("disabled", "faulty")]
    if args.json:
        output.print_json(
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
        output.print_table("wrappers", _WRAPPER_COLUMNS, inspection.wrappers, narrow=_WRAPPERS_NARROW)
        if inspection.quarantine:
            output.print_table(
                "tools and settings with findings",
                _QUARANTINE_COLUMNS,
                inspection.quarantine,
            )
        if inspection.changes["changes"]:
            output.print_table("changed since they were approved", _CHANGE_COLUMNS, _change_rows(inspection))
        output.warn(inspection.warnings)
        if not inspection.servers:
            output.say(f"{args.config}: contains no servers; `typegate add WHAT` adds one")
    # Repaired tools are shown, but they work and do not count as a fault.
    faults = [row for row in inspection.quarantine if row["status"] in _FAULTS or row["code"] in _FAULTS]
    for row in faults:
        output.say(f"{row['server']}: {row['tool']}: {row['status']}: {row['detail']}")
    left_out = [row for row in inspection.servers if row["state"] in ("disabled", "faulty")]
    for text in _describe_denials(inspection.servers):
        output.say(text)
    # Print the problems to fix last, so that they are next to the shell prompt.
    for row in (*left_out, *failed):
        output.say(f"{row['name']}: {row['lastError']}")
    if any(row["state"] == "faulty" for row in left_out):
        return 2
    if args.frozen and (drifted := describe_drift(inspection.changes)):
        for text in drifted:
            output.say(text)
        return _DRIFTED
    return int(bool(failed or faults))


def _describe_denials(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['name']}: denied by its sandbox: {denial}" for row in rows for denial in row.get("denied", ())]


def _change_rows(inspection: Inspection) -> list[dict[str, Any]]:
    return [{**row, "classes": ", ".join(row["classes"])} for row in inspection.changes["changes"]]


def servers(args: Namespace) -> int:
    """List the upstreams of a running gateway or of a configuration."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        rows = inspection.servers
    else:
        rows = ask_running_gateway(args, lambda url, token: get_admin_rows(url, "/admin/servers", token))
    rows = _filter_rows(rows, args.filter)
    if args.json:
        output.print_json(rows)
    else:
        rows = [{**row, **_progress(row), "signedIn": _signed_in(row)} for row in rows]
        _show_servers(rows, header=args.header)
    return 0


def _show_servers(rows: list[dict[str, Any]], *, header: bool = True) -> None:
    # Optional columns come last, because scripts rely on the positions of the other columns.
    more = tuple(key for key in _OPTIONAL_COLUMNS if any(row.get(key) for row in rows))
    narrow = (*_SERVERS_NARROW[:-1], *(key for key in more if key == "held"), _SERVERS_NARROW[-1])
    output.print_table("servers", (*_SERVER_COLUMNS, *more), rows, narrow=narrow, header=header)


def _progress(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the progress of a server that is starting, in a readable form."""
    if row.get("state") != "starting" or not isinstance(row.get("startingSeconds"), int | float):
        return {}
    return {
        "state": f"starting ({row['startingSeconds']:.0f} s)",
        "lastError": row.get("lastLine") or row.get("lastError"),
    }


def _signed_in(row: Mapping[str, Any]) -> str | None:
    """Describe the sign-in of a server and the expiry of its token; None if no sign-in is required."""
    sign_in = row.get("signIn")
    if not isinstance(sign_in, dict):
        return None
    if sign_in.get("perUser"):
        return f"{len(sign_in['users'])} callers" if sign_in.get("users") else "by each caller"
    if not sign_in.get("signedIn"):
        return "needed"
    moments = [
        f"{word} {datetime.fromtimestamp(at_s).astimezone().isoformat(' ', 'minutes')[:16]}"
        for word, at_s in (("since", sign_in.get("since")), ("token until", sign_in.get("expires")))
        if isinstance(at_s, int | float)
    ]
    return ", ".join(moments) or "yes"


def tools(args: Namespace) -> int:
    """List the wrappers of a running gateway or of a configuration."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        rows, definitions = inspection.wrappers, inspection.definitions
    elif args.format == "prompt":
        rows, definitions = [], _listed_tools(args)
    else:
        query = {"profile": args.profile} if args.profile is not None else None
        rows = ask_running_gateway(args, lambda url, token: get_admin_rows(url, "/admin/wrappers", token, query))
        definitions = []
    rows, definitions = _filter_rows(rows, args.filter), _filter_rows(definitions, args.filter)
    if args.format == "json":
        output.print_json(rows)
    elif args.format == "prompt":
        # Skip tools that only MCP Apps may call, because the text is for the prompt of a model.
        for_models = [definition for definition in definitions if app_use(definition.get("_meta")).by_models]
        output.print_text("\n\n".join(map(usage_text, for_models)))
    else:
        if args.explain:
            output.print_table("disclosure", ("name", "listed", "disclosure", "tokens"), rows, header=args.header)
            return 0
        output.print_table("wrappers", _WRAPPER_COLUMNS, rows, narrow=_WRAPPERS_NARROW, header=args.header)
        arguments = [
            {"wrapper": row["name"], "argument": argument["name"], **argument}
            for row in rows
            for argument in row.get("arguments", ())
        ]
        if arguments:
            output.print_table("arguments", _ARGUMENT_COLUMNS, arguments, narrow=_ARGUMENTS_NARROW, header=args.header)
    return 0


def _filter_rows(rows: list[dict[str, Any]], name_filter: str | None) -> list[dict[str, Any]]:
    """Return the rows whose name contains the text, or matches it if it is a pattern."""
    if name_filter is None:
        return rows
    pattern = name_filter.casefold() if any(sign in name_filter for sign in "*?[") else f"*{name_filter.casefold()}*"
    return [row for row in rows if fnmatchcase(str(row.get("name", "")).casefold(), pattern)]


def hooks(args: Namespace) -> int:
    """Show the hooks of each wrapper, in the order in which they run, and the state of every hook."""
    if args.config is not None:
        inspection = _inspect_config(args)
        output.warn(inspection.warnings)
        report: Any = {"wrappers": inspection.hooked, "hooks": inspection.hooks}
    else:
        report = ask_running_gateway(args, lambda url, token: request_admin(url, "/admin/hooks", token))
        if not isinstance(report, dict) or not all(isinstance(report.get(key), list) for key in ("wrappers", "hooks")):
            raise NotReached("the answer contains no list of hooks; is that a typegate gateway?")
        output.warn(report.get("warnings", []))
    if args.json:
        output.print_json(report)
        return 0
    joined = ("before", "after", "phases")
    for title, columns in (("wrappers", _HOOKED_COLUMNS), ("hooks", _HOOK_COLUMNS)):
        # Show the nested counts as cells and empty lists as dashes.
        rows = [{**row, **row.get("counts", {})} for row in report[title]]
        with_counts = [{**row, **{key: ", ".join(row[key]) for key in joined if row.get(key)}} for row in rows]
        output.print_table(title, columns, [{key: row[key] for key in row if row[key] != []} for row in with_counts])
    return 0


def _inspect_config(args: Namespace, *, progress: bool = False) -> Inspection:
    """Connect to the upstreams of a configuration without serving it, and return their state and their tools."""
    import anyio

    from gateway.config.load import load
    from gateway.telemetry import logs

    config = load(args.config, strict=getattr(args, "strict", False), added=load_added_names(args.config))
    # The command itself reports the outcome of each server; errors of the gateway are still logged.
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)
    if progress:  # the command also reports the problems of each tool
        logging.getLogger("gateway.discovery").setLevel(logging.CRITICAL)

    async def connected() -> Inspection:
        from gateway.admin import rows
        from gateway.admin.policy_explained import rows_of_unmatched_rules
        from gateway.commands.configured_examples import warnings_of_examples
        from gateway.commands.first_contact import wait_until_settled
        from gateway.serving.app import BorrowedState, open_gateway

        # No state directory, because a check must show what each upstream lists now, not a stored list. Stored sign-ins
        # are used nevertheless, and the new lists are stored for the next start of the gateway.
        folder = state_dir(args)
        async with open_gateway(
            config, state_dir=None, borrowed=BorrowedState(sign_in_dir=folder, snapshot_dir=folder)
        ) as gateway:
            await wait_until_settled(gateway, say=output.say if progress else lambda text: None)
            profile = getattr(args, "profile", None) or DEFAULT_PROFILE
            if profile not in gateway.views.profiles:
                profiles = ", ".join(gateway.views.profiles)
                raise UsageError(f"--profile {profile}: there is no such profile; expected one of: {profiles}")
            view = gateway.views.view(profile)
            views = ((name, gateway.views.view(name)) for name in gateway.views.profiles)
            further_warnings = [
                *rows_of_unmatched_rules(gateway.views, gateway.registry),
                *(f"profile {name}: {text}" for name, each in views for text in each.warnings),
                *gateway.hooks.warnings(),
                *_trusted_hints(gateway),
                *await warnings_of_examples(gateway.registry),
            ]
            return Inspection(
                servers=rows.server_rows(gateway.fleet, gateway.registry.catalog),
                wrappers=rows.wrapper_rows(view),
                quarantine=[
                    *rows.quarantine_rows(gateway.registry.catalog),
                    *rows.flagged_rows(gateway.registry.catalog),
                ],
                definitions=[dict(entry.definition) for entry in view.entries],
                warnings=[*config.warnings, *gateway.lock.notes, *further_warnings],
                hooked=gateway.hooks.wrapper_rows(),
                hooks=gateway.hooks.rows(),
                changes=collect_changes(
                    gateway, [alias for alias in gateway.fleet.servers if gateway.lock.listing_of(alias) is None]
                ),
            )

    return anyio.run(connected, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})


def _trusted_hints(gateway: Gateway) -> list[str]:
    """Warn about rights that depend on tool annotations if no lock file has approved these annotations."""
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
        "there is no lock file: rules on hints and the scope tools:read use the `annotations` of the configuration, "
        "otherwise the annotations that each tool had when it was first listed"
    ]


def _listed_tools(args: Namespace) -> list[dict[str, Any]]:
    url: str = args.url or DEFAULT_URL
    if args.profile is not None:
        url = f"{url.rstrip('/')}/{args.profile}"
    endpoint = McpAddress(url=url, api_key=os.environ.get("TYPEGATE_API_KEY"), timeout_s=REQUEST_S)
    response = request(endpoint, "tools/list", {})
    if "error" in response:
        raise NotReached(f"{url} refuses to list its tools: {response['error'].get('message')}")
    listed = response["result"].get("tools", [])
    return [tool for tool in listed if isinstance(tool, dict)]
