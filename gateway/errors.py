"""Errors, named by who broke the rule, and how they become JSON-RPC errors or error results."""

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
# Of MCP itself.
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
RESOURCE_NOT_FOUND: Final = -32002
# Of our own, in the range that JSON-RPC leaves to servers: the caller is over one of its quotas.
QUOTA_EXCEEDED: Final = -32029

# Of a name that a peer has chosen, in the text of an error: longer than any name that model providers allow for a
# tool, and no page of somebody else's text.
MAX_QUOTED_CHARS: Final = 200
UPSTREAM_ERROR_KEY: Final = "typegate/upstreamError"
"""The member of a result's `_meta` that holds the JSON-RPC error which the result stands for."""
# From an upstream these would make a client renegotiate its connection with us.
_RENEGOTIATION: Final = frozenset({HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION})


class GatewayError(Exception):
    """Root of the errors of this package."""


class ConfigError(GatewayError):
    """The configuration cannot be used.

    Attributes:
        message: What is wrong and what was expected.
        file: The file.
        key: The dotted path of the key that is wrong, if it is one.
    """

    def __init__(self, message: str, *, file: str, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")


# A screenful: more are usually consequences of the first ones.
_MAX_PROBLEMS_SHOWN: Final = 20


def together(problems: Sequence[ConfigError]) -> ConfigError:
    """One error with a line for each of these; there is at least one."""
    first, *rest = problems
    if not rest:
        return first
    shown = [first.message, *map(str, rest[: _MAX_PROBLEMS_SHOWN - 1])]
    if len(rest) >= _MAX_PROBLEMS_SHOWN:
        shown.append(f"{first.file}: and {len(rest) - _MAX_PROBLEMS_SHOWN + 1} more")
    return ConfigError("\n".join(shown), file=first.file, key=first.key)


class RpcError(GatewayError):
    """A JSON-RPC error that a peer sent, or that we answer with.

    Source: JSON-RPC 2.0, section 5.1 "Error object".
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_object(self) -> dict[str, Any]:
        """The error object as it goes on the wire."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class QuotaExceeded(RpcError):
    """A caller wants more than it may use at a time, or all callers together do; nothing was run.

    Attributes:
        retry_after_s: When it makes sense to try again, in whole seconds.
        own: It is the quota of this caller, and not what all share.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1, own: bool = True) -> None:
        super().__init__(QUOTA_EXCEEDED, message, {"retryAfterSeconds": retry_after_s})
        self.retry_after_s = retry_after_s
        self.own = own


class CallRefused(GatewayError):
    """A call is not sent, because some rule does not allow it; the text is written for models."""


class UpstreamError(GatewayError):
    """An upstream did not answer a request with a result; the text is written for models.

    Attributes:
        server: The alias of the upstream.
    """

    def __init__(self, server: str, message: str) -> None:
        super().__init__(message)
        self.server = server


class UpstreamUnavailable(UpstreamError):
    """Nothing was sent: the upstream is not connected, or takes no more requests."""


class UpstreamTimeout(UpstreamError):
    """The deadline passed after the call had been sent."""


class UpstreamLost(UpstreamError):
    """The connection ended after the call had been sent, or a server's failure came back: its outcome is unknown."""


class UpstreamProtocolError(UpstreamError):
    """The upstream answered with something that is not MCP."""

    @classmethod
    def unreadable(cls, server: str, error: Exception) -> UpstreamProtocolError:
        """The error for an answer that cannot be parsed where somebody has to look inside."""
        return cls(server, f"Server '{server}' answered with what cannot be read: {error}.")


class ConnectionLost(GatewayError):
    """A transport ended or failed.

    Attributes:
        sent: Whether any byte of the request may have reached the peer.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class CredentialsUnavailable(ConnectionLost):
    """A token could not be refreshed, and nothing was sent: the issuer or the shared store does not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=False)


class UnusableAnswer(ConnectionLost):
    """An answer came and is none that can be used: no JSON, too large, another request's. The connection itself works.

    To whoever called it is the same as a lost connection: the outcome is unknown.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class LeadsBack(GatewayError):
    """An upstream is this gateway itself, or leads to it: its tools would be listed again and again, without end."""


class NoAnswer(ConnectionLost):
    """A request of our own was not answered within its bound; the connection may work for others."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, sent=True)


class ListLost(ConnectionLost):
    """The connection ended while a list was asked for that nothing else depends on.

    Attributes:
        kind: Prompts, resources, or tools of a server that declares none.
    """

    def __init__(self, reason: str, kind: ListKind) -> None:
        super().__init__(reason, sent=True)
        self.kind = kind


class Congested(GatewayError):
    """A connection takes no more requests for now; nothing was sent."""


class SessionForgotten(GatewayError):
    """The upstream no longer has our session; the request was not processed.

    Source: MCP 2025-11-25, Streamable HTTP, "Session Management".
    """


class HttpStatusError(GatewayError):
    """An upstream answered with an HTTP status and without a JSON-RPC message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status}{': ' + reason if reason else ''}")
        self.status = status


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside the exception groups that task groups raise."""
    # Task groups wrap even a single error, and groups within groups.
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def error_result(text: str, *, meta: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a `CallToolResult` that tells a model what went wrong."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if meta:
        result["_meta"] = meta
    return result


def relay(error: RpcError, *, server: str, verbatim: bool) -> dict[str, Any]:
    """Turn an upstream's JSON-RPC error for a call into an error result.

    Hosts retry or hide JSON-RPC errors, so only codes that a client acts on are passed on as such; the others become
    an error result with code and data in `_meta`.

    Args:
        error: What the upstream answered.
        server: The upstream's alias.
        verbatim: The upstream is passed through with its own names.

    Raises:
        RpcError: The caller is to see a JSON-RPC error.
    """
    # From -32020 on the codes of servers are those of MCP itself, with meanings that clients know.
    acted_on = -32099 <= error.code <= -32020 or error.code == URL_ELICITATION_REQUIRED
    if verbatim or acted_on or error.code in _RENEGOTIATION:
        raise protocol_error(error, server=server, verbatim=verbatim)
    return error_result(
        f"{error.message}\n\n(error {error.code} from server '{server}')",
        meta={UPSTREAM_ERROR_KEY: error.to_object()},
    )


def protocol_error(error: RpcError, *, server: str, verbatim: bool) -> RpcError:
    """Return the JSON-RPC error that a caller gets for an upstream's.

    It is the same, except for codes that would be taken for ours: about the version and the headers of the caller's
    connection to us, or about a method that we do not have.
    """
    if error.code in _RENEGOTIATION or (error.code == METHOD_NOT_FOUND and not verbatim):
        return RpcError(INTERNAL_ERROR, error.message, {"server": server, "code": error.code, "data": error.data})
    return error
