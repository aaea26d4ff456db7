"""A host of any era, raw: every message that comes is kept, with where it came from.

The version is data. What differs between the eras (envelope, sessions, subscriptions, input in
mid-call) is done here, so that a test asks the same of each. `hosts_connected.py` has the transports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup
from support.gateways import META, MODERN

Message = dict[str, Any]
VERSIONS = (MODERN, "2025-11-25", "2025-06-18")
ABILITIES: Message = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


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
            # A gateway names the server in front of its question.
            return {"action": "accept", "content": {"said": re.sub(r"^Server '[^']+' asks: ", "", params["message"])}}
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


def abilities(version: str) -> Message:
    """What a host of a version can declare."""
    return {**ABILITIES, "elicitation": {}} if version < "2025-11-25" else ABILITIES
