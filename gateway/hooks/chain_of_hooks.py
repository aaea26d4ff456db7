"""Select and order the hooks for a tool, prompt or resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.hooks.hook import Kind
from gateway.hooks.runner import HookRunner
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.registry import Registry
from registry.catalog.uris import denies_uri

# The maximum number of cached chains, which take a few MB. The number would otherwise be unlimited, because callers
# choose the URIs that match a resource template.
_MAX_CACHED: Final = 20_000
_PHASES: Final[Mapping[Kind, tuple[str, str]]] = {
    "tool": ("before_call", "after_call"),
    "prompt": ("before_prompt", "after_prompt"),
    "resource": ("before_resource", "after_resource"),
    "completion": ("before_completion", "after_completion"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTarget:
    """The tool, prompt or resource that hooks run for.

    Attributes:
        name: The name that callers use.
        original: The upstream's own name.
        private_connections: Whether sessions may have upstream connections of their own.
        private_results: Whether the upstream declares its list as private (`cacheScope`), or has a process for each
            caller or session.
        definition: The tool's definition as the upstream sent it; None for prompts and resources.
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
        """The names of the phases before and after a call of this kind."""
        return _PHASES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class HookChain:
    """The hooks of one target, in groups that are computed in advance.

    Attributes:
        sequential: Hooks that run one after the other, by priority before a call and in reverse order after it.
        concurrent: Hooks that run concurrently with each other after the sequential hooks.
        audits: The audit hooks, each of which receives events through a queue.
        per_principal: Whether any of the hooks has a condition on the principal.
        first_phase, last_phase: The names of the phases before and after a call.
        before, after: The sequential hooks that run before and after a call, in execution order.
        concurrent_before, concurrent_after: The concurrent hooks that run before and after a call.
        sees_results: Whether any hook, including audit hooks, runs after a call.
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
    def from_runners(cls, target: HookTarget, runners: Iterable[HookRunner]) -> HookChain:
        """Build a chain from hooks that are sorted by priority."""
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

    def hooks_after_answer(self, runner: HookRunner) -> tuple[HookRunner, ...]:
        """Return the sequential hooks that run after a call that `runner` has answered: those that precede `runner`."""
        outer = self.sequential[: self.sequential.index(runner)]
        return tuple(hook for hook in self.after if hook in outer)

    def order(self) -> dict[str, list[str]]:
        """Return the names of the hooks before and after a call in execution order, with audit hooks last."""
        last = (*self.concurrent, *self.audits)
        return {
            "before": [runner.name for runner in (*self.before, *last) if runner.runs(self.first_phase)],
            "after": [runner.name for runner in (*self.after, *last) if runner.runs(self.last_phase)],
        }


class HookChains:
    """The chains of one configuration. A call uses the same chain from beginning to end.

    Attributes:
        in_flight: The number of calls that use these chains; see `begin_call`.
    """

    def __init__(self, runners: Iterable[HookRunner], registry: Registry) -> None:
        # The sort is stable: hooks of equal priority run in the order of the configuration.
        self.runners = tuple(sorted(runners, key=lambda runner: runner.entry.priority))
        self._registry = registry
        self._by_wrapper: dict[str, tuple[ToolWrapper, HookChain]] = {}
        self._by_key: dict[tuple[Kind, str, str], HookChain] = {}
        # Keyed by id(chain) and principal. The value contains the chain, so that its id cannot be reused.
        self._by_principal: dict[tuple[int, str], tuple[HookChain, HookChain]] = {}
        self._catalog: object = None
        self.in_flight = 0
        self._on_idle: Callable[[], None] | None = None

    def for_wrapper(self, wrapper: ToolWrapper) -> HookChain:
        """Return the hooks for a wrapper."""
        if self._registry.catalog is not self._catalog:
            self._drop_outdated()
        cached = self._by_wrapper.get(wrapper.name)
        # Compare the wrapper object: a call may use an older catalog, in which the wrapper with this name has another
        # definition.
        if cached is not None and cached[0] is wrapper:
            return cached[1]
        listing = self._registry.catalog.servers.get(wrapper.server)
        shape = self._registry.shape.for_server(wrapper.server)
        chain = self._chain(
            HookTarget(
                kind="tool",
                server=wrapper.server,
                name=wrapper.name,
                original=wrapper.tool,
                tags=self._tags(wrapper.server),
                digest=wrapper.digest,
                read_only=wrapper.hints.get("readOnlyHint") is True,
                private_connections=shape.private_connections,
                # A server that was just removed has no listing; treat its results as private.
                private_results=listing is None or listing.scope == "private" or shape.has_instances,
                definition=wrapper.definition,
            )
        )
        self._by_wrapper[wrapper.name] = wrapper, chain
        return chain

    def for_prompt_or_resource(self, kind: Kind, server: str, name: str, original: str) -> HookChain:
        """Return the hooks for a prompt or a resource."""
        self._drop_outdated()
        key = (kind, server, name)
        chain = self._by_key.get(key)
        if chain is None:
            target = HookTarget(kind=kind, server=server, name=name, original=original, tags=self._tags(server))
            chain = self._by_key[key] = self._chain(target)
        return chain

    def for_principal(self, chain: HookChain, principal: str) -> HookChain:
        """Return the part of a chain that applies to one principal."""
        if not chain.per_principal:
            return chain
        key = (id(chain), principal)
        cached = self._by_principal.get(key)
        if cached is None:
            if len(self._by_principal) >= _MAX_CACHED:
                self._by_principal.clear()
            runners = (*chain.sequential, *chain.concurrent, *chain.audits)
            applicable = (runner for runner in runners if _matches(runner.entry.conditions.principals, principal))
            cached = self._by_principal[key] = chain, HookChain.from_runners(chain.target, applicable)
        return cached[1]

    def for_unknown_tool(self, server: str) -> HookChain:
        """Return the hooks that may apply to an unknown tool of a server. Their conditions on names are ignored."""
        target = HookTarget(kind="tool", server=server, name="", original="", tags=self._tags(server))
        return self._chain(target, any_name=True)

    def _drop_outdated(self) -> None:
        # A catalog is only replaced as a whole, so compare its identity. Between replacements, only the number of
        # chains for URIs grows.
        catalog = self._registry.catalog
        if catalog is not self._catalog or len(self._by_key) >= _MAX_CACHED:
            self._by_wrapper.clear()
            self._by_key.clear()
            self._by_principal.clear()
            self._catalog = catalog

    def _tags(self, server: str) -> tuple[str, ...]:
        return self._registry.shape.for_server(ServerName(server)).tags

    def _chain(self, target: HookTarget, *, any_name: bool = False) -> HookChain:
        def applies(runner: HookRunner) -> bool:
            conditions = runner.entry.conditions
            return (
                any(runner.runs(phase) for phase in target.phases)
                and _matches(conditions.servers, target.server)
                and (any_name or _matches_target(conditions.wrappers, target))
                and _matches(conditions.tags, *target.tags)
            )

        return HookChain.from_runners(target, filter(applies, self.runners))

    # Calls are counted, because hooks that a reload has removed are closed only after the last call that uses them.

    def begin_call(self) -> None:
        """Count a call. The caller has to call `end_call` afterwards."""
        self.in_flight += 1

    def end_call(self) -> None:
        """Decrease the number of calls in flight."""
        self.in_flight -= 1
        if self._on_idle is not None:
            self._check_idle()

    def retire(self, on_idle: Callable[[], None]) -> None:
        """Call `on_idle` once no call is in flight, possibly immediately. No new call may start after this."""
        self._on_idle = on_idle
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is not None and self.in_flight == 0:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()


def _matches_target(patterns: list[str] | None, target: HookTarget) -> bool:
    if _matches(patterns, target.name, target.original):
        return True
    # Also match other spellings of a URI, so that a caller cannot bypass a hook by spelling the URI differently.
    return patterns is not None and target.kind != "tool" and denies_uri(target.original, tuple(patterns))


def _matches(patterns: list[str] | None, *names: str) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
