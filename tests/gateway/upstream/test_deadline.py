"""A deadline ends one wait and nothing else."""

import asyncio

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from gateway.upstream.deadline import Deadline


async def test_a_wait_that_lasts_too_long_is_a_time_out() -> None:
    with anyio.fail_after(5), pytest.raises(TimeoutError), Deadline(0.02):
        await anyio.sleep_forever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await anyio.lowlevel.checkpoint()


async def test_what_ends_in_time_is_left_alone() -> None:
    with Deadline(0.02) as deadline:
        await anyio.lowlevel.checkpoint()
    deadline.extend()
    await anyio.sleep(0.05)


async def test_a_sign_of_life_starts_it_anew_and_holding_stops_it() -> None:
    with anyio.fail_after(5):
        with Deadline(0.2) as deadline:
            for _ in range(3):
                await anyio.sleep(0.1)
                deadline.extend()
            deadline.hold()
            deadline.hold()
            deadline.release()
            await anyio.sleep(0.3)
        deadline.release()
        deadline.release()
        with pytest.raises(TimeoutError), deadline:
            await anyio.sleep_forever()


async def test_the_cancellation_of_somebody_else_goes_on() -> None:
    ended: list[str] = []

    async def wait(within_s: float) -> None:
        try:
            with Deadline(within_s):
                await anyio.sleep_forever()
        except TimeoutError:
            ended.append("time-out")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with anyio.move_on_after(0.02) as scope:
        await wait(5)
    assert scope.cancelled_caught
    async with anyio.create_task_group() as group:
        group.start_soon(wait, 0.01)
        with anyio.fail_after(5):
            while not ended[1:]:
                await anyio.lowlevel.checkpoint()
    # Both at the same moment: whoever cancels from outside must see it happen.
    with anyio.move_on_after(0) as scope:
        await wait(0)
    assert scope.cancelled_caught
    assert ended == ["cancelled", "time-out", "cancelled"]


async def test_loops_in_several_threads_and_one_after_another_have_their_own() -> None:
    async def ends_in_time() -> None:
        with anyio.fail_after(5):
            for _ in range(20):
                with pytest.raises(TimeoutError), Deadline(0.01):
                    await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(ends_in_time)
        for _ in range(3):
            group.start_soon(anyio.to_thread.run_sync, anyio.run, ends_in_time)
    await anyio.to_thread.run_sync(anyio.run, ends_in_time)
    await ends_in_time()
