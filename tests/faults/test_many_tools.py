"""Ten thousand tools, in one server or fifty, do not block the event loop."""

import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.pace import slowness
from support.waiting import until

from gateway.config.load import loaded
from gateway.downstream.messages import ListResults
from gateway.process.memory import freeze_settled
from gateway.serving.app import Gateway, open_gateway

UPSTREAM = Path(__file__).parents[1] / "bench" / "upstream.py"
# The longest turn of the event loop, in seconds of its own thread, without other programs and threads. It takes 10
# to 25 ms, and took 180 to 360 where the catalog was built in it.
LIMIT_S = 0.1

pytestmark = pytest.mark.heavy


class Turns:
    """The longest turn of the loop since it was last asked for."""

    def __init__(self) -> None:
        self._longest_s = 0.0

    async def watch(self) -> None:
        before_s = time.thread_time()
        while True:
            await anyio.sleep(0.001)
            now_s = time.thread_time()
            self._longest_s, before_s = max(self._longest_s, now_s - before_s), now_s

    def take_longest_s(self) -> float:
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s


@asynccontextmanager
async def upstream(tools: int) -> AsyncIterator[str]:
    command = [sys.executable, str(UPSTREAM), "--tools", str(tools)]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = (await process.stdout.receive()).decode().strip()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def is_complete(gateway: Gateway, tools: int) -> bool:
    links = gateway.fleet.links.values()
    return len(gateway.registry.catalog.wrappers) == tools and all(link.session is not None for link in links)


@pytest.mark.parametrize(("servers", "tools"), [(1, 10_000), (50, 200)])
async def test_event_loop_is_not_blocked_by_ten_thousand_tools(servers: int, tools: int, tmp_path: Path) -> None:
    turns = Turns()
    async with upstream(tools) as url, anyio.create_task_group() as group:

        def configured(**first: Any) -> Any:
            entries: dict[str, Mapping[str, Any]] = {f"s{n}": {"url": f"{url}/{n}"} for n in range(servers)}
            entries["s0"] = {**entries["s0"], **first}
            whole = {"mcpServers": entries, "gateway": {"profiles": {"o": {"dialect": "openai", "maxTools": 20_000}}}}
            return loaded(json.dumps(whole), path=tmp_path / "typegate.json")

        group.start_soon(turns.watch)
        # Modules that are imported at first use are excluded, because they do not depend on the number of tools.
        async with open_gateway(configured(), state_dir=None) as gateway:
            await until(lambda: gateway.fleet.links["s0"].session is not None, 60)
        # Objects of earlier tests are excluded too: collecting them with the rest takes a second.
        gc.collect()
        gc.freeze()
        await anyio.sleep(0.01)  # until this turn is noted, too
        turns.take_longest_s()
        longest_s: dict[str, float] = {}
        async with open_gateway(configured(), state_dir=tmp_path / "state") as gateway:
            group.start_soon(freeze_settled, gateway.registry)
            await until(lambda: is_complete(gateway, servers * tools), 60)
            await anyio.sleep(2.5)  # the collector waits as long
            longest_s["first listing"] = turns.take_longest_s()
            view = await gateway.views.prepared("o")
            await ListResults().render_result(view, "tools", modern=True, shared=True)
            longest_s["first list in a dialect that rewrites"] = turns.take_longest_s()
            epochs = {alias: link.epoch for alias, link in gateway.fleet.links.items()}
            for link in gateway.fleet.links.values():
                link.drop(link.state, "lost")  # type: ignore[arg-type] # it has one
            await until(
                lambda: (
                    all(link.epoch > epochs[alias] for alias, link in gateway.fleet.links.items())
                    and is_complete(gateway, servers * tools)
                )
            )
            await anyio.sleep(0.5)
            longest_s["reconnection"] = turns.take_longest_s()
            version = gateway.registry.catalog.version
            gateway.fleet.links["s0"].refresh()
            await until(lambda: gateway.registry.catalog.version > version, 60)
            await anyio.sleep(0.5)
            longest_s["list_changed"] = turns.take_longest_s()
            await gateway.active.change(configured(displayName="Zero", tools={"tool_0007": {"hidden": True}}))
            await anyio.sleep(0.5)
            assert len(gateway.registry.catalog.wrappers) == servers * tools - 1
            longest_s["reload"] = turns.take_longest_s()
        turns.take_longest_s()
        async with open_gateway(configured(), state_dir=tmp_path / "state") as gateway:
            # It answers from the snapshot at once, and was not in the way of anything until then.
            assert len(gateway.registry.catalog.wrappers) == servers * tools
            longest_s["start from the snapshot"] = turns.take_longest_s()
        group.cancel_scope.cancel()
    assert max(longest_s.values()) < LIMIT_S * slowness(), longest_s
