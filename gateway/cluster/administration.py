"""`/admin`, `/metrics` and `/readyz` of a worker group.

The first worker answers for all workers and makes every change; the other workers forward requests to it. They also
send their failed calls to it, and it asks them for their events.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.datastructures import QueryParams

from gateway.admin.activity import EventFeed
from gateway.admin.api import AdminApi
from gateway.admin.pages import SAFETY
from gateway.admin.routes import WHOLE, AdminRoute, Combined, Document, Merge, chosen_rows
from gateway.calls.call_stats import CallStats, Failure
from gateway.cluster.roles import ASK_S, FIRST, PeerLost, Peers, Reply
from gateway.http.responder import Receive, Scope, Send, send_json
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes

log = logging.getLogger(__name__)

# How gauges that describe the same thing in every worker are merged. All other gauges are summed, like counters.
_GAUGE_RULES: Final = {
    "typegate_info": max,
    "typegate_upstream_up": min,
    "typegate_upstream_epoch": max,
    "typegate_upstream_tools": max,
    "typegate_upstream_sign_in_needed": max,
    "typegate_held_changes": max,
}
# Metric types whose values only increase. The names of their samples end with one of the suffixes.
_COUNTED: Final = frozenset({"counter", "histogram"})
_SUFFIXES: Final = ("_total", "_bucket", "_sum", "_count")
Key = tuple[str, tuple[tuple[str, str], ...]]


class Ledger:
    """Merges the metrics of all workers. Counters of ended workers are included, so that no counter decreases."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, dict[Key, float]]] = {}
        self._ended: dict[Key, float] = {}

    def add(self, texts: Mapping[int, tuple[str, str]]) -> bytes:
        """Merge the metrics of all workers into one text.

        Args:
            texts: The process id and the metrics of each worker that has answered, by the worker's index.
        """
        families: dict[str, Metric] = {}
        samples: dict[str, dict[Key, float]] = {}
        for index, (process, text) in texts.items():
            counted: dict[Key, float] = {}
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                rule = _GAUGE_RULES.get(family.name, _sum)
                merged = samples.setdefault(family.name, {})
                for sample in family.samples:
                    key = (sample.name, tuple(sample.labels.items()))
                    merged[key] = rule(merged[key], sample.value) if key in merged else sample.value
                    if family.type in _COUNTED:
                        counted[key] = sample.value
            self._remember(index, process, counted)
        # The last known counters of ended workers and of workers that have not answered this time.
        earlier = [self._ended, *(counted for index, (_, counted) in self._last.items() if index not in texts)]
        for family in families.values():
            merged = samples[family.name]
            if family.type in _COUNTED:
                names = {family.name, *(family.name + suffix for suffix in _SUFFIXES)}
                for key, value in ((key, value) for counted in earlier for key, value in counted.items()):
                    if key[0] in names:
                        merged[key] = merged.get(key, 0.0) + value
            family.samples = [Sample(name, dict(labels), value) for (name, labels), value in merged.items()]
        registry = CollectorRegistry()
        registry.register(_Families(list(families.values())))
        return generate_latest(registry)

    def _remember(self, index: int, process: str, counted: dict[Key, float]) -> None:
        before = self._last.get(index)
        if before is not None and before[0] != process:
            for key, value in before[1].items():
                self._ended[key] = self._ended.get(key, 0.0) + value
        self._last[index] = (process, counted)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _sum(first: float, second: float) -> float:
    return first + second


OWN: Final = "/own"
FLUSH: Final = "/shared/flush"
# The response header with a worker's process id. A new id means that the worker was restarted, so that its counters
# begin at zero.
PROCESS: Final = "x-typegate-process"
PEER: Final = "x-typegate-peer"
"""The header with the address of the client whose request a worker forwards."""
PASSED_ON: Final = ("content-type", "www-authenticate", "retry-after", "allow", "etag", "set-cookie", *SAFETY)
# Request headers that the admin API evaluates.
_FORWARDED_HEADERS: Final = frozenset(
    {b"authorization", b"content-type", b"cookie", b"origin", b"if-match", b"if-none-match"}
)
# Time limit for a forwarded request, whose response may wait until all workers have applied a change.
_CHANGE_S: Final = 3 * ASK_S
_READS: Final = frozenset({"GET", "HEAD"})
# Size of documents up to which they are merged on the event loop. Merging larger documents takes milliseconds.
_MAX_INLINE_BYTES: Final = 64 * 1024


class Administration:
    """The ASGI application for all paths except `/mcp`, answering for all workers.

    Args:
        api: The admin API of this worker. Each of its routes says how replies of several workers are merged.
        index: The index of this worker.
        peers: The other workers.
        publish: Shares changes of this worker, and returns once the other workers have applied them.
    """

    def __init__(self, api: AdminApi, index: int, peers: Peers, publish: Callable[[], Awaitable[None]]) -> None:
        self._api = api
        self._own = api.app()
        self._index = index
        self._peers = peers
        self._publish = publish
        self._ledger = Ledger()
        self._scrape_lock = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request on behalf of all workers."""
        path, method = scope["path"], scope["method"]
        if path == "/readyz" and method == "GET":
            # Do not forward this to the first worker: the other workers have to report if the first worker is down.
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
                await send_reply(send, await self._forward_to_first(scope, body))
                return
            except PeerLost:
                # Without the first worker, the counters would decrease, which Prometheus would interpret as a restart.
                if method not in _READS or path.startswith("/metrics"):
                    text = b'{"error":"the first worker is starting again: try again in a moment"}'
                    await send_json(send, 503, text, [(b"retry-after", b"1")])
                    return
        await send_reply(send, await self._answer(scope, body, route))

    async def reply_alone(self, scope: Scope, body: bytes) -> Reply:
        """Return the reply of this worker, without the replies of other workers."""
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

    async def _forward_to_first(self, scope: Scope, body: bytes) -> Reply:
        try:
            return await self._peers.request(
                FIRST, scope["method"], _target(scope), headers=_headers(scope), body=body, within_s=_CHANGE_S
            )
        except ValueError:
            return Reply(status=400, headers={}, body=b'{"error":"the request cannot be read"}')

    async def _answer(self, scope: Scope, body: bytes, route: AdminRoute | None) -> Reply:
        if scope["path"] == "/metrics":
            return await self._metrics(scope)
        if route is not None and route.flushes:
            await self._peers.request_all("POST", FLUSH)
        combined = route is not None and isinstance(route.merge, Combined)
        # If rows of several workers are merged, each worker returns all rows, and the page is selected after merging.
        reply = await self.reply_alone({**scope, WHOLE: True} if combined else scope, body)
        if route is None or reply.status >= 300:
            return reply
        match route.merge:
            case Combined(combine):
                replies = [
                    reply,
                    *(each for each in (await self._ask_others(scope, body)).values() if each.status == 200),
                ]
                query = QueryParams(scope.get("query_string", b""))
                if sum(len(each.body) for each in replies) <= _MAX_INLINE_BYTES:
                    return _combine_replies(combine, replies, route, query)
                return await run_in_thread(partial(_combine_replies, combine, replies, route, query))
            case Merge.EVERYWHERE:
                await self._ask_others(scope)
            case _:
                if scope["method"] not in _READS:
                    await self._publish()
        return reply

    async def _metrics(self, scope: Scope) -> Reply:
        reply = await self.reply_alone(scope, b"")
        if reply.status != 200:
            return reply
        replies = {self._index: reply, **await self._ask_others(scope)}
        texts = {index: (each.headers.get(PROCESS, ""), each.body.decode()) for index, each in replies.items()}
        # The lock prevents concurrent scrapes from counting an ended worker twice.
        async with self._scrape_lock:
            merged = await anyio.to_thread.run_sync(self._ledger.add, texts)
        return Reply(status=200, headers=reply.headers, body=merged)

    async def _ready(self, scope: Scope) -> Reply:
        reply = await self.reply_alone(scope, b"")
        if reply.status == 200:
            replies = await self._ask_others(scope)
            for index in self._peers.other_workers:
                if index not in replies:
                    return Reply(status=503, headers=reply.headers, body=b"worker %d is starting\n" % index)
                if replies[index].status != 200:
                    return replies[index]
        return reply

    async def _ask_others(self, scope: Scope, body: bytes = b"") -> dict[int, Reply]:
        """Send a request to all other workers, and return the replies of those that answer, by index."""
        target = OWN + _target(scope)
        return await self._peers.request_all(scope["method"], target, headers=_headers(scope), body=body)


def _combine_replies(
    combine: Callable[[Sequence[Document]], Document], replies: Sequence[Reply], route: AdminRoute, query: QueryParams
) -> Reply:
    """Merge replies into one, and select the rows that the query asks for."""
    document = chosen_rows(route, query, combine([json_bytes.loads(each.body) for each in replies]))
    return Reply(status=replies[0].status, headers=replies[0].headers, body=json_bytes.dumps(document))


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(scope["path"], safe="/") + (f"?{quote(query, safe='=&%+')}" if query else "")


def _headers(scope: Scope) -> dict[str, str]:
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _FORWARDED_HEADERS}
    if client := scope.get("client"):
        headers[PEER] = f"{client[0]}:{client[1]}"
    return headers


async def send_reply(send: Send, reply: Reply, *, names: tuple[str, ...] = PASSED_ON) -> None:
    """Send a reply with only the named headers."""
    fields = [(name.encode(), reply.headers[name].encode("latin-1")) for name in names if name in reply.headers]
    # A 204 response must not have a Content-Length (RFC 9110, section 8.6 "Content-Length").
    if reply.status != 204:
        fields.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": fields})
    await send({"type": "http.response.body", "body": reply.body})


FAILURES_TARGET: Final = "/shared/failures"
# Maximum number of failures to send: enough for a burst while the first worker restarts. Beyond it, the oldest failures
# are dropped.
_MAX_WAITING: Final = 10_000
# Time to wait for further failures, to send them in one message.
_GATHER_S: Final = 0.05


class FailureRelay:
    """Sends failed calls to the first worker, which counts the failures of all workers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._failures: deque[list[str]] = deque(maxlen=_MAX_WAITING)
        self._changed = anyio.Event()
        self._sending = anyio.Lock()

    async def run(self) -> None:
        """Send recorded failures until cancelled."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Send everything that has been recorded so far."""
        async with self._sending:
            self._changed = anyio.Event()
            failures = list(self._failures)
            self._failures.clear()
            if not failures:
                return
            try:
                await self._peers.request(FIRST, "POST", FAILURES_TARGET, body=json_bytes.dumps(failures))
            except PeerLost as error:
                log.warning("%d failures not counted", len(failures), extra={"reason": str(error)})

    def failed(self, wrapper: str, server: str, tool: str, failure: Failure, who: str) -> None:
        """Record a failed call, to be sent."""
        self._failures.append([wrapper, server, tool, failure.kind, failure.detail, who])
        self._changed.set()


def apply_failures(rows: list[list[Any]], call_stats: CallStats) -> None:
    """Count the failed calls that another worker has sent."""
    for wrapper, server, tool, kind, detail, who in rows:
        call_stats.add_failure(wrapper, server, tool, Failure(kind=kind, detail=detail), who)


EVENTS_TARGET: Final = "/shared/events"
# Time limit for the events of another worker. While an administrator watches the events, all workers are asked twice a
# second, and slower workers are skipped.
_EVENTS_S: Final = 2.0


async def events_of_others(peers: Peers, latest_numbers: Mapping[int, int]) -> dict[int, list[dict[str, Any]]]:
    """Return the new events of every other worker that answers, by the worker's index.

    Args:
        latest_numbers: The number of the last known event of each worker, by index.
    """
    body = json_bytes.dumps({str(index): number for index, number in latest_numbers.items()})
    replies = await peers.request_all("POST", EVENTS_TARGET, body=body, within_s=_EVENTS_S)
    return {index: json_bytes.loads(reply.body) for index, reply in replies.items() if reply.status == 200}


def answer_events(latest_numbers: Mapping[str, int], index: int, feed: EventFeed) -> Reply:
    """Return the events of this worker to another worker.

    Args:
        latest_numbers: The number of the last known event of each worker, by index.
        index: The index of this worker.
    """
    events = feed.events_for_peer(int(latest_numbers.get(str(index), -1)))
    return Reply(status=200, headers={}, body=json_bytes.dumps(events))
