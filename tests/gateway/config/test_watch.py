"""Reload requests: forced ones are not lost, and waiting ones are combined."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import anyio

from gateway.config.load import OtherFiles, ReloadRequests, digest_of, follow
from gateway.config.overlay import Change, Overlay


async def no_others() -> OtherFiles:
    return OtherFiles()


async def test_forced_reload_is_not_lost_while_another_waits() -> None:
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


async def test_signal_during_a_reload_forces_another_reload(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    runs, running, go_on = 0, anyio.Event(), anyio.Event()

    async def changed() -> None:
        nonlocal runs
        runs += 1
        running.set()
        await go_on.wait()

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            # Until the signal is listened for it would end the tests.
            before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                group.start_soon(lambda: follow(path, changed, hangups=True, other_files=no_others))
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


async def test_file_changed_since_it_was_read_is_a_change(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("one")
    other.write_text("as administrators have it by now")
    seen = {other: hashlib.sha256(b"as it was read").digest()}
    noticed = anyio.Event()

    async def changed() -> None:
        noticed.set()

    async def others() -> OtherFiles:
        return OtherFiles(files=(other,))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: follow(path, changed, hangups=False, other_files=others, seen=seen))
            await noticed.wait()
            group.cancel_scope.cancel()


async def test_file_deleted_right_after_a_reload_is_noticed(tmp_path: Path) -> None:
    path, folder = tmp_path / "file", tmp_path / "more"
    path.write_text("one")
    folder.mkdir()
    gone = folder / "gone"
    gone.write_text("read")
    runs = 0
    again = anyio.Event()

    async def changed() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            gone.unlink()
        else:
            again.set()

    async def others() -> OtherFiles:
        return OtherFiles(files=tuple(folder.iterdir()), folders=(folder,))

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            seen = {path: hashlib.sha256(b"none").digest()}
            group.start_soon(lambda: follow(path, changed, hangups=False, other_files=others, seen=seen))
            await again.wait()
            group.cancel_scope.cancel()


async def test_overlay_digest_is_of_the_content_that_was_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    overlay = Overlay(tmp_path, config, follows=True)
    assert overlay.digest is None
    assert overlay.path is not None
    Overlay(tmp_path, config).replace([Change(kind="server_disabled", target="bank")])
    read = Overlay(tmp_path, config, follows=True)
    assert read.digest == digest_of(overlay.path)
    assert read.digest is not None
