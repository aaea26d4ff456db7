"""A foreign coroutine runs to its end or its timeout, whatever it does when cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.virtual_time import in_virtual_time
from support.waiting import brief_pause

from gateway.hooks.foreign_code import BaseExceptionRaised, DaemonThreads, ThreadsBusy, TimedOut, TimedRun

Made = Callable[[], Coroutine[Any, Any, Any]]


async def at_once() -> str:
    return "done"


async def after_a_while() -> str:
    await anyio.sleep(0.01)
    await asyncio.sleep(0)
    return "done"


async def with_an_asyncio_timeout_of_its_own() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        await anyio.sleep(0.01)
    return "done"


async def with_scopes_of_its_own() -> str:
    with anyio.move_on_after(0.01):
        await anyio.sleep_forever()
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.01)
    with pytest.raises(TimeoutError), anyio.fail_after(0.01):
        await anyio.sleep_forever()
    return "done"


@pytest.mark.parametrize("made", [at_once, after_a_while, with_an_asyncio_timeout_of_its_own, with_scopes_of_its_own])
@in_virtual_time
async def test_coroutine_that_finishes_in_time_returns_its_value(made: Made) -> None:
    assert await TimedRun(made(), 5) == "done"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def raises() -> None:
    raise KeyError("x")


async def raises_later() -> None:
    await anyio.sleep(0.01)
    raise KeyError("x")


@pytest.mark.parametrize("made", [raises, raises_later])
@in_virtual_time
async def test_exception_is_raised_to_the_caller(made: Made) -> None:
    with pytest.raises(KeyError):
        await TimedRun(made(), 5)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("later", [False, True])
@in_virtual_time
async def test_exception_reserved_for_the_loop_is_reported_as_interference(
    error: type[BaseException], later: bool
) -> None:
    async def interferes() -> None:
        if later:
            await anyio.sleep(0.001)
        raise error

    with pytest.raises(BaseExceptionRaised, match=error.__name__):
        await TimedRun(interferes(), 5)
    await anyio.lowlevel.checkpoint()


async def hangs() -> None:
    await asyncio.Event().wait()


async def hangs_in_a_scope() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        with anyio.move_on_after(100):
            await anyio.sleep_forever()


async def returns_when_cancelled() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "too late"
    return "never"


async def raises_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("closing failed")


async def clings() -> None:
    ends = 0
    while ends < 2:  # the second is the garbage collector's
        try:
            await asyncio.sleep(100)
        except GeneratorExit:
            ends += 1
        except BaseException:  # noqa: BLE001 - that is the point
            continue


LATE = [hangs, hangs_in_a_scope, returns_when_cancelled, raises_when_cancelled, clings]


@pytest.mark.parametrize("made", LATE)
@in_virtual_time
async def test_coroutine_that_overruns_times_out(made: Made) -> None:
    began_s = anyio.current_time()
    with pytest.raises(TimedOut):
        await TimedRun(made(), 0.05)
    assert anyio.current_time() - began_s < 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await anyio.sleep(0.001)


@in_virtual_time
async def test_coroutine_may_clean_up_after_its_timeout() -> None:
    closed: list[str] = []

    async def holds() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            closed.append("closed")

    with pytest.raises(TimedOut):
        await TimedRun(holds(), 0.02)
    assert closed == ["closed"]


@pytest.mark.parametrize("made", LATE)
@in_virtual_time
async def test_outer_cancellation_is_propagated(made: Made) -> None:
    passed = False
    began_s = anyio.current_time()
    with anyio.move_on_after(0.05) as scope:
        await TimedRun(made(), 100)
        passed = True
    assert scope.cancelled_caught
    assert not passed
    assert anyio.current_time() - began_s < 1
    await anyio.sleep(0.001)


async def test_thread_returns_its_value_or_raises_its_exception() -> None:
    threads = DaemonThreads("test")
    assert await threads.run(lambda x: x + 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)

    def leaves() -> None:
        raise SystemExit

    with pytest.raises(RuntimeError, match="SystemExit"):
        await threads.run(leaves)
    threads.close()


async def test_number_of_hanging_threads_is_bounded() -> None:
    threads, release = DaemonThreads("test", limit=2), threading.Event()
    for _ in range(2):
        with pytest.raises(TimedOut):
            await TimedRun(threads.run(release.wait), 0.02)
    refused = 0
    for _ in range(300):
        try:
            await TimedRun(threads.run(release.wait), 0.0001)
        except ThreadsBusy:
            refused += 1
        except TimedOut:
            continue
    assert refused > 0
    release.set()
    with anyio.fail_after(25):
        while True:
            try:
                assert await threads.run(lambda: "again") == "again"
                break
            except ThreadsBusy:
                await brief_pause()
    threads.close()
