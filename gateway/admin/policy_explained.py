"""Why a caller sees, lacks or is refused something: the decision of `tools/call`, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.access.api_keys import principal_of
from gateway.access.principal import LOCAL, Principal
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth import AuthConfig
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.store import Registry
from registry.policy.grant import CallRules, Decision, Grant
from registry.policy.rules import Rule
from registry.views.profile import DEFAULT_PROFILE

_NOTHING: Final = "there is no such tool, prompt or resource behind this gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody wants to know.

    Attributes:
        principal: The name of the caller.
        name: A wrapper, a prompt or a URI.
        profile: The profile through which it is called.
        arguments: Of the call; None for any.
        groups, scopes, claims: What a token would say of a caller who has no key.
    """

    principal: str
    name: str
    profile: str = DEFAULT_PROFILE
    arguments: dict[str, Any] | None = None
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()


def explain(question: Question, *, auth: AuthConfig, views: ProfileViews, registry: Registry) -> dict[str, Any]:
    """Return what becomes of a call or a reading, and why.

    Args:
        question: Who wants what.
        auth: The keys, which say who is in which groups.
        views: Profiles and rules.
        registry: What there is.

    Returns:
        `decision` (allow, deny or ask), `rule`, `reason`, `visible`, `kind`, `server`, and in `rules` every rule that
        concerns the caller and may cover the server.
    """
    principal = principal_in(question, auth)
    answer: dict[str, Any] = {
        "principal": principal.name, "groups": sorted(principal.groups), "scopes": sorted(principal.scopes),
        "profile": question.profile, "name": question.name,
    }  # fmt: skip
    if question.profile not in views.profiles:
        return {**answer, **_denied(f"there is no profile {question.profile}")}
    if not principal.may_enter(question.profile):
        return {
            **answer,
            **_denied(f"the key or token of {principal.name} does not open the profile {question.profile}"),
        }
    grant, items = views.policy.grant(principal), registry.catalog.prompts_and_resources
    wrapper = registry.catalog.get(question.name)
    if wrapper is not None:
        return {**answer, "kind": "tool", **_of_tool(question, wrapper, grant, views, registry)}
    profile = views.profiles[question.profile]
    if (prompt := items.prompt(question.name)) is not None:
        shape = registry.shape.of(prompt.server)
        decision = grant.prompt(prompt, shape)
        inside = profile.permits_prompt(prompt, shape)
        rules = grant.of_server(prompt.server, shape).rules
        return {**answer, "kind": "prompt", "server": prompt.server, **_row(decision, rules, inside, question.profile)}
    for server, original in items.owners(question.name) if "://" in question.name or ":" in question.name else ():
        shape = registry.shape.of(server)
        decision = grant.uri(server, original, shape)
        inside = profile.permits_uri(server, original, shape)
        rules = grant.of_server(server, shape).rules
        return {**answer, "kind": "resource", "server": server, **_row(decision, rules, inside, question.profile)}
    return {**answer, **_denied(_NOTHING)}


def rule_rows(views: ProfileViews, registry: Registry) -> list[dict[str, Any]]:
    """Every rule with the number of tools that it covers; one that covers nothing may have been meant otherwise."""
    rows: list[dict[str, Any]] = []
    for rule in views.policy.rules:
        grant = Grant([rule])
        covered = [
            wrapper.name
            for wrapper in registry.catalog.wrappers
            if grant.of_server(wrapper.server, registry.shape.of(wrapper.server))
            and rule.what.covers_tool(wrapper, registry.shape.of(wrapper.server))
        ]
        rows.append({"name": rule.name, "effect": rule.effect, "tools": len(covered)})
    return rows


def vain_rules(views: ProfileViews, registry: Registry) -> list[str]:
    """A warning for each rule about tools that covers none."""
    if not registry.catalog.wrappers:
        return []
    by_name = {row["name"]: row["tools"] for row in rule_rows(views, registry)}
    return [
        f"policy: the rule '{rule.name}' covers no tool that there is"
        for rule in views.policy.rules
        if by_name[rule.name] == 0 and "tools" in rule.what.kinds and not _is_about_uris(rule)
    ]


def _is_about_uris(rule: Rule) -> bool:
    return rule.what.patterns is not None and all("://" in pattern for pattern in rule.what.patterns)


def principal_in(question: Question, auth: AuthConfig) -> Principal:
    known: Iterable[Principal] = (LOCAL, *map(principal_of, auth.api_keys))
    for principal in known:
        if principal.name == question.principal:
            break
    else:
        principal = Principal(name=question.principal)
    return replace(
        principal,
        assumed=True,
        groups=principal.groups | question.groups,
        scopes=principal.scopes | question.scopes,
        claims=principal.claims | question.claims,
    )


def _of_tool(
    question: Question, wrapper: ToolWrapper, grant: Grant, views: ProfileViews, registry: Registry
) -> dict[str, Any]:
    shape = registry.shape.of(ServerName(wrapper.server))
    rules = grant.of_server(wrapper.server, shape)
    decided = grant.tool(wrapper, shape, rules)
    covering = tuple(rule for rule in rules.about(wrapper) if rule.what.covers_tool(wrapper, shape))
    if isinstance(decided, CallRules):
        decision = decided.decide(question.arguments or {})
        if question.arguments is None:
            names = ", ".join(f"'{rule.name}'" for rule in (*decided.denied, *decided.asked, *(decided.allowed or ())))
            decision = replace(
                decision, reason=f"the arguments decide, by the rules {names}; without any: {decision.reason}"
            )
    else:
        decision = decided
    inside = views.profiles[question.profile].permits(wrapper, shape)
    return {"server": wrapper.server, **_row(decision, covering, inside, question.profile)}


def _row(decision: Decision, rules: Iterable[Rule], inside: bool, profile: str) -> dict[str, Any]:
    if not inside:
        return {**_denied(f"the profile {profile} does not show it"), "rules": [rule.name for rule in rules]}
    return {
        "decision": decision.effect,
        "rule": decision.rule,
        "reason": decision.reason,
        "visible": not decision.hidden,
        "rules": [rule.name for rule in rules],
    }


def _denied(reason: str) -> dict[str, Any]:
    return {"decision": "deny", "rule": None, "reason": reason, "visible": False, "rules": []}
