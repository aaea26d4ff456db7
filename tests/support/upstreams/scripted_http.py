"""A scripted upstream over HTTP on 127.0.0.1, raw bytes: `--port 0` prints the port as the first line.

`/mcp` speaks Streamable HTTP of both eras, `/sse` with `/messages` the older HTTP+SSE. More members of
the script: `sse` (answers come as event streams), `legacy_sse_only` (no `/mcp`), `sse_endpoint` (what
the endpoint event says), `unacknowledged` (no subscription is acknowledged), `lenient` (headers that
disagree with the body are not refused), `sessions` (false: no Mcp-Session-Id). Every request that
arrives, at any path, is recorded with its headers.
SIGUSR1 makes it read the script file again and announce the tools found there.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import gzip
import json
import os
import signal
import socket
import struct
import uuid
from typing import Any

from scripted import MODERN, Record, Upstream, Wreck, acknowledged, notification, subscribed
from scripted_stdio import read
from wire import JSON, Gone, Request, Wire


def rpc_error(code: int, message: str, message_id: object = None) -> bytes:
    """Return a JSON-RPC error body."""
    return json.dumps({"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": message}}).encode()


def disagreement(message: dict[str, Any], headers: dict[str, str]) -> str | None:
    """Name the header that disagrees with a 2026-07-28 body, if any."""
    params = message.get("params") or {}
    wanted = {"mcp-protocol-version": MODERN, "mcp-method": message.get("method")}
    if message.get("method") in ("tools/call", "prompts/get"):
        wanted["mcp-name"] = params.get("name")
    for name, value in wanted.items():
        sent = headers.get(name)
        if sent is not None and sent.startswith("=?base64?") and sent.endswith("?="):
            try:
                sent = base64.b64decode(sent[9:-2], validate=True).decode()
            except (binascii.Error, ValueError):
                return name
        if sent != value:
            return name
    return None


class Site:
    """All connections of one scripted HTTP upstream."""

    def __init__(self, script: dict[str, Any], record: Record, tasks: asyncio.TaskGroup) -> None:
        self.script, self.record = script, record
        self.sessions: set[str] = set()
        self.tasks = tasks
        self.streams: dict[str, Wire] = {}  # GET streams and /sse streams by session
        self.listens: dict[object, tuple[Wire, Any]] = {}
        self.upstream = Upstream(script=script, record=record, broadcast=self.broadcast, forget=self.forget)

    def forget(self) -> None:
        """Forget every session: each gets 404 from now on."""
        self.sessions.clear()

    async def broadcast(self, method: str) -> None:
        """Tell every open stream."""
        outgoing = [(wire, notification(method)) for wire in self.streams.values()]
        outgoing += [(wire, subscribed(method, listen_id)) for wire, listen_id in self.listens.values()]
        for wire, message in outgoing:
            try:
                await wire.event(json.dumps(message))
            except Gone:
                continue

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        wire = Wire(reader, writer)
        try:
            while not wire.open_stream or not writer.is_closing():
                request = await wire.request()
                wire.open_stream = False
                method, path, headers = request.method, request.target, request.headers
                self.record.write("http", method=method, path=path, headers=headers)
                await self.route(request, wire)
        except (Gone, ValueError):
            pass
        finally:
            writer.close()

    async def route(self, request: Request, wire: Wire) -> None:
        """Answer one request."""
        only_sse = self.script.get("legacy_sse_only")
        match request.method, request.path:
            case "GET", "/sse":
                await self.old_stream(wire)
            case "POST", "/messages":
                await self.old_post(request, wire)
            case _, "/sse":
                await wire.respond(405)
            case "POST", "/mcp" if not only_sse:
                await self.post(request, wire)
            case "GET", "/mcp" if not only_sse:
                session = request.headers.get("mcp-session-id", "")
                if session in self.sessions and self.script.get("list_changed"):
                    self.upstream.opening()
                    await wire.open_events(mcp_session_id=session)
                    await self.hold(self.streams, session, wire)
                else:
                    await wire.respond(405 if session in self.sessions or not session else 404)
            case "DELETE", "/mcp" if not only_sse:
                known = request.headers.get("mcp-session-id") in self.sessions
                self.sessions.discard(request.headers.get("mcp-session-id", ""))
                await wire.respond(200 if known else 404)
            case _:
                await wire.respond(404, b"not here", "text/plain")

    async def hold(self, streams: dict[Any, Any], key: object, wire: Wire, entry: object = None) -> None:
        """Keep a stream open until its reader leaves."""
        streams[key] = entry or wire
        self.record.write("stream", key=str(key))
        try:
            async with asyncio.timeout(self.script.get("stream_s")):
                await wire.gone()
        except TimeoutError:
            await wire.chunk(b"")
        finally:
            streams.pop(key, None)
        raise Gone

    async def old_stream(self, wire: Wire) -> None:
        """Serve the stream of HTTP+SSE: first where to post, then every message."""
        session = uuid.uuid4().hex
        self.sessions.add(session)
        await wire.open_events()
        await wire.event(self.script.get("sse_endpoint", f"/messages?sessionId={session}"), "endpoint")
        await self.hold(self.streams, session, wire)

    async def old_post(self, request: Request, wire: Wire) -> None:
        """Take a message of HTTP+SSE; its answer goes over the stream."""
        stream = self.streams.get(request.target.partition("sessionId=")[2])
        if stream is None:
            await wire.respond(404)
            return
        message = json.loads(request.body)
        await wire.respond(202)

        async def emit(sent: dict[str, Any]) -> None:
            await stream.event(json.dumps(sent))

        async def answer() -> None:
            try:
                outcome = await self.upstream.answer(message, emit)
                if isinstance(outcome, Wreck):
                    await self.spoil_event(outcome, stream)
                elif outcome is not None:
                    await emit(outcome)
            except Gone:
                pass

        if message.get("method") == "notifications/cancelled":
            self.record.write("cancelled", cancelled=message["params"].get("requestId"))
        self.tasks.create_task(answer())

    async def post(self, request: Request, wire: Wire) -> None:
        """Answer one message of Streamable HTTP."""
        try:
            message = json.loads(request.body)
        except ValueError:
            await wire.respond(400, rpc_error(-32700, "Parse error"))
            return
        if not isinstance(message, dict):
            await wire.respond(400, rpc_error(-32600, "Invalid request"))
            return
        method, session = message.get("method"), request.headers.get("mcp-session-id")
        modern = request.headers.get("mcp-protocol-version") == MODERN or method == "server/discover"
        opened: dict[str, str] = {}
        if modern and self.script.get("modern"):
            wrong = None if self.script.get("lenient") else disagreement(message, request.headers)
            if wrong is not None:
                self.record.write("disagreement", header=wrong)
                await wire.respond(400, rpc_error(-32020, f"{wrong} disagrees", message.get("id")))
                return
            if method == "subscriptions/listen":
                self.record.write("request", id=message["id"], method=method, params=message.get("params"))
                self.upstream.opening()
                await wire.open_events()
                if not self.script.get("unacknowledged"):
                    await wire.event(json.dumps(acknowledged(message)))
                await self.hold(self.listens, id(wire), wire, (wire, message["id"]))
                return
        elif method == "initialize":
            if self.script.get("sessions", True) and self.script.get("handshake", True):
                session = uuid.uuid4().hex
                opened["mcp_session_id"] = session
        elif self.script.get("sessions", True) and session not in self.sessions:
            status, words = (400, "Missing session ID") if session is None else (404, "Session not found")
            await wire.respond(status, rpc_error(-32600, f"Bad Request: {words}", "server-error"))
            return
        # Not earlier: the session must exist before its client learns of it, but not before it was requested.
        if opened:
            self.sessions.add(opened["mcp_session_id"])
        if method == "notifications/cancelled":
            self.record.write("cancelled", cancelled=(message.get("params") or {}).get("requestId"))
        await self.respond_to(message, wire, opened, modern=modern)

    async def respond_to(self, message: dict[str, Any], wire: Wire, opened: dict[str, str], *, modern: bool) -> None:
        """Work on a message while watching whether its caller is still there."""
        as_events = bool(self.script.get("sse")) and "id" in message and message.get("method") != "initialize"

        async def emit(sent: dict[str, Any]) -> None:
            if not as_events:
                return
            if not wire.open_stream:
                await wire.open_events(**opened)
            await wire.event(json.dumps(sent))

        async def left() -> None:
            await wire.gone()
            event = "cancelled" if modern else "disconnected"
            self.record.write(event, **{event: message.get("id")}, name=(message.get("params") or {}).get("name"))
            work.cancel()

        work = self.tasks.create_task(self.guarded(message, emit))
        watch = self.tasks.create_task(left())
        try:
            outcome = await asyncio.shield(work)
        except asyncio.CancelledError:
            raise Gone from None
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        if isinstance(outcome, Wreck):
            await self.spoil(outcome, wire, opened, as_events=as_events)
        elif outcome is None and "id" in message and "method" in message:
            await wire.gone()
        elif outcome is None:
            await wire.respond(202, **opened)
        elif as_events:
            await emit(outcome)
            await wire.chunk(b"")
            wire.open_stream = False
        else:
            error = (outcome.get("error") or {}).get("code")
            status = {-32601: 404, -32020: 400, -32022: 400}.get(error, 200) if modern else 200
            await wire.respond(status, json.dumps(outcome).encode(), **opened)

    async def guarded(self, message: dict[str, Any], emit: Any) -> Any:
        """Answer, or stay silent when the stream broke under the answer."""
        try:
            return await self.upstream.answer(message, emit)
        except Gone:
            raise asyncio.CancelledError from None

    async def spoil_event(self, wreck: Wreck, stream: Wire) -> None:
        """Commit a fault on an HTTP+SSE stream."""
        whole = json.dumps(wreck.message)
        match wreck.kind:
            case "raw":
                await stream.event(str(wreck.given.get("line", "")))
            case "drop_sse" | "reset" | "half_body":
                await stream.chunk(f"event: message\ndata: {whole[: len(whole) // 2]}".encode())
                stream.writer.transport.abort()
            case _:
                await stream.event(whole)

    async def spoil(self, wreck: Wreck, wire: Wire, opened: dict[str, str], *, as_events: bool) -> None:
        """Commit a fault on one response."""
        whole, given = json.dumps(wreck.message).encode(), wreck.given
        match wreck.kind:
            case "raw" if as_events:
                await wire.open_events(**opened)
                await wire.event(str(given.get("line", "")))
                await wire.gone()
            case "raw":
                await wire.respond(200, str(given.get("line", "")).encode(), **opened)
            case "status":
                body = given.get("body", "scripted status").encode()
                code, kind = given.get("code", 500), given.get("content_type", "text/plain")
                await wire.respond(code, body, kind, **given.get("headers", {}))
            case "unauthorized":
                await wire.respond(401, b"no", "text/plain", www_authenticate='Bearer error="invalid_token"')
            case "redirect":
                await wire.respond(given.get("code", 307), location=given["to"])
            case "half_body":
                await wire.respond(200, whole, content_length=str(2 * len(whole)))
                raise Gone
            case "reset":
                linger = struct.pack("ii", 1, 0)
                wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                wire.writer.transport.abort()
                raise Gone
            case "slow_bytes":
                await wire.respond(200, b"", content_length=str(len(whole)), content_type=JSON)
                for byte in whole:
                    await wire.send(bytes((byte,)))
                    await asyncio.sleep(given.get("delay_s", 0.5))
            case "gzip_bomb":
                bomb = gzip.compress(b"\0" * given.get("bytes", 2**30), 6)
                await wire.respond(200, bomb, content_encoding="gzip")
            case "drop_sse":
                await wire.open_events()
                await wire.chunk(b"id: 1\nevent: message\ndata: " + whole[: len(whole) // 2])
                raise Gone
            case "wrong_content_type":
                await wire.respond(200, whole, "text/html")
            case "not_json":
                await wire.respond(200, b"<html>not JSON</html>")
            case "wrong_ids" if as_events:
                await wire.open_events()
                for unknown in (987_654, "nobody", None, [1]):
                    await wire.event(json.dumps({**wreck.message, "id": unknown}))
                for _ in range(2 if given.get("right", True) else 0):
                    await wire.event(whole.decode())
                await wire.chunk(b"")
                wire.open_stream = False
            case "wrong_ids":
                await wire.respond(200, json.dumps({**wreck.message, "id": 987_654}).encode())
            case _:
                await wire.respond(200, whole, **opened)


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--script", required=True)
    parser.add_argument("--record", required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    async with asyncio.TaskGroup() as tasks:
        site = Site(read(options.script), Record(options.record), tasks)

        async def reread() -> None:
            await site.upstream.retool(read(options.script).get("tools", []))

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.create_task(reread()))
        server = await asyncio.start_server(site.connection, "127.0.0.1", options.port, limit=2**20)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(main())
