"""The hooks that run now: started before the first call, replaced while calls run, closed after the last."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import TaskGroup
from cachetools import LRUCache

from gateway.hooks.chain import Chains
from gateway.hooks.invocation import Passage
from gateway.hooks.runner import Guard
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import WrapperName
from registry.catalog.store import Registry

if TYPE_CHECKING:
    from gateway.calls.context import Caller

log = logging.getLogger(__name__)

_CLOSE_S: Final = 3.0
_MAX_TASKS: Final = 20_000


class Hooks:
    """The one place where the present chains are found.

    Attributes:
        chains: None where no hook is configured, so that calls pay for one look at it.
    """

    def __init__(self, registry: Registry, guards: Iterable[Guard] = ()) -> None:
        self._registry = registry
        self._group: TaskGroup | None = None
        self._ending: list[Guard] = []
        self._tasks: LRUCache[tuple[str, str], WrapperName] = LRUCache(_MAX_TASKS)
        self.guards: tuple[Guard, ...] = tuple(guards)
        self.chains = Chains(self.guards, registry) if self.guards else None

    async def run(self) -> None:
        """Tell audit hooks what happens, until cancelled; then close every hook."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                for guard in self.guards:
                    self._begin(guard)
                await anyio.sleep_forever()
        finally:
            self._group = None
            with anyio.move_on_after(_CLOSE_S, shield=True):
                async with anyio.create_task_group() as closing:
                    for guard in {*self.guards, *self._ending}:
                        closing.start_soon(guard.close)

    def replace(self, guards: Iterable[Guard]) -> None:
        """Let calls from now on go through these; those that are running end with what they began with."""
        before, self.guards = self.guards, tuple(guards)
        retired = self.chains
        self.chains = Chains(self.guards, self._registry) if self.guards else None
        for guard in self.guards:
            if guard not in before:
                self._begin(guard)
        gone = [guard for guard in before if guard not in self.guards]
        self._ending += gone
        if retired is not None:
            retired.retire(partial(self._end, gone))

    def began(self, task_id: str, wrapper: ToolWrapper) -> None:
        """Remember of which tool a task is, by the id that its upstream gave it."""
        self._tasks[wrapper.server, task_id] = wrapper.name

    def task(self, server: str, task_id: str, caller: Caller) -> Passage | None:
        """The way of a task's result through its hooks; None where it has none."""
        if self.chains is None:
            return None
        name = self._tasks.get((server, task_id))
        return self.chains.task(server, self._registry.catalog.get(name) if name is not None else None, caller)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each hook, in the order in which they run before a call."""
        return [guard.row() for guard in (self.chains.guards if self.chains is not None else ())]

    def wrapper_rows(self) -> list[dict[str, Any]]:
        """One row for each wrapper that a hook concerns: who runs before and after a call, in order."""
        chains = self.chains
        if chains is None:
            return []
        catalog, offerings = self._registry.catalog, self._registry.catalog.offerings
        found = [chains.chain_of(one) for one in catalog.wrappers]
        found += [chains.chain("prompt", one.server, one.key, one.original) for one in offerings.prompts]
        found += [chains.chain("resource", one.server, one.key, one.original) for one in offerings.resources]
        return [
            {"kind": one.subject.kind, "name": one.subject.name, "server": one.subject.server, **one.order()}
            for one in found
            if one
        ]

    def _begin(self, guard: Guard) -> None:
        if guard.queue is not None and self._group is not None:
            self._group.start_soon(guard.queue.run)

    def _end(self, guards: list[Guard]) -> None:
        if self._group is not None:
            for guard in guards:
                self._group.start_soon(self._closed, guard)

    async def _closed(self, guard: Guard) -> None:
        if guard.queue is not None:
            guard.queue.close()
            await guard.queue.ended.wait()
        self._ending.remove(guard)
        await guard.close()
