"""The policy, and the *grant* of a caller: the items that the policy's rules and the caller's scopes permit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import DEFAULT_NAME_LENGTH, NAME_SEPARATOR, alias_prefix
from registry.catalog.shape import ServerShape, server_of
from registry.policy.rules import Approver, Effect, Kind, Rule, Subject, reading_hints, tool_hints

_WILD: Final = re.compile(r"[*?]")
# The number of patterns to combine into one regular expression, so that one failed match rules out all of them.
_PATTERNS_AT_ONCE: Final = 64


class ServerRules:
    """The rules for one server, indexed by tool name because there may be thousands of rules for single tools.

    Attributes:
        rules: All rules for the server, in the order of the file.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Index the rules."""
        self.rules = tuple(rules)
        self._always: list[int] = []
        self._by_name: dict[str, list[int]] = {}
        wild: list[tuple[str, int]] = []
        for at, rule in enumerate(self.rules):
            # If a rule has `wrappers` and `patterns`, both have to match, so it is sufficient to index one of them.
            patterns = rule.what.wrappers if rule.what.wrappers is not None else rule.what.patterns
            parts = None if patterns is None else [_name_part(pattern) for pattern in patterns]
            # Patterns with brackets are rare, so they are not indexed.
            if parts is None or patterns is None or "*" in parts or any("[" in pattern for pattern in patterns):
                self._always.append(at)
                continue
            for part in parts:
                if _WILD.search(part):
                    wild.append((translate(part), at))
                else:
                    self._by_name.setdefault(part, []).append(at)
        self._wild: list[tuple[re.Pattern[str], list[int]]] = [
            (re.compile("|".join(source for source, _ in some)), [at for _, at in some])
            for some in (wild[start : start + _PATTERNS_AT_ONCE] for start in range(0, len(wild), _PATTERNS_AT_ONCE))
        ]

    def __bool__(self) -> bool:
        return bool(self.rules)

    def rules_for(self, wrapper: ToolWrapper) -> Iterator[Rule]:
        """Yield the rules that may cover a tool, in the order of the file; `covers_tool` has to check each of them."""
        # `selects_name` compares the name part of a pattern with these names.
        names = {wrapper.tool, wrapper.name, wrapper.name.partition(NAME_SEPARATOR)[2]}
        positions = set(self._always)
        for name in names:
            positions.update(self._by_name.get(name, ()))
        for pattern, rules in self._wild:
            if any(pattern.match(name) for name in names):
                positions.update(rules)
        return (self.rules[at] for at in sorted(positions))


def _name_part(pattern: str) -> str:
    """Return the part of a pattern that is matched against names of tools."""
    return pattern if server_of(pattern) is None else pattern.partition(NAME_SEPARATOR)[2]


_SCOPED: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources")
_READ: Final = ":read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about one call.

    Attributes:
        effect: `ask` if a person has to allow the call.
        reason: The reason, in words for an operator.
        rule: The name of the rule that decided; None if no rule applied.
        hidden: Whether the caller must not learn that the item exists.
        by: Who has to allow the call, if the effect is `ask`; None for the configured default.
    """

    effect: Effect
    reason: str
    rule: str | None = None
    hidden: bool = False
    by: Approver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The rules that decide about each call of one tool, if the decision is not the same for all calls or is `ask`.

    Attributes:
        deny_rules, ask_rules: The first of these rules that applies decides.
        allow_rules: If no deny or ask rule applies, one of these rules has to apply; None if no rule is required.
    """

    deny_rules: tuple[Rule, ...] = ()
    ask_rules: tuple[Rule, ...] = ()
    allow_rules: tuple[Rule, ...] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of all three effects."""
        return (*self.deny_rules, *self.ask_rules, *(self.allow_rules or ()))

    @property
    def by_arguments(self) -> bool:
        """True if a rule has conditions on arguments, so that two calls can have different decisions."""
        return any(rule.by_arguments or rule.ask_conditions.arguments for rule in self.rules)

    @property
    def usual_effect(self) -> Effect | Literal["depends"]:
        """The effect of the decision about every call; `depends` if it may depend on the arguments."""
        return "depends" if self.by_arguments else self.decide({}).effect

    @property
    def always_asks(self) -> bool:
        """True if a person who is not an administrator has to allow every call that is not denied."""
        always = (rule for rule in self.ask_rules if not rule.by_arguments and not rule.ask_conditions.arguments)
        # The first of these rules decides whom to ask. Administrators do not count, because hosts do not ask them.
        return next((rule.asks != "administrator" for rule in always), False)

    def decide(self, arguments: Any) -> Decision:
        """Return the decision about a call.

        Args:
            arguments: The arguments in the form in which they are sent to the upstream.
        """
        members: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
        for rule in self.deny_rules:
            if rule.conditions.restricts(members):
                reason = f"the rule '{rule.name}' denies these arguments{_doubt_text(rule)}"
                return Decision(effect="deny", rule=rule.name, reason=reason)
        for rule in self.ask_rules:
            if rule.conditions.restricts(members) and rule.ask_conditions.restricts(members):
                reason = f"the rule '{rule.name}' requires the decision of a person{_doubt_text(rule)}"
                return Decision(effect="ask", rule=rule.name, reason=reason, by=rule.asks)
        if self.allow_rules is None:
            return ALLOWED
        for rule in self.allow_rules:
            # An ask rule that applies, but has not asked because of `ask_conditions`, allows the call.
            if rule.conditions.permits(members) or (rule.effect == "ask" and rule.conditions.restricts(members)):
                return Decision(effect="allow", rule=rule.name, reason=f"the rule '{rule.name}' allows it")
        names = ", ".join(f"'{rule.name}'" for rule in self.allow_rules)
        return Decision(effect="deny", reason=f"only the rule {names} allows this tool, and not with these arguments")


ALLOWED: Final = Decision(effect="allow", reason="nothing forbids it")


class Grant:
    """The rights of a caller, as determined by rules and scopes.

    Callers with the same rules and scopes share one grant. Grants are compared by identity: a `Policy` returns the same
    object for the same rights.

    Attributes:
        rules: The rules that concern the caller.
        closed: True if the caller may use only items that an allow rule or an ask rule covers. This is the case if the
            policy denies by default, or if an allow rule concerns the caller.
        scopes: The scopes of the caller's key or token. An empty set does not restrict the caller.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        closed: bool = False,
        scopes: frozenset[str] = frozenset(),
        max_length: int = DEFAULT_NAME_LENGTH,
    ) -> None:
        """Create a grant.

        Args:
            rules: The rules that concern the caller.
            closed: Whether the policy denies by default. An allow rule has the same effect.
            scopes: The scopes of the caller's key or token. An empty set does not restrict the caller.
            max_length: The maximum length of wrapper names, in which long aliases are shortened.
        """
        self.rules = tuple(rules)
        self.closed = closed or any(rule.effect == "allow" for rule in self.rules)
        self.scopes = scopes
        self._max_length = max_length
        # A cache by server alias. Entries of an old configuration have another shape object and are ignored.
        self._of_servers: dict[str, tuple[ServerShape, ServerRules]] = {}

    @property
    def is_open(self) -> bool:
        """True if the grant permits everything."""
        return not self.rules and not self.closed and not self.scopes

    def opens(self, kind: Kind) -> bool:
        """Return whether the scopes permit at least some items of a kind."""
        if kind == "completions":
            return self.opens("prompts") or self.opens("resources")
        return not self.scopes or kind in self.scopes or kind + _READ in self.scopes

    def rules_for_server(self, server: str, shape: ServerShape) -> ServerRules:
        """Return the rules that may cover at least one item of a server."""
        if not self.rules:
            return _NO_RULES
        cached = self._of_servers.get(server)
        if cached is not None and cached[0] is shape:
            return cached[1]
        prefix = alias_prefix(server, self._max_length)
        server_rules = ServerRules(rule for rule in self.rules if rule.what.covers_server(server, prefix, shape))
        self._of_servers[server] = (shape, server_rules)
        return server_rules

    def permits_server(self, server: str, shape: ServerShape) -> bool:
        """Return whether the caller may be able to use at least one item of a server, whatever the server lists."""
        if not any(map(self.opens, _SCOPED)):
            return False
        if not self.rules:
            return not self.closed
        prefix, own = alias_prefix(server, self._max_length), self.rules_for_server(server, shape).rules
        for rule in own:
            unconditional = not rule.by_arguments and not rule.conditions.hints
            if rule.effect == "deny" and unconditional and rule.what.covers_whole(server, prefix, shape):
                return False
        return not self.closed or any(rule.effect != "deny" and not rule.doubtful for rule in own)

    def tool(self, wrapper: ToolWrapper, shape: ServerShape, rules: ServerRules) -> Decision | CallRules:
        """Return the decision about all calls of a tool, or the rules that decide about each call.

        Args:
            rules: The result of `rules_for_server`.
        """
        if self.scopes and "tools" not in self.scopes:
            if "tools:read" not in self.scopes:
                return _hidden("its key or token has no scope for tools")
            if not tool_hints(wrapper, shape)["readOnlyHint"]:
                return _hidden("its key or token only has a scope for tools that are marked as read-only")
        if not rules:
            return _hidden(_NOT_ALLOWED) if self.closed else ALLOWED
        hints = None
        own: list[Rule] = []
        # Ask rules that cover the tool, but never ask about it, because `ask_conditions` exclude the tool's hints.
        silent: list[Rule] = []
        for rule in rules.rules_for(wrapper):
            if not rule.what.covers_tool(wrapper, shape):
                continue
            if rule.conditions.hints or rule.ask_conditions.hints:
                hints = hints or tool_hints(wrapper, shape)
                if not rule.conditions.match_hints(hints):
                    continue
                if not rule.ask_conditions.match_hints(hints):
                    silent.append(rule)
                    continue
            own.append(rule)
            if rule.effect == "deny" and not rule.by_arguments:
                break  # later rules cannot change this decision
        return self._decide(own, silent)

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether the caller may call a tool, possibly only with some arguments or after a person allows it."""
        decided = self.tool(wrapper, shape, self.rules_for_server(wrapper.server, shape))
        return isinstance(decided, CallRules) or decided.effect != "deny"

    def prompt(self, prompt: ListedItem, shape: ServerShape, kind: Kind = "prompts") -> Decision:
        """Return the decision about getting a prompt, or about completing its arguments (`completions`)."""
        covered = (
            rule
            for rule in self.rules_for_server(prompt.server, shape).rules
            if rule.what.covers_prompt(prompt, shape, kind)
        )
        return self._decide_reading("prompts", covered)

    def uri(self, server: str, uri: str, shape: ServerShape, kind: Kind = "resources") -> Decision:
        """Return the decision about reading a URI and showing it in lists, or about completions for a template."""
        covered = (
            rule
            for rule in self.rules_for_server(server, shape).rules
            if rule.what.covers_uri(server, uri, kind, strictly=rule.effect == "allow")
        )
        return self._decide_reading("resources", covered)

    def denies_uri(self, server: str, uri: str, shape: ServerShape) -> bool:
        """Return whether a rule denies reading a URI. If so, permitted templates that match the URI do not help."""
        denials = (rule for rule in self.rules_for_server(server, shape).rules if rule.effect == "deny")
        return any(
            rule.what.covers_uri(server, uri, strictly=False) and rule.conditions.match_hints(reading_hints())
            for rule in denials
            if not rule.by_arguments
        )

    def _decide_reading(self, scope: Kind, covered: Iterable[Rule]) -> Decision:
        if not self.opens(scope):
            return _hidden(f"its key or token has no scope for {scope}")
        hints = reading_hints()
        decided = self._decide(
            # Rules that ask a person or have conditions on arguments apply only to tools.
            [
                rule
                for rule in covered
                if not rule.by_arguments and rule.effect != "ask" and rule.conditions.match_hints(hints)
            ]
        )
        assert isinstance(decided, Decision)
        return decided

    def _decide(self, rules: list[Rule], silent: Sequence[Rule] = ()) -> Decision | CallRules:
        for rule in rules:
            if rule.effect == "deny" and not rule.by_arguments:
                return _hidden(f"the rule '{rule.name}' denies it{_doubt_text(rule)}", rule.name)
        denied = tuple(rule for rule in rules if rule.effect == "deny")
        # Rules that ask an administrator come first, because a host's user must not decide such a call.
        asking = tuple(sorted((rule for rule in rules if rule.effect == "ask"), key=lambda rule: _STRICT[rule.asks]))
        allowing = tuple(rule for rule in (*rules, *silent) if rule.effect != "deny" and not rule.doubtful)
        if self.closed and not allowing:
            doubtful = next((rule for rule in (*rules, *silent) if rule.doubtful), None)
            return _hidden(_NOT_ALLOWED if doubtful is None else f"{_NOT_ALLOWED}{_doubt_text(doubtful)}")
        surely = next((rule for rule in allowing if not rule.by_arguments and rule not in asking), None)
        if denied or asking or (self.closed and surely is None):
            allowed = None if surely is not None or not self.closed else allowing
            return CallRules(deny_rules=denied, ask_rules=asking, allow_rules=allowed)
        if surely is None:
            return ALLOWED
        return Decision(effect="allow", rule=surely.name, reason=f"the rule '{surely.name}' allows it")


_STRICT: Final[Mapping[Approver | None, int]] = {"administrator": 0, None: 1, "host": 2}
_NOT_ALLOWED: Final = "no rule allows it"
_NO_RULES: Final = ServerRules(())
EVERYTHING: Final = Grant()
"""The grant without restrictions."""
Default = Literal["allow", "deny"]


def _doubt_text(rule: Rule) -> str:
    if not rule.doubtful:
        return ""
    return f"; the caller's token does not say whether the rule '{rule.name}' concerns the caller"


def _hidden(reason: str, rule: str | None = None) -> Decision:
    return Decision(effect="deny", reason=reason, rule=rule, hidden=True)


_MAX_REMEMBERED = 10_000
"""Maximum number of cached grants in each cache: one for each possible session. Computing a grant again takes
only a few microseconds for each rule."""


class Policy:
    """All rules of the configuration.

    Attributes:
        rules: The rules in the order of the file. If several rules lead to the same decision, the first one is named as
            the reason.
        default: The effect for items that no rule covers.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, default: Default = "allow", max_length: int = DEFAULT_NAME_LENGTH
    ) -> None:
        """Create a policy.

        Args:
            default: `deny` if callers may use only items that a rule allows.
            max_length: The maximum length of wrapper names, in which long aliases are shortened.
        """
        self.rules = tuple(rules)
        self.default: Default = default
        self._max_length = max_length
        self._by_subject: dict[Subject, Grant] = {}
        self._by_rights: dict[tuple[tuple[tuple[int, bool | None], ...], frozenset[str]], Grant] = {}

    def grant(self, subject: Subject) -> Grant:
        """Return the grant of a caller; the same object for callers with the same rights."""
        cached = self._by_subject.get(subject)
        if cached is not None:
            return cached
        if len(self._by_subject) >= _MAX_REMEMBERED:
            self._by_subject.clear()
        grant = self._by_subject[subject] = self._compute_grant(subject)
        return grant

    def _compute_grant(self, subject: Subject) -> Grant:
        scopes = subject.scopes
        answers = [rule.who.concerns(subject) for rule in self.rules]
        if not any(answer is not False for answer in answers) and not scopes and self.default == "allow":
            return EVERYTHING
        concerning = tuple((index, answer) for index, answer in enumerate(answers) if answer is not False)
        return self._grant_for_rights(concerning, scopes)

    def _grant_for_rights(self, concerning: tuple[tuple[int, bool | None], ...], scopes: frozenset[str]) -> Grant:
        key = (concerning, scopes)
        grant = self._by_rights.get(key)
        if grant is None:
            if len(self._by_rights) >= _MAX_REMEMBERED:
                self._by_rights.clear()
            rules = (
                self.rules[index] if surely else replace(self.rules[index], doubtful=True)
                for index, surely in concerning
            )
            grant = self._by_rights[key] = Grant(
                rules, closed=self.default == "deny", scopes=scopes, max_length=self._max_length
            )
        return grant
