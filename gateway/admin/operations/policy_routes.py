"""`/admin/policy`: the rules, and why they decide as they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from gateway import wire
from gateway.admin.documents import JsonDocument, Refusal
from gateway.admin.policy_explained import Question, explain, rule_rows, vain_rules
from gateway.admin.routes import Merge, route
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth import AuthConfig
from gateway.worker_thread import run_in_thread
from registry.catalog.store import Registry
from registry.views.profile import DEFAULT_PROFILE

_RULES: Final = {
    "default": "allow", "rules": [{"name": "transfers ask", "effect": "ask", "tools": 1}], "warnings": [],
}  # fmt: skip
_EXPLAINED: Final = {
    "principal": "ci", "groups": [], "scopes": [], "profile": "default", "name": "bank__wire", "kind": "tool",
    "server": "bank", "decision": "ask", "rule": "transfers ask", "reason": "the rule transfers ask wants a person",
    "visible": True, "rules": ["transfers ask"],
}  # fmt: skip


class PolicyRoutes:
    """Answers questions about rules."""

    def __init__(self, *, auth: Callable[[], AuthConfig], views: ProfileViews, registry: Registry) -> None:
        """Answer about these.

        Args:
            auth: The keys, as they are configured at present.
            views: Profiles and rules.
            registry: What there is to use.
        """
        self._auth = auth
        self._views = views
        self._registry = registry

    @route("GET", "/admin/policy", merge=Merge.SAME, example=_RULES)
    async def policy(self, request: Request) -> Response:
        """The rules in use.

        Returns:
            `default`; `rules`: name, effect and the number of tools that each covers; `warnings`: rules, patterns and
            conditions that can never apply to what servers list.
        """
        warnings = await run_in_thread(partial(vain_rules, self._views, self._registry))
        return JsonDocument(
            {
                "default": self._views.policy.default,
                "rules": rule_rows(self._views, self._registry),
                "warnings": warnings,
            }
        )

    @route("GET", "/admin/policy/explain", merge=Merge.SAME, example=_EXPLAINED)
    async def explain(self, request: Request) -> Response:
        """Why a caller may use something, or may not.

        Returns:
            `decision` (allow, deny, ask), `rule`, `reason`, `visible`, `kind`, `server`, `rules`, and the caller as it
            was understood.

        Query:
            principal: The caller: the name of a key, SUBJECT@ISSUER, or local.
            name: A wrapper, a prompt or a URI.
            profile: The profile through which it is used.
            arguments: Those of a call, as a JSON object.
            group: A group of the caller beside those of its key; may be repeated.
            scope: A scope of the caller; may be repeated.
            claim: A claim of the caller's token, as NAME=VALUE; may be repeated.

        Errors:
            400: The question is incomplete, or its arguments are no object.
        """
        asked = read_question(request.query_params)
        found = await explain(asked, auth=self._auth(), views=self._views, registry=self._registry)
        return JsonDocument(found)


def read_question(query: QueryParams) -> Question:
    """The question in a query.

    Raises:
        Refusal: It is incomplete.
    """
    principal, name = query.get("principal"), query.get("name")
    if not principal or not name:
        raise Refusal(400, "expected ?principal= and ?name=")
    arguments = None
    if (text := query.get("arguments")) is not None:
        try:
            arguments = wire.loads(text.encode())
        except wire.MalformedJson:
            arguments = None
        if not isinstance(arguments, dict):
            raise Refusal(400, "arguments has to be a JSON object")
    claims = [claim.partition("=") for claim in query.getlist("claim")]
    if not all(separator for _, separator, _ in claims):
        raise Refusal(400, "claim has to be NAME=VALUE")
    return Question(
        principal=principal,
        name=name,
        profile=query.get("profile", DEFAULT_PROFILE),
        arguments=arguments,
        groups=frozenset(query.getlist("group")),
        scopes=frozenset(query.getlist("scope")),
        claims=frozenset((claim, value) for claim, _, value in claims),
    )
