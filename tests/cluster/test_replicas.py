"""Three replicas behind a round-robin load balancer serve as one, in both eras."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.callers import HandshakeSession, Stream, get_stream, handshake, hello, listen_to, post_stream
from support.clusters import Cluster, running_cluster
from support.gateways import messages_of
from support.pace import limit_now
from support.state_checks import request_state_and_task_hold
from support.upstreams.full_running import full_http
from support.upstreams.running import scripted_http_server, tool

pytestmark = pytest.mark.heavy

ECHO = tool("echo", n={"type": "integer"})
PROGRESS = tool("progress", count={"type": "integer"})
HANG = tool("hang")


async def listed(cluster: Cluster, *names: str) -> None:
    for one in cluster.gateways:
        await one.until_listed(*names)


def elsewhere(cluster: Cluster, session: HandshakeSession) -> list[HandshakeSession]:
    """The same session through every other gateway."""
    owner = cluster.named(session.headers["mcp-session-id"])
    others = [one for index, one in enumerate(cluster.gateways) if index != owner]
    return [HandshakeSession(gateway=one, headers=session.headers) for one in others]


async def test_calls_sessions_and_streams_of_both_eras_work_on_any_connection(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, PROGRESS, HANG], sse=True, list_changed=True) as up,
        running_cluster(tmp_path, {"up": up.config}) as cluster,
    ):
        await listed(cluster, "up__echo")
        sessions = [await handshake(cluster.any) for _ in range(9)]
        assert {cluster.named(one.headers["mcp-session-id"]) for one in sessions} == {0, 1, 2}

        async def converse(index: int) -> None:
            for step in range(6):
                number = index * 100 + step
                answer = await sessions[index].call("up__echo", {"n": number}, request_id=number)
                assert answer["id"] == number
                assert answer["result"]["structuredContent"] == {"n": number}
                modern = await cluster.any.call("up__echo", {"n": -number})
                assert modern["structuredContent"] == {"n": -number}
            body = {
                "jsonrpc": "2.0", "id": "p", "method": "tools/call",
                "params": {"name": "up__progress", "arguments": {"count": 3}, "_meta": {"progressToken": index}},
            }  # fmt: skip
            *steps, last = messages_of((await sessions[index].post(body)).text)
            assert [one["params"]["progressToken"] for one in steps] == [index] * 3
            assert last["id"] == "p"

        async with anyio.create_task_group() as group:
            for index in range(len(sessions)):
                group.start_soon(converse, index)

        session = sessions[0]
        away, further = elsewhere(cluster, session)
        # Cancelled through one gateway, called through another, run at the third.
        async with anyio.create_task_group() as group:
            answers: list[dict[str, Any]] = []

            async def hang() -> None:
                answers.append(await away.call("up__hang", {}, request_id="h"))

            group.start_soon(hang)
            await up.recording.until(lambda record: len(record.calls("hang")) == 1)
            await further.notify("notifications/cancelled", requestId="h")
        assert answers[0]["error"]["code"] == -32800
        # A handshake session receives list changes through another gateway, and a modern caller through any gateway.
        async with (
            get_stream(away) as stream,
            post_stream(cluster.any, listen_to()) as listening,
        ):
            assert (await listening.next())["method"] == "notifications/subscriptions/acknowledged"
            up.announce(tools=[ECHO, PROGRESS, HANG, tool("fresh")], list_changed=True)
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
            assert (await listening.next())["method"] == "notifications/tools/list_changed"
        assert (await cluster.any.client.delete(cluster.any.url, headers=session.headers)).status_code == 204
        for one in (session, away, further):
            assert (await one.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404


async def test_session_belongs_to_its_caller_at_every_replica(tmp_path: Path) -> None:
    keys = {"auth": {"apiKeys": [{"name": "ada", "key": "k-ada"}, {"name": "bob", "key": "k-bob"}]}}
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO]) as up,
        running_cluster(tmp_path, {"up": up.config}, gateway=keys) as cluster,
    ):
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        session = await handshake(cluster.any, authorization="Bearer k-ada")
        own = session.headers["mcp-session-id"]
        for one in cluster.gateways:
            assert (await one.post(ping, session.headers)).status_code == 200
            assert (await one.post(ping, {**session.headers, "authorization": "Bearer k-bob"})).status_code == 404
            for made_up in (own[:-1] + "0", own.partition(".")[0] + "." + "f" * 48, "typegate-9." + "0" * 48, "x", "."):
                headers = {**session.headers, "mcp-session-id": made_up}
                assert made_up == own or (await one.post(ping, headers)).status_code == 404


async def test_request_state_and_task_are_valid_at_every_replica(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "f", modern=True) as full,
        running_cluster(tmp_path, {"f": full.config}) as cluster,
    ):
        await listed(cluster, "f__ask")
        for begins, ends in ((0, 1), (1, 2), (2, 0)):
            await request_state_and_task_hold(cluster.gateways[begins], cluster.gateways[ends])


async def test_host_is_asked_and_answers_through_another_replica(tmp_path: Path) -> None:
    form = {"type": "object", "properties": {"is": {"type": "string"}}}
    question = {"mode": "form", "message": "Who?", "requestedSchema": form}
    wanted = {"who": {"method": "elicitation/create", "params": question}}
    async with (
        full_http(tmp_path, "f", modern=True) as full,
        running_cluster(tmp_path, {"f": full.config}) as cluster,
    ):
        await listed(cluster, "f__ask")
        greeting = hello()
        greeting["params"]["capabilities"] = {"elicitation": {}}
        opened = await cluster.gateways[0].post(greeting)
        headers = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        body = {
            "jsonrpc": "2.0", "id": "a", "method": "tools/call",
            "params": {"name": "f__ask", "arguments": {"requests": wanted}},
        }  # fmt: skip
        head = {**headers, "accept": "application/json, text/event-stream"}
        one = cluster.gateways[1]
        async with one.client.stream("POST", one.url, json=body, headers=head, timeout=30) as response:
            stream = Stream(response)
            elicitation = await stream.next()
            assert elicitation["method"] == "elicitation/create"
            answer = {"action": "accept", "content": {"is": "Ada"}}
            posted = await cluster.gateways[2].post(
                {"jsonrpc": "2.0", "id": elicitation["id"], "result": answer}, headers
            )
            assert posted.status_code == 202
            done = await stream.next()
        assert done["result"]["structuredContent"] == {"replies": {"who": answer}}


async def test_killed_replica_loses_only_its_own_sessions(tmp_path: Path) -> None:
    async with (
        scripted_http_server(tmp_path, "up", tools=[ECHO, HANG]) as up,
        running_cluster(tmp_path, {"up": up.config}) as cluster,
    ):
        await listed(cluster, "up__echo")
        sessions = {
            cluster.named((one := await handshake(cluster.any)).headers["mcp-session-id"]): one for _ in range(6)
        }
        assert set(sessions) == {0, 1, 2}
        survivors = [HandshakeSession(gateway=cluster.gateways[index], headers=sessions[0].headers) for index in (1, 2)]
        answers: list[dict[str, Any]] = []

        async def hang() -> None:
            answers.append(await survivors[0].call("up__hang", {}, request_id="h"))

        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await up.recording.until(lambda record: len(record.calls("hang")) == 1)
            cluster.gateways[0].process.send_signal(signal.SIGKILL)
            await cluster.gateways[0].process.wait()
        assert "whether the request was carried out is not known" in answers[0]["error"]["message"]
        for one in survivors:
            began_s = time.monotonic()
            gone = await one.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
            assert gone.status_code == 404
            assert time.monotonic() - began_s < await limit_now(2.5)
        for index in (1, 2):
            for number in range(10):
                answer = await sessions[index].call("up__echo", {"n": number})
                assert answer["result"]["structuredContent"] == {"n": number}
        # Connect again through the load balancer, as a host does after a 404.
        fresh = await handshake(cluster.any)
        assert (await fresh.call("up__echo", {"n": 1}))["result"]["structuredContent"] == {"n": 1}
