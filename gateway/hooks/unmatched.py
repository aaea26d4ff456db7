"""Conditions of hooks that match nothing that there is: whoever wrote one believes that the hook runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from gateway.hooks.chain import HookChain
from gateway.hooks.runner import HookRunner
from registry.catalog.catalog import Catalog
from registry.catalog.unmatched import near_miss


def vain_conditions(runners: Iterable[HookRunner], catalog: Catalog, chains: Iterable[HookChain]) -> Iterator[str]:
    """A warning for each pattern of names that matches nothing, and for each hook that runs for nothing.

    Nothing is said before anything is listed. Patterns of servers and tags are told with the configuration.

    Args:
        runners: The hooks.
        catalog: What there is.
        chains: Those of every tool, prompt and resource.
    """
    items = catalog.prompts_and_resources
    names: set[str] = {name for wrapper in catalog.wrappers for name in (wrapper.name, wrapper.tool)}
    names |= {name for item in (*items.prompts, *items.resources) for name in (item.key, item.original)}
    if not names:
        return
    running = {id(runner) for chain in chains for runner in (*chain.sequential, *chain.concurrent, *chain.audits)}
    for runner in runners:
        conditions, vain = runner.entry.conditions, False
        for pattern in conditions.wrappers or ():
            # A resource need not be listed to be read where its server has templates.
            if pattern == "*" or ("://" in pattern and items.templates):
                continue
            if not any(fnmatchcase(name, pattern) for name in names):
                vain = True
                yield f"hook {runner.name}: conditions.wrappers: {pattern} matches nothing{near_miss(pattern, names)}"
        if not vain and id(runner) not in running and not items.templates:
            yield f"hook {runner.name}: its conditions and phases together match no tool, prompt or resource"
