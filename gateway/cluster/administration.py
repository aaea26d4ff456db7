"""`/admin`, `/metrics` and `/readyz` of several workers: whichever is asked, all of them are meant.

The first worker answers for all and carries out every change; another one hands a request to it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread

from gateway import wire
from gateway.cluster import merging
from gateway.cluster.assignment import FIRST
from gateway.cluster.peers import ASK_S, PeerLost, Peers, Reply
from gateway.downstream.http.request import Scope
from gateway.downstream.http.response import Receive, Send, send_json

OWN: Final = "/own"
FLUSH: Final = "/shared/flush"
PROCESS: Final = "x-typegate-process"
_MAX_BODY_BYTES: Final = 1024 * 1024
PASSED_ON: Final = ("content-type", "www-authenticate", "retry-after", "allow")
_READS: Final = frozenset({"GET", "HEAD"})

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Administration:
    """The rooms beside `/mcp`, for all workers.

    Args:
        own: The application that answers for this worker alone.
        index: Which worker this is.
        peers: The others.
        push: Has the others take what has changed here.
    """

    def __init__(
        self,
        own: App,
        index: int,
        peers: Peers,
        push: Callable[[], Awaitable[None]],
    ) -> None:
        self._own = own
        self._index = index
        self._peers = peers
        self._push = push
        self._ledger = merging.Ledger()
        self._counting = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for all workers."""
        path, method = scope["path"], scope["method"]
        if path == "/readyz" and method == "GET":
            await _reply(send, await self._ready(scope))
            return
        if not path.startswith(("/admin", "/metrics")) or method == "HEAD":
            await self._own(scope, receive, send)
            return
        body = b"" if method in _READS else await _body(receive)
        if self._index != FIRST:
            try:
                await _reply(send, await self._at_first(scope, body))
                return
            except PeerLost:
                # Counters that leave the first worker out would go back, and seem to start anew.
                if method not in _READS or path.startswith("/metrics"):
                    text = b'{"error":"the first worker is starting again: try again in a moment"}'
                    await send_json(send, 503, text, [(b"retry-after", b"1")])
                    return
        await _reply(send, await self._answer(scope, body))

    async def alone(self, scope: Scope, body: bytes) -> Reply:
        """What this worker answers, for itself."""
        status, headers, parts = 500, {}, []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            else:
                parts.append(message.get("body", b""))

        await self._own(dict(scope), receive, send)
        headers[PROCESS] = str(os.getpid())
        return Reply(status=status, headers=headers, body=b"".join(parts))

    async def _at_first(self, scope: Scope, body: bytes) -> Reply:
        try:
            # A change is answered once all workers have it, and each of them may take its time.
            return await self._peers.ask(
                FIRST, scope["method"], _target(scope), headers=_headers(scope), body=body, within_s=3 * ASK_S
            )
        except ValueError:
            return Reply(status=400, headers={}, body=b'{"error":"the request cannot be read"}')

    async def _answer(self, scope: Scope, body: bytes) -> Reply:
        path, method = scope["path"], scope["method"]
        if method not in _READS:
            reply = await self.alone(scope, body)
            if reply.status < 300 and path.endswith("/refresh"):
                await self._all(scope)
            elif reply.status < 300:
                await self._push()
            return reply
        if path == "/admin/failures":
            await self._flush_all()
        reply = await self.alone(scope, b"")
        if reply.status != 200:
            return reply
        if path == "/metrics":
            replies = {self._index: reply, **await self._all(scope)}
            texts = {index: (one.headers.get(PROCESS, ""), one.body.decode()) for index, one in replies.items()}
            async with self._counting:
                merged = await anyio.to_thread.run_sync(self._ledger.add, texts)
            return Reply(status=200, headers=reply.headers, body=merged)
        if path == "/admin/servers":
            lists = [one["servers"] for one in await self._documents(scope, reply)]
            return _json({"servers": merging.server_rows(lists)}, reply)
        if path.startswith("/admin/servers/"):
            return _json(merging.server_row(await self._documents(scope, reply)), reply)
        if path == "/admin/hooks":
            documents = await self._documents(scope, reply)
            return _json({**documents[0], "hooks": merging.hook_rows([one["hooks"] for one in documents])}, reply)
        if path == "/admin/failures":
            documents = await self._documents(scope, reply)
            repaired = merging.repair_rows([one["repaired"] for one in documents])
            return _json({**documents[0], "repaired": repaired}, reply)
        return reply

    async def _ready(self, scope: Scope) -> Reply:
        reply = await self.alone(scope, b"")
        if reply.status == 200:
            others = await self._all(scope)
            for index in self._peers.others:
                if index not in others:
                    return Reply(status=503, headers=reply.headers, body=b"worker %d is starting\n" % index)
                if others[index].status != 200:
                    return others[index]
        return reply

    async def _documents(self, scope: Scope, own: Reply) -> list[dict[str, Any]]:
        replies = [own, *(one for one in (await self._all(scope)).values() if one.status == 200)]
        return [wire.loads(one.body) for one in replies]

    async def _all(self, scope: Scope) -> dict[int, Reply]:
        """What every other worker answers for itself, of those that answer."""
        replies: dict[int, Reply] = {}

        async def ask(index: int) -> None:
            try:
                target = OWN + _target(scope)
                replies[index] = await self._peers.ask(index, scope["method"], target, headers=_headers(scope))
            except PeerLost:
                return

        async with anyio.create_task_group() as group:
            for index in self._peers.others:
                group.start_soon(ask, index)
        return dict(sorted(replies.items()))

    async def _flush_all(self) -> None:
        async def ask(index: int) -> None:
            try:
                await self._peers.ask(index, "POST", FLUSH)
            except PeerLost:
                return

        async with anyio.create_task_group() as group:
            for index in self._peers.others:
                group.start_soon(ask, index)


def _json(document: dict[str, Any], like: Reply) -> Reply:
    return Reply(status=like.status, headers=like.headers, body=wire.dumps(document))


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(scope["path"], safe="/") + (f"?{quote(query, safe='=&%+')}" if query else "")


def _headers(scope: Scope) -> dict[str, str]:
    wanted = (b"authorization", b"content-type")
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in wanted}


async def _body(receive: Receive) -> bytes:
    """The whole body; an empty one, which is refused as such, where it is too large."""
    size_bytes, parts, more = 0, [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part, more = message.get("body", b""), message.get("more_body", False)
        size_bytes += len(part)
        if size_bytes <= _MAX_BODY_BYTES:
            parts.append(part)
    return b"".join(parts) if size_bytes <= _MAX_BODY_BYTES else b""


async def _reply(send: Send, reply: Reply) -> None:
    head = [(name.encode(), reply.headers[name].encode("latin-1")) for name in PASSED_ON if name in reply.headers]
    head.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": reply.body})
