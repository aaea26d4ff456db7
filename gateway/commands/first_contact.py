"""Start every server of a configuration once and store its lists of tools and other items."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from gateway.protocol.gateway_errors import GatewayError, innermost

if TYPE_CHECKING:
    from gateway.serving.app import Gateway

# The interval of progress messages: short enough that the command does not seem to hang.
_PROGRESS_S: Final = 5.0
# Time limit in `import` and `install`. Downloads by `npx` or a container runtime usually take less time. If a server
# needs more, the running gateway starts it again.
_FIRST_START_S: Final = 120.0


async def wait_until_settled(gateway: Gateway, *, say: Callable[[str], None]) -> None:
    """Wait until every upstream has listed its tools or failed. Each upstream has a separate timeout.

    Args:
        say: Called with progress messages, one line for each server.
    """
    from gateway.upstream.link_states import Starting

    began_s = anyio.current_time()
    pending = dict(gateway.fleet.links)

    async def follow(alias: str) -> None:
        link = gateway.fleet.links[alias]
        await link.tried.wait()
        del pending[alias]
        took_s = anyio.current_time() - began_s
        if not link.is_available:
            say(f"{alias}: not connected after {took_s:.1f} s")
            return
        tools = len(gateway.registry.catalog.wrappers_of(alias))
        say(f"{alias}: {tools} tool{'' if tools == 1 else 's'} after {took_s:.1f} s")

    async def report_pending() -> None:
        while True:
            await anyio.sleep(_PROGRESS_S)
            for alias, link in sorted(pending.items()):
                so_far = f"connecting ({anyio.current_time() - began_s:.0f} s)"
                say(f"{alias}: {link.state.start.describe() if isinstance(link.state, Starting) else so_far}")

    async with anyio.create_task_group() as reporting:
        reporting.start_soon(report_pending)
        async with anyio.create_task_group() as group:
            for alias in sorted(pending):
                group.start_soon(follow, alias)
        reporting.cancel_scope.cancel()


def store_first_listings(
    path: Path, state_dir: Path, *, say: Callable[[str], None], only: Collection[str] = ()
) -> None:
    """Start the servers of a configuration that have no stored list of tools, and store their lists.

    A server that fails is reported, but the command succeeds: the gateway starts the server again.

    Args:
        path: The configuration.
        state_dir: The state directory of the gateway that will serve the configuration.
        say: Called with progress messages.
        only: The servers to start; all if empty.
    """
    from gateway.commands.admin_client import load_added_names
    from gateway.config.load import load
    from gateway.fleet.snapshot import StoredListings
    from gateway.telemetry import logs

    try:
        config = load(path, added=load_added_names(path, state_dir))
    except GatewayError:
        return  # `serve` and `check` report the error
    stored_listings = StoredListings(state_dir)
    stored_listings.load()
    servers = {
        alias: server
        for alias, server in config.servers.items()
        if alias in (only or config.servers) and not server.per_user and stored_listings.find(alias, server) is None
    }
    if not servers:
        return
    say(
        f"starting {len(servers)} server{'' if len(servers) == 1 else 's'} once, so that the first tools/list is "
        "complete; Ctrl-C leaves this to the gateway (--no-check skips it)"
    )
    logs.start(logging.ERROR)
    logging.getLogger("gateway.fleet").setLevel(logging.CRITICAL)

    async def run() -> None:
        from gateway.serving.app import BorrowedState, open_gateway

        alone = replace(config, servers=servers)
        async with open_gateway(
            alone, state_dir=None, borrowed=BorrowedState(sign_in_dir=state_dir, snapshot_dir=state_dir)
        ) as gateway:
            with anyio.move_on_after(_FIRST_START_S):
                await wait_until_settled(gateway, say=say)
            for alias, link in gateway.fleet.links.items():
                if gateway.lock.listing_of(alias) is None:
                    say(f"{alias}: {link.last_error or 'not ready yet'}; the gateway will start it again")

    try:
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": sys.platform != "win32"})
    except KeyboardInterrupt:
        say("interrupted; the gateway will start the servers")
    except (GatewayError, BaseExceptionGroup) as error:
        cause = innermost(error)
        if not isinstance(cause, GatewayError):
            raise
        say(f"not started: {cause}")
