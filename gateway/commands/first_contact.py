"""Start every server of a configuration once, tell how it goes, and leave the snapshot that the first start serves."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from gateway.errors import GatewayError, innermost

if TYPE_CHECKING:
    from gateway.app import Gateway

# How often it is said what is still waited for: often enough that nobody takes it for hung.
_TELL_S: Final = 5.0
# How long `import` and `install` wait, whose work is done: what `npx` or a container runtime downloads on a usual line
# takes less. A server that takes longer is started again by the gateway itself.
_FIRST_START_S: Final = 120.0


async def until_settled(gateway: Gateway, *, say: Callable[[str], None]) -> None:
    """Wait until every upstream was listed or has failed; each has its own limit.

    Args:
        gateway: It has started.
        say: Tells of progress, a line for each server.
    """
    from gateway.upstream.link_states import Starting

    began_s = anyio.current_time()
    waited = dict(gateway.fleet.links)

    async def follow(alias: str) -> None:
        link = gateway.fleet.links[alias]
        await link.tried.wait()
        del waited[alias]
        took_s = anyio.current_time() - began_s
        if link.session is None:
            say(f"{alias}: not connected after {took_s:.1f} s")
            return
        tools = len(gateway.registry.catalog.wrappers_of(alias))
        say(f"{alias}: {tools} tool{'' if tools == 1 else 's'} after {took_s:.1f} s")

    async def tell_waiting() -> None:
        while True:
            await anyio.sleep(_TELL_S)
            for alias, link in sorted(waited.items()):
                so_far = f"connecting ({anyio.current_time() - began_s:.0f} s)"
                say(f"{alias}: {link.state.start.describe() if isinstance(link.state, Starting) else so_far}")

    async with anyio.create_task_group() as telling:
        telling.start_soon(tell_waiting)
        async with anyio.create_task_group() as group:
            for alias in sorted(waited):
                group.start_soon(follow, alias)
        telling.cancel_scope.cancel()


def leave_snapshot(path: Path, state_dir: Path, *, say: Callable[[str], None], only: Collection[str] = ()) -> None:
    """Start the servers of a configuration of which nothing is stored yet, and store what they list.

    A server that fails is told of, and is no failure of the command: it is started again when it is served.

    Args:
        path: The configuration.
        state_dir: That of the gateway which will serve it.
        say: Tells of progress.
        only: These servers alone; without any, all.
    """
    from gateway.commands.locations import added_over
    from gateway.config.load import load
    from gateway.snapshot import KeptListings
    from gateway.telemetry import logs

    try:
        config = load(path, added=added_over(path, state_dir))
    except GatewayError:
        return  # the commands that serve or check it say what is wrong
    kept = KeptListings(state_dir)
    kept.load()
    servers = {
        alias: server
        for alias, server in config.servers.items()
        if alias in (only or config.servers) and not server.per_user and kept.of(alias, server) is None
    }
    if not servers:
        return
    say(
        f"starting {len(servers)} server{'' if len(servers) == 1 else 's'} once, so that the first list is whole; "
        "Ctrl-C leaves that to the gateway (--no-check does not begin it)"
    )
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> None:
        from gateway.app import open_gateway

        alone = replace(config, servers=servers)
        async with open_gateway(alone, state_dir=None, sign_in_dir=state_dir, leaves_snapshot_in=state_dir) as gateway:
            with anyio.move_on_after(_FIRST_START_S):
                await until_settled(gateway, say=say)
            for alias, link in gateway.fleet.links.items():
                if gateway.lock.listing_of(alias) is None:
                    say(f"{alias}: {link.last_error or 'it takes longer'}; it is started again when it is served")

    try:
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    except KeyboardInterrupt:
        say("left to the gateway")
    except (GatewayError, BaseExceptionGroup) as error:
        cause = innermost(error)
        if not isinstance(cause, GatewayError):
            raise
        say(f"not started: {cause}")
