"""Reloads that come at the same time are made one after another."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from gateway.config.load import load
from gateway.config.model import Config
from gateway.config.plan import Steps, plan
from gateway.reload import Reloader


class Running:
    """Takes every configuration at once."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def reconfigure(self, config: Config, *, reloaded: bool = True) -> Steps:
        steps = plan(self.config, config)
        self.config = config
        return steps


def document(alias: str) -> str:
    return json.dumps({"mcpServers": {alias: {"command": "true"}}})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe with a name is what is read slowly")
async def test_a_reload_that_reads_slowly_is_not_applied_after_one_that_began_later(tmp_path: Path) -> None:
    path, pipe, newest = (tmp_path / name for name in ("typegate.json", "pipe", "newest.json"))
    path.write_text(document("first"))
    newest.write_text(document("newest"))
    running = Running(load(path))
    reloader = Reloader(running, check=lambda config: None)
    path.unlink()
    os.mkfifo(path)
    os.link(path, pipe)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(reloader.reload, path)
            # Once the first one reads.
            stream = await anyio.to_thread.run_sync(partial(pipe.open, "w"))
            newest.replace(path)
            group.start_soon(reloader.reload, path)
            await anyio.wait_all_tasks_blocked()
            with stream:
                stream.write(document("older"))
    assert (reloader.error, reloader.count) == (None, 2)
    assert list(running.config.servers) == ["newest"]
