"""Argument formats that hooks of other gateways expect of tool calls: conversion to them, and back. Pure functions.

    native          {…arguments}
    nested          {tool_name, tool_args: {…arguments}, client_session_id}
    metadata        {arguments: {…arguments}, metadata: {tool_name, client_session_id, …}}
    flatMetadata    {…arguments, metadata: {tool_name, client_session_id, …}}

The first three return every argument object as it was. `flatMetadata` refuses arguments with a key `metadata`. Where a
protocol version has no sessions, `client_session_id` is the name of the caller, so that hooks which keep something for
each session tell callers apart.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from gateway.hooks.hook import Metadata
from gateway.hooks.payloads import BadPayload

Format = Literal["native", "nested", "metadata", "flatMetadata"]
METADATA: Final = "metadata"
_ARGUMENTS: Final = {"nested": "tool_args", "metadata": "arguments"}


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
    if shape == "native":
        return args
    told = {"tool_name": metadata.tool, "client_session_id": metadata.session or metadata.principal}
    if shape == "nested":
        return {**told, _ARGUMENTS[shape]: args}
    if shape == "metadata":
        return {_ARGUMENTS[shape]: args, METADATA: {**told, **described(metadata)}}
    # On the way back it could not be told from ours.
    if METADATA in args:
        raise BadPayload("cannot be given an argument named `metadata` (payloadFormat: flatMetadata)")
    return {**args, METADATA: {**told, **described(metadata)}}


def decode(shape: Format, shaped: Any) -> dict[str, Any]:
    """Return the arguments from a value in a format.

    Raises:
        BadPayload: The value is not in that format.
    """
    found = shaped
    if shape in ("nested", "metadata"):
        found = shaped.get(_ARGUMENTS[shape]) if isinstance(shaped, dict) else None
    elif shape == "flatMetadata" and isinstance(shaped, dict):
        found = {key: value for key, value in shaped.items() if key != METADATA}
    if not isinstance(found, dict):
        raise BadPayload(f"handed back arguments that are no object in the shape {shape}")
    return found
