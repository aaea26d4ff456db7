"""Arguments whose check may take long are prepared in processes of their own, within deadlines."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from gateway.calls.check_process import CheckJob
from gateway.calls.thorough_checks import CHECK_S, ThoroughChecks
from gateway.calls.tool_call import passes
from gateway.process.tasks import OwnedTasks
from registry.arguments.prepare import Prepared, prepare
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName, ToolName, WrapperName
from registry.catalog.shape import Validation
from registry.errors import NotChecked
from registry.schema import schemas

ROWS = {
    "type": "object",
    "properties": {
        f"p{n}": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["a"],
            },
        }
        for n in range(1_000)
    },
}
ENDLESS = {"type": "object", "properties": {"a": {"pattern": "(?=(a+)+b)x"}}}


def rows() -> dict[str, Any]:
    """A megabyte of valid arguments."""
    return {f"p{n}": [{"a": "hello world!" * 3, "n": row} for row in range(20)] for n in range(1_000)}


def wrapper_of(schema: Any) -> ToolWrapper:
    return ToolWrapper(
        name=WrapperName("up__send"),
        server=ServerName("up"),
        tool=ToolName("send"),
        definition={"name": "up__send", "inputSchema": schema},
        digest="",
        schema_digest=schemas.digest(schema),
    )


@asynccontextmanager
async def running(check_s: float = CHECK_S) -> AsyncIterator[ThoroughChecks]:
    async with anyio.create_task_group() as group:
        checks = ThoroughChecks(OwnedTasks(group), check_s=check_s)
        group.start_soon(checks.run)
        yield checks
        group.cancel_scope.cancel()


async def prepared(
    checks: ThoroughChecks, schema: Any, arguments: Any, validation: Validation = "strict", who: str = "ann"
) -> Prepared:
    with pytest.raises(NotChecked) as doubt:
        prepare(wrapper_of(schema), arguments)
    job = CheckJob.for_call(
        wrapper_of(schema), arguments, level="safe", defaults={}, lowered=None, validation=validation
    )
    return await checks.prepare(job, who, doubt.value)


async def test_megabyte_of_arguments_is_checked_repaired_and_explained() -> None:
    async with running() as checks:
        valid, repairable, wrong = rows(), rows(), rows()
        repairable["p777"][3]["n"] = "7"
        wrong["p777"][3]["n"] = "seven"
        found = await prepared(checks, ROWS, valid)
        assert (found.arguments is valid, found.problems) == (True, ())
        found = await prepared(checks, ROWS, repairable)
        assert [repair.path for repair in found.repairs] == [("p777", 3, "n")]
        assert found.arguments["p777"][3]["n"] == 7
        found = await prepared(checks, ROWS, wrong)
        assert [problem.path for problem in found.problems] == [("p777", 3, "n")]


async def test_arguments_checked_in_a_subprocess_equal_those_sent() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"required": ["n"]}}}}
    # An integer of more than 64 bits, a lone surrogate, a whole float, and texts with quotes and backslashes.
    odd = {"n": 2**70, "s": "\ud800", "f": 1.0, 'k"\\': 'a":\\"', "z": -0.0, "e": 1e-300}
    many = [{"n": row} for row in range(30_000)]
    async with running() as checks:
        for arguments in ({"rows": [odd, *many]}, {"arguments": {"rows": [odd, *many]}}):
            found = await prepared(checks, schema, arguments)
            assert found.problems == ()
            assert repr(found.arguments["rows"][0]) == repr(odd)
            assert found.arguments["rows"][1:] == many
        found = await prepared(checks, schema, {"arguments": {"rows": [odd, {}, *many]}})
        assert [problem.path for problem in found.problems] == [("rows", 1, "n")]
        assert repr(found.checked["rows"][:2]) == repr([odd, {}])


async def test_arguments_too_deep_to_serialize_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    try:
        async with running() as checks:
            found = await prepared(checks, ROWS, {**rows(), "deep": deep})
            assert "nested too deeply" in found.problems[0].message
    finally:
        while isinstance(deep, list):  # bit by bit, as the interpreter may not
            [deep] = deep


def test_too_many_values_are_detected_in_the_text() -> None:
    many = {f"p{n}": "x" for n in range(25_000)}
    with pytest.raises(NotChecked) as doubt:
        passes(wrapper_of(ROWS), many, "safe")
    assert doubt.value.unlocated
    texts = {"p1": [{"a": '","x":' * 50_000}]}
    assert passes(wrapper_of(ROWS), texts, "safe") is False, "what stands in a text is not counted"
    assert prepare(wrapper_of(ROWS), texts).problems == ()


@pytest.mark.heavy
def test_explaining_a_megabyte_costs_little_more_than_parsing_it() -> None:
    wrong = rows()
    wrong["p777"][3]["n"] = "seven"
    text = json.dumps(wrong)
    assert len(text) > 10**6
    job = CheckJob.for_call(wrapper_of(ROWS), wrong, level="safe", defaults={}, lowered=None, validation="strict")

    def cpu_s(work: Callable[[], object]) -> float:
        began_s = time.process_time()
        work()
        return time.process_time() - began_s

    # Not seconds: on a busy machine they say nothing. The standard library reads a megabyte in about 10 ms, and to
    # explain it took forty times as long when every error was looked for.
    read_s = min(cpu_s(lambda: json.loads(text)) for _ in range(5))
    explained_s = min(cpu_s(job.run) for _ in range(5))
    assert explained_s < 15 * read_s


@pytest.mark.parametrize(("validation", "sent"), [("strict", False), ("lenient", True)])
async def test_check_beyond_the_deadline_is_sent_or_refused_by_configuration(
    validation: Validation, sent: bool
) -> None:
    async with running(check_s=0.2) as checks:
        found = await prepared(checks, ENDLESS, {"a": "a" * 100_000}, validation)
        assert bool(found.problems) is not sent
        problem = found.unchecked[0] if sent else found.problems[0]
        assert "a could not be checked within 0.2 s: 100000 characters are too many for its pattern" in problem.message
        # The process was ended together with its check, and the next check gets a new process.
        valid = rows()
        checks.check_s = 5
        assert (await prepared(checks, ROWS, valid)).arguments is valid


async def test_one_caller_occupies_one_process_and_others_use_the_next() -> None:
    order: list[str] = []
    first = anyio.Event()
    async with running(check_s=3) as checks, anyio.create_task_group() as group:

        async def attack() -> None:
            await prepared(checks, ENDLESS, {"a": "a" * 200_000}, who="mallory")
            order.append("mallory")
            first.set()

        async def work() -> None:
            await prepared(checks, ROWS, rows())
            order.append("ann")
            first.set()

        for _ in range(2):
            group.start_soon(attack)
        group.start_soon(work)
        await first.wait()
        assert order == ["ann"]
        group.cancel_scope.cancel()


async def test_waiting_checks_per_caller_are_bounded() -> None:
    async with running() as checks, anyio.create_task_group() as group:
        answers: list[Prepared] = []
        first = anyio.Event()

        async def attack() -> None:
            answers.append(await prepared(checks, ENDLESS, {"a": "a" * 200_000}, who="mallory"))
            first.set()

        for _ in range(17):
            group.start_soon(attack)
        await first.wait()
        assert "other large calls" in answers[0].problems[0].message
        group.cancel_scope.cancel()
