"""Explain why a caller may or may not use a tool, prompt or resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gateway.access.credentials import principal_of
from gateway.access.oauth.claims import Rejected
from gateway.access.oauth.claims import principal_of as token_principal
from gateway.access.principal import LOCAL, Principal
from gateway.calls.call_targets import OWN_NAMES
from gateway.calls.profile_views import ProfileViews
from gateway.calls.tool_call import held_text, prepare_shown
from gateway.config.auth_config import SCOPES, AuthConfig, Issuer, profile_of_audience
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.listed_items import ListedItem
from registry.catalog.names import ServerName, alias_prefix
from registry.catalog.registry import Registry
from registry.errors import NotChecked
from registry.policy.policy import ALLOWED, Decision, Grant
from registry.policy.rules import (
    KINDS,
    SCOPE_CLAIM,
    ArgumentCondition,
    CallerPatterns,
    Conditions,
    Effect,
    ItemPatterns,
    Kind,
    Rule,
    reading_hints,
    tool_hints,
)
from registry.policy.unmatched_rules import find_unmatched
from registry.schema.display_text import excerpt
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

# The maximum number of rules in an explanation. Rules with many unmet conditions come last and are omitted first.
_MAX_CONDITIONS: Final = 50
# The maximum length of a value in the text of a condition.
_VALUE_CHARS: Final = 60
_NOTHING: Final = "there is no such tool, prompt or resource behind this gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question whether a caller may use an item.

    Attributes:
        principal: The name of the caller.
        name: The name of a wrapper or prompt, or the URI of a resource.
        profile: The profile through which the caller uses `name`.
        arguments: The arguments of the call; None if no arguments are given.
        groups, scopes, claims: The assumed content of the caller's access token. If the caller has a key, the groups,
            scopes and claims are added to those of the key.
    """

    principal: str
    name: str
    profile: str = DEFAULT_PROFILE
    arguments: dict[str, Any] | None = None
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()


async def explain(question: Question, *, auth: AuthConfig, views: ProfileViews, registry: Registry) -> dict[str, Any]:
    """Return the decision about a call or a read, and the reasons for it.

    The decision is made in the same view (selection of wrappers and other items) as for a request of the caller.

    Returns:
        `decision` (allow, deny or ask), `rule`, `reason`, `visible`, `kind` and `server`; `rules`: the names of the
        rules that apply to the caller and cover the item or its server; `conditions`: for each rule of the policy, the
        conditions that are not met.
    """
    answer: dict[str, Any] = {
        "principal": question.principal,
        "groups": sorted(question.groups),
        "scopes": sorted(question.scopes),
        "profile": question.profile,
        "name": question.name,
    }
    try:
        principal = principal_in(question, auth)
    except Rejected as error:
        return {**answer, **_denied_row(error.refusal.description)}
    answer |= {"groups": sorted(principal.groups), "scopes": sorted(principal.scopes)}
    if question.profile not in views.profiles:
        return {**answer, **_denied_row(f"there is no profile {question.profile}")}
    if not principal.may_enter(question.profile):
        return {
            **answer,
            **_denied_row(f"the key or token of {principal.name} does not open the profile {question.profile}"),
        }
    view = await views.prepared(question.profile, principal)
    wrapper = registry.catalog.by_name.get(question.name)
    catalog = registry.catalog_of(views.owner(principal))
    rules = views.policy.rules

    def answer_in_view() -> dict[str, Any]:
        is_given = wrapper is not None and question.arguments is not None
        arguments = _as_checked(question.arguments, wrapper, view, registry) if wrapper and is_given else None
        item = _Item.find(question.name, registry, catalog)
        return {
            **answer,
            **_decide(question, view, registry, catalog),
            "conditions": condition_rows(principal, rules, item, arguments),
        }

    # Use a thread, because every rule is compared with the arguments, which may be large.
    return await run_in_thread(answer_in_view)


def _decide(question: Question, view: View, registry: Registry, catalog: Catalog) -> dict[str, Any]:
    name, grant = question.name, view.grant
    if name in OWN_NAMES:
        return _own_tool_row(name, view)
    visible_wrapper = view.catalog.by_name.get(name)
    if (wrapper := visible_wrapper or catalog.by_name.get(name)) is not None:
        return {
            "kind": "tool",
            "server": wrapper.server,
            **_tool_row(question, wrapper, visible_wrapper is not None, view, registry),
        }
    if (prompt := catalog.prompts_and_resources.prompt(name)) is not None:
        shape = registry.shape.for_server(prompt.server)
        row = _row(
            grant.prompt(prompt, shape),
            grant.rules_for_server(prompt.server, shape).rules,
            is_visible=view.catalog.prompts_and_resources.prompt(name) is not None,
            inside=view.profile.permits_prompt(prompt, shape),
            profile=question.profile,
        )
        return {"kind": "prompt", "server": prompt.server, **row}
    # A server with resources may accept any text as a URI, so treat a text without a colon as a misspelt name.
    owners = catalog.prompts_and_resources.owners(name) if ":" in name else ()
    if owners:
        readable = view.catalog.prompts_and_resources.owners(name)
        server, original = (readable or owners)[0]
        shape = registry.shape.for_server(server)
        row = _row(
            grant.uri(server, original, shape),
            grant.rules_for_server(server, shape).rules,
            is_visible=bool(readable),
            inside=view.profile.permits_uri(server, original, shape),
            profile=question.profile,
        )
        return {"kind": "resource", "server": server, **row}
    return _denied_row(_NOTHING)


def rule_rows(views: ProfileViews, registry: Registry) -> list[dict[str, Any]]:
    """Return each rule with the number of tools that it covers. A rule that covers no tools may be a mistake."""
    rows: list[dict[str, Any]] = []
    for rule in views.policy.rules:
        grant = Grant([rule])
        covered = [
            wrapper.name
            for wrapper in registry.catalog.wrappers
            if grant.rules_for_server(wrapper.server, registry.shape.for_server(wrapper.server))
            and rule.what.covers_tool(wrapper, registry.shape.for_server(wrapper.server))
        ]
        details = {"whom": _whom_of(rule), "what": _what_of(rule), "when": _when_of(rule)}
        rows.append({"name": rule.name, "effect": rule.effect, "tools": len(covered), **details})
    return rows


def _whom_of(rule: Rule) -> dict[str, list[str]]:
    """Return a rule's patterns for callers, by kind; empty for a rule that concerns every caller."""
    who = rule.who
    by_kind = {"principals": who.principals, "groups": who.groups, "scopes": who.scopes}
    claims = {f"claim {name}": patterns for name, patterns in who.claims.items()}
    return {kind: list(patterns) for kind, patterns in {**by_kind, **claims}.items() if patterns is not None}


def _what_of(rule: Rule) -> dict[str, list[str]]:
    """Return a rule's patterns for items, by kind; empty for a rule that covers everything."""
    what = rule.what
    kinds = None if what.kinds == frozenset(KINDS) else tuple(kind for kind in KINDS if kind in what.kinds)
    by_kind = {
        "kinds": kinds,
        "servers": what.servers,
        "tags": what.tags,
        "names": what.patterns,
        "tools": what.wrappers,
    }
    return {kind: list(patterns) for kind, patterns in by_kind.items() if patterns is not None}


def _when_of(rule: Rule) -> list[str]:
    """Return each condition of a rule in words, and the conditions under which the rule requires an approval."""
    ask_texts = [f"asks if {text}" for text in _condition_texts(rule.ask_conditions)]
    by = [f"decided by the {rule.asks}"] if rule.asks is not None else []
    return [*_condition_texts(rule.conditions), *ask_texts, *by]


def _condition_texts(conditions: Conditions) -> list[str]:
    hints = [f"{name} is {'true' if expected else 'false'}" for name, expected in conditions.hints.items()]
    return [*hints, *map(_argument_text, conditions.arguments)]


def _argument_text(condition: ArgumentCondition) -> str:
    tests = [
        *([f"is {_values_text(condition.equals)}"] if condition.equals is not None else ()),
        *([f"is not {_values_text(condition.excludes)}"] if condition.excludes is not None else ()),
        *([f"matches {condition.pattern}"] if condition.pattern is not None else ()),
        *(["is given" if condition.present else "is absent"] if condition.present is not None else ()),
        *([f"is above {condition.above:g}"] if condition.above is not None else ()),
        *([f"is below {condition.below:g}"] if condition.below is not None else ()),
    ]
    return f"{condition.path} {' and '.join(tests)}"


def _values_text(values: tuple[Any, ...]) -> str:
    return " or ".join(excerpt(json_bytes.dumps(value).decode(), _VALUE_CHARS) for value in values)


class _Item:
    """A tool, prompt or resource that rules may cover.

    Attributes:
        kind: The kind of the item, as rules name it.
        hints: The hints of the item, such as `readOnlyHint`, which the conditions of rules test.
    """

    def __init__(self, found: ToolWrapper | ListedItem | tuple[str, str], registry: Registry) -> None:
        """Describe an item.

        Args:
            found: A tool, a prompt, or, for a resource, the pair of its server and its URI at this server.
        """
        self._found = found
        self._server = ServerName(found[0] if isinstance(found, tuple) else found.server)
        self._prefix = alias_prefix(self._server, registry.shape.max_length)
        self._shape = registry.shape.for_server(self._server)
        self.kind: Kind = "resources" if isinstance(found, tuple) else "prompts"
        self.hints = reading_hints()
        if isinstance(found, ToolWrapper):
            self.kind, self.hints = "tools", tool_hints(found, self._shape)

    @classmethod
    def find(cls, name: str, registry: Registry, catalog: Catalog) -> _Item | None:
        """Return the tool, prompt or resource with this name, or None."""
        found = catalog.by_name.get(name) or catalog.prompts_and_resources.prompt(name)
        owners = catalog.prompts_and_resources.owners(name) if found is None and ":" in name else ()
        return cls(found or owners[0], registry) if found is not None or owners else None

    def is_covered(self, what: ItemPatterns, effect: Effect) -> bool:
        """Return whether these patterns, in a rule with this effect, cover the item."""
        found = self._found
        if not what.covers_server(self._server, self._prefix, self._shape):
            return False
        if isinstance(found, ToolWrapper):
            return what.covers_tool(found, self._shape)
        if isinstance(found, tuple):
            return what.covers_uri(*found, strictly=effect == "allow")
        return what.covers_prompt(found, self._shape)


def condition_rows(
    principal: Principal, rules: Iterable[Rule], item: _Item | None, arguments: Any
) -> list[dict[str, Any]]:
    """Return, for each rule, the conditions that a call or a read does not meet.

    The rules with the fewest unmet conditions come first.
    """
    if item is None:
        return []
    rows: list[dict[str, Any]] = []
    for rule in rules:
        unmet = [
            *_unmet_by_caller(rule.who, principal),
            *_unmet_by_item(rule, item),
            *(_unmet_conditions(rule, item.hints, arguments) if item.kind == "tools" else _unmet_reading(rule, item)),
        ]
        rows.append({"rule": rule.name, "effect": rule.effect, "applies": not unmet, "unmet": unmet})
    return sorted(rows, key=lambda row: len(row["unmet"]))[:_MAX_CONDITIONS]


def _unmet_by_caller(who: CallerPatterns, principal: Principal) -> Iterator[str]:
    parts = {
        "the caller": (CallerPatterns(principals=who.principals), who.principals),
        "a group of the caller": (CallerPatterns(groups=who.groups), who.groups),
        "a scope of the caller": (CallerPatterns(scopes=who.scopes), who.scopes),
        **{
            f"the claim {name}": (CallerPatterns(claims={name: patterns}), patterns)
            for name, patterns in who.claims.items()
        },
    }
    for what, (part, patterns) in parts.items():
        concerns = part.concerns(principal)
        if concerns is not True and patterns is not None:
            unknown = "; the token does not say" if concerns is None else ""
            yield f"{what} is not {' or '.join(patterns)}{unknown}"


def _unmet_by_item(rule: Rule, item: _Item) -> Iterator[str]:
    what = rule.what
    if item.kind not in what.kinds:
        yield f"it covers {', '.join(sorted(what.kinds))}, not {item.kind}"
    elif what.wrappers is not None and item.kind != "tools":
        yield f"it covers tools, not {item.kind}"
    parts = {
        "the server": (ItemPatterns(servers=what.servers), what.servers),
        "a tag of the server": (ItemPatterns(tags=what.tags), what.tags),
        "the URI" if item.kind == "resources" else "the name": (ItemPatterns(patterns=what.patterns), what.patterns),
    }
    if item.kind == "tools":
        parts["the tool"] = ItemPatterns(wrappers=what.wrappers), what.wrappers
    for word, (part, patterns) in parts.items():
        if patterns is not None and not item.is_covered(part, rule.effect):
            yield f"{word} is not {' or '.join(patterns)}"


def _unmet_reading(rule: Rule, item: _Item) -> Iterator[str]:
    """Yield the requirements of a rule that a prompt or a resource does not meet."""
    if rule.effect == "ask":
        yield f"it asks about tools, not {item.kind}"
    for name, wanted in rule.conditions.hints.items():
        if item.hints[name] != wanted:
            yield f"{name} is {'false' if wanted else 'true'} for {item.kind}"
    for condition in rule.conditions.arguments:
        yield f"it depends on arguments of tools: {_argument_text(condition)}"


def _unmet_conditions(rule: Rule, hints: Mapping[str, bool], arguments: Any) -> Iterator[str]:
    for conditions, effect in ((rule.conditions, rule.effect), (rule.ask_conditions, "ask")):
        for name, expected in conditions.hints.items():
            if hints[name] != expected:
                yield f"{name} is {'false' if expected else 'true'}"
        for condition in conditions.arguments:
            applies = condition.permits if effect == "allow" else condition.restricts
            if arguments is None:
                yield f"it depends on the arguments: {_argument_text(condition)}"
            elif not applies(arguments if isinstance(arguments, dict) else {}):
                yield f"not: {_argument_text(condition)}"


async def matrix(profile: str, callers: Sequence[str], *, auth: AuthConfig, views: ProfileViews) -> dict[str, Any]:
    """Return the decision about each tool for each caller: allow, deny, ask, or depends (on the arguments).

    Raises:
        Rejected: The gateway would not accept a token of a caller.
    """
    names: list[str] = []
    columns: list[Mapping[str, str]] = []
    for name in callers:
        principal = principal_in(Question(principal=name, name=""), auth)
        names.append(name)
        # Use a thread: the decisions about a few thousand tools would block the event loop for tens of milliseconds.
        is_open = principal.may_enter(profile)
        columns.append(
            await run_in_thread(partial(_column, await views.prepared(profile, principal))) if is_open else {}
        )
    tools = (await views.prepared(profile)).catalog.wrappers

    def rows() -> list[dict[str, Any]]:
        return [
            {
                "name": wrapper.name,
                "server": wrapper.server,
                "decisions": [column.get(wrapper.name, "deny") for column in columns],
            }
            for wrapper in tools
        ]

    return {"profile": profile, "callers": names, "tools": await run_in_thread(rows)}


def _column(view: View) -> dict[str, str]:
    decisions: dict[str, str] = {}
    for wrapper in view.catalog.wrappers:
        rules = view.call_rules.get(wrapper.name)
        if wrapper.held is not None:
            continue
        decisions[wrapper.name] = "allow" if rules is None else rules.usual_effect
    return decisions


def rows_of_unmatched_rules(views: ProfileViews, registry: Registry) -> list[str]:
    """Return a warning for each rule, pattern and condition that matches nothing."""
    unmatched = find_unmatched(views.policy.rules, registry.catalog, registry.shape)
    return [f"policy: {text}" for text in unmatched]


def principal_in(question: Question, auth: AuthConfig) -> Principal:
    """Return the caller in a question: the owner of a key, or the subject of a token from a configured issuer.

    Raises:
        Rejected: The gateway would not accept a token with this content.
    """
    issuers = auth.oauth.issuers if auth.oauth is not None else []
    issuer = next((each for each in issuers if question.principal.endswith(f"@{each.name}")), None)
    if issuer is not None:
        resource = auth.oauth.resource if auth.oauth is not None else None
        token_holder = token_principal(
            _token_claims(question, issuer), issuer, resource=resource, now_s=0.0, ends=False
        )
        return replace(token_holder, is_simulated=True)
    principals: Iterable[Principal] = (LOCAL, *map(principal_of, auth.api_keys))
    principal = next(
        (each for each in principals if each.name == question.principal), Principal(name=question.principal)
    )
    # Treat scopes as in a token: the gateway's own scopes restrict access, and every scope is also a claim.
    return replace(
        principal,
        is_simulated=True,
        groups=principal.groups | question.groups,
        scopes=principal.scopes | question.scopes.intersection(SCOPES),
        claims=principal.claims | question.claims | {(SCOPE_CLAIM, scope) for scope in question.scopes},
    )


def _token_claims(question: Question, issuer: Issuer) -> dict[str, Any]:
    """Return the claims that an access token of the question's caller would contain."""
    open_to_all = [audience for audience in issuer.audiences if profile_of_audience(audience, None) is None]
    claims: dict[str, Any] = {
        "iss": issuer.issuer,
        "aud": open_to_all or issuer.audiences,
        # By default, assume the required scopes, because a token without these scopes would be rejected.
        "scope": " ".join(question.scopes or issuer.required_scopes),
        issuer.claims.subject: question.principal.removesuffix(f"@{issuer.name}"),
    }
    if question.groups:
        claims[issuer.claims.groups] = sorted(question.groups)
    values_by_name: dict[str, list[str]] = {}
    for name, value in sorted(question.claims):
        values_by_name.setdefault(name, []).append(value)
    return {**claims, **{name: values[0] if len(values) == 1 else values for name, values in values_by_name.items()}}


def _own_tool_row(name: str, view: View) -> dict[str, Any]:
    """Return the decision about one of the gateway's own tools. Rules do not apply to these tools."""
    if not view.opens_tools:
        return {"kind": "tool", **_denied_row("the scopes of its key or token do not include tools")}
    return {
        "kind": "tool",
        "decision": "allow",
        "rule": None,
        "reason": "it is one of the gateway's own tools",
        "visible": any(tool["name"] == name for tool in view.builtin_tools),
        "rules": [],
    }


def _tool_row(
    question: Question, wrapper: ToolWrapper, is_visible: bool, view: View, registry: Registry
) -> dict[str, Any]:
    grant, shape = view.grant, registry.shape.for_server(ServerName(wrapper.server))
    rules = grant.rules_for_server(wrapper.server, shape)
    covering = tuple(rule for rule in rules.rules_for(wrapper) if rule.what.covers_tool(wrapper, shape))
    decided = grant.tool(wrapper, shape, rules)
    inside = view.profile.permits(wrapper, shape)
    if not is_visible or wrapper.held is not None:
        decision = decided if isinstance(decided, Decision) else ALLOWED
        if is_visible:
            decision = Decision(effect="deny", reason=held_text(wrapper).removeprefix("Not called: "))
        row = _row(decision, covering, is_visible=is_visible, inside=inside, profile=question.profile)
        return {**row, "decision": "deny", "visible": is_visible}
    call_rules = view.call_rules.get(wrapper.name)
    if call_rules is None:
        return _row(
            decided if isinstance(decided, Decision) else ALLOWED,
            covering,
            is_visible=True,
            inside=True,
            profile=question.profile,
        )
    decision = call_rules.decide(_as_checked(question.arguments, wrapper, view, registry))
    if question.arguments is None and call_rules.by_arguments:
        # A rule that requires an approval also allows the call, so this rule can occur twice.
        names = ", ".join(dict.fromkeys(f"'{rule.name}'" for rule in call_rules.rules))
        decision = replace(
            decision, reason=f"the arguments decide, by the rules {names}; without any: {decision.reason}"
        )
    return _row(decision, covering, is_visible=True, inside=True, profile=question.profile)


def _as_checked(arguments: dict[str, Any] | None, wrapper: ToolWrapper, view: View, registry: Registry) -> Any:
    """Return the arguments that the conditions of rules test: repaired, and with configured defaults added."""
    try:
        return prepare_shown(registry, view, wrapper, arguments).arguments
    except NotChecked:
        return arguments


def _row(decision: Decision, rules: Iterable[Rule], *, is_visible: bool, inside: bool, profile: str) -> dict[str, Any]:
    """Return the row of a decision.

    Args:
        decision: The decision by the rules.
        rules: The rules that apply to the caller and the server.
        is_visible: Whether the caller's view contains the item. A rule about the item's server or template may hide an
            item that `decision` allows.
        inside: Whether the profile selects the item.
        profile: The name of the profile.
    """
    names = [rule.name for rule in rules]
    if not is_visible and not inside:
        return {**_denied_row(f"the profile {profile} does not show it"), "rules": names}
    if not is_visible and decision.effect != "deny":
        return {**_denied_row("the configuration or a rule about its server or template hides it"), "rules": names}
    if is_visible and decision.hidden:
        # The resource itself is hidden, but a template that the caller may use covers the resource.
        decision = Decision(effect="allow", reason="a visible template covers it")
    return {
        "decision": decision.effect,
        "rule": decision.rule,
        "reason": decision.reason,
        "visible": is_visible,
        "rules": names,
    }


def _denied_row(reason: str) -> dict[str, Any]:
    return {"decision": "deny", "rule": None, "reason": reason, "visible": False, "rules": []}
