"""The caller of one request, with every way back to it while the request runs."""

from __future__ import annotations

from gateway.calls.context import Caller
from gateway.downstream.messages import McpRequest
from gateway.downstream.sessions import Emit
from gateway.protocol import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL_KEY,
    LOG_LEVELS,
    VERSION_KEY,
)
from gateway.upstream.request_callbacks import OnParams
from registry.views.view import View


def caller_of(request: McpRequest, view: View, *, in_pieces: bool = False) -> Caller:
    """Return the caller of a request.

    Args:
        request: The request.
        view: What it sees.
        in_pieces: It may get a large result before all of it is there.
    """
    params, session = request.params, request.session
    results = request.results if in_pieces else None
    meta = params.get("_meta")
    if type(meta) is not dict:
        meta = {}
    token = meta.get("progressToken")
    on_progress = None if token is None else _progress(request.emit, token)
    if session is None:
        level, capabilities = meta.get(LOG_LEVEL_KEY), meta.get(CAPABILITIES_KEY)
        return Caller(
            principal=request.principal,
            account=request.account,
            view=view,
            version=meta[VERSION_KEY] if request.modern else HANDSHAKE_VERSIONS[-1],
            request_id=request.id,
            capabilities=capabilities if type(capabilities) is dict else {},
            answers="inputResponses" in params or "requestState" in params,
            log_level=None if level is None or level not in LOG_LEVELS else level,
            on_progress=on_progress,
            results=results,
            on_log=None if level is None else request.log,
            trace=request.trace,
            peer=request.peer,
            client_info=meta.get(CLIENT_INFO_KEY),
        )
    return Caller(
        principal=request.principal,
        account=request.account,
        view=view,
        version=session.version,
        request_id=request.id,
        owner=session,
        session_id=session.id,
        host=session.host,
        capabilities=session.capabilities,
        log_level=session.log_level,
        on_progress=on_progress,
        results=results,
        on_log=None if session.log_level is None else request.log,
        on_pause=request.pause,
        ask=request.ask,
        found=request.list_found,
        trace=request.trace,
        peer=request.peer,
    )


def _progress(emit: Emit, token: object) -> OnParams | None:
    """What takes the progress of a request; None where its token is none."""
    # JSON has no booleans among its numbers; Python does.
    if not isinstance(token, str | int) or isinstance(token, bool):
        return None
    method = "notifications/progress"
    return lambda params: emit({"jsonrpc": "2.0", "method": method, "params": {**params, "progressToken": token}})
