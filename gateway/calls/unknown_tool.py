"""Answers to calls of tools that do not exist: similar names, and what became of removed or renamed ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from gateway.errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamUnavailable, error_result
from gateway.upstream.link import UpstreamLink
from registry.arguments import problems
from registry.arguments.former_names import told_changes
from registry.arguments.invoke_tool import UnresolvedCall
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.names import NAME_SEPARATOR, ServerName, ToolName, WrapperName, normalized_name
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry
from registry.schema.display_text import listed
from registry.views.view import View

# Suggestions for a misspelt name: a model picks among three; more would be the list that it already has.
_MAX_SUGGESTIONS: Final = 3
# Tools named for a server that has none of a similar name; beyond that a list request is the better answer.
_MAX_LISTED: Final = 20
# Changed parameters that one answer tells of; the schema beside them shows the rest.
_MAX_CHANGES_TOLD: Final = 10
# A configuration of more servers is rare, and their aliases are short.
_MAX_SERVERS: Final = 50
# Below the 0.6 of difflib: the candidates are the tools of the one server that was named.
_MIN_SIMILARITY: Final = 0.5


class UnknownToolErrors:
    """Answers calls that reach no tool.

    Args:
        retired: Whether an alias once was a server's.
        successor: The alias that such a server has now, if it was renamed.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        retired: Callable[[str], bool],
        successor: Callable[[str], str | None],
    ) -> None:
        self._registry = registry
        self._links = links
        self._retired = retired
        self._successor = successor
        self.drift = Drift()
        registry.subscribe(self.drift.record)

    async def wait_for(self, view: View, name: str) -> ToolWrapper | None:
        """Return a wrapper whose server is still connecting for the first time; waits for that, bounded."""
        alias, found, _ = name.partition(NAME_SEPARATOR)
        link = self._links.get(alias) if found and alias in view.servers else None
        # A server that was listed before has its tools in the catalog even while it is away.
        if link is None or link.session is not None or alias in self._registry.catalog.servers:
            return None
        try:
            await link.wait_ready(link.patience_s)
        except UpstreamUnavailable:
            return None
        # The view was built before this server was listed, so its profile has to be asked.
        wrapper = self._registry.catalog.get(name)
        shape = self._registry.shape.of(ServerName(alias))
        return wrapper if wrapper is not None and view.profile.permits(wrapper, shape) else None

    def under_former_name(self, view: View, name: str) -> ToolWrapper | None:
        """Return the wrapper of a tool whose own name this is, behind the alias of its server.

        A wrapper gets another name where a sibling has come that looks like it to a host.
        """
        alias, found, tool = name.partition(NAME_SEPARATOR)
        wrapper = view.catalog.get_by_tool(alias, tool) if found else None
        if wrapper is None:
            return None
        shape = self._registry.shape.of(wrapper.server)
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        # What configuration has renamed is meant to be called by that name.
        return wrapper if level != "off" and wrapper.tool not in shape.renames else None

    def for_name(self, view: View, name: str) -> dict[str, Any]:
        """Answer a call of a name that no wrapper has.

        Raises:
            RpcError: No server of ours has, or had, such a tool.
        """
        removed = self.drift.removed(name)
        if removed is not None and removed.wrapper.server in view.servers:
            # Without a prefix the name does not tell its server.
            return self._no_such_tool(view, removed.wrapper.server, removed.wrapper.tool)
        alias, found, tool = name.partition(NAME_SEPARATOR)
        if found and alias in view.servers:
            return self._no_such_tool(view, alias, tool)
        if found and (gone := self._removed_server(view, alias, tool)) is not None:
            return gone
        owners = _owners(view, name)
        if owners:
            # An error result: a model can act on it, and hosts hide protocol errors from models.
            return error_result(
                f"Not called: '{name[:MAX_QUOTED_CHARS]}' is the name of a tool without its server. {_named(owners)}"
            )
        near = difflib.get_close_matches(name, [wrapper.name for wrapper in view.catalog.wrappers], n=_MAX_SUGGESTIONS)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}{hint}")

    def for_address(self, view: View, call: UnresolvedCall, sent: object) -> dict[str, Any]:
        """Answer a call of `invoke_tool` that reaches no tool."""
        if call.server is None or call.tool is None or call.wrapper is not None:
            owners = _owners(view, call.tool) if call.server is None and call.tool else []
            known = f" {_named(owners)}" if owners else f" {_servers(view)}" if "server" in call.faults else ""
            lowered = view.lowered(call.wrapper) if call.wrapper is not None else None
            return error_result(problems.explain_unresolved(call, sent, lowered) + known)
        if call.known_server:
            return self._no_such_tool(view, call.server, call.tool)
        gone = self._removed_server(view, call.server, call.tool)
        if gone is not None:
            return gone
        near = difflib.get_close_matches(call.server, list(view.servers), n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return error_result(
            f"Not called: there is no server '{call.server[:MAX_QUOTED_CHARS]}'.{hint} {_servers(view)}"
        )

    def changed_parameters(self, wrapper: ToolWrapper, arguments: object, names: Mapping[str, str]) -> str:
        """Return a sentence about sent parameters that have changed since; empty if there are none.

        Args:
            wrapper: The tool as it is now.
            arguments: What was sent, in the tool's own names.
            names: Other names for some parameters, as the caller was shown them.
        """
        told = list(islice(told_changes(arguments, self.drift.changes(wrapper.name), names), _MAX_CHANGES_TOLD))
        return f"\n\nThis tool has changed: {', '.join(told)}." if told else ""

    def _removed_server(self, view: View, alias: str, tool: str) -> dict[str, Any] | None:
        """Answer for a server that was removed or renamed; None if this profile had none of this alias."""
        # By the alias alone, since nothing else is known of it any more: a profile that selects servers by their tags
        # says the same as of one that never was.
        if not self._retired(alias) or not view.profile.permits_server(alias, ServerShape()):
            return None
        successor = self._successor(alias)
        if successor is None or successor not in view.servers:
            return error_result(f"Not called: server '{alias}' was removed. {_servers(view)}")
        renamed = view.catalog.find(successor, tool)
        what = f"Call {renamed.name} instead." if renamed else f"Its tools are named {successor}__… now."
        return error_result(f"Not called: server '{alias}' is now called '{successor}'. {what}")

    def _no_such_tool(self, view: View, server: str, tool: str) -> dict[str, Any]:
        link, catalog = self._links[server], view.catalog
        if server not in catalog.servers and link.session is None:
            return error_result(link.not_reachable())
        # Callers may put the wrapper's name where `invoke_tool` wants the tool's.
        removed = (
            self.drift.removed_tool(server, tool)
            or self.drift.removed(tool)
            or self.drift.removed(f"{server}{NAME_SEPARATOR}{tool}")
        )
        shape = self._registry.shape.of(ServerName(server))
        # Neither what is gone nor what replaced it may be another profile's.
        if removed is not None and removed.wrapper.server == server and view.profile.permits(removed.wrapper, shape):
            successor = self.drift.successor(removed, catalog)
            gone = removed.wrapper.tool[:MAX_QUOTED_CHARS]
            if successor is not None and successor.tool == removed.wrapper.tool:
                text = f"Not called: the tool '{gone}' of server '{server}' is called {successor.name} now. Call that."
                return error_result(text)
            heir = f" Call {successor.name} instead." if successor is not None else ""
            return error_result(f"Not called: server '{server}' no longer has the tool '{gone}'.{heir}")
        wrappers = catalog.wrappers_of(server)
        names = {normalized_name(wrapper.tool): wrapper.name for wrapper in wrappers}
        near = difflib.get_close_matches(normalized_name(tool), list(names), n=_MAX_SUGGESTIONS, cutoff=_MIN_SIMILARITY)
        if (held := self._held_back(view, server, tool)) is not None:
            return held
        known_names = [names[key] for key in near] or [wrapper.name for wrapper in wrappers]
        what = "Near" if near else "It has"
        named = f"{what}: {listed(known_names, _MAX_LISTED) or 'no tools'}."
        return error_result(f"Not called: server '{server}' has no tool '{tool[:MAX_QUOTED_CHARS]}'. {named}")

    def _held_back(self, view: View, server: str, tool: str) -> dict[str, Any] | None:
        """Answer for a tool that is quarantined; None if it is not, or not for this caller."""
        shape = self._registry.shape.of(ServerName(server))
        for owner, issue in view.catalog.quarantined:
            if owner != server or issue.kind != "tools" or not shape.exposes(issue.tool):
                continue
            name = f"{server}{NAME_SEPARATOR}{issue.tool}"
            if normalized_name(tool) not in (normalized_name(issue.tool), normalized_name(name)):
                continue
            unlisted = ToolWrapper(
                name=WrapperName(name), server=ServerName(server), tool=ToolName(issue.tool), epoch=0,
                definition={}, digest="", schema_digest="",
            )  # fmt: skip
            if view.profile.permits(unlisted, shape):
                return error_result(
                    f"Not called: the tool '{issue.tool}' of server '{server}' is held back by the gateway, because "
                    f"its definition cannot be used: {issue.detail.rstrip('.')}. Calling it again will not help; the "
                    "other tools of this server work."
                )
        return None


def _owners(view: View, tool: str) -> list[ToolWrapper]:
    """Return the tools of this name, of whichever server."""
    plain = normalized_name(tool) if len(tool) <= MAX_QUOTED_CHARS else ""
    return [wrapper for wrapper in view.catalog.wrappers if normalized_name(wrapper.tool) == plain] if plain else []


def _named(owners: list[ToolWrapper]) -> str:
    servers, names = [wrapper.server for wrapper in owners], [wrapper.name for wrapper in owners]
    return (
        f"It is a tool of {listed(servers, _MAX_LISTED)}. Call {listed(names, _MAX_LISTED)}, or invoke_tool with "
        "`server` and `tool`."
    )


def _servers(view: View) -> str:
    return f"Servers: {listed(sorted(view.servers), _MAX_SERVERS) or 'none'}."
