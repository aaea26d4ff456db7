"""The whole server of `full.py` over a transport, raw: `--era modern|handshake [--port N]`.

Without `--port` it speaks over stdio; with it over Streamable HTTP on 127.0.0.1, and the first line
printed is the port. It is strict: what its era forbids is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import sys
import uuid
from contextlib import suppress
from typing import Any

from full import Full
from full_asked import Asked, Listen, Peer, acknowledgement, wanting
from scripted import MODERN, Record
from wire import Gone, Request, Wire

_STATUS = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def failed(message: Any, code: int, words: str) -> dict[str, Any]:
    """Return a JSON-RPC error."""
    number = message.get("id") if isinstance(message, dict) else None
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": words}}


def disagreement(message: dict[str, Any], headers: dict[str, str]) -> str | None:
    """Name the header that disagrees with a modern body, if any."""
    params = message.get("params") or {}
    wanted = {"mcp-protocol-version": MODERN, "mcp-method": message.get("method")}
    if message.get("method") in _NAMED:
        wanted["mcp-name"] = params.get(_NAMED[message["method"]])
    elif str(message.get("method")).startswith("tasks/"):
        wanted["mcp-name"] = params.get("taskId")
    for name, value in wanted.items():
        sent = headers.get(name)
        if sent is not None and sent.startswith("=?base64?") and sent.endswith("?="):
            sent = base64.b64decode(sent[9:-2]).decode()
        if sent != value:
            return name
    return None


class Site:
    """All connections of the server over HTTP."""

    def __init__(self, full: Full, tasks: asyncio.TaskGroup) -> None:
        self.full, self.tasks, self.record = full, tasks, full.record
        self.sessions: dict[str, tuple[Peer, asyncio.Queue[dict[str, Any]]]] = {}
        self.working: dict[tuple[Peer, Any], asyncio.Task[Any]] = {}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        wire = Wire(reader, writer)
        try:
            while not writer.is_closing():
                request = await wire.request()
                wire.open_stream = False
                self.record.write("http", method=request.method, path=request.target, headers=request.headers)
                session = request.headers.get("mcp-session-id", "")
                match request.method:
                    case "POST":
                        await self.post(request, wire)
                    case "GET" if session in self.sessions:
                        await self.stream(session, wire)
                    case "DELETE" if session in self.sessions:
                        self.full.peers.discard(self.sessions.pop(session)[0])
                        await wire.respond(204)
                    case _:
                        await wire.respond(404 if session else 405)
        except (Gone, ValueError):
            pass
        finally:
            writer.close()

    async def post(self, request: Request, wire: Wire) -> None:
        """Answer one message."""
        message = json.loads(request.body)
        if not isinstance(message, dict):
            await self.refuse(wire, failed(message, -32600, "No batches here"))
            return
        if self.full.modern:
            await self.modern(message, request, wire)
            return
        method, session = message.get("method"), request.headers.get("mcp-session-id", "")
        opened: dict[str, str] = {}
        if method == "initialize":
            session = uuid.uuid4().hex
            queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            self.sessions[session] = Peer(send=queue.put), queue
            self.full.peers.add(self.sessions[session][0])
            opened["mcp_session_id"] = session
        elif session not in self.sessions:
            await self.refuse(wire, failed(message, -32600, "No such session"), 404 if session else 400)
            return
        peer = self.sessions[session][0]
        if method == "notifications/cancelled":
            self.stop(peer, (message.get("params") or {}).get("requestId"))
        incoming = Asked(message=message, peer=peer, emit=wire_send(wire), headers=request.headers, modern=False)
        await self.work(incoming, wire, opened)

    async def modern(self, message: dict[str, Any], request: Request, wire: Wire) -> None:
        """Answer one message of the modern era, where every request stands alone."""
        if "method" not in message or "id" not in message:
            await wire.respond(202)
            return
        if message["method"] == "initialize":
            await self.refuse(wire, failed(message, -32022, "No handshakes here"))
        elif lacking := wanting(message):
            await self.refuse(wire, failed(message, -32602, f"{lacking} is missing"))
        elif wrong := disagreement(message, request.headers):
            self.record.write("disagreement", header=wrong)
            await self.refuse(wire, failed(message, -32020, f"{wrong} disagrees"))
        elif message["method"] == "subscriptions/listen":
            self.record.write("request", id=message["id"], method=message["method"], params=message["params"])
            await wire.open_events()
            await wire.event(json.dumps(acknowledgement(message)))
            send = wire_send(wire)
            listen = Listen(message_id=message["id"], wanted=message["params"]["notifications"], send=send)
            self.full.listens.add(listen)
            try:
                await wire.gone()
            finally:
                self.full.listens.discard(listen)
            raise Gone
        else:
            send = wire_send(wire)
            peer = Peer(send=send)
            incoming = Asked(message=message, peer=peer, emit=send, headers=request.headers, modern=True)
            await self.work(incoming, wire, {})

    async def refuse(self, wire: Wire, error: dict[str, Any], status: int = 400) -> None:
        """Answer with an error."""
        await wire.respond(status, json.dumps(error).encode())

    async def work(self, incoming: Asked, wire: Wire, opened: dict[str, str]) -> None:
        """Work on a message while watching whether its caller is still there."""
        message = incoming.message
        key = incoming.peer, message.get("id")

        async def left() -> None:
            await wire.gone()
            if incoming.modern:
                self.stop(*key)

        work = self.tasks.create_task(self.full.answer(incoming))
        if "method" in message and "id" in message:
            self.working[key] = work
        watch = self.tasks.create_task(left())
        try:
            await asyncio.wait([work])
        finally:
            self.working.pop(key, None)
            watch.cancel()
            await asyncio.wait([watch])
        if work.cancelled():
            # A cancelled request gets no response; in the handshake era its connection may stay open.
            if not wire.open_stream:
                await wire.open_events()
            await wire.chunk(b"")
            return
        outcome = work.result()
        if outcome is None:
            await wire.respond(202)
        elif wire.open_stream:
            await wire.event(json.dumps(outcome))
            await wire.chunk(b"")
        else:
            code = (outcome.get("error") or {}).get("code")
            status = _STATUS.get(code, 200) if incoming.modern else 200
            await wire.respond(status, json.dumps(outcome).encode(), **opened)

    def stop(self, peer: Peer, message_id: Any) -> None:
        """Cancel what is being worked on."""
        self.record.write("cancelled", cancelled=message_id)
        if (peer, message_id) in self.working:
            self.working[peer, message_id].cancel()

    async def stream(self, session: str, wire: Wire) -> None:
        """Serve the GET stream of a session; what was said before it was opened comes first."""
        await wire.open_events(mcp_session_id=session)
        queue = self.sessions[session][1]

        async def forward() -> None:
            with suppress(Gone):
                while True:
                    await wire.event(json.dumps(await queue.get()))

        task = self.tasks.create_task(forward())
        try:
            await wire.gone()
        finally:
            task.cancel()
        raise Gone


def wire_send(wire: Wire) -> Any:
    """Return what sends a message on the stream of a request, opening it first."""

    async def send(message: dict[str, Any]) -> None:
        with suppress(Gone):
            if not wire.open_stream:
                await wire.open_events()
            await wire.event(json.dumps(message))

    return send


async def over_stdio(full: Full) -> None:
    """Answer lines until stdin ends."""

    async def send(message: dict[str, Any]) -> None:
        view = memoryview(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        while view:
            try:
                view = view[os.write(1, view) :]
            except BlockingIOError:
                os.set_blocking(1, True)
            except BrokenPipeError:
                os._exit(0)
        await asyncio.sleep(0)

    peer = Peer(send=send)
    calls: dict[Any, asyncio.Task[None]] = {}
    listens: dict[Any, Listen] = {}

    async def handle(message: dict[str, Any]) -> None:
        answer = await full.answer(Asked(message=message, peer=peer, emit=send, headers={}, modern=full.modern))
        if answer is not None:
            await send(answer)

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        while received := await reader.readline():
            message = json.loads(received)
            method, number = message.get("method"), message.get("id")
            if method == "notifications/initialized" and not full.modern:
                full.peers.add(peer)
            if method == "notifications/cancelled":
                wanted = message["params"].get("requestId")
                full.record.write("cancelled", cancelled=wanted)
                if wanted in listens:
                    full.listens.discard(listens.pop(wanted))
                if wanted in calls:
                    calls[wanted].cancel()
            if full.modern and method is not None and number is not None:
                if method == "initialize":
                    await send(failed(message, -32022, "No handshakes here"))
                    continue
                if lacking := wanting(message):
                    await send(failed(message, -32602, f"{lacking} is missing"))
                    continue
                if method == "subscriptions/listen":
                    full.record.write("request", id=number, method=method, params=message["params"])
                    wanted = message["params"]["notifications"]
                    listens[number] = Listen(message_id=number, wanted=wanted, send=send)
                    full.listens.add(listens[number])
                    await send(acknowledgement(message))
                    continue
            task = tasks.create_task(handle(message))
            if method is not None and number is not None:
                calls[number] = task
                task.add_done_callback(lambda _, key=number: calls.pop(key, None))
        os._exit(0)


async def over_http(full: Full, port: int) -> None:
    """Serve until killed."""
    async with asyncio.TaskGroup() as tasks:
        server = await asyncio.start_server(Site(full, tasks).connection, "127.0.0.1", port, limit=2**20)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


async def main() -> None:
    """Serve over the transport that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--era", choices=["modern", "handshake"], required=True)
    parser.add_argument("--name", default="full")
    parser.add_argument("--record", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--ttl-ms", type=int, default=0)
    parser.add_argument("--scope", default="public")
    parser.add_argument("--page", type=int, default=0, help="items on a page of a list; 0 is all")
    parser.add_argument("--stumble", default="", help="a method whose first two requests fail")
    options = parser.parse_args()
    record = Record(options.record)
    modern = options.era == "modern"
    hints = {"ttl_ms": options.ttl_ms, "scope": options.scope}
    full = Full(options.name, modern=modern, record=record, page=options.page, stumble=options.stumble, **hints)
    await (over_stdio(full) if options.port is None else over_http(full, options.port))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(main())
