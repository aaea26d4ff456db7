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
class ReceivedMessage:
    """A notification or a request that reached a host, and its way: the id of a request, "get" or "stdio"."""

    message: Message
    via: Any

    @property
    def method(self) -> str:
        """Return the method of the message."""
        return str(self.message["method"])

    @property
    def params(self) -> Message:
        """Return the params of the message."""
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
    """One host; `received` holds what came besides answers."""

    version: str
    declared: Message
    group: TaskGroup
    name: str = "host"
    reply: Callable[[str, Message], Message] = agreeable
    hold: bool = False  # questions are received, and left for the test to answer
    log_level: str | None = None
    hello: Message = field(default_factory=dict)
    received: list[ReceivedMessage] = field(default_factory=list)
    answers: dict[Any, Message] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _count: int = 0

    @property
    def modern(self) -> bool:
        """Return whether the host speaks 2026-07-28."""
        return self.version == MODERN

    async def send(self, message: Message) -> None:
        """Send one message without waiting for an answer."""
        raise NotImplementedError

    async def cancel(self, message_id: Any) -> None:
        """Cancel a request, the way of the era and the transport."""
        await self.notify("notifications/cancelled", requestId=message_id)

    def receive(self, message: Message, via: Any) -> None:
        """Take a message that came."""
        if "method" not in message:
            self.answers[message.get("id")] = message
        else:
            self.received.append(ReceivedMessage(message=message, via=via))
            if "id" in message and not self.hold:
                self.group.start_soon(self._respond, message)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _respond(self, question: Message) -> None:
        result = self.reply(question["method"], question.get("params") or {})
        await self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    async def until(self, found: Callable[[], Any], *, within_s: float = 25) -> Any:
        """Wait until `found` returns a true value for the received messages, and return it."""
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

    async def answer(self, message_id: Any, *, within_s: float = 25) -> Message:
        """Return the whole response to a request."""
        answer: Message = await self.until(lambda: self.answers.get(message_id), within_s=within_s)
        return answer

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, *, within_s: float = 25, message_id: Any = None
    ) -> Message:
        """Send a request and return its whole answer."""
        return await self.answer(await self.begin(method, params, message_id=message_id), within_s=within_s)

    async def settle(self, method: str, params: Mapping[str, Any], *, within_s: float = 25) -> Message:
        """Send a request like `ask`, and answer the questions that a modern server asks first."""
        answer = await self.ask(method, params, within_s=within_s)
        while (result := answer.get("result", {})).get("resultType") == "input_required":
            wanted = result.get("inputRequests") or {}
            replies = {key: self.reply(one["method"], one.get("params") or {}) for key, one in wanted.items()}
            again = {**params, "inputResponses": replies}
            again |= {key: result[key] for key in ("requestState",) if key in result}
            answer = await self.ask(method, again, within_s=within_s)
        return answer

    async def result(self, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> Message:
        """Return the result of `settle`; an error fails the test."""
        answer = await self.settle(method, params or {}, **options)
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    async def call(self, name: str, arguments: Message | None = None, **options: Any) -> Message:
        """Call a tool and return its result."""
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

    def of(self, method: str, since: int = 0) -> list[ReceivedMessage]:
        """Return the received messages of one method."""
        return [one for one in self.received[since:] if one.method == method]

    async def level(self, level: str) -> None:
        """Want logs from this level on."""
        self.log_level = level
        if not self.modern:
            await self.result("logging/setLevel", {"level": level})

    async def watch(self, *uris: str, lists: tuple[str, ...] = ()) -> Any:
        """Subscribe to changes of resources and lists; pass the returned value to `unwatch` to end the subscription."""
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


def tag_of(message: ReceivedMessage) -> Any:
    """Return the subscription that a modern notification belongs to."""
    return (message.params.get("_meta") or {}).get(META + "subscriptionId")


def abilities(version: str) -> Message:
    """Return the capabilities that a host of a version can declare."""
    return {**ABILITIES, "elicitation": {}} if version < "2025-11-25" else ABILITIES
