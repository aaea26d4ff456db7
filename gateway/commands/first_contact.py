"""Wait for every upstream of a configuration once, patiently, and tell how it goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.config.model import Config
    from gateway.config.server import ServerConfig

# A package runner that downloads a server at its first start, on a usual line.
_PATIENT_S: Final = 60.0
# A few pages of tools/list after the connection; a slower upstream is reported as not ready.
_LISTING_S: Final = 5.0
# How often it is said what is still waited for: often enough that nobody takes it for hung.
_TELL_S: Final = 5.0


def patient(config: Config) -> Config:
    """The same with more time for processes to start, where the file does not say how long they may take."""
    servers = {
        alias: server.model_copy(update={"connect_timeout": _PATIENT_S}) if _may_be_slow(server) else server
        for alias, server in config.servers.items()
    }
    return replace(config, servers=servers)


def _may_be_slow(server: ServerConfig) -> bool:
    return server.type == "stdio" and "connect_timeout" not in server.model_fields_set


async def until_settled(gateway: Gateway, config: Config, *, say: Callable[[str], None]) -> list[str]:
    """Wait until every upstream was listed or has failed; returns a warning for each that was slow.

    Args:
        gateway: It has started.
        config: As it is in the file.
        say: Tells of progress, a line for each server.
    """
    began_s = anyio.current_time()
    slow: list[str] = []
    waited = set(gateway.fleet.links)
    longest_s = max((link.config.connect_timeout for link in gateway.fleet.links.values()), default=0.0) + _LISTING_S

    async def follow(alias: str) -> None:
        link = gateway.fleet.links[alias]
        await link.tried.wait()
        waited.discard(alias)
        took_s = anyio.current_time() - began_s
        if link.session is None:
            say(f"{alias}: not connected after {took_s:.1f} s")
            return
        tools = len(gateway.registry.catalog.wrappers_of(alias))
        say(f"{alias}: {tools} tool{'' if tools == 1 else 's'} after {took_s:.1f} s")
        allowed_s = config.servers[alias].connect_timeout
        if took_s > allowed_s:
            # Not always so: what was downloaded is there the next time.
            what = f"took {took_s:.0f} s to start, and has {allowed_s:g} s when it is served"
            slow.append(f"{alias}: {what}; connectTimeout: {math.ceil(took_s * 1.5)} would be enough")

    async def tell_waiting() -> None:
        while True:
            await anyio.sleep(_TELL_S)
            say(f"waiting for {', '.join(sorted(waited))} ({anyio.current_time() - began_s:.0f} s)")

    with anyio.move_on_after(longest_s):
        async with anyio.create_task_group() as telling:
            telling.start_soon(tell_waiting)
            async with anyio.create_task_group() as group:
                for alias in sorted(waited):
                    group.start_soon(follow, alias)
            telling.cancel_scope.cancel()
    return slow
