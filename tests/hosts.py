"""Hosts of every era over HTTP and stdio, raw: every message that comes is kept, with where it came from.

The version is data. What differs between the eras (envelope, sessions, subscriptions, input in
mid-call) is done here, so that a test asks the same of each.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from gateways import META, MODERN, ended

Message = dict[str, Any]
VERSIONS = (MODERN, "2025-11-25", "2025-06-18")
ABILITIES: Message = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A notification or a request that reached a host, and its way: the id of a request, "get" or "stdio"."""

    message: Message
    via: Any

    @property
    def method(self) -> str:
        """What it is."""
        return str(self.message["method"])

    @property
    def params(self) -> Message:
        """What it says."""
        params: Message = self.message.get("params") or {}
        return params


def agreeable(method: str, params: Message) -> Message:
    """Answer what a host is asked in mid-call."""
    match method:
        case "elicitation/create" if params.get("mode") == "url":
            return {"action": "accept"}
        case "elicitation/create":
            return {"action": "accept", "content": {"said": params["message"]}}
        case "sampling/createMessage":
            words = f"sampled {params['maxTokens']}"
            return {"role": "assistant", "model": "none", "content": {"type": "text", "text": words}}
    return {"roots": [{"uri": "file:///somewhere", "name": "somewhere"}]}


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """One host; `heard` holds what came besides answers."""

    version: str
    declared: Message
    group: TaskGroup
    name: str = "host"
    reply: Callable[[str, Message], Message] = agreeable
    hold: bool = False  # questions are heard, and left for the test to answer
    log_level: str | None = None
    hello: Message = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    answers: dict[Any, Message] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _count: int = 0

    @property
    def modern(self) -> bool:
        """Whether it speaks 2026-07-28."""
        return self.version == MODERN

    async def send(self, message: Message) -> None:
        """Send one message and go on."""
        raise NotImplementedError

    async def cancel(self, message_id: Any) -> None:
        """Cancel a request, the way of the era and the transport."""
        await self.notify("notifications/cancelled", requestId=message_id)

    def receive(self, message: Message, via: Any) -> None:
        """Take a message that came."""
        if "method" not in message:
            self.answers[message.get("id")] = message
        else:
            self.heard.append(Heard(message=message, via=via))
            if "id" in message and not self.hold:
                self.group.start_soon(self._respond, message)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _respond(self, question: Message) -> None:
        result = self.reply(question["method"], question.get("params") or {})
        await self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    async def until(self, found: Callable[[], Any], *, within_s: float = 8) -> Any:
        """Wait for what is heard to hold something, and return it."""
        with anyio.fail_after(within_s):
            while not (value := found()):
                await self._changed.wait()
        return value

    async def begin(self, method: str, params: Mapping[str, Any] | None = None, *, message_id: Any = None) -> Any:
        """Send a request and return its id."""
        self._count += 1
        message_id = message_id if message_id is not None else self._count
        sent = dict(params or {})
        if self.modern:
            own = {
                "protocolVersion": MODERN,
                "clientCapabilities": self.declared,
                "clientInfo": {"name": self.name, "version": "1"},
            } | ({"logLevel": self.log_level} if self.log_level else {})
            sent["_meta"] = {META + key: value for key, value in own.items()} | sent.get("_meta", {})
        await self.send({"jsonrpc": "2.0", "id": message_id, "method": method, "params": sent})
        return message_id

    async def answer(self, message_id: Any, *, within_s: float = 8) -> Message:
        """The whole answer to a request."""
        answer: Message = await self.until(lambda: self.answers.get(message_id), within_s=within_s)
        return answer

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, within_s: float = 8, message_id: Any = None
    ) -> Message:
        """Send a request and return its whole answer."""
        return await self.answer(await self.begin(method, params, message_id=message_id), within_s=within_s)

    async def settle(self, method: str, params: Mapping[str, Any], *, within_s: float = 8) -> Message:
        """As `ask`, answering what a modern server wants to know first."""
        answer = await self.ask(method, params, within_s=within_s)
        while (result := answer.get("result", {})).get("resultType") == "input_required":
            wanted = result.get("inputRequests") or {}
            replies = {key: self.reply(one["method"], one.get("params") or {}) for key, one in wanted.items()}
            again = {**params, "inputResponses": replies}
            again |= {key: result[key] for key in ("requestState",) if key in result}
            answer = await self.ask(method, again, within_s=within_s)
        return answer

    async def result(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Message:
        """As `settle`; an error fails the test."""
        answer = await self.settle(method, params or {}, **options)
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    async def call(self, name: str, arguments: Message | None = None, **options: Any) -> Message:
        """The result of a tool."""
        return await self.result("tools/call", {"name": name, "arguments": arguments or {}}, **options)

    async def every(self, kind: str, method: str | None = None) -> list[Message]:
        """Everything of every page of a list."""
        items: list[Message] = []
        params: Message = {}
        while True:
            page = await self.result(method or f"{kind}/list", params)
            items += page[kind]
            if "nextCursor" not in page:
                return items
            params = {"cursor": page["nextCursor"]}

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def of(self, method: str, since: int = 0) -> list[Heard]:
        """What was heard of one method."""
        return [one for one in self.heard[since:] if one.method == method]

    async def level(self, level: str) -> None:
        """Want logs from this level on."""
        self.log_level = level
        if not self.modern:
            await self.result("logging/setLevel", {"level": level})

    async def watch(self, *uris: str, lists: tuple[str, ...] = ()) -> Any:
        """Want to hear of changed resources and lists; what is returned ends it in `unwatch`."""
        if self.modern:
            wanted: Message = {f"{kind}ListChanged": True for kind in lists}
            wanted |= {"resourceSubscriptions": list(uris)} if uris else {}
            listen = await self.begin("subscriptions/listen", {"notifications": wanted})
            acknowledged = "notifications/subscriptions/acknowledged"
            first = await self.until(lambda: [one for one in self.of(acknowledged) if tag_of(one) == listen])
            assert first[0].params["notifications"] == wanted, first
            return listen
        await self.open_stream()
        for uri in uris:
            await self.result("resources/subscribe", {"uri": uri})
        return uris

    async def unwatch(self, watched: Any) -> None:
        """Stop hearing of what `watch` returned."""
        if self.modern:
            await self.cancel(watched)
        else:
            for uri in watched:
                await self.result("resources/unsubscribe", {"uri": uri})

    async def open_stream(self) -> None:
        """Open what carries messages that belong to no request, where the transport needs it."""

    async def greet(self) -> None:
        """Introduce itself, the way of the era."""
        if self.modern:
            self.hello = await self.result("server/discover")
            return
        about = {"name": self.name, "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": self.declared, "clientInfo": about}
        self.hello = await self.result("initialize", params, within_s=15)
        assert self.hello["protocolVersion"] == self.version, self.hello
        await self.notify("notifications/initialized")


def tag_of(heard: Heard) -> Any:
    """The subscription that a modern notification belongs to."""
    return (heard.params.get("_meta") or {}).get(META + "subscriptionId")


@dataclass(slots=True, kw_only=True, eq=False)
class HttpHost(Host):
    """A host over Streamable HTTP; each request has a stream of its own."""

    url: str
    client: httpx2.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)
    statuses: dict[Any, int] = field(default_factory=dict)
    event_ids: list[tuple[str, Any]] = field(default_factory=list)  # of events: id, and the way it came
    _scopes: dict[Any, anyio.CancelScope] = field(default_factory=dict)

    async def send(self, message: Message) -> None:
        """POST one message; only a request is left running in the background."""
        if "method" in message and "id" in message:
            self._scopes[message["id"]] = anyio.CancelScope()
            self.group.start_soon(self._request, message)
        else:
            await self._request(message)

    async def _request(self, message: Message) -> None:
        method, number = message.get("method"), message.get("id")
        head = {"content-type": "application/json", "accept": "application/json, text/event-stream", **self.headers}
        if method != "initialize":
            head["mcp-protocol-version"] = self.version
        if self.modern:
            params = message.get("params") or {}
            named = params.get(_NAMED.get(str(method), "taskId" if str(method).startswith("tasks/") else ""))
            head |= {"mcp-method": str(method), **({"mcp-name": encoded(named)} if named is not None else {})}
        with self._scopes.get(number) or anyio.CancelScope():
            try:
                await self._exchange(message, head)
            except httpx2.HTTPError as broken:
                # Only this request is lost; it must not look as if an answer had come.
                self.receive({"id": number, "error": {"code": None, "message": repr(broken)}}, number)

    async def _exchange(self, message: Message, head: dict[str, str]) -> None:
        number, body = message.get("id"), json.dumps(message).encode()
        async with self.client.stream("POST", self.url, content=body, headers=head, timeout=60) as response:
            self.statuses[number] = response.status_code
            if message.get("method") == "initialize" and "mcp-session-id" in response.headers:
                self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await self._events(response, number)
            elif body := await response.aread():
                self.receive(json.loads(body), number)

    async def _events(self, response: httpx2.Response, via: Any) -> None:
        async for line in response.aiter_lines():
            if line.startswith("id:"):
                self.event_ids.append((line[3:].strip(), via))
            elif line.startswith("data:") and line[5:].strip():
                self.receive(json.loads(line[5:]), via)

    async def cancel(self, message_id: Any) -> None:
        """A modern request is cancelled by closing its stream."""
        if self.modern:
            self._scopes[message_id].cancel()
        else:
            await Host.cancel(self, message_id)

    async def open_stream(self) -> None:
        """Open the GET stream of the session, once."""
        if "get" not in self._scopes:
            self._scopes["get"] = anyio.CancelScope()
            await self.group.start(self.listen)

    async def listen(
        self, since: str | None = None, *, via: str = "get", task_status: Any = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read the GET stream of the session until it ends, from after an event if one is named."""
        head = {**self.headers, "accept": "text/event-stream", "mcp-protocol-version": self.version}
        head |= {"last-event-id": since} if since is not None else {}
        with self._scopes.setdefault(via, anyio.CancelScope()):
            async with self.client.stream("GET", self.url, headers=head, timeout=60) as response:
                self.statuses[via] = response.status_code
                task_status.started()
                if response.status_code == 200:
                    await self._events(response, via)

    def hang_up(self, via: str = "get") -> None:
        """Cut a GET stream."""
        self._scopes.pop(via).cancel()


@dataclass(slots=True, kw_only=True, eq=False)
class StdioHost(Host):
    """A host that has started a process and speaks lines with it."""

    process: Process

    async def send(self, message: Message) -> None:
        """Write one line."""
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def read(self) -> None:
        """Take lines until the process ends them."""
        assert self.process.stdout is not None
        lines = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", 2**25)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
                return
            self.receive(json.loads(line), "stdio")


def encoded(value: str) -> str:
    """A header value, as 2026-07-28 wants one that is no plain ASCII."""
    if value.isascii() and value.isprintable() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def abilities(version: str) -> Message:
    """What a host of a version can declare."""
    return {**ABILITIES, "elicitation": {}} if version < "2025-11-25" else ABILITIES


@asynccontextmanager
async def http_host(
    url: str,
    version: str,
    client: httpx2.AsyncClient,
    *,
    headers: Mapping[str, str] | None = None,
    declared: Message | None = None,
) -> AsyncIterator[HttpHost]:
    """A host that has introduced itself over HTTP."""
    async with anyio.create_task_group() as group:
        declared = abilities(version) if declared is None else declared
        host = HttpHost(
            version=version, declared=declared, group=group, url=url, client=client, headers=dict(headers or {})
        )
        await host.greet()
        yield host
        group.cancel_scope.cancel()


@asynccontextmanager
async def stdio_host(
    config: Mapping[str, Any], version: str, log: Path, *, declared: Message | None = None
) -> AsyncIterator[StdioHost]:
    """A host that has started what an `mcpServers` entry says, and introduced itself."""
    environment = {**os.environ, **config.get("env", {})}
    with log.open("ab") as sink:
        command = [config["command"], *config["args"]]
        process = await anyio.open_process(command, stdin=subprocess.PIPE, stderr=sink, env=environment)
    try:
        async with anyio.create_task_group() as group:
            declared = abilities(version) if declared is None else declared
            host = StdioHost(version=version, declared=declared, group=group, process=process)
            group.start_soon(host.read)
            await host.greet()
            yield host
            group.cancel_scope.cancel()
    finally:
        await ended(process)
