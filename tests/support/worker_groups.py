"""A gateway of several workers for a test, and ways to reach each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
from support.callers import hello
from support.gateways import RunningGateway, running_gateway
from support.upstreams.running import children_of
from support.waiting import until


@asynccontextmanager
async def running_workers(
    tmp_path: Path, servers: Mapping[str, Any], workers: int = 2, **options: Any
) -> AsyncIterator[RunningGateway]:
    """Start `typegate serve --workers`; every request of its client uses a separate connection."""
    arguments = ("--workers", str(workers), *options.pop("arguments", ()))
    async with (
        running_gateway(tmp_path, servers, arguments=arguments, **options) as gateway,
        httpx2.AsyncClient(timeout=30, limits=httpx2.Limits(max_keepalive_connections=0)) as client,
    ):
        gateway.client = client
        yield gateway


@asynccontextmanager
async def each_worker(gateway: RunningGateway, workers: int = 2) -> AsyncIterator[list[RunningGateway]]:
    """Connect to every worker of a group, each through a separate connection, and keep these connections in use."""
    found: dict[int, RunningGateway] = {}
    async with AsyncExitStack() as stack:
        with anyio.fail_after(25):
            while len(found) < workers:
                only = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
                one = replace(
                    gateway, client=await stack.enter_async_context(httpx2.AsyncClient(timeout=30, limits=only))
                )
                found.setdefault(await worker_index_of(one), one)
        yield [found[index] for index in range(workers)]


async def worker_index_of(gateway: RunningGateway) -> int:
    """Return the index of the worker at the other end, from the id of a session that starts there."""
    opened = await gateway.post(hello())
    assert opened.status_code == 200, opened.text
    return worker_of(opened.headers["mcp-session-id"])


def worker_of(session_id: str) -> int:
    """Return the index of the worker that has a session."""
    return int(session_id.partition("-")[0])


def workers_of(gateway: RunningGateway) -> dict[int, int]:
    """Return the process ids of the running workers, by index."""
    return dict(_workers(gateway.process.pid))


def _workers(parent: int) -> Iterator[tuple[int, int]]:
    for child in children_of(parent):
        with suppress(OSError, ValueError, IndexError):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            yield int(words[words.index("gateway.serving.worker") + 1].partition("/")[0]) - 1, child


def is_running(pid: int) -> bool:
    """Return whether a process is running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def ready(gateway: RunningGateway, within_s: float = 25) -> None:
    """Wait until every worker says that it is ready."""

    async def is_ready() -> bool:
        with suppress(httpx2.HTTPError):
            return (await gateway.client.get(f"{gateway.origin}/readyz")).status_code == 200
        return False

    await until(is_ready, within_s)
