"""Whether a call may be made: what rules say, in words, and counted by rule."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from gateway.calls.context import Caller
from gateway.errors import MAX_QUOTED_CHARS
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import NAME_SEPARATOR, ServerName
from registry.catalog.store import Registry
from registry.policy.grant import CallRules, Decision

log = logging.getLogger(__name__)

NO_RULE: Final = "none"
"""The name under which refusals are counted that no single rule is the reason of: scopes, or a default."""


class Permission:
    """Refuses calls that rules do not allow.

    Attributes:
        decisions: How many calls each rule has decided, by its name and what became of them.
    """

    def __init__(self, registry: Registry) -> None:
        """Decide about the tools of a registry."""
        self._registry = registry
        self.decisions: Counter[tuple[str, str]] = Counter()

    def refusal(self, caller: Caller, wrapper: ToolWrapper, decision: Decision) -> str:
        """Return what a model is told of a call that is refused, and count it."""
        self._count(caller, wrapper.name, decision)
        if decision.effect == "ask":
            return (
                f"Not called: {decision.reason}, which a hook of this gateway has made necessary by what it made of "
                "the arguments. Whoever runs this gateway has to mend that."
            )
        return (
            f"Not called: {decision.reason}. What you sent fits the tool; calling it again with the same arguments "
            "will not help. Whoever runs this gateway sets the rules."
        )

    def asked(self, caller: Caller, wrapper: ToolWrapper, decision: Decision) -> None:
        """Count a call that waits for a person."""
        self._count(caller, wrapper.name, decision)

    def hidden(self, caller: Caller, server: str | None, name: str) -> Decision | None:
        """Return why a tool that exists is not there for its caller, and count that; None where it is no rule.

        Args:
            caller: Who is not told so.
            server: The alias of its server, where it was given apart.
            name: What was called.
        """
        view = caller.view
        if view.grant.is_open:
            return None
        catalog = self._registry.catalog_of(caller.principal.name)
        if server is None:
            server, _, tool = name.partition(NAME_SEPARATOR)
            wrapper = catalog.get(name) or catalog.get_by_tool(server, tool)
        else:
            wrapper = catalog.find(server, name)
        if wrapper is None:
            return None
        shape = self._registry.shape.of(ServerName(wrapper.server))
        if not view.profile.permits(wrapper, shape):
            return None
        decided = view.grant.tool(wrapper, shape, view.grant.of_server(wrapper.server, shape))
        return None if isinstance(decided, CallRules) else self._hidden(caller, wrapper.name, decided)

    def hidden_item(self, caller: Caller, method: str, name: object) -> Decision | None:
        """Return the same of a prompt that was asked for, or of a resource."""
        grant, items = caller.view.grant, self._registry.catalog_of(caller.principal.name).prompts_and_resources
        if grant.is_open or not isinstance(name, str):
            return None
        if method == "prompts/get":
            prompt = items.prompt(name)
            if prompt is None:
                return None
            return self._hidden(caller, name, grant.prompt(prompt, self._registry.shape.of(prompt.server)))
        decisions = [grant.uri(server, uri, self._registry.shape.of(server)) for server, uri in items.owners(name)]
        # Where some server could have been asked, no rule is the reason that there is nothing.
        if not decisions or any(decision.effect != "deny" for decision in decisions):
            return None
        return self._hidden(caller, name, decisions[0])

    def _hidden(self, caller: Caller, name: str, decision: Decision) -> Decision | None:
        if decision.effect != "deny":
            return None
        self._count(caller, name, decision)
        return decision

    def _count(self, caller: Caller, name: str, decision: Decision) -> None:
        self.decisions[decision.rule or NO_RULE, decision.effect] += 1
        log.info(
            "a call was not allowed: %s", decision.reason,
            extra={"wrapper": name[:MAX_QUOTED_CHARS], "principal": caller.principal.name, "outcome": decision.effect},
        )  # fmt: skip
