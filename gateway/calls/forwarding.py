"""Send requests to upstreams for a caller, and relay an upstream's input requests to the caller.

An upstream may ask the caller's user or model for input during a call. Before 2026-07-28, a server sends such a request
on the connection while the call runs. Since 2026-07-28, the result of the call contains the input requests, and the
caller repeats the call with the answers and a request state: this is the next round.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace as replace_in
from functools import partial
from typing import Any, Final

import anyio
from msgspec.structs import replace

from gateway.access.principal import LOCAL
from gateway.access.signing import BadSignature, Signer
from gateway.calls.call_stats import Durations
from gateway.calls.caller import Caller
from gateway.calls.process_choice import ProcessesOfCallers, ProcessOfCaller, StateRefused
from gateway.calls.results import parse_result, with_item
from gateway.calls.sign_in_prompts import SignInPrompts, answer_in
from gateway.protocol.extensions import with_apps
from gateway.protocol.gateway_errors import (
    INVALID_PARAMS,
    MAX_QUOTED_CHARS,
    RpcError,
    UpstreamError,
    UpstreamUnavailable,
)
from gateway.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    META,
    QUESTIONS,
    VERSION_KEY,
    can_be_asked,
)
from gateway.telemetry import trace_context
from gateway.telemetry.trace_context import CURRENT, with_context
from gateway.telemetry.tracing import Span, Tracing, UnrecordedSpan, uri_of
from gateway.upstream.caller_links import Instance, PrivateLinks, UserLinks
from gateway.upstream.inbound_messages import ASK_S
from gateway.upstream.link import UpstreamLink
from gateway.upstream.oauth.account_linking import user_of
from gateway.upstream.session import NO_HEADER_MAP, UpstreamCall
from gateway.upstream.upstream_credentials import SignInRequired
from registry.catalog.uris import UI_PREFIX
from registry.schema.schemas import canonical_json

# Maximum rounds of input requests per call. Users answer three or four rounds; an upstream that asks for sixteen would
# probably never stop.
MAX_ROUNDS: Final = 16
# Maximum input requests in one round: as many as the fields of a large form, and more than a person would answer.
MAX_QUESTIONS: Final = 32
# Members that a later round adds to the first request.
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# Members that may differ in a later round. All other members must equal those of the first request.
_RETRY_MEMBERS: Final = frozenset({"_meta", *_ANSWERS})


_CONNECTION_MEMBERS: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, "progressToken"})
"""Members of `_meta` that describe the caller's connection to the gateway."""


class InputRefused(UpstreamError):
    """The upstream asked for input, but the caller refused or could not be asked."""


class Forwarder:
    """Sends requests to upstreams, and translates input requests between protocol versions.

    If a caller with a session calls an upstream that speaks 2026-07-28, the forwarder acts as the upstream's host: it
    sends the input requests to the caller, and repeats the call with the answers.

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
        """Create a forwarder.

        Args:
            links: The upstreams by alias.
            users: Connections that belong to one caller.
            private: Connections that belong to one session.
            signer: Signs request states.
            durations: Records durations.
            tracing: Creates spans; None to disable tracing.
        """
        self._links = links
        self._users = users
        self._private = private
        self._signer = signer
        self._durations = durations or Durations()
        self._tracing = tracing
        self._sign_in_prompts = SignInPrompts(signer)
        self._processes = ProcessesOfCallers(users, signer)

    def connected(self, server: str, caller: Caller) -> bool:
        """Return whether a request can be sent without waiting for a connection."""
        link = self._users.current_link(server, caller.principal.name)
        return link is not None and link.session is not None

    async def send(  # noqa: C901 - a loop of rounds with one branch per outcome
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
    ) -> Any:
        """Send a request and return its raw result, which may be modified.

        Args:
            params: The params with the upstream's names but the caller's `_meta`. This object may be modified.
            original_params: The unmodified params of the caller. Request states are bound to these rather than to
                `params`, which repairs and hooks may change differently in the next round.
            repeatable: Whether sending the request twice is harmless.
            header_map: The name of the header that mirrors a property, by the path of the property.
            confirm: As in `UpstreamCall`.

        Raises:
            UpstreamError: The upstream returned no result; the text says why.
            StateRefused: The request state was not issued for this request; nothing was sent.
            RpcError: The upstream answered with an error.
        """
        link, principal = self._links.get(server), caller.principal
        if link is None:
            raise UpstreamUnavailable(server, f"Not called: server '{server}' is no longer configured.")
        process: ProcessOfCaller | None = None
        if link.per_user:
            link = self._users.get_or_open(link, principal)
        if link.has_instances:
            bound_to = partial(self._binding, server, method, params, original_params, caller)
            process = await self._processes.choose(link, method, params, caller, binding=bound_to)
            if process.question is not None:
                return process.question
            params = process.params
            link = await self._link_of_process(link, process, caller)
        elif link.elicitation:
            link = (
                await self._link_of_session(link, Instance(principal=principal, account=caller.account), caller) or link
            )
        params, binding = self._with_answers(server, method, params, original_params, caller)
        if "_meta" in params:
            _leave_out_connection(params)
        tool = params["name"] if method == "tools/call" else ""
        parent = CURRENT.get() if self._tracing is not None else None
        capabilities = _declared_capabilities(caller)
        if _concerns_app(server, method, params, caller):
            capabilities = with_apps(capabilities)
        for _ in range(MAX_ROUNDS):
            # Create new callbacks for each round: only input requests refused in the same round explain an error.
            callbacks = caller.request_callbacks()
            sent, trace = params, caller.trace
            if parent is not None and parent.fields and not parent.recorded:
                sent, trace = with_context(parent.fields, params, trace)
            call = UpstreamCall(
                method=method,
                params=sent,
                repeatable=repeatable,
                header_map=header_map,
                capabilities=capabilities,
                log_level=caller.log_level,
                trace=trace,
                # Each principal has its own share of the upstream's concurrent calls. Local callers cannot be
                # distinguished, so they have no own share.
                principal="" if principal is LOCAL else principal.name,
                callbacks=callbacks,
                confirm=confirm,
            )
            began_s, error_type = time.perf_counter(), "error"
            needed: SignInRequired | None = None
            result: Any = None
            try:
                if parent is not None and isinstance(parent, Span) and self._tracing is not None:
                    result = await self._call_traced(link, call, self._tracing, parent, tool)
                else:
                    result = await link.call(call)
                failed = type(result) is dict and result.get("isError") is True
                error_type = trace_context.TOOL_ERROR if failed else ""
            except SignInRequired as error:
                needed = error
            except RpcError as error:
                # The call failed after an input request was refused, which the upstream's error may not mention.
                if callbacks.refused:
                    raise InputRefused(
                        server, f"{error.message}\n\n{self._refusal_reason(link, caller, callbacks.refused)}"
                    ) from None
                raise
            finally:
                self._durations.histogram("client", method, server, tool, error_type).record(
                    time.perf_counter() - began_s
                )
            if needed is not None:
                sign_in_result = await self.sign_in(needed, link, method, caller, original_params=original_params)
                if sign_in_result is not None:
                    return sign_in_result
                continue
            if callbacks.refused and isinstance(result, dict) and result.get("isError") is True:
                result = parse_result(result, server)
                reason = {"type": "text", "text": self._refusal_reason(link, caller, callbacks.refused)}
                result["content"] = with_item(result.get("content"), reason)
            if not isinstance(result, dict) or result.get("resultType") != "input_required":
                return result
            if caller.modern:
                # The caller asks its user and repeats the request with the answers and this state.
                state = result.get("requestState")
                if isinstance(state, str):
                    binding = binding or self._binding(server, method, params, original_params, caller)
                    result["requestState"] = self._signer.sign(state, *binding)
                if process is not None:
                    self._processes.keep_root(result, process)
                return result
            answers = await self._collect_input(server, result, caller)
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            params = {key: value for key, value in params.items() if key not in _ANSWERS}
            params = {**params, "inputResponses": answers, **state}
        raise InputRefused(
            server,
            f"Server '{server}' asked for input {MAX_ROUNDS} times, the most that is allowed, and did not complete the "
            "call.",
        )

    def _with_answers(
        self,
        server: str,
        method: str,
        params: dict[str, Any],
        original_params: dict[str, Any],
        caller: Caller,
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Verify the request state from the caller, and replace it by the state that the upstream issued.

        Returns:
            The params for the upstream; and the values to which a request state is bound, or () if the request is not
            a later round.

        Raises:
            StateRefused: The request state was not issued for this request.
        """
        if "requestState" not in params and "inputResponses" not in params:
            return params, ()
        without = {key: value for key, value in params.items() if key not in _ANSWERS}
        if not caller.modern:
            # The caller's version does not define these members, so they are not from the gateway: drop them.
            return without, ()
        binding = self._binding(server, method, params, original_params, caller)
        if self._sign_in_prompts.is_answer(params, self._binding(server, method, {}, original_params, caller)):
            return without, binding
        return self._with_upstream_state(params, binding), binding

    async def _call_traced(
        self, link: UpstreamLink, call: UpstreamCall, tracing: Tracing, parent: Span, tool: str
    ) -> Any:
        with self._span_of(parent, link, call, tracing, tool) as span:
            params, trace = with_context(span.fields, call.params, call.trace)
            result = await link.call(replace(call, params=params, trace=trace))
            if isinstance(result, dict) and result.get("isError") is True:
                span.mark_failed(trace_context.TOOL_ERROR)
            return result

    def _span_of(
        self, parent: Span, link: UpstreamLink, call: UpstreamCall, tracing: Tracing, tool: str
    ) -> Span | UnrecordedSpan:
        version = link.session.protocol_version if link.session is not None else None
        prompt = call.params.get("name") if call.method == "prompts/get" else None
        return tracing.start_client_span(
            parent,
            call.method,
            {
                trace_context.SERVER: link.server,
                trace_context.PROTOCOL_VERSION: version,
                trace_context.TOOL: tool or None,
                trace_context.PROMPT: prompt,
                trace_context.RESOURCE_URI: uri_of(call.params),
                trace_context.OPERATION: trace_context.EXECUTE_TOOL if tool else None,
                trace_context.TRANSPORT: trace_context.PIPE if link.config.type == "stdio" else trace_context.TCP,
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
        """Ask the caller to sign in to a server.

        Returns:
            The result that asks the caller to sign in and repeat the request; None if the caller has signed in.

        Raises:
            SignInRequired: The sign-in did not succeed.
        """
        # The request state is not bound to the upstream's tool name, which may be unknown before the sign-in.
        binding = self._binding(link.server, method, {}, original_params, caller)
        was_asked = caller.modern and self._sign_in_prompts.is_answer(original_params, binding)
        return await self._sign_in_prompts.prompt_user(
            error, caller, link, binding=binding, answer=answer_in(original_params), was_asked=was_asked
        )

    async def _link_of_process(self, shared: UpstreamLink, process: ProcessOfCaller, caller: Caller) -> UpstreamLink:
        """Return the link to the process that `process` describes; the process is started if necessary."""
        if process.link is not None:
            return process.link
        own = await self._link_of_session(shared, process.owner, caller) if shared.elicitation else None
        return own or self._users.get_instance(shared, process.owner)

    async def _link_of_session(self, link: UpstreamLink, owner: Instance, caller: Caller) -> UpstreamLink | None:
        """Return the link of the caller's session to a server that may send input requests during a call.

        Returns:
            None if the caller has no session, or the upstream speaks 2026-07-28 or later.
        """
        if caller.session_id is None or caller.host is None:
            return None
        # The server sends input requests on the connection, so each session that can be asked needs its own connection.
        owner = replace_in(owner, session_id=caller.session_id)
        user = user_of(caller.principal) if link.owner else ""
        return await self._private.get(owner, link.server, link.config, caller.host, user=user)

    def _binding(
        self, server: str, method: str, params: dict[str, Any], original_params: dict[str, Any], caller: Caller
    ) -> tuple[str, ...]:
        """Return the values to which a request state is bound: this caller, session and request."""
        # Use canonical JSON, because a client may send the members in another order in the next round.
        repeated = canonical_json({key: value for key, value in original_params.items() if key not in _RETRY_MEMBERS})
        # Include the upstream's name of the tool: in the next round, the wrapper name may refer to another tool.
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
        """Send the input requests in an upstream's result to a host with a session, concurrently; return the answers.

        Raises:
            InputRefused: The input requests are invalid, or the host does not support, refuses or does not answer one.
        """
        requests = result.get("inputRequests")
        if requests is None:
            return {}
        if not isinstance(requests, dict) or len(requests) > MAX_QUESTIONS:
            raise InputRefused(server, f"Server '{server}' asked for input in an invalid form.")
        answers: dict[str, Any] = {}

        async def ask(key: str, method: str, params: dict[str, Any]) -> None:
            assert caller.ask is not None
            answers[key] = await caller.ask(method, params)

        try:
            # Use one deadline for all input requests: a host may show them as one form or one after another.
            with anyio.fail_after(ASK_S):
                async with anyio.create_task_group() as group:
                    for key, request in requests.items():
                        method = request.get("method") if isinstance(request, dict) else None
                        input_params = request.get("params") if isinstance(request, dict) else None
                        if caller.ask is None or not can_be_asked(caller.capabilities, str(method), input_params):
                            raise InputRefused(
                                server,
                                f"Server '{server}' asks for input ({str(method)[:MAX_QUOTED_CHARS]}) in the middle "
                                "of this call, which this host does not offer. The call has no result.",
                            )
                        group.start_soon(ask, key, str(method), input_params if isinstance(input_params, dict) else {})
        except TimeoutError:
            raise InputRefused(server, f"Server '{server}' asked for input, and no answer came in time.") from None
        except ExceptionGroup as group_error:
            refusals, unexpected = group_error.split((RpcError, InputRefused))
            if refusals is None or unexpected is not None:
                raise
            # The first refusal has cancelled the other input requests, because the call needs all answers.
            first = refusals.exceptions[0]
            if isinstance(first, InputRefused):
                raise first from None
            raise InputRefused(server, f"Server '{server}' asked for input, which the host refused: {first}") from None
        # Return the answers in the order of the input requests, not in the order in which they arrived.
        return {key: answers[key] for key in requests}

    def _refusal_reason(self, link: UpstreamLink, caller: Caller, refused: list[str]) -> str:
        what = (
            f"During this call server '{link.server}' asked for input from the user ({refused[0]}), which was refused: "
        )
        if caller.modern:
            version = link.session.protocol_version if link.session is not None else "an earlier version"
            return (
                f"{what}it speaks MCP {version}, in which a server asks in the middle of a call, and this host "
                f"speaks {caller.version}, in which a call ends with its questions. The gateway "
                "cannot translate between the two."
            )
        if not link.elicitation:
            return f"{what}its entry in the configuration does not set `elicitation: true`."
        return f"{what}this host does not answer questions during a call."


def _leave_out_connection(params: dict[str, Any]) -> None:
    """Remove the progress token and the members that MCP defines from `_meta`; other members and the trace remain."""
    meta = params.pop("_meta")
    # Fast path: in most requests, `_meta` has only members about the connection.
    if isinstance(meta, dict) and not _CONNECTION_MEMBERS.issuperset(meta):
        remaining = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(META)}
        if remaining:
            params["_meta"] = remaining


def _concerns_app(server: str, method: str, params: Mapping[str, Any], caller: Caller) -> bool:
    """Return whether a request is for an app (an extension of MCP), or for a tool that has an app."""
    if method == "tools/call":
        wrapper = caller.view.catalog.by_tool.get((server, params["name"]))
        return wrapper is not None and wrapper.app.has_app
    return method == "resources/read" and str(params.get("uri")).startswith(UI_PREFIX)


def _declared_capabilities(caller: Caller) -> Mapping[str, Any]:
    """Return the capabilities to declare to an upstream for a caller.

    For a caller with a session, these are only the capabilities for input requests, which the gateway can translate.
    """
    capabilities = caller.capabilities
    if not capabilities or caller.modern:
        return capabilities
    return {name: capabilities[name] for name in QUESTIONS.values() if name in capabilities}
