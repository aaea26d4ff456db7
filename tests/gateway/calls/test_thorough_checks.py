"""Arguments whose check may take long are prepared in processes of their own, within deadlines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from gateway.calls import thorough_checks
from gateway.calls.check_process import CheckJob
from gateway.calls.thorough_checks import ThoroughChecks
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
        epoch=1,
        definition={"name": "up__send", "inputSchema": schema},
        digest="",
        schema_digest=schemas.digest(schema),
    )


@asynccontextmanager
async def running() -> AsyncIterator[ThoroughChecks]:
    checks = ThoroughChecks()
    async with anyio.create_task_group() as group:
        group.start_soon(checks.run)
        yield checks
        group.cancel_scope.cancel()


async def prepared(
    checks: ThoroughChecks, schema: Any, arguments: Any, validation: Validation = "strict", who: str = "ann"
) -> Prepared:
    with pytest.raises(NotChecked) as doubt:
        prepare(wrapper_of(schema), arguments)
    job = CheckJob.of(wrapper_of(schema), arguments, level="safe", defaults={}, lowered=None, validation=validation)
    return await checks.prepare(job, who, doubt.value)


async def test_a_megabyte_of_arguments_is_checked_repaired_and_explained() -> None:
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


@pytest.mark.heavy
async def test_a_megabyte_of_arguments_takes_tens_of_milliseconds() -> None:
    async with running() as checks:
        await prepared(checks, ROWS, rows())
        took_s = []
        for _ in range(5):
            began_s = anyio.current_time()
            await prepared(checks, ROWS, rows())
            took_s.append(anyio.current_time() - began_s)
        assert min(took_s) < 0.1


@pytest.mark.parametrize(("validation", "sent"), [("strict", False), ("lenient", True)])
async def test_what_takes_longer_than_the_deadline_is_refused_or_passes_by_choice(
    monkeypatch: pytest.MonkeyPatch, validation: Validation, sent: bool
) -> None:
    monkeypatch.setattr(thorough_checks, "CHECK_S", 0.2)
    async with running() as checks:
        found = await prepared(checks, ENDLESS, {"a": "a" * 100_000}, validation)
        assert bool(found.problems) is not sent
        told = found.unchecked if sent else found.problems[0]
        assert told is not None
        assert "a could not be checked within 0.2 s: 100000 characters are too many for its pattern" in told.message
        # The process was ended with its check, and the next check has one of its own.
        valid = rows()
        monkeypatch.setattr(thorough_checks, "CHECK_S", 5)
        assert (await prepared(checks, ROWS, valid)).arguments is valid


async def test_one_caller_keeps_one_process_and_others_have_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough_checks, "CHECK_S", 3)
    order: list[str] = []
    first = anyio.Event()
    async with running() as checks, anyio.create_task_group() as group:

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


async def test_more_waiting_calls_of_one_caller_than_there_is_room_for_are_refused() -> None:
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
