"""How fast the admin page shows 50 servers with 2,000 tools.

    python tests/bench/bench_page.py

Prints, for each room, the milliseconds from the request of the page to its first view with content, and those of one
keystroke in the filter of a list, each with the processor time of the page's thread, which other programs on a busy
machine do not change much. Both are measured in Chromium, which has to be installed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import anyio
from support.browsers import Visit, running_browser, visiting
from support.gateways import brief_pause, running_gateway
from support.upstreams.running import scripted_http_server, tool

SERVERS, TOOLS = 50, 40
ROUNDS = 7
# The elements that have to be visible in each room, as a selector and their least number.
ROOMS = {"overview": (".states li", SERVERS), "servers": (".list tbody tr", SERVERS), "tools": (".list tbody tr", 50)}
# Set before the scripts of the page run; resolves at the first frame that shows the content.
WATCH = """([selector, least]) => new Promise((resolve) => {
  const look = () => {
    if (document.querySelectorAll(selector).length >= least) resolve(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})"""
# One keystroke, until the frame after the list was drawn again.
TYPE = """([text]) => new Promise((resolve) => {
  const filter = document.querySelector("input[type=search]");
  const began = performance.now();
  filter.value = text;
  filter.dispatchEvent(new Event("input", { bubbles: true }));
  document.body.getBoundingClientRect();
  requestAnimationFrame(() => resolve(performance.now() - began));
})"""


class Clock:
    """The processor time of the main thread of a page, in milliseconds."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def now_ms(self) -> float:
        found = await self._session.send("Performance.getMetrics")
        return 1_000 * next(one["value"] for one in found["metrics"] if one["name"] == "TaskDuration")


def report(what: str, took_ms: list[float], cpu_ms: list[float]) -> None:
    """Print one line."""
    median_ms, median_cpu_ms = statistics.median(took_ms), statistics.median(cpu_ms)
    print(f"{what:22} {median_ms:7.0f} ms, at most {max(took_ms):.0f}; CPU {median_cpu_ms:.0f} ms", flush=True)


async def first_views(visit: Visit, clock: Clock) -> None:
    """Measure each room after a load of the whole page."""
    for room, wanted in ROOMS.items():
        took_ms: list[float] = []
        cpu_ms: list[float] = []
        for _ in range(ROUNDS):
            await visit.page.goto("about:blank")
            began_ms = await clock.now_ms()
            await visit.page.goto(f"{visit.origin}/admin/#/{room}", wait_until="commit")
            took_ms.append(await visit.page.evaluate(WATCH, list(wanted)))
            cpu_ms.append(await clock.now_ms() - began_ms)
        report(f"{room}: first view", took_ms, cpu_ms)


async def filters(visit: Visit, clock: Clock) -> None:
    """Measure the filter of the longest list."""
    await visit.go("tools")
    took_ms: list[float] = []
    cpu_ms: list[float] = []
    for text in ("s", "s4", "s49", "s49__tool3", "tool39", "nothing", "") * 3:
        began_ms = await clock.now_ms()
        took_ms.append(await visit.page.evaluate(TYPE, [text]))
        cpu_ms.append(await clock.now_ms() - began_ms)
    report("tools: filter", took_ms, cpu_ms)


async def main() -> None:
    """Measure a gateway with all servers connected."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        tools = [tool(f"tool{number}", path="string") for number in range(TOOLS)]
        async with scripted_http_server(path, "up", tools=tools) as up:
            servers: dict[str, Any] = {f"s{number}": up.config for number in range(SERVERS)}
            async with running_gateway(path, servers) as gateway, running_browser() as browser:
                with anyio.fail_after(120):
                    while len((await gateway.admin("wrappers")).json()["wrappers"]) < SERVERS * TOOLS:
                        await brief_pause()
                async with visiting(browser, gateway) as visit:
                    session = await visit.page.context.new_cdp_session(visit.page)
                    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
                    await first_views(visit, Clock(session))
                    await filters(visit, Clock(session))


if __name__ == "__main__":
    anyio.run(main)
