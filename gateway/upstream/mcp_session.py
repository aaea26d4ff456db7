"""The session of an MCP server: one negotiated connection that lists every page and sends calls."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, Literal

import anyio
import msgspec

from gateway import __version__, wire
from gateway.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ConnectionLost,
    GatewayError,
    HttpStatusError,
    ListLost,
    NoAnswer,
    RpcError,
)
from gateway.protocol import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    NAMED_BY,
    envelope,
    gateways_of,
    header_value,
    question_of,
)
from gateway.secrets import SECRETS
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS, RawListing, UpstreamCall
from gateway.upstream.task_run import TaskRun, runs_tasks
from gateway.upstream.transport.jsonrpc import Transport
from gateway.upstream.watch_list import WatchList
from gateway.upstream.watching import Watcher
from gateway.worker_thread import run_in_thread
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.annotations import is_own_meta
from registry.intake.prompts_and_resources import ItemKind
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

CLIENT_INFO: Final = {"name": "typegate", "version": __version__}
# Servers in use have some dozens of pages at most. Pages that bring nothing new, and so many of them, are those of a
# server whose cursors never end.
MAX_PAGES: Final = 1_000
MAX_IDLE_PAGES: Final = 32
# Of the time for a list, the part after which what has come so far is used: a list without end is cut, not refused.
_PART_FOR_PAGES: Final = 0.75
# Lists that nothing depends on hold up tools for no longer than people notice; what takes longer is asked for apart.
_OPTIONAL_S: Final = 2.0
# Ten times the largest server known, and what its schemas take is still bounded.
MAX_ITEMS: Final = 20_000
# All pages of all lists of one server together. The largest real listings have some megabytes; what is built of a
# definition, its packed form, names, digests and index, takes a few times its text.
MAX_LISTING_BYTES: Final = 32 * 1024 * 1024
# Definitions of real servers take up to so many times their text once they are parsed. Empty lists take thirty times
# as much, and as long to be walked.
_USUAL_GROWTH: Final = 8
# Of a reason; pages of an upstream's text are no reason.
_MAX_REASON_CHARS: Final = 300
# What clients hold at most; beyond 2**53 a strict parser would refuse the whole list.
MAX_TTL_MS: Final = 24 * 60 * 60 * 1000
# Tools are there before these lists are: what a server answers at all, it answers within this time.
_OPTIONAL_LIST_S: Final = 10.0
_ENVELOPE: Final = envelope(CLIENT_INFO)
# Headers that are kept: of the tools in use. A longer name is the URI of a resource, and seldom asked for twice.
_MAX_KEPT: Final = 1_024
_MAX_KEPT_CHARS: Final = 256
_OPTIONAL: Final[tuple[ListKind, ...]] = ("prompts", "resources")
_LISTS: Final[Mapping[ListKind, tuple[ItemKind, ...]]] = {
    "tools": (),  # asked for on their own: they alone are needed
    "prompts": ("prompts",),
    "resources": ("resources", "resourceTemplates"),
}


class McpSession:
    """See `UpstreamSession`; calls may come from any task."""

    def __init__(
        self,
        server: str,
        transport: Transport,
        inbound: InboundMessages,
        version: str,
        result: Mapping[str, Any],
        server_info: object,
    ) -> None:
        """Use a connection whose version is negotiated.

        Args:
            server: The alias.
            transport: The connection.
            inbound: Takes what arrives on it, in earnest from now on.
            version: The protocol version.
            result: What the server answered to `initialize` or `server/discover`, unchecked.
            server_info: Its name and version, unchecked.
        """
        # Models and administrators read what is in it.
        result, server_info = SECRETS.scrub_value(result), SECRETS.scrub_value(server_info)
        capabilities, instructions = result.get("capabilities"), result.get("instructions")
        self.server = server
        self.protocol_version = version
        self.capabilities: dict[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.server_info: dict[str, Any] = server_info if isinstance(server_info, dict) else {}
        self.instructions = instructions if isinstance(instructions, str) else None
        self.independent_requests = transport.independent_requests
        self._modern = version in MODERN_VERSIONS
        # In 2026-07-28 tasks are an extension, which needs nothing of the caller's host but to be passed on.
        self._runs_tasks = not self._modern and runs_tasks(self.capabilities)
        self._inbound = inbound
        self._transport = transport
        self._log_level: str | None = None
        # By list: the hints of its last answer, and what was wrong with it.
        self._hints: dict[str, tuple[int | None, CacheScope]] = {}
        self._warnings: dict[str, str] = {}
        # What the lists that are being asked for may still bring: one listing is fetched at a time.
        self._room_bytes = MAX_LISTING_BYTES
        self._watcher = Watcher(server, transport, inbound, self._request, self.capabilities, modern=self._modern)
        inbound.start(modern=self._modern)

    @property
    def announces_changes(self) -> bool:
        """See `UpstreamSession.announces_changes`."""
        return self._watcher.announces_changes

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """See `UpstreamSession.fetch_listing`; an empty or repeated cursor ends a list."""
        failed: set[ListKind] = set()
        self._room_bytes = MAX_LISTING_BYTES
        tools = await self._list_tools(limit_s, failed) if "tools" in kinds else None
        others: dict[ItemKind, list[Any]] = {}
        # Beside tools they get little time; those that fail are asked for again on their own.
        optional_s = min(limit_s, _OPTIONAL_S) if "tools" in kinds else min(limit_s, _OPTIONAL_LIST_S)
        wanted = [
            (kind, member) for kind in _OPTIONAL for member in _LISTS[kind] if kind in kinds and self._declares(kind)
        ]
        if self.independent_requests:
            async with anyio.create_task_group() as group:
                for kind, member in wanted:
                    group.start_soon(self._list_optional, kind, member, optional_s, others, failed)
        else:
            # One at a time: of a process that ends it is known what has ended it.
            for kind, member in wanted:
                await self._list_optional(kind, member, optional_s, others, failed)
        if "tools" in kinds and self._modern and gateways_of(self.capabilities):
            await self._ask_where_it_leads(limit_s)
        return RawListing(
            tools=tools,
            prompts_and_resources=others,
            capabilities=self.capabilities,
            # All pages of all lists are held as one: the most cautious of them decides.
            ttl_ms=min((ttl_ms for ttl_ms, _ in self._hints.values() if ttl_ms is not None), default=None),
            scope=_most_cautious({scope for _, scope in self._hints.values()}),
            failed=frozenset(failed),
            warnings=tuple(self._warnings.values()),
            instructions=self.instructions,
        )

    async def _list_tools(self, limit_s: float, failed: set[ListKind]) -> list[Any] | None:
        """List tools; of a server that declares none a failure is no reason to do without its prompts and resources."""
        if self._declares("tools") or not any(map(self._declares, _OPTIONAL)):
            with anyio.move_on_after(limit_s):
                return await self._pages("tools/list", "tools", limit_s)
            raise NoAnswer(f"no answer to tools/list within {limit_s:g} s")
        found: dict[ListKind | ItemKind, list[Any]] = {}
        await self._list_optional("tools", "tools", min(limit_s, _OPTIONAL_S), found, failed)
        return found.get("tools", None if failed else [])

    async def _list_optional(
        self,
        kind: ListKind,
        member: ItemKind | Literal["tools"],
        limit_s: float,
        found: dict[Any, list[Any]],
        failed: set[ListKind],
    ) -> None:
        """List what nothing else depends on, whatever the server answers.

        Raises:
            ListLost: The connection ended meanwhile.
        """
        method = "resources/templates/list" if member == "resourceTemplates" else f"{member}/list"
        try:
            with anyio.fail_after(limit_s):
                found[member] = await self._pages(method, member, limit_s)
            return
        except TimeoutError:
            reason = f"no answer within {limit_s:g} s"
        except ConnectionLost as error:
            if not self.independent_requests:
                raise ListLost(f"the connection ended at {method}: {error}", kind) from None
            reason = str(error)
        except GatewayError as error:
            reason = SECRETS.scrub(str(error))
            is_unknown = isinstance(error, RpcError) and error.code == METHOD_NOT_FOUND
            if is_unknown and member in ("resourceTemplates", "tools"):
                # Servers declare `resources` and have no templates, and some have tools and do not declare them.
                self._warnings.pop(member, None)
                return
        failed.add(kind)
        text = f"{method} failed: {excerpt(reason, _MAX_REASON_CHARS)}"
        # Of many in a row the first.
        level = logging.DEBUG if member in self._warnings else logging.WARNING
        log.log(level, "%s; the server is used without it", text, extra={"server": self.server})
        self._warnings[member] = text

    async def _ask_where_it_leads(self, limit_s: float) -> None:
        """Have a gateway say once more which others it leads to."""
        # What it lists by now may come from one that it has connected to since we did: from this one, even.
        with anyio.move_on_after(limit_s), suppress(GatewayError):
            result = SECRETS.scrub_value(await self._request("server/discover", {}))
            capabilities = result.get("capabilities") if isinstance(result, dict) else None
            if isinstance(capabilities, dict) and "experimental" in capabilities:
                self.capabilities["experimental"] = capabilities["experimental"]

    async def _request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request of our own."""
        headers: dict[str, str] | None = None
        if self._modern:
            params = {**params, "_meta": {**params.get("_meta", {}), **_ENVELOPE}}
            headers = self._headers(method, params)
        return await self._transport.request(method, params, headers=headers)

    async def send(self, call: UpstreamCall) -> Any:
        """See `UpstreamSession.send`; what this protocol version wants around a request is added."""
        callbacks, params = call.callbacks, call.params
        headers: dict[str, str] | None = None
        as_task = "task" in params and call.method == "tools/call"
        if as_task:
            params = {name: value for name, value in params.items() if name != "task"}
        if self._modern:
            meta = params.get("_meta")
            meta = {**meta, **_ENVELOPE} if meta else _ENVELOPE.copy()
            if call.capabilities:
                meta[CAPABILITIES_KEY] = call.capabilities
            if call.log_level is not None and "logging" in self.capabilities:
                meta[LOG_LEVEL_KEY] = call.log_level
            params = {**params, "_meta": meta}
            headers = self._headers(call.method, params)
            if headers is not None and call.header_map:
                # Late: the SDK is a tenth of a second to import, and few tools have such headers.
                from mcp.shared.inbound import mcp_param_headers

                headers = {**headers, **mcp_param_headers(dict(call.header_map), params.get("arguments") or {})}
        else:
            meta = params.get("_meta")
            params = params.copy() if meta is None else {**params, "_meta": meta.copy()}
            if call.log_level is not None and call.log_level != self._log_level and "logging" in self.capabilities:
                await self._set_log_level(call.log_level)
        # As W3C defines it trace context is a matter of HTTP headers; `_meta` is passed on as it came.
        if call.trace and self.independent_requests:
            headers = {**(headers or {}), **call.trace}
        self._inbound.begin(callbacks)
        try:
            if as_task and self._runs_tasks:
                run = TaskRun(self.server, self._transport, self._inbound, callbacks, headers)
                return self._received(await run.call(params))
            result = await self._transport.request(
                call.method,
                params,
                on_progress=callbacks.progressed,
                on_message=lambda message, reply: self._inbound.receive(message, reply, callbacks),
                headers=headers,
                on_pause=callbacks.on_pause,
                results=callbacks if callbacks.results is not None else None,
            )
            return self._received(result)
        except RpcError as error:
            self._name_questions(error)
            raise
        finally:
            self._inbound.end(callbacks)

    def _received(self, result: Any) -> Any:
        """Return a result without what only the gateway says, its questions with the name of the server."""
        if not isinstance(result, dict):
            return result
        meta, requests = result.get("_meta"), result.get("inputRequests")
        if isinstance(meta, dict) and any(map(is_own_meta, meta)):
            result = {**result, "_meta": {name: value for name, value in meta.items() if not is_own_meta(name)}}
        if isinstance(requests, dict):
            result = {**result, "inputRequests": {key: self._named(one) for key, one in requests.items()}}
        return result

    def _named(self, request: Any) -> Any:
        if not isinstance(request, dict) or not isinstance(params := request.get("params"), dict):
            return request
        return {**request, "params": question_of(self.server, str(request.get("method")), params)}

    def _name_questions(self, error: RpcError) -> None:
        data = error.data
        asked = data.get("elicitations") if isinstance(data, dict) else None
        if error.code == URL_ELICITATION_REQUIRED and isinstance(asked, list):
            named = [
                question_of(self.server, "elicitation/create", one) if isinstance(one, dict) else one for one in asked
            ]
            error.data = {**data, "elicitations": named}

    async def notify(self, method: str) -> None:
        """See `UpstreamSession.notify`."""
        await self._transport.notify(method)

    async def watch(self, watch_list: WatchList | None) -> None:
        """See `UpstreamSession.watch`."""
        await self._watcher.run(watch_list)

    async def wait_closed(self) -> str:
        """See `UpstreamSession.wait_closed`."""
        return await self._transport.wait_closed()

    def fail(self, reason: str) -> None:
        """End the session for a reason of ours."""
        self._transport.fail(reason)

    @property
    def calls_need_listing(self) -> bool:
        """See `UpstreamSession.calls_need_listing`."""
        return False

    def abandon(self) -> None:
        """See `UpstreamSession.abandon`."""
        self._transport.abandon()

    def _declares(self, kind: ListKind) -> bool:
        # An object by the specification; some servers write `true`.
        return self.capabilities.get(kind) not in (None, False)

    async def _pages(self, method: str, member: str, limit_s: float) -> list[Any]:
        items: list[Any] = []
        cursors: set[object] = set()
        names: set[object] = set()
        scopes: set[CacheScope] = set()
        ttls_ms: list[int] = []
        params: dict[str, Any] = {}
        idle = 0
        end_s = anyio.current_time() + limit_s * _PART_FOR_PAGES
        cut: str | None = None
        while True:
            answer = await self._request(method, params)
            size_bytes = _size_of(answer, member)
            if size_bytes > self._room_bytes:
                cut = f"the lists of one server may have {MAX_LISTING_BYTES // 2**20} MiB together"
                if not cursors:
                    # Nothing came before: the last good list is better than an empty one.
                    raise RpcError(INTERNAL_ERROR, f"{method} was left out: {cut}")
                cut = f"{method} was cut after {len(items)} items on {len(cursors)} pages: {cut}"
                break
            self._room_bytes -= size_bytes
            try:
                page = await _opened(answer, member) if isinstance(answer, dict) else {}
            except wire.MalformedJson as error:
                raise RpcError(INTERNAL_ERROR, f"the answer to {method} cannot be read: {error}") from None
            # Servers written in Go send null for an empty list.
            found = page.get(member, "missing") or []
            if not isinstance(found, list):
                raise RpcError(INTERNAL_ERROR, f"the answer to {method} holds no list of {member}")
            known = len(names)
            names |= await run_in_thread(partial(_names_of, found)) if _is_long(answer, member) else _names_of(found)
            idle = idle + 1 if len(names) == known else 0
            room = MAX_ITEMS - len(items)
            if not idle:
                items += found[:room]
            # A boolean is an int to Python.
            ttl_ms = page.get("ttlMs")
            if isinstance(ttl_ms, int | float) and not isinstance(ttl_ms, bool) and ttl_ms >= 0:
                ttls_ms.append(int(min(ttl_ms, MAX_TTL_MS)))
            stated = page.get("cacheScope")
            scopes.add(stated if stated in ("public", "private") else "unstated")
            cursor = page.get("nextCursor")
            if len(found) > room and not idle:
                cut = "more than one server may list"
            elif cursor is None or cursor == "":
                break  # an empty cursor is none, as for the SDKs
            elif not isinstance(cursor, str):
                cut = "its nextCursor is not a string"
            elif cursor in cursors:
                cut = "its cursor came again"
            elif len(items) >= MAX_ITEMS or len(cursors) + 1 >= MAX_PAGES:
                cut = "more than one server may list"
            elif idle >= MAX_IDLE_PAGES:
                cut = f"the last {idle} brought nothing new"
            elif len(cursors) >= MAX_IDLE_PAGES and anyio.current_time() >= end_s:
                cut = f"the end did not come within {limit_s:g} s"
            if cut is not None:
                cut = f"{method} was cut after {len(items)} items on {len(cursors) + 1} pages: {cut}"
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        self._hints[member] = min(ttls_ms, default=None), _most_cautious(scopes)
        if cut is None:
            self._warnings.pop(member, None)
        elif cut != self._warnings.get(member):
            self._warnings[member] = cut
            log.warning("%s", cut, extra={"server": self.server})
        return items

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str] | None:
        # Only requests with an HTTP exchange of their own have headers.
        if not self.independent_requests:
            return None
        name = params.get(NAMED_BY.get(method, ""))
        if not isinstance(name, str):
            return {"mcp-protocol-version": self.protocol_version, "mcp-method": method}
        if len(name) > _MAX_KEPT_CHARS:
            return _standard_headers.__wrapped__(self.protocol_version, method, name)
        return _standard_headers(self.protocol_version, method, name)

    async def _set_log_level(self, level: str) -> None:
        # On a connection that callers share only a more talkative level may be set: each reads less of it.
        known = LOG_LEVELS.index(self._log_level or "info")
        if self._inbound.host is None and LOG_LEVELS.index(level) >= known:
            return
        # Before the answer: the next call need not set it again, and one that is refused is refused each time.
        self._log_level = level
        try:
            await self._request("logging/setLevel", {"level": level})
        except (RpcError, HttpStatusError):
            log.debug("the level of logs could not be set", extra={"server": self.server})


@lru_cache(maxsize=_MAX_KEPT)
def _standard_headers(version: str, method: str, name: str) -> dict[str, str]:
    """The headers of a request about something that has a name; the same object, to be left as it is."""
    return {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": header_value(name)}


class _Named(msgspec.Struct):
    name: Any = None
    uri: Any = None
    uriTemplate: Any = None  # as the protocol names it


_read_named: Final = msgspec.json.Decoder(_Named).decode


def _names_of(items: list[Any]) -> set[object]:
    """Return what tells these items from others; an item whose name cannot be read is like no other."""
    names: set[object] = set()
    for item in items:
        try:
            named = _read_named(item.text) if type(item) is wire.Unparsed else msgspec.convert(item, _Named)
            names.add((named.name, named.uri, named.uriTemplate))
        except (ValueError, TypeError, RecursionError):
            names.add(id(item))
    return names


def _is_long(page: object, member: str) -> bool:
    return isinstance(page, dict) and type(page.get(member)) is wire.Unparsed


def _size_of(page: object, member: str) -> int:
    """Return how many bytes the items of a page have as JSON, or more where they are many small values."""
    items = page.get(member) if isinstance(page, dict) else None
    try:
        text = bytes(items.text) if type(items) is wire.Unparsed else wire.dumps(items)
    except wire.MalformedJson:
        return 0  # whoever reads the items says so
    return max(len(text), wire.parsed_bytes(text) // _USUAL_GROWTH)


async def _opened(page: dict[str, Any], member: str) -> dict[str, Any]:
    """Return a page with all but its items parsed; those of a long page are taken apart, in a thread.

    As values, ten thousand tools would fill 60 MB, whose room is then held by the little that stays of them.
    """
    if not _is_long(page, member):
        return wire.whole(page)
    return await run_in_thread(lambda: wire.whole({**page, member: wire.items_of(page[member])}))


def _most_cautious(scopes: Collection[CacheScope]) -> CacheScope:
    if "private" in scopes:
        return "private"
    return "public" if scopes and "unstated" not in scopes else "unstated"
