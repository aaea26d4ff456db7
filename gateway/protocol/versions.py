"""The supported versions of MCP, and the metadata of requests.

Handshake versions (until 2025-11-25) begin a session with an `initialize` request, which negotiates the version and the
capabilities. Modern versions (since 2026-07-28) have no sessions: each request has an *envelope*, the members of its
`_meta` that state the version, the client and the capabilities.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.protocol.gateway_errors import INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION, RpcError

META: Final = "io.modelcontextprotocol/"
MODERN_VERSIONS: Final = ("2026-07-28",)
HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSION_KEY: Final = META + "protocolVersion"
CAPABILITIES_KEY: Final = META + "clientCapabilities"
CLIENT_INFO_KEY: Final = META + "clientInfo"
SUBSCRIPTION_KEY: Final = META + "subscriptionId"
SERVER_INFO_KEY: Final = META + "serverInfo"
LOG_LEVEL_KEY: Final = META + "logLevel"
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The log levels, from most to least verbose. Source: MCP 2025-11-25, "Logging", "Log Levels"."""
QUESTIONS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""Requests for input that a server may send during a call, each with the client capability that it requires."""
NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The member of `params` whose value the HTTP header `Mcp-Name` repeats, by method."""
MAX_IDENTIFIER_CHARS: Final = 8 * 1024
"""Maximum length of a name, URI, reference or id from a caller. Comparing an identifier with every rule and template
takes time in proportion to its length. Names have up to hundreds of characters, and common servers and browsers refuse
URIs that are longer than this limit.
"""
# The paths of identifiers in the params of requests and notifications with any method. Arguments of tools are not
# checked, because they may be longer.
_IDENTIFIERS: Final[tuple[tuple[str, ...], ...]] = (
    *(
        (name,)
        for name in ("name", "uri", "taskId", "cursor", "level", "protocolVersion", "requestId", "progressToken")
    ),
    *(("ref", name) for name in ("type", "name", "uri")),
    ("argument", "name"),
    ("notifications", "resourceSubscriptions"),
    ("notifications", "taskIds"),
    *(("_meta", name) for name in ("progressToken", VERSION_KEY, LOG_LEVEL_KEY, SUBSCRIPTION_KEY)),
    ("_meta", META + "related-task", "taskId"),
    *(("_meta", CLIENT_INFO_KEY, name) for name in ("name", "version", "title")),
    *(("clientInfo", name) for name in ("name", "version", "title")),
)
_PLAIN: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")


def envelope(client: dict[str, Any], capabilities: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the envelope, which a modern client adds to each request's `_meta`.

    Source: MCP 2026-07-28, "Base protocol", "Per-request protocol fields".
    """
    return {VERSION_KEY: MODERN_VERSIONS[-1], CLIENT_INFO_KEY: client, CAPABILITIES_KEY: dict(capabilities or {})}


def can_be_asked(capabilities: Mapping[str, Any], method: str, params: object) -> bool:
    """Return whether a client that declared these capabilities accepts a server's request for input.

    A client with an empty `elicitation` object accepts only forms. Source: MCP 2025-11-25, "Elicitation",
    "Capabilities".
    """
    needed = QUESTIONS.get(method)
    if needed is None or needed not in capabilities:
        return False
    if needed != "elicitation":
        return True
    modes = capabilities[needed]
    mode = params.get("mode", "form") if isinstance(params, dict) else "form"
    return mode in modes if isinstance(modes, dict) and modes else mode == "form"


def find_long_identifier(params: object) -> tuple[str, int] | None:
    """Return the path and length of the first identifier in a message's params that is too long, or None."""
    for path in _IDENTIFIERS:
        value = params
        for member in path:
            value = value.get(member) if isinstance(value, dict) else None
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and len(text) > MAX_IDENTIFIER_CHARS:
                return ".".join(("params", *path)), len(text)
    return None


def negotiate(requested: object) -> str:
    """Return the version for the response to `initialize`: the requested version if supported, or else the latest.

    Source: MCP 2025-11-25, "Lifecycle", "Version Negotiation".
    """
    return requested if isinstance(requested, str) and requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


def is_modern(params: object) -> bool:
    """Return whether the params of a request contain the envelope of 2026-07-28."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def check_envelope(params: object) -> str:
    """Return the protocol version of a modern request after checking its envelope.

    Source: MCP 2026-07-28, "Base protocol", "Per-request protocol fields".

    Raises:
        RpcError: The envelope is missing or malformed, or its version is not supported.
    """
    meta: Any = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, f"params._meta must be an object with {VERSION_KEY} and {CAPABILITIES_KEY}")
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta is missing {', '.join(missing)}")
    version = meta[VERSION_KEY]
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"{VERSION_KEY} must be a string")
    if not isinstance(meta[CAPABILITIES_KEY], dict):
        raise RpcError(INVALID_PARAMS, f"{CAPABILITIES_KEY} must be an object")
    if version not in MODERN_VERSIONS:
        raise RpcError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "Unsupported protocol version",
            {"supported": [*MODERN_VERSIONS], "requested": version},
        )
    return version


def header_value(value: str) -> str:
    """Return a value encoded for an HTTP header: unchanged if it is plain ASCII, or else as `=?base64?...?=`.

    Source: MCP 2026-07-28, "Transports", "Streamable HTTP", "Standard Headers".
    """
    if _PLAIN.fullmatch(value) and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


LEFT_OUT_KEY: Final = "typegate/leftOut"
"""The member of a result's `_meta` that lists the omitted parts of the result, each with the reason."""


def with_meta(result: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy of the result with one more member in its `_meta`."""
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), key: value}}


def input_request_of(server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a server's request for input, with the server's name added to the text of an elicitation.

    Otherwise the user could not distinguish the questions of different servers and those of the gateway itself, because
    hosts show all of them as questions of the gateway.
    """
    if method != "elicitation/create":
        return params
    message = params.get("message")
    return {**params, "message": f"Server '{server}' asks: {message if isinstance(message, str) else ''}"}


GATEWAYS: Final = "typegate/gateways"
"""Experimental capability that lists the ids of a gateway and of all gateways behind it, to detect loops.

A gateway has a new id each time it starts.
"""


def gateways_of(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of all gateways behind an upstream with these capabilities, and its own id if it is a gateway."""
    experimental = capabilities.get("experimental")
    gateway_ids = experimental.get(GATEWAYS) if isinstance(experimental, dict) else None
    return frozenset(gateway_ids) if isinstance(gateway_ids, dict) else frozenset()
