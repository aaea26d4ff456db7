"""One rule for what a JSON-RPC message is, whatever carried it.

Source: JSON-RPC 2.0, sections 4 "Request object" and 5 "Response object"; MCP forbids batches and null ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from gateway import wire
from gateway.errors import INVALID_PARAMS, INVALID_REQUEST, RpcError
from gateway.protocol import MAX_IDENTIFIER_CHARS, long_identifier

RequestId = str | int | float
Entry = TypeVar("Entry")


# Our own ids are counted; those of peers that are longer are no numbers.
_MAX_ID_CHARS: Final = 18
# Above it a text that is no request would be parsed twice at some cost.
_USUAL_BYTES: Final = 4 * 1024


# With a member of another name it is read with more care: the decoder takes any bytes in what it leaves out.
class RpcRequest(msgspec.Struct, kw_only=True, eq=False, forbid_unknown_fields=True):
    """A request: it is answered, with its id."""

    # Without it a text is no request.
    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class _Result(msgspec.Struct, eq=False, forbid_unknown_fields=True):
    """An answer that has a result, and no other member that would have to be looked at."""

    jsonrpc: Literal["2.0"]
    id: int
    result: dict[str, Any]


_read_request: Final = msgspec.json.Decoder(RpcRequest).decode
_read_result: Final = msgspec.json.Decoder(_Result).decode


class RpcNotification(NamedTuple):
    """A notification: nothing answers it. Its params are as they came; None where there are none."""

    method: str
    params: Any


class RpcResponse(NamedTuple):
    """An answer to a request of ours."""

    message: dict[str, Any]


class InvalidMessage(RpcError):
    """Not a JSON-RPC message.

    Attributes:
        request_id: The id to answer with; None where the message has no usable one.
    """

    def __init__(self, code: int, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(code, message)
        self.request_id = request_id


def read(text: bytes) -> RpcRequest | RpcNotification | RpcResponse:
    """Tell what a text is.

    Raises:
        MalformedJson: No JSON.
        InvalidMessage: None of the three, or one with an identifier that is too long.
    """
    if len(text) <= _USUAL_BYTES:
        try:
            return _read_request(text)
        except (ValueError, RecursionError):
            pass  # it is something else, or has to be read with more care
    message = classify(wire.loads(text))
    # A shorter text holds no long identifier.
    if len(text) > MAX_IDENTIFIER_CHARS and not isinstance(message, RpcResponse):
        _check_identifiers(message)
    return message


def _check_identifiers(message: RpcRequest | RpcNotification) -> None:
    """Refuse a message with a name, a URI or an id that is too long to be compared and repeated.

    Raises:
        InvalidMessage: It has one. The text does not repeat it.
    """
    request_id = message.id if isinstance(message, RpcRequest) else None
    if isinstance(request_id, str) and len(request_id) > MAX_IDENTIFIER_CHARS:
        raise InvalidMessage(INVALID_REQUEST, _too_long("the id", len(request_id)))
    if len(message.method) > MAX_IDENTIFIER_CHARS:
        raise InvalidMessage(INVALID_REQUEST, _too_long("the method", len(message.method)), request_id)
    if (found := long_identifier(message.params)) is not None:
        raise InvalidMessage(INVALID_PARAMS, _too_long(*found), request_id)


def _too_long(what: str, size_chars: int) -> str:
    return f"{what} has {size_chars} characters; expected at most {MAX_IDENTIFIER_CHARS}"


def read_result(text: bytes, request_id: int) -> dict[str, Any] | None:
    """The result in an answer to a request of ours, as nearly all have it; None for a text that takes a closer look.

    Args:
        text: The whole message.
        request_id: Of the request.
    """
    try:
        answer = _read_result(text)
    except (ValueError, RecursionError):
        return None
    return answer.result if answer.id == request_id else None


def classify(message: object) -> RpcRequest | RpcNotification | RpcResponse:
    """Tell what a parsed message is.

    Raises:
        InvalidMessage: It is none of the three.
    """
    if not isinstance(message, dict):
        raise InvalidMessage(INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")
    method, request_id = message.get("method"), message.get("id")
    if "method" not in message and ("result" in message or "error" in message):
        return RpcResponse(message)
    if "id" not in message and isinstance(method, str):
        return RpcNotification(method, message.get("params"))
    usable = usable_id(request_id)
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise InvalidMessage(INVALID_REQUEST, "Not a JSON-RPC 2.0 request", usable)
    if usable is None:
        raise InvalidMessage(INVALID_REQUEST, "The id must be a string or a number")
    params = message.get("params")
    if params is None:
        params = {}  # JSON-RPC allows it to be left out, and serializers write null for what is left out
    if not isinstance(params, dict):
        raise InvalidMessage(INVALID_PARAMS, "params must be an object", usable)
    return RpcRequest(jsonrpc="2.0", id=usable, method=method, params=params)


def is_answer(message: dict[str, Any]) -> bool:
    """Return whether a message of an upstream is a response; lines of logs may have an `id` too."""
    return message.get("jsonrpc") == "2.0" and ("result" in message or "error" in message)


def number_of(value: object) -> int | None:
    """Return the whole number that an id of ours is, in whatever form it comes back: 1, 1.0 or "1"."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= _MAX_ID_CHARS and value.isascii() and value.isdigit():
        return int(value) if value[0] != "0" or value == "0" else None
    return None


def find_by_id(entries: Mapping[Any, Entry], request_id: object) -> Entry | None:
    """Return what is kept under an id of the peer, or else under the same id in another form."""
    if not isinstance(request_id, str | int | float):
        return None
    found = entries.get(request_id)
    if found is None and (number := number_of(request_id)) is not None:
        found = entries.get(str(number) if type(request_id) is not str else number)
    return found


def usable_id(value: object) -> RequestId | None:
    """The id of a request, if an answer can carry it."""
    # JSON has no booleans among its numbers; Python does.
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None
