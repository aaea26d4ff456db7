"""Words for names that lead nowhere: what there is instead, and what became of what was there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.errors import INVALID_PARAMS, RpcError, UpstreamUnavailable, error_result
from gateway.upstream.link import UpstreamLink
from registry.arguments import problems
from registry.arguments.unwrapping import Misaddressed
from registry.catalog.catalog import ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.names import SEPARATOR, ServerName, fold
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry
from registry.views.view import View

_NEAR: Final = 3


class Directions:
    """Answers calls that reach no tool; remembers for a while what has changed."""

    def __init__(
        self,
        registry: Registry,
        links: Mapping[str, UpstreamLink],
        *,
        retired: Callable[[str], bool],
        successor: Callable[[str], str | None],
    ) -> None:
        self._registry = registry
        self._links = links
        self._retired = retired
        self._successor = successor
        self.drift = Drift()
        registry.subscribe(self.drift.note)

    async def late(self, view: View, name: str) -> ToolWrapper | None:
        """A wrapper whose server is only now connecting: wait for it, bounded."""
        alias, found, _ = name.partition(SEPARATOR)
        link = self._links.get(alias) if found and alias in view.servers else None
        if link is None or link.session is not None or alias in self._registry.catalog.servers:
            return None
        try:
            await link.wait_ready(link.patience_s)
        except UpstreamUnavailable:
            return None
        wrapper = self._registry.catalog.get(name)
        shape = self._registry.shape.servers.get(ServerName(alias), ServerShape())
        return wrapper if wrapper is not None and view.profile.permits(wrapper, shape) else None

    def unknown(self, view: View, name: str) -> dict[str, Any]:
        """Answer a call of a name that no wrapper has.

        Raises:
            RpcError: The name is nothing of ours.
        """
        alias, found, tool = name.partition(SEPARATOR)
        if found and alias in view.servers:
            return self._no_such_tool(view, alias, tool)
        if found and (gone := self._gone(view, alias, tool)) is not None:
            return gone
        near = difflib.get_close_matches(name, [wrapper.name for wrapper in view.catalog.wrappers], n=_NEAR)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:200]}{hint}")

    def misaddressed(self, view: View, call: Misaddressed, sent: object) -> dict[str, Any]:
        """Answer a call of `invoke_tool` that reaches no tool."""
        if call.server is None or call.tool is None or call.wrapper is not None:
            known = f" {_servers(view)}" if "server" in call.faults else ""
            lowered = view.lowered(call.wrapper) if call.wrapper is not None else None
            return error_result(problems.explain_address(call, sent, lowered) + known)
        if call.known_server:
            return self._no_such_tool(view, call.server, call.tool)
        gone = self._gone(view, call.server, call.tool)
        if gone is not None:
            return gone
        near = difflib.get_close_matches(call.server, list(view.servers), n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return error_result(f"Not called: there is no server '{call.server[:200]}'.{hint} {_servers(view)}")

    def renamed(self, wrapper: ToolWrapper, arguments: object, names: Mapping[str, str]) -> str:
        """Say which of the parameters that were sent have another name by now; nothing where none has.

        Args:
            wrapper: The tool as it is today.
            arguments: What was sent, in its own names.
            names: Other names for some parameters, as the caller was shown them.
        """
        sent = arguments if isinstance(arguments, dict) else {}
        known = self.drift.renamed(wrapper.name)
        renamed = [
            f"`{names.get(old, old)}` is now `{names.get(new, new)}`" for old, new in known.items() if old in sent
        ]
        return f"\n\nThis tool has changed: {', '.join(renamed)}." if renamed else ""

    def _gone(self, view: View, alias: str, tool: str) -> dict[str, Any] | None:
        """Say what became of a server that was here under this alias; None if there was none."""
        if not self._retired(alias):
            return None
        today = self._successor(alias)
        if today is None or today not in view.servers:
            return error_result(f"Not called: server '{alias}' was removed. {_servers(view)}")
        renamed = view.catalog.find(today, tool)
        what = f"Call {renamed.name} instead." if renamed else f"Its tools are named {today}__… now."
        return error_result(f"Not called: server '{alias}' is now called '{today}'. {what}")

    def _no_such_tool(self, view: View, server: str, tool: str) -> dict[str, Any]:
        link, catalog = self._links[server], view.catalog
        if server not in catalog.servers and link.session is None:
            reason = f" ({link.last_error})" if link.last_error else ""
            return error_result(f"Not called: server '{server}' is not reachable right now{reason}. Try again.")
        removed = self.drift.removed(tool) or self.drift.removed(f"{server}{SEPARATOR}{tool}")
        if removed is not None and removed.wrapper.server == server:
            heir = f" Call {removed.successor} instead." if removed.successor else ""
            gone = removed.wrapper.tool[:200]
            return error_result(f"Not called: server '{server}' no longer has the tool '{gone}'.{heir}")
        wrappers = catalog.of(server)
        names = {fold(wrapper.tool): wrapper.name for wrapper in wrappers}
        near = difflib.get_close_matches(fold(tool), list(names), n=_NEAR, cutoff=0.5)
        listed = [names[key] for key in near] or [wrapper.name for wrapper in wrappers[:20]]
        what = "Near" if near else "It has"
        return error_result(
            f"Not called: server '{server}' has no tool '{tool[:200]}'. {what}: {', '.join(listed) or 'no tools'}."
        )


def _servers(view: View) -> str:
    return f"Servers: {', '.join(sorted(view.servers)) or 'none'}."
