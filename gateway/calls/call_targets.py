"""Which tool a call means: by its wrapper's name, by `invoke_tool`, or one of the gateway's own."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from msgspec import Struct

from gateway.audit.call import Outcome
from gateway.audit.record import Audit
from gateway.calls.builtin_arguments import repair_builtin
from gateway.calls.builtin_tools import GET_SERVER_DETAILS, INVOKE_TOOL, parse_text_arguments
from gateway.calls.context import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.permission import Permission
from gateway.calls.search_tools import SEARCH_TOOL_NAMES, SearchTools
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.errors import UpstreamUnavailable, error_result
from gateway.hooks.hook import CallRoute
from gateway.protocol import with_meta
from gateway.upstream.credentials import SignInRequired
from gateway.upstream.user_links import UserLinks
from registry.arguments.invoke_tool import ResolvedCall, resolve_invoke_tool
from registry.arguments.repair_report import Repair, report_repairs
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.store import Registry
from registry.views.profile import Profile

OWN_NAMES: Final = frozenset({INVOKE_TOOL["name"], *SEARCH_TOOL_NAMES})
"""Names of tools of our own, some of which not every profile has."""
REPAIRS_KEY: Final = "typegate/repairs"
"""The member of a result's `_meta` that lists how arguments were repaired."""
UNCHECKED_KEY: Final = "typegate/unchecked"
"""The member of a result's `_meta` that lists what was sent although it could not be checked, with the reasons."""


class CallTarget(Struct, frozen=True, kw_only=True, eq=False):
    """What is to be called.

    Attributes:
        wrapper: The tool.
        arguments: Those for it, as they were sent.
        via: The route by which the call came.
        repairs: Of the name, or the address.
    """

    wrapper: ToolWrapper
    arguments: Any
    via: CallRoute = "wrapper"
    repairs: tuple[Repair, ...] = ()


class CallTargets:
    """Finds what calls mean that do not name a wrapper of their view, and answers those of our own tools."""

    def __init__(
        self,
        *,
        registry: Registry,
        users: UserLinks,
        forwarder: Forwarder,
        unknown_tool: UnknownToolErrors,
        search_tools: SearchTools,
        permission: Permission,
        audit: Audit,
    ) -> None:
        self._registry = registry
        self._users = users
        self._forwarder = forwarder
        self._unknown_tool = unknown_tool
        self._search_tools = search_tools
        self._permission = permission
        self._audit = audit

    async def find(self, name: str, params: dict[str, Any], caller: Caller) -> CallTarget | dict[str, Any]:
        """Return the tool that a call means, or the result that answers it.

        Args:
            name: As it was sent.
            params: The request's `params`.
            caller: Who asks.

        Raises:
            RpcError: There is no such tool.
        """
        view, arguments = caller.view, params.get("arguments")
        if name == INVOKE_TOOL["name"]:
            return await self._addressed(params, caller)
        if name in SEARCH_TOOL_NAMES and (view.profile.disclosure != "eager" or name == GET_SERVER_DETAILS["name"]):
            return await self._search(name, arguments, caller)
        found = view.catalog.get(name)
        repairs: tuple[Repair, ...] = ()
        if found is None and (found := self._unknown_tool.under_former_name(view, name)) is not None:
            repairs = (Repair(name="former_name", was=name),)
        if found is None:
            asked, found = await self._listed_now(name, params, caller)
            if asked is not None:
                return asked
        if found is None:
            self.note_unknown(caller, None, name)
            return self._unknown_tool.for_name(view, name, caller.principal)
        return CallTarget(wrapper=found, arguments=arguments, repairs=repairs)

    async def _addressed(self, params: dict[str, Any], caller: Caller) -> CallTarget | dict[str, Any]:
        """Find what `invoke_tool` is to call."""
        view = caller.view
        arguments = parse_text_arguments(params.get("arguments"), view.profile.dialect)
        resolve = partial(
            resolve_invoke_tool,
            arguments,
            servers=view.servers,
            repairs_for=partial(self._repairs_for, view.profile),
            retired=self._unknown_tool.is_gone,
        )
        target = resolve(view.catalog)
        if not isinstance(target, ResolvedCall) and target.known_server and target.tool:
            unlisted = f"{target.server}{NAME_SEPARATOR}{target.tool}"
            # That a server is not connected is told at once, as it always was by this route.
            asked, found = await self._listed_now(unlisted, params, caller, connecting=False)
            if asked is not None:
                return asked
            if found is not None:
                target = resolve(self._registry.catalog_of(caller.principal.name))
        if not isinstance(target, ResolvedCall):
            self.note_unknown(caller, target.server or "", target.tool or "")
            return self._unknown_tool.for_address(view, target, arguments, caller.principal)
        return CallTarget(wrapper=target.wrapper, arguments=target.arguments, via="invoke_tool", repairs=target.repairs)

    async def _search(self, name: str, arguments: Any, caller: Caller) -> dict[str, Any]:
        """Answer a call of one of the tools that tell about others."""
        began_s = time.perf_counter()
        repairs: tuple[Repair, ...] = ()
        if caller.view.profile.repair != "off":
            arguments, repairs = repair_builtin(name, arguments)
        answer = await self._search_tools.call(name, arguments, caller)
        took_s = time.perf_counter() - began_s
        self._audit.call(caller, None, "wrapper", Outcome.of_tool(answer), took_s, arguments, answer, name=name)
        return with_meta(answer, REPAIRS_KEY, report_repairs(repairs)) if repairs else answer

    def note_unknown(self, caller: Caller, server: str | None, name: str) -> None:
        """Record a call that reaches no tool, with the rule that hides one from its caller."""
        hidden = self._permission.hidden(caller, server, name)
        shown = name if server is None else f"{server}{NAME_SEPARATOR}{name}"
        rule = hidden.rule if hidden is not None else None
        reason = "unknown_tool" if hidden is None else "policy"
        self._audit.refused(caller, "tools/call", shown, reason=reason, rule=rule)

    async def _listed_now(
        self, name: str, params: dict[str, Any], caller: Caller, *, connecting: bool = True
    ) -> tuple[dict[str, Any] | None, ToolWrapper | None]:
        """A wrapper whose server lists it only now, since somebody has signed in, or what to answer instead."""
        try:
            wait_for = self._unknown_tool.wait_for
            return None, await wait_for(caller.view, name, caller.principal, connecting=connecting)
        except SignInRequired as error:
            needed = error
        try:
            if (link := self._users.get(needed.server, caller.principal)) is None:
                raise needed
            asked = await self._forwarder.sign_in(needed, link, "tools/call", caller, original_params=params)
        except UpstreamUnavailable as refused:
            return error_result(str(refused)), None
        return asked, None if asked is not None else self._unknown_tool.listed_since(
            caller.view, name, caller.principal
        )

    def _repairs_for(self, profile: Profile, server: str) -> bool:
        level = profile.repair or self._registry.shape.of(ServerName(server)).repair
        return level != "off"
