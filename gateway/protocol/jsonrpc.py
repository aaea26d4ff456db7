"""Classify JSON-RPC messages, independent of the transport.

Source: JSON-RPC 2.0, sections 4 "Request object" and 5 "Response object"; MCP forbids batches and null ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from gateway.protocol import json_bytes
from gateway.protocol.gateway_errors import INVALID_PARAMS, INVALID_REQUEST, RpcError
from gateway.protocol.versions import MAX_IDENTIFIER_CHARS, find_long_identifier

RequestId = str | int | float
Entry = TypeVar("Entry")


# Ids of the gateway's own requests come from a counter. A longer id from a peer is not converted to a number.
_MAX_ID_CHARS: Final = 18
# Above this size, parsing a message twice (if it turns out not to be a plain request) costs too much.
_USUAL_BYTES: Final = 4 * 1024
MAX_PARTS: Final = 150_000
"""Objects, lists and members in one message. Each costs 0.4 microseconds to parse and to free, which block the event
loop, and 4 MiB hold 1.4 million empty ones. Rows with 28 bytes for each member reach the bound of the bytes
first; numbers and texts in lists are not counted."""
_TOO_MANY: Final = (
    f"the message has more than {MAX_PARTS:,} objects, lists and members; send less at once, or the data as one text"
)
_NOT_COUNTED: Final = bytes(set(range(256)) - set(b'{[:"'))


# forbid_unknown_fields: msgspec does not validate the bytes of fields it skips, so such messages take the slow path.
class RpcRequest(msgspec.Struct, kw_only=True, eq=False, forbid_unknown_fields=True):
    """A request, which is answered with its id."""

    # Required, because a message without it is not a JSON-RPC request.
    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class _Result(msgspec.Struct, eq=False, forbid_unknown_fields=True):
    """A response with a result and no further members to examine."""

    jsonrpc: Literal["2.0"]
    id: int
    result: dict[str, Any]


_read_request: Final = msgspec.json.Decoder(RpcRequest).decode
_read_result: Final = msgspec.json.Decoder(_Result).decode


class RpcNotification(NamedTuple):
    """A notification, which is never answered. `params` is unvalidated; None if absent."""

    method: str
    params: Any


class RpcResponse(NamedTuple):
    """A response to a request of the gateway."""

    message: dict[str, Any]


class InvalidMessage(RpcError):
    """The message is not valid JSON-RPC.

    Attributes:
        request_id: The id for the error response; None if the message has no usable id.
    """

    def __init__(self, code: int, message: str, request_id: RequestId | None = None) -> None:
        super().__init__(code, message)
        self.request_id = request_id


def read(text: bytes) -> RpcRequest | RpcNotification | RpcResponse:
    """Parse and classify a message.

    Raises:
        MalformedJson: The text is not JSON.
        InvalidMessage: The message is not valid JSON-RPC, one of its identifiers is too long, or it has too many parts.
    """
    if len(text) <= _USUAL_BYTES:
        try:
            return _read_request(text)
        except (ValueError, RecursionError):
            pass  # not a plain request; take the slow path below
    # Each part takes at least two bytes.
    if len(text) > 2 * MAX_PARTS and _has_too_many_parts(text):
        raise InvalidMessage(INVALID_REQUEST, _TOO_MANY)
    message = classify(json_bytes.loads(text))
    # A shorter text cannot contain a long identifier.
    if len(text) > MAX_IDENTIFIER_CHARS and not isinstance(message, RpcResponse):
        _check_identifiers(message)
    return message


def _has_too_many_parts(text: bytes) -> bool:
    """Return whether a JSON text has too many objects, lists and members, without parsing it."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = text.translate(None, _NOT_COUNTED)
    if len(structure) - structure.count(b'"') <= MAX_PARTS:
        return False
    # Texts that had nothing that is counted, and then the others: every second piece is outside of texts.
    pieces = structure.replace(b'""', b"").split(b'"')
    return sum(map(len, pieces[::2])) > MAX_PARTS


def _check_identifiers(message: RpcRequest | RpcNotification) -> None:
    """Reject a message with a name, URI or id that is too long to be compared and repeated.

    Raises:
        InvalidMessage: An identifier is too long. The error text does not repeat it.
    """
    request_id = message.id if isinstance(message, RpcRequest) else None
    if isinstance(request_id, str) and len(request_id) > MAX_IDENTIFIER_CHARS:
        raise InvalidMessage(INVALID_REQUEST, _too_long("the id", len(request_id)))
    if len(message.method) > MAX_IDENTIFIER_CHARS:
        raise InvalidMessage(INVALID_REQUEST, _too_long("the method", len(message.method)), request_id)
    if (too_long := find_long_identifier(message.params)) is not None:
        raise InvalidMessage(INVALID_PARAMS, _too_long(*too_long), request_id)


def _too_long(name: str, size_chars: int) -> str:
    return f"{name} has {size_chars} characters; expected at most {MAX_IDENTIFIER_CHARS}"


def read_result(text: bytes, request_id: int) -> dict[str, Any] | None:
    """Return the result of a plain response to one of the gateway's requests (the fast path), or None otherwise.

    Args:
        text: The whole message.
        request_id: Id of the request; a response with another id also returns None.
    """
    try:
        answer = _read_result(text)
    except (ValueError, RecursionError):
        return None
    return answer.result if answer.id == request_id else None


def classify(message: object) -> RpcRequest | RpcNotification | RpcResponse:
    """Classify a parsed message.

    Raises:
        InvalidMessage: The message is not a request, a notification or a response.
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
        params = {}  # JSON-RPC allows omitting params, and some serializers write null for an omitted member
    if not isinstance(params, dict):
        raise InvalidMessage(INVALID_PARAMS, "params must be an object", usable)
    return RpcRequest(jsonrpc="2.0", id=usable, method=method, params=params)


def is_answer(message: dict[str, Any]) -> bool:
    """Return whether a message from an upstream is a response. JSON log lines may have an `id` as well."""
    return message.get("jsonrpc") == "2.0" and ("result" in message or "error" in message)


def number_of(value: object) -> int | None:
    """Return the integer value of one of the gateway's ids, which a peer may return as 1, 1.0 or "1"."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= _MAX_ID_CHARS and value.isascii() and value.isdigit():
        return int(value) if value[0] != "0" or value == "0" else None
    return None


def find_by_id(entries: Mapping[Any, Entry], request_id: object) -> Entry | None:
    """Return the entry with an id from the peer, or else the entry with the same id in another form."""
    if not isinstance(request_id, str | int | float):
        return None
    entry = entries.get(request_id)
    if entry is None and (number := number_of(request_id)) is not None:
        entry = entries.get(str(number) if type(request_id) is not str else number)
    return entry


def usable_id(value: object) -> RequestId | None:
    """Return the id of a request if a response can repeat it, else None."""
    # bool is a subclass of int in Python, but not a number in JSON.
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None
