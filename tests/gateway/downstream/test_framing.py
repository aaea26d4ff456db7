"""A request is answered alike with a length, in chunks, or in pieces."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.callers import handshake
from support.gateways import META, MODERN, RunningGateway, running_gateway
from support.upstreams.running import builtin_tools, scripted_http_server, scripted_stdio_server

EXAMPLES = 250
PLAIN = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

Json = Any


@dataclass(slots=True, kw_only=True)
class Reply:
    """One HTTP response, whole."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Wire:
    """One kept connection; opened again where the other side has closed it."""

    host: str
    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, headers: dict[str, str], body: bytes, *, chunked: bool) -> Reply:
        """Send a POST with a length or in chunks; the rest of the request is equal."""
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        lines.append("transfer-encoding: chunked" if chunked else f"content-length: {len(body)}")
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked and body else b"0\r\n\r\n" if chunked else body
        reader, writer = self.streams or await asyncio.open_connection(self.host, self.port)
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + sent)
        reply = await read_reply(reader)
        self.streams = (reader, writer)
        if reply.headers.get("connection") == "close":
            await self.close()
        return reply

    async def close(self) -> None:
        """Leave."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Reply(status=int(head[0].split(" ")[1]), headers=headers, body=body)


@asynccontextmanager
async def wires(tmp_path: Path) -> AsyncIterator[tuple[RunningGateway, Wire, Wire, dict[str, str]]]:
    """A gateway before two upstreams, two connections to it, and the headers of a handshake-era session."""
    tools = builtin_tools("echo", "error", "result", "progress", "big")
    stdio, _ = scripted_stdio_server(tmp_path, "s", tools=tools, modern=False)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(scripted_http_server(tmp_path, "h", tools=tools, modern=True, sse=True))
        options: dict[str, Any] = {"profiles": {"small": {"disclosure": "lazy"}}}
        gateway = await stack.enter_async_context(
            running_gateway(tmp_path, {"s": stdio, "h": http.config}, gateway=options)
        )
        await gateway.until_listed("s__echo", "h__echo")
        session = await handshake(gateway)
        host, _, port = gateway.origin.removeprefix("http://").rpartition(":")
        short, long = Wire(host, int(port)), Wire(host, int(port))
        yield gateway, short, long, dict(session.headers)
        await short.close()
        await long.close()


_names = st.sampled_from(
    [
        "s__echo", "h__echo", "h__error", "s__result", "h__big", "invoke_tool", "find_tools", "s__nothing", "é", "",
        "=?base64?aGk=?=",
    ]
)  # fmt: skip
_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8)
_values: st.SearchStrategy[Json] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_arguments = st.dictionaries(st.sampled_from(["text", "code", "message", "server", "tool", "bytes"]), _values) | _values
_ids = st.integers(-5, 2**60) | st.text(max_size=5) | st.sampled_from([1.5, True, None, [], {}])
_methods = st.sampled_from(
    [*["tools/call"] * 6, "tools/list", "ping", "prompts/list", "tools/Call", "server/discover", [], {}, 7, None]
)
# Changes of a hostile or careless caller to a valid request.
_slips = st.lists(
    st.sampled_from(
        [
            "no-accept", "odd-accept", "json-only", "charset", "no-type", "wrong-name", "wrong-method", "no-name",
            "wrong-version", "unknown-version", "no-version-header", "no-session", "wrong-session", "other-profile",
            "no-such-profile", "slash", "query", "origin", "bad-origin", "bad-host", "twice", "trace", "cursor",
            "no-meta", "no-capabilities", "null-params", "list-params", "no-jsonrpc", "extra", "spaces", "broken",
            "empty",
        ]
    ),
    max_size=2,
)  # fmt: skip


def request_of(
    modern: bool, method: Json, name: str, arguments: Json, request_id: Json, slips: list[str], session: dict[str, str]
) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body of a request with these slips."""
    body: dict[str, Json] = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {}}
    params: dict[str, Json] = body["params"]
    if method == "tools/call":
        params |= {"name": name, "arguments": arguments}
    headers = {"host": "127.0.0.1", **PLAIN}
    if modern:
        params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": str(method)}
        if method == "tools/call":
            headers["mcp-name"] = name
    else:
        headers |= session
    path = "/mcp"
    changes: dict[str, Any] = {
        "no-accept": lambda: headers.pop("accept", None),
        "odd-accept": lambda: headers.update(accept="text/html"),
        "json-only": lambda: headers.update(accept="application/json"),
        "charset": lambda: headers.update({"content-type": "application/json; charset=utf-8"}),
        "no-type": lambda: headers.pop("content-type", None),
        "wrong-name": lambda: headers.update({"mcp-name": "s__echo2"}),
        "wrong-method": lambda: headers.update({"mcp-method": "tools/list2"}),
        "no-name": lambda: headers.pop("mcp-name", None),
        "wrong-version": lambda: headers.update({"mcp-protocol-version": "2025-06-18"}),
        "unknown-version": lambda: headers.update({"mcp-protocol-version": "2099-01-01"}),
        "no-version-header": lambda: headers.pop("mcp-protocol-version", None),
        "no-session": lambda: headers.pop("mcp-session-id", None),
        "wrong-session": lambda: headers.update({"mcp-session-id": "0" * 32}),
        "origin": lambda: headers.update(origin="http://localhost:3000"),
        "bad-origin": lambda: headers.update(origin="https://evil.test"),
        "bad-host": lambda: headers.update(host="evil.test"),
        "trace": lambda: headers.update(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        "cursor": lambda: params.update(cursor="x"),
        "no-meta": lambda: params.pop("_meta", None),
        "no-capabilities": lambda: params.get("_meta", {}).pop(META + "clientCapabilities", None),
        "null-params": lambda: body.update(params=None),
        "list-params": lambda: body.update(params=[]),
        "no-jsonrpc": lambda: body.pop("jsonrpc", None),
        "extra": lambda: body.update(result={}, vendor=[1]),
        "twice": lambda: headers.update({"Mcp-Method": str(method), "Mcp-Name": name}),
        "spaces": lambda: headers.update({"mcp-name": f"{headers.get('mcp-name', '')}  "}),
    }
    places = {
        "other-profile": "/mcp/small", "no-such-profile": "/mcp/none", "slash": "/mcp/", "query": "/mcp?a=b",
    }  # fmt: skip
    for slip in slips:
        if slip in changes:
            changes[slip]()
        path = places.get(slip, path)
    if "broken" in slips:
        return path, headers, b'{"jsonrpc":'
    return path, headers, b"" if "empty" in slips else json.dumps(body).encode()


def sendable(headers: dict[str, str]) -> bool:
    """Return whether a client can send these headers."""
    return all((value.isprintable() and value.isascii()) or value == "é" for value in headers.values())


@pytest.mark.heavy
def test_body_with_length_and_chunked_body_are_answered_alike(tmp_path: Path) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(wires(tmp_path)) as (_, short, long, session),
    ):

        async def both(path: str, headers: dict[str, str], body: bytes) -> tuple[Reply, Reply]:
            with anyio.fail_after(25):
                first = await short.post(path, headers, body, chunked=False)
                return first, await long.post(path, headers, body, chunked=True)

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.booleans(), _methods, _names, _arguments, _ids, _slips)
        def law(modern: bool, method: Json, name: str, arguments: Json, request_id: Json, slips: list[str]) -> None:
            path, headers, body = request_of(modern, method, name, arguments, request_id, slips, session)
            if not sendable(headers):
                return
            sized, chunked = portal.call(both, path, headers, body)
            assert (sized.status, sized.body) == (chunked.status, chunked.body)
            assert sized.headers == chunked.headers

        law()


@pytest.mark.parametrize("modern", [True, False])
async def test_progress_streams_alike_with_length_and_chunked(modern: bool, tmp_path: Path) -> None:
    async with wires(tmp_path) as (_, short, long, session):
        for name in ("s__progress", "h__progress"):
            path, headers, raw = request_of(
                modern, "tools/call", name, {"count": 3, "interval_s": 0.01}, 7, [], session
            )
            body = json.loads(raw)
            body["params"].setdefault("_meta", {})["progressToken"] = "p"
            with anyio.fail_after(25):
                sized = await short.post(path, headers, json.dumps(body).encode(), chunked=False)
                chunked = await long.post(path, headers, json.dumps(body).encode(), chunked=True)
            assert sized.headers == chunked.headers
            assert sized.headers["content-type"] == "text/event-stream", sized.body
            assert sized.body.count(b"notifications/progress") == 3
            # Event ids begin with the number of the stream.
            bodies = [re.sub(rb"(?m)^id: \d+-", b"id: N-", exchange.body) for exchange in (sized, chunked)]
            assert bodies[0] == bodies[1]


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
async def test_request_in_pieces_is_answered_like_a_whole_one(tmp_path: Path, piece_bytes: int) -> None:
    async with wires(tmp_path) as (gateway, short, _, session):
        path, headers, body = request_of(True, "tools/call", "s__echo", {"text": "x"}, 1, [], session)
        with anyio.fail_after(25):
            whole = await short.post(path, headers, body, chunked=False)
        lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), f"content-length: {len(body)}"]
        raw = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
        reader, writer = await asyncio.open_connection(short.host, short.port)
        with anyio.fail_after(25):
            for start in range(0, len(raw), piece_bytes):
                writer.write(raw[start : start + piece_bytes])
                await writer.drain()
                await anyio.lowlevel.checkpoint()
            assert (await read_reply(reader)).body == whole.body
            # Two at once: the second waits for the first, and neither is lost.
            writer.write(raw + raw)
            assert [(await read_reply(reader)).body for _ in range(2)] == [whole.body] * 2
        writer.close()
        assert (await gateway.call("h__echo", {"text": "y"}))["content"]


@pytest.mark.heavy
async def test_slow_body_is_read(tmp_path: Path) -> None:
    async with wires(tmp_path) as (_, short, _, session):
        path, headers, body = request_of(True, "tools/call", "s__echo", {"text": "x"}, 1, [], session)
        lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), f"content-length: {len(body)}"]
        reader, writer = await asyncio.open_connection(short.host, short.port)
        with anyio.fail_after(25):
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body[:-1])
            with pytest.raises(TimeoutError), anyio.fail_after(1.5):
                await reader.read(1)
            writer.write(body[-1:])
            assert (await read_reply(reader)).status == 200
        writer.close()
