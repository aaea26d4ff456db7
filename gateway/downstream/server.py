"""Answer MCP requests in both eras; what carries them is somebody else's business."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio

from gateway import wire
from gateway.access.principal import Principal
from gateway.calls.context import Caller
from gateway.calls.pipeline import CallPipeline
from gateway.downstream.changes import Announcer
from gateway.downstream.views import SERVER_INFO, ToolViews
from gateway.eras import (
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    SUBSCRIPTION_KEY,
    negotiate,
)
from gateway.errors import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError, error_result
from registry.store import Registry

log = logging.getLogger(__name__)

CAPABILITIES: Final = {"tools": {"listChanged": True}}
_INSTRUCTIONS: Final = (
    "This server is a gateway: it offers the tools of several servers. A typed tool is named server__tool and "
    "takes its parameters at the top level; call it directly. If a typed name is refused in mid-conversation, "
    "use invoke_tool with server, tool and arguments, where every parameter goes inside arguments."
)
_MAX_LISTENERS: Final = 1024

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request from a caller, whatever carried it.

    Attributes:
        id: The JSON-RPC id, echoed as it came.
        emit: Sends a notification that belongs to this request.
    """

    id: str | int | float
    method: str
    params: dict[str, Any]
    modern: bool
    principal: Principal
    emit: Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response as bytes, and the code if it is an error."""

    body: bytes
    error_code: int | None = None


class McpServer:
    """The gateway as an MCP server."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CallPipeline,
        announcer: Announcer,
        *,
        shared: bool,
        settle: Callable[[], Any],
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._announcer = announcer
        self._shared = shared
        self._settle = settle
        self._views = ToolViews()
        self._listeners = 0
        self._closing = anyio.Event()

    @property
    def announcer(self) -> Announcer:
        """Tells of changes."""
        return self._announcer

    def close_streams(self) -> None:
        """End every listen stream with its proper result."""
        self._closing.set()

    @property
    def closing(self) -> anyio.Event:
        """Set once long-lived streams have to end."""
        return self._closing

    async def answer(self, request: Request) -> Answer:
        """Answer any request; every failure becomes an error object."""
        try:
            result = await self._result(request)
            return Answer(body=_envelope(request.id, b'"result":' + result))
        except RpcError as error:
            return error_answer(request.id, error)
        except wire.MalformedJson:
            return error_answer(request.id, RpcError(INTERNAL_ERROR, "the result cannot be expressed as JSON"))
        except Exception:  # boundary: no caller sees our internals
            log.exception("a request failed unexpectedly")
            return error_answer(request.id, RpcError(INTERNAL_ERROR, "Internal error"))

    def given_up(self, request: Request) -> Answer:
        """Answer a request that the end of the process cuts off."""
        text = "The gateway is shutting down and no answer came in time: the outcome of this request is unknown."
        if request.method != "tools/call":
            return error_answer(request.id, RpcError(INTERNAL_ERROR, text))
        result = error_result(text)
        if request.modern:
            _stamp(result)
        return Answer(body=_envelope(request.id, b'"result":' + wire.dumps(result)))

    async def _result(self, request: Request) -> bytes:
        method = request.method
        if method == "tools/call":
            return await self._call(request)
        if method == "tools/list":
            return await self._list(request)
        if request.modern:
            if method == "server/discover":
                return self._discover()
            if method == "subscriptions/listen":
                return await self._listen(request)
        elif method == "initialize":
            return self._initialize(request.params)
        elif method == "ping":
            return b"{}"
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:200]}")

    async def _call(self, request: Request) -> bytes:
        meta = request.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        on_progress = None
        if isinstance(token, str | int) and not isinstance(token, bool):

            def on_progress(params: dict[str, Any]) -> None:
                params = {**params, "progressToken": token}
                request.emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

        caller = Caller(principal=request.principal, modern=request.modern, on_progress=on_progress)
        result = await self._pipeline.call(request.params, caller)
        if request.modern:
            _stamp(result)
        try:
            return wire.dumps(result)
        except wire.MalformedJson:
            # Not a JSON-RPC error: hosts would call again what has run already.
            unspeakable = error_result("The call ran, but its result is nested too deeply to be passed on.")
            if request.modern:
                _stamp(unspeakable)
            return wire.dumps(unspeakable)

    async def _list(self, request: Request) -> bytes:
        if request.params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "Invalid cursor: the list has one page")
        await self._settle()
        return self._views.result(self._registry.catalog, modern=request.modern, shared=self._shared)

    def _initialize(self, params: dict[str, Any]) -> bytes:
        if not isinstance(params.get("protocolVersion"), str):
            raise RpcError(INVALID_PARAMS, "params.protocolVersion must be a string")
        return wire.dumps(
            {
                "protocolVersion": negotiate(params["protocolVersion"]),
                "capabilities": CAPABILITIES,
                "serverInfo": SERVER_INFO,
                "instructions": _INSTRUCTIONS,
            }
        )

    def _discover(self) -> bytes:
        result = {
            "supportedVersions": [*MODERN_VERSIONS],
            "capabilities": CAPABILITIES,
            "instructions": _INSTRUCTIONS,
            "ttlMs": 3_600_000,
            "cacheScope": "public" if self._shared else "private",
        }
        _stamp(result)
        return wire.dumps(result)

    async def _listen(self, request: Request) -> bytes:
        """Serve `subscriptions/listen` (MCP 2026-07-28, "Subscriptions") until it is cancelled or we close."""
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "params.notifications must be an object")
        if self._listeners >= _MAX_LISTENERS:
            raise RpcError(INTERNAL_ERROR, "Too many subscriptions are open")
        tools = wanted.get("toolsListChanged") is True
        meta = {SUBSCRIPTION_KEY: request.id}

        def changed() -> None:
            request.emit({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}})

        self._listeners += 1
        ended = self._announcer.listen(changed) if tools else lambda: None
        try:
            request.emit(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/subscriptions/acknowledged",
                    "params": {"notifications": {"toolsListChanged": True} if tools else {}, "_meta": meta},
                }
            )
            await self._closing.wait()
        finally:
            ended()
            self._listeners -= 1
        return wire.dumps({"resultType": "complete", "_meta": meta})


def parse_request(message: object) -> tuple[str | int | float, str, dict[str, Any]]:
    """Take a JSON-RPC request apart.

    Source: JSON-RPC 2.0, section 4 "Request object"; MCP forbids a null id.

    Raises:
        RpcError: It is not a request.
    """
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")
    method, request_id, params = message.get("method"), message.get("id"), message.get("params", {})
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "Not a JSON-RPC 2.0 request")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | float):
        raise RpcError(INVALID_REQUEST, "The id must be a string or a number")
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be an object")
    return request_id, method, params


def error_answer(request_id: str | int | float | None, error: RpcError) -> Answer:
    """An error response."""
    try:
        body = wire.dumps(error.to_object())
    except wire.MalformedJson:
        body = wire.dumps({"code": error.code, "message": error.message})
    return Answer(body=_envelope(request_id, b'"error":' + body), error_code=error.code)


def _envelope(request_id: str | int | float | None, rest: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + wire.dumps(request_id) + b"," + rest + b"}"


def _stamp(result: dict[str, Any]) -> None:
    result.setdefault("resultType", "complete")
    meta = result.get("_meta")
    result["_meta"] = {**(meta if isinstance(meta, dict) else {}), SERVER_INFO_KEY: SERVER_INFO}
