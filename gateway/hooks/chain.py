"""Which hooks run for what, and in which order; worked out once for each catalog and wrapper."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.hooks.audits import AuditQueue
from gateway.hooks.guard import Guard
from gateway.hooks.hook import Kind, Metadata
from gateway.hooks.passage import Passage
from registry.catalog import ToolWrapper
from registry.names import ServerName
from registry.shape import ServerShape
from registry.store import Registry

if TYPE_CHECKING:
    from gateway.calls.context import Caller

_UNSHAPED: Final = ServerShape()
_MAX_KNOWN: Final = 20_000
_IDS: Final = itertools.count(1)
_RUN: Final = secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The hooks of one wrapper, prompt or resource.

    Attributes:
        turns: Those that run in turn, by priority; after a call in reverse.
        together: Those that run together, after the others.
        audits: Those that are told.
        personal: Whether any of them asks who calls.
    """

    kind: Kind
    tags: tuple[str, ...]
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
            kind=self.kind,
            tags=self.tags,
            turns=concerned(self.turns),
            together=concerned(self.together),
            audits=tuple(one for one in self.audits if _one_of(principal, one.guard.terms.principals)),
        )

    def order(self) -> dict[str, list[str]]:
        """The names of those that run before, and after, in order; audit hooks are told last."""
        stem = "call" if self.kind == "tool" else self.kind
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
        self._known: dict[tuple[Kind, str, str], Chain] = {}
        self._basis: object = None
        self._passages = 0
        self._retired: Callable[[], None] | None = None

    def tool(self, wrapper: ToolWrapper, via: Literal["wrapper", "invoke_tool"], caller: Caller) -> Passage | None:
        """The way of a tool call through its hooks; None where it has none."""
        chain = self.chain("tool", wrapper.server, wrapper.name, wrapper.tool)
        if not chain:
            return None
        hints = wrapper.definition.get("annotations")
        return self._passage(
            chain, wrapper.server, wrapper.name, wrapper.tool, caller, via=via,
            digest=wrapper.digest, definition=wrapper.definition,
            read_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
        )  # fmt: skip

    def offering(self, kind: Kind, server: str, name: str, original: str, caller: Caller) -> Passage | None:
        """The way of a prompt or a resource through its hooks; None where it has none."""
        chain = self.chain(kind, server, name, original)
        return self._passage(chain, server, name, original, caller) if chain else None

    def task(self, server: str, wrapper: ToolWrapper | None, caller: Caller) -> Passage | None:
        """The way of a task's result; of one whose tool is not known any more, through all hooks of its server."""
        if wrapper is not None:
            return self.tool(wrapper, "wrapper", caller)
        tags = self._registry.shape.servers.get(ServerName(server), _UNSHAPED).tags
        chain = self._chain("tool", server, None, tags)
        return self._passage(chain, server, "", "", caller) if chain else None

    def chain(self, kind: Kind, server: str, name: str, original: str) -> Chain:
        """The hooks that concern a wrapper, a prompt or a resource."""
        basis = self._registry.catalog
        if basis is not self._basis or len(self._known) >= _MAX_KNOWN:
            self._known.clear()
            self._basis = basis
        key = (kind, server, name)
        chain = self._known.get(key)
        if chain is None:
            tags = self._registry.shape.servers.get(ServerName(server), _UNSHAPED).tags
            chain = self._known[key] = self._chain(kind, server, (name, original), tags)
        return chain

    def _chain(self, kind: Kind, server: str, names: tuple[str, ...] | None, tags: tuple[str, ...]) -> Chain:
        phases = {"tool": "call"}.get(kind, kind)
        found = [
            guard
            for guard in self.guards
            if (guard.runs(f"before_{phases}") or guard.runs(f"after_{phases}"))
            and _one_of(server, guard.terms.servers)
            and (names is None or any(_one_of(name, guard.terms.wrappers) for name in names))
            and (guard.terms.tags is None or any(_one_of(tag, guard.terms.tags) for tag in tags))
        ]
        return Chain(
            kind=kind,
            tags=tags,
            turns=tuple(one for one in found if one.terms.mode in ("transform", "validate")),
            together=tuple(one for one in found if one.terms.mode == "concurrent"),
            audits=tuple(one.queue for one in found if one.queue is not None),
            personal=any(one.terms.principals is not None for one in found),
        )

    def _passage(
        self,
        chain: Chain,
        server: str,
        name: str,
        original: str,
        caller: Caller,
        *,
        via: Literal["wrapper", "invoke_tool"] = "wrapper",
        digest: str = "",
        read_only: bool = False,
        definition: dict[str, Any] | None = None,
    ) -> Passage | None:
        if chain.personal and not (chain := chain.only(caller.principal.name)):
            return None
        metadata = Metadata(
            kind=chain.kind,
            wrapper=name,
            server=server,
            tool=original,
            principal=caller.principal.name,
            session=caller.session_id,
            request_id=caller.request_id,
            call_id=f"{_RUN}-{next(_IDS):x}",
            via=via,
            tags=chain.tags,
            profile=caller.view.profile.name,
            digest=digest,
            read_only=read_only,
        )
        return Passage(chain, metadata, definition or {}, self)

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
