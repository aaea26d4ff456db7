"""Lenient parsing of requests: Accept, and members that are null or empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from support.callers import HandshakeSession, call_of, get_stream, handshake, hello, listen_to
from support.gateways import answer_of, envelope, running_gateway
from support.upstreams.running import builtin_tools, scripted_stdio_server


async def test_accept_header_is_parsed_as_http_specifies(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("progress"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__progress")
        session = await handshake(gateway)
        params = {"name": "up__progress", "arguments": {"count": 2}, "_meta": {"progressToken": 1}}
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        modern = call_of("up__progress", {"count": 2}, progressToken=1)
        for accept, kind in (
            ("application/json, text/event-stream", "text/event-stream"),
            ("Application/JSON, Text/Event-Stream", "text/event-stream"),
            ("text/*, application/*", "text/event-stream"),
            ("text/event-stream;q=0.9, application/json;q=0.1", "text/event-stream"),
            ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "text/event-stream"),
            ("application/json, text/html", "application/json"),
            ("application/json", "application/json"),
            ("APPLICATION/JSON; charset=utf-8", "application/json"),
            ("application/json, */*;q=0", "application/json"),
            ("*/*, text/event-stream;q=0.0", "application/json"),
            ("text/event-stream", "text/event-stream"),
            ("text/*", "text/event-stream"),
            ("*/*, application/json;q=0", "text/event-stream"),
            ("text/html", None),
        ):
            for body, headers in ((call, session.headers), (modern, {})):
                answer = await gateway.post(body, {**headers, "accept": accept})
                if kind is None:
                    assert answer.status_code == 406, accept
                    assert "application/json" in answer.json()["error"]["message"]
                    continue
                assert answer.status_code == 200, accept
                assert answer.headers["content-type"] == kind, accept
                assert "content" in answer_of(answer)["result"], accept


async def test_elicitation_to_a_json_caller_uses_the_session_stream_or_is_refused(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("elicit"))
    async with running_gateway(tmp_path, {"up": {**server, "elicitation": True}}) as gateway:
        await gateway.until_listed("up__elicit")
        first = hello()
        first["params"]["capabilities"] = {"elicitation": {}}
        opened = await gateway.post(first)
        session = HandshakeSession(
            gateway=gateway,
            headers={"mcp-session-id": opened.headers["mcp-session-id"], "accept": "application/json"},
        )
        await session.notify("notifications/initialized")
        refused = await session.call("up__elicit", {"message": "Who?"})
        assert "no open stream" in str(refused)
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await session.call("up__elicit", {"message": "Who?"}))

        async with get_stream(session) as stream, anyio.create_task_group() as group:
            group.start_soon(call)
            question = await stream.next()
            assert question["method"] == "elicitation/create"
            given = {"action": "accept", "content": {"name": "Ada"}}
            await session.post({"jsonrpc": "2.0", "id": question["id"], "result": given})
        assert "Ada" in str(answers[0]["result"])


async def test_listen_request_requires_an_event_stream(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, {}) as gateway:
        refused = await gateway.post(listen_to(), {"accept": "application/json"})
        assert refused.status_code == 406
        assert "text/event-stream" in refused.json()["error"]["message"]


async def test_null_and_empty_members_count_as_absent(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        session = await handshake(gateway)
        for params in (None, {}, {"cursor": None}, {"cursor": ""}, {"cursor": "", "_meta": None}):
            for method, member in (
                ("tools/list", "tools"),
                ("resources/list", "resources"),
                ("prompts/list", "prompts"),
            ):
                answer = await session.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                assert member in answer.json()["result"], (method, params)
        pong = await session.post({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None})
        assert pong.json()["result"] == {}
        noted = await session.post({"jsonrpc": "2.0", "method": "notifications/initialized", "params": None})
        assert noted.status_code == 202
        params = {"name": "up__echo", "arguments": None, "_meta": None}
        called = await session.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
        assert "content" in called.json()["result"]
        wrong = await session.post({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": {"cursor": "2"}})
        assert wrong.json()["error"]["code"] == -32602
        bad = await session.post({"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": []})
        assert bad.json()["error"]["code"] == -32602


async def test_caller_accepting_only_event_streams_gets_every_answer_as_one(tmp_path: Path) -> None:
    server, _ = scripted_stdio_server(tmp_path, "up", tools=builtin_tools("echo"))
    only = {"accept": "text/event-stream"}
    async with running_gateway(tmp_path, {"up": server}) as gateway:
        await gateway.until_listed("up__echo")
        opened = await gateway.post(hello(), only)
        assert opened.headers["content-type"] == "text/event-stream"
        assert answer_of(opened)["result"]["serverInfo"]["name"] == "typegate"
        session = {**only, "mcp-session-id": opened.headers["mcp-session-id"]}
        modern = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": envelope()}}
        for body, head in (
            ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, session),
            ({"jsonrpc": "2.0", "id": 2, "method": "no/such"}, session),
            (modern, only),
            (call_of("up__echo", {}), only),
        ):
            answer = await gateway.post(body, head)
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer_of(answer)["id"] == body["id"]
        noted = await gateway.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        assert (noted.status_code, noted.content) == (202, b"")
        # An HTTP error is not sent as an event.
        unknown = await gateway.post({**modern, "method": "no/such"}, only)
        assert (unknown.status_code, unknown.headers["content-type"]) == (404, "application/json")
