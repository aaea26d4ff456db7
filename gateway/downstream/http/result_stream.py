"""A large result that reaches its caller while the upstream still sends it: one event, which is written in pieces.

An event has to be whole to count, so a result that ends badly is no loss: what was begun is marked as `incomplete`,
which hosts skip as any type that they do not know, and an error follows in an event of its own.

Source: WHATWG HTML, "Server-sent events", "Interpreting an event stream": the last `event` field is the type.
"""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Struct

from gateway import wire
from gateway.downstream.http.responder import Responder
from gateway.downstream.http.resumption import ResumableAnswer
from gateway.jsonrpc import RequestId


class ResultStream(Struct, eq=False):
    """See `gateway.upstream.transport.jsonrpc.ResultStream`.

    Args:
        request_id: Of the request.
        responder: Answers it.
        answer: The same where its caller may come back for it. Once it can, the result has to be kept as a whole.
    """

    _request_id: RequestId
    _responder: Responder
    _answer: ResumableAnswer | None

    def begin(self) -> bool:
        """Begin the result, unless it is to be kept for a caller who comes back."""
        responder, answer = self._responder, self._answer
        if answer is not None and not answer.stay_unresumable():
            return False
        head = b'{"jsonrpc":"2.0","id":%b,"result":{"content":' % wire.dumps(self._request_id)
        return responder.begin_event(head)

    def pass_on(self, items: bytes) -> Awaitable[None] | None:
        """Send a part of the items of `content`; where the caller does not keep up, what to await before more."""
        return self._responder.go_on(items)
