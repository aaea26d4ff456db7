"""A protected upstream and its authorization server in one, whose documents and answers a test decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Lying:
    """The response at each path: a document, a pair of status and document, raw bytes, or nothing for 404.

    Attributes:
        origin: The origin of both.
        paths: Answers by path.
        requests: Method and target of every request.
        forms: Bodies of what was posted.
        latest: The header block, in lower case, and the body of the latest request.
    """

    origin: str = ""
    paths: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    latest: tuple[str, bytes] = ("", b"")

    @property
    def url(self) -> str:
        """Return the URL of the MCP endpoint."""
        return f"{self.origin}/mcp"

    def tell_the_truth(self, **changed: Any) -> None:
        """Answer as a good server does, but for these members of the server's metadata; None leaves one out."""
        self.paths["/mcp"] = (401, {}, {"www-authenticate": 'Bearer scope="mcp"'})
        self.paths["/.well-known/oauth-protected-resource/mcp"] = {
            "resource": self.url,
            "authorization_servers": [self.origin],
        }
        metadata = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            **changed,
        }
        kept = {name: value for name, value in metadata.items() if value is not None}
        self.paths["/.well-known/oauth-authorization-server"] = kept
        self.paths["/register"] = (201, {"client_id": "c"})
        self.paths["/token"] = {"access_token": "t", "token_type": "Bearer", "expires_in": 300, "refresh_token": "r"}


@asynccontextmanager
async def lying_server() -> AsyncIterator[Lying]:
    """Serve on loopback until the block ends."""
    server = Lying()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split("\r\n", 1)[0].split(" ")
            length = next((line[15:] for line in head.lower().split("\r\n") if line.startswith("content-length:")), "0")
            body = await reader.readexactly(int(length))
            server.latest = head.lower(), body
            server.requests.append(f"{method} {target}")
            if body and target != "/mcp":
                server.forms.append(body.decode())
            answer = server.paths.get(target.partition("?")[0])
            if callable(answer):
                answer = await answer(writer)
            if answer is not None or target.partition("?")[0] not in server.paths:
                writer.write(_response(answer))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.origin = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server


def _response(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    status, document, headers = 200, answer, {}
    if isinstance(answer, tuple):
        status, document, *rest = answer
        headers = rest[0] if rest else {}
    if answer is None:
        status, document = 404, {"error": "not found"}
    body = json.dumps(document).encode()
    head: Mapping[str, str] = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {status} X\r\nconnection: close\r\n{lines}\r\n".encode() + body
