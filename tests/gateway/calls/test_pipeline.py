"""The call pipeline on its seams: a registry, and links and a forwarder that do what each test says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio.lowlevel
import pytest

from gateway.access.principal import LOCAL
from gateway.access.signing import Signer
from gateway.audit.record import Audit
from gateway.calls.approval_book import ApprovalBook
from gateway.calls.approvals import Approvals
from gateway.calls.call_stats import CallStats
from gateway.calls.context import Caller
from gateway.calls.permission import Permission
from gateway.calls.pipeline import CallPipeline
from gateway.calls.profile_views import ProfileViews
from gateway.calls.task_ids import TaskIds
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.unknown_tool import UnknownToolErrors
from gateway.config.approvals import ApprovalsConfig
from gateway.config.audit import AuditConfig
from gateway.config.hooks import HookConfig
from gateway.errors import RpcError, UpstreamTimeout
from gateway.hooks import After, Answer, Before, Call, Hook, Result
from gateway.hooks.active import ActiveHooks
from gateway.hooks.hooked_request import PASS_THROUGH, Rejection
from gateway.hooks.runner import HookRunner
from gateway.upstream.oauth.sign_ins import SignIns
from gateway.upstream.user_links import UserLinks
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.shape import Shape
from registry.catalog.store import Registry

TEXT: dict[str, Any] = {"type": "string"}
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


def listing(*, epoch: int = 1, tool: str = "send", to: dict[str, Any] = TEXT) -> ServerListing:
    schema = {"type": "object", "properties": {"to": to}, "required": ["to"], "additionalProperties": False}
    definition = {"name": tool, "description": "Sends.", "inputSchema": schema}
    return ServerListing(server=ServerName("up"), epoch=epoch, tools=(definition,))


class FakeLink:
    """A link that is connected at an epoch; `wait_ready` runs what the test wants to have happened meanwhile."""

    patience_s = 0.0
    per_user = False
    owner = ""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self.state = SimpleNamespace(session=object())
        self.waits = 0
        self.on_wait: Callable[[], object] = lambda: None

    async def wait_ready(self, wait_s: float) -> None:
        self.waits += 1
        self.on_wait()


class FakeForwarder:
    """Records what would be sent, and answers with what the test says."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answer: Callable[[], dict[str, Any]] = lambda: dict(DONE)

    async def send(self, server: str, method: str, params: dict[str, Any], caller: Caller, **_: Any) -> Any:
        self.sent.append(params)
        return self.answer()


class Setup:
    """A pipeline with one upstream `up` and its tool `send`."""

    def __init__(self, *hooks: Hook) -> None:
        self.registry = Registry(Shape())
        self.registry.put(listing())
        self.link, self.forwarder, self.stats = FakeLink(), FakeForwarder(), CallStats()
        self.succeeded: list[str] = []
        self.stats = CallStats(on_success=lambda wrapper: self.succeeded.append(wrapper.name))
        self.hooks = ActiveHooks(
            self.registry, [HookRunner(hook, HookConfig(name=type(hook).__name__, use="test")) for hook in hooks]
        )
        self.views = ProfileViews(self.registry, {})
        links = cast("Any", {"up": self.link})
        users = UserLinks(cast("Any", None), cast("Any", None), SignIns(cast("Any", None)), links)
        self.pipeline = CallPipeline(
            registry=self.registry,
            links=links,
            users=users,
            forwarder=cast("Any", self.forwarder),
            task_ids=TaskIds(Signer(), self.hooks),
            unknown_tool=UnknownToolErrors(
                registry=self.registry,
                users=users,
                retired=lambda alias: False,
                successor=lambda alias: None,
                faulty=lambda alias: False,
            ),
            call_stats=self.stats,
            search_tools=cast("Any", None),
            hooks=self.hooks,
            thorough_checks=ThoroughChecks(cast("Any", None)),
            permission=Permission(self.registry),
            audit=(audit := Audit(AuditConfig(), None)),
            approvals=Approvals(
                ApprovalBook(ApprovalsConfig(), audit), Signer(), cast("Any", None), asked_by_default=lambda: None
            ),
        )

    def caller(self) -> Caller:
        return Caller(principal=LOCAL, view=self.views.view())

    async def call(self, arguments: Any, caller: Caller | None = None, name: str = "up__send") -> dict[str, Any]:
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller or self.caller())


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(item["text"] for item in result["content"])


async def test_a_call_sees_one_catalog_from_start_to_end() -> None:
    up = Setup()
    caller = up.caller()
    pinned = caller.view.catalog.get("up__send")
    assert pinned is not None
    # Of the same connection there is a later listing by now, in which these arguments would be wrong.
    up.registry.put(listing(to={"type": "integer"}))
    assert (await up.call({"to": "ann"}, caller))["content"] == DONE["content"]
    assert up.forwarder.sent[0]["arguments"] == {"to": "ann"}

    def changed_while_it_runs() -> dict[str, Any]:
        up.registry.drop(ServerName("up"))
        return {"content": [{"type": "text", "text": "'to' was not provided"}], "isError": True}

    up.forwarder.answer = changed_while_it_runs
    answer = await up.call({"to": "ann"}, caller)
    assert '"to":"' in text_of(answer).replace(" ", ""), "the hint is made of the definition that the call began with"


@pytest.mark.parametrize("connected", [True, False])
async def test_wrong_arguments_are_refused_before_anything_is_sent_or_waited_for(connected: bool) -> None:
    up = Setup()
    up.link.state.session = object() if connected else None
    answer = await up.call({"too": "ann", "x": 1})
    assert answer["isError"] is True
    assert "to" in text_of(answer)
    assert (up.forwarder.sent, up.link.waits) == ([], 0)
    assert {row["kind"] for row in up.stats.failure_rows()} >= {"argument_missing"}


async def test_a_name_that_is_unknown_is_no_call() -> None:
    up = Setup()
    with pytest.raises(RpcError, match="Unknown tool: nothing"):
        await up.call({}, name="nothing")
    assert up.stats.calls == {}


async def test_on_another_epoch_a_call_is_resolved_once_and_sent_once() -> None:
    up = Setup()
    up.link.epoch = 2
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2))
    assert (await up.call({"to": "ann"}))["content"] == DONE["content"]
    assert (len(up.forwarder.sent), up.link.waits) == (1, 1)


async def test_on_another_epoch_a_changed_tool_is_checked_again_before_anything_is_sent() -> None:
    up = Setup()
    up.link.epoch = 2
    caller = up.caller()
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2, to={"type": "array", "items": {"type": "integer"}}))
    answer = await up.call({"to": "ann"}, caller)
    assert answer["isError"] is True
    assert (up.forwarder.sent, up.link.waits) == ([], 1)


async def test_on_another_epoch_a_tool_that_is_gone_is_named_as_gone() -> None:
    up = Setup()
    up.link.epoch = 2
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2, tool="post"))
    assert "no longer has the tool 'send'" in text_of(await up.call({"to": "ann"}))
    assert up.forwarder.sent == []


class Rewrites(Hook):
    """Sends to somebody else: to whom, its configuration says."""

    async def before_call(self, call: Call) -> Before:
        return call.with_args({"to": self.config["to"]})


async def test_what_a_hook_has_rewritten_is_checked_again_and_then_sent() -> None:
    up = Setup(Rewrites({"to": "bob"}))
    await up.call({"to": "ann"})
    assert [params["arguments"] for params in up.forwarder.sent] == [{"to": "bob"}]


async def test_what_a_hook_has_spoilt_is_refused_and_not_sent() -> None:
    up = Setup(Rewrites({"to": 5}))
    answer = await up.call({"to": "ann"})
    assert "hook 'Rewrites' changed the arguments so that they do not fit any more" in text_of(answer)
    assert up.forwarder.sent == []


class Waits(Hook):
    """Changes the tool while the call waits for it, as a slow hook may see."""

    async def before_call(self, call: Call) -> Before:
        await anyio.lowlevel.checkpoint()
        self.config["meanwhile"]()
        return None


async def test_a_tool_that_changed_while_hooks_ran_is_checked_again() -> None:
    change: dict[str, Any] = {}
    up = Setup(Waits(change))
    change["meanwhile"] = lambda: up.registry.put(listing(to={"type": "integer"}))
    answer = await up.call({"to": "ann"})
    assert "the tool has changed" in text_of(answer)
    assert up.forwarder.sent == []


class Answers(Hook):
    """Answers in place of the upstream."""

    async def before_call(self, call: Call) -> Before:
        return Answer(value={"content": [{"type": "text", "text": "from the hook"}]})


async def test_an_answer_of_a_hook_says_nothing_about_its_tool() -> None:
    up = Setup(Answers({}))
    assert text_of(await up.call({"to": "ann"})) == "from the hook"
    assert (up.forwarder.sent, up.succeeded) == ([], [])
    without = Setup()
    await without.call({"to": "ann"})
    assert without.succeeded == ["up__send"]


class Sees(Hook):
    """Remembers every result."""

    async def after_call(self, call: Call, result: Result) -> After:
        self.config["seen"].append(result.value)
        return None


async def test_hooks_see_what_an_upstream_could_not_do_and_it_is_counted() -> None:
    seen: list[Any] = []
    up = Setup(Sees({"seen": seen}))

    def times_out() -> dict[str, Any]:
        raise UpstreamTimeout("up", "Server 'up' did not answer in time.")

    up.forwarder.answer = times_out
    answer = await up.call({"to": "ann"})
    assert answer["isError"] is True
    assert [text_of(result) for result in seen] == [text_of(answer)]
    assert [row["kind"] for row in up.stats.failure_rows()] == ["timeout"]
    assert dict(up.stats.calls) == {("up", "send", "wrapper", "error_result"): 1}


async def test_a_call_without_hooks_passes_through_an_invocation_that_does_nothing() -> None:
    up = Setup()
    wrapper = up.registry.catalog.get("up__send")
    assert wrapper is not None
    assert up.hooks.tool_call(wrapper, "wrapper", up.caller()) is PASS_THROUGH

    class Request:
        async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
            raise AssertionError("nothing is revised where nobody has changed anything")

        def send(self) -> Any:
            return DONE  # what is returned here is what the pipeline awaits: there is no coroutine in between

    with PASS_THROUGH as invocation:
        assert invocation.send({}, Request()) is DONE
    assert await PASS_THROUGH.after(DONE) is DONE
    assert await PASS_THROUGH.after_error(RpcError(1, "x")) is None
    assert PASS_THROUGH.answer is None
    arguments = {"to": "ann"}
    await up.call(arguments)
    assert up.forwarder.sent[0]["arguments"] is arguments
