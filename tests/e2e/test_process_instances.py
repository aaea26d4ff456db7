"""A process for each session, caller and root of a host: separate, counted, and ended when idle."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.processes import descendants_of, still_running
from support.callers import HandshakeSession, handshake
from support.gateways import RunningGateway, answer_of, brief_pause, envelope, messages_of, running_gateway, text_of
from support.upstreams.running import builtin_tools, scripted_stdio_server

# Answers with its process id, its working directory, its arguments, and how often this process was called.
SERVER = r"""
import json, os, sys
count = 0
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        say({"id": message["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                                             "serverInfo": {"name": "where", "version": "1"}}})
    elif method == "tools/list":
        say({"id": message["id"], "result": {"tools": [{"name": "where", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        count += 1
        if "write" in message["params"]["arguments"]:
            try:
                open(message["params"]["arguments"]["write"], "w").close()
                written = True
            except OSError as error:
                written = str(error)
        else:
            written = None
        text = json.dumps({"pid": os.getpid(), "cwd": os.getcwd(), "args": sys.argv[1:], "count": count,
                           "written": written})
        say({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})
    elif "id" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "no"}})
"""
KEYS = {"auth": {"apiKeys": [{"name": name, "key": f"key-of-{name}"} for name in ("ann", "bob")]}}


def entry(*args: str, **members: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", SERVER, *args], **members}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


async def where(caller: HandshakeSession, **arguments: Any) -> dict[str, Any]:
    answer = await caller.call("s__where", arguments)
    return dict(json.loads(text_of(answer["result"])))


async def until_gone(*pids: int) -> None:
    with anyio.fail_after(60):
        while still_running(pids):
            await brief_pause()


class HostWithRoots:
    """A session whose host answers `roots/list`, in the stream of the call that needs them."""

    def __init__(self, session: HandshakeSession, roots: list[str]) -> None:
        self.session, self.roots = session, roots
        self.root_requests = 0

    async def call(self, **arguments: Any) -> dict[str, Any]:
        gateway = self.session.gateway
        params = {"name": "s__where", "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        head = {**self.session.headers, "accept": "application/json, text/event-stream"}
        async with gateway.client.stream("POST", gateway.url, json=body, headers=head, timeout=60) as response:
            assert response.status_code == 200
            text = ""
            async for line in response.aiter_lines():
                text += line + "\n"
                if not line.startswith("data: {"):
                    continue
                message = json.loads(line[6:])
                if message.get("method") == "roots/list":
                    self.root_requests += 1
                    result = {"roots": [{"uri": uri} for uri in self.roots]}
                    await self.session.post({"jsonrpc": "2.0", "id": message["id"], "result": result})
            if response.headers["content-type"].startswith("application/json"):
                return dict(json.loads(text)["result"])
            return dict(messages_of(text)[-1]["result"])

    async def where(self, **arguments: Any) -> dict[str, Any]:
        return dict(json.loads(text_of(await self.call(**arguments))))


async def host_with_roots(
    gateway: RunningGateway, roots: list[str], capabilities: dict[str, Any] | None = None
) -> HostWithRoots:
    declared = capabilities or {"roots": {"listChanged": True}}
    client = {"name": "host", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": declared, "clientInfo": client}
    opened = await gateway.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    head = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    session = HandshakeSession(gateway=gateway, headers=head)
    await session.notify("notifications/initialized")
    return HostWithRoots(session, roots)


async def modern_call(gateway: RunningGateway, *, declares: bool = True, **members: Any) -> dict[str, Any]:
    capabilities = {"roots": {}} if declares else {}
    meta = envelope(**{"io.modelcontextprotocol/clientCapabilities": capabilities})
    params = {"name": "s__where", "arguments": {}, "_meta": meta, **members}
    return answer_of(await gateway.post({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))


def answering(result: dict[str, Any], uri: str) -> dict[str, Any]:
    return {"inputResponses": {"roots": {"roots": [{"uri": uri}]}}, "requestState": result["requestState"]}


@pytest.mark.heavy
async def test_each_session_has_its_own_process(tmp_path: Path) -> None:
    limits = {**KEYS, "quotas": {"default": {"privateConnections": 2}}}
    async with running_gateway(tmp_path, {"s": entry(instances="session")}, gateway=limits) as gateway:
        await gateway.until_listed("s__where", headers=bearer("ann"))
        first, second = [await handshake(gateway, **bearer("ann")) for _ in range(2)]
        found = [await where(first), await where(second), await where(first)]
        # State of one session is not visible in another session.
        assert [each["count"] for each in found] == [1, 1, 2]
        assert found[0]["pid"] == found[2]["pid"] != found[1]["pid"]
        row = await gateway.server("s")
        assert (row["processes"], row["lastError"]) == (2, None)
        # Processes count only against the quota of their own caller.
        third = await handshake(gateway, **bearer("ann"))
        refused = (await third.call("s__where"))["result"]
        assert refused["isError"], refused
        assert "2 connections to servers that belong to one session or caller" in text_of(refused)
        other = await where(await handshake(gateway, **bearer("bob")))
        assert other["count"] == 1
        # The end of a session ends its process, and makes room.
        ended = await gateway.client.delete(gateway.url, headers=second.headers)
        assert ended.status_code in (200, 204), ended.text
        await until_gone(found[1]["pid"])
        assert (await where(third))["count"] == 1
        # A request without a session belongs to its caller.
        pids = {json.loads(text_of(await gateway.call("s__where", headers=bearer("bob"))))["pid"] for _ in range(2)}
        assert len(pids) == 1
        assert pids.isdisjoint({found[0]["pid"], other["pid"]})


@pytest.mark.heavy
async def test_idle_process_makes_room_for_another_session(tmp_path: Path) -> None:
    limits = {**KEYS, "quotas": {"default": {"privateConnections": 1}}}
    servers = {"s": entry(instances="session", idleTimeout=2)}
    async with running_gateway(tmp_path, servers, gateway=limits) as gateway:
        await gateway.until_listed("s__where", headers=bearer("ann"))
        first, second = [await handshake(gateway, **bearer("ann")) for _ in range(2)]
        pid = (await where(first))["pid"]
        assert (await second.call("s__where"))["result"]["isError"]
        await until_gone(pid)
        found = await where(second)
        assert found["count"] == 1
        assert found["pid"] != pid
        # The first session is still open: its next call finds no room until the process of the second has ended.
        assert (await first.call("s__where"))["result"]["isError"]
        await until_gone(found["pid"])
        assert (await where(first))["count"] == 1


@pytest.mark.heavy
async def test_each_caller_has_its_own_process_which_ends_when_idle(tmp_path: Path) -> None:
    servers = {"s": entry(instances="caller", idleTimeout=0.5)}
    async with running_gateway(tmp_path, servers, gateway=KEYS) as gateway:
        tools = await gateway.until_listed("s__where", headers=bearer("ann"))
        # The process that was started to list the tools has ended.
        with anyio.fail_after(60):
            while descendants_of(gateway.process.pid):
                await brief_pause()
        assert (await gateway.server("s"))["state"] == "idle"
        found = []
        for name in ("ann", "bob"):
            modern = json.loads(text_of(await gateway.call("s__where", headers=bearer(name))))
            found.append(modern)
        assert found[0]["pid"] != found[1]["pid"]
        await until_gone(found[0]["pid"], found[1]["pid"])
        # Sessions of one caller share its process. The next call starts it again, without the state of before.
        again = [await where(await handshake(gateway, **bearer("ann"))) for _ in range(2)]
        assert again[0]["count"] == 1
        assert again[0]["pid"] != found[0]["pid"]
        assert await gateway.tools(headers=bearer("ann")) == tools
        # 20 concurrent first calls start one process.
        await until_gone(*(each["pid"] for each in again))
        pids: list[int] = []

        async def call() -> None:
            pids.append(json.loads(text_of(await gateway.call("s__where", headers=bearer("bob"), timeout_s=60)))["pid"])

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(call)
        assert len(pids) == 20
        assert len(set(pids)) == 1


@asynccontextmanager
async def gateway_with_projects(tmp_path: Path, **members: Any) -> AsyncIterator[tuple[RunningGateway, Path]]:
    projects = tmp_path / "projects"
    for name in ("default", "one", "two words"):
        (projects / name).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (projects / "link").symlink_to(tmp_path / "elsewhere")
    config = entry("${roots.0}", instances="session", cwd="${roots.0}", allowedRoots=["projects"], **members)
    async with running_gateway(tmp_path, {"s": config}) as gateway:
        await gateway.until_listed("s__where")
        yield gateway, projects


@pytest.mark.heavy
async def test_process_runs_in_the_root_of_its_session(tmp_path: Path) -> None:
    sandbox = {"write": ["${roots.0}"]}
    async with gateway_with_projects(tmp_path, sandbox=sandbox) as (gateway, projects):
        one = await host_with_roots(gateway, [(projects / "one").as_uri(), "file:///"])
        two = await host_with_roots(gateway, [(projects / "two words").as_uri()])
        found = [await one.where(), await two.where(), await one.where()]
        for each, name in zip(found, ("one", "two words", "one"), strict=True):
            assert each["cwd"] == str(projects / name)
            assert each["args"] == [str(projects / name)]
        assert found[0]["pid"] == found[2]["pid"]
        assert (one.root_requests, two.root_requests) == (1, 1)
        # The sandbox permits the root of this session alone.
        inside = await one.where(write=str(projects / "one" / "note"))
        outside = await one.where(write=str(projects / "two words" / "note"))
        assert inside["written"] is True
        assert "denied" in outside["written"]
        # Another root is another process, from the next call after the host has announced it.
        one.roots = [(projects / "two words").as_uri()]
        await one.session.notify("notifications/roots/list_changed")
        moved = await one.where()
        assert moved["cwd"] == str(projects / "two words")
        assert moved["pid"] not in {each["pid"] for each in found}
        assert one.root_requests == 2
        for root, reason in (
            (tmp_path.as_uri(), "is in none of the folders of `allowedRoots`"),
            ((projects / "link").as_uri(), "is in none of the folders of `allowedRoots`"),
            (projects.as_uri() + "/one/../../elsewhere", "is in none of the folders of `allowedRoots`"),
            (projects.as_uri() + "/one%2F..%2F..%2Felsewhere", "is in none of the folders of `allowedRoots`"),
            (tmp_path.as_uri() + "/projects-of-another", "is in none of the folders of `allowedRoots`"),
            ((projects / "missing").as_uri(), "is not a folder"),
            ("https://example.com/projects/one", "is not a folder of this machine"),
            ("file://example.com/" + str(projects / "one"), "is not a folder of this machine"),
            (projects.as_uri() + "/one%00", "is not a folder of this machine"),
        ):
            one.roots = [root]
            await one.session.notify("notifications/roots/list_changed")
            refused = await one.call()
            assert refused["isError"], root
            assert reason in text_of(refused), (root, refused)
        one.roots = []
        await one.session.notify("notifications/roots/list_changed")
        assert "the host has no roots" in text_of(await one.call())
        without = await host_with_roots(gateway, [], {"sampling": {}})
        assert "this host does not declare roots" in text_of(await without.call())


@pytest.mark.heavy
async def test_host_without_session_repeats_its_call_with_its_root(tmp_path: Path) -> None:
    async with gateway_with_projects(tmp_path) as (gateway, projects):
        result = (await modern_call(gateway))["result"]
        assert (result["resultType"], result["inputRequests"]) == (
            "input_required",
            {"roots": {"method": "roots/list", "params": {}}},
        )
        found = []
        for name in ("one", "two words", "one"):
            answer = await modern_call(gateway, **answering(result, (projects / name).as_uri()))
            found.append(json.loads(text_of(answer["result"])))
            assert found[-1]["cwd"] == str(projects / name)
        assert found[0]["pid"] == found[2]["pid"] != found[1]["pid"]
        refused = (await modern_call(gateway, **answering(result, tmp_path.as_uri())))["result"]
        assert "is in none of the folders of `allowedRoots`" in text_of(refused)
        refused = (await modern_call(gateway, requestState=result["requestState"]))["result"]
        assert "the host has no roots" in text_of(refused)
        # The state is bound to the call.
        forged = await modern_call(gateway, arguments={"other": 1}, **answering(result, (projects / "one").as_uri()))
        assert forged["error"]["code"] == -32602, forged
        assert "this host does not declare roots" in text_of((await modern_call(gateway, declares=False))["result"])


@pytest.mark.heavy
async def test_questions_of_a_server_reach_the_process_in_the_same_root(tmp_path: Path) -> None:
    """Both eras of servers that ask: over the connection of the session, and in results."""
    folder = tmp_path / "one"
    folder.mkdir()
    asking, recording = scripted_stdio_server(tmp_path, "m", modern=True, tools=builtin_tools("elicit"))
    members = {"instances": "session", "cwd": "${roots.0}", "allowedRoots": ["one"]}
    servers = {"m": {**asking, **members}, "s": entry(**members, elicitation=True)}
    async with running_gateway(tmp_path, servers) as gateway:
        await gateway.until_listed("m__elicit", "s__where")
        meta = envelope(**{"io.modelcontextprotocol/clientCapabilities": {"roots": {}, "elicitation": {"form": {}}}})

        async def call(**members: Any) -> dict[str, Any]:
            params = {"name": "m__elicit", "arguments": {"message": "Who?"}, "_meta": meta, **members}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return dict(answer_of(await gateway.post(body))["result"])

        before = len(recording.starts())
        result = await call(**answering(await call(), folder.as_uri()))
        assert result["resultType"] == "input_required"
        assert "roots" not in result["inputRequests"]
        reply = {key: {"action": "accept", "content": {"name": "Ann"}} for key in result["inputRequests"]}
        done = await call(inputResponses=reply, requestState=result["requestState"])
        assert (done["resultType"], done.get("isError", False)) == ("complete", False), done
        assert recording.calls()[-1]["params"]["inputResponses"] == reply
        # One process was started for both calls, and the host was asked for its root once.
        assert len(recording.starts()) == before + 1
        host = await host_with_roots(gateway, [folder.as_uri()], {"roots": {}, "elicitation": {}})
        found = [await host.where(), await host.where()]
        assert [(each["cwd"], each["count"]) for each in found] == [(str(folder), 1), (str(folder), 2)]
        assert host.root_requests == 1
