"""Optional lists: whatever a server answers to them, its tools are listed and work."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.raw_http import Peer, message_of, serving
from support.waiting import until

from gateway.config.server import ServerConfig
from gateway.config.upstream_types.http_config import HttpConfig
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.http.http_client import HttpClient
from gateway.upstream import mcp_session
from gateway.upstream.link import UpstreamLink
from gateway.upstream.link_states import LinkPorts, ListedLink, Ready, Waiting
from gateway.upstream.session import RawListing, UpstreamCall, connector_of

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
MEMBERS = {"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"}
ITEMS: dict[str, dict[str, Any]] = {
    "tools": {"name": "t", "inputSchema": {"type": "object"}},
    "prompts": {"name": "p"},
    "resources": {"name": "r", "uri": "doc://r"},
    "resourceTemplates": {"name": "rt", "uriTemplate": "doc://{x}"},
}
Answer = Callable[[Peer, dict[str, Any]], Any]


def answered(**members: Any) -> Answer:
    return lambda peer, message: peer.answer(
        json.dumps({"jsonrpc": "2.0", "id": message["id"], **members}).encode(), JSON
    )


def raw(body: bytes, kind: str = "text/html", status: str = "200 OK") -> Answer:
    return lambda peer, message: peer.answer(body, f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n".encode())


BROKEN: dict[str, Answer] = {
    "a page": raw(b"<!doctype html><title>App</title>"),
    "500": raw(b"<html>", status="500 No"),
    "503": raw(b"", "", "503 No"),
    "404": raw(b"not found", "text/plain", "404 No"),
    "400": raw(b"", "", "400 No"),
    "403": raw(b"", "", "403 No"),
    "429": raw(b"", "", "429 No"),
    "202 and nothing": raw(b"", "", "202 Accepted"),
    "another type": raw(b"hello", "text/plain"),
    "half an answer": raw(b'{"jsonrpc": "2.0", "id": ', "application/json"),
    "a lost connection": lambda peer, message: peer.writer.transport.abort(),
    "nothing": lambda peer, message: None,
    "an unknown method": answered(error={"code": -32601, "message": "Method not found"}),
    "an internal error": answered(error={"code": -32603, "message": "Internal error"}),
    "no list": answered(result={member: {"a": 1} for member in MEMBERS.values()}),
    "a number": answered(result=dict.fromkeys(MEMBERS.values(), 5)),
    "another member": answered(result={"items": []}),
    "no object": answered(result=[]),
    "neither": answered(),
    "401": raw(b"", "", "401 No"),
    "401 and a challenge": raw(b"", 'text/plain\r\nwww-authenticate: Bearer error="invalid_token"', "401 No"),
    "403 and a scope": raw(b"", 'text/plain\r\nwww-authenticate: Bearer error="insufficient_scope"', "403 No"),
    "a redirect to a login": raw(b"", "text/html\r\nlocation: /login", "302 Found"),
    "a redirect in a circle": raw(b"", "text/html\r\nlocation: /mcp", "307 Again"),
    "a session that is not found": answered(error={"code": -32001, "message": "Session not found"}),
    "an error without code": answered(error={"message": "boom"}),
    "an error in words": answered(error="not supported"),
    "an empty stream": raw(b"", "text/event-stream"),
    "a stream of something else": raw(b"data: {}\n\ndata: x\n\n", "text/event-stream"),
    "a compressed page": raw(b"\x1f\x8b", "text/html\r\ncontent-encoding: gzip"),
    "bytes": raw(b"\xff\xfe\x00", "application/json"),
    "a long page": raw(b"<html>" + b"x" * 2**21),
    "an empty batch": raw(b"[]", "application/json"),
    "the answer to another request": raw(b'{"jsonrpc": "2.0", "id": 10000000, "result": {}}', "application/json"),
    "a head that is none": lambda peer, message: peer.say(b"ERROR\r\n\r\n"),
    "half a body": lambda peer, message: peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"),
}
CREDENTIALS = {"401", "401 and a challenge", "403", "403 and a scope"}


@dataclass
class Server:
    """Lists one item of each kind, but for the methods in `broken`."""

    broken: dict[str, Answer] = field(default_factory=dict)
    capabilities: dict[str, Any] = field(
        default_factory=lambda: {kind: {"listChanged": True} for kind in ("tools", "prompts", "resources")}
    )
    session: bool = True
    methods: list[str] = field(default_factory=list)
    streams: list[Peer] = field(default_factory=list)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            message = message_of(request)
            method = message.get("method", "")
            if request.startswith(b"GET"):
                peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
                self.streams.append(peer)
                await peer.reader.read()
                return
            if "id" not in message:
                peer.answer(b"", b"HTTP/1.1 202 Accepted\r\n")
                continue
            self.methods.append(method)
            if method in self.broken:
                self.broken[method](peer, message)
                continue
            result: dict[str, Any] = {}
            if method == "initialize":
                result = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": {}}
            elif method == "tools/call":
                result = {"content": [{"type": "text", "text": "done"}]}
            elif method.endswith("/list"):
                member = MEMBERS.get(method, "tools")
                result = {member: [ITEMS[member]]}
            elif method != "ping":
                answered(error={"code": -32601, "message": "Method not found"})(peer, message)
                continue
            head = JSON + (b"mcp-session-id: s\r\n" if self.session and method == "initialize" else b"")
            peer.answer(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode(), head)

    def say_changed(self, kind: str) -> None:
        message = json.dumps({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})
        self.streams[-1].say(f"data: {message}\n\n".encode())


@dataclass
class Lists:
    """What a link has reported: the last of each list."""

    found: dict[str, list[Any]] = field(default_factory=dict)
    reports: list[RawListing] = field(default_factory=list)

    async def take(self, link: ListedLink, raw: RawListing) -> bool:
        self.reports.append(raw)
        now = {**({} if raw.tools is None else {"tools": raw.tools}), **raw.prompts_and_resources}
        changed = any(self.found.get(name) != items for name, items in now.items())
        self.found.update(now)
        return changed


@asynccontextmanager
async def linked(config: ServerConfig, lists: Lists) -> AsyncIterator[UpstreamLink]:
    client = HttpClient()
    ports = LinkPorts(on_listing=lists.take)
    link = UpstreamLink("up", config, connector_of("up", config, client), ports, chance=lambda: 0.0)
    try:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(link.run)
                yield link
                link.close()
    finally:
        client.close()


async def call(link: UpstreamLink) -> str:
    result = await link.call(UpstreamCall(method="tools/call", params={"name": "t", "arguments": {}}))
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("method", MEMBERS)
@pytest.mark.parametrize("kind", BROKEN)
async def test_failed_list_affects_nothing_else_and_appears_later(kind: str, method: str) -> None:
    server, lists = Server(broken={method: BROKEN[kind]}), Lists()
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists) as link:
        await link.wait_ready(25)
        assert await call(link) == "done"
        others = {name: [item] for name, item in ITEMS.items() if name != MEMBERS[method]}
        await until(lambda: others.items() <= lists.found.items())
        assert (link.last_error, link.epoch) == (None, 1)
        has_none = kind == "an unknown method" and method == "resources/templates/list"
        assert [method in warning for warning in link.warnings] == ([] if has_none else [True])
        assert MEMBERS[method] not in lists.found
        server.broken.clear()
        if has_none:
            # Nothing was expected there: a change is announced, or found by the next poll.
            await until(lambda: server.streams)
            server.say_changed("resources")
        await until(lambda: lists.found.get(MEMBERS[method]) == [ITEMS[MEMBERS[method]]])
        assert (link.warnings, link.epoch) == ((), 1)


async def test_tools_are_listed_while_all_optional_lists_hang() -> None:
    server, lists = Server(broken=dict.fromkeys(MEMBERS, BROKEN["nothing"])), Lists()
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists) as link:
        # Less time than lists get that are requested without the tools.
        with anyio.fail_after(mcp_session._OPTIONAL_LIST_S / 2):
            await link.wait_ready(25)
        await until(lambda: server.streams)
        # Neither is a change of tools held up by a list that is asked for again just now.
        count_before = server.methods.count("resources/list")
        await until(lambda: server.methods.count("resources/list") > count_before)
        with anyio.fail_after(mcp_session._OPTIONAL_LIST_S / 2):
            before = len(lists.reports)
            server.say_changed("tools")
            await until(lambda: any(one.tools is not None for one in lists.reports[before:]))


@pytest.mark.parametrize("method", ["tools/list", *MEMBERS])
async def test_list_changed_before_the_stream_opened_is_requested_again(method: str) -> None:
    member = MEMBERS.get(method, "tools")

    def first(peer: Peer, message: dict[str, Any]) -> None:
        del server.broken[method]
        answered(result={member: [{**ITEMS[member], "name": "before"}]})(peer, message)

    server, lists = Server(broken={method: first}), Lists()
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists):
        await until(lambda: lists.found.get(member) == [ITEMS[member]])
        assert server.methods.count(method) == 2


async def test_null_counts_as_an_empty_list() -> None:
    server, lists = Server(broken={method: answered(result={MEMBERS[method]: None}) for method in MEMBERS}), Lists()
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists) as link:
        await link.wait_ready(25)
        assert {name: lists.found[name] for name in MEMBERS.values()} == {name: [] for name in MEMBERS.values()}
        assert link.warnings == ()


@pytest.mark.parametrize("kind", BROKEN)
async def test_server_without_tools_serves_its_prompts_and_resources(kind: str) -> None:
    server, lists = Server(broken={"tools/list": BROKEN[kind]}, capabilities={"prompts": {}, "resources": {}}), Lists()
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists) as link:
        await link.wait_ready(25)
        assert lists.found["prompts"] == [ITEMS["prompts"]]
        assert lists.found["resources"] == [ITEMS["resources"]]
        assert link.last_error is None


@pytest.mark.parametrize("kind", sorted(BROKEN.keys() - CREDENTIALS))
async def test_failed_tool_list_leaves_prompts_and_resources(kind: str) -> None:
    server, lists = Server(broken={"tools/list": BROKEN[kind]}), Lists()
    async with serving(server.serve) as site:
        config = HttpConfig(url=site.url, connectTimeout=1)  # type: ignore[call-arg]
        async with linked(config, lists) as link:
            await link.wait_ready(25)
            assert str(link.last_error).startswith("listing failed: ")
            await until(lambda: lists.found.get("resources") and lists.found.get("prompts"))
            assert str(link.last_error).startswith("listing failed: ")
            server.broken.clear()
            await until(lambda: lists.found.get("tools") == [ITEMS["tools"]])
            await until(lambda: link.last_error is None)
            assert link.epoch == 1


async def test_undeclared_tools_are_listed() -> None:
    for capabilities in ({}, {"prompts": {}}, {"tools": True}, {"tools": None, "resources": {}}):
        server, lists = Server(capabilities=capabilities), Lists()
        async with serving(server.serve) as site, linked(HttpConfig(url=site.url), lists) as link:
            await link.wait_ready(25)
            assert lists.found["tools"] == [ITEMS["tools"]]


CRASHING = """
import json, sys
crashes = sys.argv[1]
for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    if method == crashes:
        sys.exit(3)
    results = {
        "initialize": {"protocolVersion": "2025-11-25", "serverInfo": {}, "capabilities":
            {"prompts": {}, "resources": {}} | ({} if crashes == "tools/list" else {"tools": {}})},
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
        "prompts/list": {"prompts": [{"name": "p"}]},
        "resources/list": {"resources": [{"name": "r", "uri": "doc://r"}]},
        "resources/templates/list": {"resourceTemplates": []},
    }
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        answer |= {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "?"}}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("method", [*MEMBERS, "tools/list"])
async def test_process_crashed_by_a_list_is_used_without_it(tmp_path: Path, method: str) -> None:
    program = tmp_path / "server.py"
    program.write_text(CRASHING)
    config, lists = StdioConfig(command=sys.executable, args=["-S", "-E", str(program), method]), Lists()
    async with linked(config, lists) as link:
        await until(lambda: isinstance(link.state, Ready))
        assert await call(link) == "done"
        kind = method.partition("/")[0]
        expected = {"tools", "prompts", "resources"} - {kind}
        assert expected <= lists.found.keys()
        assert kind not in lists.found
        assert [warning.startswith(f"{kind} are not requested") for warning in link.warnings] == [True]
        link.refresh()
        await until(lambda: link.state.session is None)
        await until(lambda: isinstance(link.state, Ready) and kind not in lists.found)


@pytest.mark.parametrize("kind", sorted(CREDENTIALS))
async def test_refused_credentials_fail_the_connection_not_one_list(kind: str) -> None:
    server = Server(broken={"tools/list": BROKEN[kind]})
    async with serving(server.serve) as site, linked(HttpConfig(url=site.url), Lists()) as link:
        await until(lambda: isinstance(link.state, Waiting))
        assert "credentials" in str(link.last_error)


# What a process writes where an answer to a list is due; `@` stands for the id of the request.
WRITTEN = {
    "nothing": "",
    "an empty line": "\n",
    "words": "Traceback (most recent call last):\n  ValueError\n",
    "no object": "[]\n",
    "half an answer": '{"jsonrpc": "2.0", "id": @, "result": \n',
    "an answer on two lines": '{"jsonrpc": "2.0", "id": @,\n"result": {}}\n',
    "no result": '{"jsonrpc": "2.0", "id": @}\n',
    "null": '{"jsonrpc": "2.0", "id": @, "result": null}\n',
    "an error in words": '{"jsonrpc": "2.0", "id": @, "error": "boom"}\n',
    "an error without id": '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}\n',
    "another id": '{"jsonrpc": "2.0", "id": 987654321, "result": {"prompts": []}}\n',
    "no version": '{"id": @, "result": {"prompts": []}}\n',
    "a page of numbers": '{"jsonrpc": "2.0", "id": @, "result": {"prompts": 5, "resources": 5}}\n',
    "bytes": "\udcff\udcfe\n",
    "a long line": "x" * 3_000_000 + "\n",
}
WRITING = """
import json, sys
method_of_list, text = sys.argv[1], sys.stdin.readline()
text = json.loads(text)
for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    results = {
        "initialize": {"protocolVersion": "2025-11-25", "serverInfo": {}, "capabilities":
            {"prompts": {}, "resources": {}, "tools": {}}},
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
        "prompts/list": {"prompts": [{"name": "p"}]},
        "resources/list": {"resources": [{"name": "r", "uri": "doc://r"}]},
        "resources/templates/list": {"resourceTemplates": []},
    }
    if method == method_of_list:
        sys.stdout.buffer.write(text.replace("@", str(message["id"])).encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    elif "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        answer |= {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "?"}}
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("method", ["prompts/list", "resources/list"])
@pytest.mark.parametrize("kind", WRITTEN)
async def test_process_answering_a_list_with_garbage_is_used_without_it(tmp_path: Path, kind: str, method: str) -> None:
    program = tmp_path / "server.py"
    source = WRITING.replace("sys.stdin.readline()", repr(json.dumps(WRITTEN[kind])))
    program.write_text(source)
    config, lists = StdioConfig(command=sys.executable, args=["-S", "-E", str(program), method]), Lists()
    async with linked(config, lists) as link:
        await until(lambda: isinstance(link.state, Ready))
        assert await call(link) == "done"
        kinds = {"tools", "prompts", "resources"} - {method.partition("/")[0]}
        await until(lambda: kinds <= lists.found.keys())
        assert not lists.found.get(method.partition("/")[0])
        assert (link.epoch, link.last_error) == (1, None)
        assert any(method in warning for warning in link.warnings)
