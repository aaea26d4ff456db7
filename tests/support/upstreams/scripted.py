"""The behaviour of a scripted upstream for any transport: a JSON script in, a JSONL record out, without an SDK.

A script is an object of these members, all optional:

tools        raw tool objects, listed as they are; left out: one sound definition per built-in behaviour
behaviours   tool name -> behaviour name, or {"kind": behaviour, "with": its arguments}
modern       true: also speaks 2026-07-28 (`server/discover`); false: answers -32601 to it
handshake    false: refuses `initialize`
list_changed whether `notifications/tools/list_changed` is declared
answers      method -> result object, for methods that are not built in
unannounced  lists of tools: whenever a stream of announcements opens, the next one is listed without an announcement
stream_s     over HTTP, such streams end after this many seconds
ttl_ms, scope, instructions, capabilities, server_info
faults       see `PROCESS_FAULTS`; every behaviour is a fault too: {"error": {"code": -32000}} makes every
             tools/call end so; "calls": n limits it to the first n, "on": [methods] moves it elsewhere

A tool echoes if its name is not a behaviour and the script assigns none.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
META = "io.modelcontextprotocol/"

PROCESS_FAULTS = (
    "exit_at_start",  # exit code, or true for 1
    "silent",  # true, or a list of methods: received, never answered
    "garbage_at_start",  # stdio: banner lines on stdout at the start and before each answer
    "stderr_flood",  # stdio: number of bytes on stderr at the start
    "cursor_loop",  # "same" | "new": tools/list never ends
    "page_size",  # tools in a page
    "spawn_grandchild",  # starts `sleep 1000` and records its pid
    "ignore_eof",  # stdio: continues after the end of input and after SIGTERM
    "server_requests",  # number of sampling/createMessage requests before each answer to tools/call
    "request_roots",  # asks for roots/list after notifications/initialized
)
WRECKS = {
    # either transport
    "raw": "the given raw line (or body) instead of an answer",
    "wrong_ids": "answers under ids nobody used, then the right one twice (right: false leaves that out)",
    # stdio
    "half_line": "half of the answer; its line ends when the next message comes (glue: true: never)",
    "invalid_utf8": "a line of bytes that are no UTF-8, then the answer",
    "endless_line": "a line of so many bytes, then the answer",
    "garbage": "lines that are no JSON-RPC, then the answer",
    # HTTP
    "status": "code, body, headers, content_type",
    "unauthorized": "401 with WWW-Authenticate",
    "redirect": "code (307), to",
    "half_body": "a Content-Length of twice the body, then the end",
    "reset": "a TCP reset instead of an answer",
    "slow_bytes": "the answer byte by byte, delay_s apart",
    "gzip_bomb": "so many zero bytes under Content-Encoding: gzip",
    "drop_sse": "an SSE answer cut before its event ends",
    "wrong_content_type": "the answer as text/html",
    "not_json": "application/json that is none",
}
BEHAVIOURS = {
    "echo": {},
    "sleep": {"seconds": {"type": "number"}},
    "progress": {"count": {"type": "integer"}, "interval_s": {"type": "number"}},
    "log": {"data": {}},
    "error": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
    "exit": {"code": {"type": "integer"}},
    "big": {"bytes": {"type": "integer"}},
    "result": {"result": {"type": "object"}},
    "retool": {"tools": {"type": "array", "items": {"type": "object"}}},
    "cancelled": {},
    "hang": {},
    "forget": {},
    "elicit": {"message": {"type": "string"}},
    "notification_storm": {"count": {"type": "integer"}, "method": {"type": "string"}},
    **{wreck: {} for wreck in WRECKS},
}
# The meaning of a bare integer for these faults; for all others it is the number of affected calls.
_AMOUNTS = {
    "status": "code",
    "notification_storm": "count",
    "endless_line": "bytes",
    "big": "bytes",
    "gzip_bomb": "bytes",
    "sleep": "seconds",
}

Emit = Callable[[dict[str, Any]], Awaitable[None]]


class Failure(Exception):
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wreck:
    """A fault that only the transport can commit; `message` is the answer it spoils."""

    kind: str
    given: dict[str, Any]
    message: dict[str, Any]


class Record:
    """Appends events to a file, each as one line in one write."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **fields})
        os.write(self._fd, line.encode() + b"\n")


def builtin_tools(*names: str) -> list[dict[str, Any]]:
    """Return sound definitions of the named behaviours, of all when none is named."""
    return [
        {
            "name": name,
            "title": name.replace("_", " ").capitalize(),
            "description": f"Scripted behaviour: {WRECKS.get(name, name)}.",
            "inputSchema": {"type": "object", "properties": BEHAVIOURS[name]},
        }
        for name in names or BEHAVIOURS
    ]


def text_result(text: str, **more: Any) -> dict[str, Any]:
    """Return a tool result of one text block."""
    return {"content": [{"type": "text", "text": text}], **more}


@dataclass(slots=True, kw_only=True)
class Upstream:
    """One scripted server: its tools, its faults, and everything it was asked."""

    script: dict[str, Any]
    record: Record
    broadcast: Callable[[str], Awaitable[None]]  # sends a notification to every listener
    forget: Callable[[], None] = lambda: None
    tools: list[Any] = field(init=False)
    _struck: dict[str, int] = field(default_factory=dict)
    _waiting: dict[Any, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _question_count: int = 0

    def __post_init__(self) -> None:
        self.tools = self.script.get("tools", builtin_tools())
        self.record.write("started")
        if self.faults.get("spawn_grandchild"):
            quiet = subprocess.DEVNULL
            child = subprocess.Popen(["sleep", "1000"], stdin=quiet, stdout=quiet, stderr=quiet)
            self.record.write("grandchild", grandchild=child.pid)
        if code := self.faults.get("exit_at_start"):
            sys.stderr.write("scripted upstream: exit at start\n")
            os._exit(int(code))

    @property
    def faults(self) -> dict[str, Any]:
        """The faults of the script."""
        return self.script.get("faults", {})

    async def retool(self, tools: list[Any]) -> None:
        """Change the list and say so to every listener."""
        self.tools = tools
        await self.broadcast("notifications/tools/list_changed")

    def opening(self) -> None:
        """Change the list as if that had happened right before a stream of announcements opens."""
        if self.script.get("unannounced"):
            self.tools = self.script["unannounced"].pop(0)

    async def answer(self, message: dict[str, Any], emit: Emit) -> dict[str, Any] | Wreck | None:
        """Do what a message asks for; None when nothing is to be answered."""
        method, params = message.get("method"), message.get("params")
        if method is None:
            self.record.write("response", message=message)
            waiting = self._waiting.pop(message.get("id"), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return None
        if "id" not in message:
            self.record.write("notification", method=method, params=params)
            if method == "notifications/initialized" and self.faults.get("request_roots"):
                await emit({"jsonrpc": "2.0", "id": "roots-1", "method": "roots/list"})
            return None
        call = params if method == "tools/call" and isinstance(params, dict) else None
        if call is not None:
            fields = {
                "name": call.get("name"),
                "arguments": call.get("arguments"),
                "_meta": call.get("_meta"),
            }
            self.record.write("call", id=message["id"], params=params, **fields)
        else:
            self.record.write("request", id=message["id"], method=method, params=params)
        silent = self.faults.get("silent")
        if silent is True or (isinstance(silent, list) and method in silent):
            return None
        try:
            kind, given = self._fault(method) or (None, {})
            if call is not None:
                kind, given = (kind, given) if kind else self._behaviour(call)
                for _ in range(self.faults.get("server_requests", 0)):
                    await emit(self._request("sampling/createMessage", {"messages": [], "maxTokens": 1}))
            if kind is None:
                result = self._plain(method, params if isinstance(params, dict) else {})
            else:
                outcome = await self._behave(kind, given, message, emit)
                if isinstance(outcome, Wreck):
                    return outcome
                result = outcome
        except Failure as failure:
            return {"jsonrpc": "2.0", "id": message["id"], "error": failure.error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _fault(self, method: str) -> tuple[str, dict[str, Any]] | None:
        for kind, value in self.faults.items():
            if kind not in BEHAVIOURS or not value:
                continue
            given = dict(value) if isinstance(value, dict) else {}
            if isinstance(value, int) and not isinstance(value, bool):
                given = {_AMOUNTS.get(kind, "calls"): value}
            if method not in given.pop("on", ["tools/call"]):
                continue
            left = given.pop("calls", None)
            if left is not None and self._struck.get(kind, 0) >= left:
                continue
            self._struck[kind] = self._struck.get(kind, 0) + 1
            return kind, given
        return None

    def _behaviour(self, call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        name, arguments = call.get("name"), call.get("arguments")
        if not any(isinstance(tool, dict) and tool.get("name") == name for tool in self.tools):
            raise Failure(-32602, f"Unknown tool: {name}")
        assigned = self.script.get("behaviours", {}).get(name, name if name in BEHAVIOURS else "echo")
        if isinstance(assigned, dict):
            return assigned["kind"], assigned.get("with", {})
        return assigned, arguments if isinstance(arguments, dict) else {}

    async def _behave(
        self, kind: str, given: dict[str, Any], message: dict[str, Any], emit: Emit
    ) -> dict[str, Any] | Wreck:
        params = message.get("params") or {}
        meta = params.get("_meta") or {}
        arguments = params.get("arguments")
        echo = text_result(json.dumps(arguments), structuredContent=arguments)
        if not isinstance(arguments, dict):
            del echo["structuredContent"]
        match kind:
            case "sleep":
                await asyncio.sleep(given.get("seconds", 1))
            case "hang" | "cancelled":
                await asyncio.Event().wait()
            case "exit":
                os._exit(given.get("code", 3))
            case "error":
                raise Failure(given.get("code", -32000), given.get("message", "scripted"), given.get("data"))
            case "big":
                return self._stamp(text_result("x" * given.get("bytes", 1_000_000)), params)
            case "result":
                return given.get("result", {})
            case "announce":
                await emit(given["message"])
            case "retool":
                await self.retool(given.get("tools", []))
            case "forget":
                self.forget()
            case "progress":
                count = given.get("count", 3)
                for step in range(1, count + 1):
                    token = {"progressToken": meta["progressToken"]} if "progressToken" in meta else {}
                    step_of = {**token, "progress": step, "total": count}
                    await emit(notification("notifications/progress", step_of))
                    await asyncio.sleep(given.get("interval_s", 0))
            case "log":
                data = {"level": "info", "logger": "scripted", "data": given.get("data", "hello")}
                await emit(notification("notifications/message", data))
            case "notification_storm":
                method = given.get("method", "notifications/tools/list_changed")
                for step in range(given.get("count", 100_000)):
                    await emit(notification(method, {"level": "info", "data": step} if "message" in method else None))
            case "elicit":
                return await self._elicit(given, params, emit)
            case _ if kind in WRECKS:
                if "line" in given:
                    given = {**given, "line": str(given["line"]).replace("@id", json.dumps(message["id"]))}
                real = {"jsonrpc": "2.0", "id": message["id"], "result": self._stamp(echo, params)}
                return Wreck(kind=kind, given=given, message=real)
        return self._stamp(echo, params)

    async def _elicit(self, given: dict[str, Any], params: dict[str, Any], emit: Emit) -> dict[str, Any]:
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        question = {"mode": "form", "message": given.get("message", "Who?"), "requestedSchema": form}
        if not _is_modern(params):
            request = self._request("elicitation/create", question)
            waiting = self._waiting[request["id"]] = asyncio.get_running_loop().create_future()
            await emit(request)
            reply = await waiting
            if "error" in reply:
                return text_result(f"refused: {json.dumps(reply['error'])}", isError=True)
            return text_result(json.dumps(reply["result"]))
        replies = params.get("inputResponses")
        if replies is None:
            wanted = {"who": {"method": "elicitation/create", "params": question}}
            state = "opaque-état-1"
            return {"resultType": "input_required", "inputRequests": wanted, "requestState": state}
        return self._stamp(text_result(json.dumps([replies, params.get("requestState")])), params)

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._question_count += 1
        return {"jsonrpc": "2.0", "id": f"asked-{self._question_count}", "method": method, "params": params}

    def _plain(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        modern = bool(self.script.get("modern"))
        if _is_modern(params) and (not modern or _version(params) != MODERN):
            if not modern:
                raise Failure(-32601, "Method not found")
            data = {"supported": [MODERN], "requested": _version(params)}
            raise Failure(-32022, "Unsupported protocol version", data)
        capabilities = {"tools": {"listChanged": bool(self.script.get("list_changed"))}}
        about = {"capabilities": capabilities | self.script.get("capabilities", {})}
        if "instructions" in self.script:
            about["instructions"] = self.script["instructions"]
        info = self.script.get("server_info", {"name": "scripted", "version": "1.0.0"})
        match method:
            case "initialize" if self.script.get("handshake", True):
                requested_version = params.get("protocolVersion")
                return {
                    **about,
                    "protocolVersion": requested_version if requested_version in HANDSHAKE else HANDSHAKE[-1],
                    "serverInfo": info,
                }
            case "server/discover" if modern:
                return self._stamp({**about, "supportedVersions": [MODERN]}, params, cached=True)
            case "ping":
                return {}
            case "tools/list":
                return self._stamp(self._page(params.get("cursor")), params, cached=True)
            case _ if method in self.script.get("answers", {}):
                return self.script["answers"][method]
        raise Failure(-32601, "Method not found")

    def _page(self, cursor: str | None) -> dict[str, Any]:
        if loop := self.faults.get("cursor_loop"):
            return {
                "tools": self.tools,
                "nextCursor": "again" if loop == "same" else f"c{time.monotonic_ns()}",
            }
        size = self.faults.get("page_size") or len(self.tools) or 1
        start = int(cursor or 0)
        page: dict[str, Any] = {"tools": self.tools[start : start + size]}
        if start + size < len(self.tools):
            page["nextCursor"] = str(start + size)
        return page

    def _stamp(self, result: dict[str, Any], params: dict[str, Any], *, cached: bool = False) -> dict[str, Any]:
        if not _is_modern(params):
            return result
        stamped = {**result, "resultType": "complete"}
        if cached:
            stamped |= {
                "ttlMs": self.script.get("ttl_ms", 0),
                "cacheScope": self.script.get("scope", "public"),
            }
        return stamped


def notification(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a notification message."""
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def acknowledged(listen: dict[str, Any]) -> dict[str, Any]:
    """Return the first frame of a subscriptions/listen stream."""
    wanted = (listen.get("params") or {}).get("notifications", {})
    known = ("toolsListChanged", "resourceSubscriptions", "taskIds")
    honoured = {key: value for key, value in wanted.items() if key in known and value}
    params = {"notifications": honoured, "_meta": {META + "subscriptionId": listen["id"]}}
    return notification("notifications/subscriptions/acknowledged", params)


def subscribed(method: str, listen_id: object) -> dict[str, Any]:
    """Return a notification that belongs to a subscriptions/listen stream."""
    return notification(method, {"_meta": {META + "subscriptionId": listen_id}})


def _version(params: dict[str, Any]) -> object:
    return (params.get("_meta") or {}).get(META + "protocolVersion")


def _is_modern(params: dict[str, Any]) -> bool:
    return _version(params) is not None
