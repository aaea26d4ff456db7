"""A gateway whose server answers with fixed results, for tests of results in parts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import Recording, scripted_stdio_server, tool

SELECT: dict[str, Any] = {"results": {"select": True}}


def answering(**results: Any) -> dict[str, Any]:
    """Return the script of a server whose tools return fixed results."""
    return {
        "tools": [{**tool(name, query="string"), "outputSchema": {"type": "object"}} for name in results],
        "behaviours": {name: {"kind": "result", "with": {"result": result}} for name, result in results.items()},
    }


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}


@asynccontextmanager
async def serving_results(
    tmp_path: Path,
    results: Mapping[str, Any],
    *,
    server: Mapping[str, Any] = SELECT,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[RunningGateway, Recording]]:
    """Start a gateway with a server whose tools return these results."""
    config, recording = scripted_stdio_server(tmp_path, "up", **answering(**results))
    async with running_gateway(tmp_path, {"up": {**config, **server}}, **options) as gateway:
        gateway.client.headers.update(headers or {})
        await gateway.until_listed(*(f"up__{name}" for name in results))
        yield gateway, recording


@dataclass(slots=True, kw_only=True)
class _InProfile(RunningGateway):
    """A gateway as callers of one profile reach it."""

    profile: str

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp/{self.profile}"


def in_profile(gateway: RunningGateway, profile: str) -> RunningGateway:
    """Return the same gateway, called in a profile."""
    return _InProfile(
        process=gateway.process,
        origin=gateway.origin,
        state_dir=gateway.state_dir,
        config=gateway.config,
        client=gateway.client,
        log=gateway.log,
        profile=profile,
    )
