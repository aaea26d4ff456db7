"""What one caller may do: its scopes, and the rules that concern it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import DEFAULT_NAME_LENGTH, alias_prefix
from registry.catalog.prompts_and_resources import ListedItem
from registry.catalog.shape import ServerShape
from registry.policy.rules import Approver, Effect, Kind, Rule, reading_hints, tool_hints
from registry.policy.server_rules import ServerRules

_SCOPED: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources")
_READ: Final = ":read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of one call.

    Attributes:
        effect: `ask` if a person has to allow it.
        reason: Why, in words for an operator.
        rule: The rule that decided; None where it was none.
        hidden: Whether the caller is not to know that there is such a thing.
        by: Who has to allow it; None for whoever is asked by default.
    """

    effect: Effect
    reason: str
    rule: str | None = None
    hidden: bool = False
    by: Approver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The rules about one tool that depend on the arguments of a call.

    Attributes:
        denied, asked: Any of these that applies decides.
        allowed: One of these has to apply; None where the tool is allowed anyway.
    """

    denied: tuple[Rule, ...] = ()
    asked: tuple[Rule, ...] = ()
    allowed: tuple[Rule, ...] | None = None

    def decide(self, arguments: Any) -> Decision:
        """Return what becomes of a call with these arguments, as they are sent."""
        given: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
        for rule in self.denied:
            if rule.conditions.restricts(given):
                reason = f"the rule '{rule.name}' denies these arguments{_doubt(rule)}"
                return Decision(effect="deny", rule=rule.name, reason=reason)
        for rule in self.asked:
            if rule.conditions.restricts(given) and rule.asked.restricts(given):
                reason = f"the rule '{rule.name}' has a person decide{_doubt(rule)}"
                return Decision(effect="ask", rule=rule.name, reason=reason, by=rule.asks)
        if self.allowed is None:
            return ALLOWED
        for rule in self.allowed:
            # One that asks has not asked for these arguments, and lets through what it covers.
            if rule.conditions.permits(given) or (rule.effect == "ask" and rule.conditions.restricts(given)):
                return Decision(effect="allow", rule=rule.name, reason=f"the rule '{rule.name}' allows it")
        names = ", ".join(f"'{rule.name}'" for rule in self.allowed)
        return Decision(effect="deny", reason=f"only the rule {names} allows this tool, and not with these arguments")


ALLOWED: Final = Decision(effect="allow", reason="nothing forbids it")


class Grant:
    """What a profile shows is narrowed by it, the same for every caller with the same scopes and rules.

    Grants are equal only to themselves: a `Policy` gives callers with the same rights the same one.

    Attributes:
        rules: Those that concern the caller.
        closed: Whether only what a rule allows is there: by default, or because some rule says what it may do.
        scopes: What its key or token may be used for; empty for everything.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        closed: bool = False,
        scopes: frozenset[str] = frozenset(),
        max_length: int = DEFAULT_NAME_LENGTH,
    ) -> None:
        """Grant what these leave.

        Args:
            rules: The rules that concern the caller.
            closed: Whether what no rule allows is not there.
            scopes: What its key or token may be used for; empty for everything.
            max_length: Of names, by which the aliases in them are known.
        """
        self.rules = tuple(rules)
        self.closed = closed or any(rule.effect == "allow" for rule in self.rules)
        self.scopes = scopes
        self._max_length = max_length
        # One for each configured server; a changed configuration brings other shapes.
        self._of_servers: dict[str, tuple[ServerShape, ServerRules]] = {}

    @property
    def is_open(self) -> bool:
        """Whether it narrows nothing."""
        return not self.rules and not self.closed and not self.scopes

    def opens(self, kind: Kind) -> bool:
        """Return whether scopes open anything of a kind."""
        if kind == "completions":
            return self.opens("prompts") or self.opens("resources")
        return not self.scopes or kind in self.scopes or kind + _READ in self.scopes

    def of_server(self, server: str, shape: ServerShape) -> ServerRules:
        """Return the rules that may cover something of a server."""
        if not self.rules:
            return _NO_RULES
        known = self._of_servers.get(server)
        if known is not None and known[0] is shape:
            return known[1]
        prefix = alias_prefix(server, self._max_length)
        found = ServerRules(rule for rule in self.rules if rule.what.covers_server(server, prefix, shape))
        self._of_servers[server] = (shape, found)
        return found

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether anything of a server may be there for the caller, as far as that is known without a list."""
        if not any(map(self.opens, _SCOPED)):
            return False
        if not self.rules:
            return not self.closed
        prefix, own = alias_prefix(server, self._max_length), self.of_server(server, shape).rules
        for rule in own:
            unconditional = not rule.by_arguments and not rule.conditions.hints
            if rule.effect == "deny" and unconditional and rule.what.covers_whole(server, prefix, shape):
                return False
        return not self.closed or any(rule.effect != "deny" and not rule.doubtful for rule in own)

    def tool(self, wrapper: ToolWrapper, shape: ServerShape, rules: ServerRules) -> Decision | CallRules:
        """Return what becomes of calls of a tool.

        Args:
            wrapper: The tool.
            shape: Of its server.
            rules: What `of_server` returns.
        """
        if self.scopes and "tools" not in self.scopes:
            if "tools:read" not in self.scopes:
                return _hidden("its key or token is for something else than tools")
            if not tool_hints(wrapper, shape)["readOnlyHint"]:
                return _hidden("its key or token is for tools that are marked as read-only")
        if not rules:
            return _hidden(_NOT_ALLOWED) if self.closed else ALLOWED
        hints = None
        own: list[Rule] = []
        # Those that ask, and would never ask about this tool.
        silent: list[Rule] = []
        for rule in rules.about(wrapper):
            if not rule.what.covers_tool(wrapper, shape):
                continue
            if rule.conditions.hints or rule.asked.hints:
                hints = hints or tool_hints(wrapper, shape)
                if not rule.conditions.fit(hints):
                    continue
                if not rule.asked.fit(hints):
                    silent.append(rule)
                    continue
            own.append(rule)
            if rule.effect == "deny" and not rule.by_arguments:
                break  # nothing that follows changes that
        return self._decide(own, silent)

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether a tool is there for the caller, with some arguments at least."""
        decided = self.tool(wrapper, shape, self.of_server(wrapper.server, shape))
        return isinstance(decided, CallRules) or decided.effect != "deny"

    def prompt(self, prompt: ListedItem, shape: ServerShape, kind: Kind = "prompts") -> Decision:
        """Return whether a prompt is there for the caller, or whether its arguments may be completed."""
        covered = (
            rule for rule in self.of_server(prompt.server, shape).rules if rule.what.covers_prompt(prompt, shape, kind)
        )
        return self._reading("prompts", covered)

    def uri(self, server: str, uri: str, shape: ServerShape, kind: Kind = "resources") -> Decision:
        """Return whether a URI may be read, or be seen in a list."""
        covered = (
            rule
            for rule in self.of_server(server, shape).rules
            if rule.what.covers_uri(server, uri, kind, strictly=rule.effect == "allow")
        )
        return self._reading("resources", covered)

    def denies_uri(self, server: str, uri: str, shape: ServerShape) -> bool:
        """Return whether a rule keeps a URI from being read, whichever template it is an instance of."""
        denials = (rule for rule in self.of_server(server, shape).rules if rule.effect == "deny")
        return any(
            rule.what.covers_uri(server, uri, strictly=False) and rule.conditions.fit(reading_hints())
            for rule in denials
            if not rule.by_arguments
        )

    def _reading(self, scope: Kind, covered: Iterable[Rule]) -> Decision:
        if not self.opens(scope):
            return _hidden(f"its key or token is for something else than {scope}")
        hints = reading_hints()
        decided = self._decide(
            # Only tools have arguments that rules look at, and calls that a person can be asked about.
            [rule for rule in covered if not rule.by_arguments and rule.effect != "ask" and rule.conditions.fit(hints)]
        )
        assert isinstance(decided, Decision)
        return decided

    def _decide(self, rules: list[Rule], silent: Sequence[Rule] = ()) -> Decision | CallRules:
        for rule in rules:
            if rule.effect == "deny" and not rule.by_arguments:
                return _hidden(f"the rule '{rule.name}' denies it{_doubt(rule)}", rule.name)
        denied = tuple(rule for rule in rules if rule.effect == "deny")
        # What a host allows must not be what an administrator was to decide about.
        asked = tuple(sorted((rule for rule in rules if rule.effect == "ask"), key=lambda rule: _STRICT[rule.asks]))
        allowing = tuple(rule for rule in (*rules, *silent) if rule.effect != "deny" and not rule.doubtful)
        if self.closed and not allowing:
            doubtful = next((rule for rule in (*rules, *silent) if rule.doubtful), None)
            return _hidden(_NOT_ALLOWED if doubtful is None else f"{_NOT_ALLOWED}{_doubt(doubtful)}")
        surely = next((rule for rule in allowing if not rule.by_arguments and rule not in asked), None)
        if denied or asked or (self.closed and surely is None):
            allowed = None if surely is not None or not self.closed else allowing
            return CallRules(denied=denied, asked=asked, allowed=allowed)
        if surely is None:
            return ALLOWED
        return Decision(effect="allow", rule=surely.name, reason=f"the rule '{surely.name}' allows it")


_STRICT: Final[Mapping[Approver | None, int]] = {"administrator": 0, None: 1, "host": 2}
_NOT_ALLOWED: Final = "no rule allows it"
_NO_RULES: Final = ServerRules(())
EVERYTHING: Final = Grant()
"""What a caller may do of whom no rule says anything."""
Default = Literal["allow", "deny"]


def _doubt(rule: Rule) -> str:
    if not rule.doubtful:
        return ""
    return f"; the token of the caller does not say whether the rule '{rule.name}' is about them"


def _hidden(reason: str, rule: str | None = None) -> Decision:
    return Decision(effect="deny", reason=reason, rule=rule, hidden=True)
