"""`/admin/mistakes` and `/admin/wrappers/{name}/overrides`.

Mistakes are callers' errors in calling tools. Overrides correct the names and descriptions of tools; the overlay stores
them with the other changes that administrators make on top of the configuration file.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.operations.config_routes import administrator_name, apply_edit, check_state, etag_of
from gateway.admin.routes import Combined, JsonDocument, Merge, missing, read_body, route
from gateway.calls.advice.mistakes import all_mistakes
from gateway.calls.call_stats import CallStats
from gateway.config.overlay import Change, Edit
from gateway.config.section import Section, fault
from gateway.config.server import ToolConfig
from gateway.fleet.reload import Reloader
from registry.catalog.catalog import ToolWrapper
from registry.catalog.overrides import OverrideRejected, parse_arguments
from registry.catalog.registry import Registry

log = logging.getLogger(__name__)

_NAME: Final = "calendar__list_events"
_NAMED: Final = {"name": _NAME}
# Maximum lengths. Hosts do not accept longer tool names, and people do not write longer descriptions.
_NAME_CHARS: Final = 128
_TEXT_CHARS: Final = 20_000
_ARGUMENT: Final = {"name": "day", "type": "string", "description": "Date (YYYY-MM-DD)", "required": True}
_OVERRIDES: Final = {"wrapper": _NAME, "server": "calendar", "tool": "list_events"} | {
    "overrides": {"arguments": [_ARGUMENT]},
    "file": {},
    "changed": ["arguments"],
}
_MISTAKES: Final = {
    "tools": [
        {
            "wrapper": _NAME,
            "server": "calendar",
            "tool": "list_events",
            "calls": 3,
            "mistakes": [
                {
                    "kind": "unknown",
                    "sent": "date",
                    "meant": "day",
                    "calls": 3,
                    "callers": {"ci": 3},
                    "text": "date is not an argument; expected day",
                    "example": {"date": "<text>"},
                    "at": 1801382400.5,
                    "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
                }
            ],
        }
    ]
}


class OverrideRequest(Section):
    """The body of `POST /admin/wrappers/{name}/overrides`. Absent members are as in the configuration file."""

    name: str | None = Field(default=None, min_length=1, max_length=_NAME_CHARS, examples=["events"])
    """Name to use for the tool in its wrapper name."""
    description: str | None = Field(default=None, max_length=_TEXT_CHARS)
    """Description that replaces the upstream's."""
    supplement: str | None = Field(default=None, max_length=_TEXT_CHARS)
    """Text to append to the description."""
    arguments: list[Any] | None = Field(default=None, examples=[[_ARGUMENT]])
    """Documentation of arguments: a list of objects with `name`, `type`, `description` and `required`."""

    @field_validator("arguments")
    @classmethod
    def _has_valid_arguments(cls, value: list[Any] | None) -> list[Any] | None:
        try:
            parse_arguments(value or [])
        except OverrideRejected as error:
            raise fault(str(error), "a list of {name, type, description, required}") from None
        return value


_MEMBERS: Final = tuple(OverrideRequest.model_fields)


class MistakeRoutes:
    """Shows the mistakes that callers make in calling each tool."""

    def __init__(self, call_stats: CallStats) -> None:
        self._call_stats = call_stats

    @route("GET", "/admin/mistakes", merge=Combined(all_mistakes), rows="tools", filters=("server",), example=_MISTAKES)
    async def mistakes(self, request: Request) -> Response:
        """Return the mistakes that callers have made in calling each tool since the start of the gateway.

        Returns:
            `tools`: wrapper, server, tool, calls and `mistakes` of each: kind (missing, unknown, type, value,
            repaired_… or error_result), `sent` and `meant` (names of arguments), calls, calls of each of the
            `callers`, the error `text`, an `example` of the arguments with a placeholder for each value, `at`: the time
            of the latest call with this mistake, in seconds since 1970, and `trace`: the id of this call's trace, if
            the trace is recorded. Values of arguments are not included.
        """
        return JsonDocument({"tools": self._call_stats.mistakes.rows()})


class OverrideRoutes:
    """Shows and changes the documented arguments and the names of tools, in the overlay."""

    def __init__(self, registry: Registry, reloader: Reloader) -> None:
        self._registry = registry
        self._reloader = reloader

    @route("GET", "/admin/wrappers/{name}/overrides", merge=Merge.SAME, examples=_NAMED, example=_OVERRIDES)
    async def overrides(self, request: Request) -> Response:
        """Return the documentation and the overrides of a tool.

        Returns:
            `wrapper`, `server`, `tool`; `overrides`: the name, description, supplement and arguments in use; `file`:
            the same members as in the configuration file; `changed`: the members that administrators have changed.

        Errors:
            404: The wrapper does not exist.
        """
        return self._override_response(self._requested_wrapper(request))

    @route(
        "POST",
        "/admin/wrappers/{name}/overrides",
        merge=Merge.CHANGE,
        role="admin",
        body=OverrideRequest,
        examples=_NAMED,
        example=_OVERRIDES,
    )
    async def set_overrides(self, request: Request) -> Response:
        """Document the arguments of a tool, or change its name or description, in the overlay.

        Returns:
            The same as GET; `wrapper` is the new name after a rename.

        Errors:
            400: The overrides are invalid.
            404: The wrapper does not exist.
            409: The resulting configuration cannot be used.
            412: The overrides no longer match the entity tag in `If-Match`.
        """
        wrapper = self._requested_wrapper(request)
        check_state(request, self._tag(wrapper))
        requested = await read_body(request, OverrideRequest)
        entry = {
            key: value
            for key, value in requested.model_dump(exclude_unset=True).items()
            if value is not None and value != self._file_entry(wrapper).get(key)
        }
        added = Change(
            kind="tool_set",
            target=wrapper.name,
            server=wrapper.server,
            tool=wrapper.tool,
            entry=entry,
            by=administrator_name(request),
        )
        await apply_edit(self._reloader, Edit(add=(added,) if entry else (), remove=self._earlier(wrapper)))
        log.info("tool overrides changed", extra={"server": wrapper.server, "tool": wrapper.tool})
        return self._override_response(self._registry.catalog.by_tool.get((wrapper.server, wrapper.tool)) or wrapper)

    @route(
        "DELETE",
        "/admin/wrappers/{name}/overrides",
        merge=Merge.CHANGE,
        role="admin",
        examples=_NAMED,
        example={**_OVERRIDES, "overrides": {}, "changed": []},
    )
    async def remove_overrides(self, request: Request) -> Response:
        """Remove the overrides of administrators, so that the overrides of the configuration file apply.

        Returns:
            The same as GET.

        Errors:
            404: The wrapper does not exist.
            409: The resulting configuration cannot be used.
        """
        wrapper = self._requested_wrapper(request)
        await apply_edit(self._reloader, Edit(remove=self._earlier(wrapper)))
        return self._override_response(self._registry.catalog.by_tool.get((wrapper.server, wrapper.tool)) or wrapper)

    def _override_response(self, wrapper: ToolWrapper) -> Response:
        file_entry, used = self._file_entry(wrapper), self._entry(wrapper)
        return JsonDocument(
            {
                "wrapper": wrapper.name,
                "server": wrapper.server,
                "tool": wrapper.tool,
                "overrides": used,
                "file": file_entry,
                "changed": [key for key in _MEMBERS if used.get(key) != file_entry.get(key)],
            },
            headers={"etag": self._tag(wrapper)},
        )

    def _entry(self, wrapper: ToolWrapper) -> dict[str, Any]:
        server = self._reloader.config.servers.get(wrapper.server)
        return _override_row(server.tools.get(wrapper.tool) if server is not None else None)

    def _file_entry(self, wrapper: ToolWrapper) -> dict[str, Any]:
        """Return the overrides in the server's entry, without later changes of administrators to this tool.

        The entry is in the overlay if an administrator has added or edited the server, otherwise in the configuration
        file.
        """
        added = [each for each in self._reloader.overlay.changes if each.kind == "server_added"]
        entries = [each.entry.get("tools") or {} for each in added if each.target == wrapper.server]
        if entries:
            tool_entry = entries[-1].get(wrapper.tool)
            return _override_row(ToolConfig.model_validate(tool_entry) if tool_entry else None)
        server = self._reloader.base.servers.get(wrapper.server)
        return _override_row(server.tools.get(wrapper.tool) if server is not None else None)

    def _tag(self, wrapper: ToolWrapper) -> str:
        return etag_of([wrapper.server, wrapper.tool, self._entry(wrapper)])

    def _earlier(self, wrapper: ToolWrapper) -> frozenset[str]:
        return frozenset(
            each.id
            for each in self._reloader.overlay.changes
            if each.kind == "tool_set" and (each.server, each.tool) == (wrapper.server, wrapper.tool)
        )

    def _requested_wrapper(self, request: Request) -> ToolWrapper:
        """Return the wrapper in the path.

        Raises:
            Refusal: The wrapper does not exist.
        """
        name = request.path_params["name"]
        wrapper = self._registry.catalog.by_name.get(name)
        if wrapper is None:
            raise missing("wrapper", name)
        return wrapper


def _override_row(config: ToolConfig | None) -> dict[str, Any]:
    if config is None:
        return {}
    return {key: value for key in _MEMBERS if (value := getattr(config, key)) not in (None, [])}
