"""Exceptions of the gateway, and their conversion to JSON-RPC errors or error results (tool results with `isError`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from registry.catalog.catalog import ListKind

# JSON-RPC 2.0, section 5.1 "Error object".
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# Defined by MCP.
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
RESOURCE_NOT_FOUND: Final = -32002
# Defined by the gateway, in the range that JSON-RPC reserves for servers.
QUOTA_EXCEEDED: Final = -32029

# Maximum length of a name from a peer in an error text: longer than any tool name that model providers allow, and too
# short to inject a page of text.
MAX_QUOTED_CHARS: Final = 200
UPSTREAM_ERROR_KEY: Final = "typegate/upstreamError"
"""The member of a result's `_meta` with the JSON-RPC error that the result represents."""
# A client that receives these codes renegotiates its connection, so they are not forwarded from upstreams.
_RENEGOTIATION: Final = frozenset({HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION})


class GatewayError(Exception):
    """Base class of the errors of this package."""


class ConfigError(GatewayError):
    """The configuration cannot be used.

    Attributes:
        message: What is wrong and what was expected.
        file: The file that contains the problem.
        key: The dotted path of the invalid key, if the problem concerns a single key.
    """

    def __init__(self, message: str, *, file: str, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")


# Maximum number of lines to show: about one screen. Further problems are usually consequences of the first problems.
_MAX_PROBLEMS_SHOWN: Final = 20


def combine_errors(problems: Sequence[ConfigError]) -> ConfigError:
    """Combine at least one problem into a single error with a line for each."""
    first, *further = problems
    if not further:
        return first
    messages = [first.message, *map(str, further[: _MAX_PROBLEMS_SHOWN - 1])]
    if len(further) >= _MAX_PROBLEMS_SHOWN:
        messages.append(f"{first.file}: and {len(further) - _MAX_PROBLEMS_SHOWN + 1} more")
    return ConfigError("\n".join(messages), file=first.file, key=first.key)


class RpcError(GatewayError):
    """A JSON-RPC error that a peer sent, or that the gateway sends in response to a request.

    Source: JSON-RPC 2.0, section 5.1 "Error object".
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_object(self) -> dict[str, Any]:
        """Return the error object of a JSON-RPC response."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class QuotaExceeded(RpcError):
    """One caller exceeds its quota, or all callers together exceed the shared quota. The request was not processed.

    Attributes:
        retry_after_s: Time after which to retry, in whole seconds.
        own: True if the caller exceeds its own quota; false for the quota that all callers share.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1, own: bool = True) -> None:
        super().__init__(QUOTA_EXCEEDED, message, {"retryAfterSeconds": retry_after_s})
        self.retry_after_s = retry_after_s
        self.own = own


class CallRefused(GatewayError):
    """A rule does not allow a call. The call was not sent. The text is written for models."""


class UpstreamError(GatewayError):
    """A request to an upstream gave no result. The text is written for models.

    Attributes:
        server: The alias of the upstream.
    """

    def __init__(self, server: str, message: str) -> None:
        super().__init__(message)
        self.server = server


class UpstreamUnavailable(UpstreamError):
    """The request was not sent: the upstream is not connected or accepts no more requests."""


class UpstreamTimeout(UpstreamError):
    """The deadline passed after the call was sent."""


class UpstreamLost(UpstreamError):
    """The connection ended, or the server failed, after the call was sent. The outcome of the call is unknown."""


class UpstreamProtocolError(UpstreamError):
    """The upstream's answer violates MCP."""

    @classmethod
    def unreadable(cls, server: str, error: Exception) -> UpstreamProtocolError:
        """Return the error for an answer that must be examined but cannot be parsed."""
        return cls(server, f"Server '{server}' sent an answer that cannot be read: {error}.")


class ConnectionLost(GatewayError):
    """A transport ended or failed.

    Attributes:
        sent: Whether any byte of the request may have reached the peer.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class CredentialsUnavailable(ConnectionLost):
    """A token could not be refreshed, because its issuer or the shared store does not respond. Nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False)


class UnusableAnswer(ConnectionLost):
    """A response is not JSON, is too large, or belongs to another request. The connection itself still works.

    For the caller this is equivalent to a lost connection: the outcome of the request is unknown.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class LoopDetected(GatewayError):
    """An upstream is this gateway itself, or forwards to this gateway. Such a loop would list tools without end."""


class NoAnswer(ConnectionLost):
    """An internal request was not answered in time; the connection may still work for other requests."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class ListLost(ConnectionLost):
    """The connection ended during a list request whose result is optional.

    Attributes:
        kind: The kind of the requested list. It can be tools only if the server does not declare tools.
    """

    def __init__(self, reason: str, kind: ListKind) -> None:
        super().__init__(reason, sent=True)
        self.kind = kind


class TooManyCalls(GatewayError):
    """A connection temporarily accepts no more requests. Nothing was sent."""


class SessionForgotten(GatewayError):
    """The upstream no longer knows the gateway's session, and did not process the request.

    Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
    """


class HttpStatusError(GatewayError):
    """An upstream answered with an HTTP status but without a JSON-RPC message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}{': ' + reason if reason else ''}")
        self.status = status


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    # Task groups wrap even a single error, and groups can contain groups.
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def error_result(text: str, *, meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a `CallToolResult` that reports an error to the model."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if meta:
        result["_meta"] = meta
    return result


def relay(error: RpcError, *, server: str, verbatim: bool) -> dict[str, Any]:
    """Return an error result for an upstream's JSON-RPC error to a call, or raise the error for the caller.

    Hosts retry or hide JSON-RPC errors. Therefore only errors with codes that clients react to are raised. Any other
    error becomes an error result with the code and data in `_meta`.

    Args:
        verbatim: Whether the gateway exposes the upstream without prefixes, under the upstream's own names.

    Raises:
        RpcError: The error has to be forwarded as a JSON-RPC error.
    """
    # MCP assigns the meanings of the codes from -32099 to -32020, so clients know them.
    acted_on = -32099 <= error.code <= -32020 or error.code == URL_ELICITATION_REQUIRED
    if verbatim or acted_on or error.code in _RENEGOTIATION:
        raise protocol_error(error, server=server, verbatim=verbatim)
    return error_result(
        f"{error.message}\n\n(error {error.code} from server '{server}')",
        meta={UPSTREAM_ERROR_KEY: error.to_object()},
    )


def protocol_error(error: RpcError, *, server: str, verbatim: bool) -> RpcError:
    """Return the JSON-RPC error that a caller receives for an upstream's error.

    The error is forwarded unchanged, except for codes that the caller would take for statements about the gateway: that
    the version or the headers of the caller's connection are wrong, or that the gateway does not have a method.
    """
    if error.code in _RENEGOTIATION or (error.code == METHOD_NOT_FOUND and not verbatim):
        return RpcError(INTERNAL_ERROR, error.message, {"server": server, "code": error.code, "data": error.data})
    return error
