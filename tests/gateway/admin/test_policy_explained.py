"""What is said of a decision is what the gateway decides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.oauth.claims import Rejected, principal_of
from gateway.access.principal import Principal
from gateway.access.signing import Signer
from gateway.admin.policy_explained import Question, explain, principal_in
from gateway.audit.record import Audit
from gateway.calls.approvals import Verdict
from gateway.calls.call_stats import CallStats
from gateway.calls.context import Caller
from gateway.calls.permission import Permission
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.prompts_and_resources import PromptsAndResources
from gateway.calls.task_ids import TaskIds
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.config.audit import AuditConfig
from gateway.config.auth import AuthConfig
from gateway.errors import RpcError, error_result
from gateway.hooks.active import ActiveHooks
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.user_links import UserLinks
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape, Shape
from registry.catalog.store import Registry
from registry.policy.conditions import ArgumentCondition, Conditions
from registry.policy.policy import Policy
from registry.policy.rules import KINDS, Rule, What, Who
from registry.views.profile import Profile, Selection

ISSUER = "https://id.test"
AUTH = AuthConfig.model_validate(
    {
        "oauth": {
            "issuers": [
                {"issuer": ISSUER, "audiences": ["https://gw.test/mcp"], "requiredScopes": []},
                {"issuer": "https://strict.test", "audiences": ["gw"], "requiredScopes": ["mcp"]},
            ]
        },
        "apiKeys": [{"name": "ci", "key": "the-key-of-ci", "groups": ["staff"], "scopes": ["tools:read"]}],
    }
)
AMOUNT = {"type": "object", "properties": {"amount": {"type": "number"}, "note": {"type": "string"}}}
TOOLS = ("bank__wire", "bank__read", "mail__send", "mail__list")
PROMPTS = ("bank__greet", "mail__letter")
URIS = ("db://main/rows", "db://main/secret", "db://other/x", "mem://note/1", "db://main/../main/secret", "http://x")
ARGUMENTS: tuple[dict[str, Any] | None, ...] = ({}, {"amount": 5}, {"amount": "5000"}, {"amount": 5000, "note": "a"})


def server(name: str, *tools: str, **members: Any) -> ServerListing:
    return ServerListing(
        server=ServerName(name),
        epoch=1,
        tools=tuple(
            {"name": tool, "inputSchema": AMOUNT, "annotations": {"readOnlyHint": tool in ("read", "list")}}
            for tool in tools
        ),
        capabilities={"tools": {}, "prompts": {}, "resources": {}},
        **members,
    )


class Gateway:
    """Everything that decides, with servers that answer to whatever reaches them."""

    def __init__(self, policy: Policy) -> None:
        shapes = {
            ServerName("bank"): ServerShape(tags=("money",), defaults={"amount": 2000}),
            ServerName("mail"): ServerShape(),
        }
        self.registry = Registry(Shape(servers=shapes))
        self.registry.put(
            server(
                "bank", "wire", "read", prompts=({"name": "greet"},),
                resources=({"uri": "db://main/rows", "name": "rows"},),
                templates=({"uriTemplate": "db://main/{table}", "name": "table"},),
            )
        )  # fmt: skip
        resources = ({"uri": "mem://note/1", "name": "n"},)
        self.registry.put(server("mail", "send", "list", prompts=({"name": "letter"},), resources=resources))
        profiles = {"some": Profile(name="some", selection=Selection(servers=("bank",), resources=("db://main/*",)))}
        self.views = ProfileViews(self.registry, profiles, policy)
        link = SimpleNamespace(
            patience_s=0.0, per_user=False, owner="", epoch=1, state=SimpleNamespace(session=object()), session=object()
        )
        links = cast("Any", {"bank": link, "mail": link})
        users = UserLinks(cast("Any", None), cast("Any", None), SignIns(cast("Any", None)), links)
        self.hooks = ActiveHooks(self.registry)
        audit = Audit(AuditConfig(), None)
        unknown = UnknownToolErrors(
            registry=self.registry,
            users=users,
            retired=lambda alias: False,
            successor=lambda alias: None,
            faulty=lambda alias: False,
        )
        tasks = TaskIds(Signer(), self.hooks)
        self.pipeline = CallPipeline(
            registry=self.registry,
            links=links,
            users=users,
            forwarder=cast("Any", self),
            task_ids=tasks,
            unknown_tool=unknown,
            call_stats=CallStats(),
            search_tools=cast("Any", None),
            hooks=self.hooks,
            thorough_checks=ThoroughChecks(cast("Any", None)),
            permission=Permission(self.registry),
            audit=audit,
            approvals=cast("Any", self),
        )
        self.others = PromptsAndResources(
            registry=self.registry, forwarder=cast("Any", self), task_ids=tasks, hooks=self.hooks
        )
        self.seen = ""

    # as a forwarder, and as what asks persons

    async def send(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.seen = "allow"
        return {"content": [], "messages": [], "contents": []}

    def connected(self, server: str, caller: Caller) -> bool:
        return True

    async def ask(self, *_: Any, **__: Any) -> Verdict:
        self.seen = "ask"
        return Verdict(answer=error_result("asked"), params={}, question=cast("Any", None))

    # what becomes of a request

    async def decided(self, name: str, arguments: Any, who: Principal, profile: str) -> str:
        if profile not in self.views.profiles or not who.may_enter(profile):
            return "deny"
        caller = Caller(principal=who, view=self.views.view(profile, who))
        self.seen = "deny"
        try:
            if name in PROMPTS:
                await self.others.get_prompt({"name": name}, caller)
            elif ":" in name:
                await self.others.read_resource({"uri": name}, caller)
            else:
                await self.pipeline.call({"name": name, "arguments": arguments}, caller)
        except RpcError:
            return "deny"
        return self.seen


names = st.sampled_from(["*", "staff", "inter*", "nobody"])
who = st.builds(
    Who,
    principals=st.none() | st.tuples(st.sampled_from(["*", "ann@*", "bob@id.test", "ci"])),
    groups=st.none() | st.tuples(names),
    scopes=st.none() | st.tuples(st.sampled_from(["tools", "mcp", "openid", "*:read"])),
    claims=st.just({}) | st.builds(lambda value: {"tenant": (value,)}, st.sampled_from(["a", "7", "*"])),
)
patterns = st.sampled_from(
    ["*", "bank__*", "*__read", "db://main/*", "db://main/{table}", "*secret*", "*__greet", "m*"]
)
what = st.builds(
    What,
    kinds=st.just(frozenset(KINDS)) | st.frozensets(st.sampled_from(KINDS), min_size=1),
    servers=st.none() | st.tuples(st.sampled_from(["bank", "mail", "*"])),
    tags=st.none() | st.just(("money",)),
    patterns=st.none() | st.tuples(patterns),
    wrappers=st.none() | st.tuples(st.sampled_from(["bank__*", "*__send"])),
)
conditions = st.builds(
    Conditions,
    hints=st.just({}) | st.builds(lambda value: {"readOnlyHint": value}, st.booleans()),
    arguments=st.just(())
    | st.builds(lambda bound: (ArgumentCondition(path="amount", above=bound),), st.sampled_from([10, 1_000])),
)
rules = st.lists(
    st.builds(
        Rule,
        name=st.just("r"),
        effect=st.sampled_from(["allow", "deny", "ask"]),
        who=who,
        what=what,
        conditions=conditions,
    ),
    max_size=4,
)
words = st.sampled_from(["tools", "tools:read", "prompts", "mcp", "openid", "resources:read"])
tokens = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.lists(words, max_size=3).map(" ".join),
        "groups": st.lists(st.sampled_from(["staff", "interns"]), max_size=2, unique=True),
        "tenant": st.sampled_from(["a", "b", 7, ["a", "b"]]),
        "hasgroups": st.just(True),
    },
)


def question_about(claims: dict[str, Any], name: str, arguments: Any, profile: str, issuer: str) -> Question:
    """What an administrator asks about the holder of a token that says this."""
    values = claims.get("tenant", [])
    pairs = {("tenant", str(value)) for value in (values if isinstance(values, list) else [values])}
    if claims.get("hasgroups"):
        pairs.add(("hasgroups", "true"))
    return Question(
        principal=f"ann@{issuer.removeprefix('https://')}",
        name=name,
        profile=profile,
        arguments=arguments,
        groups=frozenset(claims.get("groups", [])),
        scopes=frozenset(claims.get("scope", "").split()),
        claims=frozenset(pairs),
    )


@given(rules, st.sampled_from(["allow", "deny"]), tokens, st.sampled_from(["default", "some", "missing"]))
@settings(max_examples=150)
async def test_explanation_and_decision_agree_for_every_token(
    rules: list[Rule], default: Any, claims: dict[str, Any], profile: str
) -> None:
    rules = [replace(rule, name=f"rule {at}") for at, rule in enumerate(rules)]
    gateway = Gateway(Policy(rules, default=default))
    [issuer, _] = AUTH.oauth.issuers if AUTH.oauth is not None else []
    usual = {"iss": ISSUER, "aud": "https://gw.test/mcp", "sub": "ann", "exp": 2_000_000_000}
    holder = principal_of({**usual, **claims}, issuer, resource=None, now_s=1_900_000_000)
    for name in (*TOOLS, *PROMPTS, *URIS, "bank__nothing"):
        for arguments in ARGUMENTS if name in TOOLS else ({},):
            found = await explain(
                question_about(claims, name, arguments, profile, ISSUER),
                auth=AUTH, views=gateway.views, registry=gateway.registry,
            )  # fmt: skip
            assert found["decision"] == await gateway.decided(name, arguments, holder, profile), found


@pytest.mark.parametrize("scope", ["mcp", "openid profile", "api.read"])
async def test_scopes_that_are_not_ours_restrict_nobody(scope: str) -> None:
    gateway = Gateway(Policy())
    found = await explain(
        question_about({"scope": scope}, "bank__wire", {}, "default", ISSUER),
        auth=AUTH, views=gateway.views, registry=gateway.registry,
    )  # fmt: skip
    assert (found["decision"], found["scopes"], found["visible"]) == ("allow", [], True)


async def test_a_rule_about_scopes_of_a_token_is_explained_as_it_decides() -> None:
    rule = Rule(name="partners", effect="deny", who=Who(scopes=("partner",)), what=What(patterns=("*__wire",)))
    gateway = Gateway(Policy([rule]))
    asked = question_about({"scope": "partner"}, "bank__wire", {}, "default", ISSUER)
    found = await explain(asked, auth=AUTH, views=gateway.views, registry=gateway.registry)
    assert (found["decision"], found["rule"], found["visible"]) == ("deny", "partners", False)


async def test_a_token_that_lacks_what_its_issuer_requires_is_refused_with_the_reason() -> None:
    gateway = Gateway(Policy())
    for scope, decision in (("openid", "deny"), ("mcp", "allow"), ("", "allow")):
        asked = question_about({"scope": scope}, "bank__wire", {}, "default", "https://strict.test")
        found = await explain(asked, auth=AUTH, views=gateway.views, registry=gateway.registry)
        assert found["decision"] == decision
    with pytest.raises(Rejected):
        principal_in(question_about({"scope": "openid"}, "x", {}, "default", "https://strict.test"), AUTH)


async def test_defaults_and_repairs_count_as_they_do_in_a_call() -> None:
    large = Conditions(arguments=(ArgumentCondition(path="amount", above=1_000),))
    gateway = Gateway(Policy([Rule(name="small", effect="deny", conditions=large)]))
    for arguments, decision in (({}, "deny"), ({"amount": "1"}, "allow"), ({"amount": "5000"}, "deny")):
        asked = Question(principal="local", name="bank__wire", arguments=arguments)
        found = await explain(asked, auth=AuthConfig(), views=gateway.views, registry=gateway.registry)
        assert found["decision"] == decision


async def test_the_holder_of_a_key_has_its_groups_and_scopes() -> None:
    gateway = Gateway(Policy())
    for name, decision in (("bank__read", "allow"), ("bank__wire", "deny"), ("invoke_tool", "allow")):
        found = await explain(
            Question(principal="ci", name=name), auth=AUTH, views=gateway.views, registry=gateway.registry
        )
        assert (found["decision"], found["groups"]) == (decision, ["staff"])
