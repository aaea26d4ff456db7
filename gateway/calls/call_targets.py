"""Resolve the tool that a call refers to, and decide whether the caller may use it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct

from gateway.audit.audit_entries import Outcome
from gateway.audit.recording import Audit
from gateway.calls.advice.unknown_tool import UnknownToolErrors
from gateway.calls.builtin_tools import (
    GET_SERVER_DETAILS,
    INVOKE_TOOL,
    READ_RESULT,
    SEARCH_TOOL_NAMES,
    SearchTools,
    parse_text_arguments,
    repair_builtin,
)
from gateway.calls.caller import Caller
from gateway.calls.forwarding import Forwarder
from gateway.calls.result_parts import ResultParts
from gateway.hooks.hook import CallRoute
from gateway.protocol.gateway_errors import MAX_QUOTED_CHARS, UpstreamUnavailable, error_result
from gateway.protocol.versions import with_meta
from gateway.upstream.caller_links import UserLinks
from gateway.upstream.upstream_credentials import SignInRequired
from registry.arguments.coercion import Repair, report_repairs
from registry.arguments.invoke_tool import ResolvedCall, resolve_invoke_tool
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.registry import Registry
from registry.policy.policy import CallRules, Decision
from registry.views.profile import Profile

log = logging.getLogger(__name__)

NO_RULE: Final = "none"
"""The name under which a refusal is counted if it is due to the caller's scopes or the default effect."""


class Permission:
    """Counts and explains calls that policy rules refuse, or that wait for approval because of a rule.

    Attributes:
        decisions: The number of calls by deciding rule and effect.
    """

    def __init__(self, registry: Registry) -> None:
        """Create the counters for the tools of a registry."""
        self._registry = registry
        self.decisions: Counter[tuple[str, str]] = Counter()

    def refusal(self, caller: Caller, wrapper: ToolWrapper, decision: Decision) -> str:
        """Count a refused call, and return the text for the model."""
        self._count(caller, wrapper.name, decision)
        if decision.effect == "ask":
            return (
                f"Not called: {decision.reason}, because a hook of this gateway has changed the arguments. "
                "The operator of this gateway has to fix the hook."
            )
        return (
            f"Not called: {decision.reason}. The arguments are valid; calling the tool again with the same arguments "
            "will not help. The operator of this gateway sets the rules."
        )

    def count_pending(self, caller: Caller, wrapper: ToolWrapper, decision: Decision) -> None:
        """Count a call that waits for approval."""
        self._count(caller, wrapper.name, decision)

    def hiding_decision(self, caller: Caller, server: str | None, name: str) -> tuple[Decision, str] | None:
        """Find and count the policy decision that hides an existing tool from the caller.

        Args:
            server: The alias of the tool's server, if the caller sent the alias separately.
            name: The name that was called.

        Returns:
            The decision and the alias of the tool's server; None if no rule hides the tool.
        """
        view = caller.view
        if view.grant.is_open:
            return None
        catalog = self._registry.catalog_of(caller.principal.name)
        if server is None:
            server, _, tool = name.partition(NAME_SEPARATOR)
            wrapper = catalog.by_name.get(name) or catalog.by_tool.get((server, tool))
        else:
            wrapper = catalog.find(server, name)
        if wrapper is None:
            return None
        shape = self._registry.shape.for_server(ServerName(wrapper.server))
        if not view.profile.permits(wrapper, shape):
            return None
        decided = view.grant.tool(wrapper, shape, view.grant.rules_for_server(wrapper.server, shape))
        if isinstance(decided, CallRules):
            return None
        decision = self._count_hidden(caller, wrapper.name, decided)
        return None if decision is None else (decision, wrapper.server)

    def hidden_item(self, caller: Caller, method: str, name: object) -> Decision | None:
        """Find and count the policy decision that hides a requested prompt or resource from the caller.

        Returns:
            None if no rule hides the item.
        """
        grant, items = caller.view.grant, self._registry.catalog_of(caller.principal.name).prompts_and_resources
        if grant.is_open or not isinstance(name, str):
            return None
        if method == "prompts/get":
            prompt = items.prompt(name)
            if prompt is None:
                return None
            return self._count_hidden(
                caller, name, grant.prompt(prompt, self._registry.shape.for_server(prompt.server))
            )
        decisions = [
            grant.uri(server, uri, self._registry.shape.for_server(server)) for server, uri in items.owners(name)
        ]
        # If the caller may read the URI on some server, no rule is the reason why the resource was not found.
        if not decisions or any(decision.effect != "deny" for decision in decisions):
            return None
        return self._count_hidden(caller, name, decisions[0])

    def _count_hidden(self, caller: Caller, name: str, decision: Decision) -> Decision | None:
        if decision.effect != "deny":
            return None
        self._count(caller, name, decision)
        return decision

    def _count(self, caller: Caller, name: str, decision: Decision) -> None:
        self.decisions[decision.rule or NO_RULE, decision.effect] += 1
        log.info(
            "call not allowed: %s",
            decision.reason,
            extra={"wrapper": name[:MAX_QUOTED_CHARS], "principal": caller.principal.name, "outcome": decision.effect},
        )


OWN_NAMES: Final = frozenset({INVOKE_TOOL["name"], READ_RESULT["name"], *SEARCH_TOOL_NAMES})
"""Names of the gateway's own tools. Some profiles do not offer all of these tools."""
REPAIRS_KEY: Final = "typegate/repairs"
"""The member of a result's `_meta` that lists the repairs of the arguments."""
UNCHECKED_KEY: Final = "typegate/unchecked"
"""The member of a result's `_meta` that lists why arguments were sent without a complete check."""


class CallTarget(Struct, frozen=True, kw_only=True, eq=False):
    """The tool that a call refers to.

    Attributes:
        arguments: The arguments for the tool, as sent.
        via: How the tool was called: by its wrapper name or through `invoke_tool`.
        repairs: Repairs of the tool's name, or of the server and tool in a call of `invoke_tool`.
    """

    wrapper: ToolWrapper
    arguments: Any
    via: CallRoute = "wrapper"
    repairs: tuple[Repair, ...] = ()


class CallTargets:
    """Resolves calls whose name is not a wrapper in the caller's view, and answers calls of the gateway's own tools."""

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
        result_parts: ResultParts,
    ) -> None:
        self._registry = registry
        self._users = users
        self._forwarder = forwarder
        self._unknown_tool = unknown_tool
        self._search_tools = search_tools
        self._permission = permission
        self._audit = audit
        self._result_parts = result_parts

    async def resolve(self, name: str, params: dict[str, Any], caller: Caller) -> CallTarget | dict[str, Any]:
        """Return the tool that a call refers to, or a result that ends the call.

        Args:
            name: The name as sent.
            params: The request's `params`.

        Raises:
            RpcError: The caller's servers have no such tool, and never had such a tool.
        """
        view, arguments = caller.view, params.get("arguments")
        if name == INVOKE_TOOL["name"]:
            return await self._resolve_invoke_tool(params, caller)
        if name in SEARCH_TOOL_NAMES and (view.profile.disclosure != "eager" or name == GET_SERVER_DETAILS["name"]):
            return await self._call_own(name, arguments, caller, self._search_tools.call)
        if name == READ_RESULT["name"] and view.result_rules:
            return await self._call_own(name, arguments, caller, self._read_result)
        wrapper = view.catalog.by_name.get(name)
        repairs: tuple[Repair, ...] = ()
        if wrapper is None and (wrapper := self._unknown_tool.under_former_name(view, name)) is not None:
            repairs = (Repair(name="former_name", was=name),)
        if wrapper is None:
            wrapper = self._unknown_tool.tool_of_app(view, name)
        if wrapper is None:
            sign_in_result, wrapper = await self._find_unlisted(name, params, caller)
            if sign_in_result is not None:
                return sign_in_result
        if wrapper is None:
            self.note_unknown(caller, None, name)
            return self._unknown_tool.for_name(view, name, caller.principal)
        return CallTarget(wrapper=wrapper, arguments=arguments, repairs=repairs)

    async def _resolve_invoke_tool(self, params: dict[str, Any], caller: Caller) -> CallTarget | dict[str, Any]:
        """Return the tool that a call of `invoke_tool` refers to, or a result that ends the call."""
        view = caller.view
        arguments = parse_text_arguments(params.get("arguments"), view.profile.dialect)
        if isinstance(arguments, dict) and isinstance(server := arguments.get("server"), str):
            arguments = {**arguments, "server": self._search_tools.alias_of(server, view)}
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
            # `invoke_tool` does not wait for a connecting server, unless the server may require a sign-in.
            sign_in_result, wrapper = await self._find_unlisted(unlisted, params, caller, connecting=False)
            if sign_in_result is not None:
                return sign_in_result
            if wrapper is not None:
                target = resolve(self._registry.catalog_of(caller.principal.name))
        if not isinstance(target, ResolvedCall):
            self.note_unknown(caller, target.server or "", target.tool or "")
            return self._unknown_tool.for_address(view, target, arguments, caller.principal)
        if not target.wrapper.app.by_models:
            return error_result(
                f"Not called: the tool '{target.wrapper.tool}' of server '{target.wrapper.server}' is only for apps of "
                "that server, and not for models."
            )
        return CallTarget(wrapper=target.wrapper, arguments=target.arguments, via="invoke_tool", repairs=target.repairs)

    async def _read_result(self, name: str, arguments: Any, caller: Caller) -> dict[str, Any]:
        return await self._result_parts.read(arguments, caller)

    async def _call_own(
        self,
        name: str,
        arguments: Any,
        caller: Caller,
        call: Callable[[str, Any, Caller], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Answer a call of one of the gateway's own tools, and record the call in the audit log."""
        began_s = time.perf_counter()
        repairs: tuple[Repair, ...] = ()
        if caller.view.profile.repair != "off":
            arguments, repairs = repair_builtin(name, arguments)
        answer = await call(name, arguments, caller)
        took_s = time.perf_counter() - began_s
        self._audit.call(
            caller, None, "wrapper", Outcome.from_tool_result(answer), took_s, arguments, answer, name=name
        )
        return with_meta(answer, REPAIRS_KEY, report_repairs(repairs)) if repairs else answer

    def note_unknown(self, caller: Caller, server: str | None, name: str) -> None:
        """Record a call of an unknown tool in the audit log. If a rule hides the tool, the entry names the rule."""
        hidden = self._permission.hiding_decision(caller, server, name)
        full_name = name if server is None else f"{server}{NAME_SEPARATOR}{name}"
        if hidden is None:
            self._audit.refused(caller, "tools/call", full_name, reason="unknown_tool")
        else:
            decision, owner = hidden
            self._audit.refused(caller, "tools/call", full_name, rule=decision.rule, reason="policy", server=owner)

    async def _find_unlisted(
        self, name: str, params: dict[str, Any], caller: Caller, *, connecting: bool = True
    ) -> tuple[dict[str, Any] | None, ToolWrapper | None]:
        """Find a wrapper that is missing from the caller's view, because its server has not listed its tools yet.

        Returns:
            A result that ends the call, or None; and the wrapper, or None. The result asks the caller to sign in, or
            says why the sign-in is not possible.
        """
        try:
            wait_for = self._unknown_tool.wait_for
            return None, await wait_for(caller.view, name, caller.principal, connecting=connecting)
        except SignInRequired as error:
            needed = error
        try:
            if (link := self._users.get(needed.server, caller.principal)) is None:
                raise needed
            sign_in_result = await self._forwarder.sign_in(needed, link, "tools/call", caller, original_params=params)
        except UpstreamUnavailable as refused:
            return error_result(str(refused)), None
        return sign_in_result, None if sign_in_result is not None else self._unknown_tool.listed_since(
            caller.view, name, caller.principal
        )

    def _repairs_for(self, profile: Profile, server: str) -> bool:
        level = profile.repair or self._registry.shape.for_server(ServerName(server)).repair
        return level != "off"
