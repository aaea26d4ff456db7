"""A misbehaving hook affects only its own calls, and leaks nothing."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import call_of
from support.gateways import answer_of, text_of
from support.hooked import Hooked, hooked, sample, text_of_answer
from support.upstreams.running import tool
from support.waiting import brief_pause

BEFORE = {
    "hang": "did not answer within 0.3 s",
    "cling": "did not answer within 0.3 s",
    "raise": "raised RuntimeError at hook_samples.py:",
    "exit": "raised SystemExit",
    "interrupt": "raised KeyboardInterrupt",
    "cancel": "raised CancelledError",
    "garbage": "returned a int, which is not allowed in this phase",
    "dict": "returned a dict",
    "not json": "returned something that is not JSON",
    "grow": "returned more than 8388608 bytes",
    "many": "returned more than 8388608 bytes",
    "deep": "returned something that is not JSON",
    "cycle": "returned more than 8388608 bytes",
    "grow result": "returned a Result, which is not allowed in this phase",
}
AFTER = {
    "hang": "did not answer within 0.3 s",
    "raise": "raised RuntimeError",
    "garbage": "returned a int",
    "rewrite": "returned a Call",
    "grow result": "returned more than 8388608 bytes",
    "no content": "returned a result without a list of `content`",
}


def hostile(deed: str, when: str = "before", **entry: Any) -> dict[str, Any]:
    return sample("Hostile", timeout=0.3, config={"deed": deed, "when": when}, **entry)


def tool_name(deed: str) -> str:
    """Return the name of the tool, and of its hook, for a misbehaviour."""
    # The prefix keeps the name from being that of a scripted behaviour.
    return "do-" + deed.replace(" ", "-")


def hostile_to_one_tool(deed: str, when: str = "before", **entry: Any) -> dict[str, Any]:
    """Return a hook that runs on a single tool, so that one gateway can have all of these hooks."""
    return hostile(deed, when, **entry) | {"name": tool_name(deed), "conditions": {"wrappers": [tool_name(deed)]}}


def tools_of(deeds: Iterable[str]) -> list[dict[str, Any]]:
    return [tool(tool_name(deed)) for deed in deeds]


@pytest.mark.heavy
async def test_hook_failing_before_a_call_fails_it_without_calling_the_upstream(tmp_path: Path) -> None:
    async with hooked(tmp_path, *(hostile_to_one_tool(deed) for deed in BEFORE), tools=tools_of(BEFORE)) as up:
        for deed, words in BEFORE.items():
            answer = await up.ask("modern", "wrapper", tool_name(deed), {"secret": "s3cr3t"})
            assert answer["result"]["isError"] is True, deed
            assert f"Hook '{tool_name(deed)}' {words}" in text_of_answer(answer)
            assert "The tool was not called." in text_of_answer(answer), deed
            assert "s3cr3t" not in text_of_answer(answer), deed
            assert "s3cr3t" not in up.gateway.logged(), deed
            assert up.recording.calls(tool_name(deed)) == []
            assert "isError" not in (await up.ask("modern", "wrapper", tool_name(deed), {"spare": True}))["result"], (
                deed
            )


async def test_hook_failing_after_a_call_withholds_the_result(tmp_path: Path) -> None:
    async with hooked(tmp_path, *(hostile_to_one_tool(deed, "after") for deed in AFTER), tools=tools_of(AFTER)) as up:
        for deed, words in AFTER.items():
            answer = await up.ask("modern", "wrapper", tool_name(deed), {"secret": "s3cr3t"})
            assert answer["result"]["isError"] is True, deed
            assert f"Hook '{tool_name(deed)}' {words}" in text_of_answer(answer)
            assert "The tool was called." in text_of_answer(answer), deed
            assert "s3cr3t" not in json.dumps(answer), deed
            assert len(up.recording.calls(tool_name(deed))) == 1, deed


@pytest.mark.heavy
@pytest.mark.parametrize(("when", "deeds"), [("before", tuple(BEFORE)), ("after", tuple(AFTER))])
async def test_ignored_failure_changes_nothing_and_is_counted(
    when: str, deeds: tuple[str, ...], tmp_path: Path
) -> None:
    hooks = [hostile_to_one_tool(deed, when, onError="ignore") for deed in deeds]
    async with hooked(tmp_path, *hooks, tools=tools_of(deeds)) as up:
        for deed in deeds:
            answer = await up.ask("modern", "wrapper", tool_name(deed), {"x": 1})
            assert answer["result"]["structuredContent"] == {"x": 1}, deed
            counts = (await up.hook(tool_name(deed)))["counts"]
            assert (counts["failed"], counts["ignored"]) == (1, 1), deed
            assert counts["late"] == (deed in ("hang", "cling")), deed
        metrics = (await up.gateway.client.get(f"{up.gateway.origin}/metrics")).text
        for deed in deeds:
            assert f'typegate_hook_events_total{{event="ignored",hook="{tool_name(deed)}"}} 1.0' in metrics


@pytest.mark.parametrize("when", ["before", "after"])
async def test_mutation_of_a_hooks_copy_has_no_effect(when: str, tmp_path: Path) -> None:
    modes = ("transform", "validate", "concurrent", "audit")
    mutating = [hostile("mutate", when, mode=mode) for mode in modes]
    hooks = [
        {**one, "name": mode, "conditions": {"wrappers": [mode]}} for one, mode in zip(mutating, modes, strict=True)
    ]
    seeing = sample("Recorder", priority=200 if when == "before" else 1)
    async with hooked(tmp_path, *hooks, seeing, tools=[tool(mode) for mode in modes]) as up:
        for number, mode in enumerate(modes):
            answer = await up.ask("modern", "wrapper", mode, {"x": {"y": [1]}})
            assert answer["result"]["structuredContent"] == {"x": {"y": [1]}}, mode
            assert up.recording.calls(mode)[0]["arguments"] == {"x": {"y": [1]}}
            before, after = up.seen("before_call")[number], up.seen("after_call")[number]
            assert (before["name"], before["args"]) == (mode, {"x": {"y": [1]}})
            assert after["result"]["structuredContent"] == {"x": {"y": [1]}}, mode


async def test_mutation_of_a_returned_value_has_no_effect(tmp_path: Path) -> None:
    keeping, slow = hostile("keep"), sample("Slow", config={"seconds": 0.2}, priority=200)
    async with hooked(tmp_path, keeping, slow) as up:
        await up.ask("modern", "wrapper", "echo", {"x": 1})
        assert up.recording.calls()[0]["arguments"] == {"x": 1}


@pytest.mark.heavy
async def test_repeatedly_failing_hook_is_skipped_and_fails_calls_at_once(tmp_path: Path) -> None:
    async with hooked(tmp_path, hostile("hang")) as up:
        for _ in range(5):
            assert "did not answer" in text_of_answer(await up.ask("modern", "wrapper", "echo", {}))
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert "Hook 'hostile' is skipped for now" in text_of_answer(answer)
        row = await up.hook("hostile")
        assert row["breaker"] == "open"
        assert (row["counts"]["runs"], row["counts"]["skipped"]) == (5, 1)
        assert up.recording.calls() == []


@pytest.mark.heavy
async def test_repeatedly_failing_ignored_hook_no_longer_delays_calls(tmp_path: Path) -> None:
    async with hooked(tmp_path, hostile("hang", onError="ignore")) as up:
        for _ in range(5):
            await up.ask("modern", "wrapper", "echo", {})
        assert "isError" not in (await up.ask("modern", "wrapper", "echo", {}))["result"]
        counts = (await up.hook("hostile"))["counts"]
        assert (counts["skipped"], counts["ignored"]) == (1, 6)


async def test_failures_of_one_principals_calls_do_not_disable_a_hook_for_others(tmp_path: Path) -> None:
    keys = {"auth": {"apiKeys": [{"name": name, "key": f"key-of-{name}"} for name in ("ann", "bob")]}}
    async with hooked(tmp_path, hostile("raise"), gateway=keys) as up:
        for _ in range(6):
            answer = await up.ask("modern", "wrapper", "echo", {}, authorization="Bearer key-of-ann")
        assert "is skipped for now" in text_of_answer(answer)
        answer = await up.ask("modern", "wrapper", "echo", {"spare": True}, authorization="Bearer key-of-bob")
        assert "isError" not in answer["result"]


async def test_hanging_plain_function_stays_in_its_thread_and_the_gateway_exits(tmp_path: Path) -> None:
    async with hooked(tmp_path, sample("Blocking", timeout=0.2)) as up:
        answer = await up.ask("modern", "wrapper", "echo", {})
        assert "Hook 'blocking' did not answer within 0.2 s" in text_of_answer(answer)
        assert "isError" not in (await up.ask("modern", "wrapper", "echo", {"spare": True}))["result"]
        assert await up.gateway.stop() == 0


async def wait_for_runs(up: Hooked, runs: int) -> None:
    with anyio.fail_after(20):
        while (await up.hook("hanging"))["counts"]["runs"] < runs:
            await brief_pause()


@pytest.mark.parametrize("kind", ["Hostile", "Blocking"])
@pytest.mark.heavy
async def test_calls_hanging_in_a_hook_do_not_slow_others(kind: str, tmp_path: Path) -> None:
    hanging = sample(kind, name="hanging", timeout=30, config={"deed": "hang"}, conditions={"wrappers": ["send"]})

    async def latency_ms(up: Hooked) -> float:
        took: list[float] = []
        for _ in range(100):
            began_s = time.perf_counter()
            assert "isError" not in (await up.ask("modern", "wrapper", "echo", {}))["result"]
            took.append((time.perf_counter() - began_s) * 1000)
        return statistics.median(took)

    async with hooked(tmp_path, hanging, server={"maxConcurrency": 64}) as up, anyio.create_task_group() as group:
        alone_ms = await latency_ms(up)
        for number in range(40):
            body = call_of("up__send", {"to": "x"}, request_id=number)
            group.start_soon(up.gateway.post, body)
        await wait_for_runs(up, 8)
        # Use the best of three measurements, because the machine may be busy.
        beside_ms = min([await latency_ms(up) for _ in range(3)])
        group.cancel_scope.cancel()
    assert beside_ms < 2 * alone_ms + 5, f"{alone_ms:.2f} ms alone, {beside_ms:.2f} ms beside"


async def test_abandoned_call_cancels_its_hook(tmp_path: Path) -> None:
    hooks = [hostile("hang") | {"timeout": 60}, sample("Recorder", mode="audit")]
    async with hooked(tmp_path, *hooks) as up:
        with anyio.move_on_after(0.5):
            await up.gateway.post(call_of("up__echo", {}))
        [after] = await up.until_seen(1, "after_call")
        assert text_of(after["result"]) == "No answer: it was cancelled."
        assert "isError" not in (await up.ask("modern", "wrapper", "echo", {"spare": True}))["result"]
        assert await up.gateway.stop() == 0


async def test_concurrent_calls_of_two_callers_stay_separate_in_one_hook(tmp_path: Path) -> None:
    keys = {"auth": {"apiKeys": [{"name": f"caller-{at}", "key": f"key-of-{at}"} for at in range(8)]}}
    hooks = [sample("Slow", config={"seconds": 0.02}), sample("Recorder", priority=200)]
    async with hooked(tmp_path, *hooks, gateway=keys) as up:
        answers: dict[int, list[dict[str, Any]]] = {at: [] for at in range(8)}

        async def calls(at: int) -> None:
            for turn in range(10):
                # All callers use the same request id.
                body = call_of("up__echo", {"mine": f"{at}-{turn}"}, request_id=1)
                response = await up.gateway.post(body, {"authorization": f"Bearer key-of-{at}"})
                answers[at].append(answer_of(response)["result"])

        async with anyio.create_task_group() as group:
            for at in range(8):
                group.start_soon(calls, at)
        for at, results in answers.items():
            assert [result["structuredContent"]["mine"] for result in results] == [f"{at}-{turn}" for turn in range(10)]
        for one in up.seen("after_call"):
            mine = one["args"]["mine"]
            assert one["metadata"]["principal"] == f"caller-{mine.partition('-')[0]}"
            assert json.loads(text_of(one["result"]))["mine"] == mine
        assert len({one["metadata"]["call_id"] for one in up.seen("before_call")}) == 80


@pytest.mark.heavy
async def test_hanging_audit_hook_delays_no_call_and_missed_calls_are_counted(tmp_path: Path) -> None:
    hanging = hostile("hang", mode="audit") | {"timeout": 60}
    async with hooked(tmp_path, hanging) as up:
        began_s = time.perf_counter()
        for _ in range(20):
            await up.ask("modern", "wrapper", "echo", {"x": "y" * 1_000_000})
        assert time.perf_counter() - began_s < 10
        assert (await up.hook("hostile"))["counts"]["dropped"] > 0
        assert "hook queue full" in up.gateway.logged()
        assert await up.gateway.stop() == 0


async def test_hook_blocking_the_loop_beyond_its_timeout_fails_closed(tmp_path: Path) -> None:
    file = tmp_path / "greedy.py"
    file.write_text(
        "import time\nfrom gateway.hooks import Hook\n\nclass Greedy(Hook):\n"
        "    async def before_call(self, call):\n        time.sleep(0.3)\n        return call.with_args({'to': 'x'})\n"
    )
    async with hooked(tmp_path, {"name": "greedy", "path": "./greedy.py:Greedy", "timeout": 0.1}) as up:
        answer = await up.ask("modern", "wrapper", "echo", {"a": 1})
        assert answer["result"]["isError"] is True
        assert text_of_answer(answer) == "Hook 'greedy' did not answer within 0.1 s. The tool was not called."
        assert up.recording.calls() == []
        row = await up.hook("greedy")
        assert (row["counts"]["late"], row["counts"]["failed"]) == (1, 1)
        assert "blocked the event loop" in row["lastError"]
        assert "blocked the event loop" in up.gateway.logged()


async def test_hook_exception_text_reaches_the_operator_without_call_values(tmp_path: Path) -> None:
    file = tmp_path / "picky.py"
    file.write_text(
        "from gateway.hooks import Hook\n\nclass Picky(Hook):\n    async def before_call(self, call):\n"
        "        raise ValueError(f\"no rule for {call.args['to']} ({call.args['to'].split('@')[0]!r}) in table A\")\n"
    )
    async with hooked(tmp_path, {"name": "picky", "path": "./picky.py:Picky"}) as up:
        answer = await up.ask("modern", "wrapper", "echo", {"to": "ann.private@example.test"})
        assert text_of_answer(answer) == "Hook 'picky' raised ValueError at picky.py:5. The tool was not called."
        error = "raised ValueError at picky.py:5: no rule for … ('…') in table A"
        assert (await up.hook("picky"))["lastError"] == error
        assert error in up.gateway.logged()
        assert "ann.private" not in up.gateway.logged()
