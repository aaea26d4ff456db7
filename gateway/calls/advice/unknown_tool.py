"""Answer calls of nonexistent tools, and suggest tools with similar names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any, Final

from gateway.access.principal import Principal
from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    MAX_QUOTED_CHARS,
    RpcError,
    UpstreamUnavailable,
    error_result,
)
from gateway.upstream.caller_links import UserLinks
from gateway.upstream.link_states import SignInNeeded
from gateway.upstream.upstream_credentials import SignInRequired
from registry.arguments import problems
from registry.arguments.invoke_tool import UnresolvedCall
from registry.arguments.prepare import Prepared, describe_changes
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.drift import Drift
from registry.catalog.names import NAME_SEPARATOR, ServerName, ToolName, WrapperName, normalized_name
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape
from registry.schema.display_text import join_names
from registry.views.view import View

# Maximum number of suggestions for a misspelled name. A model can choose among three, and already has the whole list.
MAX_SUGGESTIONS: Final = 3
# Maximum number of servers to list. Few callers have more, and aliases are short.
_MAX_SERVERS: Final = 50
# Maximum number of names to compare with a misspelled name. A comparison takes about 30 µs, so 5 ms in total.
_MAX_COMPARED: Final = 150
# The default cutoff of difflib.
_SIMILAR: Final = 0.6
# The parts of a name between separators.
_LABELS: Final = re.compile(r"[^_.:/-]+")


def near_tools(catalog: Catalog, name: str) -> list[str]:
    """Return the names of tools that an unknown name may refer to, the most similar first."""
    if len(name) > MAX_QUOTED_CHARS:
        return []
    plain = _remove_separators(name)
    names: list[str] = [wrapper.name for wrapper in catalog.wrappers if wrapper.app.by_models]
    # Find names that differ only in case, separators and a prefix. Some hosts add a prefix that models may not remove.
    alike = [candidate for candidate in names if plain.endswith(_remove_separators(candidate))]
    return alike[:MAX_SUGGESTIONS] or nearest(name, names)


def no_such_server(view: View, name: str) -> str:
    """Return a text saying that a server does not exist, which server may be meant, and which servers exist."""
    servers = sorted(view.servers)
    by_plain = {normalized_name(server): server for server in servers}
    # If the name is the full name of a tool, only the first part names the server.
    near = nearest(normalized_name(name.partition(NAME_SEPARATOR)[0]), list(by_plain))
    hint = f" Did you mean '{by_plain[near[0]]}'?" if near else ""
    return f"there is no server '{name[:MAX_QUOTED_CHARS]}'.{hint} {named_servers(view)}"


def named_servers(view: View) -> str:
    """Return a sentence that lists the caller's servers."""
    return f"Servers: {join_names(sorted(view.servers), _MAX_SERVERS) or 'none'}."


def nearest(word: str, names: Sequence[str], *, cutoff: float = _SIMILAR) -> list[str]:
    """Return up to `MAX_SUGGESTIONS` names that are similar to a word.

    If there are more than `_MAX_COMPARED` names, only those with the most common parts and a similar length are
    compared.
    """
    if len(word) > MAX_QUOTED_CHARS:
        return []
    if len(names) > _MAX_COMPARED:
        parts = list(dict.fromkeys(part for part in _LABELS.findall(word.casefold()) if len(part) > 1))
        first, length = word[:1], len(word)

        def likeness(name: str) -> int:
            shared = sum(len(part) for part in parts if part in name)
            return 2 * shared - abs(len(name) - length) + (2 if name[:1] == first else 0)

        names = nlargest(_MAX_COMPARED, names, key=likeness)
    return difflib.get_close_matches(word, names, n=MAX_SUGGESTIONS, cutoff=cutoff)


def _remove_separators(name: str) -> str:
    return normalized_name(name).replace("_", "").replace(".", "")


# Maximum number of tools to name if the server has no tool with a similar name. To see more, the caller can list tools.
_MAX_LISTED: Final = 20
# Maximum number of changed parameters to name in one answer, which also contains the schema.
_MAX_CHANGES_TOLD: Final = 10
# The cutoff for tools of one server. It is below difflib's default of 0.6, because there are few candidates.
_MIN_SIMILARITY: Final = 0.5


class UnknownToolErrors:
    """Answers calls whose tool was not found.

    Args:
        retired: Returns whether an alias formerly belonged to a server.
        successor: Returns the current alias of a server that was renamed.
        faulty: Returns whether a server is not used because its entry in the configuration has an error.
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
        """Wait, up to a time limit, for a server that has not listed its tools yet; return the wrapper if it is found.

        A server with a separate sign-in for each caller connects when the caller first needs the server.

        Args:
            connecting: False to wait only for servers with a separate sign-in for each caller, and for servers that
                require a sign-in.

        Raises:
            SignInRequired: The server lists nothing before a sign-in.
        """
        alias, separator, _ = name.partition(NAME_SEPARATOR)
        try:
            link = self._users.get(alias, principal) if separator and alias in view.servers else None
        except UpstreamUnavailable:
            return None
        if link is None or link.session is not None:
            return None
        own = self._registry.own_listing(link.owner, ServerName(alias)) if link.owner else None
        # If the server has listed its tools before, they are in the catalog even while the server is disconnected.
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
        """Return a wrapper that was listed after this view was built; None if it does not exist or is not permitted."""
        alias = name.partition(NAME_SEPARATOR)[0]
        # The view does not contain the new wrapper, so check whether the view's profile and rules permit the wrapper.
        wrapper = self._registry.catalog_of(principal.name).by_name.get(name)
        shape = self._registry.shape.for_server(ServerName(alias))
        return wrapper if wrapper is not None and view.permits(wrapper, shape) else None

    def under_former_name(self, view: View, name: str) -> ToolWrapper | None:
        """Return the wrapper for a `name` that consists of the server's alias and the server's own name of the tool.

        The gateway renames a wrapper when the server adds a tool whose name hosts cannot distinguish from the
        wrapper's. Callers may then still use the former name.
        """
        alias, separator, tool = name.partition(NAME_SEPARATOR)
        wrapper = view.catalog.by_tool.get((alias, tool)) if separator else None
        if wrapper is None:
            return None
        shape = self._registry.shape.for_server(wrapper.server)
        level = view.profile.repair or shape.repair_level(wrapper.tool)
        # Tools that the configuration renames are callable only by their configured names.
        return wrapper if level != "off" and wrapper.tool not in shape.renames else None

    def tool_of_app(self, view: View, name: str) -> ToolWrapper | None:
        """Return the tool that an app (an extension of MCP) calls by the server's own name of the tool.

        Apps do not know the names of wrappers, and hosts forward the calls of apps unchanged, without saying which app
        makes a call. Only servers with an app are considered, so that other calls without an alias are not guessed.

        Returns:
            None if no tool fits, or several do.
        """
        wrappers = [each for each in view.catalog.wrappers if each.tool == name and each.app.by_apps]
        fitting = [each for each in wrappers if view.has_apps(each.server)]
        return fitting[0] if len(fitting) == 1 else None

    def for_name(self, view: View, name: str, principal: Principal) -> dict[str, Any]:
        """Answer a call whose name does not match a wrapper.

        Raises:
            RpcError: No configured server has, or had, such a tool.
        """
        removed = self.drift.removed(name)
        if removed is not None and removed.wrapper.server in view.servers:
            # Look up the whole name, because wrapper names may be configured to have no alias.
            return self._no_such_tool(view, removed.wrapper.server, removed.wrapper.tool, principal)
        alias, separator, tool = name.partition(NAME_SEPARATOR)
        if separator and alias in view.servers:
            return self._no_such_tool(view, alias, tool, principal)
        if separator and (unserved := self._answer_for_unserved(view, alias, tool)) is not None:
            return unserved
        owners = _owners(view, name)
        if owners:
            # Return an error result: models can act on it, but hosts hide protocol errors from models.
            return error_result(
                f"Not called: '{name[:MAX_QUOTED_CHARS]}' is the name of a tool without its server. "
                f"{_name_owners(owners)}"
            )
        near = near_tools(view.catalog, name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:MAX_QUOTED_CHARS]}{hint}")

    def for_address(self, view: View, call: UnresolvedCall, sent: object, principal: Principal) -> dict[str, Any]:
        """Answer a call of `invoke_tool` whose tool was not found.

        Args:
            call: The server and the tool in the call, as far as they could be resolved.
            sent: The arguments of `invoke_tool`, as sent.
        """
        if call.server is None or call.tool is None or call.wrapper is not None:
            owners = _owners(view, call.tool) if call.server is None and call.tool else []
            hint = (
                f" {_name_owners(owners)}" if owners else f" {named_servers(view)}" if "server" in call.faults else ""
            )
            lowered = view.lowered(call.wrapper) if call.wrapper is not None else None
            return error_result(problems.explain_unresolved(call, sent, lowered) + hint)
        if call.known_server:
            return self._no_such_tool(view, call.server, call.tool, principal)
        unserved = self._answer_for_unserved(view, call.server, call.tool)
        if unserved is not None:
            return unserved
        return error_result(f"Not called: {no_such_server(view, call.server)}")

    def changed_parameters(self, wrapper: ToolWrapper, prepared: Prepared, names: Mapping[str, str]) -> str:
        """Return a sentence about parameters of the call that the server has changed; empty if there are none.

        Args:
            wrapper: The current version of the tool.
            prepared: The arguments and their problems.
            names: The names of renamed parameters as shown to the caller.
        """
        changes = self.drift.changes(wrapper.name)
        missing = [problem.path for problem in prepared.problems if problem.kind == "missing"]
        descriptions = list(islice(describe_changes(prepared.checked, changes, names, missing), _MAX_CHANGES_TOLD))
        return f"\n\nThis tool has changed: {', '.join(descriptions)}." if descriptions else ""

    def is_gone(self, server: str, tool: str) -> bool:
        """Return whether a server has removed a tool of exactly this name."""
        return self.drift.removed_tool(server, tool) is not None

    def removed_tool_result(self, view: View, wrapper: ToolWrapper) -> dict[str, Any]:
        """Answer a call of a tool that the server removed after the caller's view was built."""
        return self._held_back(view, wrapper.server, wrapper.tool) or error_result(
            f"Not called: server '{wrapper.server}' no longer has the tool '{wrapper.tool}'."
        )

    def signed_in(self, view: View, server: ServerName, owner: str) -> dict[str, Any]:
        """Answer a call of a server's sign-in tool after the caller has signed in."""
        shape = self._registry.shape.for_server(server)
        wrappers = self._registry.catalog_of(owner).wrappers_of(server)
        names = [wrapper.name for wrapper in wrappers if view.permits(wrapper, shape)]
        listed = join_names(names, _MAX_LISTED)
        sentence = f"Its tools are listed now: {listed}." if names else "It has no tools that you may use."
        return {"content": [{"type": "text", "text": f"Signed in to server '{server}'. {sentence}"}]}

    def _answer_for_unserved(self, view: View, alias: str, tool: str) -> dict[str, Any] | None:
        """Answer a call to a server whose entry has an error, or that was removed or renamed.

        Returns:
            None if the alias never existed, or the profile does not select it.
        """
        # Only the alias of such a server is known. A profile that selects servers by tags therefore answers as if the
        # server had never existed.
        if not view.permits_server(alias, ServerShape()):
            return None
        if self._faulty(alias):
            # Do not quote the error, which may contain parts of the file.
            return error_result(
                f"Not called: server '{alias}' is left out, because its entry in the gateway's configuration has an "
                f"error. The operator of this gateway has to correct it. {named_servers(view)}"
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
        link, catalog = self._users.current_link(server, principal.name), view.catalog
        if link is not None and server not in catalog.servers and link.session is None:
            return error_result(link.not_reachable())
        # Check this before removed tools: a tool whose new definition is unusable counts as held back and as removed.
        if (held := self._held_back(view, server, tool)) is not None:
            return held
        # Callers may pass the wrapper's name where `invoke_tool` expects the server's own name of the tool.
        removed = (
            self.drift.removed_tool(server, tool)
            or self.drift.removed(tool)
            or self.drift.removed(f"{server}{NAME_SEPARATOR}{tool}")
        )
        shape = self._registry.shape.for_server(ServerName(server))
        # Reveal a removed tool or its successor only if this profile permits it.
        if removed is not None and removed.wrapper.server == server and view.permits(removed.wrapper, shape):
            successor = self.drift.successor(removed, catalog)
            former = removed.wrapper.tool[:MAX_QUOTED_CHARS]
            if successor is not None and successor.tool == removed.wrapper.tool:
                text = (
                    f"Not called: the tool '{former}' of server '{server}' is now called {successor.name}. Call that."
                )
                return error_result(text)
            heir = f"Call {successor.name} instead." if successor is not None else _suggest_tools(catalog, server, tool)
            return error_result(f"Not called: server '{server}' no longer has the tool '{former}'. {heir}")
        hint = _suggest_tools(catalog, server, tool)
        return error_result(f"Not called: server '{server}' has no tool '{tool[:MAX_QUOTED_CHARS]}'. {hint}")

    def _held_back(self, view: View, server: str, tool: str) -> dict[str, Any] | None:
        """Answer a call of a tool that the gateway does not list.

        The tool's definition is unusable (quarantined), or waits for an administrator's approval (held).

        Returns:
            None if neither applies, or the tool is hidden from this caller.
        """
        shape = self._registry.shape.for_server(ServerName(server))

        def is_for_caller(own: str) -> bool:
            unlisted = ToolWrapper(
                name=WrapperName(f"{server}{NAME_SEPARATOR}{own}"),
                server=ServerName(server),
                tool=ToolName(own),
                definition={},
                digest="",
                schema_digest="",
            )
            return shape.exposes(own) and view.permits(unlisted, shape)

        # Use the latest catalog, because the view may be older than the listing that no longer contains the tool.
        catalog, own = self._registry.catalog_of(view.owner), tool.removeprefix(f"{server}{NAME_SEPARATOR}")
        if (reason := catalog.held("tools", server, own)) is not None and is_for_caller(own):
            # The tool is new: a changed tool would remain listed with its approved definition.
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


def _suggest_tools(catalog: Catalog, server: str, tool: str) -> str:
    """Return a sentence with the similarly named tools of a server, or with all of its tools if no name is similar."""
    wrappers = [wrapper for wrapper in catalog.wrappers_of(server) if wrapper.app.by_models]
    names = {normalized_name(wrapper.tool): wrapper.name for wrapper in wrappers}
    near = nearest(normalized_name(tool), list(names), cutoff=_MIN_SIMILARITY)
    known_names = [names[key] for key in near] or [wrapper.name for wrapper in wrappers]
    return f"{'Similar names' if near else 'Its tools'}: {join_names(known_names, _MAX_LISTED) or 'none'}."


def _owners(view: View, tool: str) -> list[ToolWrapper]:
    """Return the tools with this original name on all servers in the view."""
    plain = normalized_name(tool) if len(tool) <= MAX_QUOTED_CHARS else ""
    return [wrapper for wrapper in view.catalog.wrappers if normalized_name(wrapper.tool) == plain] if plain else []


def _name_owners(owners: list[ToolWrapper]) -> str:
    servers, names = [wrapper.server for wrapper in owners], [wrapper.name for wrapper in owners]
    return (
        f"It is a tool of {join_names(servers, _MAX_LISTED)}. Call {join_names(names, _MAX_LISTED)}, or "
        "invoke_tool with `server` and `tool`."
    )
