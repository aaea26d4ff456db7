"""`/admin/policy`, `/admin/profiles` and `/admin/budget`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from gateway.access.oauth.claims import Rejected
from gateway.access.principal import LOCAL
from gateway.admin import rows
from gateway.admin.policy_explained import Question, explain, matrix, rows_of_unmatched_rules, rule_rows
from gateway.admin.routes import JsonDocument, Merge, Refusal, missing, route
from gateway.calls.profile_views import ProfileViews
from gateway.config.auth_config import AuthConfig
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from registry.catalog.registry import Registry
from registry.views.profile import DEFAULT_PROFILE
from registry.views.view import View

# The maximum number of callers in a matrix. A page can show this many columns. Each caller needs a separate view.
_MAX_CALLERS: Final = 50
_RULES: Final = {
    "default": "allow",
    "rules": [
        {
            "name": "transfers ask",
            "effect": "ask",
            "tools": 1,
            "whom": {"groups": ["interns"]},
            "what": {"tools": ["bank__wire*"]},
            "when": ["amount is above 100"],
        }
    ],
    "warnings": [],
}
_EXPLAINED: Final = {
    "principal": "ci",
    "groups": [],
    "scopes": [],
    "profile": "default",
    "name": "bank__wire",
    "kind": "tool",
    "server": "bank",
    "decision": "ask",
    "rule": "transfers ask",
    "reason": "the rule transfers ask requires the decision of a person",
    "visible": True,
    "rules": ["transfers ask"],
    "conditions": [{"rule": "transfers ask", "effect": "ask", "applies": True, "unmet": []}],
}
_MATRIX: Final = {
    "profile": "default",
    "callers": ["ci"],
    "tools": [{"name": "bank__wire", "server": "bank", "decisions": ["ask"]}],
}


class PolicyRoutes:
    """Shows the rules, and explains decisions."""

    def __init__(self, *, auth: Callable[[], AuthConfig], views: ProfileViews, registry: Registry) -> None:
        self._auth = auth
        self._views = views
        self._registry = registry

    @route("GET", "/admin/policy", merge=Merge.SAME, example=_RULES)
    async def policy(self, request: Request) -> Response:
        """Return the rules in use.

        Returns:
            `default`; `rules`: name, effect, the number of covered tools, `whom` and `what` (patterns by kind) and
            `when` (conditions in words) of each; `warnings`: the rules, patterns and conditions that match no tool,
            prompt or resource of any server.
        """
        # Use a thread, because every rule is compared with every tool.
        warnings = await run_in_thread(partial(rows_of_unmatched_rules, self._views, self._registry))
        rules = await run_in_thread(partial(rule_rows, self._views, self._registry))
        return JsonDocument(
            {
                "default": self._views.policy.default,
                "rules": rules,
                "warnings": warnings,
            }
        )

    @route("GET", "/admin/policy/explain", merge=Merge.SAME, example=_EXPLAINED)
    async def explain(self, request: Request) -> Response:
        """Explain why a caller may or may not use a tool, prompt or resource.

        Returns:
            `decision` (allow, deny, ask), `rule`, `reason`, `visible`, `kind`, `server`, `rules`, the resolved caller,
            and `conditions`: for each rule, its effect, whether it applies, and the conditions that are `unmet`.

        Query:
            principal: The caller: the name of a key, SUBJECT@ISSUER, or local.
            name: A wrapper, a prompt or a URI.
            profile: The profile through which the caller uses the wrapper, prompt or resource.
            arguments: The arguments of a call, as a JSON object.
            group: A group of the caller, in addition to the groups of the caller's key; may be repeated.
            scope: A scope of the caller; may be repeated.
            claim: A claim of the caller's token, as NAME=VALUE; may be repeated.

        Errors:
            400: A parameter is missing, or `arguments` is not an object.
        """
        question = read_question(request.query_params)
        explanation = await explain(question, auth=self._auth(), views=self._views, registry=self._registry)
        return JsonDocument(explanation)

    @route("GET", "/admin/policy/matrix", merge=Merge.SAME, rows="tools", filters=("server", "q"), example=_MATRIX)
    async def matrix(self, request: Request) -> Response:
        """Return which caller may use which tool.

        Returns:
            `profile`; `callers`; `tools`: name, server and `decisions` of each: allow, deny, ask, or depends (on the
            arguments), in the order of `callers`.

        Query:
            profile: The profile through which the callers use the tools.
            principal: A caller, as for the explanation; may be repeated. By default every key, or local.

        Errors:
            400: A caller cannot exist, or there are too many callers.
            404: The profile does not exist.
        """
        profile = request.query_params.get("profile", DEFAULT_PROFILE)
        if profile not in self._views.profiles:
            raise missing("profile", profile)
        auth = self._auth()
        keys = [key.name for key in auth.api_keys] or [LOCAL.name]
        requested = request.query_params.getlist("principal")
        callers = [*dict.fromkeys(requested or keys[:_MAX_CALLERS])]
        if len(callers) > _MAX_CALLERS:
            raise Refusal(400, f"there are {len(callers)} callers; expected at most {_MAX_CALLERS}")
        try:
            return JsonDocument(await matrix(profile, callers, auth=auth, views=self._views))
        except Rejected as error:
            raise Refusal(400, f"principal: {error.refusal.description}") from None
        except KeyError:
            raise missing("profile", profile) from None  # the profile has been removed since the check above


def read_question(query: QueryParams) -> Question:
    """Parse the query parameters of `/admin/policy/explain`.

    Raises:
        Refusal: A parameter is missing or malformed.
    """
    principal, name = query.get("principal"), query.get("name")
    if not principal or not name:
        raise Refusal(400, "expected ?principal= and ?name=")
    arguments = None
    if (text := query.get("arguments")) is not None:
        try:
            arguments = json_bytes.loads(text.encode())
        except json_bytes.MalformedJson:
            arguments = None
        if not isinstance(arguments, dict):
            raise Refusal(400, "arguments must be a JSON object")
    claims = [claim.partition("=") for claim in query.getlist("claim")]
    if not all(separator for _, separator, _ in claims):
        raise Refusal(400, "claim must be NAME=VALUE")
    return Question(
        principal=principal,
        name=name,
        profile=query.get("profile", DEFAULT_PROFILE),
        arguments=arguments,
        groups=frozenset(query.getlist("group")),
        scopes=frozenset(query.getlist("scope")),
        claims=frozenset((claim, value) for claim, _, value in claims),
    )


_PROFILE: Final[dict[str, Any]] = {
    "name": "default",
    "path": "/mcp",
    "url": None,
    "disclosure": "auto",
    "dialect": "mcp",
    "servers": ["calendar"],
    "tools": 4,
    "listed": 4,
    "warnings": [],
    "misfits": {},
    "weakened": [],
}
_BUDGET: Final = {
    "profile": "default",
    "maxTools": 100,
    "maxTokens": 20000,
    "tools": 7,
    "bytes": 4310,
    "tokens": 1061,
    "wrappers": [
        {"name": "calendar__list_events", "listed": True, "reason": "eager", "tokens": 282, "bytes": 1104},
    ],
}


class ProfileRoutes:
    """Shows the profiles, and the sizes of their tool lists."""

    def __init__(self, views: ProfileViews, mcp_url: Callable[[], str | None]) -> None:
        """Create the handlers.

        Args:
            views: The profiles.
            mcp_url: Returns the URL of `/mcp` if `/mcp` is served at another address than `/admin`, else None.
        """
        self._views = views
        self._mcp_url = mcp_url

    @route("GET", "/admin/profiles", merge=Merge.SAME, example={"profiles": [_PROFILE]})
    async def profiles(self, request: Request) -> Response:
        """Return every profile with its warnings.

        Returns:
            `profiles`: the row of each; `url` is not null if profiles are served at another address than `/admin`.
        """
        url, views = self._mcp_url(), await self._all_views()
        # Use a thread, because the schema of every tool is rewritten for each profile, in the JSON Schema dialect of
        # the profile's clients.
        profiles = [
            {**row, "url": None if url is None else url.removesuffix("/mcp") + row["path"]}
            for row in await run_in_thread(partial(rows.profile_rows, views))
        ]
        return JsonDocument({"profiles": profiles})

    @route("GET", "/admin/budget", merge=Merge.SAME, example={"profiles": [_BUDGET]})
    async def budget(self, request: Request) -> Response:
        """Return the size of each profile's tool list, and why each wrapper is listed or not.

        Returns:
            `profiles`: the number of listed tools, the bytes and tokens of the list, and the `wrappers` of each.
        """
        views = await self._all_views()
        return JsonDocument({"profiles": await run_in_thread(partial(rows.budget_rows, views))})

    async def _all_views(self) -> list[View]:
        views = []
        for name in [*self._views.profiles]:
            # A profile may be removed while the view of another profile is prepared.
            with suppress(KeyError):
                views.append(await self._views.prepared(name))
        return views
