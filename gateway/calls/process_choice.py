"""Choose the process of a server with `instances` for a call, and ask its host for the folder in which it runs.

A host with a session is asked with a request during the call, and its answer is valid until it announces a change. A
host that speaks 2026-07-28 has no session: the call ends with the question, and the host repeats it with its roots. The
state of later rounds contains the chosen root, because the repeated request contains only the answers of its round.

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
from gateway.upstream.sandbox_rules import is_below

_METHOD: Final = "roots/list"
_KEY: Final = "roots"
_PURPOSE: Final = "typegate: root of a process"
_ANSWERS: Final = frozenset({"inputResponses", "requestState"})
# The methods whose results may be questions. Source: MCP 2026-07-28, "Multi Round-Trip Requests".
_ASKING: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
# Hosts answer from memory. The call itself is limited by `callTimeout`, which has not begun yet.
_ASK_S: Final = 30.0
# The maximum length of a path on Linux, in bytes.
_MAX_PATH: Final = 4_096

Binding = Callable[[], tuple[str, ...]]


class StateRefused(RpcError):
    """A request state was issued for another request or another caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOfCaller:
    """The process that a call goes to.

    Attributes:
        owner: The session or caller, and the root.
        params: The params without the answer to the question about roots.
        binding: The values that the state of the next round is bound to.
        question: The result that asks the host for its roots; None if the process is known.
        link: The link to a process that runs already, for a request that cannot be answered with a question.
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
        """Return the process for a request, or the question that its host has to answer first.

        Args:
            shared: The link that lists the server.
            binding: Returns the values that a request state is bound to.

        Raises:
            UpstreamUnavailable: The host has no root, or none in which the process may run.
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
        if method not in _ASKING:
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
        """Return the process in the root that a request without a session contains, or the question for it."""
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
        """Add the root to the state of a question of the server, so that the answer reaches the same process."""
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
    """Return the roots of a host with a session, and ask the host for them if they are not known.

    Raises:
        UpstreamUnavailable: The host does not declare roots, or does not answer.
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
    """Return the URI of the first root in an answer to `roots/list`, the only one that is used."""
    roots = answer.get("roots") if isinstance(answer, Mapping) else None
    first = roots[0] if isinstance(roots, list) and roots else None
    uri = first.get("uri") if isinstance(first, Mapping) else None
    return (uri,) if isinstance(uri, str) else ()


async def _permitted_root(server: str, config: StdioConfig, uris: tuple[str, ...]) -> str:
    """Return the folder of the first root, if the process may run there.

    Raises:
        UpstreamUnavailable: There is no root, or it is not such a folder.
    """
    if not uris:
        raise _root_error(server, "the host has no roots")
    path = _path_of(uris[0])
    if path is None:
        raise _root_error(server, "the first root of the host is not a folder of this machine (file:///…)")
    # In a thread: a folder may be on the network.
    return await anyio.to_thread.run_sync(_check_folder, server, path, config.allowed_roots)


def _path_of(uri: str) -> str | None:
    """Return the absolute path that a file URI names; None if it names none. Source: RFC 8089."""
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
        UpstreamUnavailable: It is not in an allowed folder, or does not exist.
    """
    quoted = path[:MAX_QUOTED_CHARS]
    try:
        real = os.path.realpath(path)
        # Checked first, so that a caller does not learn what exists elsewhere.
        if not is_below(real, map(os.path.realpath, allowed)):
            raise _root_error(server, f"its first root, {quoted}, is in none of the folders of `allowedRoots`")
        if Path(real).is_dir():
            return real
    except (OSError, ValueError):
        pass
    raise _root_error(server, f"its first root, {quoted}, is not a folder")
