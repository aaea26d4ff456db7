"""Run an ASGI application for one request.

Source: ASGI, "HTTP & WebSocket ASGI Message Format", version 2.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from gateway.downstream.http.request import Fields, RequestHead
from gateway.downstream.http.responder import Responder

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")


class AsgiHandler:
    """Gives whole requests to an application.

    Args:
        app: The application.
        max_body_bytes: The largest body that it takes.
        check: Raises `RequestRefused` for a request whose body is not worth reading; the application judges the rest.
    """

    def __init__(
        self, app: AsgiApp, *, max_body_bytes: int, check: Callable[[RequestHead, str], None] = lambda head, peer: None
    ) -> None:
        self._app = app
        self._check = check
        self.max_body_bytes = max_body_bytes

    def admit(self, head: RequestHead, peer: str) -> None:
        """Refuse a request whose body is not worth reading."""
        self._check(head, peer)

    def answer(self, head: RequestHead, admitted: object, body: bytes, responder: Responder, peer: str) -> None:
        """Have the application answer. Who leaves does not interrupt it: a change is made whole or not at all."""
        left = asyncio.Event()
        responder.on_disconnect = left.set
        responder.pings = False
        responder.run(self._run(_scope(head, peer), body, responder, left))

    async def _run(self, scope: Scope, body: bytes, responder: Responder, left: asyncio.Event) -> None:
        unread: bytes | None = body

        async def receive() -> MutableMapping[str, Any]:
            nonlocal unread
            if unread is None:
                await left.wait()
                return {"type": "http.disconnect"}
            message = {"type": "http.request", "body": unread, "more_body": False}
            unread = None
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                responder.start(message["status"], list(message.get("headers", ())))
                return
            responder.write(message.get("body", b""))
            if message.get("more_body", False):
                await responder.drain()
            else:
                responder.end()
                left.set()

        try:
            await self._app(scope, receive, send)
        except Exception:  # boundary: an application's fault ends its own request only
            log.exception("an application failed")
        if not responder.ended:
            responder.fail()


async def send_json(send: Send, status: int, body: bytes, fields: Fields | None = None) -> None:
    """Send one complete JSON response."""
    head = [_JSON, (b"content-length", str(len(body)).encode()), *(fields or [])]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _scope(head: RequestHead, peer: str) -> Scope:
    host, _, port = peer.rpartition(":")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "method": head.method.decode("latin-1"),
        "scheme": "http",
        "path": unquote(head.path.decode("latin-1")),
        "raw_path": head.path,
        "query_string": head.query,
        "root_path": "",
        "headers": list(head.fields),
        "client": (host, int(port)) if port.isdigit() else None,
        "server": None,
        "state": {},
    }
