"""Fetch every page of the lists of an MCP server, and send calls to the server, in one session."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, Literal

import anyio
import msgspec

from gateway import __version__
from gateway.process.secrets import SECRETS
from gateway.process.tasks import run_in_thread
from gateway.protocol import json_bytes
from gateway.protocol.extensions import AS_CLIENT, SKILLS
from gateway.protocol.gateway_errors import (
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
from gateway.protocol.versions import (
    CAPABILITIES_KEY,
    LEFT_OUT_KEY,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    NAMED_BY,
    SERVER_INFO_KEY,
    envelope,
    gateways_of,
    header_value,
    input_request_of,
)
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS, RawListing, UpstreamCall, WatchList
from gateway.upstream.task_run import TaskRun, runs_tasks
from gateway.upstream.transport.jsonrpc_transport import Transport
from gateway.upstream.watching import Watcher
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.content import is_own_meta
from registry.intake.item_intake import ItemKind
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

CLIENT_INFO: Final = {"name": "typegate", "version": __version__}
# The maximum number of pages of a list, and of successive pages without new items. Real lists have up to a few dozen
# pages; a server that exceeds a limit probably never stops returning a cursor for the next page.
MAX_PAGES: Final = 1_000
MAX_IDLE_PAGES: Final = 32
# If a list has many pages and has taken this share of its time limit, use the pages received so far, instead of failing
# at the time limit.
_PAGES_SHARE: Final = 0.75
# The time limit of each list of prompts or resources that is requested together with the tools. The limit is short,
# because these lists delay the tools. A list that takes longer is requested again separately.
_OPTIONAL_S: Final = 2.0
# Ten times the number of items of the largest known server. The limit keeps schemas from filling the memory.
MAX_ITEMS: Final = 20_000
# The size limit for all pages of all lists of one server. The largest real listings have a few megabytes. The gateway
# needs a few times the size of a definition's text in memory (packed form, names, digests, index).
MAX_LISTING_BYTES: Final = 32 * 1024 * 1024
# When parsed, the definitions of real servers take up to this many times the size of their JSON text in memory. The
# factor is thirty for a JSON text that consists of empty lists.
_USUAL_GROWTH: Final = 8
# Upstream error texts can be pages long; a warning quotes at most this much.
_MAX_REASON_CHARS: Final = 300
# The maximum time to live of a list. Clients cache at most for a day, and strict parsers reject values above 2**53.
MAX_TTL_MS: Final = 24 * 60 * 60 * 1000
# The time limit of each list of prompts or resources that is requested without the tools; working servers need less.
_OPTIONAL_LIST_S: Final = 10.0
# The `_meta` members of requests in 2026-07-28. `send` adds the caller's capabilities to the first set; requests of the
# gateway itself use the second set, which contains the gateway's capabilities.
_ENVELOPE: Final = envelope(CLIENT_INFO)
_OWN_ENVELOPE: Final = envelope(CLIENT_INFO, {"extensions": AS_CLIENT})
# The limits of the header cache, which is meant for tool names. Longer names are usually URIs, which rarely repeat.
_MAX_CACHED_HEADERS: Final = 1_024
_MAX_CACHED_NAME_CHARS: Final = 256
# Checking this many names takes about 15 ms; the `_meta` of real servers has fewer than ten members.
_MAX_META_MEMBERS: Final = 10_000
# Nearly every result of 2026-07-28 has just this member.
_USUAL_META: Final = {SERVER_INFO_KEY}
_TOO_LARGE: Final = f"it had more than {_MAX_META_MEMBERS:,} members or {json_bytes.MAX_META_COMMAS:,} values"
_OPTIONAL: Final[tuple[ListKind, ...]] = ("prompts", "resources")
_LISTS: Final[Mapping[ListKind, tuple[ItemKind, ...]]] = {
    "tools": (),  # listed separately, because only tools are required
    "prompts": ("prompts",),
    "resources": ("resources", "resourceTemplates", "skills"),
}


class McpSession:
    """A session with an MCP server; implements `UpstreamSession`."""

    def __init__(
        self,
        server: str,
        transport: Transport,
        inbound: InboundMessages,
        version: str,
        result: Mapping[str, Any],
        server_info: object,
    ) -> None:
        """Use a connection whose protocol version has been negotiated.

        Args:
            result: The unchecked result of `initialize` or `server/discover`.
            server_info: The unchecked name and version of the server.
        """
        # Remove secrets, because models and administrators read these texts.
        result, server_info = SECRETS.scrub_value(result), SECRETS.scrub_value(server_info)
        capabilities, instructions = result.get("capabilities"), result.get("instructions")
        self.server = server
        self.protocol_version = version
        self.capabilities: dict[str, Any] = capabilities if isinstance(capabilities, dict) else {}
        self.server_info: dict[str, Any] = server_info if isinstance(server_info, dict) else {}
        self.instructions = instructions if isinstance(instructions, str) else None
        self.independent_requests = transport.independent_requests
        self._modern = version in MODERN_VERSIONS
        # In 2026-07-28, tasks are an extension whose messages the gateway forwards to the host unchanged.
        self._runs_tasks = not self._modern and runs_tasks(self.capabilities)
        self._inbound = inbound
        self._transport = transport
        self._log_level: str | None = None
        # The cache hints and warnings of the latest response for each list.
        self._hints: dict[str, tuple[int | None, CacheScope]] = {}
        self._warnings: dict[str, str] = {}
        # How many bytes the remaining pages of the current listing may have.
        self._room_bytes = MAX_LISTING_BYTES
        self._watcher = Watcher(server, transport, inbound, self._request, self.capabilities, modern=self._modern)
        inbound.start(modern=self._modern)

    @property
    def announces_changes(self) -> bool:
        return self._watcher.announces_changes

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """Fetch the lists; see `UpstreamSession.fetch_listing`. An empty or repeated cursor ends a list."""
        failed: set[ListKind] = set()
        self._room_bytes = MAX_LISTING_BYTES
        tools = await self._list_tools(limit_s, failed) if "tools" in kinds else None
        other_items: dict[ItemKind, list[Any]] = {}
        # If tools are requested too, the other lists get less time; see `_OPTIONAL_S`.
        optional_s = min(limit_s, _OPTIONAL_S) if "tools" in kinds else min(limit_s, _OPTIONAL_LIST_S)
        optional_lists = [
            (kind, member)
            for kind in _OPTIONAL
            for member in _LISTS[kind]
            if kind in kinds and self._declares(kind) and (member != "skills" or SKILLS in self._extensions)
        ]
        if self.independent_requests:
            async with anyio.create_task_group() as group:
                for kind, member in optional_lists:
                    group.start_soon(self._list_optional, kind, member, optional_s, other_items, failed)
        else:
            # Request one list at a time, so that the gateway knows which list request made a process exit.
            for kind, member in optional_lists:
                await self._list_optional(kind, member, optional_s, other_items, failed)
        if "tools" in kinds and self._modern and gateways_of(self.capabilities):
            await self._update_connected_gateways(limit_s)
        return RawListing(
            tools=tools,
            prompts_and_resources=other_items,
            capabilities=self.capabilities,
            # Hosts get all lists with the same cache hints, so the most restrictive hints apply.
            ttl_ms=min((ttl_ms for ttl_ms, _ in self._hints.values() if ttl_ms is not None), default=None),
            scope=_most_restrictive({scope for _, scope in self._hints.values()}),
            failed=frozenset(failed),
            warnings=tuple(self._warnings.values()),
            instructions=self.instructions,
        )

    async def _list_tools(self, limit_s: float, failed: set[ListKind]) -> list[Any] | None:
        """Fetch the tools; a failure raises an error only if the server declares tools, or declares no other lists.

        Raises:
            GatewayError: The tools could not be listed.
        """
        if self._declares("tools") or not any(map(self._declares, _OPTIONAL)):
            with anyio.move_on_after(limit_s):
                return await self._fetch_items("tools/list", "tools", limit_s)
            raise NoAnswer(f"no answer to tools/list within {limit_s:g} s")
        lists: dict[ListKind | ItemKind, list[Any]] = {}
        await self._list_optional("tools", "tools", min(limit_s, _OPTIONAL_S), lists, failed)
        return lists.get("tools", None if failed else [])

    async def _list_optional(
        self,
        kind: ListKind,
        member: ItemKind | Literal["tools"],
        limit_s: float,
        lists: dict[Any, list[Any]],
        failed: set[ListKind],
    ) -> None:
        """Fetch prompts or resources, or tools that the server does not declare, and store the list in `lists`.

        If the request fails, add a warning, and usually add the kind to `failed`.

        Raises:
            ListLost: The connection ended.
        """
        method = "resources/templates/list" if member == "resourceTemplates" else f"{member}/list"
        is_refused = False
        try:
            with anyio.fail_after(limit_s):
                lists[member] = await self._fetch_items(method, member, limit_s)
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
                # Templates are optional, and this method requests tools only from servers that do not declare tools.
                self._warnings.pop(member, None)
                return
            is_refused = isinstance(error, RpcError)
        if member != "skills" or not is_refused:
            failed.add(kind)  # if refused skills counted, the gateway would request all resources again
        text = f"{method} failed: {excerpt(reason, _MAX_REASON_CHARS)}"
        # Warn only about the first of consecutive failures.
        level = logging.DEBUG if member in self._warnings else logging.WARNING
        log.log(level, "%s; the server is used without this list", text, extra={"server": self.server})
        self._warnings[member] = text

    async def _update_connected_gateways(self, limit_s: float) -> None:
        """Update the list of gateways that the upstream is connected to; the upstream is a gateway itself.

        Since this session was opened, the upstream may have connected to further gateways, even to this gateway.
        """
        with anyio.move_on_after(limit_s), suppress(GatewayError):
            result = SECRETS.scrub_value(await self._request("server/discover", {}))
            capabilities = result.get("capabilities") if isinstance(result, dict) else None
            if isinstance(capabilities, dict) and "experimental" in capabilities:
                self.capabilities["experimental"] = capabilities["experimental"]

    async def _request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request of the gateway itself."""
        headers: dict[str, str] | None = None
        if self._modern:
            params = {**params, "_meta": {**params.get("_meta", {}), **_OWN_ENVELOPE}}
            headers = self._headers(method, params)
        return await self._transport.request(method, params, headers=headers)

    async def send(self, call: UpstreamCall) -> Any:
        """Send a call, with the metadata and headers that the protocol version requires; see `UpstreamSession.send`."""
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
                # Imported lazily: importing the SDK takes 0.1 s, and few tools mirror arguments in headers.
                from mcp.shared.inbound import mcp_param_headers

                headers = {**headers, **mcp_param_headers(dict(call.header_map), params.get("arguments") or {})}
        else:
            meta = params.get("_meta")
            params = params.copy() if meta is None else {**params, "_meta": meta.copy()}
            if call.log_level is not None and call.log_level != self._log_level and "logging" in self.capabilities:
                await self._set_log_level(call.log_level)
        # Send the trace context in the HTTP headers that W3C Trace Context defines, not in `_meta`.
        if call.trace and self.independent_requests:
            headers = {**(headers or {}), **call.trace}
        self._inbound.register_request(callbacks)
        try:
            if as_task and self._runs_tasks:
                run = TaskRun(self.server, self._transport, self._inbound, callbacks, headers)
                return self._clean_result(await run.call(params))
            result = await self._transport.request(
                call.method,
                params,
                on_progress=callbacks.handle_progress,
                on_message=lambda message, reply: self._inbound.receive(message, reply, callbacks),
                headers=headers,
                on_pause=callbacks.on_pause,
            )
            return self._clean_result(result)
        except RpcError as error:
            self._name_server_in_error(error)
            raise
        finally:
            self._inbound.end(callbacks)

    def _clean_result(self, result: Any) -> Any:
        """Remove `_meta` members reserved for the gateway from a result, and name the server in its input requests."""
        if not isinstance(result, dict):
            return result
        meta, requests = result.get("_meta"), result.get("inputRequests")
        if type(meta) is json_bytes.UnparsedJson or (isinstance(meta, dict) and len(meta) > _MAX_META_MEMBERS):
            result = {**result, "_meta": {LEFT_OUT_KEY: {"_meta": _TOO_LARGE}}}
        elif isinstance(meta, dict) and meta.keys() != _USUAL_META and any(map(is_own_meta, meta)):
            result = {**result, "_meta": {name: value for name, value in meta.items() if not is_own_meta(name)}}
        if isinstance(requests, dict):
            result = {
                **result,
                "inputRequests": {key: self._name_server_in_request(request) for key, request in requests.items()},
            }
        return result

    def _name_server_in_request(self, request: Any) -> Any:
        if not isinstance(request, dict) or not isinstance(params := request.get("params"), dict):
            return request
        return {**request, "params": input_request_of(self.server, str(request.get("method")), params)}

    def _name_server_in_error(self, error: RpcError) -> None:
        data = error.data
        elicitations = data.get("elicitations") if isinstance(data, dict) else None
        if error.code == URL_ELICITATION_REQUIRED and isinstance(elicitations, list):
            renamed = [
                input_request_of(self.server, "elicitation/create", elicitation)
                if isinstance(elicitation, dict)
                else elicitation
                for elicitation in elicitations
            ]
            error.data = {**data, "elicitations": renamed}

    async def notify(self, method: str) -> None:
        await self._transport.notify(method)

    async def watch(self, watch_list: WatchList | None) -> None:
        await self._watcher.run(watch_list)

    async def wait_closed(self) -> str:
        return await self._transport.wait_closed()

    def fail(self, reason: str) -> None:
        """Mark the session as ended, so that the gateway opens another one."""
        self._transport.fail(reason)

    @property
    def calls_need_listing(self) -> bool:
        return False

    def abandon(self) -> None:
        self._transport.abandon()

    def _declares(self, kind: ListKind) -> bool:
        # The specification requires an object, but some servers send `true`.
        return self.capabilities.get(kind) not in (None, False)

    @property
    def _extensions(self) -> Mapping[str, Any]:
        extensions = self.capabilities.get("extensions")
        return extensions if isinstance(extensions, dict) else {}

    async def _fetch_items(  # noqa: C901 - each stop has a reason of its own
        self, method: str, member: str, limit_s: float
    ) -> list[Any]:
        items: list[Any] = []
        cursors: set[object] = set()
        names: set[object] = set()
        scopes: set[CacheScope] = set()
        ttls_ms: list[int] = []
        params: dict[str, Any] = {}
        idle = 0
        end_s = anyio.current_time() + limit_s * _PAGES_SHARE
        cut_reason: str | None = None
        while True:
            answer = await self._request(method, params)
            size_bytes = _size_of(answer, member)
            if size_bytes > self._room_bytes:
                cut_reason = f"the lists of one server may have at most {MAX_LISTING_BYTES // 2**20} MiB together"
                if not cursors:
                    # If the first page is too large, raise an error, so that the last good list stays in use.
                    raise RpcError(INTERNAL_ERROR, f"{method} was left out: {cut_reason}")
                cut_reason = f"{method} was cut after {len(items)} items on {len(cursors)} pages: {cut_reason}"
                break
            self._room_bytes -= size_bytes
            try:
                page = await _parse_page(answer, member) if isinstance(answer, dict) else {}
            except json_bytes.MalformedJson as error:
                raise RpcError(INTERNAL_ERROR, f"the answer to {method} cannot be read: {error}") from None
            # Servers written in Go send null for an empty list.
            page_items = page.get(member, "missing") or []
            if not isinstance(page_items, list):
                raise RpcError(INTERNAL_ERROR, f"the answer to {method} has no list of {member}")
            count_before = len(names)
            names |= (
                await run_in_thread(partial(_names_of, page_items))
                if _is_long(answer, member)
                else _names_of(page_items)
            )
            idle = idle + 1 if len(names) == count_before else 0
            room = MAX_ITEMS - len(items)
            if not idle:
                items += page_items[:room]
            # Exclude `bool`, which is a subclass of `int`.
            ttl_ms = page.get("ttlMs")
            if isinstance(ttl_ms, int | float) and not isinstance(ttl_ms, bool) and ttl_ms >= 0:
                ttls_ms.append(int(min(ttl_ms, MAX_TTL_MS)))
            stated = page.get("cacheScope")
            scopes.add(stated if stated in ("public", "private") else "unstated")
            cursor = page.get("nextCursor")
            if len(page_items) > room and not idle:
                cut_reason = "the limit for one server is reached"
            elif cursor is None or cursor == "":
                break  # like the SDKs, treat an empty cursor as no cursor
            elif not isinstance(cursor, str):
                cut_reason = "its nextCursor is not a string"
            elif cursor in cursors:
                cut_reason = "its cursor was repeated"
            elif len(items) >= MAX_ITEMS or len(cursors) + 1 >= MAX_PAGES:
                cut_reason = "the limit for one server is reached"
            elif idle >= MAX_IDLE_PAGES:
                cut_reason = f"the last {idle} had no new items"
            elif len(cursors) >= MAX_IDLE_PAGES and anyio.current_time() >= end_s:
                cut_reason = f"the last page did not arrive within {limit_s:g} s"
            if cut_reason is not None:
                cut_reason = f"{method} was cut after {len(items)} items on {len(cursors) + 1} pages: {cut_reason}"
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        self._hints[member] = min(ttls_ms, default=None), _most_restrictive(scopes)
        if cut_reason is None:
            self._warnings.pop(member, None)
        elif cut_reason != self._warnings.get(member):
            self._warnings[member] = cut_reason
            log.warning("%s", cut_reason, extra={"server": self.server})
        return items

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str] | None:
        # Only transports that use one HTTP exchange per request have headers.
        if not self.independent_requests:
            return None
        name = params.get(NAMED_BY.get(method, ""))
        if not isinstance(name, str):
            return {"mcp-protocol-version": self.protocol_version, "mcp-method": method}
        if len(name) > _MAX_CACHED_NAME_CHARS:
            return _standard_headers.__wrapped__(self.protocol_version, method, name)
        return _standard_headers(self.protocol_version, method, name)

    async def _set_log_level(self, level: str) -> None:
        # On a shared connection, the level may only become more verbose. The gateway filters each caller's messages.
        current = LOG_LEVELS.index(self._log_level or "info")
        if self._inbound.host is None and LOG_LEVELS.index(level) >= current:
            return
        # Store the level before the response arrives, so that concurrent and later calls do not repeat the request.
        self._log_level = level
        try:
            await self._request("logging/setLevel", {"level": level})
        except (RpcError, HttpStatusError):
            log.debug("log level not set", extra={"server": self.server})


@lru_cache(maxsize=_MAX_CACHED_HEADERS)
def _standard_headers(version: str, method: str, name: str) -> dict[str, str]:
    """Return the headers of a request that names a tool, prompt or resource.

    The dict is cached and must not be modified.
    """
    return {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": header_value(name)}


class _Named(msgspec.Struct):
    name: Any = None
    uri: Any = None
    uriTemplate: Any = None  # the spelling of the protocol


_read_named: Final = msgspec.json.Decoder(_Named).decode


def _names_of(items: list[Any]) -> set[object]:
    """Return the names and URIs that identify these items; an item that cannot be parsed counts as unique."""
    names: set[object] = set()
    for item in items:
        try:
            identity = (
                _read_named(item.text) if type(item) is json_bytes.UnparsedJson else msgspec.convert(item, _Named)
            )
            names.add((identity.name, identity.uri, identity.uriTemplate))
        except (ValueError, TypeError, RecursionError):
            names.add(id(item))
    return names


def _is_long(page: object, member: str) -> bool:
    return isinstance(page, dict) and type(page.get(member)) is json_bytes.UnparsedJson


def _size_of(page: object, member: str) -> int:
    """Return the size of a page's items in bytes: the larger of the JSON text and an eighth of the parsed items."""
    items = page.get(member) if isinstance(page, dict) else None
    try:
        text = bytes(items.text) if type(items) is json_bytes.UnparsedJson else json_bytes.dumps(items)
    except json_bytes.MalformedJson:
        return 0  # reported when the items are read
    return max(len(text), json_bytes.parsed_bytes(text) // _USUAL_GROWTH)


async def _parse_page(page: dict[str, Any], member: str) -> dict[str, Any]:
    """Return the parsed page; split the items of a long page in a thread, without parsing them.

    Ten thousand parsed tools would take 60 MB, and the few values that stay in use would fragment that memory.
    """
    if not _is_long(page, member):
        return json_bytes.parse_members(page)
    return await run_in_thread(lambda: json_bytes.parse_members({**page, member: json_bytes.items_of(page[member])}))


def _most_restrictive(scopes: Collection[CacheScope]) -> CacheScope:
    if "private" in scopes:
        return "private"
    return "public" if scopes and "unstated" not in scopes else "unstated"
