"""The methods with which the rest of the gateway records events in the audit log."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any, Final, Protocol

from gateway.audit.audit_entries import STDIO, AuditedCaller, CallEntry, EntryLimit, Outcome, Wrapper
from gateway.audit.pending_entries import PendingEntries
from gateway.config.active_config import Apply, ConfigChange, Reconfigurable
from gateway.telemetry.trace_context import CURRENT
from registry.schema.display_text import excerpt

# Maximum length of a recorded text that a caller has chosen: longer than any reasonable name or URI.
_NAME_CHARS: Final = 200
# The maximum number of entries about wrong credentials per minute and address. Ten are enough to notice an attack.
_WRONG_CREDENTIALS: Final = 10
# Maximum entries about refused and failed requests per minute and caller. Agents with outdated tool lists cause fewer.
# About two million entries fit into the log before old files are deleted, and one caller needs days to write that many.
_REFUSED_REQUESTS: Final = 300


class ApprovalGiven(Protocol):
    """The decision about a call that needs an approval."""

    @property
    def by(self) -> str:
        """Who decided: `host` or `administrator`; empty without a decision."""

    @property
    def lasts(self) -> str:
        """The scope of the decision: `once`, `session` or `tool`."""


class Audit(PendingEntries, Reconfigurable):
    """The audit log. All methods return without waiting for the file."""

    async def validate(self, change: ConfigChange) -> Apply:
        return partial(self._apply, change)

    def _apply(self, change: ConfigChange) -> None:
        if change.is_reload and self._records_reloads:
            # Record the reload before applying it, so that the log has an entry if the reload switches the log off.
            self.changed("reload", str(change.after.path) if change.after.path is not None else None)
        self.replace(change.after.gateway.audit)

    @cached_property
    def _wrong_credentials(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_WRONG_CREDENTIALS)

    @cached_property
    def _refused_requests(self) -> EntryLimit:
        return EntryLimit(self._clock, per_minute=_REFUSED_REQUESTS)

    def call(
        self,
        caller: AuditedCaller,
        wrapper: Wrapper | None,
        via: str,
        outcome: Outcome,
        took_s: float,
        arguments: Any = None,
        result: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        """Record a finished tool call.

        Args:
            wrapper: The called tool; None for a tool of the gateway itself.
            via: How the tool was called: `wrapper` or `invoke_tool`.
            arguments: The arguments as the caller sent them.
            result: The result as the caller receives it.
            name: The name of a tool of the gateway itself.
        """
        if not self.on:
            return
        # This is the code of `recorded_trace`, without the function call, because it runs for every tool call.
        span = CURRENT.get()
        self._enqueue(
            CallEntry(
                self._clock(),
                (
                    caller.principal.name,
                    caller.view.profile.name,
                    caller.version,
                    caller.peer,
                    caller.session_id,
                    caller.client,
                ),
                (name,) if wrapper is None else (wrapper.name, wrapper.server, wrapper.tool),
                via,
                outcome,
                took_s,
                self._encode(arguments) if self.keeps_arguments else None,
                self._encode(result) if self.keeps_results else None,
                span.trace_id if span is not None and span.recorded else None,
            )
        )

    def request(
        self,
        caller: AuditedCaller,
        method: str,
        name: object,
        took_s: float,
        *,
        code: int | None = None,
        reached: tuple[str, str] | None = None,
    ) -> None:
        """Record a finished request for a prompt, a resource or any other item of an upstream except tools.

        Args:
            name: The requested prompt or resource.
            code: The code of the JSON-RPC error, if the request failed.
            reached: The upstream that received the request last, and the name or URI of the item at this upstream.
        """
        if not self.on:
            return
        more = 0 if code is None else self._refused_requests.admit(caller.principal.name)
        if more is not None:
            outcome = {"jsonrpc": "ok" if code is None else code}
            owner = {} if reached is None else {"server": reached[0], "original": _name(reached[1])}
            extra = {"method": method, "name": _name(name), **owner, "outcome": outcome, "ms": round(took_s * 1000, 2)}
            self._enqueue(
                self._event(self._caller_members("request", caller) | extra | ({"more": more} if more else {}))
            )

    def refused(
        self,
        caller: AuditedCaller,
        method: str,
        name: object,
        *,
        rule: str | None = None,
        reason: str | None = None,
        server: str | None = None,
    ) -> None:
        """Record a refused request, or a request for an item that the caller cannot see.

        Args:
            name: The requested item, as the caller named it.
            rule: The policy rule that refused the request.
            reason: `policy`, or another reason for the refusal.
            server: The server of the tool, if the tool exists.
        """
        if not self.on:
            return
        more = self._refused_requests.admit(caller.principal.name)
        if more is not None:
            about = {"method": method, "name": _name(name), "rule": rule, "reason": reason}
            owner = {"server": server} if server is not None else {}
            repeated = {"more": more} if more else {}
            self._enqueue(self._event(self._caller_members("refused", caller) | about | owner | repeated))

    def flow(self, caller: AuditedCaller, source: str, target: str, *, argument: str, size: int | None) -> None:
        """Record that a caller passes a stored result as an argument to another tool, or is not allowed to do so.

        Args:
            source: The tool that returned the result.
            target: The tool that receives the result.
            size: The size of the passed value in bytes; None if passing the result is not allowed.
        """
        if self.on:
            about = {"from": source, "to": target, "argument": argument, "bytes": size, "allowed": size is not None}
            self._enqueue(self._event(self._caller_members("flow", caller) | about))

    def credentials_refused(self, where: str, peer: str, reason: str, *, principal: str | None = None) -> None:
        """Record a request with missing or wrong credentials.

        Args:
            where: The path of the request.
            reason: The reason in a word or two.
            principal: The caller whom the credentials identify, if known.
        """
        if not self.on:
            return
        more = self._wrong_credentials.admit(peer.rpartition(":")[0] or peer)
        if more is not None:
            row = {"where": _name(where), "peer": peer, "principal": principal, "reason": reason}
            self._enqueue(self._event({"event": "credentials_refused"} | row | ({"more": more} if more else {})))

    def changed(
        self,
        action: str,
        target: str | None = None,
        *,
        status: int | None = None,
        peer: str = "",
        by: str | None = None,
    ) -> None:
        """Record a change by an administrator, an attempted change, or a reload of the configuration.

        Args:
            action: The action, such as `POST /admin/servers` or `reload`.
            status: The HTTP status of the response.
            peer: The remote address and port of the administrator.
            by: The name of the administrator's token.
        """
        if self.on:
            about = {"action": action, "target": _name(target), "status": status, "peer": peer or None}
            self._enqueue(self._event({"event": "changed"} | about | ({"by": by} if by is not None else {})))

    def signed_in(self, server: str, principal: str | None, action: str = "sign_in", error: str | None = None) -> None:
        """Record a sign-in to an upstream, a sign-out, or a failed attempt.

        Args:
            server: The upstream.
            principal: The caller; None if all callers share the sign-in.
            action: `sign_in`, `sign_out` or `refresh`.
            error: The reason of a failure.
        """
        if self.on:
            reason = None if error is None else excerpt(error, _NAME_CHARS)
            about = {"server": server, "principal": principal, "action": action, "reason": reason}
            self._enqueue(self._event({"event": "sign_in"} | about))

    def approval(
        self, principal: str, wrapper: str, decision: str, *, rule: str, approval: str, approval_given: ApprovalGiven
    ) -> None:
        """Record that a call needs an approval, or the decision about this call.

        Args:
            decision: `asked`, `allowed`, `denied`, `expired`, `withdrawn` or `taken_back`.
            rule: The rule that requires the approval.
        """
        if self.on:
            about = {
                "principal": principal,
                "wrapper": wrapper,
                "decision": decision,
                "rule": rule,
                "by": approval_given.by,
            }
            self._enqueue(
                self._event({"event": "approval"} | about | {"approval": approval, "for": approval_given.lasts})
            )

    def process(self, event: str, **about: Any) -> None:
        """Record an event of the gateway process, such as `started` or `stopped`."""
        if self.on:
            self._enqueue(self._event({"event": event} | about))

    def _caller_members(self, event: str, caller: AuditedCaller) -> dict[str, Any]:
        peer = caller.peer
        return {
            "event": event,
            "principal": caller.principal.name,
            "profile": caller.view.profile.name,
            "era": caller.version,
            "transport": STDIO if peer == STDIO else "http",
            "peer": peer,
            "session": caller.session_id,
            "client": caller.client,
        }


def _name(name: object) -> str | None:
    return None if name is None else excerpt(name if isinstance(name, str) else str(name)[:_NAME_CHARS], _NAME_CHARS)
