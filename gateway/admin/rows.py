"""What a running gateway has, as rows for the admin API and the command line; no value in them is a secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from gateway import wire
from gateway.admin.event_feed import ServerState
from gateway.calls.call_stats import SENT_UNCHECKED
from gateway.calls.profile_views import ProfileViews
from gateway.config.model import LeftOut
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import UrlConfig
from gateway.fleet import Fleet
from gateway.secrets import SECRETS
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import SignInNeeded, Starting
from registry.catalog.catalog import Catalog
from registry.catalog.flagged import flagged_items
from registry.catalog.names import ServerName
from registry.catalog.overrides import argument_summaries
from registry.schema.display_text import excerpt
from registry.schema.json_paths import format_path
from registry.schema.schemas import compact_json
from registry.views.tokens import estimate_tokens
from registry.views.view import View, ViewEntry

_NAME_CHARS: Final = 200
# An interpreter starts within this time; a process that takes longer is reported, as it may be a failure.
_SLOW_START_S: Final = 3.0
# How often the progress of a start is reported to those who watch: people see that it goes on.
_PROGRESS_S: Final = 3.0
# The strongest signs of an item; the others say the same.
_FLAGS_TOLD: Final = 3
# Whether a process is kept apart from others of this user (`gateway.upstream.transport.separation`).
_SANDBOX: Final = {True: "separate", False: "unconfined", None: None}
_COUNTS: Final = ("tools", "prompts", "resources", "resourceTemplates", "quarantined", "held", "repaired")


def tokens_of(definition: Mapping[str, Any]) -> int:
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
        "lastLost": None,
        **dict.fromkeys(("startingSeconds", "lastLine", "sandbox")),
        "warnings": [],
        "auth": False,
        "signIn": None,
        "tags": [],
        "siblings": [],
    }


def server_row(fleet: Fleet, catalog: Catalog, alias: str) -> dict[str, Any]:
    """One upstream's row."""
    config, link = fleet.servers[alias], fleet.links[alias]
    listing = catalog.servers.get(ServerName(alias))
    session = link.session
    sign_in = fleet.sign_ins.of(alias, config)
    if sign_in is not None and not (sign_in.known or config.authenticated):
        sign_in = None  # it has never asked for one
    age_s = fleet.listings.age_s(alias)
    return {
        "name": alias,
        "displayName": config.display_name or alias,
        "type": config.type,
        "state": state_of(fleet, alias),
        "epoch": link.epoch,
        "protocol": session.protocol_version if session is not None else None,
        "serverInfo": session.server_info if session is not None else None,
        "capabilities": session.capabilities if session is not None else None,
        "lastError": reason_of(link),
        "lastLost": link.lost_reason,
        "startingSeconds": round(link.state.start.took_s, 1) if isinstance(link.state, Starting) else None,
        "sandbox": _SANDBOX[link.is_separate],
        "lastLine": SECRETS.scrub(link.state.start.last_line()) or None if isinstance(link.state, Starting) else None,
        "warnings": list(link.warnings),
        "tools": len(catalog.wrappers_of(alias)),
        "prompts": len(listing.prompts) if listing is not None else 0,
        "resources": len(listing.resources) if listing is not None else 0,
        "resourceTemplates": len(listing.templates) if listing is not None else 0,
        "quarantined": sum(server == alias for server, _ in catalog.quarantined),
        "held": fleet.lock.held_count(alias),
        "repaired": len(listing.repaired) if listing is not None else 0,
        "origin": listing.origin if listing is not None else None,
        "stale": listing.stale if listing is not None else None,
        "ageSeconds": round(age_s, 1) if age_s is not None else None,
        "inFlight": link.in_flight,
        "auth": config.authenticated or (sign_in is not None and sign_in.signed_in),
        "signIn": sign_in.row() if sign_in is not None else None,
        "tags": list(config.tags),
        "siblings": list(config.siblings),
        "supplement": config.supplement,
        **(_of_users(fleet, alias, config) if link.per_user else {}),
    }


def reason_of(link: UpstreamLink) -> str | None:
    """Why a server is not connected, in one line; None where all is well, or may soon be."""
    if link.last_error is None and isinstance(link.state, Starting) and link.state.start.took_s >= _SLOW_START_S:
        return SECRETS.scrub(link.state.start.describe())
    return link.last_error


def state_of(fleet: Fleet, alias: str) -> str:
    """The state of a server, in the word that administrators are shown."""
    config, link = fleet.servers[alias], fleet.links[alias]
    if not link.per_user:
        return link.state.name
    # As every process would say: which of them somebody is connected to says nothing of the server.
    usable = config.exchanges_callers or fleet.sign_ins.user_rows(alias, config)
    return "ready" if usable else SignInNeeded.name


def states(fleet: Fleet) -> dict[str, ServerState]:
    """What is told of each server when it changes."""
    found = {
        alias: ServerState({"state": "faulty" if one.faulty else "disabled"}) for alias, one in fleet.left_out.items()
    }
    for alias, link in fleet.links.items():
        shown: dict[str, Any] = {"state": state_of(fleet, alias), "lastError": link.last_error}
        if isinstance(link.state, Starting):
            # Rounded: each other value is an event for those who watch.
            shown["startingSeconds"] = int(link.state.start.took_s // _PROGRESS_S * _PROGRESS_S)
        found[alias] = ServerState(shown, link.state)
    return found


def _of_users(fleet: Fleet, alias: str, config: ServerConfig) -> dict[str, Any]:
    """What differs in the row of a server to which each caller signs in for itself."""
    users, links = fleet.sign_ins.user_rows(alias, config), list(fleet.users.of_server(alias))
    sessions = [link.session for link in links if link.session is not None]
    session = sessions[0] if sessions else None
    failed = (one.last_error for one in links if one.last_error is not None and not isinstance(one.state, SignInNeeded))
    asks = not config.exchanges_callers
    nobody = None if users or not asks else "nobody has signed in yet; each caller does it for itself"
    return {
        "protocol": session.protocol_version if session is not None else None,
        "serverInfo": session.server_info if session is not None else None,
        "capabilities": session.capabilities if session is not None else None,
        "lastError": next(failed, nobody),
        "inFlight": sum(one.in_flight for one in links),
        "signIn": {
            "type": config.sign_in.type if isinstance(config, UrlConfig) and config.sign_in is not None else None,
            "perUser": True,
            "signedIn": bool(users) or not asks,
            "users": users,
        },
    }


def wrapper_rows(view: View) -> list[dict[str, Any]]:
    """One row for each wrapper that a profile permits, as `/admin/wrappers` shows it."""
    return [wrapper_row(entry, view) for entry in view.entries]


def wrapper_row(entry: ViewEntry, view: View) -> dict[str, Any]:
    """One wrapper's row."""
    listing = view.catalog.servers[entry.wrapper.server]
    return {
        "name": entry.wrapper.name,
        "server": entry.wrapper.server,
        "tool": entry.wrapper.tool,
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


def unchecked_rows(failures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each argument that calls of the last 24 hours sent although it could not be checked."""
    return [
        {
            "server": row["server"],
            "kind": "tools",
            "tool": row["tool"],
            "status": "unchecked",
            "code": row["kind"],
            "detail": f"{row['detail'] or 'the arguments'}: sent unchecked by {row['recent']} calls",
        }
        for row in failures
        if row["kind"] == SENT_UNCHECKED
    ]


def flagged_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """One row for each item whose texts seem to instruct a model; it takes a while, so not where calls wait."""
    return [
        {
            "server": one.server,
            "kind": one.kind,
            "tool": excerpt(one.name, _NAME_CHARS) or "-",
            "status": "flagged",
            "code": one.suspicion.flags[0].code,
            "detail": "; ".join(
                f"{flag.code} in {flag.where}: {flag.quoted}" for flag in one.suspicion.flags[:_FLAGS_TOLD]
            ),
            "score": one.suspicion.score,
        }
        for one in flagged_items(catalog.servers)
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


def budget_rows(views: Iterable[View]) -> list[dict[str, Any]]:
    """One row for each profile: what its list costs and why each wrapper is in it, as `/admin/budget` shows it."""
    rows: list[dict[str, Any]] = []
    for view in views:
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
