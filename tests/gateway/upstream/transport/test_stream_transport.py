"""Requests and answers on one stream, in any order and form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gateway.protocol.gateway_errors import ConnectionLost, RpcError, TooManyCalls
from gateway.upstream.transport.jsonrpc_transport import Reply
from gateway.upstream.transport.stream_transport import StreamTransport


@dataclass
class Peer:
    """The other end: what it was sent, and what it sent that was no answer."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    full: bool = False

    def __post_init__(self) -> None:
        self.transport = StreamTransport("up", self.on_message, self.send)

    def send(self, line: bytes) -> None:
        if self.full:
            raise TooManyCalls("it is full")
        self.sent.append(json.loads(line))

    def on_message(self, message: dict[str, Any], reply: Reply) -> None:
        self.received.append(message["method"])
        if "id" in message:
            reply({"id": message["id"], "result": {}})

    def answer(self, **message: Any) -> None:
        self.transport.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())


@asynccontextmanager
async def asking(peer: Peer, *methods: str, **more: Any) -> AsyncIterator[dict[str, Any]]:
    """Requests that wait, and their outcomes by method as they come; those without one are cancelled at the end."""
    outcomes: dict[str, Any] = {}

    async def ask(method: str) -> None:
        try:
            outcomes[method] = await peer.transport.request(method, {}, **more)
        except (RpcError, ConnectionLost) as error:
            outcomes[method] = error

    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            for method in methods:
                group.start_soon(ask, method)
            while len(peer.sent) < len(methods):
                await checkpoint()
            yield outcomes
            for _ in range(10):
                await checkpoint()
            group.cancel_scope.cancel()


async def test_answers_match_their_requests_in_any_order() -> None:
    peer = Peer()
    async with asking(peer, "a", "b") as outcomes:
        first, second = (message["id"] for message in peer.sent)
        peer.answer(id=second, result={"n": 2})
        peer.answer(id=first, result={"n": 1})
        peer.answer(id=first, result={"n": 3})
    assert outcomes == {"a": {"n": 1}, "b": {"n": 2}}


async def test_answers_with_unknown_ids_are_ignored() -> None:
    peer = Peer()
    async with asking(peer, "a") as outcomes:
        assert peer.sent[0]["id"] == 1
        for odd in (True, 1.5, "1.5", "01", "one", "", None, [1], 7):
            peer.answer(id=odd, result={})
        for line in (b"", b"  ", b"no json", b"[]", b'{"id": 1', b"\xff"):
            peer.transport.receive(line)
    assert outcomes == {}


@pytest.mark.parametrize("form", [b"1", b"1.0", b'"1"'])
async def test_id_returned_in_another_form_matches(form: bytes) -> None:
    for answer in (b'"result":{"n":2}', b'"result":{"n":NaN}', b'"error":{"code":-1,"message":"no"}'):
        peer, steps = Peer(), list[dict[str, Any]]()
        async with asking(peer, "a", on_progress=steps.append) as outcomes:
            progress = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b,"progress":1}}'
            peer.transport.receive(progress % form)
            peer.transport.receive(b'{"jsonrpc":"2.0","id":%b,%b}' % (form, answer))
        assert outcomes.keys() == {"a"}
        assert len(steps) == 1


NO_ANSWERS = [
    {"level": 30, "time": 1_767_322_800_000, "name": "app", "id": 1, "msg": "handling tools/call"},
    {"id": 1, "result": "ok"},
    {"id": 1, "error": "boom", "level": "warn"},
    {"id": 1, "error": {"code": 1, "message": "boom"}},
    {"jsonrpc": "2.0", "id": 1},
    {"jsonrpc": "2.0", "id": 1, "msg": "x"},
    {"jsonrpc": "1.0", "id": 1, "result": {}},
    {"jsonrpc": 2.0, "id": 1, "result": {}},
    {"jsonrpc": None, "id": "1", "error": {}},
    {"id": 1},
    {},
]


@pytest.mark.parametrize("message", NO_ANSWERS)
async def test_log_line_with_a_request_id_is_not_an_answer(message: dict[str, Any]) -> None:
    peer = Peer()
    async with asking(peer, "a") as outcomes:
        peer.transport.receive(json.dumps(message).encode())
        assert outcomes == {}
        peer.answer(id=1, result={"n": 1})
    assert outcomes == {"a": {"n": 1}}


async def test_invalid_or_oversized_answer_fails_only_its_own_request() -> None:
    peer = Peer()
    async with asking(peer, "a", "b", "c") as outcomes:
        peer.transport.receive(b'{"jsonrpc":"2.0","id":1,"result":{"n":NaN}}')
        peer.transport.skip(b'{"jsonrpc":"2.0","id":2,"result":{"te\n"}}')
        peer.answer(id=3, result={})
    assert isinstance(outcomes["a"], RpcError)
    assert isinstance(outcomes["b"], RpcError)
    assert "may have taken effect" in str(outcomes["b"])
    assert outcomes["c"] == {}


async def test_abandoned_request_is_cancelled_except_the_handshake() -> None:
    for method, expected in (("tools/call", ["notifications/cancelled"]), ("initialize", [])):
        peer = Peer()
        async with asking(peer, method):
            pass
        assert [message["method"] for message in peer.sent[1:]] == expected


async def test_progress_reaches_the_request_with_its_token() -> None:
    peer, steps = Peer(), list[dict[str, Any]]()
    async with asking(peer, "a", on_progress=steps.append):
        token = peer.sent[0]["params"]["_meta"]["progressToken"]
        for odd in (token + 1, True, "x", None):
            peer.answer(method="notifications/progress", params={"progressToken": odd, "progress": 1})
        peer.answer(method="notifications/progress", params={"progressToken": token, "progress": 2})
    assert [step["progress"] for step in steps] == [2]


async def test_peer_requests_are_answered_and_undeliverable_ones_dropped() -> None:
    peer = Peer()
    peer.answer(id=9, method="ping")
    peer.full = True
    peer.answer(id=10, method="ping")
    assert peer.received == ["ping", "ping"]
    assert peer.sent == [{"id": 9, "result": {}}]
    with pytest.raises(TooManyCalls):
        await peer.transport.request("a", {})


async def test_closing_fails_waiting_and_later_requests_with_its_first_reason() -> None:
    peer = Peer()
    async with asking(peer, "a") as outcomes:
        peer.transport.close("the process exited")
        peer.transport.close("the connection is being closed")
        assert await peer.transport.wait_closed() == "the process exited"
    assert isinstance(outcomes["a"], ConnectionLost)
    assert outcomes["a"].sent
    with pytest.raises(ConnectionLost, match="the process exited") as refused:
        await peer.transport.request("b", {})
    assert not refused.value.sent


async def test_listener_is_notified_at_once_that_messages_can_arrive() -> None:
    opened = anyio.Event()
    with anyio.fail_after(25):
        async with anyio.create_task_group() as group:
            group.start_soon(Peer().transport.listen, opened.set)
            await opened.wait()
            group.cancel_scope.cancel()
