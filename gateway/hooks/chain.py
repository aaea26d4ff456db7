"""Which hooks run for what, and in which order; worked out once for each catalog and wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from gateway.hooks.audit_queue import AuditQueue
from gateway.hooks.hook import Kind, Via
from gateway.hooks.invocation import Passage
from gateway.hooks.runner import Guard
from registry.catalog.catalog import ToolWrapper
from registry.catalog.names import ServerName
from registry.catalog.shape import ServerShape
from registry.catalog.store import Registry

if TYPE_CHECKING:
    from gateway.calls.context import Caller

_UNSHAPED: Final = ServerShape()
_MAX_KNOWN: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is called: a tool, a prompt or a resource.

    Attributes:
        name: As callers know it.
        original: As its upstream knows it.
        definition: Of a tool, as its upstream gave it.
    """

    kind: Kind
    server: str
    name: str
    original: str
    tags: tuple[str, ...] = ()
    digest: str = ""
    read_only: bool = False
    definition: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The hooks of one wrapper, prompt or resource.

    Attributes:
        subject: What they are the hooks of.
        turns: Those that run in turn, by priority; after a call in reverse.
        together: Those that run together, after the others.
        audits: Those that are told.
        personal: Whether any of them asks who calls.
    """

    subject: Subject
    turns: tuple[Guard, ...] = ()
    together: tuple[Guard, ...] = ()
    audits: tuple[AuditQueue, ...] = ()
    personal: bool = False

    def __bool__(self) -> bool:
        return bool(self.turns or self.together or self.audits)

    def only(self, principal: str) -> Chain:
        """What of it concerns a principal."""
        if not self.personal:
            return self

        def concerned(guards: Iterable[Guard]) -> tuple[Guard, ...]:
            return tuple(one for one in guards if _one_of(principal, one.terms.principals))

        return Chain(
            subject=self.subject,
            turns=concerned(self.turns),
            together=concerned(self.together),
            audits=tuple(one for one in self.audits if _one_of(principal, one.guard.terms.principals)),
        )

    def order(self) -> dict[str, list[str]]:
        """The names of those that run before, and after, in order; audit hooks are told last."""
        stem = "call" if self.subject.kind == "tool" else self.subject.kind
        last = (*self.together, *(queue.guard for queue in self.audits))
        return {
            "before": [one.name for one in (*self.turns, *last) if one.runs(f"before_{stem}")],
            "after": [one.name for one in (*reversed(self.turns), *last) if one.runs(f"after_{stem}")],
        }


class Chains:
    """The chains of one configuration; a call keeps the one that it began with."""

    def __init__(self, guards: Iterable[Guard], registry: Registry) -> None:
        self.guards = tuple(sorted(guards, key=lambda guard: guard.terms.priority))
        self._registry = registry
        self._wrappers: dict[str, tuple[ToolWrapper, Chain]] = {}
        self._offerings: dict[tuple[Kind, str, str], Chain] = {}
        self._basis: object = None
        self._passages = 0
        self._retired: Callable[[], None] | None = None

    def tool(self, wrapper: ToolWrapper, via: Via, caller: Caller) -> Passage | None:
        """The way of a tool call through its hooks; None where it has none."""
        return self._passage(self.chain_of(wrapper), caller, via)

    def offering(self, kind: Kind, server: str, name: str, original: str, caller: Caller) -> Passage | None:
        """The way of a prompt or a resource through its hooks; None where it has none."""
        return self._passage(self.chain(kind, server, name, original), caller)

    def task(self, server: str, wrapper: ToolWrapper | None, caller: Caller) -> Passage | None:
        """The way of a task's result; of one whose tool is not known any more, through all hooks of its server."""
        if wrapper is not None:
            return self.tool(wrapper, "wrapper", caller)
        subject = Subject(kind="tool", server=server, name="", original="", tags=self._tags(server))
        return self._passage(self._chain(subject, whatever=True), caller)

    def chain_of(self, wrapper: ToolWrapper) -> Chain:
        """The hooks that concern a wrapper."""
        self._refreshed()
        known = self._wrappers.get(wrapper.name)
        if known is not None and known[0] is wrapper:
            return known[1]
        hints = wrapper.definition.get("annotations")
        subject = Subject(
            kind="tool",
            server=wrapper.server,
            name=wrapper.name,
            original=wrapper.tool,
            tags=self._tags(wrapper.server),
            digest=wrapper.digest,
            read_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
            definition=wrapper.definition,
        )
        chain = self._chain(subject)
        self._wrappers[wrapper.name] = wrapper, chain
        return chain

    def chain(self, kind: Kind, server: str, name: str, original: str) -> Chain:
        """The hooks that concern a prompt or a resource."""
        self._refreshed()
        key = (kind, server, name)
        chain = self._offerings.get(key)
        if chain is None:
            subject = Subject(kind=kind, server=server, name=name, original=original, tags=self._tags(server))
            chain = self._offerings[key] = self._chain(subject)
        return chain

    def _refreshed(self) -> None:
        catalog = self._registry.catalog
        if catalog is not self._basis or len(self._offerings) >= _MAX_KNOWN:
            self._wrappers.clear()
            self._offerings.clear()
            self._basis = catalog

    def _tags(self, server: str) -> tuple[str, ...]:
        return self._registry.shape.servers.get(ServerName(server), _UNSHAPED).tags

    def _chain(self, subject: Subject, *, whatever: bool = False) -> Chain:
        stem = "call" if subject.kind == "tool" else subject.kind
        names = (subject.name, subject.original)
        found = [
            guard
            for guard in self.guards
            if (guard.runs(f"before_{stem}") or guard.runs(f"after_{stem}"))
            and _one_of(subject.server, guard.terms.servers)
            and (whatever or any(_one_of(name, guard.terms.wrappers) for name in names))
            and (guard.terms.tags is None or any(_one_of(tag, guard.terms.tags) for tag in subject.tags))
        ]
        return Chain(
            subject=subject,
            turns=tuple(one for one in found if one.terms.mode in ("transform", "validate")),
            together=tuple(one for one in found if one.terms.mode == "concurrent"),
            audits=tuple(one.queue for one in found if one.queue is not None),
            personal=any(one.terms.principals is not None for one in found),
        )

    def _passage(self, chain: Chain, caller: Caller, via: Via = "wrapper") -> Passage | None:
        if chain.personal:
            chain = chain.only(caller.principal.name)
        return Passage(chain, caller, via, self) if chain else None

    # the calls that run

    def entered(self) -> None:
        """One more call is on its way."""
        self._passages += 1

    def left(self) -> None:
        """One call is over."""
        self._passages -= 1
        self._rest()

    def retire(self, rested: Callable[[], None]) -> None:
        """Take no more calls; hear of the end of the last one, perhaps at once."""
        self._retired = rested
        self._rest()

    def _rest(self) -> None:
        if self._retired is not None and self._passages == 0:
            rested, self._retired = self._retired, None
            rested()


def _one_of(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
