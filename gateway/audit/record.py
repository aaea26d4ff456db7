"""What is recorded of calls, refusals, sign-ins and changes, each as a line."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from gateway.audit.call import Outcome, Who, Wrapper
from gateway.audit.lines import STDIO, CallLine
from gateway.audit.pending import PendingLines
from gateway.audit.refusals import EntryLimit
from registry.schema.display_text import excerpt

# Of what callers have named: longer than any name or URI that means something.
_NAME_CHARS: Final = 200
# A minute's entries of wrong credentials for each address; an attack is seen in ten of them.
_WRONG_CREDENTIALS: Final = 10
# A minute's refused and failed requests of each caller, more than an agent with a wrong list of tools causes. Entries
# of all callers are deleted for size after two million of them: one caller needs days for so many.
_REFUSED_REQUESTS: Final = 300


class Audit(PendingLines):
    """Takes what has to be recorded, from the path of calls."""

    @cached_property
    def _wrong_credentials(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_WRONG_CREDENTIALS)

    @cached_property
    def _refused_requests(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_REFUSED_REQUESTS)

    def call(
        self,
        who: Who,
        wrapper: Wrapper | None,
        via: str,
        outcome: Outcome,
        took_s: float,
        arguments: Any = None,
        result: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        """A call of a tool has ended.

        Args:
            who: The caller.
            wrapper: The tool; None for one of our own.
            via: The route by which the call came.
            outcome: How it went.
            took_s: How long it took.
            arguments: As the caller sent them.
            result: What the caller gets.
            name: Of a tool of our own.
        """
        if not self.on:
            return
        self._put(
            CallLine(
                self._clock(),
                (who.principal.name, who.view.profile.name, who.version, who.peer, who.session_id),
                (name,) if wrapper is None else (wrapper.name, wrapper.server, wrapper.tool),
                via,
                outcome,
                took_s,
                self._value(arguments) if self.keeps_arguments else None,
                self._value(result) if self.keeps_results else None,
            )
        )

    def request(
        self,
        who: Who,
        method: str,
        name: object,
        took_s: float,
        *,
        code: int | None = None,
        reached: tuple[str, str] | None = None,
    ) -> None:
        """Another request that belongs to an upstream has ended.

        Args:
            who: The caller.
            method: The JSON-RPC method.
            name: What it asked for.
            took_s: How long it took.
            code: Of the JSON-RPC error that answered it.
            reached: The upstream that was asked last, and its own name or URI for it.
        """
        if not self.on:
            return
        more = 0 if code is None else self._refused_requests.more(who.principal.name)
        if more is not None:
            outcome = {"jsonrpc": "ok" if code is None else code}
            owner = {} if reached is None else {"server": reached[0], "original": _name(reached[1])}
            extra = {"method": method, "name": _name(name), **owner, "outcome": outcome, "ms": round(took_s * 1000, 2)}
            self._put(self._event(self._of_caller("request", who) | extra | ({"more": more} if more else {})))

    def refused(
        self, who: Who, method: str, name: object, *, rule: str | None = None, reason: str | None = None
    ) -> None:
        """A caller was refused something, or named what is not there for it.

        Args:
            who: The caller.
            method: The JSON-RPC method.
            name: What it asked for, in its own words.
            rule: The rule that decided.
            reason: Why, where no rule did.
        """
        if not self.on:
            return
        more = self._refused_requests.more(who.principal.name)
        if more is not None:
            about = {"method": method, "name": _name(name), "rule": rule, "reason": reason}
            self._put(self._event(self._of_caller("refused", who) | about | ({"more": more} if more else {})))

    def credentials_refused(self, where: str, peer: str, reason: str, *, principal: str | None = None) -> None:
        """Credentials were missing or wrong.

        Args:
            where: The path of the request.
            peer: The other end of the connection, with its port.
            reason: What is wrong with them, in a word or two.
            principal: Whose they would be, where that is known.
        """
        if not self.on:
            return
        more = self._wrong_credentials.more(peer.rpartition(":")[0] or peer)
        if more is not None:
            row = {"where": _name(where), "peer": peer, "principal": principal, "reason": reason}
            self._put(self._event({"event": "credentials_refused"} | row | ({"more": more} if more else {})))

    def changed(
        self,
        action: str,
        target: str | None = None,
        *,
        status: int | None = None,
        peer: str = "",
        by: str | None = None,
    ) -> None:
        """An administrator has changed something, or has tried to.

        Args:
            action: What, as `POST /admin/servers`, or `reload`.
            target: What it was done to.
            status: The HTTP status of the answer.
            peer: The other end of the administrator's connection.
            by: The name of the administrator's token.
        """
        if self.on:
            about = {"action": action, "target": _name(target), "status": status, "peer": peer or None}
            self._put(self._event({"event": "changed"} | about | ({"by": by} if by is not None else {})))

    def signed_in(
        self, server: str, principal: str | None, *, action: str = "sign_in", error: str | None = None
    ) -> None:
        """Somebody has signed in to an upstream, has signed out, or has failed to.

        Args:
            server: The upstream.
            principal: For whom; None where all callers share it.
            action: As `sign_in`, `sign_out`, `refresh`.
            error: Why it failed.
        """
        if self.on:
            reason = None if error is None else excerpt(error, _NAME_CHARS)
            about = {"server": server, "principal": principal, "action": action, "reason": reason}
            self._put(self._event({"event": "sign_in"} | about))

    def approval(
        self, who_principal: str, wrapper: str, decision: str, *, rule: str, by: str, approval: str, lasts: str
    ) -> None:
        """A call that waits for a person was asked about, or was decided.

        Args:
            who_principal: Whose call.
            wrapper: The tool.
            decision: `asked`, `allowed`, `denied`, `expired` or `withdrawn`.
            rule: The rule that asks.
            by: Who decided: `host`, `administrator`, or nobody.
            approval: Its id.
            lasts: For what it was decided: `once`, `session` or `tool`.
        """
        if self.on:
            about = {"principal": who_principal, "wrapper": wrapper, "decision": decision, "rule": rule, "by": by}
            self._put(self._event({"event": "approval"} | about | {"approval": approval, "for": lasts}))

    def process(self, event: str, **about: Any) -> None:
        """The gateway itself has started or stopped."""
        if self.on:
            self._put(self._event({"event": event} | about))

    def _of_caller(self, event: str, who: Who) -> dict[str, Any]:
        peer = who.peer
        return {
            "event": event,
            "principal": who.principal.name,
            "profile": who.view.profile.name,
            "era": who.version,
            "transport": STDIO if peer == STDIO else "http",
            "peer": peer,
            "session": who.session_id,
        }


def _name(name: object) -> str | None:
    return None if name is None else excerpt(name if isinstance(name, str) else str(name)[:_NAME_CHARS], _NAME_CHARS)
