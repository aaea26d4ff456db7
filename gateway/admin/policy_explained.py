"""Why a caller sees, lacks or is refused something: the decision of `tools/call`, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.access.api_keys import principal_of
from gateway.access.oauth.claims import Rejected
from gateway.access.oauth.claims import principal_of as token_principal
from gateway.access.principal import LOCAL, Principal
from gateway.calls.call_targets import OWN_NAMES
from gateway.calls.profile_views import ProfileViews
from gateway.calls.tool_call import held_text, prepare_shown
from gateway.config.auth import SCOPES, AuthConfig
from gateway.config.issuers import Issuer, profile_of_audience
from registry.catalog.catalog import Catalog, ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.store import Registry
from registry.errors import NotChecked
from registry.policy.grant import ALLOWED, Decision, Grant
from registry.policy.rules import SCOPE_CLAIM, Rule
from registry.policy.unmatched import unmatched_parts
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

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


async def explain(
    question: Question, *, auth: AuthConfig, views: ProfileViews, registry: Registry
) -> dict[str, Any]:  # fmt: skip
    """Return what becomes of a call or a reading, and why.

    What is decided is decided by the view that such a caller has, as for a call of its own.

    Args:
        question: Who wants what.
        auth: The keys and issuers, which say who a caller is.
        views: Profiles and rules.
        registry: What there is.

    Returns:
        `decision` (allow, deny or ask), `rule`, `reason`, `visible`, `kind`, `server`, and in `rules` every rule that
        concerns the caller and may cover the server.
    """
    answer: dict[str, Any] = {
        "principal": question.principal, "groups": sorted(question.groups), "scopes": sorted(question.scopes),
        "profile": question.profile, "name": question.name,
    }  # fmt: skip
    try:
        principal = principal_in(question, auth)
    except Rejected as error:
        return {**answer, **_denied(error.refusal.description)}
    answer |= {"groups": sorted(principal.groups), "scopes": sorted(principal.scopes)}
    if question.profile not in views.profiles:
        return {**answer, **_denied(f"there is no profile {question.profile}")}
    if not principal.may_enter(question.profile):
        return {
            **answer,
            **_denied(f"the key or token of {principal.name} does not open the profile {question.profile}"),
        }
    view = await views.prepared(question.profile, principal)
    return {**answer, **_decided(question, view, registry, registry.catalog_of(views.owner(principal)))}


def _decided(question: Question, view: View, registry: Registry, catalog: Catalog) -> dict[str, Any]:
    name, grant = question.name, view.grant
    if name in OWN_NAMES:
        return _of_own(name, view)
    shown = view.catalog.get(name)
    if (wrapper := shown or catalog.get(name)) is not None:
        return {
            "kind": "tool",
            "server": wrapper.server,
            **_of_tool(question, wrapper, shown is not None, view, registry),
        }
    if (prompt := catalog.prompts_and_resources.prompt(name)) is not None:
        shape = registry.shape.of(prompt.server)
        row = _row(
            grant.prompt(prompt, shape),
            grant.of_server(prompt.server, shape).rules,
            shown=view.catalog.prompts_and_resources.prompt(name) is not None,
            inside=view.profile.permits_prompt(prompt, shape),
            profile=question.profile,
        )
        return {"kind": "prompt", "server": prompt.server, **row}
    # Any server with resources may know any text as a URI; one without a colon is taken for a misspelt name.
    owners = catalog.prompts_and_resources.owners(name) if ":" in name else ()
    if owners:
        readable = view.catalog.prompts_and_resources.owners(name)
        server, original = (readable or owners)[0]
        shape = registry.shape.of(server)
        row = _row(
            grant.uri(server, original, shape),
            grant.of_server(server, shape).rules,
            shown=bool(readable),
            inside=view.profile.permits_uri(server, original, shape),
            profile=question.profile,
        )
        return {"kind": "resource", "server": server, **row}
    return _denied(_NOTHING)


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
    """Return a warning for each rule, pattern and condition that nothing answers to."""
    found = unmatched_parts(views.policy.rules, registry.catalog, registry.shape)
    return [f"policy: {text}" for text in found]


def principal_in(question: Question, auth: AuthConfig) -> Principal:
    """Return the caller of a question: who has that key, or whom a token of that issuer would speak for.

    Raises:
        Rejected: A token that says this is not accepted.
    """
    issuers = auth.oauth.issuers if auth.oauth is not None else []
    issuer = next((one for one in issuers if question.principal.endswith(f"@{one.name}")), None)
    if issuer is not None:
        resource = auth.oauth.resource if auth.oauth is not None else None
        found = token_principal(_token_claims(question, issuer), issuer, resource=resource, now_s=0.0, ends=False)
        return replace(found, assumed=True)
    known: Iterable[Principal] = (LOCAL, *map(principal_of, auth.api_keys))
    principal = next((one for one in known if one.name == question.principal), Principal(name=question.principal))
    # As of a token: our own words restrict, and all of them are a claim.
    return replace(
        principal,
        assumed=True,
        groups=principal.groups | question.groups,
        scopes=principal.scopes | question.scopes.intersection(SCOPES),
        claims=principal.claims | question.claims | {(SCOPE_CLAIM, scope) for scope in question.scopes},
    )


def _token_claims(question: Question, issuer: Issuer) -> dict[str, Any]:
    """Return what a token says that speaks for the caller of a question."""
    open_to_all = [one for one in issuer.audiences if profile_of_audience(one, None) is None]
    claims: dict[str, Any] = {
        "iss": issuer.issuer,
        "aud": open_to_all or issuer.audiences,
        # Nobody gets in without the scopes that every token has to have.
        "scope": " ".join(question.scopes or issuer.required_scopes),
        issuer.claims.subject: question.principal.removesuffix(f"@{issuer.name}"),
    }
    if question.groups:
        claims[issuer.claims.groups] = sorted(question.groups)
    given: dict[str, list[str]] = {}
    for name, value in sorted(question.claims):
        given.setdefault(name, []).append(value)
    return {**claims, **{name: values[0] if len(values) == 1 else values for name, values in given.items()}}


def _of_own(name: str, view: View) -> dict[str, Any]:
    """Decide about a tool of the gateway's own, which no rule is about."""
    if not view.opens_tools:
        return {"kind": "tool", **_denied("its key or token is for something else than tools")}
    return {
        "kind": "tool", "decision": "allow", "rule": None, "reason": "it is a tool of the gateway's own",
        "visible": any(tool["name"] == name for tool in view.builtin_tools), "rules": [],
    }  # fmt: skip


def _of_tool(
    question: Question, wrapper: ToolWrapper, shown: bool, view: View, registry: Registry
) -> dict[str, Any]:  # fmt: skip
    grant, shape = view.grant, registry.shape.of(ServerName(wrapper.server))
    rules = grant.of_server(wrapper.server, shape)
    covering = tuple(rule for rule in rules.about(wrapper) if rule.what.covers_tool(wrapper, shape))
    decided = grant.tool(wrapper, shape, rules)
    inside = view.profile.permits(wrapper, shape)
    if not shown or wrapper.held is not None:
        decision = decided if isinstance(decided, Decision) else ALLOWED
        if shown:
            decision = Decision(effect="deny", reason=held_text(wrapper).removeprefix("Not called: "))
        row = _row(decision, covering, shown=shown, inside=inside, profile=question.profile)
        return {**row, "decision": "deny", "visible": shown}
    call_rules = view.call_rules.get(wrapper.name)
    if call_rules is None:
        return _row(
            decided if isinstance(decided, Decision) else ALLOWED,
            covering,
            shown=True,
            inside=True,
            profile=question.profile,
        )
    decision = call_rules.decide(_as_checked(question.arguments, wrapper, view, registry))
    if question.arguments is None:
        by = (*call_rules.denied, *call_rules.asked, *(call_rules.allowed or ()))
        names = ", ".join(f"'{rule.name}'" for rule in by)
        decision = replace(
            decision, reason=f"the arguments decide, by the rules {names}; without any: {decision.reason}"
        )
    return _row(decision, covering, shown=True, inside=True, profile=question.profile)


def _as_checked(arguments: dict[str, Any] | None, wrapper: ToolWrapper, view: View, registry: Registry) -> Any:
    """Return the arguments as rules see them: repaired, and with the defaults of the configuration."""
    try:
        return prepare_shown(registry, view, wrapper, arguments).arguments
    except NotChecked:
        return arguments


def _row(
    decision: Decision, rules: Iterable[Rule], *, shown: bool, inside: bool, profile: str
) -> dict[str, Any]:  # fmt: skip
    """Return the decision of a view in words.

    Args:
        decision: What the rules say.
        rules: Those that concern the caller and the server.
        shown: Whether the caller's view has it: what the rules say of the rest of its server may hide it.
        inside: Whether the profile selects it.
        profile: The name of that.
    """
    names = [rule.name for rule in rules]
    if not shown and not inside:
        return {**_denied(f"the profile {profile} does not show it"), "rules": names}
    if not shown and decision.effect != "deny":
        return {**_denied("what the configuration or a rule says of its server or template hides it"), "rules": names}
    if shown and decision.hidden:
        # What stands for it is shown, as a template that the rules allow.
        decision = Decision(effect="allow", reason="a template that is shown stands for it")
    return {
        "decision": decision.effect,
        "rule": decision.rule,
        "reason": decision.reason,
        "visible": shown,
        "rules": names,
    }


def _denied(reason: str) -> dict[str, Any]:
    return {"decision": "deny", "rule": None, "reason": reason, "visible": False, "rules": []}
