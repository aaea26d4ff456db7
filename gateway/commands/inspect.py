"""`typegate check`, `servers` and `tools`: what there is, or what there would be."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gateway.commands import output
from gateway.commands.admin_client import DEFAULT_URL, admin, admin_answer, request
from gateway.commands.locations import NotReached, UsageError, admin_token
from registry.catalog.overrides import usage_text
from registry.views.profile import DEFAULT_PROFILE

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
_QUARANTINE_COLUMNS = ("server", "kind", "tool", "status", "code", "detail")
_ARGUMENT_COLUMNS = ("wrapper", "argument", "type", "required", "source", "description")
_HOOKED_COLUMNS = ("name", "kind", "before", "after")
_HOOK_COLUMNS = ("name", "mode", "phases", "priority", "onError", "breaker", "runs", "blocked", "failed", "ignored")
# What makes `check` end with 1: these do not do what the file or the upstream says.
_FAULTS = ("quarantined", "overlay_rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look showed."""

    servers: list[dict[str, Any]] = field(default_factory=list)
    wrappers: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    definitions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hooked: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)


def check(args: Namespace) -> int:
    """Connect to every upstream once; 0 all well, 1 something failed.

    Raises:
        ConfigError: The configuration is wrong.
    """
    if args.schema:
        from gateway.config.model import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.config is None:
        raise UsageError("check needs a file; expected --config FILE (or --schema)")
    seen = _look_at_config(args)
    failed = [row for row in seen.servers if row.get("lastError")]
    if args.json:
        output.as_json(
            {
                "servers": seen.servers,
                "wrappers": seen.wrappers,
                "quarantine": seen.quarantine,
                "warnings": seen.warnings,
            }
        )
    else:
        output.table("servers", _SERVER_COLUMNS, seen.servers)
        output.table("wrappers", _WRAPPER_COLUMNS, seen.wrappers)
        if seen.quarantine:
            output.table("quarantined, repaired or configured in vain", _QUARANTINE_COLUMNS, seen.quarantine)
        output.warn(seen.warnings)
    for row in failed:
        output.say(f"{row.get('name')}: {row['lastError']}")
    faults = [row for row in seen.quarantine if row["status"] in _FAULTS or row["code"] in _FAULTS]
    for row in faults:
        output.say(f"{row['server']}: {row['tool']}: {row['status']}: {row['detail']}")
    return int(bool(failed or faults))


def servers(args: Namespace) -> int:
    """The upstreams of a running gateway, or of a configuration."""
    if args.config is not None:
        seen = _look_at_config(args)
        output.warn(seen.warnings)
        rows = seen.servers
    else:
        rows = admin(args.url or DEFAULT_URL, "/admin/servers", admin_token(args))
    if args.json:
        output.as_json(rows)
    else:
        output.table("servers", _SERVER_COLUMNS, rows)
    return 0


def tools(args: Namespace) -> int:
    """The wrappers of a running gateway, or of a configuration."""
    if args.config is not None:
        seen = _look_at_config(args)
        output.warn(seen.warnings)
        rows, definitions = seen.wrappers, seen.definitions
    elif args.format == "prompt":
        rows, definitions = [], _listed(args)
    else:
        query = {"profile": args.profile} if args.profile is not None else None
        rows = admin(args.url or DEFAULT_URL, "/admin/wrappers", admin_token(args), query)
        definitions = []
    if args.format == "json":
        output.as_json(rows)
    elif args.format == "prompt":
        output.text("\n\n".join(usage_text(definition) for definition in definitions))
    else:
        if args.explain:
            output.table("disclosure", ("name", "listed", "disclosure", "tokens"), rows)
            return 0
        output.table("wrappers", _WRAPPER_COLUMNS, rows)
        arguments = [
            {"wrapper": row["name"], "argument": one["name"], **one} for row in rows for one in row.get("arguments", ())
        ]
        if arguments:
            output.table("arguments", _ARGUMENT_COLUMNS, arguments)
    return 0


def hooks(args: Namespace) -> int:
    """What runs on which wrapper, in order, and how every hook does."""
    if args.config is not None:
        seen = _look_at_config(args)
        output.warn(seen.warnings)
        found: Any = {"wrappers": seen.hooked, "hooks": seen.hooks}
    else:
        found = admin_answer(args.url or DEFAULT_URL, "/admin/hooks", admin_token(args))
        if not isinstance(found, dict) or not all(isinstance(found.get(key), list) for key in ("wrappers", "hooks")):
            raise NotReached("the gateway answered with no hooks; is that a typegate gateway?")
    if args.json:
        output.as_json(found)
        return 0
    joined = ("before", "after", "phases")
    for title, columns in (("wrappers", _HOOKED_COLUMNS), ("hooks", _HOOK_COLUMNS)):
        rows = [{**row, **row.get("counts", {})} for row in found[title]]
        shown = [{**row, **{key: ", ".join(row[key]) for key in joined if row.get(key)}} for row in rows]
        output.table(title, columns, [{key: row[key] for key in row if row[key] != []} for row in shown])
    return 0


def _look_at_config(args: Namespace) -> Sight:
    import anyio

    from gateway.config.load import load

    config = load(args.config)

    async def look() -> Sight:
        from gateway.admin import rows
        from gateway.app import open_gateway

        slowest_s = max((server.connect_timeout for server in config.servers.values()), default=0.0)
        async with open_gateway(config, state_dir=None) as gateway:
            # The links keep their own deadlines; this one only bounds a link that does not.
            await gateway.fleet.settled(slowest_s + 5.0)
            profile = getattr(args, "profile", None) or DEFAULT_PROFILE
            if profile not in gateway.views.profiles:
                known = ", ".join(gateway.views.profiles)
                raise UsageError(f"--profile {profile}: there is no such profile; expected one of: {known}")
            view = gateway.views.view(profile)
            return Sight(
                servers=rows.server_rows(gateway.fleet, gateway.registry.catalog),
                wrappers=rows.wrapper_rows(view),
                quarantine=rows.quarantine_rows(gateway.registry.catalog),
                definitions=[entry.definition for entry in view.entries],
                warnings=list(config.warnings),
                hooked=gateway.hooks.wrapper_rows(),
                hooks=gateway.hooks.rows(),
            )

    return anyio.run(partial(look), backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})


def _listed(args: Namespace) -> list[dict[str, Any]]:
    url: str = args.url or DEFAULT_URL
    if args.profile is not None:
        url = f"{url.rstrip('/')}/{args.profile}"
    response = request(url, "tools/list", {}, api_key=os.environ.get("TYPEGATE_API_KEY"), timeout_s=30.0)
    if "error" in response:
        raise NotReached(f"{url} refuses to list its tools: {response['error'].get('message')}")
    listed = response["result"].get("tools", [])
    return [tool for tool in listed if isinstance(tool, dict)]
