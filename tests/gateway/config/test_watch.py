"""Requests for a reload: none that was forced is lost, and those that wait are one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio

from gateway.config.watch import OtherFiles, ReloadRequests, follow


async def no_others() -> OtherFiles:
    return OtherFiles()


async def test_a_forced_reload_that_comes_while_another_waits_is_made() -> None:
    requests = ReloadRequests()
    for order in ((False, True), (True, False), (False, True, False)):
        for forced in order:
            requests.add(forced=forced)
        assert await requests.next() is True
    requests.add(forced=False)
    requests.add(forced=False)
    assert await requests.next() is False
    with anyio.move_on_after(0.01) as scope:
        await requests.next()
    assert scope.cancelled_caught


async def test_a_signal_while_a_reload_runs_is_another_reload_whatever_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    runs, running, go_on = 0, anyio.Event(), anyio.Event()

    async def changed() -> None:
        nonlocal runs
        runs += 1
        running.set()
        await go_on.wait()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            # Until the signal is listened for it would end the tests.
            before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                group.start_soon(lambda: follow(path, changed, hangups=True, others=no_others))
                while not running.is_set():
                    os.kill(os.getpid(), signal.SIGHUP)
                    with anyio.move_on_after(0.01):
                        await running.wait()
                for _ in range(5):
                    os.kill(os.getpid(), signal.SIGHUP)
                    await anyio.lowlevel.checkpoint()
                go_on.set()
                while runs < 2:
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            finally:
                signal.signal(signal.SIGHUP, before)
