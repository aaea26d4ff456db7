"""The explanation of a decision equals the decision of the gateway."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.oauth.claims import Rejected, principal_of
from gateway.access.principal import Principal
from gateway.access.signing import Signer
from gateway.admin.policy_explained import Question, explain, matrix, principal_in, rule_rows
from gateway.audit.recording import Audit
from gateway.calls.advice.unknown_tool import UnknownToolErrors
from gateway.calls.approval_requests import Verdict
from gateway.calls.call_stats import CallStats
from gateway.calls.call_targets import Permission
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import TaskIds
from gateway.calls.item_requests import PromptsAndResources
from gateway.calls.pipeline import CallPipeline, ExposedNames
from gateway.calls.profile_views import ProfileViews
from gateway.calls.results import ResourceUris
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.tool_call import CallParts
from gateway.config.auth_config import AuthConfig
from gateway.config.operation_config import AuditConfig
from gateway.hooks.hook_loading import ActiveHooks
from gateway.protocol.gateway_errors import RpcError, error_result
from gateway.upstream.caller_links import UserLinks
from gateway.upstream.oauth.sign_ins import SignIns
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import ServerShape, Shape
from registry.policy.policy import Policy
from registry.policy.rules import KINDS, ArgumentCondition, CallerPatterns, Conditions, ItemPatterns, Rule
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
    """All parts that decide, with servers that answer every request."""

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
            patience_s=0.0,
            per_user=False,
            has_instances=False,
            owner="",
            epoch=1,
            state=SimpleNamespace(session=object()),
            session=object(),
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
        parts = CallParts(
            registry=self.registry,
            forwarder=cast("Any", self),
            thorough_checks=ThoroughChecks(cast("Any", None)),
            unknown_tool=unknown,
            permission=Permission(self.registry),
            audit=audit,
            result_parts=cast("Any", None),
        )
        uris = ResourceUris()
        self.pipeline = CallPipeline(
            parts,
            links=links,
            users=users,
            names=ExposedNames(task_ids=tasks, resource_uris=uris),
            call_stats=CallStats(),
            search_tools=cast("Any", None),
            hooks=self.hooks,
            approvals=cast("Any", self),
        )
        self.others = PromptsAndResources(
            registry=self.registry,
            forwarder=cast("Any", self),
            task_ids=tasks,
            hooks=self.hooks,
            resource_uris=uris,
            result_parts=cast("Any", None),
        )
        self.seen = ""

    # as a forwarder, and as what asks persons

    async def send(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.seen = "allow"
        return {"content": [], "messages": [], "contents": []}

    def connected(self, server: str, caller: Caller) -> bool:
        return True

    async def request_approval(self, *_: Any, **__: Any) -> Verdict:
        self.seen = "ask"
        return Verdict(answer=error_result("asked"), params={}, question=cast("Any", None))

    # returns the outcome of a request

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
    CallerPatterns,
    principals=st.none() | st.tuples(st.sampled_from(["*", "ann@*", "bob@id.test", "ci"])),
    groups=st.none() | st.tuples(names),
    scopes=st.none() | st.tuples(st.sampled_from(["tools", "mcp", "openid", "*:read"])),
    claims=st.just({}) | st.builds(lambda value: {"tenant": (value,)}, st.sampled_from(["a", "7", "*"])),
)
patterns = st.sampled_from(
    ["*", "bank__*", "*__read", "db://main/*", "db://main/{table}", "*secret*", "*__greet", "m*"]
)
what = st.builds(
    ItemPatterns,
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
    """Return the question of an administrator about a caller whose token has these claims."""
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
@pytest.mark.heavy
async def test_policy_explanation_agrees_with_the_decision_for_every_token(
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
async def test_unknown_scopes_restrict_nothing(scope: str) -> None:
    gateway = Gateway(Policy())
    found = await explain(
        question_about({"scope": scope}, "bank__wire", {}, "default", ISSUER),
        auth=AUTH, views=gateway.views, registry=gateway.registry,
    )  # fmt: skip
    assert (found["decision"], found["scopes"], found["visible"]) == ("allow", [], True)


async def test_rule_about_token_scopes_is_explained_as_it_decides() -> None:
    rule = Rule(
        name="partners",
        effect="deny",
        who=CallerPatterns(scopes=("partner",)),
        what=ItemPatterns(patterns=("*__wire",)),
    )
    gateway = Gateway(Policy([rule]))
    question = question_about({"scope": "partner"}, "bank__wire", {}, "default", ISSUER)
    found = await explain(question, auth=AUTH, views=gateway.views, registry=gateway.registry)
    assert (found["decision"], found["rule"], found["visible"]) == ("deny", "partners", False)


async def test_token_without_required_scopes_is_refused_with_the_reason() -> None:
    gateway = Gateway(Policy())
    for scope, decision in (("openid", "deny"), ("mcp", "allow"), ("", "allow")):
        question = question_about({"scope": scope}, "bank__wire", {}, "default", "https://strict.test")
        found = await explain(question, auth=AUTH, views=gateway.views, registry=gateway.registry)
        assert found["decision"] == decision
    with pytest.raises(Rejected):
        principal_in(question_about({"scope": "openid"}, "x", {}, "default", "https://strict.test"), AUTH)


async def test_explanation_applies_defaults_and_repairs_like_a_call() -> None:
    large = Conditions(arguments=(ArgumentCondition(path="amount", above=1_000),))
    gateway = Gateway(Policy([Rule(name="small", effect="deny", conditions=large)]))
    for arguments, decision in (({}, "deny"), ({"amount": "1"}, "allow"), ({"amount": "5000"}, "deny")):
        question = Question(principal="local", name="bank__wire", arguments=arguments)
        found = await explain(question, auth=AuthConfig(), views=gateway.views, registry=gateway.registry)
        assert found["decision"] == decision


async def test_explanation_for_a_key_uses_its_groups_and_scopes() -> None:
    gateway = Gateway(Policy())
    for name, decision in (("bank__read", "allow"), ("bank__wire", "deny"), ("invoke_tool", "allow")):
        found = await explain(
            Question(principal="ci", name=name), auth=AUTH, views=gateway.views, registry=gateway.registry
        )
        assert (found["decision"], found["groups"]) == (decision, ["staff"])


STAFF = Rule(name="staff", effect="allow", who=CallerPatterns(groups=("staff",)), what=ItemPatterns(servers=("bank",)))
SMALL = Rule(
    name="small",
    effect="ask",
    who=CallerPatterns(principals=("bob*",), claims={"tenant": ("a",)}),
    what=ItemPatterns(wrappers=("*__wire",), tags=("money",)),
    conditions=Conditions(hints={"readOnlyHint": False}, arguments=(ArgumentCondition(path="amount", above=1_000),)),
    asks="administrator",
)


async def test_explanation_names_each_condition_that_is_not_met() -> None:
    gateway = Gateway(Policy([STAFF, SMALL], default="deny"))

    async def unmet(name: str, principal: str, arguments: Any = None) -> dict[str, list[str]]:
        question = Question(principal=principal, name=name, arguments=arguments)
        found = await explain(question, auth=AuthConfig(), views=gateway.views, registry=gateway.registry)
        return {row["rule"]: row["unmet"] for row in found["conditions"]}

    found = await unmet("mail__list", "bob")
    assert found["staff"] == ["a group of the caller is not staff", "the server is not bank"]
    assert found["small"] == [
        "the claim tenant is not a",
        "a tag of the server is not money",
        "the tool is not *__wire",
        "readOnlyHint is true",
        "it depends on the arguments: amount is above 1000",
    ]
    found = await unmet("bank__wire", "ann", {"amount": 5})
    assert found["small"] == ["the caller is not bob*", "the claim tenant is not a", "not: amount is above 1000"]
    question = Question(principal="ann", name="bank__wire", groups=frozenset({"staff"}))
    explained = await explain(question, auth=AuthConfig(), views=gateway.views, registry=gateway.registry)
    assert explained["conditions"][0] == {"rule": "staff", "effect": "allow", "applies": True, "unmet": []}


async def test_explanation_names_conditions_that_prompts_and_resources_do_not_meet() -> None:
    main = Rule(name="main", effect="allow", what=ItemPatterns(patterns=("db://main/*", "*__greet")))
    writes = Rule(name="writes", effect="deny", conditions=Conditions(hints={"readOnlyHint": False}))
    prompts = Rule(name="prompts", effect="deny", what=ItemPatterns(kinds=frozenset({"prompts"}), servers=("mail",)))
    gateway = Gateway(Policy([main, writes, prompts, SMALL], default="deny"))

    async def unmet(name: str) -> dict[str, list[str]]:
        asked = Question(principal="bob", name=name, claims=frozenset({("tenant", "a")}))
        found = await explain(asked, auth=AuthConfig(), views=gateway.views, registry=gateway.registry)
        assert (found["rule"] == "main") == (found["decision"] == "allow")
        return {row["rule"]: row["unmet"] for row in found["conditions"]}

    asks = ["it asks about tools, not {0}", "readOnlyHint is true for {0}"]
    asks = ["it covers tools, not {0}", *asks, "it depends on arguments of tools: amount is above 1000"]
    assert await unmet("bank__greet") == {
        "main": [],
        "writes": ["readOnlyHint is true for prompts"],
        "prompts": ["the server is not mail"],
        "small": [text.format("prompts") for text in asks],
    }
    assert (await unmet("mail__letter"))["main"] == ["the name is not db://main/* or *__greet"]
    assert await unmet("db://other/x") == {
        "main": ["the URI is not db://main/* or *__greet"],
        "writes": ["readOnlyHint is true for resources"],
        "prompts": ["it covers prompts, not resources", "the server is not mail"],
        "small": [text.format("resources") for text in asks],
    }
    assert (await unmet("db://main/rows"))["main"] == []
    assert await unmet("bank__nothing") == {}


async def test_rules_are_described_by_whom_what_and_when() -> None:
    gateway = Gateway(Policy([STAFF, SMALL]))
    first, second = rule_rows(gateway.views, gateway.registry)
    assert (first["whom"], first["what"], first["when"]) == ({"groups": ["staff"]}, {"servers": ["bank"]}, [])
    assert second["whom"] == {"principals": ["bob*"], "claim tenant": ["a"]}
    assert second["what"] == {"tags": ["money"], "tools": ["*__wire"]}
    assert second["when"] == ["readOnlyHint is false", "amount is above 1000", "decided by the administrator"]


async def test_matrix_agrees_with_the_explanations() -> None:
    no_list = Rule(
        name="no list", effect="deny", who=CallerPatterns(principals=("bob",)), what=ItemPatterns(patterns=("*__list",))
    )
    ask = Rule(name="ask", effect="ask", what=ItemPatterns(patterns=("*__send",)))
    large = Rule(name="large", effect="deny", what=ItemPatterns(patterns=("*__wire",)), conditions=SMALL.conditions)
    gateway = Gateway(Policy([no_list, ask, large]))
    found = await matrix("default", ["ci", "bob"], auth=AUTH, views=gateway.views)
    assert found["callers"] == ["ci", "bob"]
    cells = {row["name"]: row["decisions"] for row in found["tools"]}
    assert cells == {
        "bank__wire": ["deny", "depends"],
        "bank__read": ["allow", "allow"],
        "mail__send": ["deny", "ask"],
        "mail__list": ["allow", "deny"],
    }
    for name in ("bank__read", "mail__send", "mail__list"):
        for at, caller in enumerate(found["callers"]):
            one = await explain(
                Question(principal=caller, name=name), auth=AUTH, views=gateway.views, registry=gateway.registry
            )
            assert one["decision"] == cells[name][at]


async def test_other_requests_are_answered_while_decisions_are_explained() -> None:
    gateway = Gateway(Policy())
    question = Question(principal="ci", name="bank__wire")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    await matrix("default", ["ci", "bob"], auth=AUTH, views=gateway.views)  # prepares the views
    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        await anyio.lowlevel.checkpoint()
        before = turns
        await explain(question, auth=AUTH, views=gateway.views, registry=gateway.registry)
        between = turns
        await matrix("default", ["ci", "bob"], auth=AUTH, views=gateway.views)
        assert before < between < turns
        group.cancel_scope.cancel()
