"""The hooks of one call: order, blocks, failures, answers and audit hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.access.principal import LOCAL, Principal
from gateway.calls.caller import Caller
from gateway.config.hooks_config import HookConfig
from gateway.hooks import After, Answer, Before, Block, Call, Hook, Result
from gateway.hooks.hook_loading import ActiveHooks
from gateway.hooks.invocation import BLOCKED_KEY, PASS_THROUGH, HookRefusal, Invocation, Rejection
from gateway.hooks.runner import HookRunner
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import RpcError, UpstreamProtocolError
from registry.catalog.catalog import ToolWrapper
from registry.catalog.listing import ServerListing
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.shape import Shape
from registry.views.profile import Profile
from registry.views.view import build_view

DONE: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


class Logs(Hook):
    """Writes its name down in both phases, then does what its configuration says for each."""

    async def before_call(self, call: Call) -> Before:
        self.config["log"].append(f"{self.config['as']} before")
        act = self.config.get("before")
        return act(call) if act is not None else None

    async def after_call(self, call: Call, result: Result) -> After:
        self.config["log"].append(f"{self.config['as']} after")
        act = self.config.get("after")
        return act(result) if act is not None else None


class Request:
    """A request that notes with what it is sent, and answers with what the test says."""

    def __init__(self, answer: Callable[[], Any] = lambda: dict(DONE)) -> None:
        self.arguments: dict[str, Any] | None = None
        self.sent = 0
        self._answer = answer

    async def revise(self, arguments: dict[str, Any], changed_by: tuple[str, ...]) -> Rejection | None:
        self.arguments = arguments
        return None

    async def send(self) -> Any:
        self.sent += 1
        return self._answer()


class Setup:
    """Hooks around one tool, made in the order in which they are added."""

    def __init__(self) -> None:
        self.registry = Registry(Shape())
        definition = {"name": "send", "description": "Sends.", "inputSchema": {"type": "object"}}
        self.registry.put(ServerListing(server=ServerName("up"), epoch=1, tools=(definition,)))
        self.log: list[str] = []
        self.runners: list[HookRunner] = []
        self._hooks: ActiveHooks | None = None

    def add(self, name: str, *, before: Any = None, after: Any = None, **entry: Any) -> HookRunner:
        hook = Logs({"as": name, "log": self.log, "before": before, "after": after})
        self.runners.append(HookRunner(hook, HookConfig(name=name, use="test", **entry)))
        return self.runners[-1]

    @property
    def hooks(self) -> ActiveHooks:
        if self._hooks is None:
            self._hooks = ActiveHooks(self.registry, self.runners)
        return self._hooks

    @property
    def wrapper(self) -> ToolWrapper:
        return self.registry.catalog.wrappers[0]

    def invocation(self) -> Invocation:
        view = build_view(self.registry.catalog, self.registry.shape, Profile())
        return self.hooks.tool_call(self.wrapper, "wrapper", Caller(principal=LOCAL, view=view))

    async def call(self, request: Request, arguments: Any = None) -> Any:
        with self.invocation() as invocation:
            return await invocation.send(arguments, request)


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def raises(_: object) -> Any:
    raise ValueError("secret text")


def refuses() -> Any:
    raise RpcError(-32000, "raw")


async def test_hooks_run_in_priority_order_before_and_reversed_after() -> None:
    up, request = Setup(), Request()
    up.add("second", priority=20)
    up.add("first", priority=10)
    up.add("third", priority=20)
    assert await up.call(request, {"to": "ann"}) == DONE
    before, after = up.log[:3], up.log[3:]
    assert before == ["first before", "second before", "third before"]
    assert after == ["third after", "second after", "first after"]
    assert (request.sent, request.arguments) == (1, None), "nothing has changed, so nothing is looked at again"


async def test_call_is_validated_again_after_a_hook_waited() -> None:
    class Waits(Hook):
        async def before_call(self, call: Call) -> Before:
            await anyio.lowlevel.checkpoint()
            return None

    up, request = Setup(), Request()
    up.runners.append(HookRunner(Waits({}), HookConfig(name="waits", use="test")))
    assert await up.call(request, {"to": "ann"}) == DONE
    assert (request.sent, request.arguments) == (1, {"to": "ann"})


async def test_after_call_receives_the_arguments_as_sent() -> None:
    class Scribbles(Hook):
        async def before_call(self, call: Call) -> Before:
            call.memo["seen"] = 1
            if self.config.get("scribbles"):
                call.args["to"] = "eve"
            return None

        async def after_call(self, call: Call, result: Result) -> After:
            self.config["log"].append((call.args, call.memo))
            return None

    up, request = Setup(), Request()
    for scribbles in (True, False):
        hook = Scribbles({"log": up.log, "scribbles": scribbles})
        up.runners.append(HookRunner(hook, HookConfig(name=f"scribbles-{scribbles}", use="test")))
    assert await up.call(request, {"to": "ann"}) == DONE
    assert up.log == [({"to": "ann"}, {"seen": 1})] * 2


async def test_one_chain_applies_conditions_per_principal() -> None:
    up = Setup()
    up.add("for-ci", conditions={"principals": ["ci"]})
    up.add("for-all")
    for name in ("local", "ci", "local", "ci"):
        view = build_view(up.registry.catalog, up.registry.shape, Profile())
        with up.hooks.tool_call(up.wrapper, "wrapper", Caller(principal=Principal(name=name), view=view)) as invocation:
            await invocation.send({}, Request())
    runs = {runner.name: runner.run_count for runner in up.runners}
    assert runs == {"for-ci": 4, "for-all": 8}


async def test_each_hook_receives_the_previous_hooks_changes() -> None:
    up, request = Setup(), Request()
    up.add("a", before=lambda call: call.with_args({**call.args, "a": 1}))
    up.add("b", before=lambda call: call.with_args({**call.args, "b": list(call.args)}))
    await up.call(request, {"x": 0})
    assert request.arguments == {"x": 0, "a": 1, "b": ["x", "a"]}


async def test_block_before_the_call_stops_it() -> None:
    up, request = Setup(), Request()
    up.add("a")
    up.add("b", before=lambda call: Block(reason="not today", description="Ask tomorrow."))
    up.add("c")
    answer = await up.call(request)
    assert text_of(answer).startswith("Blocked by hook 'b': not today\nAsk tomorrow.")
    assert "was not called" in text_of(answer)
    assert answer["_meta"][BLOCKED_KEY]["hook"] == "b"
    assert (request.sent, up.log) == (0, ["a before", "b before"])


async def test_block_after_the_call_withholds_the_result() -> None:
    up, request = Setup(), Request()
    up.add("a")
    up.add("b", after=lambda result: Block(reason="secret"))
    answer = await up.call(request)
    assert "result is withheld by hook 'b': secret" in text_of(answer)
    assert up.log == ["a before", "b before", "b after"]


async def test_block_as_error_raises() -> None:
    up = Setup()
    up.add("a", before=lambda call: Block(reason="no", code=-32050), block_as="error")
    with pytest.raises(HookRefusal) as refusal:
        await up.call(Request())
    assert refusal.value.code == -32050


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_failing_hook_fails_the_call(phase: str) -> None:
    up, request = Setup(), Request()
    up.add("a", **{phase: raises})
    answer = await up.call(request)
    assert answer["isError"] is True
    assert text_of(answer).startswith("Hook 'a' raised ValueError")
    assert "secret text" not in text_of(answer)
    assert request.sent == (0 if phase == "before" else 1)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("mode", ["transform", "concurrent"])
async def test_ignored_hook_failure_is_counted_and_the_call_continues(phase: str, mode: str) -> None:
    up, request = Setup(), Request()
    failing = up.add("a", mode=mode, on_error="ignore", **{phase: raises})
    up.add("b")
    assert await up.call(request) == DONE
    assert (failing.counts["failed"], failing.counts["ignored"]) == (1, 1)
    assert "b after" in up.log


async def test_first_concurrent_block_by_priority_is_reported() -> None:
    up, request = Setup(), Request()
    up.add("late", mode="concurrent", priority=2, before=lambda call: Block(reason="late"))
    up.add("early", mode="concurrent", priority=1, before=lambda call: Block(reason="early"))
    assert "hook 'early': early" in text_of(await up.call(request))
    assert (request.sent, sorted(up.log)) == (0, ["early before", "late before"])


async def test_answer_ends_the_call_and_passes_only_earlier_hooks() -> None:
    up, request = Setup(), Request()
    up.add("a")
    up.add("b", before=lambda call: Answer(value={"content": []}))
    up.add("c")
    assert await up.call(request) == {"content": []}
    assert (request.sent, up.log) == (0, ["a before", "b before", "a after"])


async def test_hooks_receive_fully_parsed_results() -> None:
    seen: list[Any] = []
    up = Setup()
    up.add("a", after=lambda result: seen.append(result.content))
    await up.call(Request(lambda: {"content": json_bytes.UnparsedJson(b'[{"type":"text","text":"large"}]')}))
    assert seen == [[{"type": "text", "text": "large"}]]
    with pytest.raises(UpstreamProtocolError, match="cannot be read"):
        await up.call(Request(lambda: {"content": json_bytes.UnparsedJson(b"[" * 100_000)}))


@pytest.mark.parametrize("kind", ["task", "input_required"])
async def test_incomplete_result_bypasses_the_hooks(kind: str) -> None:
    up = Setup()
    up.add("a", after=raises)
    assert await up.call(Request(lambda: {"resultType": kind})) == {"resultType": kind}


async def test_hook_may_replace_an_upstream_error() -> None:
    up = Setup()
    up.add("a", after=lambda result: Result({"content": [{"type": "text", "text": "tidied"}], "isError": True}))
    with up.invocation() as invocation:
        with pytest.raises(RpcError):
            await invocation.send({}, Request(refuses))
        changed = await invocation.after_error(RpcError(-32000, "raw"))
    assert changed is not None
    assert text_of(changed) == "tidied"


async def test_audit_hooks_receive_every_outcome_in_order() -> None:
    up = Setup()
    seen: list[tuple[bool, str | None]] = []

    class Audits(Hook):
        async def after_call(self, call: Call, result: Result) -> None:
            seen.append((result.is_error, call.metadata.blocked_by))

    audits = HookRunner(Audits({}), HookConfig(name="audits", use="test", mode="audit"))
    up.runners.append(audits)
    up.add("guard", before=lambda call: Block(reason="no") if call.args.get("to") == "eve" else None)
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(up.hooks.run)
            await anyio.lowlevel.checkpoint()
            await up.call(Request(), {"to": "ann"})
            await up.call(Request(), {"to": "eve"})
            with pytest.raises(ZeroDivisionError):
                await up.call(Request(lambda: 1 // 0), {"to": "bob"})
            # Replacing the hooks closes the queue once no call is left, and `ended` is set after the last event.
            up.hooks.replace(())
            assert audits.queue is not None
            await audits.queue.ended.wait()
            group.cancel_scope.cancel()
    assert seen == [(False, None), (True, "guard"), (True, None)]


async def test_removed_hooks_are_closed_after_their_last_call() -> None:
    closed = anyio.Event()

    class Closes(Logs):
        async def close(self) -> None:
            closed.set()

    up = Setup()
    up.runners.append(HookRunner(Closes({"as": "a", "log": up.log}), HookConfig(name="a", use="test")))
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(up.hooks.run)
            await anyio.lowlevel.checkpoint()
            with up.invocation() as invocation:
                up.hooks.replace(())
                assert up.invocation() is PASS_THROUGH
                assert await invocation.send({}, Request()) == DONE
                assert not closed.is_set()
            await closed.wait()
            group.cancel_scope.cancel()
    assert up.log == ["a before", "a after"]
