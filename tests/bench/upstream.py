"""The smallest honest 2026-07-28 upstream: plain ASGI, N tools, an echo of fixed size."""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
import uvicorn

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def definition(number: int) -> dict[str, Any]:
    """A tool of usual size: about 700 bytes, five parameters."""
    names = ("query", "path", "limit", "recursive", "timeZone")
    kinds = ("string", "string", "integer", "boolean", "string")
    return {
        "name": f"tool_{number:04}",
        "title": f"Tool number {number}",
        "description": f"Does the work of tool {number} on what it is given, and tells what came of it. " * 2,
        "inputSchema": {
            "type": "object",
            "properties": {
                name: {"type": kind, "description": f"The {name} that the work is done with."}
                for name, kind in zip(names, kinds, strict=True)
            },
            "required": ["query"],
        },
        "annotations": {"readOnlyHint": True},
    }


def application(tools: int, size_bytes: int) -> Any:
    """The ASGI application."""
    listing = [definition(number) for number in range(tools)]
    envelope = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
    results = {
        "server/discover": {**envelope, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {**envelope, "tools": listing},
        "tools/call": {"resultType": "complete", "content": [{"type": "text", "text": "x" * size_bytes}]},
    }
    encoded = {method: orjson.dumps(result) for method, result in results.items()}

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = orjson.loads(body)
        result = encoded[request["method"]]
        answer = b'{"jsonrpc":"2.0","id":' + orjson.dumps(request["id"]) + b',"result":' + result + b"}"
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    return app


def main() -> None:
    """Serve on a free port of 127.0.0.1 and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--size-bytes", type=int, default=500)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listener.getsockname()[1], flush=True)
    app = application(arguments.tools, arguments.size_bytes)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", access_log=False, log_level="error"))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
