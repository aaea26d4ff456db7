"""A caller that cancels or disconnects ends its call upstream, in every mix of eras and transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.callers import call_of, handshake, hello, running_host
from support.gateways import RunningGateway, brief_pause, envelope, running_gateway
from support.upstreams.running import Recording, builtin_tools, scripted_http_server, scripted_stdio_server

# Half of all faults are waits: of deadlines, restarts and pauses.
pytestmark = pytest.mark.heavy

UPSTREAMS = ("stdio-new", "stdio-old", "http-new", "http-old")


@asynccontextmanager
async def hanging_upstreams(tmp_path: Path) -> AsyncIterator[tuple[dict[str, Any], dict[str, Recording]]]:
    tools = builtin_tools("hang", "echo")
    new, new_record = scripted_stdio_server(tmp_path, "stdio-new", tools=tools, modern=True)
    old, old_record = scripted_stdio_server(tmp_path, "stdio-old", tools=tools, modern=False)
    async with (
        scripted_http_server(tmp_path, "http-new", tools=tools, modern=True) as http_new,
        scripted_http_server(tmp_path, "http-old", tools=tools, modern=False) as http_old,
    ):
        servers = {"stdio-new": new, "stdio-old": old, "http-new": http_new.config, "http-old": http_old.config}
        records = (new_record, old_record, http_new.recording, http_old.recording)
        yield servers, dict(zip(UPSTREAMS, records, strict=True))


async def until_cancelled(record: Recording, alias: str) -> None:
    [call] = record.calls("hang")
    await record.until(lambda one: call["id"] in one.cancelled(), within_s=10)
    assert record.calls("hang") == [call], alias


async def until_idle(gateway: RunningGateway) -> None:
    with anyio.fail_after(25):
        while any([(await gateway.server(alias))["inFlight"] for alias in UPSTREAMS]):
            await brief_pause()


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_closing_the_connection_cancels_the_call_upstream(tmp_path: Path, era: str) -> None:
    async with hanging_upstreams(tmp_path) as (servers, records), running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{alias}__hang" for alias in UPSTREAMS))
        session = await handshake(gateway)

        async def ask(alias: str, client: httpx2.AsyncClient) -> None:
            body = call_of(f"{alias}__hang")
            head = {"accept": "application/json, text/event-stream"}
            if era == "modern":
                head |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
                head["mcp-name"] = body["params"]["name"]
            else:
                del body["params"]["_meta"]
                head |= session.headers
            await client.post(gateway.url, json=body, headers=head, timeout=60)

        async with anyio.create_task_group() as group:
            for alias in UPSTREAMS:
                group.start_soon(ask, alias, gateway.client)
            for alias in UPSTREAMS:
                await records[alias].until(lambda one: one.calls("hang"), within_s=10)
            group.cancel_scope.cancel()
        for alias in UPSTREAMS:
            await until_cancelled(records[alias], alias)
        await until_idle(gateway)
        for alias in UPSTREAMS:
            assert (await gateway.call(f"{alias}__echo", {"a": 1}))["structuredContent"] == {"a": 1}


async def test_cancelled_notification_of_a_session_cancels_the_call_upstream(tmp_path: Path) -> None:
    async with hanging_upstreams(tmp_path) as (servers, records), running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed(*(f"{alias}__hang" for alias in UPSTREAMS))
        session, stranger = await handshake(gateway), await handshake(gateway)
        answers: dict[str, Any] = {}

        async def ask(alias: str) -> None:
            answers[alias] = await session.call(f"{alias}__hang", request_id=alias)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for alias in UPSTREAMS:
                    group.start_soon(ask, alias)
                for alias in UPSTREAMS:
                    await records[alias].until(lambda one: one.calls("hang"), within_s=10)
                    await stranger.notify("notifications/cancelled", requestId=alias)
                assert (await session.call("stdio-new__echo", request_id="aside"))["result"]
                assert [record.cancelled() for record in records.values()] == [[], [], [], []]
                for alias in UPSTREAMS:
                    await session.notify("notifications/cancelled", requestId=alias)
        assert {alias: answer["id"] for alias, answer in answers.items()} == {alias: alias for alias in UPSTREAMS}
        for alias in UPSTREAMS:
            await until_cancelled(records[alias], alias)
        await until_idle(gateway)


@pytest.mark.parametrize("era", ["modern", "handshake"])
@pytest.mark.parametrize("way", ["config", "url"])
async def test_cancelled_notification_over_stdio_cancels_the_call_upstream(tmp_path: Path, era: str, way: str) -> None:
    async with hanging_upstreams(tmp_path) as (servers, records), running_gateway(tmp_path, servers) as gateway:
        if way == "url":
            await gateway.until_listed(*(f"{alias}__hang" for alias in UPSTREAMS))
            arguments = ["--url", gateway.url]
        else:
            assert await gateway.stop() == 0
            arguments = ["--config", str(gateway.config), "--state-dir", str(tmp_path / "own")]
        async with running_host(tmp_path, *arguments) as host:
            await host.answer(hello())
            await host.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await host.until_listed(*(f"{alias}__hang" for alias in UPSTREAMS))
            for alias in UPSTREAMS:
                body = call_of(f"{alias}__hang", request_id=alias)
                if era == "handshake":
                    del body["params"]["_meta"]
                await host.send(body)
                await records[alias].until(lambda one: one.calls("hang"), within_s=10)
                gone = {"requestId": alias, **({"_meta": envelope()} if era == "modern" else {})}
                await host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})
                await until_cancelled(records[alias], alias)
            answer = await host.answer(call_of("stdio-old__echo", {"a": 1}, request_id="after"))
            assert answer["result"]["structuredContent"] == {"a": 1}
            assert await host.leave() == 0
