"""Answers to calls of tools that do not exist: similar names, and what became of removed or renamed ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamUnavailable, error_result
from gateway.upstream.link import UpstreamLink
from registry.arguments import problems
from registry.arguments.invoke_tool import UnresolvedCall
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.names import NAME_SEPARATOR, ServerName, normalized_name
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry
from registry.views.view import View

# Suggestions for a misspelt name: a model picks among three; more would be the list that it already has.
_MAX_SUGGESTIONS: Final = 3
# Tools named for a server that has none of a similar name; beyond that a list request is the better answer.
_MAX_LISTED: Final = 20
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

    def for_name(self, view: View, name: str) -> dict[str, Any]:
        """Answer a call of a name that no wrapper has.

        Raises:
            RpcError: No server of ours has, or had, such a tool.
        """
        alias, found, tool = name.partition(NAME_SEPARATOR)
        if found and alias in view.servers:
            return self._no_such_tool(view, alias, tool)
        if found and (gone := self._removed_server(view, alias, tool)) is not None:
            return gone
        near = difflib.get_close_matches(name, [wrapper.name for wrapper in view.catalog.wrappers], n=_MAX_SUGGESTIONS)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}{hint}")

    def for_address(self, view: View, call: UnresolvedCall, sent: object) -> dict[str, Any]:
        """Answer a call of `invoke_tool` that reaches no tool."""
        if call.server is None or call.tool is None or call.wrapper is not None:
            known = f" {_servers(view)}" if "server" in call.faults else ""
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

    def renamed_parameters(self, wrapper: ToolWrapper, arguments: object, names: Mapping[str, str]) -> str:
        """Return a sentence about sent parameters that were renamed since; empty if there are none.

        Args:
            wrapper: The tool as it is now.
            arguments: What was sent, in the tool's own names.
            names: Other names for some parameters, as the caller was shown them.
        """
        sent = arguments if isinstance(arguments, dict) else {}
        known = self.drift.renamed(wrapper.name)
        renamed = [
            f"`{names.get(old, old)}` is now `{names.get(new, new)}`" for old, new in known.items() if old in sent
        ]
        return f"\n\nThis tool has changed: {', '.join(renamed)}." if renamed else ""

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
            reason = f" ({link.last_error})" if link.last_error else ""
            return error_result(f"Not called: server '{server}' is not reachable right now{reason}. Try again.")
        # Callers may put the wrapper's name where `invoke_tool` wants the tool's.
        removed = self.drift.removed(tool) or self.drift.removed(f"{server}{NAME_SEPARATOR}{tool}")
        shape = self._registry.shape.of(ServerName(server))
        # Neither what is gone nor what replaced it may be another profile's.
        if removed is not None and removed.wrapper.server == server and view.profile.permits(removed.wrapper, shape):
            known = removed.successor is not None and catalog.get(removed.successor) is not None
            heir = f" Call {removed.successor} instead." if known else ""
            gone = removed.wrapper.tool[:MAX_QUOTED_CHARS]
            return error_result(f"Not called: server '{server}' no longer has the tool '{gone}'.{heir}")
        wrappers = catalog.wrappers_of(server)
        names = {normalized_name(wrapper.tool): wrapper.name for wrapper in wrappers}
        near = difflib.get_close_matches(normalized_name(tool), list(names), n=_MAX_SUGGESTIONS, cutoff=_MIN_SIMILARITY)
        listed = [names[key] for key in near] or [wrapper.name for wrapper in wrappers[:_MAX_LISTED]]
        what = "Near" if near else "It has"
        named = f"{what}: {', '.join(listed) or 'no tools'}."
        return error_result(f"Not called: server '{server}' has no tool '{tool[:MAX_QUOTED_CHARS]}'. {named}")


def _servers(view: View) -> str:
    return f"Servers: {', '.join(sorted(view.servers)) or 'none'}."
