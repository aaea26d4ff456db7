"""Choose the process for a call to a server with `instances`, which runs one process per session or caller.

If the server's entry uses roots, each process runs in a folder of the host, called a root. The gateway asks the
host for its roots with `roots/list`. A host with a session receives this request during the call, and its answer is
valid until the host announces a change. A host that speaks 2026-07-28 has no session. It receives the request as the
result of the call, and repeats the call with its answer. If the server then asks for input too, the host repeats the
call again, but now with the answers to the server only. Therefore the request state of later rounds contains the root.

Sources: MCP 2025-11-25, "Roots"; MCP 2026-07-28, "Patterns", "Multi Round-Trip Requests".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from gateway.access.signing import BadSignature, Signer
from gateway.calls.caller import Caller
from gateway.config.upstream_types.stdio_config import StdioConfig
from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_PARAMS, MAX_QUOTED_CHARS, RpcError, UpstreamUnavailable
from gateway.protocol.versions import can_be_asked
from gateway.upstream.caller_links import Instance, UserLinks
from gateway.upstream.link import UpstreamLink
from gateway.upstream.sandbox import is_below

_METHOD: Final = "roots/list"
_KEY: Final = "roots"
_PURPOSE: Final = "typegate: root of a process"
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# The methods whose results may be input requests. Source: MCP 2026-07-28, "Multi Round-Trip Requests".
_RESUMABLE_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
# Time limit for `roots/list`, which hosts answer from memory. `callTimeout` begins only when the call is sent.
_ASK_S: Final = 30.0
# The maximum length of a path on Linux, in bytes.
_MAX_PATH: Final = 4_096

Binding = Callable[[], tuple[str, ...]]


class StateRefused(RpcError):
    """The request state of a request was issued for another request or another caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOfCaller:
    """The process that receives a call.

    Attributes:
        owner: The session or caller that owns the process, and the root in which it runs.
        params: The params without the host's answer to `roots/list`.
        binding: Returns the values to which the next request state is bound.
        question: The result that asks the host for its roots; None if the process is known.
        link: The link to a process that is already running, if the method's result cannot be an input request.
    """

    owner: Instance
    params: dict[str, Any]
    binding: Binding
    question: dict[str, Any] | None = None
    link: UpstreamLink | None = None


class ProcessesOfCallers:
    """Chooses processes by session, caller and root."""

    def __init__(self, users: UserLinks, signer: Signer) -> None:
        self._users = users
        self._signer = signer

    async def choose(
        self, shared: UpstreamLink, method: str, params: dict[str, Any], caller: Caller, *, binding: Binding
    ) -> ProcessOfCaller:
        """Return the process for a request, or the input request that the host has to answer first.

        Args:
            shared: The link that provides the server's tool list for all callers.
            binding: Returns the values to which a request state is bound.

        Raises:
            UpstreamUnavailable: The host reported no root, the process may not run in the host's root, or no process
                runs yet for a method whose result cannot be an input request.
            StateRefused: The request state was not issued for this request.
        """
        config = shared.config
        assert isinstance(config, StdioConfig)
        session_id = caller.session_id if config.instances == "session" else None
        owner = Instance(principal=caller.principal, account=caller.account, session_id=session_id or "")
        if not config.uses_roots:
            return ProcessOfCaller(owner=owner, params=params, binding=binding)
        if not caller.modern:
            roots = await _roots_of_session(shared.server, caller)
            root = await _permitted_root(shared.server, config, roots)
            return ProcessOfCaller(owner=_in_root(owner, root), params=params, binding=binding)
        if method not in _RESUMABLE_METHODS:
            link = self._users.latest_instance(shared.server, owner)
            if link is None:
                text = f"Not called: no process of '{shared.server}' runs for this caller. Call one of its tools first."
                raise UpstreamUnavailable(shared.server, text)
            return ProcessOfCaller(owner=owner, params=params, binding=binding, link=link)
        return await self._choose_by_answer(shared.server, config, owner, params, caller, binding)

    async def _choose_by_answer(
        self,
        server: str,
        config: StdioConfig,
        owner: Instance,
        params: dict[str, Any],
        caller: Caller,
        binding: Binding,
    ) -> ProcessOfCaller:
        """Return the process for a request without a session, or the result that asks the host for its roots.

        The root is in the request state, or in the host's answer to the gateway's input request.
        """
        signed = params.get("requestState")
        if signed is None:
            if not can_be_asked(caller.capabilities, _METHOD, None):
                raise _root_error(server, "this host does not declare roots")
            question = {
                "resultType": "input_required",
                "inputRequests": {_KEY: {"method": _METHOD, "params": {}}},
                "requestState": self._sign("", None, binding),
            }
            return ProcessOfCaller(owner=owner, params=params, binding=binding, question=question)
        try:
            root, inner = json_bytes.loads(self._signer.verify(str(signed), _PURPOSE, *binding()).encode())
        except BadSignature as error:
            raise StateRefused(INVALID_PARAMS, f"Invalid requestState: {error}") from None
        remaining_params = {name: value for name, value in params.items() if name not in _ANSWERS}
        if not root:
            responses = params.get("inputResponses")
            answer = responses.get(_KEY) if isinstance(responses, dict) else None
            root = await _permitted_root(server, config, _uris_in(answer))
        else:
            if "inputResponses" in params:
                remaining_params["inputResponses"] = params["inputResponses"]
            if inner is not None:
                remaining_params["requestState"] = inner
        return ProcessOfCaller(owner=_in_root(owner, root), params=remaining_params, binding=binding)

    def keep_root(self, result: dict[str, Any], process: ProcessOfCaller) -> None:
        """Add the root to the request state of the server's input request, so that the answer reaches this process."""
        if process.owner.root:
            state = result.get("requestState")
            result["requestState"] = self._sign(process.owner.root, state, process.binding)

    def _sign(self, root: str, state: object, binding: Binding) -> str:
        text = json_bytes.dumps([root, state if isinstance(state, str) else None]).decode()
        return self._signer.sign(text, _PURPOSE, *binding())


def _in_root(owner: Instance, root: str) -> Instance:
    return Instance(principal=owner.principal, account=owner.account, session_id=owner.session_id, root=root)


def _root_error(server: str, reason: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(
        server, f"Not called: '{server}' runs in a folder of the host, and {reason}. Nothing was sent."
    )


async def _roots_of_session(server: str, caller: Caller) -> tuple[str, ...]:
    """Return the roots of a host with a session. Ask the host if its roots are not known.

    Raises:
        UpstreamUnavailable: The host does not declare roots, does not answer in time, or refuses the request.
    """
    host = caller.host
    if host is None or caller.ask is None or not can_be_asked(caller.capabilities, _METHOD, None):
        raise _root_error(server, "this host does not declare roots")
    if host.roots.uris is not None:
        return host.roots.uris
    version = host.roots.version
    try:
        with anyio.fail_after(_ASK_S):
            answer = await caller.ask(_METHOD, {})
    except TimeoutError:
        raise _root_error(server, f"the host did not answer {_METHOD} within {_ASK_S:g} s") from None
    except RpcError as error:
        raise _root_error(server, f"the host refused {_METHOD}: {error.message[:MAX_QUOTED_CHARS]}") from None
    uris = _uris_in(answer)
    host.roots.remember(uris, version)
    return uris


def _uris_in(answer: object) -> tuple[str, ...]:
    """Return the URI of the first root in an answer to `roots/list`; further roots are not used."""
    roots = answer.get("roots") if isinstance(answer, Mapping) else None
    first = roots[0] if isinstance(roots, list) and roots else None
    uri = first.get("uri") if isinstance(first, Mapping) else None
    return (uri,) if isinstance(uri, str) else ()


async def _permitted_root(server: str, config: StdioConfig, uris: tuple[str, ...]) -> str:
    """Return the folder of the first root.

    Raises:
        UpstreamUnavailable: There is no root, or the process may not run in the first root.
    """
    if not uris:
        raise _root_error(server, "the host has no roots")
    path = _path_of(uris[0])
    if path is None:
        raise _root_error(server, "the first root of the host is not a folder of this machine (file:///…)")
    # Run in a thread, because a folder may be on the network.
    return await anyio.to_thread.run_sync(_check_folder, server, path, config.allowed_roots)


def _path_of(uri: str) -> str | None:
    """Return the absolute path that a file URI names; None if the URI names no local path. Source: RFC 8089."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    is_sound = path.startswith("/") and "\0" not in path and len(path) <= _MAX_PATH
    return path if parts.scheme == "file" and parts.netloc in ("", "localhost") and is_sound else None


def _check_folder(server: str, path: str, allowed: list[str]) -> str:
    """Return the real path of a folder.

    Raises:
        UpstreamUnavailable: The path is not in an allowed folder, or is not a folder.
    """
    quoted = path[:MAX_QUOTED_CHARS]
    try:
        real = os.path.realpath(path)
        # Check this before the existence of the folder, so that a caller does not learn which folders exist elsewhere.
        if not is_below(real, map(os.path.realpath, allowed)):
            raise _root_error(server, f"its first root, {quoted}, is in none of the folders of `allowedRoots`")
        if Path(real).is_dir():
            return real
    except (OSError, ValueError):
        pass
    raise _root_error(server, f"its first root, {quoted}, is not a folder")
