"""Which hooks run for a tool, prompt or resource, and in which order; computed once for each catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.hooks.hook import Kind
from gateway.hooks.runner import HookRunner
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.store import Registry

# URIs that match a resource template are unlimited, and callers choose them. 20,000 chains take a few megabytes.
_MAX_CACHED: Final = 20_000
_PHASES: Final[Mapping[Kind, tuple[str, str]]] = {
    "tool": ("before_call", "after_call"),
    "prompt": ("before_prompt", "after_prompt"),
    "resource": ("before_resource", "after_resource"),
    "completion": ("before_completion", "after_completion"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTarget:
    """The tool, prompt or resource that hooks are run for.

    Attributes:
        name: As callers know it.
        original: As its upstream knows it.
        private_connections: Its upstream may have a connection for each session.
        private_results: Its upstream declares what it lists to be private (`cacheScope`).
        definition: Of a tool, as its upstream sent it.
    """

    kind: Kind
    server: str
    name: str
    original: str
    tags: tuple[str, ...] = ()
    digest: str = ""
    read_only: bool = False
    private_connections: bool = False
    private_results: bool = False
    definition: Mapping[str, Any] | None = None

    @property
    def phases(self) -> tuple[str, str]:
        """The phases before and after it."""
        return _PHASES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookChain:
    """The hooks of one target; false if there are none.

    Attributes:
        sequential: Those that run one after the other, by priority; after a call in reverse.
        concurrent: Those that run at the same time, after the sequential ones.
        audits: Those that only receive events.
        per_principal: Whether any of them has a condition on the principal.
    """

    target: HookTarget
    sequential: tuple[HookRunner, ...] = ()
    concurrent: tuple[HookRunner, ...] = ()
    audits: tuple[HookRunner, ...] = ()
    per_principal: bool = False

    def __bool__(self) -> bool:
        return bool(self.sequential or self.concurrent or self.audits)

    @classmethod
    def of(cls, target: HookTarget, runners: Iterable[HookRunner]) -> HookChain:
        """Sort hooks, given by priority, by their modes."""
        runners = tuple(runners)
        return cls(
            target=target,
            sequential=tuple(runner for runner in runners if runner.mode in ("transform", "validate")),
            concurrent=tuple(runner for runner in runners if runner.mode == "concurrent"),
            audits=tuple(runner for runner in runners if runner.mode == "audit"),
            per_principal=any(runner.entry.conditions.principals is not None for runner in runners),
        )

    def for_principal(self, principal: str) -> HookChain:
        """The part of it that concerns one principal."""
        if not self.per_principal:
            return self
        runners = (*self.sequential, *self.concurrent, *self.audits)
        return HookChain.of(
            self.target, (runner for runner in runners if _matches(runner.entry.conditions.principals, principal))
        )

    def order(self) -> dict[str, list[str]]:
        """The names of the hooks that run before and after, in order; audit hooks come last."""
        before, after = self.target.phases
        last = (*self.concurrent, *self.audits)
        return {
            "before": [runner.name for runner in (*self.sequential, *last) if runner.runs(before)],
            "after": [runner.name for runner in (*reversed(self.sequential), *last) if runner.runs(after)],
        }


class HookChains:
    """The chains of one configuration; a call keeps the chain that it began with."""

    def __init__(self, runners: Iterable[HookRunner], registry: Registry) -> None:
        # The sort is stable: hooks of one priority run in the order of the configuration.
        self.runners = tuple(sorted(runners, key=lambda runner: runner.entry.priority))
        self._registry = registry
        self._by_wrapper: dict[str, tuple[ToolWrapper, HookChain]] = {}
        self._by_key: dict[tuple[Kind, str, str], HookChain] = {}
        self._catalog: object = None
        self._in_flight = 0
        self._on_idle: Callable[[], None] | None = None

    def for_wrapper(self, wrapper: ToolWrapper) -> HookChain:
        """The hooks that concern a wrapper."""
        self._drop_outdated()
        known = self._by_wrapper.get(wrapper.name)
        # A call may have pinned an older catalog, whose wrapper of this name has another definition.
        if known is not None and known[0] is wrapper:
            return known[1]
        hints = wrapper.definition.get("annotations")
        listing = self._registry.catalog.servers.get(wrapper.server)
        chain = self._chain(
            HookTarget(
                kind="tool",
                server=wrapper.server,
                name=wrapper.name,
                original=wrapper.tool,
                tags=self._tags(wrapper.server),
                digest=wrapper.digest,
                read_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
                private_connections=self._registry.shape.of(wrapper.server).private_connections,
                # Of a server that has just gone nothing is known any more.
                private_results=listing is None or listing.scope == "private",
                definition=wrapper.definition,
            )
        )
        self._by_wrapper[wrapper.name] = wrapper, chain
        return chain

    def for_prompt_or_resource(self, kind: Kind, server: str, name: str, original: str) -> HookChain:
        """The hooks that concern a prompt or a resource."""
        self._drop_outdated()
        key = (kind, server, name)
        chain = self._by_key.get(key)
        if chain is None:
            target = HookTarget(kind=kind, server=server, name=name, original=original, tags=self._tags(server))
            chain = self._by_key[key] = self._chain(target)
        return chain

    def for_unknown_tool(self, server: str) -> HookChain:
        """The hooks that may concern a tool of a server: all of them, whatever names their conditions have."""
        target = HookTarget(kind="tool", server=server, name="", original="", tags=self._tags(server))
        return self._chain(target, any_name=True)

    def _drop_outdated(self) -> None:
        # Catalogs are swapped whole, so identity is enough; in between only URIs of templates can add up.
        catalog = self._registry.catalog
        if catalog is not self._catalog or len(self._by_key) >= _MAX_CACHED:
            self._by_wrapper.clear()
            self._by_key.clear()
            self._catalog = catalog

    def _tags(self, server: str) -> tuple[str, ...]:
        return self._registry.shape.of(ServerName(server)).tags

    def _chain(self, target: HookTarget, *, any_name: bool = False) -> HookChain:
        def concerned(runner: HookRunner) -> bool:
            conditions = runner.entry.conditions
            return (
                any(runner.runs(phase) for phase in target.phases)
                and _matches(conditions.servers, target.server)
                and (any_name or _matches(conditions.wrappers, target.name, target.original))
                and _matches(conditions.tags, *target.tags)
            )

        return HookChain.of(target, filter(concerned, self.runners))

    # Hooks that a reload has removed are closed only after the last call that still uses them.

    def enter(self) -> None:
        """Count one more call in flight."""
        self._in_flight += 1

    def leave(self) -> None:
        """Count one call in flight less."""
        self._in_flight -= 1
        self._check_idle()

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Call `on_idle` once no call is in flight any more, perhaps at once; no call enters after this."""
        self._on_idle = on_idle
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and self._in_flight == 0:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def _matches(patterns: list[str] | None, *names: str) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
