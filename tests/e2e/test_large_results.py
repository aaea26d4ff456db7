"""Large results are read completely and forwarded; interrupted ones are answered with an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from faults.observing import rss_of
from mcp import Client
from support.callers import HandshakeSession, call_of, handshake
from support.gateways import META, RunningGateway, envelope, running_gateway, text_of
from support.raw_http import Peer, mcp_answer, message_of, serving

# With what Python takes for the end of a line.
LINE = 'a "quoted" line of text, é\u2028\x85\n'
TEXT = LINE * 20_000
FIRST_BYTES = 200_000
SECRET = "sk-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
ERAS = pytest.mark.parametrize("modern", [True, False])


@dataclass
class Server:
    """A server of the handshake era with one tool, whose answer the test sends."""

    url: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    answer: Callable[[Peer, int], Any] | None = None
    sent_bytes: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, peer: Peer) -> None:
        while True:
            message = message_of(await peer.request())
            if message.get("method") == "tools/call" and self.answer is not None:
                self.calls += 1
                self.called.set()
                await self.answer(peer, message["id"])
            else:
                peer.say(mcp_answer(message))

    async def send_in_two(self, peer: Peer, data: bytes) -> None:
        """Send a large part of an answer, and the rest once the test says so."""
        await self.send(peer, data[:FIRST_BYTES])
        await self.go_on.wait()
        await self.send(peer, data[FIRST_BYTES:])
        end(peer)

    async def send(self, peer: Peer, data: bytes) -> None:
        """Send a part of an answer, and count it once the other side has taken it."""
        for at in range(0, len(data), 65_536):
            part = data[at : at + 65_536]
            peer.say(b"%x\r\n%b\r\n" % (len(part), part))
            await peer.writer.drain()
            self.sent_bytes += len(part)


def begin(peer: Peer, kind: bytes = b"application/json") -> None:
    peer.say(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind)


def end(peer: Peer) -> None:
    peer.say(b"0\r\n\r\n")


def message(request_id: int, **result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}, ensure_ascii=False).encode()


@asynccontextmanager
async def gateway_before(tmp_path: Path, server: Server, **options: Any) -> AsyncIterator[RunningGateway]:
    async with serving(server.serve) as site:
        entry = {"url": site.url, **options.pop("entry", {})}
        async with running_gateway(tmp_path, {"s": entry}, **options) as gateway:
            await gateway.until_listed("s__echo")
            yield gateway


@dataclass
class Answer:
    """An answer as it comes."""

    response: httpx2.Response
    received: str = ""

    def __post_init__(self) -> None:
        self._parts = self.response.aiter_text()

    async def result(self) -> dict[str, Any]:
        """Return the result after all of it has arrived."""
        async for part in self._parts:
            self.received += part
        found = json.loads(self.received)
        result: dict[str, Any] = found.get("result", found.get("error"))
        return result


@asynccontextmanager
async def calling(
    gateway: RunningGateway, session: HandshakeSession | None, name: str = "s__echo"
) -> AsyncIterator[Answer]:
    """A call of either era, and its answer as it comes."""
    body = call_of(name, request_id="mine")
    head = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    if session is not None:
        del body["params"]["_meta"]
        head = session.headers
    head = {**head, "accept": "application/json, text/event-stream"}
    with anyio.fail_after(30):
        async with gateway.client.stream("POST", gateway.url, json=body, headers=head, timeout=30) as response:
            assert response.status_code == 200
            yield Answer(response)


@asynccontextmanager
async def running(
    tmp_path: Path, answer: Callable[[Server, Peer, int], Any], *, modern: bool = True, **options: Any
) -> AsyncIterator[tuple[RunningGateway, HandshakeSession | None, Server]]:
    server = Server()

    async def send(peer: Peer, request_id: int) -> None:
        await answer(server, peer, request_id)

    server.answer = send
    async with gateway_before(tmp_path, server, **options) as gateway:
        try:
            yield gateway, None if modern else await handshake(gateway), server
        finally:
            server.go_on.set()  # the end of a test that fails must not wait for it


@ERAS
@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_large_result_arrives_unchanged(modern: bool, kind: bytes, tmp_path: Path) -> None:
    image = {"type": "image", "data": "QUJD", "mimeType": "a/b"}

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        text = message(
            request_id, _meta={"a": 1}, content=[{"type": "text", "text": TEXT}, image], isError=False, vendor=2**70
        )
        events = kind == b"text/event-stream"
        begin(peer, kind)
        await server.send(peer, b": hello\n\nevent: message\ndata: " + text + b"\n\n" if events else text)
        end(peer)

    async with running(tmp_path, answer, modern=modern) as (gateway, session, server):
        async with calling(gateway, session) as answer_:
            assert answer_.response.headers["content-type"] == "application/json"
            result = await answer_.result()
        meta = result.pop("_meta")
        assert meta.pop(META + "serverInfo")["name"] == "typegate" if modern else META + "serverInfo" not in meta
        assert meta == {"a": 1}
        assert result.pop("resultType", None) == ("complete" if modern else None)
        assert result == {"content": [{"type": "text", "text": TEXT}, image], "isError": False, "vendor": 2**70}
        # The connection to the server is kept, and nothing of this call is left on it.
        server.answer = None
        assert text_of(await gateway.call("s__echo")) == "done"


LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
# Items for which SDKs refuse a whole result, and their repaired form.
REFUSED_ITEMS: dict[str, tuple[Any, Any]] = {
    "a priority in words": (
        {"type": "text", "text": TEXT, "annotations": {"priority": "high"}},
        {"type": "text", "text": TEXT, "annotations": {}},
    ),
    "an audience in one word": (
        {"type": "text", "text": TEXT, "annotations": {"audience": "everybody"}},
        {"type": "text", "text": TEXT, "annotations": {}},
    ),
    "a size in words": ({**LINK, "description": TEXT, "size": "1 kB"}, {**LINK, "description": TEXT}),
    "no media type": (
        {"type": "image", "data": "QUJD" * 60_000},
        {"type": "image", "data": "QUJD" * 60_000, "mimeType": "application/octet-stream"},
    ),
}


@pytest.mark.parametrize("kind", REFUSED_ITEMS)
async def test_invalid_members_are_repaired_in_large_results_too(kind: str, tmp_path: Path) -> None:
    sent, left = REFUSED_ITEMS[kind]

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        await server.send(peer, message(request_id, content=[sent, {"type": "text", "text": "after"}]))
        end(peer)

    async with running(tmp_path, answer) as (gateway, _, _server):
        for mode in ("auto", "legacy"):
            async with Client(gateway.url, mode=mode) as client:
                result = await client.call_tool("s__echo", {})
            first, second = (item.model_dump(by_alias=True, exclude_none=True, mode="json") for item in result.content)
            assert first == left
            assert second["text"] == "after"


@ERAS
@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_server_dying_during_a_result_is_reported(modern: bool, kind: bytes, tmp_path: Path) -> None:
    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        text = message(request_id, content=[{"type": "text", "text": TEXT}])
        begin(peer, kind)
        await server.send(peer, (b"data: " + text if kind == b"text/event-stream" else text)[:FIRST_BYTES])
        peer.writer.close()

    async with running(tmp_path, answer, modern=modern) as (gateway, session, server):
        async with calling(gateway, session) as answer_:
            result = await answer_.result()
        assert result["isError"] is True
        assert result.get("resultType") == ("complete" if modern else None)
        assert "outcome is unknown, and it was not repeated" in text_of(result)
        assert server.calls == 1


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text[:-3],
        lambda text: text + b"}",
    ],
)
async def test_invalid_json_answer_has_no_result(broken: Callable[[bytes], bytes], tmp_path: Path) -> None:
    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        await server.send(peer, broken(message(request_id, content=[{"type": "text", "text": TEXT}], isError=False)))
        end(peer)

    async with running(tmp_path, answer) as (gateway, session, server):
        async with calling(gateway, session) as answer_:
            found = await answer_.result()
        assert found["isError"] is True
        assert "The answer is not JSON" in text_of(found)
        assert "may have taken effect" in text_of(found)
        server.answer = None
        assert text_of(await gateway.call("s__echo")) == "done"


async def test_real_client_reads_small_and_large_results(tmp_path: Path) -> None:
    ends = asyncio.Event()

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        text = message(request_id, content=[{"type": "text", "text": TEXT}])
        await server.send(peer, text[:FIRST_BYTES])
        # This is the end of the next call.
        await anyio.sleep(0.2)
        if ends.is_set():
            peer.writer.close()
            return
        await server.send(peer, text[FIRST_BYTES:])
        end(peer)

    async with running(tmp_path, answer) as (gateway, _, server):
        for mode in ("auto", "legacy"):
            ends.clear()
            async with Client(gateway.url, mode=mode) as client:
                result = await client.call_tool("s__echo", {})
                assert result.content[0].text == TEXT  # type: ignore[union-attr]
                ends.set()
                failed = await client.call_tool("s__echo", {})
                assert failed.is_error
                assert "outcome is unknown" in failed.content[-1].text  # type: ignore[union-attr]
        assert server.calls == 4


@pytest.mark.heavy
@ERAS
async def test_callers_that_do_not_read_cost_bounded_memory_and_no_time(modern: bool, tmp_path: Path) -> None:
    size, callers = 7_000_000, 6

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        await server.send(peer, message(request_id, content=[{"type": "text", "text": "x" * size}]))
        end(peer)

    async with running(tmp_path, answer, modern=modern, entry={"timeout": 2}) as (gateway, session, server):
        before = rss_of(gateway.process.pid)
        async with AsyncExitStack() as stack:
            answers = [await stack.enter_async_context(calling(gateway, session)) for _ in range(callers)]
            # Longer than a server has for its answer: that is not for callers who read slowly.
            await anyio.sleep(4)
            assert server.calls == callers
            # Each is held once, until it is read.
            assert rss_of(gateway.process.pid) - before < 2 * callers * size
            for one in answers:
                assert len(text_of(await one.result())) == size


@ERAS
@pytest.mark.heavy
async def test_truncated_large_result_ends_with_an_explanation(modern: bool, tmp_path: Path) -> None:
    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        await server.send_in_two(peer, message(request_id, content=[{"type": "text", "text": TEXT}]))

    async with (
        running(tmp_path, answer, modern=modern) as (gateway, session, server),
        anyio.create_task_group() as group,
    ):

        async def cut_off() -> None:
            await server.called.wait()
            if session is not None:
                await session.notify("notifications/cancelled", requestId="mine")
            else:
                gateway.process.terminate()

        group.start_soon(cut_off)
        async with calling(gateway, session) as answer_:
            assert ("shutting down" if modern else "cancelled") in str(await answer_.result())


@ERAS
async def test_disconnected_caller_cancels_the_call_at_its_server(modern: bool, tmp_path: Path) -> None:
    left = asyncio.Event()

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        # The call may end while this is being sent, and then the connection is reset.
        with suppress(ConnectionError):
            await server.send(peer, message(request_id, content=[{"type": "text", "text": TEXT}])[:FIRST_BYTES])
            assert await peer.reader.read() == b""
        left.set()

    async with running(tmp_path, answer, modern=modern) as (gateway, session, server):
        async with anyio.create_task_group() as group:

            async def call() -> None:
                async with calling(gateway, session) as answer_:
                    await answer_.result()

            group.start_soon(call)
            await server.called.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(25):
            await left.wait()
        server.answer = None
        assert text_of(await gateway.call("s__echo")) == "done"


async def test_large_error_result_is_scrubbed_although_is_error_comes_last(tmp_path: Path) -> None:
    fails = asyncio.Event()

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        text = TEXT[:300_000] + SECRET + TEXT[:100_000]
        content = [{"type": "text", "text": text}]
        await server.send(peer, message(request_id, content=content, isError=fails.is_set()))
        end(peer)

    entry = {"headers": {"authorization": f"Bearer {SECRET}"}}
    async with running(tmp_path, answer, entry=entry) as (gateway, session, _):
        async with calling(gateway, session) as answer_:
            # The result of a call that has worked is data.
            assert text_of(await answer_.result()) == TEXT[:300_000] + SECRET + TEXT[:100_000]
        fails.set()
        async with calling(gateway, session) as answer_:
            result = await answer_.result()
        assert result["isError"] is True
        assert text_of(result) == TEXT[:300_000] + "[hidden]" + TEXT[:100_000]


async def test_structured_content_is_repeated_as_text(tmp_path: Path) -> None:
    image = {"type": "image", "data": "QUJD" * 60_000, "mimeType": "image/png"}

    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        begin(peer)
        await server.send(peer, message(request_id, content=[image], structuredContent={"a": 1}))
        end(peer)

    async with running(tmp_path, answer) as (gateway, session, _), calling(gateway, session) as answer_:
        result = await answer_.result()
    assert result["content"] == [image, {"type": "text", "text": '{"a":1}'}]
    assert result["structuredContent"] == {"a": 1}


async def test_progress_precedes_the_result(tmp_path: Path) -> None:
    async def answer(server: Server, peer: Peer, request_id: int) -> None:
        text = b"data: " + message(request_id, content=[{"type": "text", "text": TEXT}]) + b"\n\n"
        begin(peer, b"text/event-stream")
        token = peer.requests[-1].partition(b'"progressToken":')[2].partition(b"}")[0]
        progress = (
            b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b,"progress":1}}'
        )
        await server.send(peer, progress % token + b"\n\n" + text)
        end(peer)

    async with running(tmp_path, answer) as (gateway, _, _server):
        body = call_of("s__echo", request_id="mine")
        body["params"]["_meta"] = envelope(progressToken="p")
        response = await gateway.post(body)
        # As Python splits lines, at more characters than an event stream does.
        first, last = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert first["params"] == {"progressToken": "p", "progress": 1}
        assert text_of(last["result"]) == TEXT
