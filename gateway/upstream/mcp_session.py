"""The session of an MCP server: one negotiated connection that lists every page and sends calls."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final

import anyio

from gateway import __version__, wire
from gateway.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, HttpStatusError, NoAnswer, RpcError
from gateway.protocol import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    MODERN_VERSIONS,
    NAMED_BY,
    envelope,
    gateways_of,
    header_value,
)
from gateway.secrets import SECRETS
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.session import ALL_KINDS, RawListing, UpstreamCall
from gateway.upstream.transport.jsonrpc import Transport
from gateway.upstream.watch_list import WatchList
from gateway.upstream.watching import Watcher
from gateway.worker_thread import run_in_thread
from registry.catalog.catalog import ListKind
from registry.catalog.listing import CacheScope
from registry.intake.prompts_and_resources import ItemKind

log = logging.getLogger(__name__)

CLIENT_INFO: Final = {"name": "typegate", "version": __version__}
# A server whose cursors never end costs this many requests; of pages of 100 tools it is still thousands.
MAX_PAGES: Final = 64
# Ten times the largest server known, and what its schemas take is still bounded.
MAX_ITEMS: Final = 20_000
# What clients hold at most; beyond 2**53 a strict parser would refuse the whole list.
MAX_TTL_MS: Final = 24 * 60 * 60 * 1000
# Tools are there before these lists are: what a server answers at all, it answers within this time.
_OPTIONAL_LIST_S: Final = 10.0
_ENVELOPE: Final = envelope(CLIENT_INFO)
# Headers that are kept: of the tools in use. A longer name is the URI of a resource, and seldom asked for twice.
_MAX_KEPT: Final = 1_024
_MAX_KEPT_CHARS: Final = 256
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
        self._inbound = inbound
        self._transport = transport
        self._log_level: str | None = None
        self._failing: set[ItemKind] = set()
        self._watcher = Watcher(server, transport, inbound, self._request, self.capabilities, modern=self._modern)
        inbound.start(modern=self._modern)

    @property
    def announces_changes(self) -> bool:
        """See `UpstreamSession.announces_changes`."""
        return self._watcher.announces_changes

    async def fetch_listing(
        self, kinds: Collection[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """See `UpstreamSession.fetch_listing`; a repeated cursor ends a list."""
        ttls_ms: list[int] = []
        scopes: set[CacheScope] = set()
        tools = await self._list("tools", ttls_ms, scopes, limit_s) if "tools" in kinds else None
        prompts_and_resources: dict[ItemKind, list[Any]] = {}
        failed: set[ListKind] = set()
        wanted = [(kind, member) for kind in ALL_KINDS & set(kinds) if self._offers(kind) for member in _LISTS[kind]]
        for kind, member in wanted:
            try:
                prompts_and_resources[member] = await self._list(
                    member, ttls_ms, scopes, min(limit_s, _OPTIONAL_LIST_S)
                )
            except (RpcError, HttpStatusError, TimeoutError) as error:
                # Servers declare `resources` and have no templates: no news for an operator.
                if isinstance(error, RpcError) and error.code == METHOD_NOT_FOUND:
                    continue
                failed.add(kind)
                # Of many in a row the first.
                level = logging.DEBUG if member in self._failing else logging.WARNING
                log.log(level, "the list of %s failed: %s", member, error, extra={"server": self.server})
                self._failing.add(member)
            else:
                self._failing.discard(member)
        if self._modern and gateways_of(self.capabilities):
            await self._ask_where_it_leads(limit_s)
        return RawListing(
            tools=tools,
            prompts_and_resources=prompts_and_resources,
            capabilities=self.capabilities,
            # All pages of all lists are held as one: the most cautious of them decides.
            ttl_ms=min(ttls_ms, default=None),
            scope=_most_cautious(scopes),
            failed=frozenset(failed),
            instructions=self.instructions,
        )

    async def _ask_where_it_leads(self, limit_s: float) -> None:
        """Have a gateway say once more which others it leads to."""
        # What it lists by now may come from one that it has connected to since we did: from this one, even.
        with anyio.move_on_after(limit_s), suppress(RpcError, HttpStatusError):
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
            return await self._transport.request(
                call.method,
                params,
                on_progress=callbacks.progressed,
                on_message=lambda message, reply: self._inbound.receive(message, reply, callbacks),
                headers=headers,
                on_pause=callbacks.on_pause,
                results=callbacks if callbacks.results is not None else None,
            )
        finally:
            self._inbound.end(callbacks)

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

    def _offers(self, kind: ListKind) -> bool:
        # Every server is asked for tools: some have them and do not say so.
        return kind == "tools" or isinstance(self.capabilities.get(kind), dict)

    async def _list(self, member: str, ttls_ms: list[int], scopes: set[CacheScope], limit_s: float) -> list[Any]:
        method = "resources/templates/list" if member == "resourceTemplates" else f"{member}/list"
        with anyio.move_on_after(limit_s):
            return await self._pages(method, member, ttls_ms, scopes)
        # Without tools there is no listing; of the others the last good list stays.
        if member == "tools":
            raise NoAnswer(f"no answer to {method} within {limit_s:g} s")
        raise TimeoutError(f"no answer within {limit_s:g} s")

    async def _pages(self, method: str, member: str, ttls_ms: list[int], scopes: set[CacheScope]) -> list[Any]:
        items: list[Any] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self._request(method, params)
            if isinstance(page, dict):
                page = await run_in_thread(partial(_opened, page)) if _is_long(page) else wire.whole(page)
            if not isinstance(page, dict) or not isinstance(page.get(member), list):
                raise RpcError(INTERNAL_ERROR, f"the answer to {method} holds no list of {member}")
            items += page[member][: MAX_ITEMS - len(items)]
            # A boolean is an int to Python.
            ttl_ms = page.get("ttlMs")
            if isinstance(ttl_ms, int | float) and not isinstance(ttl_ms, bool) and ttl_ms >= 0:
                ttls_ms.append(int(min(ttl_ms, MAX_TTL_MS)))
            stated = page.get("cacheScope")
            scopes.add(stated if stated in ("public", "private") else "unstated")
            cursor = page.get("nextCursor")
            # A cursor that comes again is a server that lists in a circle.
            if not isinstance(cursor, str) or cursor in seen or len(items) >= MAX_ITEMS:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
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


def _is_long(page: dict[str, Any]) -> bool:
    return type(page.get("tools")) is wire.Unparsed


def _opened(page: dict[str, Any]) -> dict[str, Any]:
    """Return a page with all but its tools parsed; those are taken apart.

    As values, ten thousand tools would fill 60 MB, whose room is then held by the little that stays of them.
    """
    return wire.whole({**page, "tools": wire.items_of(page["tools"])})


def _most_cautious(scopes: Collection[CacheScope]) -> CacheScope:
    if "private" in scopes:
        return "private"
    return "public" if scopes and "unstated" not in scopes else "unstated"
