"""Shapes of a call's arguments that hooks were written for, and the way back. Pure; native is no shape at all.

`native`, `nested` and `metadata` give every argument object back as it was. `flatMetadata` puts the metadata among
the arguments under the key `metadata`, so it refuses arguments that have one.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from gateway.hooks.hook import Metadata
from gateway.hooks.payloads import BadPayload

Format = Literal["native", "nested", "metadata", "flatMetadata"]
METADATA: Final = "metadata"
ARGUMENTS: Final = "arguments"


def described(metadata: Metadata) -> dict[str, Any]:
    """The metadata as JSON, its keys in camelCase."""
    told: dict[str, Any] = {
        "kind": metadata.kind,
        "wrapper": metadata.wrapper,
        "server": metadata.server,
        "tool": metadata.tool,
        "principal": metadata.principal,
        "session": metadata.session,
        "requestId": metadata.request_id,
        "callId": metadata.call_id,
        "via": metadata.via,
        "tags": list(metadata.tags),
        "profile": metadata.profile,
        "digest": metadata.digest,
        "readOnly": metadata.read_only,
    }
    return told if metadata.blocked_by is None else {**told, "blockedBy": metadata.blocked_by}


def encode(shape: Format, args: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """Return the arguments in a shape.

    Raises:
        BadPayload: They have an argument that the shape has no room for.
    """
    if shape == "nested":
        return {"server": metadata.server, "tool_name": metadata.tool, ARGUMENTS: args}
    if shape == "metadata":
        return {ARGUMENTS: args, METADATA: described(metadata)}
    if shape == "flatMetadata":
        if METADATA in args:
            raise BadPayload("cannot be given an argument named `metadata` (payloadFormat: flatMetadata)")
        return {**args, METADATA: described(metadata)}
    return args


def decode(shape: Format, shaped: Any) -> dict[str, Any]:
    """Return the arguments that stand in a shape.

    Raises:
        BadPayload: It is not of that shape.
    """
    found = shaped
    if shape in ("nested", "metadata"):
        found = shaped.get(ARGUMENTS) if isinstance(shaped, dict) else None
    elif shape == "flatMetadata" and isinstance(shaped, dict):
        found = {key: value for key, value in shaped.items() if key != METADATA}
    if not isinstance(found, dict):
        raise BadPayload(f"handed back arguments that are no object in the shape {shape}")
    return found
