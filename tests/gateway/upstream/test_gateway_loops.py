"""The gateways behind an upstream are requested with each list, because they may change."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.protocol.gateway_errors import METHOD_NOT_FOUND, RpcError
from gateway.protocol.versions import GATEWAYS, gateways_of
from gateway.upstream.inbound_messages import InboundMessages
from gateway.upstream.mcp_session import McpSession
from gateway.upstream.session import SessionPorts


class Upstream:
    """Reports the gateways that it is connected to, and records its requests."""

    independent_requests = True

    def __init__(self, *gateways: str) -> None:
        self.gateways = gateways
        self.methods: list[str] = []
        self.refuses = False

    @property
    def discovered(self) -> dict[str, Any]:
        named = {"experimental": {GATEWAYS: {name: {} for name in self.gateways}}} if self.gateways else {}
        return {"capabilities": {"tools": {}, **named}}

    async def request(self, method: str, params: dict[str, Any], **_: Any) -> Any:
        self.methods.append(method)
        if method == "tools/list":
            return {"tools": []}
        if self.refuses:
            raise RpcError(METHOD_NOT_FOUND, "not found")
        return self.discovered


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_gateway_upstream_reports_its_downstreams_with_each_list(version: str) -> None:
    async with anyio.create_task_group() as group:
        for upstream in (Upstream("first"), Upstream()):
            inbound = InboundMessages(
                group, SessionPorts(on_list_changed=lambda _: None, on_update=lambda *_: None), None
            )
            transport: Any = upstream
            session = McpSession("up", transport, inbound, version, upstream.discovered, {})
            named = set(upstream.gateways)
            assert gateways_of((await session.fetch_listing(limit_s=5)).capabilities) == named
            if not named or version != "2026-07-28":
                assert upstream.methods == ["tools/list"]
                continue
            upstream.gateways = ("first", "second")
            assert gateways_of((await session.fetch_listing(limit_s=5)).capabilities) == {"first", "second"}
            upstream.refuses = True
            assert gateways_of((await session.fetch_listing(limit_s=5)).capabilities) == {"first", "second"}
        group.cancel_scope.cancel()
