"""The smallest honest upstream of both eras: plain ASGI, or lines with `--stdio`; N tools, answers of fixed size."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import orjson
import uvicorn

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


PAGE = 2_000


def definition(number: int, words: int = 1) -> dict[str, Any]:
    """A tool of usual size: five parameters, about 900 bytes, and 1,700 with six times the words."""
    names = ("query", "path", "limit", "recursive", "timeZone")
    kinds = ("string", "string", "integer", "boolean", "string")
    return {
        "name": f"tool_{number:04}",
        "title": f"Tool number {number}",
        "description": f"Does the work of tool {number} on what it is given, and tells what came of it. " * 2 * words,
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


def results(listing: list[dict[str, Any]], size_bytes: int) -> dict[str, bytes]:
    """The result of each method, for any params."""
    envelope = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
    offered = {"capabilities": {"tools": {}}}
    server = {"serverInfo": {"name": "bench", "version": "1"}}
    answers = {
        "server/discover": {**envelope, "supportedVersions": ["2026-07-28"], **offered},
        "initialize": {"protocolVersion": "2025-11-25", **offered, **server},
        "ping": {},
        "tools/call": {"resultType": "complete", "content": [{"type": "text", "text": "x" * size_bytes}]},
    }
    for start in range(0, len(listing), PAGE):
        more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(listing) else {}
        answers[f"tools/list {start}"] = {**envelope, "tools": listing[start : start + PAGE], **more}
    return {method: orjson.dumps(result) for method, result in answers.items()}


def answer_to(message: bytes, encoded: dict[str, bytes]) -> bytes | None:
    """The answer to one message; None to a notification."""
    request = orjson.loads(message)
    if "id" not in request:
        return None
    method = request["method"]
    if method == "tools/list":
        method = f"tools/list {request.get('params', {}).get('cursor', '0')}"
    result = encoded.get(method)
    rest = b'"result":' + result if result is not None else b'"error":{"code":-32601,"message":"Method not found"}'
    return b'{"jsonrpc":"2.0","id":' + orjson.dumps(request["id"]) + b"," + rest + b"}"


def application(encoded: dict[str, bytes]) -> Any:
    """The ASGI application."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = answer_to(body, encoded) if scope["method"] == "POST" else b""
        status = 405 if scope["method"] != "POST" else 202 if answer is None else 200
        answer = answer or b""
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    return app


def lines(encoded: dict[str, bytes]) -> None:
    """Answer lines until the end of the input."""
    for line in sys.stdin.buffer:
        answer = answer_to(line, encoded)
        if answer is not None:
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


def main() -> None:
    """Serve on a free port of 127.0.0.1 and print it, or over standard input and output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--size-bytes", type=int, default=500)
    parser.add_argument("--words", type=int, default=1, help="length of descriptions")
    parser.add_argument("--file", type=Path, help="definitions to list, instead of ours")
    parser.add_argument("--stdio", action="store_true")
    arguments = parser.parse_args()
    listing = [definition(number, arguments.words) for number in range(arguments.tools)]
    if arguments.file is not None:
        listing = orjson.loads(arguments.file.read_bytes())[: arguments.tools]
    encoded = results(listing, arguments.size_bytes)
    if arguments.stdio:
        lines(encoded)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(application(encoded), lifespan="off", access_log=False, log_level="error"))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
