"""An approval at one replica applies at all replicas with the same lock file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.clusters import running_cluster, running_store, start_again
from support.gateways import RunningGateway, text_of
from support.upstreams.running import scripted_http_server, tool
from support.worker_groups import until

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = (
    tool("echo", n={"type": "integer"}),
    {**tool("echo", n={"type": "integer"}), "description": "Other words"},
)


async def test_approved_change_applies_at_every_replica(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        scripted_http_server(tmp_path, "up", tools=[BEFORE], list_changed=True) as up,
    ):
        seed = tmp_path / "seed"
        seed.mkdir()
        (seed / "typegate.json").write_text(json.dumps({"mcpServers": {"up": up.config}}))
        command = [sys.executable, "-m", "gateway", "lock", "--config", str(seed / "typegate.json")]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=True, capture_output=True, env=env))
        files = {"typegate.lock": (seed / "typegate.lock").read_text()}
        async with running_cluster(tmp_path, {"up": up.config}, store={"url": store.url}, files=files) as cluster:
            for one in cluster.gateways:
                await one.until_listed("up__echo")

            async def holds(one: RunningGateway) -> bool:
                return "held" in text_of(await one.call("up__echo", {"n": 1}))

            async def is_approved(one: RunningGateway) -> bool:
                described = "Other words" in (await one.tools())["up__echo"]["description"]
                return described and not await holds(one)

            up.announce(tools=[AFTER], list_changed=True)
            for one in cluster.gateways:
                await until(lambda one=one: holds(one), 15)
            done = await cluster.gateways[0].admin("changes", "POST", {"server": "up"})
            assert done.status_code == 200, done.text
            for one in cluster.gateways:
                await until(lambda one=one: is_approved(one), 2)
            # Its own file says what it said; what was approved since holds after a restart, too.
            last = cluster.gateways[2]
            assert (last.config.parent / "typegate.lock").read_text() == files["typegate.lock"]
            assert await last.stop() == 0
            async with start_again(last.config.parent) as again:
                await again.until_listed("up__echo")
                await until(lambda: is_approved(again), 10)
