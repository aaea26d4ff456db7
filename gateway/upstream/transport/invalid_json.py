"""Responses that are not strict JSON: their request fails at once, and a listing loses only what is invalid."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import anyio.to_thread

from gateway import wire
from gateway.errors import INTERNAL_ERROR
from gateway.lines import ENDS_BYTES

# Deeper than any definition may be, so that intake still sees that it is, and truncated_at_depther than parsers go.
_KEPT_DEPTH: Final = 250
# An id of more digits is none of ours; some servers write it as a text, or as a fraction.
_MEMBER: Final = rb'\s*"(?:jsonrpc"\s*:\s*"2\.0"|id"\s*:\s*"?(\d{1,18})(?:\.0)?"?)\s*'
_HEAD: Final = re.compile(rb"\s*\{(?:" + _MEMBER + rb',)*+\s*"(?:result|error)"\s*:')
_TAIL: Final = re.compile(rb"(?:," + _MEMBER + rb")++\}\s*\Z")
# An escape at the very end and a quote that is never closed match too: no byte is looked at twice.
_SHAPE: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def answered_id(line: bytes, *, ends: bool = False) -> int | None:
    """The id of the request that this text wants to answer; None where that is not certain.

    Servers write `id` before or after the one large member, so a look at both ends finds it,
    whatever stands between them and however much.

    Args:
        line: The text.
        ends: It is only the two ends of one, and what was between is gone.
    """
    head = _HEAD.match(line[:ENDS_BYTES])
    if head is None or b'"jsonrpc"' not in line[:ENDS_BYTES] + line[-ENDS_BYTES:]:
        return None
    if head[1] is None and (ends or line.count(b"{") == line.count(b"}")):
        # Only of a whole text: in one that was cut, the last `id` may belong to anything.
        head = _TAIL.search(line[-ENDS_BYTES:])
    return int(head[1]) if head is not None and head[1] is not None else None


async def repaired_response(data: bytes, method: str) -> dict[str, Any] | None:
    """What is taken for a response that is not strict JSON; None where it is no response at all.

    One bad tool must not cost a server its whole list: there, what is nested too deeply is cut and
    what is no number stays one, for intake to refuse. Every other method gets an error.
    """
    request_id = answered_id(data)
    if request_id is None:
        return None
    # In a thread: the lenient parser is slow, and a listing may be large.
    try:
        if method == "tools/list":
            message = await anyio.to_thread.run_sync(_lenient, data)
            if isinstance(message, dict):
                return message
        wire.loads(data)
        why = "it is no object"
    except (ValueError, RecursionError) as error:
        why = str(error)[:200] or "it is nested too deeply"
    return no_result(request_id, why)


def no_result(request_id: int, why: str) -> dict[str, Any]:
    """What is taken for the response to a request in place of one that is not JSON."""
    text = f"The answer is not JSON ({why}): the request has no result, but may have taken effect."
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": INTERNAL_ERROR, "message": text}}


def truncated_at_depth(data: bytes) -> bytes:
    """The same text with `null` for whatever is nested more than 250 levels deep; linear in its length."""
    kept: list[bytes] = []
    depth = start = 0
    for found in _SHAPE.finditer(data):
        first, length = data[found.start()], found.end() - found.start()
        if first in b"[{":
            if depth <= _KEPT_DEPTH < depth + length:
                kept += [data[start : found.start() + _KEPT_DEPTH - depth], b"null"]
            depth += length
        elif first in b"]}":
            if depth - length <= _KEPT_DEPTH < depth:
                start = found.start() + depth - _KEPT_DEPTH
            depth -= length
    kept.append(data[start:] if depth <= _KEPT_DEPTH else b"")
    return b"".join(kept)


def _lenient(data: bytes) -> Any:
    return json.loads(truncated_at_depth(data).decode("utf-8", "replace"), strict=False)
