"""Messages, state, sessions and tasks of one caller are not accessible to another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from e2e.features_of_input import QUESTIONS, REPLIES
from e2e.lanes import Lane, entries
from support.gateways import MODERN, RunningGateway, running_gateway
from support.hosts import Host
from support.hosts_connected import HttpHost, http_host
from support.upstreams.full_running import FullServer, full_http, full_stdio

pytestmark = pytest.mark.heavy

CALLERS = 50
TASKS = "io.modelcontextprotocol/tasks"
KEYS = [f"key-of-caller-{number:02}-and-of-nobody-else" for number in range(CALLERS)]


def with_keys(count: int = CALLERS) -> dict[str, Any]:
    """The gateway's part of a configuration in which each caller has a key."""
    return {"auth": {"apiKeys": [{"name": f"caller-{at:02}", "key": key} for at, key in enumerate(KEYS[:count])]}}


def bearer(number: int) -> dict[str, str]:
    """The header of a caller."""
    return {"authorization": f"Bearer {KEYS[number]}"}


@asynccontextmanager
async def two_hosts(
    gateway: RunningGateway, version: str, server: FullServer, *, keys: bool = True, **options: Any
) -> AsyncIterator[tuple[Lane, Lane]]:
    """Yield two callers, each with its own key by default."""
    own = [bearer(number) if keys else {} for number in range(2)]
    async with (
        http_host(gateway.url, version, gateway.client, headers=own[0], **options) as first,
        http_host(gateway.url, version, gateway.client, headers=own[1], **options) as second,
    ):
        lanes = Lane(host=first, server=server, through=True), Lane(host=second, server=server, through=True)
        await lanes[0].ready()
        yield lanes


def marked(host: Host, since: int = 0) -> set[str]:
    """Every marker that reached a host."""
    received = json.dumps([one.message for one in host.received[since:]])
    return {word for word in received.replace('"', " ").split() if word.startswith("marker-")}


async def talks(lane: Lane, meet: int) -> None:
    """Receive the progress, the log and the question of this call, and none of the concurrent calls."""
    host, marker = lane.host, f"marker-{lane.server.name}-{lane.host.name}"
    since = len(host.received)
    await host.level("debug")
    # All callers use the same ids and tokens.
    params = {"arguments": {"marker": marker, "meet": meet}, "_meta": {"progressToken": "token"}}
    result = await host.result("tools/call", {"name": lane.name("talk"), **params}, within_s=30)
    replies = {"who": {"action": "accept", "content": {"said": marker}}}
    assert result["structuredContent"] == {"marker": marker, "replies": replies}
    assert marked(lane.host, since) == {marker}
    progress = host.of("notifications/progress", since)
    assert [(one.params["progressToken"], one.params["message"]) for one in progress] == [("token", marker)]
    assert [one.params["data"] for one in host.of("notifications/message", since)] == [marker]


async def logs(lane: Lane, meet: int) -> None:
    """Receive the log of this call, and none of the concurrent calls."""
    marker, since = f"marker-{lane.server.name}-{lane.host.name}", len(lane.host.received)
    arguments = {"levels": ["error"], "data": marker, "meet": meet}
    await lane.host.call(lane.name("log"), arguments, within_s=30)
    assert marked(lane.host, since) == {marker}


async def together(what: Callable[[Lane, int], Awaitable[None]], lanes: Sequence[Lane]) -> None:
    """Do it on all lanes at once."""
    async with anyio.create_task_group() as group:
        for lane in lanes:
            group.start_soon(what, lane, len(lanes))


@pytest.mark.parametrize("way", ["directly", "with keys", "without keys"])
async def test_each_of_fifty_callers_receives_only_its_own_messages(way: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        many = {"maxConcurrency": 64}
        modern = await stack.enter_async_context(full_http(tmp_path, "modern", modern=True, **many))
        asking = await stack.enter_async_context(full_http(tmp_path, "asking", modern=False, elicitation=True, **many))
        shared = await stack.enter_async_context(full_http(tmp_path, "shared", modern=False, **many))
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30, limits=limits))
        through = way != "directly"
        if through:
            block = entries([modern, asking, shared])
            keys = with_keys() if way == "with keys" else {}
            gateway = await stack.enter_async_context(running_gateway(tmp_path, block, gateway=keys))
        hosts: list[HttpHost] = []
        for number in range(CALLERS):
            version = MODERN if number % 2 else "2025-11-25"
            url = gateway.url if through else (modern if number % 2 else asking).config["url"]
            headers = bearer(number) if way == "with keys" else {}
            hosts.append(await stack.enter_async_context(http_host(url, version, client, headers=headers)))
            hosts[-1].name = str(number)
            await hosts[-1].open_stream()

        def lanes(server: FullServer, some: Sequence[HttpHost]) -> list[Lane]:
            return [Lane(host=host, server=server, through=through) for host in some]

        for server in (modern, asking, shared) if through else ():
            await lanes(server, hosts)[0].ready()
        await together(talks, lanes(modern, hosts if through else hosts[1::2]))
        await together(talks, lanes(asking, hosts[::2]))
        if through:
            await together(logs, lanes(shared, hosts))
        # A late leak would have arrived by now: every host has been answered again since.
        for host in hosts:
            await host.every("tools")
            assert {one.rpartition("-")[2] for one in marked(host)} == {host.name}


@pytest.mark.parametrize(
    ("version", "modern", "keys"),
    [(MODERN, True, False), (MODERN, False, True), ("2025-11-25", True, True), ("2025-11-25", False, False)],
)
async def test_logs_of_a_shared_connection_reach_no_caller(
    version: str, modern: bool, keys: bool, tmp_path: Path
) -> None:
    # Over stdio, a log message does not say to which request it belongs.
    server = full_stdio(tmp_path, "shared", modern=modern)
    async with (
        running_gateway(tmp_path, entries([server]), gateway=with_keys(2) if keys else {}) as gateway,
        two_hosts(gateway, version, server, keys=keys) as (first, second),
    ):
        for lane in (first, second):
            await lane.host.open_stream()
            await lane.host.level("debug")
        async with anyio.create_task_group() as group:
            for lane, marker in ((first, "marker-1"), (second, "marker-2")):
                arguments = {"levels": ["error"], "data": marker, "meet": 2}
                group.start_soon(lane.host.call, lane.name("log"), arguments)
        assert marked(first.host) | marked(second.host) == set()
        await first.call("log", levels=["error"], data="marker-alone")
        await first.host.until(lambda: marked(first.host) == {"marker-alone"})
        assert (await second.call("echo", after=1))["structuredContent"] == {"after": 1}
        assert marked(second.host) == set()


@asynccontextmanager
async def asked_once(tmp_path: Path) -> AsyncIterator[tuple[Lane, Lane, FullServer, dict[str, Any]]]:
    """Yield two callers of a modern server that has asked the first one, and the params of the continuation."""
    async with (
        full_http(tmp_path, "s", modern=True) as server,
        running_gateway(tmp_path, entries([server]), gateway=with_keys(2)) as gateway,
        two_hosts(gateway, MODERN, server) as (mine, other),
    ):
        wanted = {"who": QUESTIONS["who"]}
        params = {"name": mine.name("ask"), "arguments": {"requests": wanted}}
        result = (await mine.host.ask("tools/call", params))["result"]
        named = {"who": mine.expected_request(QUESTIONS["who"])}
        assert (result["resultType"], result["inputRequests"]) == ("input_required", named)
        assert "état" not in result["requestState"]
        replies = {"who": REPLIES["who"]}
        yield mine, other, server, {**params, "inputResponses": replies, "requestState": result["requestState"]}


def misuses(mine: Lane, other: Lane, full: dict[str, Any]) -> list[tuple[Lane, str, dict[str, Any]]]:
    """Everything that may not be done with a request state: who sends what."""
    state, more = full["requestState"], {"requests": {**full["arguments"]["requests"], "more": QUESTIONS["where"]}}
    middle = len(state) // 2
    changed = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
    interview = {"name": mine.name("interview"), "arguments": {"requests": json.dumps(full["arguments"]["requests"])}}
    talk = {"name": mine.name("talk"), "arguments": {"marker": "m"}}
    return [
        (other, "tools/call", full),
        *((mine, "tools/call", {**full, "requestState": one}) for one in (changed, state[:-4], "état 0000", "", ".")),
        (mine, "tools/call", {**full, "arguments": more}),
        (mine, "tools/call", {**full, **talk}),
        (mine, "prompts/get", {**full, **interview}),
        (mine, "prompts/get", full),
        (mine, "resources/read", {**full, "uri": mine.uri("guarded")}),
    ]


async def test_request_state_is_valid_only_for_its_request_and_caller(tmp_path: Path) -> None:
    async with asked_once(tmp_path) as (mine, other, server, full):

        def request_count() -> int:
            record = server.recording
            return len(record.calls()) + len(record.requests("prompts/get")) + len(record.requests("resources/read"))

        known = request_count()
        for who, method, tried in misuses(mine, other, full):
            answer = await who.host.ask(method, tried)
            assert answer.get("error", {}).get("code") == -32602, json.dumps((method, tried, answer))
        # The gateway itself has refused the state of another caller.
        assert request_count() == known
        done = (await mine.host.ask("tools/call", full))["result"]
        assert done["structuredContent"] == {"replies": full["inputResponses"]}
        assert server.recording.calls("ask")[-1]["params"]["requestState"].startswith("état ")


async def test_elicitation_is_answerable_only_by_the_asked_session(tmp_path: Path) -> None:
    async with (
        full_http(tmp_path, "s", modern=False, elicitation=True) as server,
        running_gateway(tmp_path, entries([server]), gateway=with_keys(2)) as gateway,
        two_hosts(gateway, "2025-11-25", server) as (mine, other),
    ):
        mine.host.hold = True
        number = await mine.begin("ask", requests={"who": QUESTIONS["who"]})
        question = (await mine.host.until(lambda: mine.host.of("elicitation/create")))[0].message
        stolen = {"action": "accept", "content": {"said": "stolen"}}
        for forged in (question["id"], 1, "1"):
            await other.host.send({"jsonrpc": "2.0", "id": forged, "result": stolen})
        assert (await other.call("echo", after=1))["structuredContent"] == {"after": 1}
        assert number not in mine.host.answers
        await mine.host.send({"jsonrpc": "2.0", "id": question["id"], "result": REPLIES["who"]})
        answer = await mine.host.answer(number)
        assert answer["result"]["structuredContent"] == {"replies": {"who": REPLIES["who"]}}


async def test_session_belongs_to_the_caller_who_opened_it(tmp_path: Path) -> None:
    server = full_stdio(tmp_path, "s", modern=False)
    async with (
        running_gateway(tmp_path, entries([server]), gateway=with_keys(2)) as gateway,
        two_hosts(gateway, "2025-11-25", server) as (mine, other),
    ):
        assert isinstance(mine.host, HttpHost)
        session, version = mine.host.headers["mcp-session-id"], {"mcp-protocol-version": "2025-11-25"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        stream = {"accept": "text/event-stream"}
        for headers in (
            {**bearer(1), "mcp-session-id": session},
            {**bearer(0), "mcp-session-id": session[:-1] + ("0" if session[-1] != "0" else "1")},
            {**bearer(0), "mcp-session-id": "nobody"},
        ):
            tried = {**headers, **version}
            assert (await gateway.post(ping, tried)).status_code == 404
            assert (await gateway.client.get(gateway.url, headers={**tried, **stream})).status_code == 404
            assert (await gateway.client.delete(gateway.url, headers=tried)).status_code == 404
        assert (await mine.call("echo", after=1))["structuredContent"] == {"after": 1}
        assert (await other.call("echo", after=2))["structuredContent"] == {"after": 2}


async def test_task_belongs_to_the_caller_who_started_it(tmp_path: Path) -> None:
    declared = {"extensions": {TASKS: {}}}
    async with (
        full_http(tmp_path, "s", modern=True) as server,
        running_gateway(tmp_path, entries([server]), gateway=with_keys(2)) as gateway,
        two_hosts(gateway, MODERN, server, declared=declared) as (mine, other),
    ):
        begun = await mine.call("task", endless=True)
        task, real = begun["taskId"], "s:0000000000000000"
        middle = len(task) // 2
        changed = task[:middle] + ("A" if task[middle] != "A" else "B") + task[middle + 1 :]
        for who, tried in ((other, task), (mine, changed), (mine, task[:-2]), (mine, real), (mine, "")):
            more: dict[str, Any] = {"tasks/get": {}, "tasks/update": {"inputResponses": {}}, "tasks/cancel": {}}
            for method in more:
                answer = await who.host.ask(method, {"taskId": tried, **more[method]})
                assert answer.get("error", {}).get("code") == -32602, json.dumps((method, tried, answer))
        assert (await mine.host.result("tasks/get", {"taskId": task}))["status"] == "working"
        assert server.recording.requests("tasks/cancel") == []
