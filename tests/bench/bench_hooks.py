"""Measure hooks with `python tests/bench/bench_hooks.py`: one process, a real gateway, and an immediate upstream.

nothing   the pipeline with the seam taken out of it, and with the seam and no hook, by turns
one hook  a hook that does nothing, before and after; the cost is for one phase
webhook   a hook at the other end of a connection to this machine
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import anyio
from support.receiving import SECRET, receiver
from support.upstreams.running import scripted_stdio_server, tool

from gateway.access.principal import LOCAL
from gateway.calls import pipeline as pipeline_module
from gateway.calls.caller import Caller
from gateway.config.hooks_config import HookConfig
from gateway.config.load import parse
from gateway.hooks import Hook
from gateway.hooks.adapters.webhook import Webhook
from gateway.hooks.hook import After, Before, Call, Result
from gateway.hooks.runner import HookRunner
from gateway.serving.app import Gateway, open_gateway

ROUNDS, CALLS = 15, 4_000
SEAM = {
    "            with self._hooks.tool_call(wrapper, via, caller) as invocation:\n": "            if True:\n",
    "                call.invocation = invocation\n": "",
    "await self._run(call, invocation)": "await self._run(call, None)",
    "await invocation.send(call.prepared.arguments, call)": "await call.send()",
    "if invocation.answer is None:": "if True:",
}
PARAMS = {"name": "up__send", "arguments": {"to": "ann@example.test", "note": "n", "count": 3}}


class Nothing(Hook):
    """Does nothing, before and after."""

    async def before_call(self, call: Call) -> Before:
        return None

    async def after_call(self, call: Call, result: Result) -> After:
        return None


async def took_us(call: Callable[[], Awaitable[Any]], calls: int = CALLS) -> float:
    """Return the microseconds of one of this many calls."""
    began_s = time.perf_counter()
    for _ in range(calls):
        await call()
    return (time.perf_counter() - began_s) / calls * 1e6


async def compared(ways: dict[str, Callable[[], Awaitable[Any]]], prepare: Callable[[str], None]) -> dict[str, float]:
    """The median of each way, measured by turns, so that what the machine does besides hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            prepare(name)
            found[name].append(await took_us(call))
    return {name: statistics.median(times) for name, times in found.items()}


def without_seam(gateway: Gateway) -> Any:
    """Return the pipeline compiled from source without the calls of hooks."""
    source = inspect.getsource(pipeline_module)
    for line, instead in SEAM.items():
        assert line in source, f"the seam has changed: {line}"
        source = source.replace(line, instead)
    module = types.ModuleType("pipeline_without_seam")
    sys.modules[module.__name__] = module
    exec(compile(source, "pipeline_without_seam", "exec"), module.__dict__)
    made = object.__new__(module.CallPipeline)
    made.__dict__.update(gateway.pipeline.__dict__)
    return made


async def measure(gateway: Gateway) -> None:
    """Measure, and print what was found."""
    pipeline = gateway.pipeline
    caller = Caller(principal=LOCAL, view=gateway.views.view(), request_id=1)

    async def answered(*_: Any, **__: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "done"}], "structuredContent": {"done": True}}

    pipeline._parts.forwarder.send = answered  # type: ignore[method-assign] # nothing is sent
    without = without_seam(gateway)

    def runners(count: int) -> tuple[HookRunner, ...]:
        return tuple(
            HookRunner(Nothing({}), HookConfig(name=f"nothing-{number}", use="bench")) for number in range(count)
        )

    sets = {"one": runners(1), "six": runners(6)}

    def prepare(name: str) -> None:
        wanted = sets.get(name, ())
        if gateway.hooks.runners != wanted:
            gateway.hooks.replace(wanted)

    def call() -> Awaitable[Any]:
        return pipeline.call(PARAMS, caller)

    def removed() -> Awaitable[Any]:
        return without.call(PARAMS, caller)  # type: ignore[no-any-return] # as measured

    await took_us(call)
    found = await compared({"removed": removed, "none": call, "one": call, "six": call}, prepare)
    print(f"a call, seam taken out            {found['removed']:8.2f} µs")
    print(f"a call, no hook configured        {found['none']:8.2f} µs  ({found['none'] - found['removed']:+.2f})")
    both = found["one"] - found["none"]
    print(f"a call, one hook that does nothing{found['one']:8.2f} µs  ({both:+.2f} for both phases)")
    more = (found["six"] - found["one"]) / 5
    print(f"each further hook                 {more:8.2f} µs  for both phases, {more / 2:.2f} for one")
    with receiver() as remote:
        webhook = HookRunner(Webhook({"url": remote.url, "secret": SECRET}), HookConfig(name="webhook", use="bench"))
        gateway.hooks.replace((webhook,))
        await took_us(call, 20)
        times = [await took_us(call, 50) for _ in range(9)]
        print(f"a webhook on this machine         {statistics.median(times) / 2 / 1000:8.2f} ms  for one phase")
        assert webhook.counts["failed"] == 0, webhook.last_error


async def main() -> None:
    """Start a gateway with one upstream and measure in it."""
    with tempfile.TemporaryDirectory() as folder:
        config, _ = scripted_stdio_server(
            Path(folder), "up", tools=[tool("send", "to", note="string", count="integer")]
        )
        whole = parse(json.dumps({"mcpServers": {"up": config}}))
        async with open_gateway(whole, state_dir=None) as gateway:
            await gateway.fleet.settled(10)
            await measure(gateway)


if __name__ == "__main__":
    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
