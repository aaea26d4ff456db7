"""Answers to calls of tools that do not exist: similar names, and what became of removed or renamed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from gateway.access.principal import Principal
from gateway.calls.near_names import named_servers, near_tools, nearest, no_such_server
from gateway.errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamUnavailable, error_result
from gateway.upstream.credentials import SignInRequired
from gateway.upstream.link_states import SignInNeeded
from gateway.upstream.user_links import UserLinks
from registry.arguments import problems
from registry.arguments.former_names import told_changes
from registry.arguments.invoke_tool import UnresolvedCall
from registry.arguments.prepare import Prepared
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.names import NAME_SEPARATOR, ServerName, ToolName, WrapperName, normalized_name
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry
from registry.schema.display_text import listed
from registry.views.view import View

# Tools named for a server that has none of a similar name; beyond that a list request is the better answer.
_MAX_LISTED: Final = 20
# Changed parameters that one answer tells of; the schema beside them shows the rest.
_MAX_CHANGES_TOLD: Final = 10
# Below the 0.6 of difflib: the candidates are the tools of the one server that was named.
_MIN_SIMILARITY: Final = 0.5


class UnknownToolErrors:
    """Answers calls that reach no tool.

    Args:
        retired: Whether an alias once was a server's.
        successor: The alias that such a server has now, if it was renamed.
        faulty: Whether a server of this alias is left out because of a faulty entry.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        users: UserLinks,
        retired: Callable[[str], bool],
        successor: Callable[[str], str | None],
        faulty: Callable[[str], bool],
    ) -> None:
        self._registry = registry
        self._users = users
        self._retired = retired
        self._successor = successor
        self._faulty = faulty
        self.drift = Drift()
        registry.subscribe(self.drift.record)

    async def wait_for(
        self, view: View, name: str, principal: Principal, *, connecting: bool = True
    ) -> ToolWrapper | None:
        """Return a wrapper whose server is still connecting for the first time; waits for that, bounded.

        A server to which each caller signs in for itself connects for the first time when a caller needs it. Without
        `connecting` only these are waited for, and those that somebody has to sign in to.

        Raises:
            SignInRequired: Its server lists nothing before somebody has signed in.
        """
        alias, found, _ = name.partition(NAME_SEPARATOR)
        try:
            link = self._users.get(alias, principal) if found and alias in view.servers else None
        except UpstreamUnavailable:
            return None
        if link is None or link.session is not None:
            return None
        own = self._registry.own_listing(link.owner, ServerName(alias)) if link.owner else None
        # A server that was listed before has its tools in the catalog even while it is away.
        if own is not None or (not link.owner and alias in self._registry.catalog.servers):
            return None
        if not connecting and not link.owner and not isinstance(link.state, SignInNeeded):
            return None
        try:
            await link.wait_ready(link.patience_s)
        except SignInRequired:
            raise
        except UpstreamUnavailable:
            return None
        return self.listed_since(view, name, principal)

    def listed_since(self, view: View, name: str, principal: Principal) -> ToolWrapper | None:
        """Return a wrapper whose server was listed after this view was built."""
        alias = name.partition(NAME_SEPARATOR)[0]
        # The view does not know it, so its profile has to be asked.
        wrapper = self._registry.catalog_of(principal.name).get(name)
        shape = self._registry.shape.of(ServerName(alias))
        return wrapper if wrapper is not None and view.permits(wrapper, shape) else None

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

    def for_name(self, view: View, name: str, principal: Principal) -> dict[str, Any]:
        """Answer a call of a name that no wrapper has.

        Raises:
            RpcError: No server of ours has, or had, such a tool.
        """
        removed = self.drift.removed(name)
        if removed is not None and removed.wrapper.server in view.servers:
            # Without a prefix the name does not tell its server.
            return self._no_such_tool(view, removed.wrapper.server, removed.wrapper.tool, principal)
        alias, found, tool = name.partition(NAME_SEPARATOR)
        if found and alias in view.servers:
            return self._no_such_tool(view, alias, tool, principal)
        if found and (gone := self._unserved(view, alias, tool)) is not None:
            return gone
        owners = _owners(view, name)
        if owners:
            # An error result: a model can act on it, and hosts hide protocol errors from models.
            return error_result(
                f"Not called: '{name[:MAX_QUOTED_CHARS]}' is the name of a tool without its server. {_named(owners)}"
            )
        near = near_tools(view, name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}{hint}")

    def for_address(self, view: View, call: UnresolvedCall, sent: object, principal: Principal) -> dict[str, Any]:
        """Answer a call of `invoke_tool` that reaches no tool."""
        if call.server is None or call.tool is None or call.wrapper is not None:
            owners = _owners(view, call.tool) if call.server is None and call.tool else []
            known = f" {_named(owners)}" if owners else f" {named_servers(view)}" if "server" in call.faults else ""
            lowered = view.lowered(call.wrapper) if call.wrapper is not None else None
            return error_result(problems.explain_unresolved(call, sent, lowered) + known)
        if call.known_server:
            return self._no_such_tool(view, call.server, call.tool, principal)
        gone = self._unserved(view, call.server, call.tool)
        if gone is not None:
            return gone
        return error_result(f"Not called: {no_such_server(view, call.server)}")

    def changed_parameters(self, wrapper: ToolWrapper, prepared: Prepared, names: Mapping[str, str]) -> str:
        """Return a sentence about what has changed of parameters that were sent or are missing; empty if nothing has.

        Args:
            wrapper: The tool as it is now.
            prepared: What was sent, and what is wrong with it.
            names: Other names for some parameters, as the caller was shown them.
        """
        changes = self.drift.changes(wrapper.name)
        missing = [problem.path for problem in prepared.problems if problem.kind == "missing"]
        told = list(islice(told_changes(prepared.understood, changes, names, missing), _MAX_CHANGES_TOLD))
        return f"\n\nThis tool has changed: {', '.join(told)}." if told else ""

    def is_gone(self, server: str, tool: str) -> bool:
        """Whether a server had a tool of this very name, and has it no longer."""
        return self.drift.removed_tool(server, tool) is not None

    def no_longer(self, view: View, wrapper: ToolWrapper) -> dict[str, Any]:
        """Answer a call of a tool that is gone since its view was built."""
        return self._held_back(view, wrapper.server, wrapper.tool) or error_result(
            f"Not called: server '{wrapper.server}' no longer has the tool '{wrapper.tool}'."
        )

    def signed_in(self, view: View, server: ServerName, owner: str) -> dict[str, Any]:
        """Answer a call that was there for its caller to sign in, which has been done."""
        shape = self._registry.shape.of(server)
        wrappers = self._registry.catalog_of(owner).wrappers_of(server)
        names = [wrapper.name for wrapper in wrappers if view.permits(wrapper, shape)]
        told = f"Its tools are listed now: {listed(names, _MAX_LISTED)}." if names else "It has no tools for you."
        return {"content": [{"type": "text", "text": f"Signed in to server '{server}'. {told}"}]}

    def _unserved(self, view: View, alias: str, tool: str) -> dict[str, Any] | None:
        """Answer for a server that is left out, removed or renamed; None if this profile had none of this alias."""
        # By the alias alone, since nothing else is known of it: a profile that selects servers by their tags says the
        # same as of one that never was.
        if not view.permits_server(alias, ServerShape()):
            return None
        if self._faulty(alias):
            # Not which error: it may quote the file.
            return error_result(
                f"Not called: server '{alias}' is left out, because its entry in the gateway's configuration has an "
                f"error. Whoever runs this gateway has to correct it. {named_servers(view)}"
            )
        if not self._retired(alias):
            return None
        successor = self._successor(alias)
        if successor is None or successor not in view.servers:
            return error_result(f"Not called: server '{alias}' was removed. {named_servers(view)}")
        renamed = view.catalog.find(successor, tool)
        what = f"Call {renamed.name} instead." if renamed else f"Its tools are named {successor}__… now."
        return error_result(f"Not called: server '{alias}' is now called '{successor}'. {what}")

    def _no_such_tool(self, view: View, server: str, tool: str, principal: Principal) -> dict[str, Any]:
        link, catalog = self._users.present(server, principal.name), view.catalog
        if link is not None and server not in catalog.servers and link.session is None:
            return error_result(link.not_reachable())
        # Before what is gone: a tool whose new definition cannot be used is both.
        if (held := self._held_back(view, server, tool)) is not None:
            return held
        # Callers may put the wrapper's name where `invoke_tool` wants the tool's.
        removed = (
            self.drift.removed_tool(server, tool)
            or self.drift.removed(tool)
            or self.drift.removed(f"{server}{NAME_SEPARATOR}{tool}")
        )
        shape = self._registry.shape.of(ServerName(server))
        # Neither what is gone nor what replaced it may be another profile's.
        if removed is not None and removed.wrapper.server == server and view.permits(removed.wrapper, shape):
            successor = self.drift.successor(removed, catalog)
            gone = removed.wrapper.tool[:MAX_QUOTED_CHARS]
            if successor is not None and successor.tool == removed.wrapper.tool:
                text = f"Not called: the tool '{gone}' of server '{server}' is called {successor.name} now. Call that."
                return error_result(text)
            heir = f"Call {successor.name} instead." if successor is not None else _named_near(catalog, server, tool)
            return error_result(f"Not called: server '{server}' no longer has the tool '{gone}'. {heir}")
        named = _named_near(catalog, server, tool)
        return error_result(f"Not called: server '{server}' has no tool '{tool[:MAX_QUOTED_CHARS]}'. {named}")

    def _held_back(self, view: View, server: str, tool: str) -> dict[str, Any] | None:
        """Answer for a tool that is quarantined or not approved; None if it is not, or not for this caller."""
        shape = self._registry.shape.of(ServerName(server))

        def is_for_caller(own: str) -> bool:
            unlisted = ToolWrapper(
                name=WrapperName(f"{server}{NAME_SEPARATOR}{own}"), server=ServerName(server), tool=ToolName(own),
                definition={}, digest="", schema_digest="",
            )  # fmt: skip
            return shape.exposes(own) and view.permits(unlisted, shape)

        # Of the latest catalog: a view may be older than the listing that it is missing in.
        catalog, own = self._registry.catalog_of(view.owner), tool.removeprefix(f"{server}{NAME_SEPARATOR}")
        if (reason := catalog.held("tools", server, own)) is not None and is_for_caller(own):
            # Listed as it was approved it would have been found: it is new.
            return error_result(f"Not called: the tool '{own[:MAX_QUOTED_CHARS]}' of server '{server}' is {reason}.")
        for owner, issue in catalog.quarantined:
            name = f"{server}{NAME_SEPARATOR}{issue.tool}"
            if owner != server or issue.kind != "tools":
                continue
            if normalized_name(tool) not in (normalized_name(issue.tool), normalized_name(name)):
                continue
            if is_for_caller(issue.tool):
                return error_result(
                    f"Not called: the tool '{issue.tool}' of server '{server}' is held back by the gateway, because "
                    f"its definition cannot be used: {issue.detail.rstrip('.')}. Calling it again will not help; the "
                    "other tools of this server work."
                )
        return None


def _named_near(catalog: Catalog, server: str, tool: str) -> str:
    """Return the tools of a server whose names are similar, or else all of them, as a sentence."""
    wrappers = catalog.wrappers_of(server)
    names = {normalized_name(wrapper.tool): wrapper.name for wrapper in wrappers}
    near = nearest(normalized_name(tool), list(names), cutoff=_MIN_SIMILARITY)
    known_names = [names[key] for key in near] or [wrapper.name for wrapper in wrappers]
    return f"{'Near' if near else 'It has'}: {listed(known_names, _MAX_LISTED) or 'no tools'}."


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
