"""`typegate stdio --config`: the gateway for a host that only starts processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from gateway.access.principal import LOCAL
from gateway.app import open_gateway
from gateway.config.model import Config
from gateway.downstream.stdio_server import StdioServer
from gateway.reload import Reloader
from registry.views.profile import DEFAULT_PROFILE


async def serve_stdio(
    config: Config, *, state_dir: Path | None, profile: str = DEFAULT_PROFILE, strict: bool = False
) -> int:
    """Serve one host until its end of the pipe closes, or a signal comes. Returns the exit code."""
    async with open_gateway(config, state_dir=state_dir) as gateway, anyio.create_task_group() as group:
        reloader = Reloader(gateway, check=lambda config: None, strict=strict)
        group.start_soon(partial(reloader.run, hangups=False))
        await StdioServer(gateway.server, gateway.quotas.account(LOCAL), profile).run()
        group.cancel_scope.cancel()
    return 0
