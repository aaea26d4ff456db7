"""Errors, named by which side broke the rule, and their form as JSON-RPC errors or error results."""

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
# Defined here, in the range that JSON-RPC reserves for servers: the caller exceeds one of its quotas.
QUOTA_EXCEEDED: Final = -32029

# Maximum length of a name from a peer in an error text: longer than any tool name that model providers allow, and too
# short to inject a page of text.
MAX_QUOTED_CHARS: Final = 200
UPSTREAM_ERROR_KEY: Final = "typegate/upstreamError"
"""The member of a result's `_meta` with the JSON-RPC error that the result represents."""
# If forwarded from an upstream, these codes would make the client renegotiate its connection to the gateway.
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


# One screen of problems; further ones are usually consequences of the first.
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
    """A JSON-RPC error that a peer sent, or that the gateway answers with.

    Source: JSON-RPC 2.0, section 5.1 "Error object".
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_object(self) -> dict[str, Any]:
        """Return the error object in the form that is sent."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class QuotaExceeded(RpcError):
    """One caller exceeds its quota, or all callers together exceed the shared quota. The request was not run.

    Attributes:
        retry_after_s: Time after which to retry, in whole seconds.
        own: Whether the quota is this caller's rather than the shared one.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1, own: bool = True) -> None:
        super().__init__(QUOTA_EXCEEDED, message, {"retryAfterSeconds": retry_after_s})
        self.retry_after_s = retry_after_s
        self.own = own


class CallRefused(GatewayError):
    """A rule does not allow the call, which was not sent. The text is written for models."""


class UpstreamError(GatewayError):
    """An upstream did not answer a request with a result. The text is written for models.

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
    """The connection ended, or the server failed, after the call was sent: its outcome is unknown."""


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
    """The issuer or the shared store does not answer, so that no token could be refreshed. Nothing was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False)


class UnusableAnswer(ConnectionLost):
    """The answer is not JSON, is too large, or belongs to another request. The connection itself works.

    The caller sees a lost connection: the outcome of the request is unknown.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class LoopDetected(GatewayError):
    """The upstream is this gateway itself or reaches it (a loop), so that its tools would be listed without end."""


class NoAnswer(ConnectionLost):
    """An internal request was not answered in time; the connection may still work for other requests."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class ListLost(ConnectionLost):
    """The connection ended during a list request whose result is optional.

    Attributes:
        kind: Prompts, resources, or the tools of a server that does not declare tools.
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
    """Turn an upstream's JSON-RPC error for a call into an error result.

    Hosts retry or hide JSON-RPC errors. Only codes that clients act on are therefore forwarded as errors; the others
    become an error result with the code and data in `_meta`.

    Args:
        verbatim: Whether the upstream is passed through under its own names.

    Raises:
        RpcError: The caller receives a JSON-RPC error.
    """
    # MCP itself assigns the server error codes up to -32020, with meanings that clients know.
    acted_on = -32099 <= error.code <= -32020 or error.code == URL_ELICITATION_REQUIRED
    if verbatim or acted_on or error.code in _RENEGOTIATION:
        raise protocol_error(error, server=server, verbatim=verbatim)
    return error_result(
        f"{error.message}\n\n(error {error.code} from server '{server}')",
        meta={UPSTREAM_ERROR_KEY: error.to_object()},
    )


def protocol_error(error: RpcError, *, server: str, verbatim: bool) -> RpcError:
    """Return the JSON-RPC error that a caller receives for an upstream's error.

    The error is forwarded unchanged unless its code would be misunderstood as the gateway's: the codes about the
    version and headers of the caller's own connection, and about a method that the gateway does not have.
    """
    if error.code in _RENEGOTIATION or (error.code == METHOD_NOT_FOUND and not verbatim):
        return RpcError(INTERNAL_ERROR, error.message, {"server": server, "code": error.code, "data": error.data})
    return error
