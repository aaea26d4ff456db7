"""One negotiated connection to an upstream: list every page, send calls, hear what it says unasked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio

from gateway import __version__
from gateway.errors import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    HttpStatusError,
    RpcError,
)
from gateway.protocol import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    NAMED_BY,
    envelope,
    header_value,
)
from gateway.upstream.callbacks import Host, Sideband
from gateway.upstream.inbound_messages import Hearing
from gateway.upstream.transport.jsonrpc import Channel
from gateway.upstream.transport.streamable_http import HttpChannel
from registry.catalog.catalog import ListKind
from registry.intake.prompts_and_resources import OfferingKind
from registry.intake.tools import Finding

log = logging.getLogger(__name__)

CLIENT_INFO: Final = {"name": "typegate", "version": __version__}
MAX_PAGES: Final = 64
MAX_ITEMS: Final = 20_000
# What clients hold at most; beyond 2**53 a strict parser would refuse the whole list.
MAX_TTL_MS: Final = 24 * 60 * 60 * 1000
_ENVELOPE: Final = envelope(CLIENT_INFO)
_LISTS: Final[Mapping[ListKind, tuple[OfferingKind, ...]]] = {
    "tools": (),
    "prompts": ("prompts",),
    "resources": ("resources", "resourceTemplates"),
}
ALL_KINDS: Final[frozenset[ListKind]] = frozenset(("tools", "prompts", "resources"))

Era = Literal["modern", "handshake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawListing:
    """What an upstream said to its list methods, all pages, unchecked; None where it was not asked or did not say.

    Attributes:
        refused: What should have become a tool and did not, with the reason.
        noted: What an operator should know of tools that did.
    """

    tools: list[Any] | None
    offerings: Mapping[OfferingKind, list[Any]]
    capabilities: Mapping[str, Any]
    ttl_ms: int | None
    scope: Literal["public", "private"]
    refused: tuple[Finding, ...] = ()
    noted: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCall:
    """One request on behalf of a caller, as the upstream is to get it.

    Attributes:
        method: Any method but those of discovery and subscription.
        params: The whole `params` object, names already those of the upstream.
        repeatable: To run it twice does no harm.
        header_map: Property paths to the `x-mcp-header` tokens they are mirrored in.
        capabilities: What the caller can do, as a modern upstream is told.
        log_level: What the caller wants to read; None for nothing.
        trace: HTTP headers of the caller's trace context.
    """

    method: str
    params: dict[str, Any]
    repeatable: bool = False
    header_map: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    log_level: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)
    sideband: Sideband = field(default_factory=Sideband)


class UpstreamSession:
    """One negotiated connection. Its owner opens and watches it; calls may come from any task."""

    def __init__(
        self,
        *,
        server: str,
        channel: Channel,
        era: Era,
        version: str,
        capabilities: dict[str, Any],
        server_info: dict[str, Any],
        instructions: str | None,
        host: Host | None = None,
    ) -> None:
        self.server = server
        self.channel = channel
        self.era: Era = era
        self.version = version
        self.capabilities = capabilities
        self.server_info = server_info
        self.instructions = instructions
        self.hearing = Hearing(server, modern=era == "modern", host=host)
        self.watched = False
        self.epoch = 0
        self._level: str | None = None

    def offers(self, kind: ListKind) -> bool:
        """Whether it says that it has such things; every server is asked for tools."""
        return kind == "tools" or isinstance(self.capabilities.get(kind), dict)

    async def list_all(
        self, kinds: Iterable[ListKind] = ALL_KINDS, *, limit_s: float, polled: bool = False
    ) -> RawListing:
        """Every page of these kinds, within bounds; a repeated cursor ends a list.

        A list other than that of tools which fails costs only itself: it is left out.

        Args:
            kinds: Which lists to ask for.
            limit_s: For each list, all its pages together.
            polled: Nobody asked and nothing was heard: it is only time to look again.

        Raises:
            RpcError, ConnectionLost, SessionForgotten, HttpStatusError: As `Channel.request`.
        """
        ttls: list[int] = []
        scopes: set[Any] = set()
        tools = await self._list("tools", ttls, scopes, limit_s) if "tools" in kinds else None
        offerings: dict[OfferingKind, list[Any]] = {}
        for member in (member for kind in ALL_KINDS & set(kinds) if self.offers(kind) for member in _LISTS[kind]):
            try:
                offerings[member] = await self._list(member, ttls, scopes, limit_s)
            except (RpcError, HttpStatusError, TimeoutError) as error:
                if not isinstance(error, RpcError) or error.code != METHOD_NOT_FOUND:
                    log.warning("the list of %s failed: %s", member, error, extra={"server": self.server})
        return RawListing(
            tools=tools,
            offerings=offerings,
            capabilities=self.capabilities,
            ttl_ms=min(ttls, default=None),
            scope="public" if scopes == {"public"} else "private",
        )

    async def _list(self, member: str, ttls: list[int], scopes: set[Any], limit_s: float) -> list[Any]:
        method = "resources/templates/list" if member == "resourceTemplates" else f"{member}/list"
        with anyio.move_on_after(limit_s):
            return await self._pages(method, member, ttls, scopes)
        if member == "tools":
            raise ConnectionLost(f"no answer to {method} within {limit_s:g} s", sent=True)
        raise TimeoutError(f"no answer within {limit_s:g} s")

    async def _pages(self, method: str, member: str, ttls: list[int], scopes: set[Any]) -> list[Any]:
        items: list[Any] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.request(method, params)
            if not isinstance(page, dict) or not isinstance(page.get(member), list):
                raise RpcError(-32603, f"the answer to {method} holds no list of {member}")
            items += page[member][: MAX_ITEMS - len(items)]
            ttl = page.get("ttlMs")
            if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl >= 0:
                ttls.append(int(min(ttl, MAX_TTL_MS)))
            scopes.add("public" if page.get("cacheScope") == "public" else "private")
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen or len(items) >= MAX_ITEMS:
                break
            seen.add(cursor)
            params = {"cursor": cursor}
        return items

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request of our own."""
        headers: dict[str, str] | None = None
        if self.era == "modern":
            params = {**params, "_meta": {**params.get("_meta", {}), **_ENVELOPE}}
            headers = self._headers(method, params)
        return await self.channel.request(method, params, headers=headers)

    async def send(self, call: UpstreamCall) -> Any:
        """Send a caller's request with what this era wants around it, and return the raw result."""
        sideband, params = call.sideband, call.params
        headers: dict[str, str] | None = None
        if self.era == "modern":
            meta = {**params.get("_meta", {}), **_ENVELOPE}
            if call.capabilities:
                meta[CAPABILITIES_KEY] = call.capabilities
            if call.log_level is not None and "logging" in self.capabilities:
                meta[LOG_LEVEL_KEY] = call.log_level
            params = {**params, "_meta": meta}
            headers = self._headers(call.method, params)
            if headers is not None and call.header_map:
                from mcp.shared.inbound import mcp_param_headers

                headers.update(mcp_param_headers(dict(call.header_map), params.get("arguments") or {}))
        elif call.log_level is not None and call.log_level != self._level and "logging" in self.capabilities:
            await self._set_level(call.log_level)
        if call.trace and isinstance(self.channel, HttpChannel):
            headers = {**(headers or {}), **call.trace}
        self.hearing.begin(sideband)
        try:
            return await self.channel.request(
                call.method,
                params,
                on_progress=sideband.progressed,
                on_message=lambda message, reply: self.hearing.hear(message, reply, sideband),
                headers=headers,
            )
        finally:
            self.hearing.end(sideband)

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str] | None:
        if not isinstance(self.channel, HttpChannel):
            return None
        headers = {"mcp-protocol-version": self.version, "mcp-method": method}
        name = params.get(NAMED_BY.get(method, ""))
        if isinstance(name, str):
            headers["mcp-name"] = header_value(name)
        return headers

    async def _set_level(self, level: str) -> None:
        # On a connection that callers share only a more talkative level may be set: each reads less of it.
        known = LOG_LEVELS.index(self._level or "info")
        if self.hearing.host is None and LOG_LEVELS.index(level) >= known:
            return
        self._level = level
        try:
            await self.request("logging/setLevel", {"level": level})
        except (RpcError, HttpStatusError):
            log.debug("the level of logs could not be set", extra={"server": self.server})
