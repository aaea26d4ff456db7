"""`/admin/servers`, `/admin/preview` and `/admin/proposals`.

The overlay stores the changes that administrators make on top of the configuration file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import routes, rows
from gateway.admin.operations.config_routes import (
    NOT_SHOWN,
    administrator_name,
    apply_edit,
    check_state,
    etag_of,
    redact_entry,
)
from gateway.admin.routes import Combined, JsonDocument, Merge, Refusal, body_of, missing, read_body, route
from gateway.config.overlay import DISABLED, Change, Edit
from gateway.config.section import Section, refusal, suggestion
from gateway.config.server import ServerConfig
from gateway.config.server_entries import check_exchanges, check_per_user
from gateway.config.upstream_types.registration import AnyServerConfig, all_keys, read_server, unknown_keys
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.fleet.fleet import Fleet
from gateway.fleet.reload import Reloader
from gateway.onboarding.mcp_registry import registry_proposal
from gateway.onboarding.packages import Proposal, SeveralFound, SourceRefused, npm_proposal, pypi_proposal
from gateway.process.secrets import HIDDEN, SECRETS
from gateway.protocol.gateway_errors import ConfigError
from registry.catalog.registry import Registry
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

# The maximum number of choices in a response. A search for a more specific word is quicker than reading a longer list.
_MAX_CHOICES: Final = 30


class ProposalRequest(Section):
    """The body of `POST /admin/proposals`."""

    what: str = Field(min_length=1, max_length=300, examples=["com.example/calendar"])
    """npm:PACKAGE, pypi:PACKAGE, the name of a server in the MCP registry, or a word of such a name."""


class SourceRoutes:
    """Looks up servers in the MCP registry and in package registries."""

    @route(
        "POST",
        "/admin/proposals",
        merge=Merge.HERE,
        recorded=False,
        body=ProposalRequest,
        example={
            "alias": "calendar",
            "origin": "npm calendar 1.0.0",
            "warnings": [],
            "config": {"command": "npx", "args": ["-y", "calendar@1.0.0"], "env": {"KEY": "${KEY}"}},
            "inputs": [{"name": "KEY", "about": "Of the calendar", "secret": True, "required": True, "default": None}],
            "choices": [],
        },
    )
    async def propose_server(self, request: Request) -> Response:
        """Look up a server, pinned to its exact version, without adding it.

        Returns:
            `alias`, `origin`, `config` with `${NAME}` for each of the `inputs`, and `warnings`. If several servers
            match the word, the response has only `choices`, each with `name` and `about`.

        Errors:
            400: The body is invalid.
            409: The server does not exist, was deleted, or cannot be run by the gateway; the reason is in `error`.
        """
        requested = await read_body(request, ProposalRequest)
        try:
            proposal = await anyio.to_thread.run_sync(partial(_proposal, requested.what), abandon_on_cancel=True)
        except SeveralFound as error:
            choices = [{"name": name, "about": about} for name, about in error.choices.items()]
            return JsonDocument({"choices": choices[:_MAX_CHOICES]})
        except SourceRefused as error:
            raise Refusal(409, str(error)) from None
        inputs: list[dict[str, Any]] = [
            {
                "name": each.name,
                "about": each.about,
                "secret": each.secret,
                "required": each.required,
                "default": each.default,
            }
            for each in proposal.inputs
        ]
        return JsonDocument(
            {
                "alias": proposal.alias,
                "origin": proposal.origin,
                "config": proposal.entry,
                "inputs": inputs,
                "warnings": proposal.warnings,
                "choices": [],
            }
        )


def _proposal(what: str) -> Proposal:
    kind, _, name = what.partition(":")
    if kind in ("npm", "pypi") and name:
        return npm_proposal(name, []) if kind == "npm" else pypi_proposal(name, [])
    return registry_proposal(what, base=None, arguments=[], bundle_dir=_no_bundles)


def _no_bundles() -> Path:
    raise SourceRefused("it is a bundle, which has to be unpacked by `typegate add` on the gateway's machine")


# Maximum length of a name that an error message repeats: longer than any existing name.
_NAME_LENGTH: Final = 200
_LOCAL: Final = (
    "its {} would start a program or read files on this machine; expected a server on the network, "
    "gateway.admin.allowCommands: true in the configuration file, or the server in that file"
)
_SHAPE: Final = 'the body must be an object with "name" and the server\'s configuration'
_SERVER: Final[dict[str, str]] = {"name": "calendar"}
_ROW: Final = {"name": "calendar", "type": "http", "state": "ready", "epoch": 1, "tools": 4, "lastError": None}


class ServerRequest(BaseModel):
    """The body of `POST /admin/servers` and `POST /admin/preview`."""

    name: str = Field(examples=["calendar"], description="Its alias, the prefix of its wrapper names.")
    config: AnyServerConfig = Field(
        examples=[{"type": "http", "url": "http://127.0.0.1:9/mcp"}],
        description="Its entry, as in the configuration file.",
    )


class EntryRequest(BaseModel):
    """The body of `POST /admin/servers/{name}/entry`."""

    config: AnyServerConfig = Field(
        examples=[{"type": "http", "url": "http://127.0.0.1:9/mcp"}],
        description="The new configuration, as in the configuration file.",
    )


class ServerRoutes:
    """Shows servers, and adds, removes, enables and disables them in the overlay."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        registry: Registry,
        reloader: Reloader,
        allows_commands: Callable[[], bool],
        are_mixed: Callable[[], bool],
        has_issuers: Callable[[], bool],
    ) -> None:
        """Create the handlers.

        Args:
            fleet: The servers.
            registry: The tools of the servers.
            reloader: Applies changes.
            allows_commands: Returns whether servers that start programs or read local files may be added.
            are_mixed: Returns whether there may be several callers that the gateway cannot distinguish.
            has_issuers: Returns whether callers may authenticate with access tokens of an issuer.
        """
        self._fleet = fleet
        self._registry = registry
        self._reloader = reloader
        self._allows_commands = allows_commands
        self._are_mixed = are_mixed
        self._has_issuers = has_issuers

    @route(
        "GET",
        "/admin/servers",
        merge=Combined(routes.all_servers),
        rows="servers",
        filters=("status", "q"),
        example={"servers": [_ROW]},
    )
    async def servers(self, request: Request) -> Response:
        """Return every upstream.

        Returns:
            `servers`: state, epoch, last error, capabilities and counts of each.
        """
        await self._fleet.sign_ins.load_users(self._fleet.servers)
        return JsonDocument({"servers": rows.server_rows(self._fleet, self._registry.catalog)})

    @route("POST", "/admin/servers", merge=Merge.CHANGE, status=201, role="admin", body=ServerRequest, example=_ROW)
    async def add_server(self, request: Request) -> Response:
        """Add an upstream. The change is stored in the overlay and survives a restart.

        Returns:
            The row of the server.

        Errors:
            400: The name or the configuration is wrong.
            403: The configuration names a program or a file, which `gateway.admin.allowCommands` does not allow.
        """
        name, config = await self.requested_config(request)
        added = Change(kind="server_added", target=name, entry=_dump_entry(config), by=administrator_name(request))
        await apply_edit(self._reloader, Edit(add=(added,), remove=self._change_ids(name)), status=400)
        log.info("server added", extra={"server": name})
        return JsonDocument(self._row(name), 201)

    @route(
        "POST",
        "/admin/preview",
        merge=Merge.SAME,
        role="viewer",
        recorded=False,
        body=ServerRequest,
        example={
            "name": "calendar",
            "type": "http",
            "runs": "http://127.0.0.1:9/mcp",
            "local": [],
            "allowed": True,
            "sends": [],
        },
    )
    async def preview_server(self, request: Request) -> Response:
        """Show what a new server would run or connect to, without adding it.

        Returns:
            `name`, `type`; `runs`: the command line or the address; `sends`: the names of headers and environment
            variables; `local`: the keys that name programs or files on this machine; `allowed`: whether the server may
            be added; `error`: why the server may not be added, if `allowed` is false.

        Errors:
            400: The name or the configuration is wrong.
        """
        name, config = await self._parse_body(request)
        allowed = not config.local_keys or self._allows_commands()
        return JsonDocument(
            {
                "name": name,
                "type": config.type,
                "runs": rows.runs_of(config),
                "sends": rows.sends_of(config),
                "local": list(config.local_keys),
                "allowed": allowed,
                **({} if allowed else {"error": _LOCAL.format(" and ".join(config.local_keys))}),
            }
        )

    @route("GET", "/admin/servers/{name}", merge=Combined(routes.merge_server_details), examples=_SERVER, example=_ROW)
    async def server(self, request: Request) -> Response:
        """Return an upstream.

        Returns:
            The row of the server. The entity tag of the response identifies the server's configuration.

        Errors:
            404: The server does not exist.
        """
        name = self._requested_server(request)
        await self._fleet.sign_ins.load_users(self._fleet.servers)
        return self._server_response(name)

    @route("DELETE", "/admin/servers/{name}", merge=Merge.CHANGE, status=204, role="admin", examples=_SERVER)
    async def remove_server(self, request: Request) -> Response:
        """Remove an upstream after its running calls have ended. It stays removed until this change is reverted.

        Returns:
            Nothing.

        Errors:
            404: The server does not exist.
            409: The server cannot be removed.
            412: The configuration of the server no longer matches the entity tag in `If-Match`.
        """
        name = self._requested_server(request)
        edit = Edit(remove=self._change_ids(name))
        if name in self._reloader.base.servers or name in self._reloader.base.left_out:
            edit = replace(edit, add=(Change(kind="server_removed", target=name, by=administrator_name(request)),))
        await apply_edit(self._reloader, edit)
        log.info("server removed", extra={"server": name})
        return Response(status_code=204)

    @route(
        "POST",
        "/admin/servers/{name}/disable",
        merge=Merge.CHANGE,
        examples=_SERVER,
        example={**_ROW, "state": "disabled"},
    )
    async def disable_server(self, request: Request) -> Response:
        """Disable a server at once: hosts cannot list or call its tools until an administrator enables it again.

        Returns:
            The row of the server.

        Errors:
            404: The server does not exist.
            409: The server cannot be disabled.
            412: The configuration of the server no longer matches the entity tag in `If-Match`.
        """
        name = self._requested_server(request)
        if name in self._fleet.servers:
            disabled = Change(kind="server_disabled", target=name, by=administrator_name(request))
            await apply_edit(self._reloader, Edit(add=(disabled,)))
            log.warning("server disabled", extra={"server": name})
        return self._server_response(name)

    @route("POST", "/admin/servers/{name}/enable", merge=Merge.CHANGE, examples=_SERVER, example=_ROW)
    async def enable_server(self, request: Request) -> Response:
        """Enable a server that an administrator has disabled.

        Returns:
            The row of the server.

        Errors:
            404: The server does not exist.
            409: The configuration file disables the server, or the server's entry in the file has an error.
            412: The configuration of the server no longer matches the entity tag in `If-Match`.
        """
        name = self._requested_server(request)
        if name not in self._fleet.servers:
            left_out = self._fleet.left_out[name]
            if left_out.reason != DISABLED:
                raise Refusal(409, f"{left_out.reason}; expected a change in the configuration file")
            await apply_edit(self._reloader, Edit(remove=self._change_ids(name, "server_disabled")))
            log.warning("server enabled", extra={"server": name})
        return self._server_response(name)

    @route(
        "POST",
        "/admin/servers/{name}/refresh",
        merge=Merge.EVERYWHERE,
        status=202,
        examples=_SERVER,
        example={"refreshing": "calendar"},
    )
    async def refresh(self, request: Request) -> Response:
        """List the tools of an upstream again.

        Returns:
            `refreshing`: the name of the server.

        Errors:
            404: The server does not exist.
        """
        name = request.path_params["name"]
        if (link := self._fleet.links.get(name)) is None:
            raise missing("server", name)
        link.refresh()
        if not link.has_instances:  # per-session and per-caller processes do not list tools
            for each in self._fleet.users.links_to(name):
                each.refresh()
        return JsonDocument({"refreshing": name}, 202)

    @route(
        "GET",
        "/admin/servers/{name}/entry",
        merge=Merge.SAME,
        role="admin",
        examples=_SERVER,
        example={"name": "calendar", "config": {"type": "http", "url": "http://127.0.0.1:9/mcp"}},
    )
    async def entry(self, request: Request) -> Response:
        """Return the configuration of a server, with placeholders for the values of headers and environment variables.

        Returns:
            `name` and `config`.

        Errors:
            404: The server does not exist, or is disabled.
        """
        name, config = self._find_server(request)
        return JsonDocument(
            {"name": name, "config": redact_entry(_dump_entry(config))}, headers={"etag": self._tag(name)}
        )

    @route(
        "POST",
        "/admin/servers/{name}/entry",
        merge=Merge.CHANGE,
        role="admin",
        body=EntryRequest,
        examples=_SERVER,
        example=_ROW,
    )
    async def edit(self, request: Request) -> Response:
        """Replace the configuration of a server in the overlay. A placeholder in the body stands for the current value.

        Returns:
            The row of the server.

        Errors:
            400: The configuration is wrong, or there is no current value for a placeholder.
            403: The configuration names another program or file, which `gateway.admin.allowCommands` does not allow.
            404: The server does not exist, or is disabled.
            409: The configuration cannot be used.
            412: The configuration of the server no longer matches the entity tag in `If-Match`.
        """
        name, current = self._find_server(request)
        body = await body_of(request)
        if not isinstance(body, dict) or set(body) != {"config"} or not isinstance(body["config"], dict):
            raise Refusal(400, 'the body must be an object with "config", the configuration of the server')
        new_entry = body["config"]
        # Restore hidden values only if no URL is new: a new address must not receive the hidden values.
        if _urls_in(new_entry) <= _urls_in(_dump_entry(current)):
            new_entry = _restore_hidden_values(new_entry, _dump_entry(current))
        if _hides_something(new_entry):
            raise Refusal(400, "a value that is not shown has to be entered, because it or the address is new")
        config = self._validate_entry(name, new_entry, replaces=True)
        if config.local_keys and not self._allows_commands() and not _launches_alike(config, current):
            raise Refusal(403, _LOCAL.format(" and ".join(config.local_keys)))
        added = Change(kind="server_added", target=name, entry=_dump_entry(config), by=administrator_name(request))
        await apply_edit(self._reloader, Edit(add=(added,), remove=self._change_ids(name, "server_added")))
        log.info("server edited", extra={"server": name})
        return self._server_response(name)

    def _find_server(self, request: Request) -> tuple[str, ServerConfig]:
        """Return the name and the configuration of the server in the path.

        Raises:
            Refusal: The server does not exist or is disabled, or its configuration no longer matches `If-Match`.
        """
        name = self._requested_server(request)
        if name not in self._fleet.servers:
            raise Refusal(404, f"the server {name} is not in use; enable it first")
        return name, self._fleet.servers[name]

    async def requested_config(self, request: Request) -> tuple[str, ServerConfig]:
        """Return the name and the configuration of a server that is to be started.

        Raises:
            Refusal: The name or the configuration cannot be used, or the server may not be started.
        """
        name, config = await self._parse_body(request)
        if config.local_keys and not self._allows_commands():
            log.warning("server with local command refused", extra={"server": name})
            raise Refusal(403, _LOCAL.format(" and ".join(config.local_keys)))
        return name, config

    async def _parse_body(self, request: Request) -> tuple[str, ServerConfig]:
        """Return the name and the configuration in the body.

        Raises:
            Refusal: The name or the configuration cannot be used.
        """
        body = await body_of(request)
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise Refusal(400, _SHAPE)
        name = body.pop("name")
        # Two forms are accepted: the members of the server's entry next to `name`, and the entry in `config`.
        if "config" in body and (other_keys := [key for key in body if key != "config"]):
            raise Refusal(
                400, f"request: {excerpt(other_keys[0], _NAME_LENGTH)}: unknown key; expected name and config"
            )
        return name, self._validate_entry(name, body.get("config", body))

    def _validate_entry(self, name: str, entry: Any, *, replaces: bool = False) -> ServerConfig:
        """Validate the entry of a server that will be added, or that will replace the server with this name.

        Raises:
            Refusal: The name or the configuration cannot be used.
        """
        try:
            # Validate before checking for unknown keys: the model of the server's type gives more specific errors.
            config = read_server(entry)
            if isinstance(entry, dict) and (unknown := unknown_keys(entry)):
                raise Refusal(400, f"request: {_unknown(unknown[0], config)}")
            if isinstance(config, StdioConfig) and config.env_file is not None:
                raise Refusal(400, "envFile works only in the configuration file; expected env")
            if config.disabled:
                raise Refusal(400, "the server is disabled; expected a server to connect to")
            check_exchanges({name: config}, has_issuers=self._has_issuers(), file="request")
            if self._are_mixed():
                check_per_user({name: config}, file="request")
            if not replaces:
                self._fleet.check_new(name, config)
        except ValidationError as error:
            raise Refusal(400, str(refusal(error, "request"))) from None
        except ConfigError as error:
            raise Refusal(400, error.message) from None
        file = self._reloader.path
        return config.with_absolute_paths(file.parent if file is not None else Path())

    def _requested_server(self, request: Request) -> str:
        """Return the name of the server in the path.

        Raises:
            Refusal: The server does not exist, or its configuration no longer matches `If-Match`.
        """
        name: str = request.path_params["name"]
        if name not in self._fleet.servers and name not in self._fleet.left_out:
            raise missing("server", name)
        if request.method != "GET":
            check_state(request, self._tag(name))
        return name

    def _server_response(self, name: str) -> Response:
        return JsonDocument(self._row(name), headers={"etag": self._tag(name)})

    def _row(self, name: str) -> dict[str, Any]:
        if name in self._fleet.servers:
            return rows.server_row(self._fleet, self._registry.catalog, name)
        return rows.left_out_row(name, self._fleet.left_out[name])

    def _tag(self, name: str) -> str:
        config = self._fleet.servers.get(name)
        if config is None:
            return etag_of([name, self._fleet.left_out[name].reason])
        return etag_of([name, _dump_entry(config)])

    def _change_ids(self, name: str, *kinds: str) -> frozenset[str]:
        """Return the ids of the changes to a server, optionally only of these kinds."""
        # Exclude `server_removed`: deleting this change would restore the configuration file's server with this name.
        selected_kinds = kinds or ("server_added", "server_disabled", "tool_disabled", "tool_set")
        return frozenset(
            each.id
            for each in self._reloader.overlay.changes
            if each.kind in selected_kinds and (each.server or each.target) == name
        )


def _unknown(unknown_key: str, config: ServerConfig) -> str:
    key = excerpt(unknown_key, _NAME_LENGTH)
    if key in all_keys():
        return f"{key}: a server of type {config.type} has no such key"
    return f"{key}: unknown key; expected {suggestion(key, all_keys())}"


def _dump_entry(config: ServerConfig) -> dict[str, Any]:
    entry: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return entry


def _launches_alike(config: ServerConfig, current: ServerConfig) -> bool:
    """Return whether two entries start the same program and read the same files.

    Such entries differ only in keys that all types of servers have.
    """
    own = set(type(config).model_fields) - set(ServerConfig.model_fields)
    return type(config) is type(current) and all(getattr(config, key) == getattr(current, key) for key in own)


def _restore_hidden_values(new_value: Any, current: Any) -> Any:
    """Return the new entry with each hidden value replaced by the current value."""
    if isinstance(new_value, dict):
        current_members = current if isinstance(current, dict) else {}
        return {name: _restore_hidden_values(value, current_members.get(name)) for name, value in new_value.items()}
    if isinstance(new_value, list):
        current_items = current if isinstance(current, list) else []
        padded = [*current_items, *[None] * max(0, len(new_value) - len(current_items))]
        return [_restore_hidden_values(value, padded[place]) for place, value in enumerate(new_value)]
    if isinstance(new_value, str) and isinstance(current, str) and new_value in (NOT_SHOWN, SECRETS.scrub(current)):
        return current
    return new_value


def _urls_in(value: Any) -> set[str]:
    """Return the strings in a JSON value that contain a URL, with secrets hidden as in responses."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return set[str]().union(*map(_urls_in, parts))
    return {SECRETS.scrub(value)} if isinstance(value, str) and "://" in value else set()


def _hides_something(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_hides_something, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and (value == NOT_SHOWN or HIDDEN in value)
