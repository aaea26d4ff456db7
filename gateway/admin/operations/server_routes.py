"""`/admin/servers`: what there is, and what administrators add, remove, disable and enable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import merging, rows
from gateway.admin.changing import change, check_state, etag_of, who
from gateway.admin.documents import JsonDocument, Refusal, body_of, missing
from gateway.admin.routes import Combined, Merge, route
from gateway.config.overlay import DISABLED, Change, Edit
from gateway.config.per_user import check_exchanges, check_per_user
from gateway.config.section import suggestion
from gateway.config.server import ServerConfig
from gateway.config.upstream_types.registration import AnyServerConfig, all_keys, read_server, unknown_keys
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.config.wording import refusal
from gateway.errors import ConfigError
from gateway.fleet import Fleet
from gateway.reload import Reloader
from registry.catalog.store import Registry
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

# Of a name that is echoed: longer than any that exists.
_NAME_LENGTH: Final = 200
_LOCAL: Final = (
    "its {} would start a program or read files of this machine; expected a server on the network, or "
    "gateway.admin.allowCommands: true in the configuration file, or the server in that file"
)
_SHAPE: Final = 'the body must be an object with "name" and the server\'s configuration'
_SERVER: Final[dict[str, str]] = {"name": "calendar"}
_ROW: Final = {"name": "calendar", "type": "http", "state": "ready", "epoch": 1, "tools": 4, "lastError": None}


class ServerRequest(BaseModel):
    """The body that adds a server."""

    name: str = Field(examples=["calendar"], description="Its alias, which its wrappers begin with.")
    config: AnyServerConfig = Field(
        examples=[{"type": "http", "url": "http://127.0.0.1:9/mcp"}],
        description="Its entry, as in the configuration file.",
    )


class ServerRoutes:
    """Shows servers, and changes them in the overlay."""

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
        """Answer about these.

        Args:
            fleet: The servers.
            registry: Their tools.
            reloader: Applies changes.
            allows_commands: Whether servers may be added that start programs or read files of this machine.
            are_mixed: Whether there may be several callers, and nothing tells them apart.
            has_issuers: Whether callers may come with tokens.
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
        merge=Combined(merging.all_servers),
        rows="servers",
        filters=("status", "q"),
        example={"servers": [_ROW]},
    )
    async def servers(self, request: Request) -> Response:
        """Every upstream.

        Returns:
            `servers`: state, epoch, last error, capabilities and counts of each.
        """
        await self._fleet.sign_ins.look_for_users(self._fleet.servers)
        return JsonDocument({"servers": rows.server_rows(self._fleet, self._registry.catalog)})

    @route("POST", "/admin/servers", merge=Merge.CHANGE, status=201, role="admin", body=ServerRequest, example=_ROW)
    async def add_server(self, request: Request) -> Response:
        """Add an upstream. It is kept in the overlay, and there after a restart.

        Returns:
            Its row.

        Errors:
            400: The name or the configuration is wrong.
            403: It names a program or a file, which `gateway.admin.allowCommands` does not allow.
        """
        name, config = await self._read(request)
        if config.local_keys and not self._allows_commands():
            log.warning("a server with a program or a file was not added", extra={"server": name})
            raise Refusal(403, _LOCAL.format(" and ".join(config.local_keys)))
        entry = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        added = Change(kind="server_added", target=name, entry=entry, by=who(request))
        await change(self._reloader, Edit(add=(added,), remove=self._about(name)), status=400)
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
            "name": "calendar", "type": "http", "runs": "http://127.0.0.1:9/mcp", "local": [], "allowed": True,
            "sends": [],
        },
    )  # fmt: skip
    async def preview_server(self, request: Request) -> Response:
        """What adding a server would run or connect to. Nothing is added.

        Returns:
            `name`, `type`; `runs`: the command line or the address; `sends`: the names of headers and environment
            variables that it is given; `local`: the keys that name something of this machine; `allowed`: whether it
            may be added here, and `error` if not.

        Errors:
            400: The name or the configuration is wrong.
        """
        name, config = await self._read(request)
        allowed = not config.local_keys or self._allows_commands()
        command = [getattr(config, "command", ""), *getattr(config, "args", ())]
        return JsonDocument(
            {
                "name": name,
                "type": config.type,
                "runs": config.address or " ".join(map(_quoted, command)),
                "sends": [*getattr(config, "headers", {}), *getattr(config, "env", {})],
                "local": list(config.local_keys),
                "allowed": allowed,
                **({} if allowed else {"error": _LOCAL.format(" and ".join(config.local_keys))}),
            }
        )

    @route("GET", "/admin/servers/{name}", merge=Combined(merging.one_server), examples=_SERVER, example=_ROW)
    async def server(self, request: Request) -> Response:
        """One upstream.

        Returns:
            Its row; the entity tag tells its configuration.

        Errors:
            404: There is no such server.
        """
        name = self._named(request)
        await self._fleet.sign_ins.look_for_users(self._fleet.servers)
        return self._shown(name)

    @route("DELETE", "/admin/servers/{name}", merge=Merge.CHANGE, status=204, role="admin", examples=_SERVER)
    async def remove_server(self, request: Request) -> Response:
        """Remove an upstream; its running calls end first. It stays away after a restart, until that is reverted.

        Returns:
            Nothing.

        Errors:
            404: There is no such server.
            409: It cannot be removed.
            412: It is not as `If-Match` says.
        """
        name = self._named(request)
        edit = Edit(remove=self._about(name))
        if name in self._reloader.base.servers or name in self._reloader.base.left_out:
            edit = replace(edit, add=(Change(kind="server_removed", target=name, by=who(request)),))
        await change(self._reloader, edit)
        log.info("server removed", extra={"server": name})
        return Response(status_code=204)

    @route(
        "POST", "/admin/servers/{name}/disable", merge=Merge.CHANGE, examples=_SERVER,
        example={**_ROW, "state": "disabled"},
    )  # fmt: skip
    async def disable_server(self, request: Request) -> Response:
        """Take a server out of use at once: its tools are neither listed nor callable, until it is enabled again.

        Returns:
            Its row.

        Errors:
            404: There is no such server.
            409: It cannot be disabled.
            412: It is not as `If-Match` says.
        """
        name = self._named(request)
        if name in self._fleet.servers:
            disabled = Change(kind="server_disabled", target=name, by=who(request))
            await change(self._reloader, Edit(add=(disabled,)))
            log.warning("server disabled", extra={"server": name})
        return self._shown(name)

    @route("POST", "/admin/servers/{name}/enable", merge=Merge.CHANGE, examples=_SERVER, example=_ROW)
    async def enable_server(self, request: Request) -> Response:
        """Take a server into use again that an administrator has disabled.

        Returns:
            Its row.

        Errors:
            404: There is no such server.
            409: The configuration file disables it, or it has a fault there.
            412: It is not as `If-Match` says.
        """
        name = self._named(request)
        if name not in self._fleet.servers:
            left = self._fleet.left_out[name]
            if left.reason != DISABLED:
                raise Refusal(409, f"{left.reason}; expected a change in the configuration file")
            await change(self._reloader, Edit(remove=self._about(name, "server_disabled")))
            log.warning("server enabled", extra={"server": name})
        return self._shown(name)

    @route(
        "POST", "/admin/servers/{name}/refresh", merge=Merge.EVERYWHERE, status=202, examples=_SERVER,
        example={"refreshing": "calendar"},
    )  # fmt: skip
    async def refresh(self, request: Request) -> Response:
        """List the tools of an upstream again.

        Returns:
            `refreshing`: its name.

        Errors:
            404: There is no such server.
        """
        name = request.path_params["name"]
        if (link := self._fleet.links.get(name)) is None:
            raise missing("server", name)
        for one in (link, *self._fleet.users.of_server(name)):
            one.refresh()
        return JsonDocument({"refreshing": name}, 202)

    async def _read(self, request: Request) -> tuple[str, ServerConfig]:
        """The name and the configuration in a body.

        Raises:
            Refusal: They cannot be used.
        """
        body = await body_of(request)
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise Refusal(400, _SHAPE)
        name = body.pop("name")
        # Both forms are taken: the entry beside its name, and under a key of its own.
        if "config" in body and (others := [key for key in body if key != "config"]):
            raise Refusal(400, f"request: {excerpt(others[0], _NAME_LENGTH)}: unknown key; expected name and config")
        entry = body.get("config", body)
        try:
            # First, since its type knows best what is wrong with it.
            config = read_server(entry)
            if isinstance(entry, dict) and (unknown := unknown_keys(entry)):
                raise Refusal(400, f"request: {_unknown(unknown[0], config)}")
            if isinstance(config, StdioConfig) and config.env_file is not None:
                raise Refusal(400, "envFile is read where it stands in the configuration file; expected env")
            if config.disabled:
                raise Refusal(400, "it is disabled; expected a server to connect to")
            check_exchanges({name: config}, has_issuers=self._has_issuers(), file="request")
            if self._are_mixed():
                check_per_user({name: config}, file="request")
            self._fleet.check_new(name, config)
        except ValidationError as error:
            raise Refusal(400, str(refusal(error, "request"))) from None
        except ConfigError as error:
            raise Refusal(400, error.message) from None
        file = self._reloader.path
        return name, config.with_absolute_paths(file.parent if file is not None else Path())

    def _named(self, request: Request) -> str:
        """The server of a path.

        Raises:
            Refusal: There is none, or it is not as `If-Match` says.
        """
        name: str = request.path_params["name"]
        if name not in self._fleet.servers and name not in self._fleet.left_out:
            raise missing("server", name)
        if request.method != "GET":
            check_state(request, self._tag(name))
        return name

    def _shown(self, name: str) -> Response:
        return JsonDocument(self._row(name), headers={"etag": self._tag(name)})

    def _row(self, name: str) -> dict[str, Any]:
        if name in self._fleet.servers:
            return rows.server_row(self._fleet, self._registry.catalog, name)
        return rows.left_out_row(name, self._fleet.left_out[name])

    def _tag(self, name: str) -> str:
        config = self._fleet.servers.get(name)
        if config is None:
            return etag_of([name, self._fleet.left_out[name].reason])
        return etag_of([name, config.model_dump(mode="json", by_alias=True, exclude_unset=True)])

    def _about(self, name: str, *kinds: str) -> frozenset[str]:
        """The changes about a server, by their ids; with `kinds`, only those of these."""
        # One that removes the file's own server is taken back by whoever wants that again, and not by adding another.
        wanted = kinds or ("server_added", "server_disabled", "tool_disabled")
        return frozenset(
            each.id
            for each in self._reloader.overlay.changes
            if each.kind in wanted and (each.server or each.target) == name
        )


def _unknown(written: str, config: ServerConfig) -> str:
    key = excerpt(written, _NAME_LENGTH)
    if key in all_keys():
        return f"{key}: a server of type {config.type} has no such key"
    return f"{key}: unknown key; expected {suggestion(key, all_keys())}"


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word or not word else word
