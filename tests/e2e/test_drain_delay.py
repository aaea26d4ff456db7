"""Shutdown behind a load balancer: /readyz fails first, requests are still served, then the gateway drains."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import anyio
import pytest
from support.callers import call_of, listen_to, post_stream
from support.gateways import brief_pause, running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_stdio_server

DELAY_S = 2.5


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.heavy)])
@pytest.mark.heavy
async def test_new_calls_are_answered_during_the_drain_delay(tmp_path: Path, workers: int) -> None:
    server, recording = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo", "sleep"))
    server |= {"copies": True} if workers > 1 else {}
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    settings = {"drainDelay": DELAY_S}
    async with running_gateway(tmp_path, {"up": server}, gateway=settings, arguments=arguments) as gateway:
        await gateway.until_listed("up__echo")
        async with post_stream(gateway, listen_to()) as stream:
            await stream.next()
            began_s = time.monotonic()
            gateway.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(20):
                while (await gateway.client.get(f"{gateway.origin}/readyz")).status_code != 503:
                    await brief_pause()
            assert time.monotonic() - began_s < DELAY_S
            # Until the load balancer notices the shutdown, new connections are served as before.
            assert text_of(await gateway.call("up__echo", {"n": 1}))
            running: list[str] = []

            async def call() -> None:
                answer = await gateway.post(call_of("up__sleep", {"seconds": DELAY_S + 0.5}))
                running.append(answer.text)

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                rest = await stream.rest()
                assert rest[-1]["result"]["resultType"] == "complete"
                assert time.monotonic() - began_s >= DELAY_S
            assert '"isError":true' not in running[0]
            assert await gateway.process.wait() == 0
        assert len(recording.calls("sleep")) == 1


async def test_second_signal_ends_the_drain_delay(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}, gateway={"drainDelay": 60}) as gateway:
        began_s = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            while (await gateway.client.get(f"{gateway.origin}/readyz")).status_code != 503:
                await brief_pause()
        gateway.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            assert await gateway.process.wait() == 0
        assert time.monotonic() - began_s < 30
