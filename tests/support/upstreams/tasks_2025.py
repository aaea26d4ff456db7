"""A server of 2025-11-25 whose tools run only as tasks, each in a different way, over stdio or HTTP.

Its first argument is a file, to which it appends each message that it gets, as one line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RELATED = "io.modelcontextprotocol/related-task"
TOOLS = (
    "plain", "reports", "fails", "refuses", "refuses_late", "withdrawn", "forgotten", "asks", "nested", "at_once",
    "no_task", "slow", "quiet", "odd", "stumbles", "lost", "closes", "large", "wakes", "vanishes", "mute",
    "fails_in_state", "tardy",
)  # fmt: skip
Send = Callable[[dict[str, Any]], None]


class Failure(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class Status(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Server:
    def __init__(self, record: str) -> None:
        self.record = record
        self.lock = threading.Lock()
        self.polls: dict[str, int] = {}
        self.calls: dict[str, dict[str, Any]] = {}
        self.waiting: dict[str, threading.Event] = {}
        self.answers: dict[str, Any] = {}
        self.cancelled: set[str] = set()

    def note(self, message: dict[str, Any]) -> None:
        with self.lock, open(self.record, "a", encoding="utf-8") as file:
            file.write(json.dumps({**message, "at": time.time()}) + "\n")

    def task(self, name: str, status: str, **more: Any) -> dict[str, Any]:
        fields = {"taskId": f"{name}-1", "status": status, "createdAt": "2026-01-01T00:00:00Z"}
        return {**fields, "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 60_000, "pollInterval": 60, **more}

    def answer(self, message: dict[str, Any], send: Send) -> dict[str, Any]:
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            tasks = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": tasks},
                    "serverInfo": {"name": "tasks", "version": "1"}}  # fmt: skip
        if method == "tools/list":
            listed = [
                {"name": name, "description": name, "inputSchema": {"type": "object"},
                 "execution": {"taskSupport": "required", **({"vendor": 1} if name == "plain" else {})}}
                for name in TOOLS
            ]  # fmt: skip
            free = {"name": "free", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}
            return {"tools": [*listed, free]}
        if method == "tools/call":
            return self.call(params, send)
        name = str(params.get("taskId", "")).removesuffix("-1")
        if method == "tasks/get" and name in self.calls:
            return self.get(name, send)
        if method == "tasks/result" and name in self.calls:
            return self.result(name, send)
        if method == "tasks/cancel" and name in self.calls:
            self.cancelled.add(name)
            return self.task(name, "cancelled")
        raise Failure(-32601 if not method.startswith("tasks/") else -32602, f"not known: {method}")

    def call(self, params: dict[str, Any], send: Send) -> dict[str, Any]:
        name = params["name"]
        if name == "free":
            return text("a task" if "task" in params else "no task")
        if "task" not in params:
            raise Failure(-32601, "this tool runs as a task only")
        self.calls[name] = params
        self.polls[name] = 0
        if name == "refuses":
            raise Failure(-32602, "these arguments are wrong")
        if name == "no_task":
            return text("at once, and no task")
        if name == "tardy":
            time.sleep(1.5)
        if name == "closes":
            return {"task": self.task(name, "working", pollInterval=5)}
        if name == "wakes":
            threading.Thread(target=self.wake, args=(send,), daemon=True).start()
            return {"task": self.task(name, "working", pollInterval=20_000)}
        return {"task": self.task(name, "completed" if name == "at_once" else "working")}

    def wake(self, send: Send) -> None:
        time.sleep(0.2)
        self.polls["wakes"] = 9
        send({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": self.task("wakes", "completed")})

    def get(self, name: str, send: Send) -> dict[str, Any]:
        self.polls[name] += 1
        polls = self.polls[name]
        if name == "forgotten" and polls == 2:
            raise Failure(-32602, "Failed to retrieve task: Task not found")
        if name in ("slow", "quiet", "tardy"):
            return self.task(name, "working", **({"statusMessage": f"step {polls // 5}"} if name == "slow" else {}))
        if name == "stumbles" and polls in (1, 2):
            raise Status(503)
        if name == "lost":
            raise Status(404)
        if name == "closes":
            sys.stdout.close()
            raise SystemExit(3)
        if name == "odd":
            states = ["thinking", None, {}, ["working"], 7]
            return {
                **self.task(name, ""),
                "status": states[polls % 5],
                "pollInterval": [None, -1, "x", {}, True][polls % 5],
            }
        if name == "mute":
            return self.task(name, "input_required")
        if name == "reports":
            meta = {RELATED: {"taskId": "reports-1"}}
            token = (self.calls[name].get("_meta") or {}).get("progressToken")
            progress = {"progressToken": token, "progress": polls, "total": 3, "_meta": meta}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        if polls < 3:
            return self.task(name, "working")
        if name == "asks":
            return self.task(name, "working" if name in self.answers else "input_required")
        if name == "nested":
            return {"task": self.task(name, "completed")}
        status = {
            "fails": "failed",
            "fails_in_state": "failed",
            "refuses_late": "failed",
            "withdrawn": "cancelled",
        }.get(name, "completed")
        more = {"statusMessage": "the disk is full"} if status != "completed" else {}
        return self.task(name, status, **more)

    def result(self, name: str, send: Send) -> dict[str, Any]:
        if name == "refuses_late":
            raise Failure(-32603, "the tool broke")
        if name == "asks":
            ask = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"it": {"type": "string"}}}}
            meta = {RELATED: {"taskId": "asks-1"}}
            event = self.waiting["ask-1"] = threading.Event()
            send({"jsonrpc": "2.0", "id": "ask-1", "method": "elicitation/create", "params": {**ask, "_meta": meta}})
            event.wait(10)
            answer = self.answers["asks"] = self.answers.pop("ask-1")
            time.sleep(0.3)
            return {**text(json.dumps(answer.get("result", answer.get("error")))), "_meta": meta}
        if name == "mute":
            time.sleep(20)
        if name == "vanishes":
            raise Failure(-32602, "Task not found")
        if name == "fails_in_state":
            return text("it broke")
        if name == "large":
            return {**text("x" * 3_000_000), "_meta": {RELATED: {"taskId": "large-1"}, "kept": 1}}
        result = {**text(f"{name} is done"), "_meta": {RELATED: {"taskId": f"{name}-1"}}}
        return {**result, "isError": True} if name == "fails" else result

    def respond(self, message: dict[str, Any], send: Send) -> dict[str, Any] | None:
        """Take one message; returns the response to a request."""
        self.note(message)
        if "method" not in message:
            self.answers[message["id"]] = message
            self.waiting[message["id"]].set()
            return None
        if "id" not in message:
            return None
        try:
            return {"jsonrpc": "2.0", "id": message["id"], "result": self.answer(message, send)}
        except Failure as failure:
            return {"jsonrpc": "2.0", "id": message["id"], "error": failure.error}


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def over_stdio(server: Server) -> None:
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def take(message: dict[str, Any]) -> None:
        response = server.respond(message, send)
        if response is not None:
            send(response)

    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "tasks/result":
            threading.Thread(target=take, args=(message,), daemon=True).start()
        else:
            take(message)


def over_http(server: Server) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            events: list[dict[str, Any]] = []
            try:
                response = server.respond(message, events.append)
            except Status as status:
                return self.reply(status.status, b"")
            if response is None:
                return self.reply(202, b"")
            if message["method"] == "initialize":
                return self.reply(200, json.dumps(response).encode(), "application/json", session="one")
            if not events:
                return self.reply(200, json.dumps(response).encode(), "application/json")
            body = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in [*events, response])
            return self.reply(200, body, "text/event-stream")

        def do_GET(self) -> None:
            self.reply(405, b"")

        do_DELETE = do_GET

        def reply(self, status: int, body: bytes, kind: str = "text/plain", session: str = "") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if session:
                self.send_header("mcp-session-id", session)
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        print(httpd.server_address[1], flush=True)
        httpd.serve_forever()


if __name__ == "__main__":
    (over_http if "--http" in sys.argv else over_stdio)(Server(sys.argv[1]))
