"""Whether the headers of a request say the same as its body."""

from __future__ import annotations

from typing import Any

from gateway.downstream.http.callers import Addressed
from gateway.downstream.http.request import RequestHead
from gateway.errors import HEADER_MISMATCH, RpcError
from gateway.protocol import CAPABILITIES_KEY, NAMED_BY, VERSION_KEY, check_envelope, is_modern
from registry.views.view import View


def check_agreement(said: Addressed, method: str, params: dict[str, Any]) -> None:
    """Headers against body (MCP 2026-07-28, Streamable HTTP, "Server Validation").

    Args:
        said: What the headers say.
        method: What the body says.
        params: Further what the body says.

    Raises:
        RpcError: They disagree, or the envelope is unsound.
    """
    meta = params.get("_meta")
    if (
        said.spoken
        and said.method == method
        and type(meta) is dict
        and meta.get(VERSION_KEY) == said.version
        and type(meta.get(CAPABILITIES_KEY)) is dict
    ):
        named = params.get(NAMED_BY.get(method, ""))
        if named is None or named == said.name:
            return
    # Something is wrong, or about to be so in another version; what it is, and in which order it is told:
    claimed = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if isinstance(claimed, str) and said.version != claimed:
        raise RpcError(HEADER_MISMATCH, "MCP-Protocol-Version does not match the request's protocol version")
    modern = is_modern(params)  # without an envelope the request is refused for that, below
    if modern and said.method != method:
        raise RpcError(HEADER_MISMATCH, "Mcp-Method does not match the request's method")
    key = NAMED_BY.get(method)
    named = params.get(key) if key is not None and modern else None
    if named is not None and said.name != named:
        raise RpcError(HEADER_MISMATCH, f"Mcp-Name does not match params.{key}")
    check_envelope(params)


def check_param_headers(head: RequestHead, view: View, params: dict[str, Any]) -> None:
    """The headers that mirror arguments of a call (MCP 2026-07-28, "Tools", "x-mcp-header").

    Raises:
        RpcError: One is missing, or says something else.
    """
    name, arguments = params.get("name"), params.get("arguments")
    entry = view.entry(name) if isinstance(name, str) else None
    if entry is None or not entry.wrapper.headers:
        return
    # Late: the SDK is a tenth of a second to import, and few tools have such headers.
    from mcp.shared.inbound import validate_mcp_param_headers

    # What a caller is shown decides which headers it has to send: a dialect may leave the annotation out.
    arguments = arguments if isinstance(arguments, dict) else {}
    rejection = validate_mcp_param_headers(entry.definition["inputSchema"], arguments, head.texts())
    if rejection is not None:
        raise RpcError(rejection.code, rejection.message, rejection.data)
