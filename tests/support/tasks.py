"""A task group for work that no caller owns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gateway.process.tasks import OwnedTasks


@asynccontextmanager
async def owned_tasks() -> AsyncIterator[OwnedTasks]:
    """Tasks that end with the block."""
    async with anyio.create_task_group() as group:
        yield OwnedTasks(group)
        group.cancel_scope.cancel()
