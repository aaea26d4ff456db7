"""All rules, and the grant that they give to one caller."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, Final, Literal

from registry.catalog.catalog import ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import DEFAULT_NAME_LENGTH, NAME_SEPARATOR, alias_prefix
from registry.catalog.shape import ServerShape
from registry.policy.rules import Approver, Effect, Kind, Rule, Subject, reading_hints, tool_hints

_WILD: Final = re.compile(r"[*?]")
# Patterns that are combined into one regular expression, so that most of them are rejected at once.
_TOGETHER: Final = 64


class ServerRules:
    """The rules for one server, indexed by tool name, because thousands of rules may concern single tools.

    Attributes:
        rules: All of the rules, in their order.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Index the rules."""
        self.rules = tuple(rules)
        self._always: list[int] = []
        self._by_name: dict[str, list[int]] = {}
        wild: list[tuple[str, int]] = []
        for at, rule in enumerate(self.rules):
            # If a rule has both kinds of patterns, both have to match, so indexing one of them is sufficient.
            patterns = rule.what.wrappers if rule.what.wrappers is not None else rule.what.patterns
            parts = None if patterns is None else [pattern.rpartition(NAME_SEPARATOR)[2] for pattern in patterns]
            # Patterns with brackets are not indexed, because `__` inside brackets does not separate.
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
            for some in (wild[start : start + _TOGETHER] for start in range(0, len(wild), _TOGETHER))
        ]

    def __bool__(self) -> bool:
        return bool(self.rules)

    def rules_for(self, wrapper: ToolWrapper) -> Iterator[Rule]:
        """Yield the rules that may cover a tool, in their order; the caller has to check each with `covers_tool`."""
        # Only the part after the last separator of a pattern is indexed. It may match any end of the tool's names.
        names = {
            end
            for name in (wrapper.tool, wrapper.name)
            for end in (name, *(name[at + len(NAME_SEPARATOR) :] for at in _separators(name)))
        }
        positions = set(self._always)
        for name in names:
            positions.update(self._by_name.get(name, ()))
        for pattern, rules in self._wild:
            if any(pattern.match(name) for name in names):
                positions.update(rules)
        return (self.rules[at] for at in sorted(positions))


def _separators(name: str) -> Iterator[int]:
    at = name.find(NAME_SEPARATOR)
    while at >= 0:
        yield at
        at = name.find(NAME_SEPARATOR, at + 1)


_SCOPED: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources")
_READ: Final = ":read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about one call.

    Attributes:
        effect: `ask` if a person has to allow the call.
        reason: The reason, for an operator.
        rule: The rule that decided; None if no rule did.
        hidden: Whether the item's existence has to be hidden from the caller.
        by: Who has to allow the call; None for the default.
    """

    effect: Effect
    reason: str
    rule: str | None = None
    hidden: bool = False
    by: Approver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The rules for one tool that depend on the arguments of a call.

    Attributes:
        deny_rules, ask_rules: The first of these rules that applies decides.
        allow_rules: One of these rules has to apply; None if the tool is allowed anyway.
    """

    deny_rules: tuple[Rule, ...] = ()
    ask_rules: tuple[Rule, ...] = ()
    allow_rules: tuple[Rule, ...] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All of these rules."""
        return (*self.deny_rules, *self.ask_rules, *(self.allow_rules or ()))

    @property
    def by_arguments(self) -> bool:
        """Whether a rule names arguments. Two calls of such a tool can have different decisions."""
        return any(rule.by_arguments or rule.ask_conditions.arguments for rule in self.rules)

    @property
    def usual_effect(self) -> Effect | Literal["depends"]:
        """The decision about every call; `depends` if it may depend on the arguments."""
        return "depends" if self.by_arguments else self.decide({}).effect

    @property
    def always_asks(self) -> bool:
        """True if a person decides about every call that is not denied, and the rules do not name an administrator."""
        always = (rule for rule in self.ask_rules if not rule.by_arguments and not rule.ask_conditions.arguments)
        # The first one decides. An administrator is not at the host, which may have no user at all.
        return next((rule.asks != "administrator" for rule in always), False)

    def decide(self, arguments: Any) -> Decision:
        """Return the decision about a call with these arguments, in the form in which they are sent."""
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
            # A rule that asks has not asked about these arguments, so it allows them.
            if rule.conditions.permits(members) or (rule.effect == "ask" and rule.conditions.restricts(members)):
                return Decision(effect="allow", rule=rule.name, reason=f"the rule '{rule.name}' allows it")
        names = ", ".join(f"'{rule.name}'" for rule in self.allow_rules)
        return Decision(effect="deny", reason=f"only the rule {names} allows this tool, and not with these arguments")


ALLOWED: Final = Decision(effect="allow", reason="nothing forbids it")


class Grant:
    """The rights of a caller, which narrow a profile's view; shared by callers with the same scopes and rules.

    Grants are compared by identity: a `Policy` returns the same object for the same rights.

    Attributes:
        rules: The rules that concern the caller.
        closed: Whether only items that a rule allows are available: by default, or because of an allow rule.
        scopes: The scopes of the caller's key or token; empty for everything.
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
            closed: Whether items that no rule allows are unavailable.
            scopes: The scopes of the caller's key or token; empty for everything.
            max_length: The length limit of names, which determines the form of aliases in names.
        """
        self.rules = tuple(rules)
        self.closed = closed or any(rule.effect == "allow" for rule in self.rules)
        self.scopes = scopes
        self._max_length = max_length
        # By server alias. A changed configuration has other shape objects, which invalidates the entry.
        self._of_servers: dict[str, tuple[ServerShape, ServerRules]] = {}

    @property
    def is_open(self) -> bool:
        """True if the grant permits everything."""
        return not self.rules and not self.closed and not self.scopes

    def opens(self, kind: Kind) -> bool:
        """Return whether the scopes permit any item of a kind."""
        if kind == "completions":
            return self.opens("prompts") or self.opens("resources")
        return not self.scopes or kind in self.scopes or kind + _READ in self.scopes

    def rules_for_server(self, server: str, shape: ServerShape) -> ServerRules:
        """Return the rules that may cover any item of a server."""
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
        """Return whether any item of a server may be available to the caller, as far as known without its listing."""
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
        """Return the decision about calls of a tool.

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
        # Rules that ask, but never about this tool.
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
                break  # later rules cannot change that
        return self._decide(own, silent)

    def permits(self, wrapper: ToolWrapper, shape: ServerShape) -> bool:
        """Return whether a tool is available to the caller, possibly only with certain arguments."""
        decided = self.tool(wrapper, shape, self.rules_for_server(wrapper.server, shape))
        return isinstance(decided, CallRules) or decided.effect != "deny"

    def prompt(self, prompt: ListedItem, shape: ServerShape, kind: Kind = "prompts") -> Decision:
        """Return whether a prompt is available to the caller, or whether its arguments may be completed."""
        covered = (
            rule
            for rule in self.rules_for_server(prompt.server, shape).rules
            if rule.what.covers_prompt(prompt, shape, kind)
        )
        return self._decide_reading("prompts", covered)

    def uri(self, server: str, uri: str, shape: ServerShape, kind: Kind = "resources") -> Decision:
        """Return whether a URI may be read, or shown in a list."""
        covered = (
            rule
            for rule in self.rules_for_server(server, shape).rules
            if rule.what.covers_uri(server, uri, kind, strictly=rule.effect == "allow")
        )
        return self._decide_reading("resources", covered)

    def denies_uri(self, server: str, uri: str, shape: ServerShape) -> bool:
        """Return whether a rule denies reading a URI, even if a permitted template matches it."""
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
            # Conditions on arguments, and asking a person, only apply to tools.
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
        # Administrators first: a host must not approve a call that an administrator has to decide about.
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
"""The grant that applies if no rule concerns the caller."""
Default = Literal["allow", "deny"]


def _doubt_text(rule: Rule) -> str:
    if not rule.doubtful:
        return ""
    return f"; the caller's token does not say whether the rule '{rule.name}' concerns the caller"


def _hidden(reason: str, rule: str | None = None) -> Decision:
    return Decision(effect="deny", reason=reason, rule=rule, hidden=True)


_MAX_REMEMBERED = 10_000
"""Callers whose grant is cached: as many as sessions. Computing a grant takes a few microseconds per rule."""


class Policy:
    """The rules in the order of the file. The order only decides which of several agreeing rules is named.

    Attributes:
        rules: The rules.
        default: The effect if no rule applies.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, default: Default = "allow", max_length: int = DEFAULT_NAME_LENGTH
    ) -> None:
        """Create a policy.

        Args:
            default: With `deny`, items that no rule allows are not available.
            max_length: The length limit of names, which determines the form of aliases in names.
        """
        self.rules = tuple(rules)
        self.default: Default = default
        self._max_length = max_length
        self._by_subject: dict[Subject, Grant] = {}
        self._by_identity: dict[int, tuple[Subject, Grant]] = {}
        self._by_rights: dict[tuple[tuple[tuple[int, bool | None], ...], frozenset[str]], Grant] = {}

    def grant(self, subject: Subject) -> Grant:
        """Return the grant of a caller; the same object for callers with the same rights."""
        # Usually the same object as in the previous call; hashing all attributes of the caller would be slower.
        # An entry keeps its subject alive, so that no other object gets the same id.
        latest = self._by_identity.get(id(subject))
        if latest is not None:
            return latest[1]
        if len(self._by_identity) >= _MAX_REMEMBERED:
            self._by_identity.clear()
        grant = self._grant_for_subject(subject)
        self._by_identity[id(subject)] = subject, grant
        return grant

    def _grant_for_subject(self, subject: Subject) -> Grant:
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
