"""What a link waits for between two connections."""

from __future__ import annotations

import anyio

from gateway.upstream.transport.http_client import split_url


async def either(first: anyio.Event, second: anyio.Event) -> None:
    """Wait for one of two events."""
    async with anyio.create_task_group() as group:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(wait, first)
        group.start_soon(wait, second)


async def answers(url: str) -> bool:
    """Whether something accepts connections at this address."""
    origin, _ = split_url(url)
    try:
        with anyio.fail_after(1):
            stream = await anyio.connect_tcp(origin.host, origin.port)
        await stream.aclose()
    except (OSError, TimeoutError):
        return False
    return True
