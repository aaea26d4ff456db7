"""Questions that servers ask during a trial of an administrator: each has one answer, and its end harms nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.gateways import TOKEN, RunningGateway, brief_pause, running_gateway
from support.upstreams.full_running import full_stdio
from support.upstreams.running import children_of

pytestmark = pytest.mark.heavy

HEAD = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = {"method": "elicitation/create", "params": {"message": "Where?", "requestedSchema": FORM}}
TRIAL = {"wrapper": "old__ask", "arguments": {"requests": {"who": QUESTION}}, "asks": True}
CITY = {"action": "accept", "content": {"city": "Oslo"}}


@asynccontextmanager
async def asking_gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """Start a gateway with a server that asks in the middle of a call."""
    old = full_stdio(tmp_path, "old", modern=False, elicitation=True)
    profiles = {"small": {"servers": ["old"]}}
    async with running_gateway(tmp_path, {"old": old.config}, gateway={"profiles": profiles}) as gateway:
        await gateway.until_listed("old__ask")
        gateway.client.timeout = httpx2.Timeout(60)
        yield gateway


async def events_of(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


@asynccontextmanager
async def asked_trial(
    gateway: RunningGateway, **members: Any
) -> AsyncIterator[tuple[str, int, AsyncIterator[dict[str, Any]]]]:
    """Start a trial, and wait for its question; yield its path, the id of the question, and the further events."""
    path, url = "", f"{gateway.origin}/admin/try"
    async with gateway.client.stream("POST", url, json={**TRIAL, **members}, headers=HEAD) as response:
        events = events_of(response)
        async for event in events:
            message = event["message"]
            if message["method"] == "typegate/trial":
                path = f"try/{message['params']['id']}/answer"
            elif "id" in message:
                yield path, message["id"], events
                return


async def test_each_question_has_one_answer(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as gateway:
        async with asked_trial(gateway) as (path, number, events):

            async def answer(question: int, result: dict[str, Any]) -> bool:
                sent = await gateway.admin(path, "POST", {"question": question, "result": result})
                answered: bool = sent.json()["answered"]
                return answered

            assert not await answer(number + 1, CITY)
            assert await answer(number, CITY)
            assert not await answer(number, {"action": "decline"})
            document = [event async for event in events][-1]
            assert "Oslo" in json.dumps(document["response"])
        assert not (await gateway.admin(path, "POST", {"question": number})).json()["answered"]


async def test_client_that_leaves_during_a_question_breaks_no_connection(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as gateway:
        async with asked_trial(gateway) as (path, number, _):
            pass
        with anyio.fail_after(60):
            while (await gateway.admin(path, "POST", {"question": number})).json()["answered"]:
                await brief_pause()
        # The stopped trial would be in the log by then, because a further one has ended.
        async with asked_trial(gateway) as (path, number, events):
            await gateway.admin(path, "POST", {"question": number, "result": CITY})
            assert "Oslo" in json.dumps([event async for event in events][-1])
        assert "failed unexpectedly" not in gateway.logged()


async def test_restarted_server_ends_the_connections_of_sessions_too(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as gateway, asked_trial(gateway) as (_, _, events):
        processes = (await gateway.admin("servers/old/log")).json()["processes"]
        assert len({process["pid"] for process in processes}) == 2
        assert (await gateway.admin("servers/old/restart", "POST")).status_code == 202
        document = [event async for event in events][-1]
        assert document["response"]["result"]["isError"] is True


async def test_profile_that_is_removed_during_a_trial_does_not_break_its_response(tmp_path: Path) -> None:
    async with asking_gateway(tmp_path) as gateway, asked_trial(gateway, profile="small") as (_, _, events):
        config = json.loads(gateway.config.read_text())
        del config["gateway"]["profiles"]
        gateway.config.write_text(json.dumps(config))
        gateway.process.send_signal(signal.SIGHUP)
        with anyio.fail_after(60):
            while '"small"' in (await gateway.admin("profiles")).text:
                await brief_pause()
        for process in children_of(gateway.process.pid):
            os.kill(process, signal.SIGKILL)
        document = [event async for event in events][-1]
        assert document["response"]["result"]["isError"] is True
        assert document["problems"] == []
