"""Parse JSON-RPC messages and classify them as requests, notifications or responses, for all transports.

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


# Maximum digits of an id that is converted to a number: enough for the counter that generates the gateway's own ids.
_MAX_ID_CHARS: Final = 18
# Maximum size of a message that `read` first parses as a plain request. If it is another kind of message, it has to be
# parsed twice.
_USUAL_BYTES: Final = 4 * 1024
MAX_PARTS: Final = 150_000
"""Maximum number of objects, lists and object members in one message; numbers and texts in lists are not counted.

Parsing and freeing a part takes 0.4 µs, which blocks the event loop, and a message of 4 MiB, the limit for requests,
can contain 1.4 million empty objects. If the parts have at least 28 bytes on average, the 4 MiB are reached first.
"""
_TOO_MANY: Final = (
    f"the message has more than {MAX_PARTS:,} objects, lists and members; send less at once, or the data as one text"
)
_NOT_COUNTED: Final = bytes(set(range(256)) - set(b'{[:"'))


# Forbid unknown fields, because msgspec does not validate their bytes. The slow path of `read` parses messages with
# unknown fields again.
class RpcRequest(msgspec.Struct, kw_only=True, eq=False, forbid_unknown_fields=True):
    """A request. The response to it has the same id."""

    # This member has no default, because a message without `jsonrpc` is not a JSON-RPC request.
    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class _Result(msgspec.Struct, eq=False, forbid_unknown_fields=True):
    """A response with a numeric id, a result and no other members."""

    jsonrpc: Literal["2.0"]
    id: int
    result: dict[str, Any]


_read_request: Final = msgspec.json.Decoder(RpcRequest).decode
_read_result: Final = msgspec.json.Decoder(_Result).decode


class RpcNotification(NamedTuple):
    """A notification, which has no response. `params` has not been validated; None if absent."""

    method: str
    params: Any


class RpcResponse(NamedTuple):
    """A response to a request that the gateway has sent."""

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
    # Each part takes at least two bytes, so a shorter text cannot have too many parts.
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
    # Remove strings that contain none of the counted characters. Splitting the remainder at the quotes then gives
    # pieces that are alternately outside and inside of strings.
    pieces = structure.replace(b'""', b"").split(b'"')
    return sum(map(len, pieces[::2])) > MAX_PARTS


def _check_identifiers(message: RpcRequest | RpcNotification) -> None:
    """Reject a message in which a name, URI or id is too long.

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
    """Return the result of a response to one of the gateway's requests; None if this fast path does not apply.

    Args:
        text: The whole message.
        request_id: The id of the request. None is returned for a response with another id.
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
    """Return whether a JSON object from an upstream is a response.

    The `id` alone is not sufficient, because an upstream may also write log lines that are JSON objects with an `id`.
    """
    return message.get("jsonrpc") == "2.0" and ("result" in message or "error" in message)


def number_of(value: object) -> int | None:
    """Return an id as an integer, or None. A peer may return the gateway's id 1 as `1`, `1.0` or `"1"`."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= _MAX_ID_CHARS and value.isascii() and value.isdigit():
        return int(value) if value[0] != "0" or value == "0" else None
    return None


def find_by_id(entries: Mapping[Any, Entry], request_id: object) -> Entry | None:
    """Return the entry for an id that a peer sent. The peer may send a number as a string, or a string as a number."""
    if not isinstance(request_id, str | int | float):
        return None
    entry = entries.get(request_id)
    if entry is None and (number := number_of(request_id)) is not None:
        entry = entries.get(str(number) if type(request_id) is not str else number)
    return entry


def usable_id(value: object) -> RequestId | None:
    """Return the id of a request if it is a string or a number, and so can be used in a response; otherwise None."""
    # bool is a subclass of int in Python, but not a number in JSON.
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None
