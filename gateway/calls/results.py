"""The way back: a raw upstream result becomes what this caller's era can read, and nothing less."""

from __future__ import annotations

from typing import Any

from gateway import wire
from gateway.eras import SERVER_INFO_KEY
from gateway.errors import UpstreamProtocolError, error_result


def adapt(result: Any, *, server: str, modern: bool) -> dict[str, Any]:
    """Adapt a result of `tools/call`; `result` is the caller's alone and may be changed.

    Sources: MCP 2026-07-28, "Tools", "Tool Result" and "Base protocol", "Result types".

    Raises:
        UpstreamProtocolError: It is no result of a tool call.
    """
    if not isinstance(result, dict):
        raise UpstreamProtocolError(server, f"Server '{server}' answered with something that is no result.")
    kind = result.get("resultType", "complete")
    _unstamp(result)
    if not modern and kind != "complete":
        return error_result(
            f"Server '{server}' answered with a result of the kind {kind!r}, which this connection's protocol "
            "version cannot carry. The tool has no result here."
        )
    if kind == "complete":
        _fill_content(result, server)
        if modern:
            result["resultType"] = "complete"
        else:
            result.pop("resultType", None)
            structured = result.get("structuredContent")
            if "structuredContent" in result and not isinstance(structured, dict):
                # Before 2026-07-28 only objects were allowed; the text form says the same.
                del result["structuredContent"]
    return result


def _fill_content(result: dict[str, Any], server: str) -> None:
    content = result.get("content")
    if "structuredContent" in result:
        kept = content if isinstance(content, list) else []
        if not any(isinstance(item, dict) and item.get("type") == "text" for item in kept):
            text = wire.dumps(result["structuredContent"]).decode()
            result["content"] = [*kept, {"type": "text", "text": text}]
    elif not isinstance(content, list):
        raise UpstreamProtocolError(server, f"Server '{server}' answered without content; the call has no result.")


def _unstamp(result: dict[str, Any]) -> None:
    meta = result.get("_meta")
    if isinstance(meta, dict) and SERVER_INFO_KEY in meta:
        del meta[SERVER_INFO_KEY]
        if not meta:
            del result["_meta"]
