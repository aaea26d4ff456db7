"""`/admin`, `/metrics` and `/readyz` of several workers: whichever is asked answers for all of them.

The first worker answers for all and carries out every change; another one hands a request to it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.datastructures import QueryParams

from gateway import wire
from gateway.admin.api import SAFETY, AdminApi
from gateway.admin.queries import chosen_rows
from gateway.admin.routes import WHOLE, AdminRoute, Combined, Merge
from gateway.cluster import metrics_ledger
from gateway.cluster.assignment import FIRST
from gateway.cluster.peers import ASK_S, PeerLost, Peers, Reply
from gateway.downstream.http.asgi import Receive, Scope, Send, send_json

OWN: Final = "/own"
FLUSH: Final = "/shared/flush"
# Tells the process of a reply, so that counters of a worker that was started again are told from those before.
PROCESS: Final = "x-typegate-process"
PEER: Final = "x-typegate-peer"
"""The address of the caller whom a worker asks for."""
PASSED_ON: Final = ("content-type", "www-authenticate", "retry-after", "allow", "etag", "set-cookie", *SAFETY)
# What the application judges a request by, beside its path and its body.
_TAKEN_ALONG: Final = frozenset(
    {b"authorization", b"content-type", b"cookie", b"origin", b"if-match", b"if-none-match"}
)
# A change is answered once all workers have it, and each of them may take its time.
_CHANGE_S: Final = 3 * ASK_S
_READS: Final = frozenset({"GET", "HEAD"})


class Administration:
    """What is beside `/mcp`, for all workers.

    Args:
        api: The application that answers for this worker alone, and the rule of each of its routes.
        index: Which worker this is.
        peers: The others.
        push: Has the others take what has changed here.
    """

    def __init__(self, api: AdminApi, index: int, peers: Peers, push: Callable[[], Awaitable[None]]) -> None:
        self._api = api
        self._own = api.app()
        self._index = index
        self._peers = peers
        self._push = push
        self._ledger = metrics_ledger.Ledger()
        self._counting = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for all workers."""
        path, method = scope["path"], scope["method"]
        if path == "/readyz" and method == "GET":
            # Not through the first worker: while that one is down, the others must say so.
            await send_reply(send, await self._ready(scope))
            return
        if not path.startswith(("/admin", "/metrics")) or method == "HEAD":
            await self._own(scope, receive, send)
            return
        route = self._api.route_of(method, path)
        if route is not None and route.merge is Merge.HERE:
            await self._own(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        if self._index != FIRST:
            try:
                await send_reply(send, await self._at_first(scope, body))
                return
            except PeerLost:
                # Counters that leave the first worker out would go back, and seem to start anew.
                if method not in _READS or path.startswith("/metrics"):
                    text = b'{"error":"the first worker is starting again: try again in a moment"}'
                    await send_json(send, 503, text, [(b"retry-after", b"1")])
                    return
        await send_reply(send, await self._answer(scope, body, route))

    async def alone(self, scope: Scope, body: bytes) -> Reply:
        """What this worker answers for itself."""
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
            return await self._peers.ask(
                FIRST, scope["method"], _target(scope), headers=_headers(scope), body=body, within_s=_CHANGE_S
            )
        except ValueError:
            return Reply(status=400, headers={}, body=b'{"error":"the request cannot be read"}')

    async def _answer(self, scope: Scope, body: bytes, route: AdminRoute | None) -> Reply:
        if scope["path"] == "/metrics":
            return await self._metrics(scope)
        if route is not None and route.flushes:
            await self._flush_all()
        combined = route is not None and isinstance(route.merge, Combined)
        # Of rows that are put together a page is cut afterwards.
        reply = await self.alone({**scope, WHOLE: True} if combined else scope, body)
        if route is None or reply.status >= 300:
            return reply
        match route.merge:
            case Combined(combine):
                replies = [reply, *(one for one in (await self._all(scope)).values() if one.status == 200)]
                document = combine([wire.loads(each.body) for each in replies])
                return _json(chosen_rows(route, QueryParams(scope.get("query_string", b"")), document), reply)
            case Merge.EVERYWHERE:
                await self._all(scope)
            case Merge.CHANGE:
                await self._push()
            case Merge.SAME:
                pass
        return reply

    async def _metrics(self, scope: Scope) -> Reply:
        reply = await self.alone(scope, b"")
        if reply.status != 200:
            return reply
        replies = {self._index: reply, **await self._all(scope)}
        texts = {index: (each.headers.get(PROCESS, ""), each.body.decode()) for index, each in replies.items()}
        # One at a time: two scrapes at once would count an ended worker twice.
        async with self._counting:
            merged = await anyio.to_thread.run_sync(self._ledger.add, texts)
        return Reply(status=200, headers=reply.headers, body=merged)

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

    async def _all(self, scope: Scope) -> dict[int, Reply]:
        """The answers of every other worker for itself, of those that answer."""
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
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TAKEN_ALONG}
    if client := scope.get("client"):
        headers[PEER] = f"{client[0]}:{client[1]}"
    return headers


async def send_reply(send: Send, reply: Reply, *, names: tuple[str, ...] = PASSED_ON) -> None:
    """Send a reply with those of its headers that are named."""
    fields = [(name.encode(), reply.headers[name].encode("latin-1")) for name in names if name in reply.headers]
    # A 204 has no body, and so no length either (RFC 9110, section 8.6 "Content-Length").
    if reply.status != 204:
        fields.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": fields})
    await send({"type": "http.response.body", "body": reply.body})
