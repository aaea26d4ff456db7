"""A deadline cancels its own wait and nothing else."""

import asyncio

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from support.virtual_time import in_virtual_time

from gateway.upstream.session import Deadline


@in_virtual_time
async def test_wait_over_the_deadline_times_out() -> None:
    with anyio.fail_after(25), pytest.raises(TimeoutError), Deadline(0.02):
        await anyio.sleep_forever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await anyio.lowlevel.checkpoint()


@in_virtual_time
async def test_finished_work_is_not_cancelled_by_the_deadline() -> None:
    with Deadline(0.02) as deadline:
        await anyio.lowlevel.checkpoint()
    deadline.extend()
    await anyio.sleep(0.05)


@in_virtual_time
async def test_extending_restarts_the_deadline_and_holding_pauses_it() -> None:
    with anyio.fail_after(25):
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


@in_virtual_time
async def test_outer_cancellation_is_not_swallowed() -> None:
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
        with anyio.fail_after(25):
            while not ended[1:]:
                await anyio.lowlevel.checkpoint()
    # Both at the same moment: a cancellation from outside must not be hidden.
    with anyio.move_on_after(0) as scope:
        await wait(0)
    assert scope.cancelled_caught
    assert ended == ["cancelled", "time-out", "cancelled"]


async def test_event_loops_have_their_own_deadlines() -> None:
    async def finishes_within_limit() -> None:
        with anyio.fail_after(25):
            for _ in range(20):
                with pytest.raises(TimeoutError), Deadline(0.01):
                    await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(finishes_within_limit)
        for _ in range(3):
            group.start_soon(anyio.to_thread.run_sync, anyio.run, finishes_within_limit)
    await anyio.to_thread.run_sync(anyio.run, finishes_within_limit)
    await finishes_within_limit()
