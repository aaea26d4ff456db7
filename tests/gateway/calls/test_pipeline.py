"""The call pipeline on its seams: a registry, and links and a forwarder that do what each test says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio.lowlevel
import pytest

from gateway.access.principal import LOCAL
from gateway.access.signing import Signer
from gateway.audit.recording import Audit
from gateway.calls.advice.unknown_tool import UnknownToolErrors
from gateway.calls.approval_requests import Approvals
from gateway.calls.approval_store import ApprovalStore
from gateway.calls.call_stats import CallStats
from gateway.calls.call_targets import Permission
from gateway.calls.caller import Caller
from gateway.calls.caller_ids import TaskIds
from gateway.calls.pipeline import CallPipeline, ExposedNames
from gateway.calls.profile_views import ProfileViews
from gateway.calls.results import ResourceUris
from gateway.calls.thorough_checks import ThoroughChecks
from gateway.calls.tool_call import CallParts
from gateway.config.hooks_config import HookConfig
from gateway.config.operation_config import ApprovalsConfig, AuditConfig
from gateway.hooks import After, Answer, Before, Call, Hook, Result
from gateway.hooks.hook_loading import ActiveHooks
from gateway.hooks.invocation import PASS_THROUGH, Rejection
from gateway.hooks.runner import HookRunner
from gateway.protocol.gateway_errors import RpcError, UpstreamTimeout
from gateway.upstream.caller_links import UserLinks
from gateway.upstream.oauth.sign_ins import SignIns
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape

TEXT: dict[str, Any] = {"type": "string"}
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


def listing(*, epoch: int = 1, tool: str = "send", to: dict[str, Any] = TEXT) -> ServerListing:
    schema = {"type": "object", "properties": {"to": to}, "required": ["to"], "additionalProperties": False}
    definition = {"name": tool, "description": "Sends.", "inputSchema": schema}
    return ServerListing(server=ServerName("up"), epoch=epoch, tools=(definition,))


class FakeLink:
    """A link that is connected at an epoch; `wait_ready` runs the action that the test has prepared."""

    patience_s = 0.0
    per_user = has_instances = False
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
    """Records each call, and returns the answer that the test has set."""

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
        parts = CallParts(
            registry=self.registry,
            forwarder=cast("Any", self.forwarder),
            thorough_checks=ThoroughChecks(cast("Any", None)),
            unknown_tool=UnknownToolErrors(
                registry=self.registry,
                users=users,
                retired=lambda alias: False,
                successor=lambda alias: None,
                faulty=lambda alias: False,
            ),
            permission=Permission(self.registry),
            audit=(audit := Audit(AuditConfig(), None)),
            result_parts=cast("Any", None),
        )
        self.pipeline = CallPipeline(
            parts,
            links=links,
            users=users,
            names=ExposedNames(task_ids=TaskIds(Signer(), self.hooks), resource_uris=ResourceUris()),
            call_stats=self.stats,
            search_tools=cast("Any", None),
            hooks=self.hooks,
            approvals=Approvals(
                ApprovalStore(ApprovalsConfig(), audit), Signer(), cast("Any", None), asked_by_default=lambda: None
            ),
        )

    def caller(self) -> Caller:
        return Caller(principal=LOCAL, view=self.views.view())

    async def call(self, arguments: Any, caller: Caller | None = None, name: str = "up__send") -> dict[str, Any]:
        return await self.pipeline.call({"name": name, "arguments": arguments}, caller or self.caller())


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(item["text"] for item in result["content"])


async def test_call_uses_one_catalog_from_start_to_end() -> None:
    up = Setup()
    caller = up.caller()
    pinned = caller.view.catalog.by_name.get("up__send")
    assert pinned is not None
    # The same connection has a later listing by now, for which these arguments would be wrong.
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
async def test_invalid_arguments_are_refused_before_waiting_or_sending(connected: bool) -> None:
    up = Setup()
    up.link.state.session = object() if connected else None
    answer = await up.call({"too": "ann", "x": 1})
    assert answer["isError"] is True
    assert "to" in text_of(answer)
    assert (up.forwarder.sent, up.link.waits) == ([], 0)
    assert {row["kind"] for row in up.stats.failure_rows()} >= {"argument_missing"}


async def test_unknown_name_is_not_counted_as_a_call() -> None:
    up = Setup()
    with pytest.raises(RpcError, match="Unknown tool: nothing"):
        await up.call({}, name="nothing")
    assert up.stats.calls == {}


async def test_call_on_a_new_epoch_is_resolved_and_sent_once() -> None:
    up = Setup()
    up.link.epoch = 2
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2))
    assert (await up.call({"to": "ann"}))["content"] == DONE["content"]
    assert (len(up.forwarder.sent), up.link.waits) == (1, 1)


async def test_changed_tool_on_a_new_epoch_is_checked_again_before_sending() -> None:
    up = Setup()
    up.link.epoch = 2
    caller = up.caller()
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2, to={"type": "array", "items": {"type": "integer"}}))
    answer = await up.call({"to": "ann"}, caller)
    assert answer["isError"] is True
    assert (up.forwarder.sent, up.link.waits) == ([], 1)


async def test_removed_tool_on_a_new_epoch_is_reported_as_removed() -> None:
    up = Setup()
    up.link.epoch = 2
    up.link.on_wait = lambda: up.registry.put(listing(epoch=2, tool="post"))
    assert "no longer has the tool 'send'" in text_of(await up.call({"to": "ann"}))
    assert up.forwarder.sent == []


class Rewrites(Hook):
    """Sends the call to the address in its configuration."""

    async def before_call(self, call: Call) -> Before:
        return call.with_args({"to": self.config["to"]})


async def test_arguments_rewritten_by_a_hook_are_checked_and_sent() -> None:
    up = Setup(Rewrites({"to": "bob"}))
    await up.call({"to": "ann"})
    assert [params["arguments"] for params in up.forwarder.sent] == [{"to": "bob"}]


async def test_arguments_made_invalid_by_a_hook_are_refused() -> None:
    up = Setup(Rewrites({"to": 5}))
    answer = await up.call({"to": "ann"})
    assert "hook 'Rewrites' changed the arguments so that they are no longer valid" in text_of(answer)
    assert up.forwarder.sent == []


class Waits(Hook):
    """Changes the tool while the call waits for it, as a slow hook may see."""

    async def before_call(self, call: Call) -> Before:
        await anyio.lowlevel.checkpoint()
        self.config["meanwhile"]()
        return None


async def test_tool_that_changed_while_hooks_ran_is_checked_again() -> None:
    change: dict[str, Any] = {}
    up = Setup(Waits(change))
    change["meanwhile"] = lambda: up.registry.put(listing(to={"type": "integer"}))
    answer = await up.call({"to": "ann"})
    assert "the tool has changed" in text_of(answer)
    assert up.forwarder.sent == []


class Answers(Hook):
    """Answers instead of the upstream."""

    async def before_call(self, call: Call) -> Before:
        return Answer(value={"content": [{"type": "text", "text": "from the hook"}]})


async def test_answer_from_a_hook_does_not_count_as_a_success_of_its_tool() -> None:
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


async def test_hooks_receive_upstream_failures_and_they_are_counted() -> None:
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


async def test_call_without_hooks_uses_the_pass_through_invocation() -> None:
    up = Setup()
    wrapper = up.registry.catalog.by_name.get("up__send")
    assert wrapper is not None
    assert up.hooks.tool_call(wrapper, "wrapper", up.caller()) is PASS_THROUGH

    class Request:
        async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
            raise AssertionError("nothing is revised where nobody has changed anything")

        def send(self) -> Any:
            return DONE  # the pipeline awaits this value directly, without a coroutine in between

    with PASS_THROUGH as invocation:
        assert invocation.send({}, Request()) is DONE
    assert await PASS_THROUGH.after(DONE) is DONE
    assert await PASS_THROUGH.after_error(RpcError(1, "x")) is None
    assert PASS_THROUGH.answer is None
    arguments = {"to": "ann"}
    await up.call(arguments)
    assert up.forwarder.sent[0]["arguments"] is arguments
