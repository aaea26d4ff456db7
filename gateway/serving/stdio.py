"""`typegate stdio --config`: the gateway for a host that only starts processes."""

from __future__ import annotations

from pathlib import Path

from gateway.app import open_gateway
from gateway.config.model import Config
from gateway.downstream.stdio import StdioServer
from registry.profile import DEFAULT


async def serve_stdio(config: Config, *, state_dir: Path | None, profile: str = DEFAULT) -> int:
    """Serve one host until its end of the pipe closes, or a signal comes. Returns the exit code."""
    async with open_gateway(config, state_dir=state_dir) as gateway:
        await StdioServer(gateway.server, profile).run()
    return 0
