"""Sends requests to upstreams on behalf of a caller, and asks the caller for input where an upstream wants some."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from gateway.access.signing import BadSignature, Signer
from gateway.calls.context import Caller
from gateway.calls.results import whole
from gateway.errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamError, UpstreamUnavailable
from gateway.protocol import META, QUESTIONS, can_be_asked
from gateway.upstream.inbound_messages import ASK_S
from gateway.upstream.link import UpstreamLink
from gateway.upstream.private_links import PrivateLinks
from gateway.upstream.session import UpstreamCall
from registry.schema.schemas import canonical_json

log = logging.getLogger(__name__)

# Rounds of questions in one call: a person answers three or four, so sixteen is an upstream that never has enough.
MAX_ROUNDS: Final = 16
# Questions in one round, all of which are put to the host at the same time: a form has as many, a person no more.
MAX_QUESTIONS: Final = 32
# Of a later round, beside what it repeats of the first.
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# What a retry adds to the request that it repeats; all else has to be equal.
_RETRY_MEMBERS: Final = frozenset({"_meta", *_ANSWERS})


class InputRefused(UpstreamError):
    """The upstream wanted input from the user and did not get it."""


class StateRefused(RpcError):
    """A request state was not issued for this request, or not to this caller."""


class Forwarder:
    """Sends requests, and acts as the host where caller and upstream speak versions with different ways to ask.

    Sources: MCP 2026-07-28, "Patterns", "Multi Round-Trip Requests"; MCP 2025-11-25, "Elicitation", "Sampling".
    """

    def __init__(self, links: Mapping[str, UpstreamLink], private: PrivateLinks, signer: Signer) -> None:
        self._links = links
        self._private = private
        self._signer = signer

    def connected(self, server: str) -> bool:
        """Whether a request could be sent without waiting for a connection."""
        link = self._links.get(server)
        return link is not None and link.session is not None

    async def send(
        self,
        server: str,
        method: str,
        params: dict[str, Any],
        caller: Caller,
        *,
        original_params: dict[str, Any],
        repeatable: bool = False,
        header_map: Mapping[tuple[str, ...], str] | None = None,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Send one request and return its raw result, which is the caller's alone.

        Args:
            server: The alias of the upstream.
            method: The method.
            params: Names already those of the upstream; `_meta` still the caller's.
            caller: On whose behalf.
            original_params: As the caller sent them. A request state is bound to these: repairs and hooks may make
                something else of them at the next round.
            repeatable: Running it twice does no harm.
            header_map: Property paths to the headers that mirror them.
            confirm: See `UpstreamCall`.

        Raises:
            UpstreamError: There is no result; the text says why.
            StateRefused: The request state is not this caller's for this request; nothing was sent.
            RpcError: The upstream's own error.
        """
        link = await self._link_for(server, caller)
        binding: tuple[str, ...] = ()
        if "requestState" in params or "inputResponses" in params:
            if caller.modern:
                binding = self._binding(server, method, params, original_params, caller)
                params = self._with_upstream_state(params, binding)
            else:
                # Its versions do not have them: they are for an upstream that asked us, and nothing proves that.
                params = {key: value for key, value in params.items() if key not in _ANSWERS}
        params = _with_meta(params)
        for _ in range(MAX_ROUNDS):
            # A new one for each round: what was refused in an earlier round says nothing about this one.
            callbacks = caller.request_callbacks()
            call = UpstreamCall(
                method=method,
                params=params,
                repeatable=repeatable,
                header_map=header_map or {},
                capabilities=_capabilities(caller),
                log_level=caller.log_level,
                trace=caller.trace,
                principal=caller.share,
                callbacks=callbacks,
                confirm=confirm,
            )
            try:
                result = await link.call(call)
            except RpcError as error:
                # It failed because we refused its question, which its own error cannot know.
                if callbacks.refused:
                    raise InputRefused(
                        server, f"{error.message}\n\n{self._why(link, caller, callbacks.refused)}"
                    ) from None
                raise
            if callbacks.refused and isinstance(result, dict) and result.get("isError") is True:
                result = whole(result, server)
                content = result.get("content")
                reason = {"type": "text", "text": self._why(link, caller, callbacks.refused)}
                result["content"] = [*(content if isinstance(content, list) else []), reason]
            if not isinstance(result, dict) or result.get("resultType") != "input_required":
                return result
            if caller.modern:
                # It asks its user itself, and repeats the request with the answers and this state.
                state = result.get("requestState")
                if isinstance(state, str):
                    binding = binding or self._binding(server, method, params, original_params, caller)
                    result["requestState"] = self._signer.sign(state, *binding)
                return result
            answers = await self._collect_input(server, result, caller)
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            params = {key: value for key, value in params.items() if key not in _ANSWERS}
            params = {**params, "inputResponses": answers, **state}
        raise InputRefused(server, f"Server '{server}' asked for input {MAX_ROUNDS} times and never had enough.")

    async def _link_for(self, server: str, caller: Caller) -> UpstreamLink:
        link = self._links.get(server)
        if link is None:
            raise UpstreamUnavailable(server, f"Not called: server '{server}' is no longer configured.")
        if not link.config.elicitation or caller.session_id is None or caller.host is None:
            return link
        # Questions arrive on a connection, so a session that can be asked has one of its own.
        own = await self._private.get(caller.session_id, server, link.config, caller.host, caller.account)
        return own or link  # None where the upstream speaks a modern version, which asks in its results

    def _binding(
        self, server: str, method: str, params: dict[str, Any], original_params: dict[str, Any], caller: Caller
    ) -> tuple[str, ...]:
        """What a request state is good for: this caller, in this session, with this very request."""
        # Canonical, because a client may write the members of its retry in another order.
        repeated = canonical_json({key: value for key, value in original_params.items() if key not in _RETRY_MEMBERS})
        # As the upstream knows the tool: the caller's name for it may have come to mean another one.
        target = str(params.get("name", ""))
        text = repeated.decode("utf-8", "surrogatepass")
        return caller.principal.name, caller.session_id or "", server, method, target, text

    def _with_upstream_state(self, params: dict[str, Any], binding: tuple[str, ...]) -> dict[str, Any]:
        signed = params.get("requestState")
        if signed is None:
            return params
        try:
            return {**params, "requestState": self._signer.verify(str(signed), *binding)}
        except BadSignature as error:
            raise StateRefused(INVALID_PARAMS, f"Invalid requestState: {error}") from None

    async def _collect_input(self, server: str, result: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Send every question of a modern upstream to a host of an earlier version, all at the same time."""
        requests = result.get("inputRequests")
        if requests is None:
            return {}
        if not isinstance(requests, dict) or len(requests) > MAX_QUESTIONS:
            raise InputRefused(server, f"Server '{server}' asked for input in a form that cannot be understood.")
        answers: dict[str, Any] = {}

        async def ask(key: str, method: str, params: dict[str, Any]) -> None:
            assert caller.ask is not None
            answers[key] = await caller.ask(method, params)

        try:
            # One deadline for all questions: the host shows them at the same time, as one form or in turn.
            with anyio.fail_after(ASK_S):
                async with anyio.create_task_group() as group:
                    for key, request in requests.items():
                        method = request.get("method") if isinstance(request, dict) else None
                        asked = request.get("params") if isinstance(request, dict) else None
                        if caller.ask is None or not can_be_asked(caller.capabilities, str(method), asked):
                            raise InputRefused(
                                server,
                                f"Server '{server}' asks for input ({str(method)[:MAX_QUOTED_CHARS]}) in the middle "
                                "of this call, which this host does not offer. The call has no result.",
                            )
                        group.start_soon(ask, key, str(method), asked if isinstance(asked, dict) else {})
        except TimeoutError:
            raise InputRefused(server, f"Server '{server}' asked for input and nobody answered.") from None
        except ExceptionGroup as group_error:
            refusals, rest = group_error.split((RpcError, InputRefused))
            if refusals is None or rest is not None:
                raise
            # The first refusal cancels the other questions: without all answers the call cannot go on.
            first = refusals.exceptions[0]
            if isinstance(first, InputRefused):
                raise first from None
            raise InputRefused(server, f"Server '{server}' asked for input, which the host refused: {first}") from None
        # In the order of the questions, whichever was answered first.
        return {key: answers[key] for key in requests}

    def _why(self, link: UpstreamLink, caller: Caller, refused: list[str]) -> str:
        what = (
            f"During this call server '{link.server}' asked for input from the user ({refused[0]}), which was refused: "
        )
        if caller.modern:
            version = link.session.protocol_version if link.session is not None else "an earlier version"
            return (
                f"{what}it speaks MCP {version}, in which a server asks in the middle of a call, and this host "
                f"speaks {caller.version}, in which a call ends with its questions. The two cannot be joined."
            )
        if not link.config.elicitation:
            return f"{what}its entry in the configuration does not say `elicitation: true`."
        return f"{what}this host cannot be asked."


def _capabilities(caller: Caller) -> Mapping[str, Any]:
    """The caller's capabilities as a modern upstream gets them: only those that we can translate."""
    if caller.modern:
        return caller.capabilities
    return {name: caller.capabilities[name] for name in QUESTIONS.values() if name in caller.capabilities}


def _with_meta(params: dict[str, Any]) -> dict[str, Any]:
    """Keep vendor members and trace context of `_meta`; envelope and progress token belong to each connection."""
    meta = params.get("_meta")
    if meta is None:
        return params
    rest = {key: value for key, value in params.items() if key != "_meta"}
    if isinstance(meta, dict):
        kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(META)}
        if kept:
            rest["_meta"] = kept
    return rest
