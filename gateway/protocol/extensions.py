"""The protocol extensions that the gateway forwards: their methods, and how to find the server of each request.

An extension is declared to callers only if it is in the table `OFFICIAL` or in the configuration, `gateway.extensions`.
Extensions about the authorization of a client, such as `io.modelcontextprotocol/oauth-client-credentials`, are not in
the table: what an upstream declares about its own sign-in does not apply to callers of the gateway.

Source: MCP 2026-07-28, "Extensions"; the pages of each extension named below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from gateway.protocol.versions import META

Owner = Literal["uri", "tool", "task", "server", "all", "listed"]
"""How to find the server that handles a request.

`uri`: by the resource URI in a parameter. `tool`: by the wrapper name in a parameter. `task`: by the task id in a
parameter. `server`: the only server of the caller that declares the extension. `all`: the request is sent to every
server, and the lists in their results are joined. `listed`: none, because the gateway answers from its catalog.
"""
APPS: Final = META + "ui"
SKILLS: Final = META + "skills"
TASKS: Final = META + "tasks"
APP_MIME_TYPE: Final = "text/html;profile=mcp-app"
"""Media type of apps. Source: MCP Apps 2026-01-26, "Capability Negotiation"."""
_NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionMethod:
    """How the gateway handles one method of an extension.

    Attributes:
        owner: How to find the server.
        member: The name of the parameter with the URI, wrapper name or task id. For `all`, the name of the list in the
            result.
        setting: The setting that a server must declare as true to support the method; None if the method needs none.
        is_cacheable: Whether the result says how long it is valid, like a result of `resources/read`.
    """

    owner: Owner
    member: str = ""
    setting: str | None = None
    is_cacheable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One protocol extension.

    Attributes:
        identifier: The key in `capabilities.extensions`.
        methods: The methods that the extension adds to the protocol, by name.
        modern_only: Whether only callers that use protocol version 2026-07-28 can use the extension.
        in_advance: Whether to declare the extension while some upstreams have not connected yet. Before 2026-07-28,
            callers receive capabilities only once, in the response to `initialize`.
        declared_upstream: The settings that the gateway declares to upstreams; None to declare nothing.
    """

    identifier: str
    methods: Mapping[str, ExtensionMethod] = field(default_factory=lambda: MappingProxyType({}))
    modern_only: bool = False
    in_advance: bool = False
    declared_upstream: Mapping[str, Any] | None = None

    def offers(self, method: ExtensionMethod, capabilities: Mapping[str, Any]) -> bool:
        """Return whether a server with these capabilities supports a method of the extension."""
        settings = self.settings_in(capabilities)
        return settings is not None and (method.setting is None or settings.get(method.setting) is True)

    def settings_in(self, capabilities: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings of the extension in a server's capabilities; None if the server does not declare it."""
        extensions = capabilities.get("extensions")
        settings = extensions.get(self.identifier) if isinstance(extensions, dict) else None
        if settings is None or settings is False:
            return None
        return settings if isinstance(settings, dict) else _NO_SETTINGS


OFFICIAL: Final[tuple[Extension, ...]] = (
    # Source: MCP Apps 2026-01-26. Apps use only methods of the protocol: tools/call and resources/read.
    Extension(identifier=APPS, in_advance=True, declared_upstream=MappingProxyType({"mimeTypes": [APP_MIME_TYPE]})),
    # Source: MCP extension io.modelcontextprotocol/skills, 2026-07-28.
    Extension(
        identifier=SKILLS,
        methods=MappingProxyType(
            {
                "skills/list": ExtensionMethod(owner="listed", member="skills"),
                "skills/get": ExtensionMethod(owner="uri", member="uri", is_cacheable=True),
                "resources/directory/read": ExtensionMethod(owner="uri", member="uri", setting="directoryRead"),
            }
        ),
        in_advance=True,
    ),
    # Source: MCP extension io.modelcontextprotocol/tasks, 2026-07-28. Version 2025-11-25 defines tasks in the protocol.
    Extension(
        identifier=TASKS,
        methods=MappingProxyType(
            {f"tasks/{verb}": ExtensionMethod(owner="task", member="taskId") for verb in ("get", "update", "cancel")}
        ),
        modern_only=True,
    ),
)


# This is a plain dictionary, because it is serialized as part of requests.
AS_CLIENT: Final[dict[str, Any]] = {
    each.identifier: dict(each.declared_upstream) for each in OFFICIAL if each.declared_upstream is not None
}
"""The extensions that the gateway declares to upstreams, because it forwards them to hosts that support them."""


def with_apps(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's capabilities with MCP Apps added, for requests that concern an app.

    Some servers offer their app tools only to clients that declare MCP Apps. The gateway lists these tools to every
    caller, so calls must work for every caller.
    """
    extensions = capabilities.get("extensions")
    declared = extensions if isinstance(extensions, dict) else {}
    return {**capabilities, "extensions": {**AS_CLIENT, **declared}}


class Extensions:
    """The extensions that this gateway forwards."""

    __slots__ = ("_by_identifier", "_methods")

    def __init__(self, further: Iterable[Extension] = ()) -> None:
        """Combine the official extensions with the configured extensions in `further`."""
        self._by_identifier = {each.identifier: each for each in (*OFFICIAL, *further)}
        self._methods = {
            method: (each, rule) for each in self._by_identifier.values() for method, rule in each.methods.items()
        }

    def method(self, name: str, *, modern: bool) -> tuple[Extension, ExtensionMethod] | None:
        """Return the extension that defines a method, and how to handle the method; None if callers cannot use it.

        Args:
            modern: Whether the caller uses 2026-07-28.
        """
        definition = self._methods.get(name)
        return None if definition is None or (definition[0].modern_only and not modern) else definition

    def merged(self, declared: Iterable[Mapping[str, Any]], *, modern: bool, pending: bool) -> dict[str, Any]:
        """Return the extensions to declare to a caller.

        Args:
            declared: The capabilities of each upstream.
            modern: Whether the caller uses 2026-07-28.
            pending: Whether some upstream has not listed its items yet.
        """
        declared = tuple(declared)
        merged: dict[str, Any] = {}
        for identifier, extension in self._by_identifier.items():
            if extension.modern_only and not modern:
                continue
            settings = [own_settings for each in declared if (own_settings := extension.settings_in(each)) is not None]
            if settings or (extension.in_advance and pending and not modern):
                merged[identifier] = joined_settings(settings)
        return merged


def joined_settings(settings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the settings of several servers: a flag is true if any server sets it to true, and lists are joined."""
    joined: dict[str, Any] = {}
    for each in settings:
        for key, value in each.items():
            earlier = joined.get(key)
            if isinstance(earlier, dict) and isinstance(value, dict):
                joined[key] = joined_settings((earlier, value))
            elif isinstance(earlier, list) and isinstance(value, list):
                joined[key] = [*earlier, *(item for item in value if item not in earlier)]
            elif earlier in (None, False):
                joined[key] = value
    return joined
