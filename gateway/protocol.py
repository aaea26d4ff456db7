"""The two protocol eras: their versions, the envelope of the modern one, and what its headers carry."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.errors import INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION, RpcError

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
"""From the most talkative to the least. Source: MCP 2025-11-25, "Logging", "Log Levels"."""
QUESTIONS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What a server may ask in mid-call, each with the capability that a client must have declared for it."""
NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The member of `params` that the header `Mcp-Name` repeats, by method."""
MAX_IDENTIFIER_CHARS: Final = 8 * 1024
"""Length of a name, a URI, a reference or an id of a caller. No server or browser in wide use takes longer URIs, names
have hundreds of characters at most, and what is compared with every rule and template takes time with its length."""
# Where a request or a notification has them, whatever its method; `name` of a tool is none of its arguments.
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


def envelope(client: dict[str, Any]) -> dict[str, Any]:
    """What a modern client of ours says about itself in each request's `_meta`.

    Source: MCP 2026-07-28, "Base protocol", "Per-request protocol fields".
    """
    return {VERSION_KEY: MODERN_VERSIONS[-1], CLIENT_INFO_KEY: client, CAPABILITIES_KEY: {}}


def can_be_asked(capabilities: Mapping[str, Any], method: str, params: object) -> bool:
    """Whether a client that declared these capabilities may be asked this.

    Source: MCP 2025-11-25, "Elicitation", "Capabilities": an empty object means forms only.
    """
    needed = QUESTIONS.get(method)
    if needed is None or needed not in capabilities:
        return False
    if needed != "elicitation":
        return True
    modes = capabilities[needed]
    mode = params.get("mode", "form") if isinstance(params, dict) else "form"
    return mode in modes if isinstance(modes, dict) and modes else mode == "form"


def long_identifier(params: object) -> tuple[str, int] | None:
    """Return the first identifier in the params of a message that is too long, and its length; None where none is."""
    for path in _IDENTIFIERS:
        value = params
        for member in path:
            value = value.get(member) if isinstance(value, dict) else None
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str) and len(text) > MAX_IDENTIFIER_CHARS:
                return ".".join(("params", *path)), len(text)
    return None


def negotiate(requested: object) -> str:
    """The handshake-era version to answer `initialize` with.

    Source: MCP 2025-11-25, "Lifecycle", "Version Negotiation".
    """
    return requested if isinstance(requested, str) and requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


def is_modern(params: object) -> bool:
    """Whether a request carries the envelope of 2026-07-28."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def check_envelope(params: object) -> str:
    """The version of a modern request.

    Source: MCP 2026-07-28, "Base protocol", "Per-request protocol fields".

    Raises:
        RpcError: The envelope is missing, malformed, or of a version not spoken here.
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
    """`value` as a header carries it; what is not plain ASCII goes in the protocol's base64 form.

    Source: MCP 2026-07-28, "Transports", "Streamable HTTP", "Standard Headers".
    """
    if _PLAIN.fullmatch(value) and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def with_meta(result: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a result with one more member in its `_meta`; the given one stays as it is."""
    meta = result.get("_meta")
    return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), key: value}}


def question_of(server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return a server's question to a user as a host shows it: its text names the server.

    Hosts show questions as those of the gateway, which has some of its own, as whether a call may be made.
    """
    if method != "elicitation/create":
        return params
    message = params.get("message")
    return {**params, "message": f"Server '{server}' asks: {message if isinstance(message, str) else ''}"}


GATEWAYS: Final = "typegate/gateways"
"""The experimental capability that names a gateway and every gateway behind it, each by an id of its present run."""


def gateways_of(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """The gateways that an upstream is, or leads to."""
    experimental = capabilities.get("experimental")
    named = experimental.get(GATEWAYS) if isinstance(experimental, dict) else None
    return frozenset(named) if isinstance(named, dict) else frozenset()
