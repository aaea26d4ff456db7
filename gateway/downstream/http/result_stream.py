"""A large result that reaches its caller while the upstream still sends it: one JSON text, which is written in pieces.

Whatever becomes of the rest, the text is whole in the end: of a result that breaks off, the last item is closed where
it was cut, another item says what has happened, and the result is marked as an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from gateway import wire
from gateway.downstream.http.responder import Responder
from gateway.downstream.http.resumption import ResumableAnswer
from gateway.errors import error_result
from gateway.jsonrpc import RequestId

_CUT_OFF: Final = "The request was cancelled: its result is not whole."


class ResultStream(Struct, eq=False):
    """See `gateway.upstream.transport.jsonrpc.ResultStream`.

    Args:
        request_id: Of the request.
        responder: Answers it.
        answer: The same where its caller may come back for it. Once it can, the result has to be kept as a whole.

    Attributes:
        begun: A part of the result has left: `end` says how the response goes on.
    """

    _request_id: RequestId
    _responder: Responder
    _answer: ResumableAnswer | None
    begun: bool = False
    _close: Callable[[], bytes] | None = None

    def begin(self, close: Callable[[], bytes]) -> bool:
        """Begin the result, unless it is to be kept for a caller who comes back."""
        responder, answer = self._responder, self._answer
        if answer is not None and not answer.stay_unresumable():
            return False
        head = b'{"jsonrpc":"2.0","id":%b,"result":{"content":' % wire.dumps(self._request_id)
        if not responder.begin_message(head):
            return False
        self._close, self.begun = close, True
        return True

    def pass_on(self, items: bytes) -> Awaitable[None] | None:
        """Send a part of the items of `content`; where the caller does not keep up, what to await before more."""
        return self._responder.go_on(items)

    def end(self, response: wire.Pieces = (), *, goes_on: bool = False, modern: bool = False) -> wire.Pieces:
        """What is to be sent in the end, if anybody is there.

        Args:
            response: The response, or what of it has not left.
            goes_on: It goes on where what has left ends. Otherwise it is another one, of which an error is made.
            modern: Its caller wants to know of which type it is.
        """
        # Kept no longer: it leads to all that was read, and from there back to here.
        close, self._close = self._close, None
        if goes_on or close is None:
            return response
        message = wire.loads(b"".join(response)) if response else {}
        why = message.get("error", {}).get("message", _CUT_OFF)
        result: dict[str, Any] = message.get("result") or error_result(why)
        items = b"".join([b"," + wire.dumps(item) for item in result["content"]])
        others = {**({"resultType": "complete"} if modern else {}), **result, "isError": True}
        del others["content"]
        return close(), items, b"],", wire.dumps(others)[1:], b"}"
