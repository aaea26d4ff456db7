"""Sends requests to upstreams on behalf of a caller, and asks the caller for input where an upstream wants some."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from msgspec.structs import replace

from gateway.access.principal import LOCAL
from gateway.access.signing import BadSignature, Signer
from gateway.calls.context import Caller
from gateway.calls.results import whole, with_item
from gateway.calls.sign_in_prompts import SignInPrompts, answer_in
from gateway.errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamError, UpstreamUnavailable
from gateway.instruments import conventions
from gateway.instruments.current import CURRENT
from gateway.instruments.durations import Durations
from gateway.instruments.trace_context import with_context
from gateway.instruments.tracing import Span, Tracing, UnrecordedSpan, uri_of
from gateway.protocol import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    META,
    QUESTIONS,
    VERSION_KEY,
    can_be_asked,
)
from gateway.upstream.credentials import SignInRequired
from gateway.upstream.inbound_messages import ASK_S
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.connecting import user_of
from gateway.upstream.private_links import PrivateLinks
from gateway.upstream.session import NO_HEADER_MAP, UpstreamCall
from gateway.upstream.transport.jsonrpc import ResultStream
from gateway.upstream.user_links import UserLinks
from registry.schema.schemas import canonical_json

# Rounds of questions in one call: a person answers three or four, so sixteen is an upstream that never has enough.
MAX_ROUNDS: Final = 16
# Questions in one round, all of which are put to the host at the same time: a form has as many, a person no more.
MAX_QUESTIONS: Final = 32
# Of a later round, beside what it repeats of the first.
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# What a retry adds to the request that it repeats; all else has to be equal.
_RETRY_MEMBERS: Final = frozenset({"_meta", *_ANSWERS})


_OF_CONNECTION: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, "progressToken"})
"""Members of `_meta` that say something of the connection that they came by."""


class InputRefused(UpstreamError):
    """The upstream wanted input from the user and did not get it."""


class StateRefused(RpcError):
    """A request state was not issued for this request, or not to this caller."""


class Forwarder:
    """Sends requests, and acts as the host where caller and upstream speak versions with different ways to ask.

    Sources: MCP 2026-07-28, "Patterns", "Multi Round-Trip Requests"; MCP 2025-11-25, "Elicitation", "Sampling".
    """

    def __init__(
        self,
        links: Mapping[str, UpstreamLink],
        users: UserLinks,
        private: PrivateLinks,
        signer: Signer,
        *,
        durations: Durations | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Forward to these.

        Args:
            links: The upstreams.
            users: Connections that belong to one caller.
            private: Connections that belong to one session.
            signer: Signs the state of requests.
            durations: Where durations are counted.
            tracing: Makes spans; None where nothing is traced.
        """
        self._links = links
        self._users = users
        self._private = private
        self._signer = signer
        self._durations = durations or Durations()
        self._tracing = tracing
        self._sign_in_prompts = SignInPrompts(signer)

    def connected(self, server: str, caller: Caller) -> bool:
        """Whether a request could be sent without waiting for a connection."""
        link = self._users.present(server, caller.principal.name)
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
        header_map: Mapping[tuple[str, ...], str] = NO_HEADER_MAP,
        confirm: Callable[[], Awaitable[None]] | None = None,
        results: ResultStream | None = None,
    ) -> Any:
        """Send one request and return its raw result, which is the caller's alone.

        Args:
            server: The alias of the upstream.
            method: The method.
            params: Names already those of the upstream; `_meta` still the caller's. Nobody else has the object itself.
            caller: On whose behalf.
            original_params: As the caller sent them. A request state is bound to these: repairs and hooks may make
                something else of them at the next round.
            repeatable: Running it twice does no harm.
            header_map: Property paths to the headers that mirror them.
            confirm: See `UpstreamCall`.
            results: See `RequestCallbacks`.

        Raises:
            UpstreamError: There is no result; the text says why.
            StateRefused: The request state is not this caller's for this request; nothing was sent.
            RpcError: The upstream's own error.
        """
        link, principal = self._links.get(server), caller.principal
        if link is None:
            raise UpstreamUnavailable(server, f"Not called: server '{server}' is no longer configured.")
        if link.per_user:
            link = self._users.own(link, principal)
        if link.elicitation:
            link = await self._link_of_session(link, caller)
        binding: tuple[str, ...] = ()
        if "requestState" in params or "inputResponses" in params:
            if caller.modern:
                binding = self._binding(server, method, params, original_params, caller)
                if self._sign_in_prompts.is_answer(params, self._binding(server, method, {}, original_params, caller)):
                    params = {key: value for key, value in params.items() if key not in _ANSWERS}
                else:
                    params = self._with_upstream_state(params, binding)
            else:
                # Its versions do not have them: they are for an upstream that asked us, and nothing proves that.
                params = {key: value for key, value in params.items() if key not in _ANSWERS}
        if "_meta" in params:
            _leave_out_connection(params)
        capabilities = caller.capabilities
        if capabilities and not caller.modern:
            # A modern upstream gets those alone that we can translate.
            capabilities = {name: capabilities[name] for name in QUESTIONS.values() if name in capabilities}
        tool = params["name"] if method == "tools/call" else ""
        above = CURRENT.get() if self._tracing is not None else None
        for _ in range(MAX_ROUNDS):
            # A new one for each round: what was refused in an earlier round says nothing about this one.
            callbacks = caller.request_callbacks(results)
            sent, trace = params, caller.trace
            if above is not None and above.fields and not above.recorded:
                sent, trace = with_context(above.fields, params, trace)
            call = UpstreamCall(
                method=method,
                params=sent,
                repeatable=repeatable,
                header_map=header_map,
                capabilities=capabilities,
                log_level=caller.log_level,
                trace=trace,
                # Where callers cannot be told apart nobody has a share of the places.
                principal="" if principal is LOCAL else principal.name,
                callbacks=callbacks,
                confirm=confirm,
            )
            began_s, error_type = time.perf_counter(), "error"
            needed: SignInRequired | None = None
            result: Any = None
            try:
                if above is not None and isinstance(above, Span) and self._tracing is not None:
                    result = await self._traced(link, call, self._tracing, above, tool)
                else:
                    result = await link.call(call)
                failed = type(result) is dict and result.get("isError") is True
                error_type = conventions.TOOL_ERROR if failed else ""
            except SignInRequired as error:
                needed = error
            except RpcError as error:
                # It failed because we refused its question, which its own error cannot know.
                if callbacks.refused:
                    raise InputRefused(
                        server, f"{error.message}\n\n{self._why(link, caller, callbacks.refused)}"
                    ) from None
                raise
            finally:
                self._durations.of("client", method, server, tool, error_type).record(time.perf_counter() - began_s)
            if needed is not None:
                asked = await self.sign_in(needed, link, method, caller, original_params=original_params)
                if asked is not None:
                    return asked
                continue
            if callbacks.refused and isinstance(result, dict) and result.get("isError") is True:
                result = whole(result, server)
                reason = {"type": "text", "text": self._why(link, caller, callbacks.refused)}
                result["content"] = with_item(result.get("content"), reason)
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

    async def _traced(self, link: UpstreamLink, call: UpstreamCall, tracing: Tracing, above: Span, tool: str) -> Any:
        with self._span_of(above, link, call, tracing, tool) as span:
            params, trace = with_context(span.fields, call.params, call.trace)
            result = await link.call(replace(call, params=params, trace=trace))
            if isinstance(result, dict) and result.get("isError") is True:
                span.failed(conventions.TOOL_ERROR)
            return result

    def _span_of(
        self, above: Span, link: UpstreamLink, call: UpstreamCall, tracing: Tracing, tool: str
    ) -> Span | UnrecordedSpan:
        version = link.session.protocol_version if link.session is not None else None
        prompt = call.params.get("name") if call.method == "prompts/get" else None
        return tracing.of_upstream(
            above,
            call.method,
            {
                conventions.SERVER: link.server,
                conventions.PROTOCOL_VERSION: version,
                conventions.TOOL: tool or None,
                conventions.PROMPT: prompt,
                conventions.RESOURCE_URI: uri_of(call.params),
                conventions.OPERATION: conventions.EXECUTE_TOOL if tool else None,
                conventions.TRANSPORT: conventions.PIPE if link.config.type == "stdio" else conventions.TCP,
            },
        )

    async def sign_in(
        self,
        error: SignInRequired,
        link: UpstreamLink,
        method: str,
        caller: Caller,
        *,
        original_params: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Have the caller sign in; None once somebody is signed in, else what to answer.

        Raises:
            SignInRequired: Nobody is.
        """
        # Not to the tool's own name, which may be unknown before.
        binding = self._binding(link.server, method, {}, original_params, caller)
        asked = caller.modern and self._sign_in_prompts.is_answer(original_params, binding)
        return await self._sign_in_prompts.ask(
            error, caller, link, binding=binding, answer=answer_in(original_params), asked=asked
        )

    async def _link_of_session(self, link: UpstreamLink, caller: Caller) -> UpstreamLink:
        """The link that a call goes over where the server may ask its caller in the middle of it."""
        if caller.session_id is None or caller.host is None:
            return link
        # Questions arrive on a connection, so a session that can be asked has one of its own.
        user = user_of(caller.principal) if link.owner else ""
        own = await self._private.get(
            caller.session_id, link.server, link.config, caller.host, caller.account, user=user
        )
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
        return caller.principal.identity, caller.session_id or "", server, method, target, text

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
        if not link.elicitation:
            return f"{what}its entry in the configuration does not say `elicitation: true`."
        return f"{what}this host cannot be asked."


def _leave_out_connection(params: dict[str, Any]) -> None:
    """Keep vendor members and trace context of `_meta`; envelope and progress token belong to each connection."""
    meta = params.pop("_meta")
    # Most have nothing else, and then there is nothing to look at one by one.
    if isinstance(meta, dict) and not _OF_CONNECTION.issuperset(meta):
        kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(META)}
        if kept:
            params["_meta"] = kept
