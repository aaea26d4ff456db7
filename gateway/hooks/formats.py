"""Argument formats that hooks of other gateways expect: conversion to them, and back. Pure functions.

`native`, `nested` and `metadata` return every argument object as it was. `flatMetadata` puts the metadata among the
arguments under the key `metadata`, so it refuses arguments with such a key.
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
    row: dict[str, Any] = {
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
    return row if metadata.blocked_by is None else {**row, "blockedBy": metadata.blocked_by}


def encode(shape: Format, args: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """Return arguments in a format.

    Raises:
        BadPayload: The format cannot express one of them.
    """
    if shape == "nested":
        return {"server": metadata.server, "tool_name": metadata.tool, ARGUMENTS: args}
    if shape == "metadata":
        return {ARGUMENTS: args, METADATA: described(metadata)}
    if shape == "flatMetadata":
        # On the way back it could not be told from ours.
        if METADATA in args:
            raise BadPayload("cannot be given an argument named `metadata` (payloadFormat: flatMetadata)")
        return {**args, METADATA: described(metadata)}
    return args


def decode(shape: Format, shaped: Any) -> dict[str, Any]:
    """Return the arguments from a value in a format.

    Raises:
        BadPayload: The value is not in that format.
    """
    found = shaped
    if shape in ("nested", "metadata"):
        found = shaped.get(ARGUMENTS) if isinstance(shaped, dict) else None
    elif shape == "flatMetadata" and isinstance(shaped, dict):
        found = {key: value for key, value in shaped.items() if key != METADATA}
    if not isinstance(found, dict):
        raise BadPayload(f"handed back arguments that are no object in the shape {shape}")
    return found
