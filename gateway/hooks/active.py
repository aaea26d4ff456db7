"""The hooks that run now: started before the first call, replaced while calls run, closed after the last."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from gateway.hooks.chain import HookChain, HookChains
from gateway.hooks.hook import CallRoute, Kind
from gateway.hooks.hooked_request import PASS_THROUGH, HookCaller, Invocation
from gateway.hooks.invocation import HookInvocation
from gateway.hooks.runner import CLOSE_S, HookRunner
from gateway.hooks.timeout import GRACE_S
from gateway.hooks.unmatched import vain_conditions
from registry.catalog.catalog import ToolWrapper
from registry.catalog.store import Registry

# All hooks close at the same time, each within its own limits; half a second more is for the logging of failures.
_CLOSE_ALL_S: Final = CLOSE_S + GRACE_S + 0.5


class ActiveHooks:
    """Gives each call its invocation, and owns the life of every hook.

    Attributes:
        runners: The hooks, in the order of the configuration; empty if none is configured.
    """

    def __init__(self, registry: Registry, runners: Iterable[HookRunner] = ()) -> None:
        self._registry = registry
        self._group: TaskGroup | None = None
        self._retiring: list[HookRunner] = []
        self.runners: tuple[HookRunner, ...] = tuple(runners)
        self._chains = HookChains(self.runners, registry)

    async def run(self) -> None:
        """Deliver events to audit hooks until cancelled; then close every hook."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                for runner in self.runners:
                    self._start_queue(runner)
                await anyio.sleep_forever()
        finally:
            self._group = None
            # Shielded: this usually runs because the gateway is being cancelled, and files are still to be closed.
            with anyio.move_on_after(_CLOSE_ALL_S, shield=True):
                async with anyio.create_task_group() as closing:
                    for runner in {*self.runners, *self._retiring}:
                        closing.start_soon(runner.close)

    def replace(self, runners: Iterable[HookRunner]) -> None:
        """Use these hooks for calls from now on; calls in flight end with those they began with."""
        before, self.runners = self.runners, tuple(runners)
        retired, self._chains = self._chains, HookChains(self.runners, self._registry)
        for runner in self.runners:
            if runner not in before:  # a hook that is kept has its queue running
                self._start_queue(runner)
        removed = [runner for runner in before if runner not in self.runners]
        self._retiring += removed
        retired.retire(partial(self._close_soon, removed))

    def tool_call(self, wrapper: ToolWrapper, via: CallRoute, caller: HookCaller) -> Invocation:
        """The invocation of one tool call."""
        # Most gateways have no hooks: then a call pays for this one test, and no chain is computed or kept.
        if not self.runners:
            return PASS_THROUGH
        chains = self._chains
        chain = chains.for_wrapper(wrapper)
        if chain.per_principal:
            chain = chains.for_principal(chain, caller.principal.name)
        return PASS_THROUGH if chain.is_empty else HookInvocation(chain, caller, via, chains)

    def prompt_or_resource(
        self, kind: Kind, server: str, name: str, original: str, caller: HookCaller
    ) -> Invocation:  # fmt: skip
        """The invocation of one request for a prompt or a resource, or for a completion of either."""
        if not self.runners:
            return PASS_THROUGH
        return self._invocation(self._chains.for_prompt_or_resource(kind, server, name, original), caller)

    def task_result(self, server: str, wrapper_name: str, caller: HookCaller) -> Invocation:
        """The invocation for the result of a task, by the tool that started it."""
        wrapper = self._registry.catalog.get(wrapper_name)
        if wrapper is None or wrapper.server != server:
            # Rather a hook too many than a result that a redaction has not seen.
            return self._invocation(self._chains.for_unknown_tool(server), caller)
        return self._invocation(self._chains.for_wrapper(wrapper), caller)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each hook, in the order in which they run before a call."""
        return [runner.row() for runner in self._chains.runners]

    def wrapper_rows(self) -> list[dict[str, Any]]:
        """One row for each tool, prompt and resource with hooks: which run before and after it, in order."""
        return [
            {"kind": chain.target.kind, "name": chain.target.name, "server": chain.target.server, **chain.order()}
            for chain in self._all_chains()
            if not chain.is_empty
        ]

    def warnings(self) -> list[str]:
        """One for each condition that matches nothing that there is."""
        return list(vain_conditions(self.runners, self._registry.catalog, self._all_chains()))

    def _all_chains(self) -> list[HookChain]:
        if not self.runners:
            return []
        chains, prompts_and_resources = self._chains, self._registry.catalog.prompts_and_resources
        found = [chains.for_wrapper(wrapper) for wrapper in self._registry.catalog.wrappers]
        for prompt in prompts_and_resources.prompts:
            found.append(chains.for_prompt_or_resource("prompt", prompt.server, prompt.key, prompt.original))
        for item in prompts_and_resources.resources:
            found.append(chains.for_prompt_or_resource("resource", item.server, item.key, item.original))
        return found

    def _invocation(self, chain: HookChain, caller: HookCaller) -> Invocation:
        chain = self._chains.for_principal(chain, caller.principal.name)
        return PASS_THROUGH if chain.is_empty else HookInvocation(chain, caller, "wrapper", self._chains)

    def _start_queue(self, runner: HookRunner) -> None:
        if runner.queue is not None and self._group is not None:
            self._group.start_soon(runner.queue.run)

    def _close_soon(self, runners: list[HookRunner]) -> None:
        if self._group is not None:  # otherwise `run` has ended, which closes them
            for runner in runners:
                self._group.start_soon(self._close, runner)

    async def _close(self, runner: HookRunner) -> None:
        if runner.queue is not None:
            runner.queue.close()
            await runner.queue.ended.wait()
        self._retiring.remove(runner)
        await runner.close()
