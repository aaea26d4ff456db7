"""The state of a running gateway as JSON rows for the admin API and the command line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from gateway.admin.activity import ServerState
from gateway.calls.call_stats import SENT_UNCHECKED
from gateway.config.model import LeftOut
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import CredentialsConfig
from gateway.fleet.fleet import Fleet
from gateway.process.secrets import SECRETS
from gateway.protocol import json_bytes
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import SignInNeeded, Starting
from registry.catalog.catalog import Catalog
from registry.catalog.listing import flagged_items
from registry.catalog.names import ServerName
from registry.catalog.overrides import argument_summaries, hints_of
from registry.schema.display_text import excerpt
from registry.schema.json_paths import format_path
from registry.schema.schemas import compact_json
from registry.views.disclosure import estimate_tokens
from registry.views.view import View, ViewEntry

_NAME_CHARS: Final = 200
DESCRIPTION_CHARS: Final = 2_000
"""The maximum length of a description, about a page. Longer texts would make a list of many tools slow to load."""
# An interpreter starts within this time. A process that takes longer is reported, because its start may have failed.
_SLOW_START_S: Final = 3.0
# The interval at which watchers of the event feed receive the progress of a start.
_PROGRESS_S: Final = 3.0
# The maximum number of shown reasons why an item is flagged. The strongest reasons are enough to judge the item.
_MAX_FLAGS: Final = 3
_COUNTS: Final = ("tools", "prompts", "resources", "resourceTemplates", "skills", "quarantined", "held", "repaired")


def tokens_of(definition: Mapping[str, Any]) -> int:
    """Estimate the number of tokens that a definition takes in a model's context."""
    return estimate_tokens(compact_json(definition))


def server_rows(fleet: Fleet, catalog: Catalog) -> list[dict[str, Any]]:
    """Return a row for each upstream, as in `/admin/servers`."""
    return [server_row(fleet, catalog, alias) for alias in fleet.servers] + [
        left_out_row(alias, left_out) for alias, left_out in fleet.left_out.items() if alias not in fleet.servers
    ]


def left_out_row(alias: str, left_out: LeftOut) -> dict[str, Any]:
    """Return the row of a disabled or faulty server."""
    return {
        "name": alias,
        "id": None,
        "displayName": alias,
        "type": None,
        "state": "faulty" if left_out.faulty else "disabled",
        "lastError": left_out.reason,
        **dict.fromkeys(("epoch", "inFlight", *_COUNTS), 0),
        **dict.fromkeys(("protocol", "serverInfo", "capabilities", "origin", "stale", "ageSeconds", "supplement")),
        "lastLost": None,
        **dict.fromkeys(("startingSeconds", "lastLine", "sandbox", "stateSeconds", "runs", "processes", "idleSeconds")),
        "sends": [],
        "warnings": [],
        "denied": [],
        "auth": False,
        "signIn": None,
        "tags": [],
        "siblings": [],
    }


def server_row(fleet: Fleet, catalog: Catalog, alias: str) -> dict[str, Any]:
    """Return the row of an upstream."""
    config, link = fleet.servers[alias], fleet.links[alias]
    links = links_of(fleet, alias)
    listing = catalog.servers.get(ServerName(alias))
    session = link.session
    sign_in = fleet.sign_ins.get(alias, config)
    if sign_in is not None and not (sign_in.is_required or config.authenticated):
        sign_in = None  # this server has never required a sign-in
    age_s = fleet.listings.age_s(alias)
    return {
        "name": alias,
        "id": fleet.listings.stored.ids.get(alias),
        "displayName": config.display_name or alias,
        "type": config.type,
        "state": state_of(fleet, alias),
        "epoch": link.epoch,
        "protocol": session.protocol_version if session is not None else None,
        "serverInfo": session.server_info if session is not None else None,
        "capabilities": session.capabilities if session is not None else None,
        "lastError": reason_of(link) or next((each.last_error for each in links if each.last_error), None),
        "lastLost": link.lost_reason,
        "startingSeconds": round(link.state.start.took_s, 1) if isinstance(link.state, Starting) else None,
        "sandbox": link.start.confinement if link.start is not None else None,
        "denied": [*dict.fromkeys(SECRETS.scrub(it) for each in links if each.start for it in each.start.denials())],
        "stateSeconds": round(time.monotonic() - link.state.since_s, 1),
        "runs": runs_of(config),
        "sends": sends_of(config),
        "idleSeconds": getattr(config, "idle_timeout", None),
        "processes": sum(each.start is not None for each in links if each.session is not None),
        "lastLine": SECRETS.scrub(link.state.start.last_line()) or None if isinstance(link.state, Starting) else None,
        "warnings": list(link.warnings),
        "tools": len(catalog.wrappers_of(alias)),
        "prompts": len(listing.prompts) if listing is not None else 0,
        "resources": len(listing.resources) if listing is not None else 0,
        "resourceTemplates": len(listing.templates) if listing is not None else 0,
        "skills": len(listing.skills) if listing is not None else 0,
        "quarantined": sum(server == alias for server, _ in catalog.quarantined),
        "held": fleet.lock.held_count(alias),
        "repaired": len(listing.repaired) if listing is not None else 0,
        "origin": listing.origin if listing is not None else None,
        "stale": listing.stale if listing is not None else None,
        "ageSeconds": round(age_s, 1) if age_s is not None else None,
        "inFlight": sum(each.in_flight for each in links),
        "auth": config.authenticated or (sign_in is not None and sign_in.signed_in),
        "signIn": sign_in.row() if sign_in is not None else None,
        "tags": list(config.tags),
        "siblings": list(config.siblings),
        "supplement": config.supplement,
        **(_per_user_members(fleet, alias, config) if link.per_user else {}),
    }


def links_of(fleet: Fleet, alias: str) -> list[UpstreamLink]:
    """Return the links of a server; each link manages one connection or process of the server.

    All callers share the first link. Each further link belongs to a caller with a separate sign-in or process.
    """
    return [fleet.links[alias], *fleet.users.links_to(alias)]


def runs_of(config: ServerConfig) -> str:
    """Return the address of a server, or its command line."""
    command = [getattr(config, "command", ""), *getattr(config, "args", ())]
    return config.address or " ".join(f'"{word}"' if " " in word or not word else word for word in command)


def sends_of(config: ServerConfig) -> list[str]:
    """Return the names of the headers and environment variables that a server receives."""
    return [*getattr(config, "headers", {}), *getattr(config, "env", {})]


def reason_of(link: UpstreamLink) -> str | None:
    """Return in one line why a server is not connected; None if the server is connected or has just begun to start."""
    if link.last_error is None and isinstance(link.state, Starting) and link.state.start.took_s >= _SLOW_START_S:
        return SECRETS.scrub(link.state.start.describe())
    return link.last_error


def state_of(fleet: Fleet, alias: str) -> str:
    """Return the state of a server as administrators see it."""
    config, link = fleet.servers[alias], fleet.links[alias]
    if not link.per_user:
        return link.state.name
    # Derive the state from the sign-ins, not from connections: each process has connections of different users, but all
    # processes must report the same state.
    usable = config.exchanges_callers or fleet.sign_ins.user_rows(alias, config)
    return "ready" if usable else SignInNeeded.name


def states(fleet: Fleet) -> dict[str, ServerState]:
    """Return the state of each server for the event feed."""
    by_alias = {
        alias: ServerState({"state": "faulty" if left_out.faulty else "disabled"})
        for alias, left_out in fleet.left_out.items()
    }
    for alias, link in fleet.links.items():
        row: dict[str, Any] = {"state": state_of(fleet, alias), "lastError": link.last_error}
        if isinstance(link.state, Starting):
            # Round the time, because each new value is sent to watchers as an event.
            row["startingSeconds"] = int(link.state.start.took_s // _PROGRESS_S * _PROGRESS_S)
        by_alias[alias] = ServerState(row, link.state)
    return by_alias


def _per_user_members(fleet: Fleet, alias: str, config: ServerConfig) -> dict[str, Any]:
    """Return the members of a server's row whose values differ if each caller signs in to the server separately."""
    users, links = fleet.sign_ins.user_rows(alias, config), list(fleet.users.links_to(alias))
    sessions = [link.session for link in links if link.session is not None]
    session = sessions[0] if sessions else None
    errors = (
        link.last_error for link in links if link.last_error is not None and not isinstance(link.state, SignInNeeded)
    )
    sign_in = config.sign_in if isinstance(config, CredentialsConfig) else None
    needs_users = not config.exchanges_callers
    no_user_error = None if users or not needs_users else "no user has signed in yet; each caller signs in separately"
    return {
        "protocol": session.protocol_version if session is not None else None,
        "serverInfo": session.server_info if session is not None else None,
        "capabilities": session.capabilities if session is not None else None,
        "lastError": next(errors, no_user_error),
        "inFlight": sum(link.in_flight for link in links),
        "signIn": {
            "type": sign_in.type if sign_in is not None else None,
            "perUser": True,
            "signedIn": bool(users) or not needs_users,
            "users": users,
        },
    }


def wrapper_rows(view: View) -> list[dict[str, Any]]:
    """Return a row for each wrapper that a profile permits, as in `/admin/wrappers`."""
    return [wrapper_row(entry, view) for entry in view.entries]


def wrapper_row(entry: ViewEntry, view: View) -> dict[str, Any]:
    """Return the row of a wrapper."""
    listing = view.catalog.servers[entry.wrapper.server]
    return {
        "name": entry.wrapper.name,
        "server": entry.wrapper.server,
        "tool": entry.wrapper.tool,
        "description": excerpt(str(entry.definition.get("description") or ""), DESCRIPTION_CHARS),
        "hints": dict(hints_of(entry.definition.get("annotations"))),
        "epoch": listing.epoch,
        "digest": entry.wrapper.digest,
        "status": "stale" if listing.stale else "ready",
        "origin": listing.origin,
        "listed": entry.listed,
        "tokens": tokens_of(entry.definition),
        "reason": entry.wrapper.name_reason,
        "disclosure": entry.reason,
        "arguments": [asdict(row) for row in argument_summaries(entry.definition, entry.wrapper.documented)],
    }


def quarantine_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """Return a row for each item with a problem.

    The item is quarantined (not exposed, because its definition would break a host), or was repaired, or has
    configuration without effect.
    """
    repaired = [(server, issue) for server, listing in catalog.servers.items() for issue in listing.repaired]
    return [
        {
            "server": server,
            "kind": issue.kind,
            "tool": issue.tool,
            "status": status,
            "code": issue.code,
            "detail": issue.detail,
        }
        for status, issues in (
            ("quarantined", catalog.quarantined),
            ("repaired", repaired),
            ("warning", catalog.warnings),
        )
        for server, issue in issues
    ]


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def unchecked_rows(failures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each argument that calls of the last 24 hours have sent to an upstream unchecked."""
    return [
        {
            "server": row["server"],
            "kind": "tools",
            "tool": row["tool"],
            "status": "unchecked",
            "code": row["kind"],
            "detail": f"{row['detail'] or 'the arguments'}: sent unchecked by {_pluralize(row['recent'], 'call')}",
        }
        for row in failures
        if row["kind"] == SENT_UNCHECKED
    ]


def flagged_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """Return a row for each item whose texts seem to instruct a model.

    This function scans every text of every server: run it in a thread if calls would have to wait for it.
    """
    exposed = {(wrapper.server, wrapper.tool) for wrapper in catalog.wrappers}
    return [
        {
            "server": item.server,
            "kind": item.kind,
            "tool": excerpt(item.name, _NAME_CHARS) or "-",
            "status": "flagged",
            "code": item.suspicion.flags[0].code,
            "detail": "; ".join(
                f"{flag.code} in {flag.where}: {flag.quoted}" for flag in item.suspicion.flags[:_MAX_FLAGS]
            ),
            "score": item.suspicion.score,
            "served": item.kind != "tools" or (item.server, item.name) in exposed,
        }
        for item in flagged_items(catalog.servers)
    ]


def profile_rows(views: Iterable[View]) -> list[dict[str, Any]]:
    """Return a row for each profile with its warnings, as in `/admin/profiles`."""
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
                    "path": format_path(loss.path) if loss.path else "",
                    "keyword": loss.keyword,
                    "how": loss.how,
                    "narrower": loss.narrower,
                }
                for entry in view.entries
                for loss in entry.lowered.losses
            ],
        }
        for view in views
    ]


def budget_rows(views: Iterable[View]) -> list[dict[str, Any]]:
    """Return a row for each profile with the sizes of its tool list and of its wrappers, as in `/admin/budget`.

    Tools that are only for MCP Apps are omitted, because hosts do not show such tools to a model.
    """
    rows: list[dict[str, Any]] = []
    for view in views:
        listed = [*view.builtin_tools, *(entry.definition for entry in view.for_models if entry.listed)]
        rows.append(
            {
                "profile": view.profile.name,
                "maxTools": view.profile.max_tools if view.profile.disclosure != "eager" else None,
                "maxTokens": view.profile.max_tokens if view.profile.disclosure == "auto" else None,
                "tools": len(listed),
                "bytes": sum(len(json_bytes.dumps(definition)) for definition in listed),
                "tokens": sum(map(tokens_of, listed)),
                "wrappers": [
                    {
                        "name": entry.wrapper.name,
                        "listed": entry.listed,
                        "reason": entry.reason,
                        "tokens": tokens_of(entry.definition),
                        "bytes": len(json_bytes.dumps(entry.definition)),
                    }
                    for entry in view.for_models
                ],
            }
        )
    return rows
