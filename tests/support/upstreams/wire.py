"""HTTP/1.1 by hand for scripted upstreams: what a well-made server library would not let them do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

JSON, EVENTS = "application/json", "text/event-stream"
REASONS = {200: "OK", 202: "Accepted", 204: "No Content", 307: "Temporary Redirect", 404: "Not Found"}


class Gone(Exception):
    """The other side closed the connection."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as it arrived; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclass(slots=True)
class Wire:
    """One connection: reads requests, writes responses, and notices when the other side leaves."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ahead: bytearray = field(default_factory=bytearray)
    open_stream: bool = False

    async def until(self, mark: bytes) -> bytes:
        """Read up to and with the mark."""
        while (at := self.ahead.find(mark)) < 0:
            await self._more()
        taken = bytes(self.ahead[: at + len(mark)])
        del self.ahead[: at + len(mark)]
        return taken

    async def exactly(self, count: int) -> bytes:
        """Read this many bytes."""
        while len(self.ahead) < count:
            await self._more()
        taken = bytes(self.ahead[:count])
        del self.ahead[:count]
        return taken

    async def gone(self) -> None:
        """Return when the other side has closed; what it sends until then is kept."""
        try:
            while True:
                await self._more()
        except Gone:
            return

    async def _more(self) -> None:
        try:
            data = await self.reader.read(65_536)
        except OSError:
            data = b""
        if not data:
            raise Gone
        self.ahead += data

    async def request(self) -> Request:
        """Read the next request."""
        head = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers: dict[str, str] = {}
        for one in filter(None, head[1:]):
            name, _, value = one.partition(":")
            headers[name.lower()] = value.strip()
        body = b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self.until(b"\r\n")).strip(), 16):
                body += (await self.exactly(size + 2))[:-2]
            await self.until(b"\r\n")
        elif "content-length" in headers:
            body = await self.exactly(int(headers["content-length"]))
        return Request(method=method, target=target, headers=headers, body=body)

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            raise Gone from None

    async def respond(self, status: int, body: bytes = b"", kind: str = JSON, **headers: str) -> None:
        """Write a whole response; `content_length` may lie."""
        given = {"content-length": str(len(body)), **({"content-type": kind} if body else {})}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        await self.send(f"HTTP/1.1 {status} {REASONS.get(status, 'Scripted')}\r\n{head}\r\n".encode() + body)

    async def open_events(self, **headers: str) -> None:
        """Begin an event stream."""
        self.open_stream = True
        given = {"content-type": EVENTS, "cache-control": "no-cache", "transfer-encoding": "chunked"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        await self.send(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())

    async def event(self, data: str, name: str = "message") -> None:
        """Write one event as one chunk."""
        await self.chunk(f"event: {name}\ndata: {data}\n\n".encode())

    async def chunk(self, data: bytes) -> None:
        """Write one chunk; an empty one ends the stream."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")
