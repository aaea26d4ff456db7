"""What a running gateway has, as rows for the admin API and the command line; no value in them is a secret."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from gateway import wire
from gateway.calls.profile_views import ProfileViews
from gateway.config.model import LeftOut
from gateway.fleet import Fleet
from registry.catalog.catalog import Catalog
from registry.catalog.names import ServerName
from registry.catalog.overrides import argument_summaries
from registry.schema.json_paths import format_path
from registry.schema.schemas import compact_json
from registry.views.tokens import estimate_tokens
from registry.views.view import View

_COUNTS: Final = ("tools", "prompts", "resources", "resourceTemplates", "quarantined", "repaired")


def tokens_of(definition: dict[str, Any]) -> int:
    """About what a definition costs a model."""
    return estimate_tokens(compact_json(definition))


def server_rows(fleet: Fleet, catalog: Catalog) -> list[dict[str, Any]]:
    """One row for each upstream, as `/admin/servers` shows it."""
    return [server_row(fleet, catalog, alias) for alias in fleet.servers] + [
        left_out_row(alias, one) for alias, one in fleet.left_out.items() if alias not in fleet.servers
    ]


def left_out_row(alias: str, left_out: LeftOut) -> dict[str, Any]:
    """The row of a server that is not served."""
    return {
        "name": alias,
        "displayName": alias,
        "type": None,
        "state": "faulty" if left_out.faulty else "disabled",
        "lastError": left_out.reason,
        **dict.fromkeys(("epoch", "inFlight", *_COUNTS), 0),
        **dict.fromkeys(("protocol", "serverInfo", "capabilities", "origin", "stale", "ageSeconds", "supplement")),
        "auth": False,
        "tags": [],
        "siblings": [],
    }


def server_row(fleet: Fleet, catalog: Catalog, alias: str) -> dict[str, Any]:
    """One upstream's row."""
    config, link = fleet.servers[alias], fleet.links[alias]
    listing = catalog.servers.get(ServerName(alias))
    session = link.session
    age_s = fleet.listing_age_s(alias)
    return {
        "name": alias,
        "displayName": config.display_name or alias,
        "type": config.type,
        "state": link.state.name,
        "epoch": link.epoch,
        "protocol": session.protocol_version if session is not None else None,
        "serverInfo": session.server_info if session is not None else None,
        "capabilities": session.capabilities if session is not None else None,
        "lastError": link.last_error,
        "tools": len(catalog.wrappers_of(alias)),
        "prompts": len(listing.prompts) if listing is not None else 0,
        "resources": len(listing.resources) if listing is not None else 0,
        "resourceTemplates": len(listing.templates) if listing is not None else 0,
        "quarantined": sum(server == alias for server, _ in catalog.quarantined),
        "repaired": len(listing.repaired) if listing is not None else 0,
        "origin": listing.origin if listing is not None else None,
        "stale": listing.stale if listing is not None else None,
        "ageSeconds": round(age_s, 1) if age_s is not None else None,
        "inFlight": link.in_flight,
        "auth": config.authenticated,
        "tags": list(config.tags),
        "siblings": list(config.siblings),
        "supplement": config.supplement,
    }


def wrapper_rows(view: View) -> list[dict[str, Any]]:
    """One row for each wrapper that a profile permits, as `/admin/wrappers` shows it."""
    return [
        {
            "name": entry.wrapper.name,
            "server": entry.wrapper.server,
            "tool": entry.wrapper.tool,
            "epoch": entry.wrapper.epoch,
            "digest": entry.wrapper.digest,
            "status": "stale" if entry.wrapper.stale else "ready",
            "origin": entry.wrapper.origin,
            "listed": entry.listed,
            "tokens": tokens_of(entry.definition),
            "reason": entry.wrapper.name_reason,
            "disclosure": entry.reason,
            "arguments": [asdict(row) for row in argument_summaries(entry.definition, entry.wrapper.documented)],
        }
        for entry in view.entries
    ]


def quarantine_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """One row for each item that is not shown, was repaired before it was, or is configured in vain."""
    repaired = [(server, one) for server, listing in catalog.servers.items() for one in listing.repaired]
    return [
        {
            "server": server,
            "kind": one.kind,
            "tool": one.tool,
            "status": status,
            "code": one.code,
            "detail": one.detail,
        }
        for status, found in (
            ("quarantined", catalog.quarantined),
            ("repaired", repaired),
            ("warning", catalog.warnings),
        )
        for server, one in found
    ]


def profile_rows(views: ProfileViews) -> list[dict[str, Any]]:
    """One row for each profile with its warnings, as `/admin/profiles` shows it."""
    return [
        {
            "name": view.profile.name,
            "path": "/mcp" if view.profile.name == "default" else f"/mcp/{view.profile.name}",
            "disclosure": view.profile.disclosure,
            "dialect": view.profile.dialect,
            "servers": list(view.servers),
            "tools": len(view.entries),
            "listed": sum(entry.listed for entry in view.entries),
            "warnings": list(view.warnings),
            "misfits": dict(view.unsupported_names),
            "weakened": [
                {
                    "wrapper": entry.name,
                    "path": format_path(one.path) if one.path else "",
                    "keyword": one.keyword,
                    "how": one.how,
                    "narrower": one.narrower,
                }
                for entry in view.entries
                for one in entry.lowered.losses
            ],
        }
        for view in map(views.view, views.profiles)
    ]


def budget_rows(views: ProfileViews) -> list[dict[str, Any]]:
    """One row for each profile: what its list costs and why each wrapper is in it, as `/admin/budget` shows it."""
    rows: list[dict[str, Any]] = []
    for view in map(views.view, views.profiles):
        listed = [*view.builtin_tools, *(entry.definition for entry in view.entries if entry.listed)]
        rows.append(
            {
                "profile": view.profile.name,
                "maxTools": view.profile.max_tools if view.profile.disclosure != "eager" else None,
                "maxTokens": view.profile.max_tokens if view.profile.disclosure == "auto" else None,
                "tools": len(listed),
                "bytes": sum(len(wire.dumps(one)) for one in listed),
                "tokens": sum(map(tokens_of, listed)),
                "wrappers": [
                    {
                        "name": entry.wrapper.name,
                        "listed": entry.listed,
                        "reason": entry.reason,
                        "tokens": tokens_of(entry.definition),
                        "bytes": len(wire.dumps(entry.definition)),
                    }
                    for entry in view.entries
                ],
            }
        )
    return rows
