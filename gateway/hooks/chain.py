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
from registry.catalog.uri_spellings import denies_uri

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
    """The hooks of one target, and what each phase of a call does with them, decided once.

    Attributes:
        sequential: Those that run one after the other, by priority; after a call in reverse.
        concurrent: Those that run at the same time, after the sequential ones.
        audits: Those that only receive events.
        per_principal: Whether any of them has a condition on the principal.
        first_phase, last_phase: The phases before and after a call.
        before, after: Those of the sequential hooks that run in each phase, in the order in which they do.
        concurrent_before, concurrent_after: The same of the concurrent ones.
        sees_results: Whether any hook looks at the results of calls.
        is_empty: Whether there are no hooks at all.
    """

    target: HookTarget
    sequential: tuple[HookRunner, ...]
    concurrent: tuple[HookRunner, ...]
    audits: tuple[HookRunner, ...]
    per_principal: bool
    first_phase: str
    last_phase: str
    before: tuple[HookRunner, ...]
    after: tuple[HookRunner, ...]
    concurrent_before: tuple[HookRunner, ...]
    concurrent_after: tuple[HookRunner, ...]
    sees_results: bool
    is_empty: bool

    @classmethod
    def of(cls, target: HookTarget, runners: Iterable[HookRunner]) -> HookChain:
        """Sort hooks, given by priority, by their modes and phases."""
        runners = tuple(runners)
        first, last = target.phases
        sequential = tuple(runner for runner in runners if runner.mode in ("transform", "validate"))
        concurrent = tuple(runner for runner in runners if runner.mode == "concurrent")
        return cls(
            target=target,
            sequential=sequential,
            concurrent=concurrent,
            audits=tuple(runner for runner in runners if runner.mode == "audit"),
            per_principal=any(runner.entry.conditions.principals is not None for runner in runners),
            first_phase=first,
            last_phase=last,
            before=tuple(runner for runner in sequential if runner.runs(first)),
            after=tuple(runner for runner in reversed(sequential) if runner.runs(last)),
            concurrent_before=tuple(runner for runner in concurrent if runner.runs(first)),
            concurrent_after=tuple(runner for runner in concurrent if runner.runs(last)),
            sees_results=any(runner.runs(last) for runner in runners),
            is_empty=not runners,
        )

    def after_answer_of(self, runner: HookRunner) -> tuple[HookRunner, ...]:
        """Those of the sequential hooks that see the answer that one of them has given: the ones before it."""
        outer = self.sequential[: self.sequential.index(runner)]
        return tuple(one for one in self.after if one in outer)

    def order(self) -> dict[str, list[str]]:
        """The names of the hooks that run before and after, in order; audit hooks come last."""
        last = (*self.concurrent, *self.audits)
        return {
            "before": [runner.name for runner in (*self.before, *last) if runner.runs(self.first_phase)],
            "after": [runner.name for runner in (*self.after, *last) if runner.runs(self.last_phase)],
        }


class HookChains:
    """The chains of one configuration; a call keeps the chain that it began with.

    Attributes:
        in_flight: How many calls use them; each adds itself, and calls `leave` at its end.
    """

    def __init__(self, runners: Iterable[HookRunner], registry: Registry) -> None:
        # The sort is stable: hooks of one priority run in the order of the configuration.
        self.runners = tuple(sorted(runners, key=lambda runner: runner.entry.priority))
        self._registry = registry
        self._by_wrapper: dict[str, tuple[ToolWrapper, HookChain]] = {}
        self._by_key: dict[tuple[Kind, str, str], HookChain] = {}
        # By chain, which is kept here so that no other one takes its identity, and principal.
        self._by_principal: dict[tuple[int, str], tuple[HookChain, HookChain]] = {}
        self._catalog: object = None
        self.in_flight = 0
        self._on_idle: Callable[[], None] | None = None

    def for_wrapper(self, wrapper: ToolWrapper) -> HookChain:
        """The hooks that concern a wrapper."""
        if self._registry.catalog is not self._catalog:
            self._drop_outdated()
        known = self._by_wrapper.get(wrapper.name)
        # A call may have pinned an older catalog, whose wrapper of this name has another definition.
        if known is not None and known[0] is wrapper:
            return known[1]
        listing = self._registry.catalog.servers.get(wrapper.server)
        chain = self._chain(
            HookTarget(
                kind="tool",
                server=wrapper.server,
                name=wrapper.name,
                original=wrapper.tool,
                tags=self._tags(wrapper.server),
                digest=wrapper.digest,
                read_only=wrapper.hints.get("readOnlyHint") is True,
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

    def for_principal(self, chain: HookChain, principal: str) -> HookChain:
        """The part of a chain that concerns one principal."""
        if not chain.per_principal:
            return chain
        key = (id(chain), principal)
        known = self._by_principal.get(key)
        if known is None:
            if len(self._by_principal) >= _MAX_CACHED:
                self._by_principal.clear()
            runners = (*chain.sequential, *chain.concurrent, *chain.audits)
            concerned = (runner for runner in runners if _matches(runner.entry.conditions.principals, principal))
            known = self._by_principal[key] = chain, HookChain.of(chain.target, concerned)
        return known[1]

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
            self._by_principal.clear()
            self._catalog = catalog

    def _tags(self, server: str) -> tuple[str, ...]:
        return self._registry.shape.of(ServerName(server)).tags

    def _chain(self, target: HookTarget, *, any_name: bool = False) -> HookChain:
        def concerned(runner: HookRunner) -> bool:
            conditions = runner.entry.conditions
            return (
                any(runner.runs(phase) for phase in target.phases)
                and _matches(conditions.servers, target.server)
                and (any_name or _names(conditions.wrappers, target))
                and _matches(conditions.tags, *target.tags)
            )

        return HookChain.of(target, filter(concerned, self.runners))

    # Hooks that a reload has removed are closed only after the last call that still uses them.

    def leave(self) -> None:
        """Count one call in flight less."""
        self.in_flight -= 1
        if self._on_idle is not None:
            self._check_idle()

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Call `on_idle` once no call is in flight any more, perhaps at once; no call enters after this."""
        self._on_idle = on_idle
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and self.in_flight == 0:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def _names(patterns: list[str] | None, target: HookTarget) -> bool:
    if _matches(patterns, target.name, target.original):
        return True
    # Another spelling of its URI must not lead a resource past a hook.
    return patterns is not None and target.kind != "tool" and denies_uri(target.original, tuple(patterns))


def _matches(patterns: list[str] | None, *names: str) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
